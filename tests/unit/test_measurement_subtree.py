"""Who is below a node of T: filters that name a few nodes, and are Bloom filters of many."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, strategies as st

from peerd.ids import NodeId
from peerd.testing.host import FakeHost, peer, through_the_wire
from protocols.measurement.config import MeasurementConfig
from protocols.measurement.placing.messages import Subtree
from protocols.measurement.placing.subtree import (
    BITS_A_NODE,
    BITS_MAX,
    BITS_MIN,
    EXACT_MAX,
    SubtreeFilter,
    bloom_size,
    joined,
)
from protocols.measurement.plugin import MeasurementQueries


def node_ids(count: int, seed: int = 0) -> list[NodeId]:
    """Ids as they are: hashes."""
    rng = Random(seed)
    return [NodeId(rng.getrandbits(128)) for _ in range(count)]


@st.composite
def trees(draw: st.DrawFn) -> tuple[SubtreeFilter, list[NodeId]]:
    """The filter of some tree whose nodes take the ring for larger or smaller, and the nodes that are in it."""
    own, members = NodeId(draw(st.integers(0, 2**128 - 1))), []
    below = []
    for _ in range(draw(st.integers(0, 3))):
        few = node_ids(draw(st.integers(0, 2 * EXACT_MAX)), draw(st.integers(0, 2**32)))
        leaf = joined(NodeId(0), [SubtreeFilter(frozenset({each})) for each in few], draw(st.integers(1, 60_000)))
        members += [NodeId(0), *few]
        below.append(leaf)
    return joined(own, below, draw(st.integers(1, 60_000))), [own, *members]


@given(st.lists(trees(), max_size=3), st.integers(1, 60_000))
def test_nobody_who_is_below_is_ever_missing(children: list[tuple[SubtreeFilter, list[NodeId]]], nodes: int) -> None:
    whole = joined(NodeId(1), [below for below, _ in children], nodes)
    for member in (NodeId(1), *(member for _, members in children for member in members)):
        assert member in whole


@given(trees())
def test_a_filter_is_the_same_for_who_hears_of_it(tree: tuple[SubtreeFilter, list[NodeId]]) -> None:
    below, _ = tree
    word = through_the_wire(Subtree(tuple(below.ids), below.bits.to_bytes(below.size // 8, "little")))
    assert isinstance(word, Subtree)
    plugin = MeasurementQueries(MeasurementConfig.model_validate({"system": False, "placing": "tree"}), [])
    host = FakeHost(1, plugin)
    host.deliver(word, peer(7))
    assert plugin.tree.below() == joined(host.id, [below], host.estimated_ring_size())


def test_a_few_are_named_and_nobody_else_is_taken_to_be_there() -> None:
    ids = node_ids(EXACT_MAX)
    few = joined(ids[0], [SubtreeFilter(frozenset(ids[1:]))], 1e6)
    assert (few.ids, few.size, len(few)) == (frozenset(ids), 0, EXACT_MAX)
    assert not any(other in few for other in node_ids(1000, 1))
    more = joined(NodeId(5), [few], 1e6)
    assert not more.ids and more.size == BITS_MAX


@pytest.mark.parametrize("nodes", [256, 1024, 4096])
def test_one_in_a_thousand_is_taken_to_be_where_it_is_not_if_the_whole_ring_is_below(nodes: int) -> None:
    ids = node_ids(nodes)
    parts = [SubtreeFilter(frozenset(ids[first : first + 64])) for first in range(0, nodes, 64)]
    whole = joined(ids[0], parts, nodes)
    assert whole.size == BITS_A_NODE * nodes
    strangers = node_ids(20_000, 1)
    wrong = sum(other in whole for other in strangers) / len(strangers)
    assert 0.0003 < wrong < 0.002
    assert abs(len(whole) - nodes) < 0.35 * nodes, "about so many"


def test_a_filter_grows_with_the_ring_and_what_is_made_larger_is_not_more_wrong() -> None:
    assert [bloom_size(nodes) for nodes in (1, 256, 257, 1e9)] == [BITS_MIN, BITS_MIN, 2 * BITS_MIN, BITS_MAX]
    ids = node_ids(200)
    small = joined(ids[0], [SubtreeFilter(frozenset(ids[1:]))], 256)
    large = joined(ids[0], [small], 10_000)
    assert (small.size, large.size) == (BITS_MIN, bloom_size(10_000))
    strangers = node_ids(5000, 1)
    assert [other in large for other in strangers] == [other in small for other in strangers]


def test_an_empty_filter_has_nobody_and_a_full_one_everybody() -> None:
    assert not any(other in SubtreeFilter() for other in node_ids(10))
    full = SubtreeFilter(frozenset(), (1 << 8) - 1, 8)
    assert all(other in joined(NodeId(1), [full], 5000) for other in node_ids(100))
    assert "no id" not in full
