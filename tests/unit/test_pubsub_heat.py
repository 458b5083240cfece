"""Adaptive load balancing: when a node asks its neighbours what they send, and when it has a leaf split or moved."""

from __future__ import annotations

import math
from typing import Any

import pytest

from peerd.api import LookupResult, RecordOutcome, RecordResult
from peerd.errors import Unavailable
from peerd.messages import PeerRef
from peerd.testing.host import FakeHost, Request, peer
from protocols.pubsub.config import PubSubConfig
from protocols.pubsub.messages import (
    RATE_MAX,
    CellState,
    InsertSub,
    LeafEntry,
    LeafUpdate,
    LoadAnswer,
    LoadQuestion,
    SubObject,
)
from protocols.pubsub.names import key_of
from protocols.pubsub.tree.cell_node import CellNode
from protocols.pubsub.tree.cells import SIDE, WHOLE, alternate
from protocols.pubsub.tree.growth import GROWN, REPORTED_AFTER
from protocols.pubsub.tree.heat import ANSWERS_MIN, DELIVERIES_MIN, FAIR_SHARE, HOT_PIECES_MIN, OWN_SHARE
from protocols.pubsub.tree.leaf_table import LeafTable
from protocols.pubsub.tree.loans import LEASE_S
from protocols.pubsub.tree.merging import Merge
from protocols.pubsub.tree.messages import HELPERS_MAX
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
    return plugin.rendezvous.forest.cells[CellAddress(TREE, WHOLE)]


def events_come(plugin: TreePlugin, copies: int = COPIES) -> None:
    """Events that go to so many nodes each; with the usual number together some 5,300 bytes a second."""
    for _ in range(EVENTS):
        plugin.rendezvous.note_events(TREE, WHOLE, 1)
        plugin.rendezvous.note_deliveries(TREE, WHOLE, copies, copies, copies * SIZE)


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
    ],
    ids=["static", "calm", "one copy an event"],
)
def test_the_neighbours_are_asked_only_by_a_busy_node(pieces: int, copies: int, settings: dict[str, Any]) -> None:
    host, plugin = leaf(pieces, **settings)
    events_come(plugin, copies)
    assert questions(host) == []


DEEPEST: dict[str, Any] = {"level_max": 0, "probe_level_min": 0, "probe_level_max": 0}


@pytest.mark.parametrize(
    ("pieces", "settings"), [(HOT_PIECES_MIN - 1, {}), (8, DEEPEST)], ids=["few pieces", "deepest"]
)
def test_a_leaf_that_cannot_be_split_is_shared_with_the_least_busy_neighbour(
    pieces: int, settings: dict[str, Any]
) -> None:
    host, plugin = leaf(pieces, **settings)
    events_come(plugin)
    answer(questions(host), [500, 400, 300, 200, 400, 500])
    loans = cell(plugin).loans
    assert cell(plugin).split is None and loans is not None and list(loans.of) == [NEIGHBOURS[3].id]
    half = round(cell(plugin).sent.rate(host.time_s) / 2)
    told = [request.message for request in host.requests if request.peer == NEIGHBOURS[3]]
    assert LoadQuestion(brings=half) in told, "so that no other has it help before this one shows in what it sends"


def test_a_leaf_is_shared_with_nobody_who_would_be_as_busy_as_its_root_is() -> None:
    host, plugin = leaf(**DEEPEST)
    events_come(plugin)
    load = plugin.rendezvous.heat.load(host.time_s)
    answer(questions(host), [round(0.45 * load)] * 6)
    assert cell(plugin).loans is None


