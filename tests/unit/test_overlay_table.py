"""`peerd.overlay.table`, `peerd.overlay.proximity`, `peerd.overlay.dedupe`: pure state."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from peerd.errors import Bug
from peerd.ids import RING, NodeId, digit, shared_prefix_digits, with_shared_prefix
from peerd.messages import PeerRef
from peerd.overlay.dedupe import Window
from peerd.overlay.proximity import MARGIN_SHARE, Proximity
from peerd.overlay.table import RoutingTable

OWN = NodeId(0x8123 << 112)
node_ids = st.builds(with_shared_prefix, st.just(OWN), st.integers(0, 127), st.integers(0, RING - 1))


def peer(node_id: int, port: int = 7420) -> PeerRef:
    return PeerRef(NodeId(node_id), "10.0.0.1", port)


def unmeasured(node_id: NodeId) -> float | None:
    return None


@given(st.lists(node_ids, max_size=80), st.data())
def test_table_keeps_its_invariants(arrivals: list[NodeId], data: st.DataObject) -> None:
    table = RoutingTable(OWN)
    for node_id in arrivals:
        rtts_s = dict.fromkeys([node_id], data.draw(st.floats(0.001, 1.0)))
        added, replaced = table.consider(peer(node_id), rtts_s.get)
        assert replaced is None or added
        table.validate()
    for entry in list(table):
        row = shared_prefix_digits(OWN, entry.id)
        assert table.get(row, digit(entry.id, row)) == entry
        assert entry in table.row(row)
        assert table.remove(entry.id) == entry
    assert len(table) == 0
    assert table.rows() == []


@given(st.lists(node_ids, min_size=1, max_size=80), node_ids)
def test_next_hop_shares_a_longer_prefix(arrivals: list[NodeId], key: NodeId) -> None:
    table = RoutingTable(OWN)
    for node_id in arrivals:
        table.consider(peer(node_id), unmeasured)
    hop = table.next_hop(key)
    if hop is None:
        assert not any(shared_prefix_digits(entry.id, key) > shared_prefix_digits(OWN, key) for entry in table)
    else:
        assert shared_prefix_digits(hop.id, key) > shared_prefix_digits(OWN, key)


def test_a_clearly_nearer_node_takes_the_slot() -> None:
    table = RoutingTable(OWN)
    rtts = {NodeId(1): 0.1, NodeId(2): 0.09, NodeId(3): 0.05}
    assert table.consider(peer(1), rtts.get) == (True, None)
    assert table.consider(peer(2), rtts.get) == (False, None)
    assert table.consider(peer(4), rtts.get) == (False, None)
    assert table.consider(peer(3), rtts.get) == (True, peer(1))
    assert NodeId(1) not in table
    assert NodeId(3) in table


def test_own_id_and_strangers_are_not_in_the_table() -> None:
    table = RoutingTable(OWN)
    assert table.consider(peer(OWN), unmeasured) == (False, None)
    assert OWN not in table
    assert table.next_hop(OWN) is None
    assert table.incumbent(OWN) is None
    assert table.remove(NodeId(7)) is None


def test_an_entry_gets_its_new_address() -> None:
    table = RoutingTable(OWN)
    table.consider(peer(1), unmeasured)
    assert table.consider(peer(1, 7421), unmeasured) == (False, None)
    assert table.incumbent(NodeId(1)) == peer(1, 7421)


def test_validate_sees_a_misplaced_entry() -> None:
    table = RoutingTable(OWN)
    table._entries[16] = peer(1)
    with pytest.raises(Bug):
        table.validate()


def test_timeout_follows_the_rtt_within_its_bounds() -> None:
    proximity = Proximity(0.5, 3.0, 1.5)
    one = NodeId(1)
    assert proximity.timeout_s(one) == 1.5
    assert proximity.rtt_s(one) is None
    for _ in range(50):
        proximity.observe(one, 0.01)
    assert proximity.rtt_s(one) == pytest.approx(0.01)
    assert proximity.timeout_s(one) == 0.5
    for _ in range(100):
        proximity.observe(one, 1.0)
    assert proximity.rtt_s(one) == pytest.approx(1.0, rel=0.01)
    assert (1.0 + MARGIN_SHARE) * 0.99 < proximity.timeout_s(one) < 1.4
    proximity.observe(one, 30.0)
    assert proximity.timeout_s(one) == 3.0
    proximity.forget(one)
    assert proximity.rtt_s(one) is None


def test_timeout_has_a_margin_however_even_the_path_is() -> None:
    proximity = Proximity(0.5, 3.0, 1.5)
    for node_id, rtt_s in (NodeId(1), 0.3), (NodeId(2), 1.7), (NodeId(3), 2.9):
        for _ in range(1000):
            proximity.observe(node_id, rtt_s)
        wanted_s = min(3.0, max(0.5, (1.0 + MARGIN_SHARE) * rtt_s))
        assert proximity.timeout_s(node_id) == pytest.approx(wanted_s, rel=0.001)


def test_proximity_is_bounded() -> None:
    proximity = Proximity(0.5, 3.0, 1.5, peers_max=3)
    for number in range(10):
        proximity.observe(NodeId(number), 0.1)
    assert len(proximity) == 3
    assert proximity.rtt_s(NodeId(9)) == 0.1
    assert proximity.rtt_s(NodeId(0)) is None


def test_window_forgets_the_oldest() -> None:
    window = Window(size=2)
    assert window.is_new((NodeId(1), 1, 1, 0))
    assert not window.is_new((NodeId(1), 1, 1, 0))
    assert window.is_new((NodeId(1), 2, 1, 0))
    assert window.is_new((NodeId(1), 2, 2, 0))
    assert window.get((NodeId(1), 1, 1, 0)) is None
    window.put((NodeId(1), 2, 2, 0), 7)
    assert window.get((NodeId(1), 2, 2, 0)) == 7
    assert len(window) == 2
