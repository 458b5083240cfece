"""What one node is to the production of one stream, and how that goes over to another node. Pure.

The record of the stream is the lock, and a lease: the store keeps one node's record from another node while it lives,
so there is one producer at any time. Another one follows when the record is gone, for one of two reasons::

    the old one   PRODUCER -> PREPARING -> PAUSED -> DELETING -> TAKING -> MEMBER      or BACK -> PRODUCER
    the next one  MEMBER -> NEXT    -> WRITING -> PRODUCER                 its record is deleted: a planned end
                  MEMBER -> STANDBY -> WRITING -> SETTLING -> PRODUCER     it has lapsed: see `fencing`

1. PREPARE, STAND_BY: the next one joins the tree, and has everything that is remembered brought to it.
2. Planned: the producer takes no more items, waits until the next one has had the last of them, deletes its record, and
   says TAKE. Else: a standby that has no way to the producer looks at the record every two seconds, and acts when that
   has lapsed, in the order of the record.
3. The next one writes its record, of a later term, and is the producer when that is stored: the source of the tree.
4. Planned: the old one goes on below it, as a member, and its children stay with it. Else those that were next to it
   are told, and for `SETTLE_S` they get what they have not had, and nothing new. Then the term begins: what the old one
   has sent after what is here is told as lost, as nobody knows whether there is any.

Where the next one does not confirm, the old producer writes its record again: the store decides which of the two it is.
Of two producers, as there may be after a ring was divided, and when one comes back whose stream another one has
meanwhile, the one of the larger term is right: the other one steps down. docs/protocols/dissemination-tree.md tells
what a failure in between does.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from math import inf
from typing import Any, Final

from peerd.errors import Unavailable
from peerd.ids import NodeId, format_id, short_id
from peerd.messages import PeerRef
from peerd.telemetry.schema import Event
from protocols.dissemination.events import (
    StreamHandedOver,
    StreamProducerReplaced,
    StreamSteppedDown,
    StreamTakenOver,
)
from protocols.dissemination.messages import HandOver, HandOverAnswer, HandOverState, HandOverStep
from protocols.dissemination.names import START, TERM_MAX, StreamPosition, position_text
from protocols.dissemination.ports import Interest
from protocols.dissemination.producer import effects as do
from protocols.dissemination.producer.effects import Effects
from protocols.dissemination.producer.fencing import may_take_over_at, stops_at
from protocols.dissemination.producer.produced import LOOK_AGAIN_S, LOOKS_MAX
from protocols.dissemination.registry import RENEWALS_PER_LEASE
from protocols.dissemination.service import StreamRefused
from protocols.dissemination.stream import AFTER_STANDBYS, StreamRecord
from protocols.dissemination.stream_node import StreamNode

ASK_EVERY_S: Final = 0.1
"""The next producer is asked again so long after its last answer."""
PREPARE_S: Final = 60.0
"""If the next producer has not had all that is remembered by then, the stream stays where it is."""
PAUSE_S: Final = 10.0
"""The same, if it has not had the last items so long after the producer has stopped to take more."""
TAKE_S: Final = 20.0
"""If it has not said by then that its record is stored, the old producer writes its own again."""
BACK_EVERY_S: Final = 2.0
"""Pause between two attempts to write a record again, and between two looks at the ring where a node claims a later
term."""
UNASKED_S: Final = 30.0
"""A node that was to be the next producer, and is not asked for so long, is it no more."""
LOOK_EVERY_S: Final = 2.0
"""A standby without a way to the producer looks at the record so often."""
SETTLE_S: Final = 2.0
"""For so long after a take-over nothing new is published, while orphans come and get what they have not had."""
TELL_AGAIN_S: Final = 1.0
"""They are told once more after this."""
JUST_TAKEN: Final = "has just been taken over, and goes on in a moment"
DETAIL_MAX: Final = 200
"""Characters of a reason."""


class RoleStage(Enum):
    """How far a node has come in becoming a stream's producer, or in being it no more."""

    MEMBER = "member"
    NEXT = "next"
    """It prepares to be the producer."""
    STANDBY = "standby"
    """The same, for when the producer is gone."""
    WRITING = "writing"
    """Its record is on the way to the ring."""
    SETTLING = "settling"
    """It has just taken over from a producer that is gone."""
    PRODUCER = "producer"
    RETURNED = "returned"
    """It was restarted, and sees whether a standby has taken over, before it writes its record again."""
    PREPARING = "preparing"
    """It has the next one prepare."""
    PAUSED = "paused"
    DELETING = "deleting"
    TAKING = "taking"
    """Its record is deleted: the next one takes the stream."""
    BACK = "back"
    """It takes the stream back."""


