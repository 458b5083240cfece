"""What one member says of others, or of a group whose root it is not, changes nobody's place in its tree."""

from __future__ import annotations

import pytest

from peerd.api import Envelope, NeighbourChange, Verdict
from peerd.ids import NodeId
from peerd.messages import PeerRef
from peerd.services.groups.messages import (
    Attached,
    Bequest,
    Departing,
    Detach,
    Invitation,
    Join,
    MulticastPosition,
    Publish,
    Redirect,
)
from peerd.testing.host import peer
from tests.support.group_world import KEY
from tests.unit.test_groups_tree import AT_3, CONFIG, OTHER, OWN, PARENT, ROOT, A, B, C, Rig, join, member, multicast

CLOSEST, CLOSER = PeerRef(KEY, "10.1.0.2", 1), PeerRef(NodeId(KEY ^ 1), "10.1.0.3", 1)


@pytest.mark.parametrize("is_final", [False, True])
def test_nobody_inherits_from_a_node_that_was_not_the_root(is_final: bool) -> None:
    """Neither from a stranger, nor from a neighbour while a closer one is there."""
    rig = member()
    rig.host.neighbours = (CLOSEST, CLOSER)
    for liar in (A, CLOSER, CLOSER, PARENT):
        assert rig.get(Bequest(KEY, MulticastPosition(9, CLOSEST.id, 3), is_final), liar) == []
    assert rig.part.is_child_of(PARENT) and rig.part.position == AT_3 and rig.dropped("not_heir") == 4
    rig.arrive(Publish(KEY, multicast(1).publication), C)
    assert not rig.part.is_root, "the closest node has not said that it leaves"


def test_a_neighbour_that_leaves_is_believed_for_a_while_and_only_of_itself() -> None:
    rig = member()
    rig.host.neighbours = (CLOSEST, CLOSER)
    rig.get(Departing(), CLOSEST)
    rig.get(Departing(), A)  # it is no neighbour: nothing is kept
    assert rig.service.trees.staying() == [CLOSER]
    assert rig.get(Bequest(KEY, AT_3, True), CLOSEST) == [], "another one is closer than this node"
    sent = rig.get(Bequest(KEY, AT_3, True), CLOSER)
    assert rig.part.is_root and (PARENT, Detach(KEY)) in sent, "the closest two leave"
    rig.host.time_s += CONFIG.lease
    rig.service.neighbours_changed(NeighbourChange((), ()))
    assert rig.service.trees.staying() == [CLOSEST, CLOSER] and not rig.part.is_root


def test_neighbours_are_told_again_and_again_and_new_ones_at_once() -> None:
    rig = member()
    rig.host.neighbours = (CLOSEST,)
    rig.service.drain(lambda: None)
    rig.host.fire("drain")
    assert rig.finish() == [(CLOSEST, Departing())]
    waits_s = rig.host.timers["departing", None] - rig.host.time_s
    assert waits_s < CONFIG.lease / 2, "a message that is lost does not end the belief"
    rig.host.fire("departing")
    assert rig.finish() == [(CLOSEST, Departing())]
    rig.service.neighbours_changed(NeighbourChange((CLOSER,), ()))
    assert rig.finish() == [(CLOSER, Departing())]


def test_a_name_that_others_may_have_made_up_takes_no_place() -> None:
    rig = Rig(is_root=True)
    nobody = [peer(number) for number in range(200, 300)]
    for each in nobody:
        assert rig.arrive(join(each), C) == [(each, Invitation(KEY))]
    assert not rig.service.trees.groups, "nor a tree"
    assert rig.invite(A) == [(A, Attached(KEY, (OWN.id,), MulticastPosition(1, OWN.id, 0)))]
    inner = member()
    for each in nobody:
        assert inner.service.forward(Envelope(KEY, each, join(each), ROOT, 1, C)) is Verdict.STOP
        assert inner.finish() == [(each, Invitation(KEY))]
    assert not inner.part.children
    inner.get(Join(KEY, A, AT_3, False, True), A)
    assert list(inner.part.children) == [A.id]
    assert inner.get(Join(KEY, B, AT_3, False, True), A) == [] and inner.dropped("malformed") == 1


