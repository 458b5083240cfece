"""A leaf at its alternate, and what its home is told of it, truly or not: transcripts of one node."""

from __future__ import annotations

import pytest

from peerd.testing.host import peer
from protocols.pubsub.messages import (
    CellAnswer,
    CellOrder,
    CellQuestion,
    CellState,
    LeafEntry,
    LeafUpdate,
    OrderKind,
    TransferSub,
)
from protocols.pubsub.names import STATE_ITEM
from protocols.pubsub.ports import Elsewhere, Here
from protocols.pubsub.tree.cells import LEVEL_LIMIT, WHOLE, alternate
from protocols.pubsub.tree.storage import CellAddress, state_record
from tests.support.pubsub_rendezvous import STRANGER, installed, last_question, node, routed, write
from tests.support.pubsub_tree import SCHEMA, TREE

MOVED_TO = alternate(WHOLE)


def test_a_claim_that_a_leaf_was_moved_is_checked_at_its_alternate() -> None:
    host, plugin = installed()
    claim = LeafUpdate(SCHEMA, TREE.attribute, WHOLE, MOVED_TO, (LeafEntry(MOVED_TO, 5),))
    host.deliver(claim, STRANGER)
    question = last_question(host)
    assert question.cell == MOVED_TO
    host.deliver(CellAnswer(question.nonce, CellState.UNKNOWN), peer(3))
    assert routed(host, TransferSub) == [] and plugin.rendezvous.decide(TREE, WHOLE, None, vouched=False) == Here()
    host.deliver(claim, STRANGER)
    host.deliver(CellAnswer(last_question(host).nonce, CellState.LEAF), peer(3))
    [copies] = routed(host, TransferSub)
    assert isinstance(copies, TransferSub) and copies.cell == MOVED_TO, "it gives its pieces there, and is none then"


def test_an_inner_node_is_not_told_of_its_own_alternate_which_it_has_retire() -> None:
    host, plugin = node()
    home = plugin.rendezvous.forest.find(CellAddress(TREE, WHOLE))
    assert home is not None
    plugin.rendezvous.forest.register(home)
    plugin.rendezvous.forest.became(home, CellState.INNER)
    host.deliver(LeafUpdate(SCHEMA, TREE.attribute, WHOLE, MOVED_TO, (LeafEntry(MOVED_TO, 5),)), STRANGER)
    assert plugin.rendezvous.decide(TREE, WHOLE, None, vouched=False) == Elsewhere((0b10, 0b11), vouched=True)
    host.deliver(CellAnswer(last_question(host).nonce, CellState.LEAF), peer(3))
    assert host.routed[-1][1] == CellOrder(SCHEMA, TREE.attribute, MOVED_TO, OrderKind.RETIRE)


def test_an_alternate_becomes_a_leaf_only_if_its_home_says_that_it_was_moved() -> None:
    host, plugin = node()
    order = CellOrder(SCHEMA, TREE.attribute, MOVED_TO, OrderKind.BE_LEAF)
    for state, becomes in ((CellState.INNER, False), (CellState.LEAF, False), (CellState.MOVED, True)):
        host.deliver(order, STRANGER)
        question = last_question(host)
        assert question.cell == WHOLE
        host.deliver(CellAnswer(question.nonce, state), peer(3))
        write(host)
        assert (plugin.rendezvous.decide(TREE, MOVED_TO, None, vouched=False) == Here()) is becomes


def test_reports_to_an_alternate_are_nothing_to_it_as_it_has_no_parts() -> None:
    host, plugin = node()
    host.deliver(CellOrder(SCHEMA, TREE.attribute, MOVED_TO, OrderKind.BE_LEAF), STRANGER)
    host.deliver(CellAnswer(last_question(host).nonce, CellState.MOVED), peer(3))
    write(host)
    asked = len(routed(host, CellQuestion))
    host.deliver(LeafUpdate(SCHEMA, TREE.attribute, MOVED_TO, 0b10, (LeafEntry(0b10, 5),)), STRANGER)
    assert len(routed(host, CellQuestion)) == asked
    assert plugin.rendezvous.decide(TREE, MOVED_TO, None, vouched=False) == Here()


@pytest.mark.parametrize(
    ("cell", "state", "is_allowed"),
    [
        (MOVED_TO, CellState.LEAF, True),
        (MOVED_TO, CellState.INNER, False),
        (MOVED_TO, CellState.MOVED, False),
        (WHOLE, CellState.MOVED, True),
        ((1 << LEVEL_LIMIT) + 5, CellState.INNER, False),
    ],
)
def test_only_a_cell_that_can_have_parts_is_written_to_have_some(cell: int, state: CellState, is_allowed: bool) -> None:
    host, plugin = node()
    place = CellAddress(TREE, cell)
    value = state_record(place, state, 1)
    assert plugin.rendezvous.record_allowed(place.key, STATE_ITEM, value, host.id) is is_allowed


def test_a_split_that_relies_on_nothing_yet_gives_way_to_a_leaf_that_there_is_elsewhere() -> None:
    """Events of those who know that leaf go there; what is new goes to a cell that took itself for the leaf."""
    host, plugin = installed()
    plugin.rendezvous.growth.split(plugin.rendezvous.forest.cells[CellAddress(TREE, WHOLE)])
    assert {message.cell for message in routed(host, TransferSub) if isinstance(message, TransferSub)} == {0b10}
    host.deliver(LeafUpdate(SCHEMA, TREE.attribute, WHOLE, MOVED_TO, (LeafEntry(MOVED_TO, 5),)), STRANGER)
    assert last_question(host).cell == MOVED_TO
    host.deliver(CellAnswer(last_question(host).nonce, CellState.LEAF), peer(3))
    copies = routed(host, TransferSub)[-1]
    assert isinstance(copies, TransferSub) and copies.cell == MOVED_TO
    asked = len(routed(host, CellQuestion))
    host.deliver(LeafUpdate(SCHEMA, TREE.attribute, WHOLE, MOVED_TO, (LeafEntry(MOVED_TO, 5),)), STRANGER)
    assert len(routed(host, CellQuestion)) == asked, "it is on its way there already"