def test_a_leaf_that_stays_hot_gets_more_helpers_up_to_a_limit() -> None:
    host, plugin = leaf(**DEEPEST)
    host.neighbours = tuple(peer(OPPOSITE + number) for number in range(2 * HELPERS_MAX))
    for count in range(1, HELPERS_MAX + 2):
        while True:  # the leaf stays as busy as it was, and its helpers go on asking
            events_come(plugin)
            for loan in () if (loans := cell(plugin).loans) is None else loans.serving(host.time_s):
                loan.until = host.time_s + LEASE_S
            asked = questions(host)
            if asked or (count > HELPERS_MAX and host.time_s > 20 * LOOK_S):
                break
        answer(asked, [100] * len(asked))
        loans = cell(plugin).loans
        assert loans is not None and len(loans.of) == min(count, HELPERS_MAX)
        for loan in loans.of.values():
            loan.until = host.time_s + LEASE_S


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
    plugin.rendezvous.heat.note_sent(10 * SIZE)
    answer(questions(host), [500] * 6)
    left = 10 * SIZE / METER_S * math.exp(-host.time_s / METER_S)
    assert host.deliver(LoadQuestion(), NEIGHBOURS[0]) == LoadAnswer(round(left))


def test_work_counts_as_bytes_do_where_nothing_is_sent_at_all() -> None:
    host, plugin = leaf()
    for _ in range(EVENTS):
        plugin.rendezvous.note_events(TREE, WHOLE, 1)
        plugin.rendezvous.note_deliveries(TREE, WHOLE, filters=500, copies=0, size=0)
    work = EVENTS * (EVENT_BYTES + 500 * FILTER_BYTES)
    assert host.deliver(LoadQuestion(), NEIGHBOURS[0]) == LoadAnswer(round(work / METER_S))
    plugin.rendezvous.heat.note_sent(2 * work)
    answer(questions(host), [100] * 6)
    look_elsewhere(host, 50)
    assert cell(plugin).split is not None, "it is moved away from a node that has too much else to do"


@pytest.mark.parametrize("copies", [COPIES, 1], ids=["to be split", "to be moved"])
def test_a_leaf_whose_parts_have_not_retired_stays_what_it_is(copies: int) -> None:
    """It was moved back to an alternate that was still giving its pieces, and each waited for the other for ever:
    `tests.sim.test_pubsub_moves`, seed 18 of dying roots."""
    host, plugin = leaf()
    events_come(plugin, copies)
    plugin.rendezvous.heat.note_sent(2 * weight(copies))
    cell(plugin).merge = Merge((alternate(WHOLE),), 3, host.time_s)
    answer(questions(host), [100] * 6)
    assert cell(plugin).split is None and not [asked for asked in host.asked if asked.what == "lookup"]


ELSEWHERE = peer(NEIGHBOURS[0].id + 99)


def look_elsewhere(host: FakeHost, rate: int | None, where: PeerRef | None = ELSEWHERE, coming: int = 0) -> None:
    """The other place of the leaf is looked up, and the node there says what it sends, and what more leaves will bring
    that are being moved there; ``None``: nothing."""
    (asked,) = [asked for asked in host.asked if asked.what == "lookup"]
    host.asked.remove(asked)
    assert asked.arguments["key"] == CellAddress(TREE, alternate(WHOLE)).key
    host.requests.clear()
    asked.arguments["on_result"](LookupResult(asked.arguments["key"], where, (), 0.1))
    for request in list(host.requests):
        if rate is None:
            request.on_timeout()
        else:
            request.on_reply(LoadAnswer(rate, coming), request.peer)


def test_a_node_says_what_leaves_will_bring_that_are_being_moved_to_it_until_that_shows_in_what_it_sends() -> None:
    host, _ = leaf()
    assert host.deliver(LoadQuestion(brings=3000), peer(9)) == LoadAnswer(0, coming=3000)
    host.time_s += METER_S
    assert host.deliver(LoadQuestion(), peer(9)) == LoadAnswer(0, coming=round(3000 / math.e))
    host.deliver(LoadQuestion(brings=RATE_MAX), peer(9))
    host.deliver(LoadQuestion(brings=RATE_MAX), peer(9))
    assert host.deliver(LoadQuestion(), peer(9)) == LoadAnswer(0, coming=RATE_MAX), "whatever somebody claims"