def test_a_node_on_the_way_becomes_part_of_the_tree_when_the_joiner_itself_asks() -> None:
    rig = Rig()
    assert rig.service.forward(Envelope(KEY, A, join(A, AT_3), ROOT, 1, C)) is Verdict.STOP
    assert rig.finish() == [(A, Invitation(KEY))] and not rig.service.trees.groups
    assert rig.get(join(A, AT_3), A) == [(A, Redirect(KEY, ()))], "it does not for who was only told of it"
    assert rig.get(Join(KEY, A, AT_3, False, True), A) == []
    assert rig.host.routed == [(KEY, join(OWN, AT_3))] and list(rig.part.children) == [A.id]


def test_invitations_are_followed_at_once_and_not_without_end() -> None:
    rig = Rig()
    assert rig.get(Invitation(KEY), A) == [], "it wants no place"
    rig.join()
    due = rig.host.timers["join", KEY]
    asked = [rig.get(Invitation(KEY), A) for _ in range(100)]
    assert asked[:32] == [[(A, Join(KEY, OWN, None, False, True))]] * 32 and asked[32:] == [[]] * 68
    assert rig.host.timers["join", KEY] == due, "nobody draws the wait out"
    rig.attach()
    assert rig.get(Invitation(KEY), A) == []


def test_strangers_cannot_be_parents() -> None:
    rig = member()
    assert rig.get(Attached(KEY, (ROOT.id, OTHER.id), AT_3), OTHER) == [(OTHER, Detach(KEY))]
    assert rig.get(multicast(4), OTHER) == [(OTHER, Detach(KEY))]
    assert rig.get(Attached(NodeId(1), (OTHER.id,), None), OTHER) == [(OTHER, Detach(NodeId(1)))]
    assert rig.part.parent == PARENT and rig.heard == []


def test_a_path_that_does_not_end_at_its_sender_is_ignored() -> None:
    rig = member()
    assert rig.get(Attached(KEY, (ROOT.id, OTHER.id), None), PARENT) == []
    assert rig.part.path == (ROOT.id, PARENT.id, OWN.id) and rig.dropped("malformed") == 1
    assert rig.get(join(B), A) == []
    assert rig.dropped("malformed") == 2


def test_nobody_is_made_the_heir_of_a_key_that_is_not_its_own() -> None:
    rig = Rig()
    assert rig.get(Bequest(KEY, AT_3, True), A) == [] and not rig.service.trees.groups


def test_what_a_tree_carries_stays_below_what_a_child_takes() -> None:
    """A child gets what it may; it sees the gap, asks, and gets the rest as far as it may."""
    rig = member()
    rig.get(Join(KEY, A, AT_3, False, True), A)
    rig.host.passes_left = 2
    sent = [rig.get(multicast(number), PARENT) for number in (4, 5, 6, 7)]
    assert sent == [[(A, multicast(4))], [(A, multicast(5))], [], []]
    assert rig.dropped("rate") == 2 and [number for number, _ in rig.heard] == [4, 5, 6, 7], (
        "the member here loses nothing"
    )
    rig.host.passes_left = 1
    at_5 = MulticastPosition(1, ROOT.id, 5)
    assert rig.get(join(A, at_5, insists=True), A) == [(A, Attached(KEY, rig.part.path, at_5)), (A, multicast(6))]
    assert rig.dropped("rate") == 3
    rig.host.passes_left = 10
    at_6 = MulticastPosition(1, ROOT.id, 6)
    assert rig.get(join(A, at_6, insists=True), A) == [(A, Attached(KEY, rig.part.path, at_6)), (A, multicast(7))]
