"""Of two producers of one stream the one of the larger term is right: the other one steps down, and is a member.

There may be two after a ring was divided, and when a producer comes back whose stream another node has meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from peerd.api import on_timer
from peerd.errors import Unavailable
from peerd.ids import NodeId
from peerd.messages import Message, PeerRef
from protocols.dissemination.events import StreamSteppedDown
from protocols.dissemination.messages import HandOver, HandOverAnswer, HandOverState, HandOverStep
from protocols.dissemination.names import START, TERM_MAX
from protocols.dissemination.producer.part import ProducerPart
from protocols.dissemination.producer.produced import LOOK_AGAIN_S, LOOKS_MAX
from protocols.dissemination.registry import RENEWALS_PER_LEASE
from protocols.dissemination.service import StreamRefused
from protocols.dissemination.stream import AFTER_STANDBYS, StreamRecord
from protocols.dissemination.stream_node import StreamNode
from protocols.dissemination.streams import Streams

BACK_EVERY_S: Final = 2.0
"""Pause between two attempts to write a record again, and between two looks at the ring where a node claims a later
term."""
_WATCH: Final = "stream_rival"
_RETURNED: Final = "stream_returned"


@dataclass(slots=True)
class _Returned:
    """A stream with standbys whose producer, this node, was restarted."""

    node: StreamNode
    looks: int = 0
    has_asked: bool = False
    """The standbys were asked, because the ring has no record."""


class Rivals(ProducerPart):
    """``is_busy`` says of a stream that it is being handed over."""

    def __init__(self, streams: Streams) -> None:
        super().__init__(streams)
        self._rivals: dict[NodeId, PeerRef] = {}
        """Who may produce a stream of this node's in another part of a divided ring, unheard."""
        self._look_at = 0.0
        self._returned: dict[NodeId, _Returned] = {}
        self.is_busy: Callable[[NodeId], bool] = lambda key: False
        self._registry.on_conflict = self.name_lost
        self._produced.on_returned = self.returned

    def watch(self, key: NodeId, rival: PeerRef) -> None:
        """Ask another node now and then whether it produces this node's stream."""
        self._rivals[key] = rival
        self._again(key)

    def claim(self, key: NodeId, rival: PeerRef) -> None:
        """Ask now, and now and then: the question tells the other one of this node's term."""
        self._rivals[key] = rival
        self.on_watch(key)

    # After a restart

    def returned(self, node: StreamNode) -> None:
        """See whether a standby has taken over, before the record is written again. Until then nothing is published."""
        self._returned[node.record.key] = _Returned(node)
        self._host.set_timer(_RETURNED, 0.0, node.record.key)

    @on_timer(_RETURNED)
    def on_returned(self, key: NodeId) -> None:
        """Ask the ring."""
        back = self._returned.get(key)
        if back is None or self._nodes.get(key) is not back.node or not back.node.is_producer:
            self._returned.pop(key, None)
            return
        back.looks += 1
        self._registry.find(back.node.name, lambda answer: self._looked(key, back, answer))

    def _looked(self, key: NodeId, back: _Returned, answer: StreamRecord | Exception) -> None:
        node = back.node
        if self._returned.get(key) is not back or self._nodes.get(key) is not node or not node.is_producer:
            return
        if isinstance(answer, Unavailable) and back.looks < LOOKS_MAX:
            self._host.set_timer(_RETURNED, LOOK_AGAIN_S, key)
            return
        is_gone = isinstance(answer, StreamRefused) and answer.kind == "unknown"
        if is_gone and node.record.standbys and not back.has_asked:
            back.has_asked = True
            # Whoever has taken over says so (`claim`).
            self._tell((each.peer for each in node.record.standbys), HandOverStep.ASK, node.record)
            self._host.set_timer(_RETURNED, self._config().ask_timeout + LOOK_AGAIN_S, key)
            return
        del self._returned[key]
        if isinstance(answer, StreamRecord) and answer.succeeds(node.record):
            self.step_down(node, answer)
            return
        if is_gone and node.record.standbys and node.record.term + AFTER_STANDBYS <= TERM_MAX:
            # One may have had the stream, and be gone by now: what it has sent is of another term than this node's.
            node.begin_term(node.record.in_term(node.record.term + AFTER_STANDBYS))
            self._produced.remember(node.record)
        self._registry.keep(node.record, 0.0)

    # While it produces

    def _again(self, key: NodeId) -> None:
        node = self._nodes.get(key)
        lease_s = self._config().lease if node is None else self._registry.lease_s(node.record)
        pause_s = lease_s / RENEWALS_PER_LEASE * self._host.rng.uniform(0.8, 1.2)
        self._host.cancel_timer(_WATCH, key)
        self._host.set_timer(_WATCH, pause_s, key)

    @on_timer(_WATCH)
    def on_watch(self, key: NodeId) -> None:
        """Ask the other one. If the ring was divided, it may have taken the stream over: the larger term is right."""
        node, rival = self._nodes.get(key), self._rivals.get(key)
        if node is None or rival is None or not node.is_producer:
            self._rivals.pop(key, None)
            return
        self._again(key)
        question = HandOver(key, HandOverStep.ASK, node.record.term, START)

        def answered(reply: Message, source: PeerRef) -> None:
            if self._nodes.get(key) is not node or not node.is_producer or self.is_busy(key):
                return
            if not isinstance(reply, HandOverAnswer) or reply.state == HandOverState.REFUSED:
                self._rivals.pop(key, None)
            elif reply.state == HandOverState.PRODUCING:
                self._registry.withdraw(node.record)
                self.step_down(node, node.record.handed_to(rival))

        self._host.request(rival, question, self._config().ask_timeout, answered, lambda: None)

    def step_down(self, node: StreamNode, record: StreamRecord) -> None:
        """Another node has become the producer of this stream, and this one learns of it now."""
        self.go_below(node, record)
        self._host.emit(StreamSteppedDown(stream=record.name, producer=record.producer.id, term=record.term))

    def go_below(self, node: StreamNode, record: StreamRecord) -> None:
        """Another node is the producer from now on, and this one a member."""
        self._registry.forget(node.record)
        self._rivals.pop(node.record.key, None)
        with suppress(Unavailable):  # then the ring says so again after the next restart
            self._produced.forget(node.record)
        node.become_member(record)
        self._nodes.on_room()

    def name_lost(self, record: StreamRecord) -> None:
        """Another node has written a record of this node's stream, while this one was away."""
        self._registry.forget(record)

        def found(answer: StreamRecord | Exception) -> None:
            node = self._nodes.get(record.key)
            if node is None or not node.is_producer or self.is_busy(record.key):
                return
            if isinstance(answer, StreamRecord) and answer.succeeds(record):
                self.step_down(node, answer)
            elif (
                isinstance(answer, StreamRecord)
                and not self._nodes.is_own(answer)
                and not answer.is_earlier_than(record)
            ):
                self._registry.withdraw(record)
                with suppress(Unavailable):  # then the ring says so again after the next restart
                    self._produced.forget(record)
                self._nodes.give_up(node, "another producer has the name")
            else:  # it cannot be known now; or this node's term is the later one, and the other will step down
                self._registry.keep(record, BACK_EVERY_S)

        self._registry.find(record.name, found)

    def overtaken(self, node: StreamNode, source: PeerRef, term: int) -> None:
        """Another node says that it is the producer, of a later term: that is so if the ring says it, too.

        Anybody may say so, therefore the ring is not asked each time. A standby that this node has named itself is
        believed at once: it may just be unable to renew its record.
        """
        rank = node.record.rank_of(source.id)
        if rank is not None and not self.is_busy(node.record.key):
            self._registry.withdraw(node.record)
            self.step_down(node, node.record.taken_over(source, rank).model_copy(update={"term": term}))
            return
        now = self._host.now()
        if now < self._look_at:
            return
        self._look_at = now + BACK_EVERY_S

        def found(answer: StreamRecord | Exception) -> None:
            is_free = self._nodes.get(node.record.key) is node and node.is_producer
            if is_free and isinstance(answer, StreamRecord) and answer.succeeds(node.record):
                self._registry.withdraw(node.record)
                self.step_down(node, answer)

        self._registry.find(node.name, found, source.id)
