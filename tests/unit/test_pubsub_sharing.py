"""A node that helps the root of a hot leaf: what it takes, from whom, and when it gives the leaf back."""

from __future__ import annotations

from typing import Any

import pytest

from peerd.messages import PeerRef
from peerd.testing.host import FakeHost, Request, peer
from protocols.pubsub.config import PubSubConfig
from protocols.pubsub.messages import CellState, SubObject
from protocols.pubsub.names import key_of
from protocols.pubsub.tree.cell_node import CellNode
from protocols.pubsub.tree.cells import SIDE, WHOLE, children
from protocols.pubsub.tree.loans import LEASE_S
from protocols.pubsub.tree.messages import LeafHelper, LeafLent, LendLeaf, LoanQuestion, LoanState, PieceName
from protocols.pubsub.tree.sharing import BORROWED_MAX, TELL_AGAIN_S
from protocols.pubsub.tree.storage import CellAddress
from tests.support.pubsub_tree import BAD_FILTER, SCHEMA, TREE, TreePlugin

KEY = key_of(TREE, WHOLE)
ROOT = peer(KEY)
PUBLISHERS = [peer(number) for number in range(1000, 1040)]


def node(distance: int = 5) -> tuple[FakeHost, TreePlugin]:
    """A node so far from the root of the tree, which it knows."""
    plugin = TreePlugin(PubSubConfig())
    host = FakeHost((KEY + distance) % (1 << 128), plugin)
    host.neighbours = (ROOT,)
    return host, plugin


