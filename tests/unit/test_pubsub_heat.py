"""Adaptive load balancing: when a node asks its neighbours what they send, and when it has a leaf split."""

from __future__ import annotations

import math
from typing import Any

import pytest

from peerd.api import RecordOutcome, RecordResult
from peerd.testing.host import FakeHost, Request, peer
from protocols.pubsub.cells import SIDE, WHOLE
from protocols.pubsub.config import PubSubConfig
from protocols.pubsub.leaf_table import LeafTable
from protocols.pubsub.messages import CellState, InsertSub, LeafEntry, LoadAnswer, LoadQuestion, SubObject
from protocols.pubsub.names import key_of
from protocols.pubsub.tree.cell_node import CellNode
from protocols.pubsub.tree.heat import ANSWERS_MIN, HOT_PIECES_MIN, MOVED_SHARE, OWN_SHARE
from protocols.pubsub.tree.meter import EVENT_BYTES, FILTER_BYTES, MESSAGE_BYTES, METER_S, Meter
from protocols.pubsub.tree.storage import CellAddress
from tests.support.pubsub_tree import SCHEMA, TREE, TreePlugin

OPPOSITE = (key_of(TREE, WHOLE) + (1 << 127)) % (1 << 128)
NEIGHBOURS = tuple(peer(OPPOSITE + number) for number in range(6))
"""None of them is the root of the tree: that is this node."""
EVENTS, COPIES, SIZE = 60, 5, 1000
LOOK_S = PubSubConfig().hot_look


