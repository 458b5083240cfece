"""Transcripts of an anycast at one node of a tree."""

from __future__ import annotations

from typing import cast

from msgspec.structs import replace

from peerd.api import Coordinate, Envelope, GroupOutcome, Verdict
from peerd.ids import NodeId
from peerd.messages import Message, PeerRef, encode_body
from peerd.services.groups.anycast import PASS_MESSAGES
from peerd.services.groups.messages import (
    HOPS_MAX,
    VISITED_MAX,
    Anycast,
    AnycastResult,
    AnycastTaken,
    Attached,
    Refresh,
)
from peerd.testing.host import Request, peer
from tests.support.group_world import KEY
from tests.support.groups import Saying
from tests.unit.test_groups_tree import OWN, PARENT, ROOT, A, B, C, Rig, join, member

ACCEPTED, NOBODY, NO_SUCH_GROUP, UNKNOWN = range(4)
QUESTION = Anycast(KEY, C, 5, Saying.TYPE_ID, encode_body(Saying(3)), (), 0)


def tree(*, accepts: bool = False) -> Rig:
    """A member with two children: B is nearer than A."""
    rig = member()
    rig.groups.join("g", lambda message, origin: None, lambda message, origin: accepts)
    for child, rtt_s in ((A, 0.05), (B, 0.01)):
        rig.passing(join(child), child)
        rig.service._refresher.asked(Refresh((KEY,), rtt_s), child)
    rig.finish()
    return rig


def ask(rig: Rig, anycast: Anycast) -> list[tuple[PeerRef, Message]]:
    """It comes from a neighbour in the tree."""
    assert rig.service._anycaster.received(anycast, PARENT) == AnycastTaken()
    return rig.finish()


def asked(rig: Rig) -> int:
    """The nonce of the last anycast that the node itself has sent."""
    anycasts = [message for _, message in rig.host.routed if isinstance(message, Anycast)]
    assert anycasts[-1].nonce
    return anycasts[-1].nonce


def passed_on(rig: Rig) -> Request:
    """To whom it went, the only one."""
    [request] = rig.host.requests
    rig.host.requests.clear()
    return request


def test_a_member_that_accepts_ends_it() -> None:
    rig = tree(accepts=True)
    assert ask(rig, QUESTION) == [(C, AnycastResult(5, ACCEPTED))]
    assert rig.host.requests == []


def test_near_children_are_next_then_far_ones_then_the_way_back() -> None:
    rig = tree()
    assert ask(rig, QUESTION) == []
    first = passed_on(rig)
    assert (first.peer, cast(Anycast, first.message).visited) == (B, (OWN.id,))
    ask(rig, replace(QUESTION, visited=(OWN.id, B.id)))
    assert passed_on(rig).peer == A
    ask(rig, replace(QUESTION, visited=(OWN.id, B.id, A.id)))
    assert passed_on(rig).peer == PARENT


def test_it_is_taken_from_its_way_to_the_root() -> None:
    rig = tree()
    assert rig.passing(QUESTION, C) is Verdict.STOP
    assert rig.passing(replace(QUESTION, group=NodeId(1)), C) is Verdict.PASS
    rig.get(Attached(KEY, (), None), PARENT)
    assert rig.passing(replace(QUESTION, hops=3), C) is Verdict.PASS  # it comes from a part that is cut off, as this is
    assert rig.service.forward(Envelope(KEY, OWN, QUESTION, ROOT, 0, OWN)) is Verdict.PASS


def test_a_silent_node_counts_as_asked() -> None:
    rig = tree()
    ask(rig, QUESTION)
    passed_on(rig).on_timeout()
    second = passed_on(rig)
    assert (second.peer, cast(Anycast, second.message).visited) == (A, (OWN.id, B.id))
    second.on_timeout()
    third = passed_on(rig)
    assert third.peer == PARENT
    rig.host.routed.clear()
    ask(rig, replace(QUESTION, visited=(OWN.id, A.id, B.id, PARENT.id)))
    passed_on(rig).on_timeout()  # the way back is silent: the root goes on
    [(key, message)] = rig.host.routed
    assert key == KEY and PARENT.id in cast(Anycast, message).visited