def sub(number: int, filter_text: str = "x", **more: Any) -> SubObject:
    return SubObject(peer(7), number, 0, 1, TREE.attribute, 5, SIDE // 2, filter_text, **more)


def lend(host: FakeHost, number: int, *subs: SubObject, gone: tuple[PieceName, ...] = (), begins: bool = True) -> Any:
    return host.deliver(LendLeaf(SCHEMA, TREE.attribute, WHOLE, number, begins, subs, gone), ROOT)


def asked(host: FakeHost) -> Request:
    """What it asks the root at its next look."""
    host.requests.clear()
    host.fire("tree_tick")
    (request,) = [each for each in host.requests if isinstance(each.message, LoanQuestion)]
    assert request.peer == ROOT
    return request


def serve(host: FakeHost, *helpers: PeerRef) -> None:
    request = asked(host)
    request.on_reply(LeafLent(LoanState.SERVING, helpers=helpers or (host.peer,)), ROOT)


def test_it_serves_from_the_roots_answer_on_for_a_time_that_counts_from_its_question() -> None:
    host, plugin = node()
    assert lend(host, 2, sub(1), sub(2)) == LeafLent(LoanState.GIVEN, taken=2)
    assert not plugin.rendezvous.serves(SCHEMA, TREE.attribute, WHOLE)
    request = asked(host)
    host.time_s += 1.0
    request.on_reply(LeafLent(LoanState.SERVING, helpers=(host.peer,)), ROOT)
    assert plugin.rendezvous.serves(SCHEMA, TREE.attribute, WHOLE)
    assert {(TREE.attribute, WHOLE)} == {cell for _, cell in plugin.indexes[SCHEMA].subs}
    host.time_s += LEASE_S - 1.0
    assert not plugin.rendezvous.serves(SCHEMA, TREE.attribute, WHOLE)
    plugin.validate()


@pytest.mark.parametrize("end", ["the root says no", "the root takes it back", "the root is down", "it is the root"])
def test_it_gives_the_leaf_back(end: str) -> None:
    host, plugin = node()
    lend(host, 2, sub(1))
    serve(host)
    if end == "the root says no":
        asked(host).on_reply(LeafLent(LoanState.OVER), ROOT)
    elif end == "the root takes it back":
        assert lend(host, 0) == LeafLent(LoanState.OVER)
    elif end == "the root is down":
        plugin.rendezvous.sharing.peer_down(ROOT)
    else:
        host.neighbours = ()
        plugin.rendezvous.neighbours_changed()
    assert not plugin.rendezvous.sharing.is_busy and not plugin.indexes[SCHEMA].subs
    assert not plugin.rendezvous.serves(SCHEMA, TREE.attribute, WHOLE)


def test_what_was_given_back_is_not_taken_again_by_a_later_message_of_the_same_loan() -> None:
    """It would have served with the new piece alone: seed 5 of the swarm."""
    host, plugin = node()
    lend(host, 2, sub(1))
    serve(host)
    plugin.rendezvous.sharing.peer_down(ROOT)
    assert lend(host, 2, sub(2), begins=False) == LeafLent(LoanState.OVER)
    assert not plugin.rendezvous.sharing.is_busy


def test_who_does_not_know_the_schema_looks_it_up_for_the_next_time() -> None:
    host, plugin = node()
    plugin.schemas.known.clear()
    plugin.schemas.remote = (SCHEMA,)
    assert lend(host, 2, sub(1)) == LeafLent(LoanState.OVER)
    assert lend(host, 4, sub(1)) == LeafLent(LoanState.GIVEN, taken=1)


def test_nobody_but_the_root_lends_a_leaf_or_takes_it_back() -> None:
    host, plugin = node()
    stranger = peer(KEY + 3)
    message = LendLeaf(SCHEMA, TREE.attribute, WHOLE, 2, True, (sub(1),))
    assert host.deliver(message, stranger) == LeafLent(LoanState.OVER)
    assert host.deliver(LendLeaf(SCHEMA, TREE.attribute, WHOLE, 0), stranger) == LeafLent(LoanState.OVER)
    assert not plugin.rendezvous.sharing.is_busy
    lend(host, 2, sub(1))
    serve(host)
    host.deliver(LendLeaf(SCHEMA, TREE.attribute, WHOLE, 0), stranger)
    host.deliver(message, stranger)
    assert plugin.rendezvous.serves(SCHEMA, TREE.attribute, WHOLE)


def test_it_helps_with_so_many_leaves_at_most() -> None:
    host, plugin = node()
    host.neighbours = (peer((KEY + 1) % (1 << 128)),)
    cells, taken = [WHOLE], 0
    while len(cells) <= 4 * BORROWED_MAX:
        cells += children(cells[len(cells) // 2])
    for number, cell in enumerate(dict.fromkeys(cells)):
        key = key_of(TREE, cell)
        host.neighbours = (root := peer(key),)
        answer = host.deliver(LendLeaf(SCHEMA, TREE.attribute, cell, 2 + number, begins=True), root)
        assert isinstance(answer, LeafLent)
        taken += answer.state == LoanState.GIVEN
    assert taken == BORROWED_MAX
    plugin.validate()


def test_what_does_not_fit_is_not_taken_and_the_root_hears_how_much_was() -> None:
    host, plugin = node()
    wrong = SubObject(peer(7), 9, 0, 1, TREE.attribute + 1, 5, SIDE // 2, "x")
    assert lend(host, 2, sub(1), wrong, sub(2)) == LeafLent(LoanState.GIVEN, taken=1)
    assert lend(host, 2, sub(2), sub(3, BAD_FILTER)) == LeafLent(LoanState.GIVEN, taken=1)
    assert lend(host, 2, gone=(PieceName(*sub(1).key),)) == LeafLent(LoanState.GIVEN)
    assert [key for key, _ in plugin.indexes[SCHEMA].subs] == [sub(2).key]


def test_a_piece_that_is_new_while_it_serves_gets_its_past_from_here_too() -> None:
    host, plugin = node()
    lend(host, 2, sub(1, since_ms=5))
    assert plugin.events_noted.new == [], "the root has that one's"
    serve(host)
    lend(host, 2, sub(2, since_ms=5))
    assert [each.sid for _, each in plugin.events_noted.new] == [2]


def test_it_tells_a_publisher_who_is_another_ones_so_once_in_a_while() -> None:
    host, plugin = node()
    lend(host, 2, sub(1))
    serve(host, host.peer, peer(77))
    places = [(TREE.attribute, WHOLE)]
    for publisher in PUBLISHERS:
        plugin.rendezvous.visited(SCHEMA, places, publisher)
        plugin.rendezvous.visited(SCHEMA, places, publisher)
    told = [(to, message.helper) for to, message in host.sent if isinstance(message, LeafHelper)]
    assert {helper for _, helper in told} == {ROOT, peer(77)} and len(told) == len(dict(told)) < len(PUBLISHERS)
    host.sent.clear()
    host.time_s += TELL_AGAIN_S
    plugin.rendezvous.visited(SCHEMA, places, told[0][0])
    assert host.sent == [(told[0][0], LeafHelper(SCHEMA, TREE.attribute, WHOLE, told[0][1]))]


def test_a_leaf_that_this_node_becomes_the_root_of_is_loaded_in_place_of_the_one_it_helped_with() -> None:
    host, plugin = node()
    lend(host, 2, sub(1))
    host.neighbours = ()
    made = CellNode(CellAddress(TREE, WHOLE), KEY, CellState.LEAF)
    plugin.rendezvous.forest.register(made)
    plugin.validate()
    assert not plugin.indexes[SCHEMA].subs