def leaf(pieces: int = 2 * HOT_PIECES_MIN, **settings: Any) -> tuple[FakeHost, TreePlugin]:
    """A node that is the whole tree, has these neighbours, and is not nearly full."""
    plugin = TreePlugin(PubSubConfig.model_validate({"hot_rate": "1KiB", **settings}))
    host = FakeHost(1, plugin)
    host.neighbours = NEIGHBOURS
    for number in range(pieces):
        sub = SubObject(peer(7), number, 0, 1, TREE.attribute, number * SIDE // 100, SIDE // 2, "x")
        host.deliver(InsertSub(SCHEMA, sub, WHOLE, 600), peer(7))
    for asked in host.asked:
        if asked.what == "records.put":
            asked.arguments["on_result"](RecordResult(RecordOutcome.STORED, copies=3))
    return host, plugin


def cell(plugin: TreePlugin) -> CellNode:
    return plugin.keeper.forest.cells[CellAddress(TREE, WHOLE)]


def events_come(plugin: TreePlugin, copies: int = COPIES) -> None:
    """Events that go to so many nodes each; with the usual number together some 5,300 bytes a second."""
    for _ in range(EVENTS):
        plugin.keeper.note_events(TREE, WHOLE, 1)
        plugin.keeper.note_deliveries(TREE, WHOLE, copies, copies, SIZE)


def weight(copies: int) -> int:
    """What these events weigh."""
    return EVENTS * (EVENT_BYTES + copies * (SIZE + MESSAGE_BYTES + FILTER_BYTES))


def questions(host: FakeHost) -> list[Request]:
    """What the next look asks of the neighbours."""
    host.requests.clear()
    host.fire("tree_tick")
    return [request for request in host.requests if isinstance(request.message, LoadQuestion)]


def answer(asked: list[Request], rates: list[int]) -> None:
    """The neighbours send so many bytes a second; those for whom there is no number are silent."""
    for request, rate in zip(asked, rates, strict=False):
        request.on_reply(LoadAnswer(rate), request.peer)
    for request in asked[len(rates) :]:
        request.on_timeout()


def test_a_leaf_that_is_not_full_is_split_when_its_node_sends_much_more_than_others() -> None:
    host, plugin = leaf()
    events_come(plugin)
    asked = questions(host)
    assert [request.peer for request in asked] == list(NEIGHBOURS)
    assert cell(plugin).split is None, "nobody has answered yet"
    answer(asked, [500] * 6)
    assert cell(plugin).split is not None and cell(plugin).hot_load > 0


@pytest.mark.parametrize(
    ("rates", "why"),
    [
        ([4000] * 6, "they send nearly as much"),
        ([500] * (ANSWERS_MIN - 1), "too few have answered"),
        ([500] * 3 + [1 << 31] * 3, "half of them claim that they send more"),
    ],
)
def test_nothing_is_split_otherwise(rates: list[int], why: str) -> None:
    host, plugin = leaf()
    events_come(plugin)
    answer(questions(host), rates)
    assert cell(plugin).split is None, why


def test_one_neighbour_that_claims_too_much_does_not_stop_it() -> None:
    host, plugin = leaf()
    events_come(plugin)
    answer(questions(host), [500] * 5 + [(1 << 32) - 1])
    assert cell(plugin).split is not None


@pytest.mark.parametrize(
    ("pieces", "copies", "settings"),
    [
        (8, 5, {"balancing": "static"}),
        (8, 5, {"hot_rate": "64KiB"}),
        (8, 1, {}),
        (HOT_PIECES_MIN - 1, 5, {}),
        (8, 5, {"level_max": 0, "probe_level_min": 0, "probe_level_max": 0}),
    ],
    ids=["static", "calm", "one copy an event", "few pieces", "deepest"],
)
def test_the_neighbours_are_asked_only_where_a_split_can_help(
    pieces: int, copies: int, settings: dict[str, Any]
) -> None:
    host, plugin = leaf(pieces, **settings)
    events_come(plugin, copies)
    assert questions(host) == []


def test_they_are_asked_once_in_a_while() -> None:
    host, plugin = leaf()
    events_come(plugin)
    answer(questions(host), [4000] * 6)
    begun = host.time_s
    while True:
        events_come(plugin)
        if questions(host):
            break
        assert host.time_s < begun + LOOK_S
    assert host.time_s >= begun + LOOK_S


def test_what_goes_away_with_a_leaf_does_not_count_against_the_next_one() -> None:
    host, plugin = leaf()
    events_come(plugin)
    plugin.keeper.heat.note_sent(10 * SIZE)
    answer(questions(host), [500] * 6)
    left = 10 * SIZE / METER_S * math.exp(-host.time_s / METER_S)
    assert host.deliver(LoadQuestion(), NEIGHBOURS[0]) == LoadAnswer(round(left))


def test_work_counts_as_bytes_do_where_nothing_is_sent_at_all() -> None:
    host, plugin = leaf()
    for _ in range(EVENTS):
        plugin.keeper.note_events(TREE, WHOLE, 1)
        plugin.keeper.note_deliveries(TREE, WHOLE, filters=500, copies=0, size=SIZE)
    work = EVENTS * (EVENT_BYTES + 500 * FILTER_BYTES)
    assert host.deliver(LoadQuestion(), NEIGHBOURS[0]) == LoadAnswer(round(work / METER_S))
    plugin.keeper.heat.note_sent(2 * work)
    answer(questions(host), [100] * 6)
    assert cell(plugin).split is not None, "it is moved away from a node that has too much else to do"


@pytest.mark.parametrize(
    ("others", "mean", "moves"),
    [(1.1, 100, True), (0.9, 100, False), (1.1, 600, False)],
    ids=["smaller part", "larger part", "not so hot"],
)
def test_a_leaf_with_one_copy_an_event_is_moved_where_it_is_the_smaller_part_of_a_large_load(
    others: float, mean: int, moves: bool
) -> None:
    host, plugin = leaf()
    events_come(plugin, copies=1)
    plugin.keeper.heat.note_sent(round(others * (1 - MOVED_SHARE) / MOVED_SHARE * weight(copies=1)))
    answer(questions(host), [mean] * 6)
    assert (cell(plugin).split is not None) == moves


def own_events(host: FakeHost, plugin: TreePlugin, sent: int, spared: int = 0) -> None:
    """Events of this node itself have set out."""
    heat = plugin.keeper.heat
    heat.note_sent(sent)
    heat.handing_over.note_own(sent)
    heat.handing_over.note_spared(spared)


def two_looks(host: FakeHost, plugin: TreePlugin, sent: int, spared: int = 0) -> None:
    """It looks at its neighbours twice, and has published much before each."""
    for _ in range(2):
        host.time_s += LOOK_S
        own_events(host, plugin, sent, spared)
        answer(questions(host), [500] * 6)


def test_a_node_that_publishes_much_more_than_others_send_hands_its_events_over() -> None:
    host, plugin = leaf()
    own_events(host, plugin, 300 * SIZE)
    answer(questions(host), [500] * 6)
    assert not plugin.keeper.heat.handing_over.is_on, "one event may do that"
    host.time_s += LOOK_S
    own_events(host, plugin, 300 * SIZE)
    asked = questions(host)
    assert not plugin.keeper.heat.handing_over.is_on, "nobody has answered yet"
    answer(asked, [500] * 6)
    assert plugin.keeper.heat.handing_over.is_on
    assert cell(plugin).split is None, "one thing at a time"


@pytest.mark.parametrize(
    ("own", "others", "rates"),
    [
        (300, 0, [4000] * 6),
        (300, 0, [500] * (ANSWERS_MIN - 1)),
        (300 * OWN_SHARE * 0.9, 300 * (1 - OWN_SHARE * 0.9), [500] * 6),
    ],
    ids=["they send nearly as much", "too few have answered", "its own events are a small part"],
)
def test_nothing_is_handed_over_otherwise(own: float, others: float, rates: list[int]) -> None:
    host, plugin = leaf()
    for _ in range(2):
        host.time_s += LOOK_S
        own_events(host, plugin, round(own * SIZE))
        plugin.keeper.heat.note_sent(round(others * SIZE))
        answer(questions(host), rates)
    assert not plugin.keeper.heat.handing_over.is_on


@pytest.mark.parametrize(("share", "goes_on"), [(0.6, True), (0.9, False)], ids=["a little less", "cool"])
def test_handing_over_goes_on_until_others_send_nearly_as_much(share: float, goes_on: bool) -> None:
    """It begins at ``hot_share`` = 2 times the mean and ends at 1.5 times. What helpers send counts as its load."""
    host, plugin = leaf()
    two_looks(host, plugin, 30 * SIZE, 270 * SIZE)
    assert plugin.keeper.heat.handing_over.is_on
    host.time_s += LOOK_S
    own_events(host, plugin, 30 * SIZE, 270 * SIZE)
    answer(questions(host), [round(share * plugin.keeper.heat.load(host.time_s))] * 6)
    assert plugin.keeper.heat.handing_over.is_on == goes_on


def test_handing_over_ends_when_its_own_events_are_a_small_part_of_what_it_sends() -> None:
    host, plugin = leaf()
    two_looks(host, plugin, 300 * SIZE)
    assert plugin.keeper.heat.handing_over.is_on
    host.time_s += LOOK_S
    plugin.keeper.heat.note_sent(3000 * SIZE)
    questions(host)
    assert not plugin.keeper.heat.handing_over.is_on


def test_handing_over_ends_without_questions_when_nothing_is_published_any_more() -> None:
    host, plugin = leaf()
    two_looks(host, plugin, 300 * SIZE)
    assert plugin.keeper.heat.handing_over.is_on
    host.time_s += 10 * LOOK_S
    assert questions(host) == []
    assert not plugin.keeper.heat.handing_over.is_on


@pytest.mark.parametrize(("load", "merges"), [(51, False), (50, True), (0, True)])
def test_what_was_split_because_of_its_load_is_merged_when_the_load_has_halved(load: int, merges: bool) -> None:
    host, plugin = leaf(0, merge_share=1.0, merge_after="1s")
    keeper = plugin.keeper
    node = keeper.forest.find(CellAddress(TREE, WHOLE))
    assert node is not None
    keeper.forest.register(node)
    keeper.forest.became(node, CellState.INNER)
    node.hot_load = 100
    node.table = LeafTable(WHOLE, 16)
    node.table.replace(WHOLE, [LeafEntry(0b10, 4, load), LeafEntry(0b11, 4, 0)], host.time_s)
    for _ in range(2):
        host.fire("tree_tick")
    assert (node.merge is not None) == merges


def test_a_meter_forgets() -> None:
    meter, other = Meter(), Meter()
    meter.add(600, 0.0)
    other.add(60, 0.0)
    assert meter.rate(0.0) == pytest.approx(10.0)
    assert meter.rate(METER_S) == pytest.approx(10.0 / 2.71828, rel=1e-3)
    meter.take_out(other, 0.0)
    assert meter.rate(0.0) == pytest.approx(9.0)
    other.add(6000, 0.0)
    meter.take_out(other, 0.0)
    assert meter.rate(0.0) == 0.0
