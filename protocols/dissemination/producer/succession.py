"""Handing a stream over: another node becomes its producer, and nothing is lost, doubled or out of order.

The record of the stream is the lock: the store keeps one node's record from another node while it lives, so there is
one producer at any time. The producer drives, which is this module; the other side is `next_producer`.

1. PREPARE: the next one joins the tree, and has everything that is remembered brought to it.
2. The producer takes no more items, and waits until the next one has had the last of them.
3. It deletes its record. TAKE: the next one writes its own, of the next term, and is the producer when that is stored.
4. The old producer goes on below the new one, as a member; its children stay with it.

Where the next one does not confirm, the old producer writes its record again: the store decides which of the two it is.
docs/protocols/dissemination-tree.md tells what a failure in between does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from math import inf
from typing import Final

from peerd.api import on_timer
from peerd.errors import Unavailable
from peerd.ids import NodeId, short_id
from peerd.messages import Message, PeerRef
from protocols.dissemination.events import StreamHandedOver
from protocols.dissemination.messages import HandOver, HandOverAnswer, HandOverState, HandOverStep
from protocols.dissemination.names import TERM_MAX, StreamPosition
from protocols.dissemination.producer.fencing import stops_at
from protocols.dissemination.producer.part import ProducerPart
from protocols.dissemination.producer.stepping_down import BACK_EVERY_S, Rivals
from protocols.dissemination.service import StreamRefused
from protocols.dissemination.stream import TAKE_BACK_TERMS, StreamRecord
from protocols.dissemination.stream_node import StreamNode
from protocols.dissemination.streams import Streams

ASK_EVERY_S: Final = 0.1
"""The next producer is asked again so long after its last answer."""
PREPARE_S: Final = 60.0
"""If the next producer has not had all that is remembered by then, the stream stays where it is."""
PAUSE_S: Final = 10.0
"""The same, if it has not had the last items so long after the producer has stopped to take more."""
TAKE_S: Final = 20.0
"""If it has not said by then that its record is stored, the old producer writes its own again."""
_STEP: Final = "stream_hand_over"

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
    watermark: StreamPosition
    """The next producer has to have everything up to here. Before the pause it cannot have the last items."""
    stage: _Stage = _Stage.PREPARING
    paused_at: float = 0.0
    why_back: str = ""
    lapses_at: float = inf
    """If the next producer, which has been asked to, has written its record, that may have lapsed from then on."""
    may_be_taken: bool = False
    """The next producer has written its record, or may have, so it may have published."""

    @property
    def who(self) -> str:
        """The next producer, for people."""
        return f"node {short_id(self.to.id)}"


class Succession(ProducerPart):
    def __init__(self, streams: Streams, rivals: Rivals) -> None:
        super().__init__(streams)
        self._rivals = rivals
        self._going: dict[NodeId, _Going] = {}
        rivals.is_busy = self._going.__contains__

    def check_stays(self, node: StreamNode) -> None:
        """Raise `Unavailable` for a stream that is being handed over."""
        going = self._going.get(node.record.key)
        if going is not None:
            raise Unavailable(f"the stream {node.name} is being handed over to {going.who}")

    def hand_over(self, node: StreamNode, to: PeerRef, on_done: Done) -> None:
        """Make another node the producer. Raises `StreamRefused` and `Unavailable`."""
        self.check_stays(node)
        if node.is_paused:
            raise Unavailable(f"the stream {node.name} {node.why_paused}")
        if to.id == self._host.id:
            raise StreamRefused("conflict", f"this node produces {node.name} already")
        if node.record.term + TAKE_BACK_TERMS > TERM_MAX:  # to take the stream back from the next producer
            raise StreamRefused("quota", f"{node.name} was handed over {TERM_MAX} times, and that is the limit")
        self._going[node.record.key] = _Going(node, to, on_done, self._host.now(), node.member.state.watermark)
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
            going.watermark = node.member.state.watermark
        step = HandOverStep.TAKE if stage is _Stage.TAKING else HandOverStep.PREPARE
        question = HandOver(node.record.key, step, node.record.term, going.watermark)

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
            node.why_paused, going.paused_at = f"is being handed over to {going.who}", self._host.now()
            self._enter(going, _Stage.PAUSED)
        elif answer.state == HandOverState.READY:
            self._delete(going)

    def _delete(self, going: _Going) -> None:
        self._enter(going, _Stage.DELETING)

        def deleted(why: Exception | None) -> None:
            if self._going.get(going.node.record.key) is not going:
                return
            if why is None:
                going.lapses_at = stops_at(self._host.now(), self._registry.lease_s(going.node.record))
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
        going.node.why_paused = ""
        self._finish(going, why)

    def _finish(self, going: _Going, why: Exception | None) -> None:
        self._going.pop(going.node.record.key, None)
        self._host.cancel_timer(_STEP, going.node.record.key)
        going.on_done(why)
        self._nodes.on_room()

    def _go_back(self, going: _Going, why: str) -> None:
        going.why_back = why
        self._enter(going, _Stage.BACK)

    def _take_back(self, going: _Going) -> None:
        """Write the record again. The store refuses that while the other node has one.

        If it has had one, it may have published: then a later term begins, and what lies between is told as lost. That
        the store does not refuse shows only that there is none now, so this holds also where one could have lapsed.
        """
        going.may_be_taken |= self._host.now() >= going.lapses_at
        record = going.node.record.taken_back() if going.may_be_taken else going.node.record

        def done(why: Exception | None) -> None:
            if self._going.get(record.key) is not going:
                return
            if why is None:
                self._rivals.claim(record.key, going.to)
                if going.may_be_taken:
                    self._produced.remember(record)
                    going.node.begin_term(record)
                self._stay(going, Unavailable(f"{record.name} stays here: {going.why_back}"))
            elif isinstance(why, StreamRefused) and why.kind == "conflict":
                self._see_whose(going)
            else:
                self._again(going, BACK_EVERY_S)

        self._registry.create(record, done)

    def _see_whose(self, going: _Going) -> None:
        record = going.node.record

        def found(answer: StreamRecord | Exception) -> None:
            if self._going.get(record.key) is not going:
                return
            taken = answer if isinstance(answer, StreamRecord) and answer.succeeds(record) else None
            if taken is not None and taken.producer.peer.id != going.to.id:  # a standby has found neither record
                self._finish(going, Unavailable(f"node {taken.producer.id:.8} has taken {record.name} over"))
                self._rivals.step_down(going.node, taken)
            elif taken is not None:
                going.may_be_taken = True
                on_done, going.on_done = going.on_done, _nobody
                on_done(Unavailable(f"{going.who} has the record of {record.name}, and has not said that it goes on"))
                self._enter(going, _Stage.TAKING)  # it says so now, or the record lapses
            elif isinstance(answer, StreamRecord) and not self._nodes.is_own(answer):
                going.node.why_paused = ""
                self._finish(going, StreamRefused("conflict", f"another node has a stream of the name {record.name}"))
                self._rivals.name_lost(record)
            else:
                self._again(going, BACK_EVERY_S)

        self._registry.find(record.name, found)

    def _handed_over(self, going: _Going, record: StreamRecord) -> None:
        self._rivals.go_below(going.node, record)
        paused_s = self._host.now() - going.paused_at
        self._host.emit(
            StreamHandedOver(stream=record.name, successor=record.producer.id, term=record.term, paused_s=paused_s)
        )
        self._finish(going, None)
