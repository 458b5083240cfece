"""Reports of leaves that come before it is known what the cell above them is: transcripts of one node."""

from __future__ import annotations

import pytest

from peerd.api import RecordOutcome, RecordResult
from peerd.testing.host import FakeHost, peer
from protocols.pubsub.config import PubSubConfig
from protocols.pubsub.messages import CellAnswer, CellOrder, CellQuestion, CellState, LeafEntry, LeafUpdate, OrderKind
from protocols.pubsub.tree import reports
from protocols.pubsub.tree.cell_node import CellNode
from protocols.pubsub.tree.cells import WHOLE
from protocols.pubsub.tree.leaf_table import LeafTable
from protocols.pubsub.tree.storage import CellAddress
from tests.support.pubsub_tree import SCHEMA, TREE, TreePlugin

LEAF = peer(9)
CELL, LOWER, UPPER = 0b10, 0b100, 0b101


def catching_up() -> tuple[FakeHost, TreePlugin]:
    """A node that has just become the root of cells, and has not compared its records with its neighbours."""
    plugin = TreePlugin(PubSubConfig())
    host = FakeHost(1, plugin)
    host.records.has_caught_up = False
    return host, plugin


def caught_up(host: FakeHost, plugin: TreePlugin) -> list[int]:
    """Now it has; returns the cells that it asks whether they are leaves."""
    host.records.has_caught_up = True
    plugin.records_settled()
    return [message.cell for _, message in host.routed if isinstance(message, CellQuestion)]


def report(below: int, *leaves: int, cell: int = CELL) -> LeafUpdate:
    return LeafUpdate(SCHEMA, TREE.attribute, cell, below, tuple(LeafEntry(leaf, 5) for leaf in leaves))


def test_a_report_that_comes_while_the_next_root_catches_up_is_taken_in_when_it_has() -> None:
    """All that knew an inner cell have died at once: only this report tells that it is no empty leaf."""
    host, plugin = catching_up()
    host.deliver(report(UPPER, UPPER), LEAF)
    assert host.routed == [], "nobody knows yet what there is under the key"
    assert caught_up(host, plugin) == [UPPER]
    question = next(message for _, message in host.routed if isinstance(message, CellQuestion))
    host.deliver(CellAnswer(question.nonce, CellState.LEAF), LEAF)
    (put,) = [asked for asked in host.asked if asked.what == "records.put"]
    assert put.arguments["key"] == CellAddress(TREE, CELL).key, "the cell is to be an inner node"
    assert caught_up(host, plugin) == [UPPER], "it is taken in once"


def test_a_report_for_a_cell_that_turns_out_to_be_another_nodes_is_dropped() -> None:
    host, plugin = catching_up()
    host.deliver(report(UPPER, UPPER), LEAF)
    host.neighbours = (peer(CellAddress(TREE, CELL).key),)
    assert caught_up(host, plugin) == []
    host.neighbours = ()
    assert caught_up(host, plugin) == []


@pytest.mark.parametrize("does_tick", [True, False])
def test_a_report_that_should_have_been_repeated_meanwhile_is_not_believed(does_tick: bool) -> None:
    host, plugin = catching_up()
    host.deliver(report(LOWER, LOWER), LEAF)
    host.time_s += plugin.config.update_interval / 2 + 1
    host.deliver(report(UPPER, UPPER), LEAF)
    host.time_s += plugin.config.update_interval / 2
    if does_tick:
        host.fire("tree_tick")
    assert caught_up(host, plugin) == [UPPER]


def test_where_too_many_reports_wait_the_oldest_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reports, "UNSETTLED_MAX", 2)
    host, plugin = catching_up()
    for cell in (0b100, 0b101, 0b110):
        host.deliver(report(cell << 1, cell << 1, cell=cell), LEAF)
    assert caught_up(host, plugin) == [0b1010, 0b1100]