def test_the_root_says_when_nobody_is_left() -> None:
    rig = Rig(is_root=True)
    rig.invite(A)
    rig.arrive(QUESTION, C)
    assert passed_on(rig).peer == A
    assert ask(rig, replace(QUESTION, visited=(OWN.id, A.id))) == [(C, AnycastResult(5, NOBODY))]


def test_where_there_is_no_group_nobody_is_asked() -> None:
    rig = Rig(is_root=True)
    assert rig.arrive(QUESTION, C) == []
    rig.host.fire("hold", 1)
    assert rig.finish() == [(C, AnycastResult(5, NO_SUCH_GROUP))]


def test_a_node_that_has_left_the_tree_sends_it_to_the_root() -> None:
    rig = Rig()
    ask(rig, QUESTION)
    assert [key for key, _ in rig.host.routed] == [KEY]


def test_it_ends_after_so_many_nodes_and_steps() -> None:
    rig = tree()
    visited = tuple(NodeId(number) for number in range(1000, 1000 + VISITED_MAX))
    assert ask(rig, replace(QUESTION, visited=visited)) == [(C, AnycastResult(5, UNKNOWN))]
    assert ask(rig, replace(QUESTION, hops=HOPS_MAX)) == [(C, AnycastResult(5, UNKNOWN))]


def test_the_origin_is_told_once_by_whoever_is_first() -> None:
    told: list[tuple[GroupOutcome, PeerRef | None]] = []
    rig = Rig()
    for _ in range(3):
        rig.groups.anycast("g", Saying(1), lambda outcome, peer: told.append((outcome, peer)))
        if len(told) == 2:
            break
        number = len(told) + 1
        nonce = asked(rig)
        rig.get(AnycastResult(number, NOBODY if told else ACCEPTED, nonce), A)
        rig.get(AnycastResult(number, ACCEPTED, nonce), B)
    rig.host.fire("anycast", 3)
    rig.finish()
    assert told == [(GroupOutcome.ACCEPTED, A), (GroupOutcome.NOBODY, None), (GroupOutcome.UNKNOWN, None)]
    rig.groups.anycast("g", Saying(1), lambda outcome, peer: told.append((outcome, peer)))
    rig.get(AnycastResult(4, 77, asked(rig)), peer(1))
    assert told[-1] == (GroupOutcome.UNKNOWN, None) and len(told) == 4


def test_who_has_not_seen_an_anycast_cannot_end_it_nor_a_multicast() -> None:
    told: list[GroupOutcome] = []
    rig = Rig()
    rig.groups.anycast("g", Saying(1), lambda outcome, peer: told.append(outcome))
    rig.get(AnycastResult(1, ACCEPTED), A)
    rig.get(AnycastResult(1, ACCEPTED, asked(rig) ^ 1), A)
    rig.groups.multicast("g", Saying(1), told.append)
    rig.get(AnycastResult(2, ACCEPTED), A)
    assert told == [] and rig.dropped("unasked") == 2


def test_a_child_that_nobody_has_measured_is_as_far_as_the_coordinates_say() -> None:
    """A is 0.05 s away and B 0.01 s, as they said; B knows no more than its place now."""
    rig = tree()
    [group] = rig.service.trees.groups.values()
    assert group.nearest_children() == [B, A]
    rig.service._refresher.asked(Refresh((KEY,), None, Coordinate(90.0, 0.0, 0.0, 1.0, 0.1)), B)
    assert group.nearest_children() == [A, B]
    rig.service._refresher.asked(Refresh((KEY,), None), B)
    assert group.children[B.id].rtt_s is None


def test_what_is_beyond_the_share_of_others_is_not_passed_on() -> None:
    """Else the next node would accuse this one of a flood, which somebody else has made."""
    rig = tree()
    rig.host.passes_left = PASS_MESSAGES
    ask(rig, QUESTION)
    assert passed_on(rig).peer == B
    ask(rig, replace(QUESTION, number=6))
    assert not rig.host.requests
    assert rig.host.counted["peerd_groups_dropped_total", "rate"] == 1