GIVING: Final = (RoleStage.PREPARING, RoleStage.PAUSED, RoleStage.DELETING, RoleStage.TAKING, RoleStage.BACK)
WAITING: Final = (RoleStage.NEXT, RoleStage.STANDBY)
GETTING: Final = (*WAITING, RoleStage.WRITING)
ROLE_STEPS: Final = {
    RoleStage.MEMBER: (RoleStage.NEXT,),
    RoleStage.NEXT: (RoleStage.NEXT, RoleStage.STANDBY, RoleStage.WRITING, RoleStage.MEMBER),
    RoleStage.STANDBY: (RoleStage.NEXT, RoleStage.WRITING, RoleStage.MEMBER),
    RoleStage.WRITING: (RoleStage.NEXT, RoleStage.STANDBY, RoleStage.SETTLING, RoleStage.PRODUCER),
    RoleStage.SETTLING: (RoleStage.PRODUCER, RoleStage.MEMBER),
    RoleStage.PRODUCER: (RoleStage.RETURNED, RoleStage.PREPARING, RoleStage.MEMBER),
    RoleStage.RETURNED: (RoleStage.PRODUCER, RoleStage.MEMBER),
    RoleStage.PREPARING: (RoleStage.PAUSED, RoleStage.PRODUCER, RoleStage.MEMBER),
    RoleStage.PAUSED: (RoleStage.DELETING, RoleStage.PRODUCER, RoleStage.MEMBER),
    RoleStage.DELETING: (RoleStage.TAKING, RoleStage.BACK, RoleStage.PRODUCER, RoleStage.MEMBER),
    RoleStage.TAKING: (RoleStage.BACK, RoleStage.MEMBER),
    RoleStage.BACK: (RoleStage.TAKING, RoleStage.PRODUCER, RoleStage.MEMBER),
}
"""What may come after each stage. What is asked, told and found twice is looked at in the stage that it finds, so that
nothing has to be a step from a stage to itself but for this: another producer asks the next one."""
_LATE: Final = {RoleStage.PREPARING: PREPARE_S, RoleStage.PAUSED: PAUSE_S, RoleStage.TAKING: TAKE_S}