@pytest.mark.parametrize(
    ("cells", "kept"), [((0b100, 0b101, 0b101), [0b1000, 0b1010]), ((0b100, 0b101, 0b100, 0b110), [0b1000, 0b1100])]
)
def test_a_half_that_reports_again_takes_no_more_room_and_is_the_newest(
    monkeypatch: pytest.MonkeyPatch, cells: tuple[int, ...], kept: list[int]
) -> None:
    monkeypatch.setattr(reports, "UNSETTLED_MAX", 2)
    host, plugin = catching_up()
    for cell in cells:
        host.deliver(report(cell << 1, cell << 1, cell=cell), LEAF)
    assert caught_up(host, plugin) == kept


def test_that_a_half_has_no_leaf_any_more_takes_back_what_it_said_before() -> None:
    host, plugin = catching_up()
    host.deliver(report(UPPER, UPPER), LEAF)
    host.deliver(report(UPPER), LEAF)
    assert caught_up(host, plugin) == []


def test_that_one_part_of_a_half_has_no_leaf_does_not_take_back_that_the_half_has_some() -> None:
    host, plugin = catching_up()
    host.deliver(report(UPPER, UPPER << 1), LEAF)
    host.deliver(report(UPPER << 1 | 1), LEAF)
    assert caught_up(host, plugin) == [UPPER]


def test_nor_where_the_report_waits_for_a_cell_to_be_written() -> None:
    plugin = TreePlugin(PubSubConfig())
    host = FakeHost(1, plugin)
    host.deliver(CellOrder(SCHEMA, TREE.attribute, CELL, OrderKind.BE_LEAF), LEAF)
    (asked,) = [message for _, message in host.routed if isinstance(message, CellQuestion)]
    host.deliver(CellAnswer(asked.nonce, CellState.INNER), LEAF)
    host.deliver(report(UPPER, UPPER << 1), LEAF)
    host.deliver(report(UPPER << 1 | 1), LEAF)
    assert plugin.rendezvous.forest.find(CellAddress(TREE, CELL)) is not None
    (put,) = [asked for asked in host.asked if asked.what == "records.put"]
    put.arguments["on_result"](RecordResult(RecordOutcome.STORED, copies=3))
    assert [message.cell for _, message in host.routed if isinstance(message, CellQuestion)] == [WHOLE, UPPER]


def inner() -> tuple[FakeHost, TreePlugin, CellNode]:
    """A node whose whole cell is an inner one."""
    plugin = TreePlugin(PubSubConfig())
    host = FakeHost(1, plugin)
    node = plugin.rendezvous.forest.find(CellAddress(TREE, WHOLE))
    assert node is not None
    plugin.rendezvous.forest.register(node)
    plugin.rendezvous.forest.became(node, CellState.INNER)
    return host, plugin, node


def test_leaves_deeper_than_a_tree_can_be_are_not_believed() -> None:
    host, plugin, node = inner()
    deepest = CELL << plugin.config.level_max - 1
    host.deliver(report(CELL, deepest, deepest + 2 << 1, cell=WHOLE), LEAF)
    assert node.table is not None and [entry.cell for entry in node.table.entries()] == [deepest]


def test_only_a_full_answer_has_the_leaves_worked_out(monkeypatch: pytest.MonkeyPatch) -> None:
    host, _, _ = inner()
    host.deliver(report(CELL, LOWER, UPPER, cell=WHOLE), LEAF)
    host.deliver(CellQuestion(SCHEMA, TREE.attribute, WHOLE, 7, is_brief=False), LEAF)
    full = CellAnswer(7, CellState.INNER, 10, 0, (LeafEntry(LOWER, 5), LeafEntry(UPPER, 5)))
    monkeypatch.delattr(LeafTable, "summary")
    host.deliver(CellQuestion(SCHEMA, TREE.attribute, WHOLE, 8, is_brief=True), LEAF)
    answers = [message for _, message in host.take_sent() if isinstance(message, CellAnswer)]
    assert answers == [full, CellAnswer(8, CellState.INNER, 10, 0)]
