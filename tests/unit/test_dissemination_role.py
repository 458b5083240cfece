"""How the production of a stream goes from node to node: the table of stages, and what each event does in each."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from types import SimpleNamespace
from typing import Any

import pytest

from peerd.errors import Unavailable
from peerd.ids import NodeId
from peerd.messages import PeerRef
from protocols.dissemination.messages import HandOver, HandOverAnswer, HandOverState, HandOverStep
from protocols.dissemination.models import StreamSpec
from protocols.dissemination.names import START
from protocols.dissemination.producer.effects import (
    Act,
    ArmRole,
    AskNodes,
    BecomeProducer,
    BeginTerm,
    Effects,
    Emit,
    FindRecord,
    GoBelow,
    KeepRecord,
    LookUp,
    PausePublishing,
    TellAsker,
    WriteRecord,
)
from protocols.dissemination.producer.fencing import RANK_S
from protocols.dissemination.producer.produced import LOOKS_MAX
from protocols.dissemination.producer.role import (
    GIVING,
    PAUSE_S,
    PREPARE_S,
    ROLE_STEPS,
    TAKE_S,
    UNASKED_S,
    Role,
    RoleStage,
)
from protocols.dissemination.producer.succession import Succession
from protocols.dissemination.service import StreamRefused
from protocols.dissemination.stream import AFTER_STANDBYS, TAKE_BACK_TERMS, SeedRef, StreamRecord
from tests.unit.test_dissemination_ending import Rig

ME, OTHER, THIRD, FOURTH = (PeerRef(NodeId(number << 120), f"10.0.0.{number}", 7420) for number in range(1, 5))
SPEC = StreamSpec(name="news", kind="classes", policy="first_fit", producer_gone="hand-over")
OWN = StreamRecord.of(SPEC, ME).model_copy(update={"standbys": (SeedRef.of(THIRD), SeedRef.of(FOURTH))})
OTHERS = StreamRecord.of(SPEC, OTHER).model_copy(
    update={"standbys": (SeedRef.of(ME), SeedRef.of(FOURTH)), "seeds": (SeedRef.of(OTHER), SeedRef.of(THIRD))}
)
STRANGERS = StreamRecord.of(SPEC, THIRD)
"""Another stream of the name."""
LEASE_S = 60.0
NOW = 1000.0
MEMBERS = (RoleStage.MEMBER, RoleStage.NEXT, RoleStage.STANDBY, RoleStage.WRITING)
NONE = StreamRefused("unknown", "there is no stream news")
UNCLEAR = Unavailable("the ring does not answer")
TAKEN = StreamRefused("conflict", "another node has a stream of the name news already")


def role_in(stage: RoleStage, **has: Any) -> Role:
    """A role that has come to a stage at `NOW`, with the other one that it has then."""
    is_producer = stage not in MEMBERS
    node: Any = SimpleNamespace(
        name="news",
        record=OWN if is_producer else OTHERS,
        is_producer=is_producer,
        is_sending=False,
        is_adrift=False,
        predecessor=None,
        had_from=None,
        leaving_since=None,
        config=SimpleNamespace(ask_timeout=2.0),
        kind=SimpleNamespace(parse=lambda text: None),
        member=SimpleNamespace(
            state=SimpleNamespace(watermark=START),
            has_all=lambda everything, watermark: has.get("all", True),
            has_whole=lambda everything: True,
        ),
    )
    role = Role(node, ME, OTHER, stage, NOW)
    role.asked_at, role.before = NOW, RoleStage.STANDBY if "rank" in has else RoleStage.NEXT
    role.may_be_taken, role.rank, role.near = has.get("taken", False), has.get("rank"), has.get("near", ())
    node.is_adrift = "adrift" in has
    return role


def kinds(effects: Effects) -> list[object]:
    return [each if isinstance(each, Act) else type(each) for each in effects]


Event = Callable[[Role], Effects]


def due(after_s: float = 0.0) -> Event:
    return lambda role: role.due(NOW + after_s)


def said(state: HandOverState) -> Event:
    return lambda role: role.answered(OTHER, HandOverAnswer(OWN.key, state), NOW)


def found(answer: StreamRecord | Exception, owner: NodeId | None = None, after_s: float = 0.0) -> Event:
    return lambda role: role.found(answer, owner, LEASE_S, NOW + after_s)


def wrote(why: Exception | None) -> Event:
    return lambda role: role.wrote(role.node.record, why, LEASE_S, NOW)


def asked(step: HandOverStep, term: int = 0, source: PeerRef = OTHER) -> Event:
    return lambda role: role.asked(HandOver(OWN.key, step, term, START), source, "", NOW)[2]


def deleted(why: Exception | None) -> Event:
    return lambda role: role.deleted(why, LEASE_S, NOW)


READY, PREPARING, PRODUCING, REFUSED = (
    said(state)
    for state in (HandOverState.READY, HandOverState.PREPARING, HandOverState.PRODUCING, HandOverState.REFUSED)
)
BELOW = [GoBelow, Emit, TellAsker]
LATER, TAKER = OWN.handed_to(OTHER), OWN.taken_over(THIRD, 0)

TABLE: list[Any] = [
    # A planned hand-over
    (RoleStage.PRODUCER, lambda role: role.hand_over(OTHER, NOW), {}, RoleStage.PREPARING, [ArmRole]),
    (RoleStage.PREPARING, due(), {}, RoleStage.PREPARING, [AskNodes]),
    (RoleStage.PREPARING, lambda role: role.answered(OTHER, None, NOW), {}, RoleStage.PREPARING, [ArmRole]),
    (RoleStage.PREPARING, PREPARING, {}, RoleStage.PREPARING, [ArmRole]),
    (RoleStage.PREPARING, READY, {}, RoleStage.PAUSED, [ArmRole, PausePublishing, ArmRole]),
    (RoleStage.PREPARING, REFUSED, {}, RoleStage.PRODUCER, [ArmRole, PausePublishing, TellAsker]),
    (RoleStage.PREPARING, due(PREPARE_S), {}, RoleStage.PRODUCER, [PausePublishing, TellAsker]),
    (RoleStage.PAUSED, due(), {}, RoleStage.PAUSED, [Act.FLUSH, AskNodes]),
    (RoleStage.PAUSED, READY, {}, RoleStage.DELETING, [ArmRole, Act.DELETE]),
    (RoleStage.PAUSED, REFUSED, {}, RoleStage.PRODUCER, [ArmRole, PausePublishing, TellAsker]),
    (RoleStage.PAUSED, due(PAUSE_S), {}, RoleStage.PRODUCER, [PausePublishing, TellAsker]),
    (RoleStage.DELETING, due(), {}, RoleStage.DELETING, []),
    (RoleStage.DELETING, deleted(None), {}, RoleStage.TAKING, [ArmRole]),
    (RoleStage.DELETING, deleted(UNCLEAR), {}, RoleStage.BACK, [ArmRole]),
    (RoleStage.DELETING, lambda role: role.stays(UNCLEAR, NOW), {}, RoleStage.PRODUCER, [PausePublishing, TellAsker]),
    (RoleStage.TAKING, due(), {}, RoleStage.TAKING, [AskNodes]),
    (RoleStage.TAKING, READY, {}, RoleStage.TAKING, [ArmRole]),
    (RoleStage.TAKING, PRODUCING, {}, RoleStage.MEMBER, [ArmRole, *BELOW]),
    (RoleStage.TAKING, REFUSED, {}, RoleStage.BACK, [ArmRole, ArmRole]),
    (RoleStage.TAKING, due(TAKE_S), {}, RoleStage.BACK, [ArmRole]),
    # It is taken back
    (RoleStage.BACK, due(), {}, RoleStage.BACK, [WriteRecord]),
    (RoleStage.BACK, wrote(None), {}, RoleStage.PRODUCER, [PausePublishing, TellAsker]),
    (RoleStage.BACK, wrote(None), {"taken": True}, RoleStage.PRODUCER, [BeginTerm, PausePublishing, TellAsker]),
    (RoleStage.BACK, wrote(UNCLEAR), {}, RoleStage.BACK, [ArmRole]),
    (RoleStage.BACK, wrote(TAKEN), {}, RoleStage.BACK, [FindRecord]),
    (RoleStage.BACK, found(LATER), {}, RoleStage.TAKING, [TellAsker, ArmRole]),
    (RoleStage.BACK, found(TAKER), {}, RoleStage.MEMBER, BELOW),
    (RoleStage.BACK, found(STRANGERS), {}, RoleStage.PRODUCER, [PausePublishing, TellAsker, FindRecord]),
    (RoleStage.BACK, found(NONE), {}, RoleStage.BACK, [ArmRole]),
    (RoleStage.BACK, found(OWN), {}, RoleStage.BACK, [ArmRole]),
    # A rival
    *[(stage, asked(HandOverStep.ASK, 20, OTHER), {}, stage, [FindRecord]) for stage in (RoleStage.PRODUCER, *GIVING)],
    *[(stage, found(LATER, OTHER.id), {}, RoleStage.MEMBER, BELOW) for stage in (RoleStage.PRODUCER, *GIVING)],
    *[(stage, found(OWN, OTHER.id), {}, stage, []) for stage in (RoleStage.PRODUCER, *GIVING)],
    *[(stage, asked(HandOverStep.ASK, 20, THIRD), {}, stage, [FindRecord]) for stage in GIVING],
    *[
        (stage, asked(HandOverStep.ASK, 20, THIRD), {}, RoleStage.MEMBER, BELOW)
        for stage in (RoleStage.PRODUCER, RoleStage.SETTLING, RoleStage.RETURNED)
    ],
    (RoleStage.PRODUCER, found(LATER), {}, RoleStage.MEMBER, BELOW),
    (RoleStage.PRODUCER, found(STRANGERS), {}, RoleStage.PRODUCER, [Act.NAME_LOST]),
    (RoleStage.PRODUCER, found(UNCLEAR), {}, RoleStage.PRODUCER, [KeepRecord]),
    (RoleStage.PRODUCER, PRODUCING, {}, RoleStage.PRODUCER, []),
    # A restart
    (RoleStage.PRODUCER, lambda role: role.returned(NOW), {}, RoleStage.RETURNED, [ArmRole]),
    (RoleStage.RETURNED, due(), {}, RoleStage.RETURNED, [FindRecord]),
    (RoleStage.RETURNED, found(UNCLEAR), {}, RoleStage.RETURNED, [ArmRole]),
    (RoleStage.RETURNED, found(NONE), {}, RoleStage.RETURNED, [AskNodes, ArmRole]),
    (RoleStage.RETURNED, found(OWN), {}, RoleStage.PRODUCER, [KeepRecord]),
    (RoleStage.RETURNED, found(TAKER), {}, RoleStage.MEMBER, BELOW),
    # The next one
    (RoleStage.MEMBER, asked(HandOverStep.PREPARE), {}, RoleStage.NEXT, [Act.WANT_ALL]),
    (RoleStage.MEMBER, asked(HandOverStep.STAND_BY), {}, RoleStage.STANDBY, [Act.WANT_ALL]),
    (RoleStage.MEMBER, asked(HandOverStep.TAKE), {"all": False}, RoleStage.NEXT, [Act.WANT_ALL]),
    (RoleStage.MEMBER, asked(HandOverStep.TAKE), {}, RoleStage.WRITING, [Act.WANT_ALL, WriteRecord]),
    (RoleStage.MEMBER, asked(HandOverStep.ASK), {}, RoleStage.MEMBER, []),
    (RoleStage.MEMBER, asked(HandOverStep.PREPARE, 0, THIRD), {}, RoleStage.MEMBER, []),
    (RoleStage.MEMBER, asked(HandOverStep.TAKEN, 20, THIRD), {}, RoleStage.MEMBER, [LookUp]),
    (RoleStage.NEXT, asked(HandOverStep.STAND_BY), {}, RoleStage.STANDBY, []),
    (RoleStage.STANDBY, asked(HandOverStep.PREPARE), {}, RoleStage.STANDBY, []),
    (RoleStage.NEXT, asked(HandOverStep.RELEASE), {}, RoleStage.NEXT, []),
    (RoleStage.STANDBY, asked(HandOverStep.RELEASE), {}, RoleStage.MEMBER, [Act.WANT_NO_MORE]),
    (RoleStage.NEXT, asked(HandOverStep.TAKE), {"all": False}, RoleStage.NEXT, []),
    (RoleStage.NEXT, asked(HandOverStep.TAKE), {}, RoleStage.WRITING, [WriteRecord]),
    (RoleStage.STANDBY, asked(HandOverStep.TAKE), {}, RoleStage.WRITING, [WriteRecord]),
    (RoleStage.WRITING, asked(HandOverStep.TAKE), {}, RoleStage.WRITING, []),
    (RoleStage.WRITING, asked(HandOverStep.RELEASE), {}, RoleStage.WRITING, []),
    (RoleStage.WRITING, wrote(UNCLEAR), {}, RoleStage.NEXT, []),
    (RoleStage.WRITING, wrote(None), {}, RoleStage.PRODUCER, [BecomeProducer, Act.KEEP_ITEMS, Emit, PausePublishing]),
    (RoleStage.NEXT, lambda role: role.tick(LEASE_S, NOW + UNASKED_S), {}, RoleStage.MEMBER, [Act.WANT_NO_MORE]),
    # A standby takes over
    (RoleStage.STANDBY, lambda role: role.tick(LEASE_S, NOW), {}, RoleStage.STANDBY, []),
    (RoleStage.STANDBY, lambda role: role.tick(LEASE_S, NOW), {"adrift": True}, RoleStage.STANDBY, [FindRecord]),
    (RoleStage.STANDBY, found(NONE, None, LEASE_S - 1), {"adrift": True}, RoleStage.STANDBY, []),
    (RoleStage.STANDBY, found(NONE, None, LEASE_S), {"adrift": True}, RoleStage.WRITING, [WriteRecord]),
    (RoleStage.STANDBY, found(NONE, None, LEASE_S), {}, RoleStage.STANDBY, []),
    (RoleStage.STANDBY, found(UNCLEAR, None, LEASE_S), {"adrift": True}, RoleStage.STANDBY, []),
    (RoleStage.WRITING, wrote(UNCLEAR), {"rank": 0}, RoleStage.STANDBY, []),
    (
        RoleStage.WRITING,
        wrote(None),
        {"rank": 0, "near": (THIRD,)},
        RoleStage.SETTLING,
        [BecomeProducer, PausePublishing, Emit, AskNodes, ArmRole],
    ),
    (RoleStage.SETTLING, due(), {"near": (THIRD,)}, RoleStage.SETTLING, [AskNodes, ArmRole]),
    (RoleStage.SETTLING, due(), {}, RoleStage.PRODUCER, [BeginTerm, Act.KEEP_ITEMS, PausePublishing]),
]


@pytest.mark.parametrize(("before", "event", "has", "after", "effects"), TABLE)
def test_what_happens_in_each_stage(
    before: RoleStage, event: Event, has: dict[str, Any], after: RoleStage, effects: list[object]
) -> None:
    role = role_in(before, **has)
    assert kinds(event(role)) == effects
    assert role.stage is after


def test_every_step_of_the_table_of_stages_is_taken_by_some_event() -> None:
    taken = {(before, after) for before, _, _, after, _ in TABLE if before is not after}
    taken -= {(RoleStage.MEMBER, RoleStage.STANDBY), (RoleStage.MEMBER, RoleStage.WRITING)}  # two steps at once
    for before in (RoleStage.NEXT, RoleStage.STANDBY):
        again = role_in(before)
        again.node.record = OTHERS.handed_to(THIRD)
        assert kinds(asked(HandOverStep.PREPARE, 1, THIRD)(again)) == [Act.WANT_ALL]
        taken.add((before, again.stage))
    assert taken == {(before, after) for before, steps in ROLE_STEPS.items() for after in steps}


@pytest.mark.parametrize(("before", "after"), list(product(RoleStage, RoleStage)))
def test_a_node_goes_through_the_stages_by_the_table_only(before: RoleStage, after: RoleStage) -> None:
    role = role_in(before)
    if after in ROLE_STEPS[before]:
        role.comes_to(after, NOW)
        assert role.stage is after
    else:
        with pytest.raises(AssertionError):
            role.comes_to(after, NOW)
        assert role.stage is before


@pytest.mark.parametrize("stage", RoleStage)
def test_whatever_a_message_says_and_however_often_it_is_no_step_that_the_table_does_not_have(stage: RoleStage) -> None:
    """The network repeats messages, and anybody may send any of them."""
    for step, term, source, has_all in product(HandOverStep, (0, 1, 20), (OTHER, THIRD, FOURTH), (True, False)):
        role = role_in(stage, all=has_all)
        for _ in range(3):
            asked(step, term, source)(role)
            vars(role.node)["is_producer"] = role.stage not in MEMBERS
    if stage in GIVING:
        for one, other in product(HandOverState, HandOverState):
            role = role_in(stage)
            for state in (one, other, other):
                said(state)(role)


def test_a_standby_acts_after_those_before_it_in_the_record() -> None:
    role = role_in(RoleStage.STANDBY, adrift=True)
    role.node.record = OTHERS.model_copy(update={"standbys": OTHERS.standbys[::-1]})
    assert not found(NONE, None, LEASE_S)(role)
    assert not found(NONE, None, LEASE_S + RANK_S - 0.1)(role)
    [write] = found(NONE, None, LEASE_S + RANK_S)(role)
    assert isinstance(write, WriteRecord) and write.record == role.node.record.taken_over(ME, 1)


def test_a_standby_that_finds_the_record_again_counts_anew() -> None:
    role = role_in(RoleStage.STANDBY, adrift=True)
    found(NONE, None, LEASE_S - 1)(role)
    found(OTHERS, None, LEASE_S)(role)
    assert role.lapsed_at is None


def test_those_next_to_the_old_producer_are_told_twice_and_the_old_one_is_watched() -> None:
    role = role_in(RoleStage.STANDBY, adrift=True)
    found(NONE, None, LEASE_S)(role)
    role.node.record = role.node.record.taken_over(ME, 0)  # it finds its own record before it hears that it is stored
    become, _, _, told, _ = wrote(None)(role)
    assert isinstance(become, BecomeProducer) and become.predecessor == OTHER and role.rival == OTHER
    again = due(1.0)(role)[0]
    assert told == again == AskNodes((THIRD, FOURTH), HandOverStep.TAKEN)


def test_a_later_term_begins_where_the_next_one_may_have_published() -> None:
    role = role_in(RoleStage.DELETING)
    deleted(None)(role)
    due(TAKE_S)(role)
    assert due(TAKE_S)(role) == [WriteRecord(OWN)]
    assert due(LEASE_S)(role) == [WriteRecord(OWN.taken_back())]
    assert OWN.taken_back().term == TAKE_BACK_TERMS


def test_a_producer_that_is_back_looks_asks_its_standbys_once_and_begins_a_later_term() -> None:
    role = role_in(RoleStage.RETURNED)
    for _ in range(LOOKS_MAX - 1):
        due()(role)
        assert kinds(found(UNCLEAR)(role)) == [ArmRole]
    asked_them = found(NONE)(role)[0]
    assert asked_them == AskNodes((THIRD, FOURTH), HandOverStep.ASK)
    begin, keep = found(NONE)(role)
    assert isinstance(begin, BeginTerm) and begin.record.term == AFTER_STANDBYS and keep == KeepRecord(0.0)


def test_who_fails_to_write_its_record_says_so_once() -> None:
    role = role_in(RoleStage.WRITING)
    wrote(UNCLEAR)(role)
    question = HandOver(OWN.key, HandOverStep.PREPARE, 0, START)
    answers = [role.asked(question, OTHER, "", NOW)[:2] for _ in range(2)]
    assert answers == [(HandOverState.REFUSED, str(UNCLEAR)), (HandOverState.READY, "")]


def test_what_waits_for_the_disk_goes_out_before_the_record_is_deleted() -> None:
    role = role_in(RoleStage.PAUSED)
    vars(role.node)["is_sending"] = True
    assert kinds(due()(role)) == [ArmRole]


def test_a_producer_that_is_back_and_takes_part_as_a_member_by_then_stays_one() -> None:
    """While its disk was read, a client of it has subscribed, and the ring had the record of another producer."""
    rig = Rig()
    rig.node.is_producer = False
    succession = Succession(rig.streams)
    succession.returned(rig.node)
    assert succession.role(rig.node).stage is RoleStage.MEMBER
