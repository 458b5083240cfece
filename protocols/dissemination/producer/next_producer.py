"""The node that is to produce a stream next: it has everything, writes the record, and goes on.

It is asked by the producer: to take the stream over now (`succession`), or to stand by for when the producer is gone
(`take_over`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from peerd.api import handles, on_timer
from peerd.errors import Unavailable
from peerd.ids import NodeId
from peerd.messages import Message, PeerRef
from protocols.dissemination.events import StreamTakenOver
from protocols.dissemination.messages import HandOver, HandOverAnswer, HandOverState, HandOverStep
from protocols.dissemination.names import START, position_text
from protocols.dissemination.ports import Interest
from protocols.dissemination.producer.part import ProducerPart
from protocols.dissemination.producer.stepping_down import BACK_EVERY_S, Rivals
from protocols.dissemination.service import StreamRefused
from protocols.dissemination.stream import StreamRecord
from protocols.dissemination.stream_node import StreamNode
from protocols.dissemination.streams import Streams

UNASKED_S: Final = 30.0
"""A node that was to be the next producer, and is not asked for so long, is it no more."""
DETAIL_MAX: Final = 200
"""Characters of a reason."""
COMING_MAX: Final = 64
"""Streams that a node stands by for, or prepares to take over, at the same time."""
WHOLE_STREAM: Final = 0
"""The number of the subscription to everything that the next producer has."""
_FORGET: Final = "stream_not_handed_over"


@dataclass(slots=True)
class Coming:
    """A stream that this node is to take over."""

    node: StreamNode
    producer: NodeId
    everything: Interest
    asked_at: float
    is_standby: bool = False
    """It waits for the producer to be gone."""
    adrift_at: float = 0.0
    """A standby had no way to the producer then, and may be needed."""
    lapsed_at: float | None = None
    """The ring has had no record of the stream since then; ``None``: it has one, or it is not known."""
    is_writing: bool = False
    """Its record is on the way to the ring."""
    why_not: str = ""


Taken = Callable[[Coming, StreamRecord], None]


class NextProducer(ProducerPart):
    def __init__(self, streams: Streams, rivals: Rivals) -> None:
        super().__init__(streams)
        self._rivals = rivals
        self._coming: dict[NodeId, Coming] = {}

    def standing_by(self) -> Iterator[Coming]:
        """The streams that this node is a standby of."""
        return iter([each for each in self._coming.values() if each.is_standby])

    @handles(HandOver)
    def on_hand_over(self, message: HandOver, source: PeerRef) -> Message:
        """The producer asks how far this node is. Who that is, the ring has said."""
        node = self._nodes.get(message.stream)
        if node is None:
            return self._refuse(message, "it is not in the tree any more")
        known = node.record
        if node.is_producer and message.term > known.term:
            self._rivals.overtaken(node, source, message.term)
            return HandOverAnswer(message.stream, HandOverState.PREPARING)
        if node.is_producer:
            is_after = node.predecessor is None or node.predecessor.id == source.id
            if is_after and known.term == message.term + 1:
                return HandOverAnswer(message.stream, HandOverState.PRODUCING)
            if node.predecessor is not None and is_after and known.term > message.term:
                self._rivals.claim(message.stream, source)
                return HandOverAnswer(message.stream, HandOverState.PREPARING)
            return self._refuse(message, "it produces the stream itself")
        if message.step == HandOverStep.TAKEN and message.term > known.term:
            self._nodes.look_up_now(node, source.id)
        if node.had_from == source.id and message.term < known.term:
            return HandOverAnswer(message.stream, HandOverState.PRODUCING)  # by now another one has it from here
        if (known.producer.peer.id, known.term) != (source.id, message.term):
            return HandOverAnswer(message.stream, HandOverState.PREPARING)  # this node may have to hear of it yet
        if message.step in (HandOverStep.ASK, HandOverStep.TAKEN):
            return self._refuse(message, "it is a member")
        if message.step == HandOverStep.RELEASE:
            self._release(message.stream)
            return self._refuse(message, "it stands by no more")
        return self._prepared(message, node, source)

    @staticmethod
    def _refuse(message: HandOver, why: str) -> HandOverAnswer:
        return HandOverAnswer(message.stream, HandOverState.REFUSED, why[:DETAIL_MAX])

    def _prepared(self, message: HandOver, node: StreamNode, source: PeerRef) -> HandOverAnswer:
        try:
            coming = self._prepare(node, source)
        except (StreamRefused, Unavailable) as error:
            return self._refuse(message, str(error))
        why, coming.why_not = coming.why_not, ""
        if why:  # it is told once: the producer may ask for another attempt
            return self._refuse(message, why)
        coming.is_standby |= message.step == HandOverStep.STAND_BY
        is_ready = self._has_all(coming, message)
        if message.step == HandOverStep.TAKE and is_ready and not coming.is_writing:
            self.take(coming, node.record.handed_to(self._host.peer), self._handed_over)
        if coming.is_writing:
            return HandOverAnswer(message.stream, HandOverState.TAKING)
        return HandOverAnswer(message.stream, HandOverState.READY if is_ready else HandOverState.PREPARING)

    @handles(HandOverAnswer)
    def on_answer(self, message: HandOverAnswer, source: PeerRef) -> None:
        """An answer that comes after its time."""

    def _has_all(self, coming: Coming, message: HandOver) -> bool:
        return coming.node.member.has_all(coming.everything, message.watermark)

    def _prepare(self, node: StreamNode, source: PeerRef) -> Coming:
        """Want everything. Raises `StreamRefused` and `Unavailable`."""
        key = node.record.key
        coming = self._coming.get(key)
        if coming is not None and coming.node is node and coming.producer == source.id:
            coming.asked_at = self._host.now()
            return coming
        if self._streams.is_leaving:
            raise Unavailable("it is leaving the ring")
        if self._config().fan_out == 0:
            raise StreamRefused("conflict", "it sends streams to nobody: its fan_out is 0")
        if len(self._coming) >= COMING_MAX:
            raise Unavailable(f"{COMING_MAX} streams are being handed over to it already")
        everything = node.kind.parse("")
        self._coming[key] = coming = Coming(node, source.id, everything, self._host.now())
        node.subscribe(WHOLE_STREAM, everything, START, node.with_documents(lambda what: None), lambda: None)
        self._host.cancel_timer(_FORGET, key)
        self._host.set_timer(_FORGET, UNASKED_S, key)
        return coming

    @on_timer(_FORGET)
    def on_forget(self, key: NodeId) -> None:
        """Want the whole stream no more, if the producer has changed its mind."""
        coming = self._coming.get(key)
        if coming is None:
            return
        rest_s = max(coming.asked_at, coming.adrift_at) + UNASKED_S - self._host.now()
        if self._nodes.get(key) is coming.node and (rest_s > 0 or coming.is_writing):
            self._host.set_timer(_FORGET, max(rest_s, BACK_EVERY_S), key)
            return
        self._drop(coming)

    def _release(self, key: NodeId) -> None:
        coming = self._coming.get(key)
        if coming is not None and coming.is_standby and not coming.is_writing:
            self._drop(coming)

    def _drop(self, coming: Coming) -> None:
        key = coming.node.record.key
        self._coming.pop(key, None)
        self._host.cancel_timer(_FORGET, key)
        if self._nodes.get(key) is coming.node:
            coming.node.unsubscribe(WHOLE_STREAM)

    def take(self, coming: Coming, record: StreamRecord, then: Taken) -> None:
        """Write the record. This node is the producer when the ring has it: ``then`` is told who was it before."""
        old = coming.node.record
        coming.is_writing = True
        self._produced.remember(record)  # before the ring knows: who is the producer there has to be so after a crash

        def done(why: Exception | None) -> None:
            coming.is_writing = False
            if why is None and self._nodes.get(record.key) is coming.node:
                self._become(coming, old, record)
                then(coming, old)
                return
            coming.why_not = str(why or "it has left the stream")
            self._give_back(record)

        self._registry.create(record, done)

    def _give_back(self, record: StreamRecord) -> None:
        """The record may have been written, although nobody has said so: the old producer waits for it to be gone."""
        with suppress(Unavailable):
            self._produced.forget(record)
        self._registry.withdraw(record)

    def _become(self, coming: Coming, old: StreamRecord, record: StreamRecord) -> None:
        node = coming.node
        keeping = self._produced.keep_on(node)
        node.become_producer(record, old.producer.peer, coming.everything, self._nodes.numbers.sequence, keeping)
        self._drop(coming)

    def _handed_over(self, coming: Coming, old: StreamRecord) -> None:
        node, watermark = coming.node, coming.node.member.state.watermark
        self._produced.keep_from_now_on(node)
        self._host.emit(
            StreamTakenOver(
                stream=node.name, predecessor=old.producer.id, term=node.record.term, position=position_text(watermark)
            )
        )
        self._nodes.on_room()
