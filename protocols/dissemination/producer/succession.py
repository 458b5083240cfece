"""Carries out what `role` says: another node becomes a stream's producer, and nothing is lost, doubled or out of order.

It keeps what this node is to each stream for which that was asked, told or found so far.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Final

from peerd.api import handles, on_timer
from peerd.errors import Unavailable
from peerd.ids import NodeId
from peerd.messages import Message, PeerRef
from protocols.dissemination.events import StreamProducerReplaced
from protocols.dissemination.messages import HandOver, HandOverAnswer, HandOverState
from protocols.dissemination.names import START, TERM_MAX
from protocols.dissemination.producer import effects as do
from protocols.dissemination.producer.part import ProducerPart
from protocols.dissemination.producer.publishing import check_now
from protocols.dissemination.producer.role import BACK_EVERY_S, DETAIL_MAX, GETTING, GIVING, Role, RoleStage
from protocols.dissemination.service import StreamRefused
from protocols.dissemination.stream import TAKE_BACK_TERMS, StreamRecord
from protocols.dissemination.stream_node import StreamNode
from protocols.dissemination.streams import Streams

COMING_MAX: Final = 64
"""Streams that a node stands by for, or prepares to take over, at the same time."""
WHOLE_STREAM: Final = 0
"""The number of the subscription to everything that the next producer has."""
_DUE: Final = "stream_role"

Done = Callable[[Exception | None], None]


class Succession(ProducerPart):
    def __init__(self, streams: Streams) -> None:
        super().__init__(streams)
        self._roles: dict[NodeId, Role] = {}
        self._on_done: dict[NodeId, Done] = {}
        """Who has asked for a stream to be handed over."""
        self._find_at = 0.0
        """Anybody may claim a stream, therefore the ring is not asked each time."""

    def role(self, node: StreamNode) -> Role:
        """What this node is to a stream that it takes part in."""
        role = self._roles.get(node.record.key)
        if role is None:
            stage = RoleStage.PRODUCER if node.is_producer else RoleStage.MEMBER
            role = self._roles[node.record.key] = Role(node, self._host.peer, self._host.peer, stage)
        return role

    def check_stays(self, node: StreamNode) -> None:
        """Raise `Unavailable` for a stream that is being handed over."""
        role = self.role(node)
        if role.stage in GIVING:
            raise Unavailable(f"the stream {node.name} is being handed over to {role.who}")

    def hand_over(self, node: StreamNode, to: PeerRef, on_done: Done) -> None:
        """Make another node the producer. Raises `StreamRefused` and `Unavailable`."""
        self.check_stays(node)
        role = self.role(node)
        if node.is_paused or role.stage is not RoleStage.PRODUCER:
            check_now(node)
        if to.id == self._host.id:
            raise StreamRefused("conflict", f"this node produces {node.name} already")
        if node.record.term + TAKE_BACK_TERMS > TERM_MAX:  # to take the stream back from the next producer
            raise StreamRefused("quota", f"{node.name} was handed over {TERM_MAX} times, and that is the limit")
        self._on_done[node.record.key] = on_done
        self._do(role, role.hand_over(to, self._host.now()))

    def returned(self, node: StreamNode) -> None:
        """This node was restarted, and standbys may have taken the stream over; by now it may be a member of it."""
        role = self.role(node)
        if role.stage is RoleStage.PRODUCER:
            self._do(role, role.returned(self._host.now()))

    def name_lost(self, record: StreamRecord) -> None:
        """Another node has written a record of this node's stream, while this one was away."""
        self._registry.forget(record)
        node = self._nodes.get(record.key)
        if node is not None and node.is_producer and self.role(node).stage not in GIVING:
            self._find(self.role(node), None)

    def gone(self, node: StreamNode) -> None:
        """This node takes part in the stream no more."""
        key = node.record.key
        if self._roles.pop(key, None) is not None:
            self._host.cancel_timer(_DUE, key)
            self._tell(key, StreamRefused("unknown", f"the stream {node.name} is over"))

    def tick(self) -> None:
        """Called a few times a second."""
        for role in list(self._roles.values()):
            self._do(role, role.tick(self._registry.lease_s(role.node.record), self._host.now()))

    @on_timer(_DUE)
    def due(self, key: NodeId) -> None:
        """Go on with one stream."""
        role = self._roles.get(key)
        if role is not None:
            self._do(role, role.due(self._host.now()))

    @handles(HandOver)
    def on_hand_over(self, message: HandOver, source: PeerRef) -> Message:
        """The producer asks how far this node is; or another one says that it is the producer, or asks."""
        node = self._nodes.get(message.stream)
        if node is None:
            return HandOverAnswer(message.stream, HandOverState.REFUSED, "it is not in the tree any more")
        role = self.role(node)
        state, detail, effects = role.asked(message, source, self._why_not(), self._host.now())
        self._do(role, effects)
        return HandOverAnswer(message.stream, state, detail[:DETAIL_MAX])

    @handles(HandOverAnswer)
    def on_answer(self, message: HandOverAnswer, source: PeerRef) -> None:
        """An answer that comes after its time."""

    def _why_not(self) -> str:
        """Why this node cannot be the next producer of one stream more; empty: it can."""
        if self._streams.is_leaving:
            return "it is leaving the ring"
        if self._config().fan_out == 0:
            return "it sends streams to nobody: its fan_out is 0"
        is_full = sum(role.stage in GETTING for role in self._roles.values()) >= COMING_MAX
        return f"{COMING_MAX} streams are being handed over to it already" if is_full else ""

    # What is to be done

    def _do(self, role: Role, effects: do.Effects) -> None:
        node, key = role.node, role.node.record.key
        for effect in effects:
            match effect:
                case do.AskNodes(peers, step, watermark):
                    for peer in peers:
                        answered = partial(self._answered, role, role.stage, peer)
                        self._ask(peer, step, node.record, answered, watermark)
                case do.FindRecord(owner):
                    self._find(role, owner)
                case do.WriteRecord(record):
                    self._write(role, record)
                case do.ArmRole(delay_s):
                    self._host.cancel_timer(_DUE, key)
                    self._host.set_timer(_DUE, delay_s, key)
                case do.PausePublishing(why):
                    node.why_paused = why
                    self._nodes.on_room()
                case do.BecomeProducer(record, predecessor):
                    sequence, logs = self._nodes.numbers.sequence, self._produced.logs
                    node.become_producer(record, predecessor, role.everything, sequence, logs)
                    node.unsubscribe(WHOLE_STREAM)
                case do.BeginTerm(record):
                    node.begin_term(record)
                    self._produced.remember(record)
                case do.GoBelow(record, is_rival):
                    self._go_below(node, record, is_rival=is_rival)
                case do.KeepRecord(in_s):
                    self._registry.keep(node.record, in_s)
                case do.TellAsker(why):
                    self._tell(key, why)
                case do.Emit(event):
                    if isinstance(event, StreamProducerReplaced):
                        self._host.count("peerd_dissemination_take_overs_total")
                    self._host.emit(event)
                case do.LookUp(None):
                    self._nodes.look_up(node)
                case do.LookUp(producer):
                    self._nodes.look_up_now(node, producer)
                case do.Act.WANT_ALL:
                    nothing = node.with_documents(lambda what: None)
                    node.subscribe(WHOLE_STREAM, role.everything, START, nothing, lambda: None)
                case do.Act.WANT_NO_MORE:
                    node.unsubscribe(WHOLE_STREAM)
                case do.Act.FLUSH:
                    node.flush()
                case do.Act.DELETE:
                    self._delete(role)
                case do.Act.KEEP_ITEMS:
                    self._produced.keep_from_now_on(node)
                case do.Act.NAME_LOST:
                    self._registry.withdraw(node.record)
                    self._forget(node.record)
                    self._nodes.give_up(node, "another producer has the name")

    def _is_still(self, role: Role, stage: RoleStage) -> bool:
        """Whether what comes now was asked for by the role in the stage that it is in."""
        return self._roles.get(role.node.record.key) is role and role.stage is stage

    def _answered(self, role: Role, stage: RoleStage, peer: PeerRef, answer: HandOverAnswer | None) -> None:
        if self._is_still(role, stage):
            self._do(role, role.answered(peer, answer, self._host.now()))

    def _find(self, role: Role, owner: NodeId | None) -> None:
        node, stage, now = role.node, role.stage, self._host.now()
        if owner is not None:
            if now < self._find_at:
                return
            self._find_at = now + BACK_EVERY_S

        def found(answer: StreamRecord | Exception) -> None:
            if self._is_still(role, stage):
                if not node.is_producer:
                    self._nodes.found(node, answer)
                self._do(role, role.found(answer, owner, self._registry.lease_s(node.record), self._host.now()))

        self._registry.find(node.name, found, owner)

    def _delete(self, role: Role) -> None:
        record = role.node.record

        def deleted(why: Exception | None) -> None:
            if self._is_still(role, RoleStage.DELETING):
                self._do(role, role.deleted(why, self._registry.lease_s(record), self._host.now()))

        try:
            self._registry.remove(record, deleted)
        except Unavailable as error:
            self._do(role, role.stays(error, self._host.now()))

    def _write(self, role: Role, record: StreamRecord) -> None:
        stage = role.stage
        if stage is RoleStage.WRITING:  # before the ring knows: who is the producer there has to be so after a crash
            self._produced.remember(record)

        def wrote(why: Exception | None) -> None:
            is_still = self._is_still(role, stage)
            if stage is RoleStage.WRITING and (why is not None or not is_still):
                # It may have been written, although nobody has said so: the old producer waits for it to be gone.
                self._forget(record)
                self._registry.withdraw(record)
            if is_still:
                self._do(role, role.wrote(record, why, self._registry.lease_s(record), self._host.now()))

        self._registry.create(record, wrote)

    def _go_below(self, node: StreamNode, record: StreamRecord, *, is_rival: bool) -> None:
        if is_rival:
            self._registry.withdraw(node.record)
        self._registry.forget(node.record)
        self._forget(node.record)
        node.become_member(record)
        self._nodes.on_room()

    def _forget(self, record: StreamRecord) -> None:
        with suppress(Unavailable):  # then the ring says so again after the next restart
            self._produced.forget(record)

    def _tell(self, key: NodeId, why: Exception | None) -> None:
        on_done = self._on_done.pop(key, None)
        if on_done is not None:
            on_done(why)
