"""CoDD's policies: a node with room takes a child of one of its children, so that the tree stays low."""

from __future__ import annotations

import random
from collections.abc import Mapping

import pytest

from peerd.messages import PeerRef
from protocols.dissemination.front.lab.net import STREAM, DisseminationNet
from protocols.dissemination.front.lab.workloads import ClassWorkload
from protocols.dissemination.policies.overlap.events import MovedUp
from protocols.dissemination.policies.overlap.item_bits import to_bits
from protocols.dissemination.policies.overlap.lifting import OFFER_AGAIN_S, OFFER_EVERY_S
from protocols.dissemination.policies.overlap.messages import ChildHistory, MoveOrder, MoveToGrandparent, RoomAbove
from protocols.dissemination.policies.overlap.policy import OverlapPolicy
from tests.support.dissemination_net import check
from tests.unit.test_dissemination_overlap import ABOVE, PEERS, ROOT, FakeTree, X, Y, Z, every, feed, policy_at
from tests.unit.test_dissemination_statistics import item_set

MEMBERS = 45


def tell(policy: OverlapPolicy, tree: FakeTree, counts: Mapping[PeerRef, int]) -> None:
    """Children say how many children they have, and that they need even numbers."""
    for peer, count in counts.items():
        policy.received(peer, ChildHistory(STREAM, to_bits(item_set(every(2), 0, 400)), count))
    tree.at_s += 1.0
    policy.tick()


def with_room(room: bool = True, **settings: object) -> tuple[FakeTree, OverlapPolicy]:
    """A node that wants every second item, as X and Y do; Z wants others."""
    tree = FakeTree(room=room)
    policy = policy_at(tree, [X, Y, Z], **settings)
    feed(policy, tree, 400, own=2, to={X: 2, Y: 4, Z: 3})
    tree.sent.clear()
    return tree, policy


def test_room_is_offered_to_children_that_have_children_and_want_the_same() -> None:
    tree, policy = with_room()
    policy.received(Z, ChildHistory(STREAM, to_bits(item_set(every(3), 0, 400)), 50))
    tell(policy, tree, {X: 1, Y: 4})
    assert tree.take(RoomAbove) == [(Y, RoomAbove(STREAM))]
    policy.tick()
    assert not tree.take(RoomAbove), "once a second"
    tree.at_s += OFFER_EVERY_S
    policy.tick()
    assert tree.take(RoomAbove) == [(X, RoomAbove(STREAM))], "the next: the first may have nobody to send"
    tree.at_s += OFFER_EVERY_S
    policy.tick()
    assert not tree.take(RoomAbove)
    tree.at_s += OFFER_AGAIN_S
    policy.tick()
    assert tree.take(RoomAbove) == [(Y, RoomAbove(STREAM))]


@pytest.mark.parametrize(
    ("room", "settings", "count"),
    [(False, {}, 50), (True, {"reorganise": False}, 50), (True, {}, 0)],
    ids=["full", "not_reorganised", "nobody_to_send"],
)
def test_room_is_not_offered(room: bool, settings: Mapping[str, object], count: int) -> None:
    tree, policy = with_room(room, **settings)
    tell(policy, tree, {X: count})
    assert not tree.take(RoomAbove)


def test_while_nothing_is_known_of_what_children_need_room_is_not_offered() -> None:
    tree = FakeTree(room=True)
    policy = policy_at(tree, [X])
    policy.received(X, ChildHistory(STREAM, to_bits(item_set(set(), 0, 1)), 3))
    tree.at_s += 1.0
    policy.tick()
    assert not tree.take(RoomAbove)


def test_an_orphan_offers_nothing() -> None:
    tree, policy = with_room()
    tree.parent, tree.path = None, ()
    tell(policy, tree, {X: 50})
    assert not tree.take(RoomAbove)