def one_copy_each(host: FakeHost, plugin: TreePlugin, mean: int = 100) -> None:
    """A leaf with one copy an event, and twice as much that its node sends besides."""
    events_come(plugin, copies=1)
    plugin.rendezvous.heat.note_sent(2 * weight(copies=1))
    answer(questions(host), [mean] * 6)


def test_a_leaf_with_one_copy_an_event_is_moved_to_its_alternate_where_that_is_less_busy() -> None:
    host, plugin = leaf()
    one_copy_each(host, plugin)
    assert cell(plugin).split is None, "nobody knows yet who has the other place"
    look_elsewhere(host, 50)
    split = cell(plugin).split
    assert split is not None and split.parts == (alternate(WHOLE),)
    assert cell(plugin).hot_load > 0 and cell(plugin).moved_subs == 2 * HOT_PIECES_MIN
    told = host.requests[-1]
    assert (told.peer, told.message) == (ELSEWHERE, LoadQuestion(round(cell(plugin).sent.rate(host.time_s))))


def test_no_leaf_is_moved_where_another_is_being_moved_to() -> None:
    host, plugin = leaf()
    one_copy_each(host, plugin)
    look_elsewhere(host, 50, coming=1 << 20)
    assert cell(plugin).split is None


@pytest.mark.parametrize(
    ("rate", "moves"),
    [(FAIR_SHARE - 1 / 3 - 0.01, True), (FAIR_SHARE - 1 / 3 + 0.01, False), (None, False)],
    ids=["less busy", "as busy with the leaf", "silent"],
)
def test_the_other_place_has_to_be_less_busy_with_the_leaf_than_this_one_is(rate: float | None, moves: bool) -> None:
    host, plugin = leaf()
    one_copy_each(host, plugin)
    sent = plugin.rendezvous.heat.load(host.time_s)
    look_elsewhere(host, None if rate is None else round(rate * sent))
    assert (cell(plugin).split is not None) == moves


@pytest.mark.parametrize("is_own", [True, False], ids=["this node has both places", "nobody was found"])
def test_a_leaf_stays_where_there_is_no_other_place(is_own: bool) -> None:
    host, plugin = leaf()
    one_copy_each(host, plugin)
    look_elsewhere(host, None, host.peer if is_own else None)
    assert cell(plugin).split is None and host.requests == []


def test_a_leaf_with_no_other_place_is_shared_if_it_has_deliveries_enough() -> None:
    host, plugin = leaf()
    for _ in range(math.ceil(DELIVERIES_MIN) + 1):
        events_come(plugin, copies=1)
    plugin.rendezvous.heat.note_sent(2 * math.ceil(DELIVERIES_MIN) * weight(copies=1))
    answer(questions(host), [100] * 6)
    look_elsewhere(host, None, host.peer)
    assert cell(plugin).split is None and cell(plugin).loans is not None


def test_other_places_are_not_looked_for_by_a_node_that_is_not_hot() -> None:
    host, plugin = leaf()
    one_copy_each(host, plugin, mean=1500)
    assert not [asked for asked in host.asked if asked.what == "lookup"]


def test_an_overlay_that_has_too_much_to_look_up_leaves_the_leaf_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    host, plugin = leaf()

    def busy(*arguments: object) -> None:
        raise Unavailable("too many lookups")

    monkeypatch.setattr(host, "lookup", busy)
    one_copy_each(host, plugin)
    assert cell(plugin).split is None


