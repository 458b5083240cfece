"""Handing a stream over: another node becomes its producer, and nothing is lost, doubled or out of order.

The record of the stream is the lock: the store keeps one node's record from another node while it lives, so there is
one producer at any time. The producer drives, and asks the next one again and again; each answer says how far that is.

1. PREPARE: the next one joins the tree, and has everything that is remembered brought to it.
2. The producer takes no more items, and waits until the next one has had the last of them.
3. It deletes its record. TAKE: the next one writes its own, of the next term, and is the producer when that is stored.
4. The old producer goes on below the new one, as a member; its children stay with it.

Where the next one does not confirm, the old producer writes its record again: the store decides which of the two it is.
docs/protocols/dissemination-tree.md tells what a failure in between does.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from typing import Final

from peerd.api import Host, Part, handles, on_timer
from peerd.errors import Unavailable
from peerd.ids import NodeId, short_id
from peerd.messages import Message, PeerRef
from protocols.dissemination.config import DisseminationConfig
from protocols.dissemination.events import StreamHandedOver, StreamSteppedDown, StreamTakenOver
from protocols.dissemination.messages import HandOver, HandOverAnswer, HandOverState, HandOverStep
from protocols.dissemination.names import START, TERM_MAX, StreamPosition
from protocols.dissemination.ports import Interest
from protocols.dissemination.produced import ProducedStreams
from protocols.dissemination.registry import RENEWALS_PER_LEASE, StreamRegistry
from protocols.dissemination.service import StreamRefused
from protocols.dissemination.stream import StreamRecord
from protocols.dissemination.stream_node import StreamNode, position_text
from protocols.dissemination.taking_part import StreamNodes
from protocols.dissemination.tree.state import mark

ASK_EVERY_S: Final = 0.1
"""The next producer is asked again so long after its last answer."""
PREPARE_S: Final = 60.0
"""If the next producer has not had all that is remembered by then, the stream stays where it is."""
PAUSE_S: Final = 10.0
"""The same, if it has not had the last items so long after the producer has stopped to take more."""
TAKE_S: Final = 20.0
"""If it has not said by then that its record is stored, the old producer writes its own again."""
BACK_EVERY_S: Final = 2.0
"""Pause between two attempts to do that, and between two looks at the ring where a node claims a later term."""
UNASKED_S: Final = 30.0
"""A node that was to be the next producer, and is not asked for so long, is it no more."""
DETAIL_MAX: Final = 200
"""Characters of a reason."""
COMING_MAX: Final = 16
"""Streams that a node prepares to take over at the same time."""
WHOLE_STREAM: Final = 0
"""The number of the subscription to everything that the next producer has."""
_STEP: Final = "stream_hand_over"
_FORGET: Final = "stream_not_handed_over"
_WATCH: Final = "stream_rival"

Done = Callable[[Exception | None], None]


def _nobody(why: Exception | None) -> None:
    """The client was told already."""


class _Stage(Enum):
    PREPARING = "preparing"
    PAUSED = "paused"
    DELETING = "deleting"
    TAKING = "taking"
    BACK = "back"


@dataclass(slots=True)
class _Going:
    """A stream that this node hands over."""

    node: StreamNode
    to: PeerRef
    on_done: Done
    since: float
    through: StreamPosition
    """The next producer has to have everything up to here. Before the pause it cannot have the last items."""
    stage: _Stage = _Stage.PREPARING
    paused_at: float = 0.0
    why_back: str = ""
    was_taken: bool = False
    """The next producer has written its record, so it may have published."""

    @property
    def who(self) -> str:
        """The next producer, for people."""
        return f"node {short_id(self.to.id)}"


@dataclass(slots=True)
class _Coming:
    """A stream that this node is to take over."""

    node: StreamNode
    producer: NodeId
    everything: Interest
    asked_at: float
    is_writing: bool = False
    """Its record is on the way to the ring."""
    why_not: str = ""


class Succession(Part):
    """Both sides of it. ``on_change`` is called when this node becomes a stream's producer, or is it no more."""

    def __init__(
        self,
        host: Host,
        config: Callable[[], DisseminationConfig],
        nodes: StreamNodes,
        registry: StreamRegistry,
        produced: ProducedStreams,
    ) -> None:
        self._host, self._config, self._nodes = host, config, nodes
        self._registry, self._produced = registry, produced
        self._going: dict[NodeId, _Going] = {}
        self._coming: dict[NodeId, _Coming] = {}
        self._rivals: dict[NodeId, PeerRef] = {}
        """Who may have taken a stream over in another part of a divided ring, without this node's hearing of it."""
        self._look_at = 0.0
        self.on_change: Callable[[], None] = lambda: None
        self.is_leaving: Callable[[], bool] = lambda: False
        registry.on_conflict = self.name_lost

    # The producer

    def check_stays(self, node: StreamNode) -> None:
        """Raise `Unavailable` for a stream that is being handed over."""
        going = self._going.get(node.record.key)
        if going is not None:
            raise Unavailable(f"the stream {node.name} is being handed over to {going.who}")

    def hand_over(self, node: StreamNode, to: PeerRef, on_done: Done) -> None:
        """Make another node the producer. Raises `StreamRefused` and `Unavailable`."""
        self.check_stays(node)
        if to.id == self._host.id:
            raise StreamRefused("conflict", f"this node produces {node.name} already")
        if node.record.term + 2 > TERM_MAX:  # one for the next producer, and one to take the stream back from it
            raise StreamRefused("quota", f"{node.name} was handed over {TERM_MAX} times, and that is the limit")
        self._going[node.record.key] = _Going(node, to, on_done, self._host.now(), node.member.state.through)
        self._host.set_timer(_STEP, 0.0, node.record.key)

    @on_timer(_STEP)
    def step(self, key: NodeId) -> None:
        """Go on with handing over a stream."""
        going = self._going.get(key)
        if going is None or going.stage is _Stage.DELETING:
            return
        if self._nodes.get(key) is not going.node:
            self._finish(going, StreamRefused("unknown", f"the stream {going.node.name} is over"))
            return
        late = {_Stage.PREPARING: PREPARE_S, _Stage.PAUSED: PAUSE_S, _Stage.TAKING: TAKE_S}
        if going.stage is _Stage.BACK:
            self._take_back(going)
        elif self._host.now() - going.since < late[going.stage]:
            self._ask(going)
        elif going.stage is _Stage.TAKING:
            self._go_back(going, f"{going.who} has not said within {TAKE_S:.0f} s that it has taken the stream over")
        else:
            self._stay(going, Unavailable(f"{going.who} has not had all of {going.node.name} in time"))

    def _enter(self, going: _Going, stage: _Stage, in_s: float = 0.0) -> None:
        going.stage, going.since = stage, self._host.now()
        self._again(going, in_s)

    def _again(self, going: _Going, in_s: float) -> None:
        self._host.cancel_timer(_STEP, going.node.record.key)
        self._host.set_timer(_STEP, in_s, going.node.record.key)

    def _ask(self, going: _Going) -> None:
        node, stage = going.node, going.stage
        if stage is _Stage.PAUSED and node.is_sending:
            self._again(going, ASK_EVERY_S)  # for the disk: what waits for it goes out, too
            return
        if stage is _Stage.PAUSED:
            node.flush()
            going.through = node.member.state.through
        step = HandOverStep.TAKE if stage is _Stage.TAKING else HandOverStep.PREPARE
        question = HandOver(node.record.key, step, node.record.term, mark(going.through))

        def answered(answer: Message | None) -> None:
            if self._going.get(node.record.key) is going and going.stage is stage:
                self._again(going, ASK_EVERY_S)
                if isinstance(answer, HandOverAnswer):
                    self._answered(going, answer)

        self._host.request(
            going.to,
            question,
            self._config().ask_timeout,
            lambda reply, source: answered(reply),
            lambda: answered(None),
        )

    def _answered(self, going: _Going, answer: HandOverAnswer) -> None:
        node = going.node
        if going.stage is _Stage.TAKING:
            if answer.state == HandOverState.PRODUCING:
                self._handed_over(going, node.record.handed_to(going.to))
            elif answer.state == HandOverState.REFUSED:
                self._go_back(going, f"{going.who} does not take it: {answer.detail}")
        elif answer.state == HandOverState.REFUSED:
            self._stay(going, StreamRefused("conflict", f"{going.who} does not take {node.name}: {answer.detail}"))
        elif answer.state == HandOverState.READY and going.stage is _Stage.PREPARING:
            node.is_paused, going.paused_at = True, self._host.now()
            self._enter(going, _Stage.PAUSED)
        elif answer.state == HandOverState.READY:
            self._delete(going)

    def _delete(self, going: _Going) -> None:
        self._enter(going, _Stage.DELETING)

        def deleted(why: Exception | None) -> None:
            if self._going.get(going.node.record.key) is not going:
                return
            if why is None:
                self._enter(going, _Stage.TAKING)
            else:  # it may be deleted nevertheless
                self._go_back(going, f"its record cannot be deleted now: {why}")

        try:
            self._registry.remove(going.node.record, deleted)
        except Unavailable as error:
            self._registry.keep(going.node.record, 0.0)
            self._stay(going, error)

    def _stay(self, going: _Going, why: Exception) -> None:
        """The record is still there: this node is the producer as before."""
        going.node.is_paused = False
        self._finish(going, why)

    def _finish(self, going: _Going, why: Exception | None) -> None:
        self._going.pop(going.node.record.key, None)
        self._host.cancel_timer(_STEP, going.node.record.key)
        going.on_done(why)
        self.on_change()

    def _go_back(self, going: _Going, why: str) -> None:
        going.why_back = why
        self._enter(going, _Stage.BACK)

    def _take_back(self, going: _Going) -> None:
        """Write the record again. The store refuses that while the other node has one.

        If it has had one, it may have published: then a later term begins, and what lies between is told as lost.
        """
        record = going.node.record.taken_back() if going.was_taken else going.node.record

        def done(why: Exception | None) -> None:
            if self._going.get(record.key) is not going:
                return
            if why is None:
                self._rivals[record.key] = going.to
                self._watch(record.key)
                if going.was_taken:
                    self._produced.remember(record)
                    going.node.begin_term(record)
                self._stay(going, Unavailable(f"{record.name} stays here: {going.why_back}"))
            elif isinstance(why, StreamRefused) and why.kind == "conflict":
                self._see_whose(going)
            else:
                self._again(going, BACK_EVERY_S)

        try:
            self._registry.create(record, done)
        except Unavailable:
            self._again(going, BACK_EVERY_S)

    def _see_whose(self, going: _Going) -> None:
        record = going.node.record

        def found(answer: StreamRecord | Exception) -> None:
            if self._going.get(record.key) is not going:
                return
            if isinstance(answer, StreamRecord) and answer.succeeds(record):
                going.was_taken = True
                on_done, going.on_done = going.on_done, _nobody
                on_done(Unavailable(f"{going.who} has the record of {record.name}, and has not said that it goes on"))
                self._enter(going, _Stage.TAKING)  # it says so now, or the record lapses
            elif isinstance(answer, StreamRecord) and not self._nodes.is_own(answer):
                going.node.is_paused = False
                self._finish(going, StreamRefused("conflict", f"another node has a stream of the name {record.name}"))
                self.name_lost(record)
            else:
                self._again(going, BACK_EVERY_S)

        try:
            self._registry.find(record.name, found)
        except Unavailable:
            self._again(going, BACK_EVERY_S)

    def _handed_over(self, going: _Going, record: StreamRecord) -> None:
        self._go_below(going.node, record)
        paused_s = self._host.now() - going.paused_at
        self._host.emit(
            StreamHandedOver(stream=record.name, successor=record.producer.id, term=record.term, paused_s=paused_s)
        )
        self._finish(going, None)

    def _watch(self, key: NodeId) -> None:
        pause_s = self._config().lease / RENEWALS_PER_LEASE * self._host.rng.uniform(0.8, 1.2)
        self._host.cancel_timer(_WATCH, key)
        self._host.set_timer(_WATCH, pause_s, key)

    @on_timer(_WATCH)
    def on_watch(self, key: NodeId) -> None:
        """Ask the other one. If the ring was divided, it may have taken the stream over: the larger term is right."""
        node, rival = self._nodes.get(key), self._rivals.get(key)
        if node is None or rival is None or not node.is_producer:
            self._rivals.pop(key, None)
            return
        self._watch(key)
        question = HandOver(key, HandOverStep.ASK, node.record.term, mark(START))

        def answered(reply: Message, source: PeerRef) -> None:
            if self._nodes.get(key) is not node or not node.is_producer or key in self._going:
                return
            if not isinstance(reply, HandOverAnswer) or reply.state == HandOverState.REFUSED:
                self._rivals.pop(key, None)
            elif reply.state == HandOverState.PRODUCING:
                self._registry.withdraw(node.record)
                self.step_down(node, node.record.handed_to(rival))

        self._host.request(rival, question, self._config().ask_timeout, answered, lambda: None)

    def step_down(self, node: StreamNode, record: StreamRecord) -> None:
        """Another node has become the producer of this stream, and this one learns of it now."""
        self._go_below(node, record)
        self._host.emit(StreamSteppedDown(stream=record.name, producer=record.producer.id, term=record.term))

    def _go_below(self, node: StreamNode, record: StreamRecord) -> None:
        self._registry.forget(node.record)
        self._rivals.pop(node.record.key, None)
        with suppress(Unavailable):  # then the ring says so again after the next restart
            self._produced.forget(node.record)
        node.become_member(record)
        self.on_change()

    def name_lost(self, record: StreamRecord) -> None:
        """Another node has written a record of this node's stream, while this one was away."""
        self._registry.forget(record)

        def found(answer: StreamRecord | Exception) -> None:
            node = self._nodes.get(record.key)
            if node is None or not node.is_producer or record.key in self._going:
                return
            if isinstance(answer, StreamRecord) and answer.succeeds(record):
                self.step_down(node, answer)
            elif isinstance(answer, StreamRecord) and not self._nodes.is_own(answer) and answer.term >= record.term:
                self._registry.withdraw(record)
                self._produced.forget(record)
                self._nodes.give_up(node, "another producer has the name")
            else:  # it cannot be known now; or this node's term is the later one, and the other will step down
                self._registry.keep(record, BACK_EVERY_S)

        try:
            self._registry.find(record.name, found)
        except Unavailable:
            self._registry.keep(record, BACK_EVERY_S)

    # The next producer

    @handles(HandOver)
    def on_hand_over(self, message: HandOver, source: PeerRef) -> Message:
        """The producer asks how far this node is. Who that is, the ring has said."""
        node = self._nodes.get(message.stream)
        if node is None:
            return self._refuse(message, "it is not in the tree any more")
        known = node.record
        if node.is_producer and message.term > known.term:
            self._overtaken(node, source)
            return HandOverAnswer(message.stream, HandOverState.PREPARING)
        if node.is_producer:
            is_done = known.term == message.term + 1 and (node.predecessor is None or node.predecessor.id == source.id)
            if not is_done:
                return self._refuse(message, "it produces the stream itself")
            return HandOverAnswer(message.stream, HandOverState.PRODUCING)
        if (known.producer.peer.id, known.term) != (source.id, message.term):
            return HandOverAnswer(message.stream, HandOverState.PREPARING)  # this node may have to hear of it yet
        if message.step == HandOverStep.ASK:
            return self._refuse(message, "it is a member")
        return self._prepared(message, node, source)

    def _overtaken(self, node: StreamNode, source: PeerRef) -> None:
        """Another node says that it is the producer, of a later term: that is so if the ring says it, too.

        Anybody may say so, therefore the ring is not asked each time.
        """
        now = self._host.now()
        if now < self._look_at:
            return
        self._look_at = now + BACK_EVERY_S

        def found(answer: StreamRecord | Exception) -> None:
            is_free = self._nodes.get(node.record.key) is node and node.is_producer
            if is_free and isinstance(answer, StreamRecord) and answer.succeeds(node.record):
                self._registry.withdraw(node.record)
                self.step_down(node, answer)

        with suppress(Unavailable):
            self._registry.find(node.name, found, source.id)

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
        is_ready = self._has_all(coming, message)
        if message.step == HandOverStep.TAKE and is_ready and not coming.is_writing:
            self._take(coming)
        if coming.is_writing:
            return HandOverAnswer(message.stream, HandOverState.TAKING)
        return HandOverAnswer(message.stream, HandOverState.READY if is_ready else HandOverState.PREPARING)

    @handles(HandOverAnswer)
    def on_answer(self, message: HandOverAnswer, source: PeerRef) -> None:
        """An answer that comes after its time."""

    def _has_all(self, coming: _Coming, message: HandOver) -> bool:
        return coming.node.member.has_all(coming.everything, message.through.position)

    def _prepare(self, node: StreamNode, source: PeerRef) -> _Coming:
        """Want everything. Raises `StreamRefused` and `Unavailable`."""
        key = node.record.key
        coming = self._coming.get(key)
        if coming is not None and coming.node is node and coming.producer == source.id:
            coming.asked_at = self._host.now()
            return coming
        if self.is_leaving():
            raise Unavailable("it is leaving the ring")
        if self._config().fan_out == 0:
            raise StreamRefused("conflict", "it sends streams to nobody: its fan_out is 0")
        if len(self._coming) >= COMING_MAX:
            raise Unavailable(f"{COMING_MAX} streams are being handed over to it already")
        everything = node.kind.parse("")
        self._coming[key] = coming = _Coming(node, source.id, everything, self._host.now())
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
        rest_s = coming.asked_at + UNASKED_S - self._host.now()
        if rest_s > 0 or coming.is_writing:
            self._host.set_timer(_FORGET, max(rest_s, BACK_EVERY_S), key)
            return
        self._drop(coming)

    def _drop(self, coming: _Coming) -> None:
        key = coming.node.record.key
        self._coming.pop(key, None)
        self._host.cancel_timer(_FORGET, key)
        if self._nodes.get(key) is coming.node:
            coming.node.unsubscribe(WHOLE_STREAM)

    def _take(self, coming: _Coming) -> None:
        """Write the record. This node is the producer when the ring has it."""
        old = coming.node.record
        record = old.handed_to(self._host.peer)
        coming.is_writing = True
        self._produced.remember(record)  # before the ring knows: who is the producer there has to be so after a crash

        def done(why: Exception | None) -> None:
            coming.is_writing = False
            if why is None and self._nodes.get(record.key) is coming.node:
                self._taken(coming, old, record)
                return
            coming.why_not = str(why or "it has left the stream")
            self._give_back(record)

        try:
            self._registry.create(record, done)
        except Unavailable as error:
            done(error)

    def _give_back(self, record: StreamRecord) -> None:
        """The record may have been written, although nobody has said so: the old producer waits for it to be gone."""
        with suppress(Unavailable):
            self._produced.forget(record)
        self._registry.withdraw(record)

    def _taken(self, coming: _Coming, old: StreamRecord, record: StreamRecord) -> None:
        node, through = coming.node, coming.node.member.state.through
        node.become_producer(
            record, old.producer.peer, coming.everything, self._nodes.numbers.sequence, self._produced.keep_on(node)
        )
        self._produced.keep_from_now_on(node)
        self._drop(coming)
        self._host.emit(
            StreamTakenOver(
                stream=node.name, predecessor=old.producer.id, term=record.term, position=position_text(through)
            )
        )
        self.on_change()