def test_the_child_with_the_most_children_is_sent_up() -> None:
    tree, policy = with_room(room=False)
    tell(policy, tree, {X: 1, Y: 2})
    policy.received(Z, RoomAbove(STREAM))
    assert not tree.take(MoveToGrandparent), "only the parent can have room above"
    for _ in range(5):
        policy.received(ABOVE, RoomAbove(STREAM))
    assert tree.take(MoveToGrandparent) == [(Y, MoveToGrandparent(STREAM, ABOVE))], "once a second"
    policy.child_went(Y.id)
    tree.child_refs.remove(Y)
    tree.at_s += 1.0
    policy.received(ABOVE, RoomAbove(STREAM))
    assert tree.take(MoveToGrandparent) == [(X, MoveToGrandparent(STREAM, ABOVE))]


def test_a_leaf_stays() -> None:
    tree, policy = with_room(room=False)
    tell(policy, tree, {X: 0})
    policy.received(ABOVE, RoomAbove(STREAM))
    assert not tree.take(MoveToGrandparent)


def test_a_node_goes_up_on_the_word_of_its_parent_and_only_to_its_grandparent() -> None:
    tree = FakeTree()
    tree.path = (ROOT.id, PEERS[9].id, ABOVE.id)
    policy = policy_at(tree)
    policy.received(X, MoveToGrandparent(STREAM, PEERS[9]))
    policy.received(ABOVE, MoveToGrandparent(STREAM, ROOT))
    policy.received(ABOVE, MoveToGrandparent(STREAM, X))
    assert not tree.moves
    policy.received(ABOVE, MoveToGrandparent(STREAM, PEERS[9]))
    assert tree.moves == [PEERS[9]]
    policy.move_ended(PEERS[9], "moved", None, [])
    policy.move_ended(PEERS[9], "moved", None, [])
    (event,) = tree.events
    assert isinstance(event, MovedUp) and event.parent == f"{PEERS[9].id:032x}"


def test_a_grandparent_that_is_full_by_now_changes_nothing() -> None:
    tree = FakeTree()
    policy = policy_at(tree)
    policy.received(ABOVE, MoveToGrandparent(STREAM, ROOT))
    policy.move_ended(ROOT, "declined", None, [X])
    assert tree.moves == [ROOT] and not tree.events


def test_who_is_ordered_elsewhere_does_not_go_up() -> None:
    tree = FakeTree()
    policy = policy_at(tree)
    policy.received(ROOT, MoveOrder(STREAM, 5, ABOVE.id, Y))
    policy.received(ABOVE, MoveToGrandparent(STREAM, ROOT))
    assert tree.moves == [Y]


def test_a_node_tells_its_parent_how_many_children_it_has() -> None:
    tree, policy = with_room(room=False)
    tell(policy, tree, {X: 4, Y: 7})
    ((to, told),) = tree.take(ChildHistory)
    assert to == ABOVE and isinstance(told, ChildHistory) and told.children == 3
    tell(policy, tree, {X: 6})
    assert not tree.take(ChildHistory), "how many its children have is told no further"
    policy.child_went(Y.id)
    tree.child_refs.remove(Y)
    tree.at_s += 1.0
    policy.tick()
    ((_, told),) = tree.take(ChildHistory)
    assert isinstance(told, ChildHistory) and told.children == 2


@pytest.mark.parametrize("reorganise", [False, True])
def test_a_deep_tree_of_equals_becomes_low_and_nobody_loses_anything(reorganise: bool) -> None:
    rng = random.Random(1)
    workload = ClassWorkload(MEMBERS, rng, classes=1, selectivity=1.0, change_every=0)
    net = DisseminationNet(MEMBERS, workload, rng, {"reorganise": reorganise}, fan_out=6)
    net.nodes[net.peers[0].id].fan_out = 2
    for number in range(1, MEMBERS + 1):
        net.join(number).fan_out = 2
    before = sum(len(node.path) for node in net.members())
    for node in net.nodes.values():
        node.fan_out = 6
    for _ in range(400):
        net.publish()
    after = sum(len(node.path) for node in net.members())
    assert after < 0.85 * before if reorganise else after == before
    check(net)