@dataclass(eq=False, slots=True)
class Role:
    """Each method is told of an event and returns what is to be done, in order. ``node`` is read, and left as it is."""

    node: StreamNode
    me: PeerRef
    other: PeerRef
    """The next producer, at the old one; the old one, at the next one; this node, where there is neither."""
    stage: RoleStage
    since: float = 0.0
    """When it came to this stage."""
    # The old one
    watermark: StreamPosition = START
    """The next producer has to have everything up to here. Before the pause it cannot have the last items."""
    paused_at: float = 0.0
    why_back: str = ""
    lapses_at: float = inf
    """If the next producer, which has been asked to, has written its record, that may have lapsed from then on."""
    may_be_taken: bool = False
    """The next producer has written its record, or may have, so it may have published."""
    rival: PeerRef | None = None
    """Who may produce the stream in another part of a divided ring, unheard."""
    rival_at: float = 0.0
    """It is asked then."""
    looks: int = 0
    has_asked: bool = False
    """The standbys were asked, because the ring has no record."""
    # The next one
    asked_at: float = 0.0
    adrift_at: float = 0.0
    """A standby had no way to the producer then, and may be needed."""
    look_at: float = 0.0
    lapsed_at: float | None = None
    """The ring has had no record of the stream since then; ``None``: it has one, or it is not known."""
    rank: int | None = None
    """Among the standbys, where the record that it writes is a standby's."""
    before: RoleStage = RoleStage.NEXT
    """What it was before it wrote its record."""
    why_not: str = ""
    near: tuple[PeerRef, ...] = ()
    """Who was next to the old producer, and is told of the new one once more."""

    def comes_to(self, stage: RoleStage, now: float) -> None:
        """Take a step of `ROLE_STEPS`."""
        assert stage in ROLE_STEPS[self.stage], (self.stage, stage)
        self.stage, self.since = stage, now

    @property
    def everything(self) -> Interest:
        """What the next producer wants of the stream."""
        return self.node.kind.parse("")

    @property
    def who(self) -> str:
        """The next producer, for people."""
        return f"node {short_id(self.other.id)}"

    def due(self, now: float) -> Effects:
        """The timer has fired."""
        match self.stage:
            case RoleStage.PREPARING | RoleStage.PAUSED | RoleStage.TAKING:
                return self._ask_next(now)
            case RoleStage.BACK:
                # The store refuses it while the other node has a record. If it has had one, it may have published: then
                # a later term begins, and what lies between is told as lost. That the store does not refuse it shows
                # only that there is none now, so this holds also where one could have lapsed.
                self.may_be_taken |= now >= self.lapses_at
                record = self.node.record
                return [do.WriteRecord(record.taken_back() if self.may_be_taken else record)]
            case RoleStage.RETURNED:
                self.looks += 1
                return [do.FindRecord()]
            case RoleStage.SETTLING if self.near:
                told, self.near = self.near, ()
                return [do.AskNodes(told, HandOverStep.TAKEN), do.ArmRole(SETTLE_S - TELL_AGAIN_S)]
            case RoleStage.SETTLING:
                self.comes_to(RoleStage.PRODUCER, now)
                return [do.BeginTerm(self.node.record), do.Act.KEEP_ITEMS, do.PausePublishing()]
        return []

    def tick(self, lease_s: float, now: float) -> Effects:
        """Called a few times a second."""
        node = self.node
        if self.stage is RoleStage.STANDBY and now >= self.look_at:
            self.look_at = now + LOOK_EVERY_S
            if node.is_adrift:
                self.adrift_at = now
                return [do.FindRecord()]
            if node.record.rank_of(self.me.id) is None:
                return [do.LookUp(None)]  # it may say so by now
        elif (
            self.stage in (RoleStage.NEXT, RoleStage.STANDBY) and now - max(self.asked_at, self.adrift_at) >= UNASKED_S
        ):
            return self._wants_no_more(now)  # the producer has changed its mind
        elif self.rival is not None and self.stage not in GIVING and now >= self.rival_at:
            self.rival_at = now + lease_s / RENEWALS_PER_LEASE
            return [do.AskNodes((self.rival,), HandOverStep.ASK)]
        return []

    # The old one

    def hand_over(self, to: PeerRef, now: float) -> Effects:
        """Make another node the producer."""
        self.comes_to(RoleStage.PREPARING, now)
        self.other, self.watermark = to, self.node.member.state.watermark
        self.lapses_at, self.may_be_taken = inf, False
        return [do.ArmRole(0.0)]

    def _ask_next(self, now: float) -> Effects:
        node, step = self.node, HandOverStep.PREPARE
        is_late = now - self.since >= _LATE[self.stage]
        if self.stage is RoleStage.TAKING:
            step = HandOverStep.TAKE
            if is_late:
                why = f"{self.who} has not said within {TAKE_S:.0f} s that it has taken the stream over"
                return self._goes_back(why, now)
        elif is_late:
            return self.stays(Unavailable(f"{self.who} has not had all of {node.name} in time"), now)
        elif self.stage is RoleStage.PAUSED:
            if node.is_sending:  # for the disk: what waits for it goes out, too
                return [do.ArmRole(ASK_EVERY_S)]
            self.watermark = node.member.state.watermark
            return [do.Act.FLUSH, do.AskNodes((self.other,), step, self.watermark)]
        return [do.AskNodes((self.other,), step, self.watermark)]

    def answered(self, source: PeerRef, answer: HandOverAnswer | None, now: float) -> Effects:
        """What one says that was asked; ``None``: nothing in time."""
        if self.stage in GIVING:
            return [do.ArmRole(ASK_EVERY_S), *(() if answer is None else self._next_said(answer, now))]
        if answer is None or source != self.rival:
            return []
        if answer.state == HandOverState.PRODUCING:
            return self._steps_down(self.node.record.handed_to(source), now)
        if answer.state == HandOverState.REFUSED:
            self.rival = None
        return []

    def _next_said(self, answer: HandOverAnswer, now: float) -> Effects:
        node = self.node
        match self.stage, answer.state:
            case RoleStage.TAKING, HandOverState.PRODUCING:
                record = node.record.handed_to(self.other)
                paused_s, successor = now - self.paused_at, record.producer.id
                event = StreamHandedOver(stream=node.name, successor=successor, term=record.term, paused_s=paused_s)
                return [*self._goes_below(record, event, now, is_rival=False), do.TellAsker(None)]
            case RoleStage.TAKING, HandOverState.REFUSED:
                return self._goes_back(f"{self.who} does not take it: {answer.detail}", now)
            case _, HandOverState.REFUSED:
                why = StreamRefused("conflict", f"{self.who} does not take {node.name}: {answer.detail}")
                return self.stays(why, now)
            case RoleStage.PREPARING, HandOverState.READY:
                self.comes_to(RoleStage.PAUSED, now)
                self.paused_at = now
                return [do.PausePublishing(f"is being handed over to {self.who}"), do.ArmRole(0.0)]
            case RoleStage.PAUSED, HandOverState.READY:
                self.comes_to(RoleStage.DELETING, now)
                return [do.Act.DELETE]
        return []

    def deleted(self, why: Exception | None, lease_s: float, now: float) -> Effects:
        """The ring has deleted the record; or it has not, or may have nevertheless."""
        if why is not None:
            return self._goes_back(f"its record cannot be deleted now: {why}", now)
        self.lapses_at = stops_at(now, lease_s)
        self.comes_to(RoleStage.TAKING, now)
        return [do.ArmRole(0.0)]

    def stays(self, why: Exception, now: float) -> Effects:
        """The record is still there: this node is the producer as before."""
        self.comes_to(RoleStage.PRODUCER, now)
        return [do.PausePublishing(), do.TellAsker(why)]

    def _goes_back(self, why: str, now: float) -> Effects:
        self.comes_to(RoleStage.BACK, now)
        self.why_back = why
        return [do.ArmRole(0.0)]

    def wrote(self, record: StreamRecord, why: Exception | None, lease_s: float, now: float) -> Effects:
        """What has come of writing a record."""
        if self.stage is RoleStage.WRITING:
            return self._has_record(record, why, lease_s, now)
        if why is not None:
            is_taken = isinstance(why, StreamRefused) and why.kind == "conflict"
            return [do.FindRecord() if is_taken else do.ArmRole(BACK_EVERY_S)]
        self.rival, self.rival_at = self.other, now
        begun = [do.BeginTerm(record)] if self.may_be_taken else []
        return [*begun, *self.stays(Unavailable(f"{record.name} stays here: {self.why_back}"), now)]

    # What the ring has

    def returned(self, now: float) -> Effects:
        """This node was restarted. Nothing is published before it has seen whose the stream is."""
        self.comes_to(RoleStage.RETURNED, now)
        return [do.ArmRole(0.0)]

    def found(self, answer: StreamRecord | Exception, owner: NodeId | None, lease_s: float, now: float) -> Effects:
        """What the ring has as the stream's record."""
        record = answer if isinstance(answer, StreamRecord) else None
        is_gone = isinstance(answer, StreamRefused) and answer.kind == "unknown"
        if self.stage is RoleStage.STANDBY:
            if record is not None:
                self.lapsed_at = None
            return self._lapsed(lease_s, now) if is_gone and self.node.is_adrift else []
        if record is not None and record.succeeds(self.node.record):
            if self.stage is RoleStage.BACK and owner is None and record.producer.peer.id == self.other.id:
                return self._has_taken(now)
            return self._steps_down(record, now, is_rival=owner is not None)
        if owner is not None:  # it is not the producer, whatever it says
            return []
        if self.stage is RoleStage.RETURNED:
            return self._looked(is_gone, isinstance(answer, Unavailable), now)
        is_others = record is not None and record.producer.id != format_id(self.me.id)
        if self.stage is RoleStage.BACK:
            if not is_others:
                return [do.ArmRole(BACK_EVERY_S)]
            why = StreamRefused("conflict", f"another node has a stream of the name {self.node.name}")
            return [*self.stays(why, now), do.FindRecord()]
        if record is not None and is_others and not record.is_earlier_than(self.node.record):
            return [do.Act.NAME_LOST]
        # It cannot be known now; or this node's term is the later one, and the other will step down.
        return [do.KeepRecord(BACK_EVERY_S)]

    def _has_taken(self, now: float) -> Effects:
        """The next producer says now that it is it, or its record lapses."""
        self.may_be_taken = True
        self.comes_to(RoleStage.TAKING, now)
        why = f"{self.who} has the record of {self.node.name}, and has not said that it goes on"
        return [do.TellAsker(Unavailable(why)), do.ArmRole(0.0)]

    def _looked(self, is_gone: bool, is_unknown: bool, now: float) -> Effects:
        record = self.node.record
        if is_unknown and self.looks < LOOKS_MAX:
            return [do.ArmRole(LOOK_AGAIN_S)]
        may_be_taken = is_gone and bool(record.standbys)
        if may_be_taken and not self.has_asked:
            self.has_asked = True
            asked = tuple(each.peer for each in record.standbys)  # whoever has taken over says so: `rival`
            return [do.AskNodes(asked, HandOverStep.ASK), do.ArmRole(self.node.config.ask_timeout + LOOK_AGAIN_S)]
        self.comes_to(RoleStage.PRODUCER, now)
        begun = []
        if may_be_taken and record.term + AFTER_STANDBYS <= TERM_MAX:
            # One may have had the stream, and be gone by now: what it has sent is of another term than this node's.
            begun.append(do.BeginTerm(record.in_term(record.term + AFTER_STANDBYS)))
        return [*begun, do.KeepRecord(0.0)]

    def _steps_down(self, record: StreamRecord, now: float, *, is_rival: bool = True) -> Effects:
        """Another node has become the producer of this stream, and this one learns of it now."""
        event = StreamSteppedDown(stream=record.name, producer=record.producer.id, term=record.term)
        why = Unavailable(f"node {record.producer.id:.8} has taken {record.name} over")
        return [*self._goes_below(record, event, now, is_rival=is_rival), do.TellAsker(why)]

    def _goes_below(self, record: StreamRecord, event: Event, now: float, *, is_rival: bool) -> Effects:
        self.comes_to(RoleStage.MEMBER, now)
        self.rival = None
        return [do.GoBelow(record, is_rival), do.Emit(event)]

    # The next one, and whoever else is asked

    def asked(self, message: HandOver, source: PeerRef, why_not: str, now: float) -> tuple[HandOverState, str, Effects]:
        """Another node asks how far this one is, and is told that, and why it refuses. Who is the producer, the ring
        has said. ``why_not``: why this node cannot be the next one, if so."""
        node, term = self.node, self.node.record.term
        if node.is_producer:
            return self._asked_producer(message, source, now)
        if node.had_from == source.id and message.term < term:
            return HandOverState.PRODUCING, "", ()  # by now another one has it from here
        if (node.record.producer.peer.id, term) != (source.id, message.term):  # this node may have to hear of it yet
            is_told = message.step == HandOverStep.TAKEN and message.term > term
            return HandOverState.PREPARING, "", [do.LookUp(source.id)] if is_told else ()
        if message.step in (HandOverStep.ASK, HandOverStep.TAKEN):
            return HandOverState.REFUSED, "it is a member", ()
        if message.step == HandOverStep.RELEASE:
            released = self._wants_no_more(now) if self.stage is RoleStage.STANDBY else ()
            return HandOverState.REFUSED, "it stands by no more", released
        return self._prepares(message, source, why_not, now)

    def _asked_producer(self, message: HandOver, source: PeerRef, now: float) -> tuple[HandOverState, str, Effects]:
        node, term = self.node, self.node.record.term
        is_after = node.predecessor is None or node.predecessor.id == source.id
        if message.term > term:
            return HandOverState.PREPARING, "", self._overtaken(source, message.term, now)
        if is_after and term == message.term + 1:
            return HandOverState.PRODUCING, "", ()
        if node.predecessor is not None and is_after and term > message.term:
            self.rival, self.rival_at = source, now  # the question tells it of this node's term
            return HandOverState.PREPARING, "", ()
        return HandOverState.REFUSED, "it produces the stream itself", ()

    def _overtaken(self, source: PeerRef, term: int, now: float) -> Effects:
        """Another node says that it is the producer, of a later term: that is so if the ring says it, too.

        A standby that this node has named itself is believed at once: it may just be unable to renew its record.
        """
        record = self.node.record
        rank = record.rank_of(source.id)
        if rank is None or self.stage in GIVING:
            return [do.FindRecord(source.id)]
        return self._steps_down(record.taken_over(source, rank).model_copy(update={"term": term}), now)

    def _prepares(
        self, message: HandOver, source: PeerRef, why_not: str, now: float
    ) -> tuple[HandOverState, str, Effects]:
        begun: Effects = ()
        if self.stage is RoleStage.WRITING:
            return HandOverState.TAKING, "", ()
        if self.stage is RoleStage.MEMBER or self.other.id != source.id:
            if why_not:
                return HandOverState.REFUSED, why_not, ()
            self.comes_to(RoleStage.NEXT, now)
            self.other, self.lapsed_at, self.adrift_at, self.why_not = source, None, 0.0, ""
            begun = [do.Act.WANT_ALL]
        self.asked_at = now
        why, self.why_not = self.why_not, ""
        if why:  # it is told once: the producer may ask for another attempt
            return HandOverState.REFUSED, why, ()
        if message.step == HandOverStep.STAND_BY and self.stage is RoleStage.NEXT:
            self.comes_to(RoleStage.STANDBY, now)
        if not self.node.member.has_all(self.everything, message.watermark):
            return HandOverState.PREPARING, "", begun
        if message.step == HandOverStep.TAKE:
            return HandOverState.TAKING, "", [*begun, *self._writes(self.node.record.handed_to(self.me), None, now)]
        return HandOverState.READY, "", begun

    def _wants_no_more(self, now: float) -> Effects:
        self.comes_to(RoleStage.MEMBER, now)
        return [do.Act.WANT_NO_MORE]

    def _lapsed(self, lease_s: float, now: float) -> Effects:
        """The ring has no record of the stream."""
        node = self.node
        if self.lapsed_at is None:
            self.lapsed_at = now
        rank = node.record.rank_of(self.me.id)
        if rank is None or not node.member.has_whole(self.everything) or node.leaving_since is not None:
            return []
        record = node.record.taken_over(self.me, rank)
        if now < may_take_over_at(self.asked_at, self.lapsed_at, lease_s, rank) or record.term > TERM_MAX:
            return []
        return self._writes(record, rank, now)

    def _writes(self, record: StreamRecord, rank: int | None, now: float) -> Effects:
        old = self.node.record  # until its own is stored: it may find that in the ring before it hears of it
        near = dict.fromkeys((*old.seed_peers, *(each.peer for each in old.standbys)))
        self.other, self.before, self.rank = old.producer.peer, self.stage, rank
        self.near = tuple(peer for peer in near if peer.id not in (self.me.id, self.other.id))
        self.comes_to(RoleStage.WRITING, now)
        return [do.WriteRecord(record)]

    def _has_record(self, record: StreamRecord, why: Exception | None, lease_s: float, now: float) -> Effects:
        """This node is the producer when the ring has its record."""
        if why is not None:
            self.comes_to(self.before, now)
            self.why_not = str(why)
            return []
        told: dict[str, Any] = {"stream": record.name, "predecessor": format_id(self.other.id), "term": record.term}
        told["position"] = position_text(self.node.member.state.watermark)
        become = do.BecomeProducer(record, self.other)
        if self.rank is None:
            self.comes_to(RoleStage.PRODUCER, now)
            return [become, do.Act.KEEP_ITEMS, do.Emit(StreamTakenOver(**told)), do.PausePublishing()]
        self.comes_to(RoleStage.SETTLING, now)
        self.rival, self.rival_at = self.other, now + lease_s / RENEWALS_PER_LEASE
        event = StreamProducerReplaced(**told, rank=self.rank, silent_s=now - self.asked_at)
        tell = do.AskNodes(self.near, HandOverStep.TAKEN)
        arm = do.ArmRole(TELL_AGAIN_S if self.near else SETTLE_S)
        return [become, do.PausePublishing(JUST_TAKEN), do.Emit(event), tell, arm]
