"""Near next hops: spares, expected remaining latency, and the choice among next hops, whatever is said of latencies."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from peerd.ids import RING, NodeId, closeness, closest, digit, shared_prefix_digits
from peerd.messages import PeerRef
from peerd.overlay.leafset import Leaves
from peerd.overlay.outlook import Outlook
from peerd.overlay.routing import Step, next_step, next_steps
from peerd.overlay.spares import SPARES_MAX, SPARES_PER_CELL, Spares
from peerd.overlay.table import RoutingTable

OWN = NodeId(0x1 << 124)
ids = st.one_of(st.integers(0, RING - 1), st.integers(0, 500)).map(NodeId)


def peer(node_id: int, port: int = 7420) -> PeerRef:
    return PeerRef(NodeId(node_id), "10.0.0.1", port)


# Spares


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 600), st.booleans()), max_size=700))
def test_spares_stay_within_their_limits(steps: list[tuple[int, int, bool]]) -> None:
    spares, cells = Spares(), dict[int, int]()
    for cell, node_id, is_added in steps:
        cell = cells.setdefault(node_id, cell)  # an id belongs into one cell
        if is_added:
            spares.add(cell, peer(node_id))
        else:
            spares.remove(cell, NodeId(node_id))
        assert spares.has(cell, NodeId(node_id)) <= is_added
        assert len(list(spares.of_cell(cell))) <= SPARES_PER_CELL
        assert len(spares) == sum(len(list(spares.of_cell(each))) for each in range(41)) <= SPARES_MAX


def test_a_full_cell_loses_its_oldest_spare_and_keeps_new_addresses() -> None:
    spares = Spares()
    for number in range(SPARES_PER_CELL):
        spares.add(3, peer(number))
    spares.add(3, peer(0, port=9))  # spoke again: the newest now
    spares.add(3, peer(99))
    assert not spares.has(3, NodeId(1)) and list(spares.of_cell(3))[-2:] == [peer(0, port=9), peer(99)]


def test_without_any_room_a_spare_of_a_new_cell_is_not_kept() -> None:
    spares = Spares()
    for number in range(SPARES_MAX):
        spares.add(number // SPARES_PER_CELL, peer(number))
    spares.add(1000, peer(5000))
    assert len(spares) == SPARES_MAX and not spares.has(1000, NodeId(5000))
    spares.add(0, peer(6000))
    assert len(spares) == SPARES_MAX and spares.has(0, NodeId(6000))


def test_who_loses_a_cell_is_a_spare_until_it_wins_or_goes() -> None:
    table, rtts = RoutingTable(OWN), {NodeId(0x9 << 124): 0.1, NodeId(0x91 << 120): 0.05}
    far, near = (peer(node_id) for node_id in rtts)
    table.consider(far, rtts.get)
    assert table.consider(near, rtts.get) == (True, far)
    key = NodeId(0x92 << 120)
    assert list(table.next_hops(key)) == [near, far]
    assert table.remove(near.id) == near and list(table.next_hops(key)) == [far]
    table.consider(far, rtts.get)
    assert len(table.spares) == 0 and table.next_hop(key) == far
    table.keep_spare(far)
    table.keep_spare(peer(OWN))
    assert len(table.spares) == 0
    table.keep_spare(near)
    assert table.remove(near.id) is None and len(table.spares) == 0
    table.validate()


# What is left of a way


def test_the_rest_of_a_way_is_the_rows_that_are_left_and_the_last_hop() -> None:
    outlook = Outlook.of(4096.0, [0.1, 0.3], [[0.01, 0.03], [0.05], [0.09]])
    key = NodeId(0x8888 << 112)
    none, one = NodeId(0x4 << 124), NodeId(0x8F << 120)
    assert outlook.rest_s(key, none) == pytest.approx(0.02 + 0.05 + 0.2)
    assert outlook.rest_s(key, one) == pytest.approx(0.05 + 0.2)
    two = NodeId(0x88F << 116)
    assert outlook.rest_s(key, two) == pytest.approx(
        0.2, rel=1e-4
    )  # 16 nodes share two digits: its leaf set has the root


@given(st.floats(1.0, 1e5), ids, ids, ids)
def test_the_nearer_to_the_key_the_less_is_left(size: float, key: NodeId, one: NodeId, other: NodeId) -> None:
    outlook = Outlook.of(size, [0.2], [[0.01], [0.05], [0.09], [0.1], [0.1]])
    near, far = sorted((one, other), key=lambda node_id: closeness(key, node_id))
    assert outlook.rest_s(key, key) == 0.0 <= outlook.rest_s(key, near)
    if shared_prefix_digits(key, near) >= shared_prefix_digits(key, far):
        assert outlook.rest_s(key, near) <= outlook.rest_s(key, far) + 1e-12


def test_without_any_measurement_nothing_is_expected() -> None:
    assert Outlook.of(1.0, (), ()).rest_s(NodeId(5), NodeId(9)) == 0.0


# Next hops


def build(found: set[NodeId]) -> dict[NodeId, tuple[Leaves, RoutingTable]]:
    """A ring whose leaf sets are right, whose tables are full, and where everybody else is a spare."""
    nodes = {}
    for own in sorted(found):
        leaves, table = Leaves(own), RoutingTable(own)
        for other in sorted(found):
            leaves.add(peer(other))
            table.consider(peer(other), lambda _: None)
        nodes[own] = (leaves, table)
    return nodes


@given(st.sets(ids, min_size=1, max_size=80), ids, st.integers(0, 2**32), st.data())
def test_whatever_latencies_are_claimed_every_hop_makes_progress(
    found: set[NodeId], key: NodeId, salt: int, data: st.DataObject
) -> None:
    nodes = build(found)

    def cost_s(at: NodeId) -> float:
        said = hash((salt, at)) % 5  # any order of peers, and some that must not be used
        return float("inf") if said == 0 else float(said)

    current = data.draw(st.sampled_from(sorted(found)))
    visited = [current]
    while True:
        leaves, table = nodes[current]
        step, hop = next_step(key, leaves, table, (), lambda _, other: cost_s(other.id))
        if step is Step.DELIVER:
            break
        assert hop is not None
        if not leaves.covers(key):
            before, after = shared_prefix_digits(key, current), shared_prefix_digits(key, hop.id)
            assert after > before or (after == before and closeness(key, hop.id) < closeness(key, current))
        assert hop.id not in visited
        visited.append(current := hop.id)
    assert current == closest(key, found)


def test_the_quickest_way_is_taken_and_an_excluded_one_is_not() -> None:
    leaves, table = Leaves(OWN), RoutingTable(OWN)
    for step in range(1, 30):
        leaves.add(peer(OWN + step))
        leaves.add(peer(OWN - step))
    entry, spare, other = peer(0x9 << 124), peer(0x91 << 120), peer(0x92 << 120)
    for each in (entry, spare, other):
        table.consider(each, lambda _: None)
    key = NodeId(0x99 << 120)
    assert digit(key, 0) == 9 and not leaves.covers(key)
    costs = {entry.id: 0.3, spare.id: 0.1, other.id: 0.2}

    def hop(*excluded: PeerRef) -> PeerRef | None:
        return next_step(key, leaves, table, {each.id for each in excluded}, lambda _, each: costs[each.id]).peer

    assert next_step(key, leaves, table, ()).peer == entry
    assert hop() == spare
    assert hop(spare) == other
    assert hop(spare, other) == entry
    last = hop(entry, spare, other)  # the rare case: a member that is closer to the key
    assert last is not None and closeness(key, last.id) < closeness(key, OWN)
    costs.update(dict.fromkeys(costs, float("inf")))
    assert hop() == entry, "nothing is known of anybody"


def test_keys_of_one_cell_go_by_the_peer_that_is_quickest_for_all_of_them() -> None:
    leaves, table = Leaves(OWN), RoutingTable(OWN)
    for step in range(1, 30):
        leaves.add(peer(OWN + step))
        leaves.add(peer(OWN - step))
    entry, spare, other = peer(0x9 << 124), peer(0x91 << 120), peer(0x92 << 120)
    for each in (entry, spare, other, peer(0xA << 124)):
        table.consider(each, lambda _: None)
    low, high, elsewhere = NodeId(0x91F << 116), NodeId(0x92F << 116), NodeId(0xAF << 120)
    costs = {(low, spare): 0.1, (low, other): 0.5, (high, spare): 0.4, (high, other): 0.1}

    def cost_s(key: NodeId, each: PeerRef) -> float:
        return costs.get((key, each), 0.31)

    def hops(*keys: NodeId, excluded: set[NodeId] | None = None) -> list[PeerRef | None]:
        return [decision.peer for decision in next_steps(keys, leaves, table, excluded or set(), cost_s)]

    assert hops(low) == [spare]
    assert hops(high) == [other]
    assert hops(high, elsewhere, low) == [spare, peer(0xA << 124), spare], "0.5 for both, 0.6 by the other two"
    assert hops(high, low, excluded={spare.id}) == [other, other]
    assert hops(NodeId(OWN), high) == [None, other]


@given(st.sets(ids, min_size=1, max_size=60), st.lists(ids, min_size=1, max_size=12), st.integers(0, 2**32), st.data())
def test_each_key_of_a_message_makes_progress_and_few_messages_take_them(
    found: set[NodeId], keys: list[NodeId], salt: int, data: st.DataObject
) -> None:
    own = data.draw(st.sampled_from(sorted(found)))
    leaves, table = build(found)[own]

    def cost_s(key: NodeId, each: PeerRef) -> float:
        said = hash((salt, key, each.id)) % 5
        return float("inf") if said == 0 else float(said)

    decisions = next_steps(keys, leaves, table, (), cost_s)
    by_cell: dict[int, set[PeerRef]] = {}
    for key, decision in zip(keys, decisions, strict=True):
        assert decision.step is next_step(key, leaves, table, (), cost_s).step
        if decision.peer is None:
            assert own == closest(key, found)
        elif not leaves.covers(key):
            before, after = shared_prefix_digits(key, own), shared_prefix_digits(key, decision.peer.id)
            assert after > before or (after == before and closeness(key, decision.peer.id) < closeness(key, own))
            if after > before:
                by_cell.setdefault(table.cell(key), set()).add(decision.peer)
    assert all(len(peers) == 1 for peers in by_cell.values())