@pytest.mark.parametrize(
    ("load", "subs", "returns"),
    [(51, 4, False), (50, 4, True), (51, 9, True)],
    ids=["warm", "cool", "grown"],
)
def test_a_leaf_that_was_moved_comes_home_when_its_load_has_halved_or_it_has_grown(
    load: int, subs: int, returns: bool
) -> None:
    host, plugin = leaf(0, merge_after="1s", update_interval="60s")
    rendezvous = plugin.rendezvous
    node = rendezvous.forest.find(CellAddress(TREE, WHOLE))
    assert node is not None
    rendezvous.forest.register(node)
    rendezvous.forest.became(node, CellState.MOVED)
    node.hot_load, node.moved_subs = 100, 4
    host.deliver(moved_report(load, subs), ELSEWHERE)
    host.fire("tree_tick")
    has_begun = node.merge is not None
    assert has_begun == (subs > GROWN * node.moved_subs), "it has not had the time to report its load"
    host.time_s += 1 + REPORTED_AFTER * 60
    host.fire("tree_tick")
    assert (has_begun or node.merge is not None) == returns


def moved_report(load: int, subs: int) -> LeafUpdate:
    return LeafUpdate(SCHEMA, 1, WHOLE, alternate(WHOLE), (LeafEntry(alternate(WHOLE), subs, load),))


def own_events(host: FakeHost, plugin: TreePlugin, sent: int, spared: int = 0) -> None:
    """Events of this node itself have set out."""
    heat = plugin.rendezvous.heat
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
    assert not plugin.rendezvous.heat.handing_over.is_on, "one event may do that"
    host.time_s += LOOK_S
    own_events(host, plugin, 300 * SIZE)
    asked = questions(host)
    assert not plugin.rendezvous.heat.handing_over.is_on, "nobody has answered yet"
    answer(asked, [500] * 6)
    assert plugin.rendezvous.heat.handing_over.is_on
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
        plugin.rendezvous.heat.note_sent(round(others * SIZE))
        answer(questions(host), rates)
    assert not plugin.rendezvous.heat.handing_over.is_on


@pytest.mark.parametrize(("share", "goes_on"), [(0.6, True), (0.9, False)], ids=["a little less", "cool"])
def test_handing_over_goes_on_until_others_send_nearly_as_much(share: float, goes_on: bool) -> None:
    """It begins at ``hot_share`` = 2 times the mean and ends at 1.5 times. What helpers send counts as its load."""
    host, plugin = leaf()
    two_looks(host, plugin, 30 * SIZE, 270 * SIZE)
    assert plugin.rendezvous.heat.handing_over.is_on
    host.time_s += LOOK_S
    own_events(host, plugin, 30 * SIZE, 270 * SIZE)
    answer(questions(host), [round(share * plugin.rendezvous.heat.load(host.time_s))] * 6)
    assert plugin.rendezvous.heat.handing_over.is_on == goes_on


def test_handing_over_ends_when_its_own_events_are_a_small_part_of_what_it_sends() -> None:
    host, plugin = leaf()
    two_looks(host, plugin, 300 * SIZE)
    assert plugin.rendezvous.heat.handing_over.is_on
    host.time_s += LOOK_S
    plugin.rendezvous.heat.note_sent(3000 * SIZE)
    questions(host)
    assert not plugin.rendezvous.heat.handing_over.is_on


def test_handing_over_ends_without_questions_when_nothing_is_published_any_more() -> None:
    host, plugin = leaf()
    two_looks(host, plugin, 300 * SIZE)
    assert plugin.rendezvous.heat.handing_over.is_on
    host.time_s += 10 * LOOK_S
    assert questions(host) == []
    assert not plugin.rendezvous.heat.handing_over.is_on


@pytest.mark.parametrize(("load", "merges"), [(51, False), (50, True), (0, True)])
def test_what_was_split_because_of_its_load_is_merged_when_the_load_has_halved(load: int, merges: bool) -> None:
    host, plugin = leaf(0, merge_share=1.0, merge_after="1s")
    rendezvous = plugin.rendezvous
    node = rendezvous.forest.find(CellAddress(TREE, WHOLE))
    assert node is not None
    rendezvous.forest.register(node)
    rendezvous.forest.became(node, CellState.INNER)
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
