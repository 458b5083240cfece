"""Properties of the ring arithmetic, each against a slow and obvious model on strings and lists."""

from __future__ import annotations

import pytest
from hypothesis import assume, example, given, strategies as st

from peerd import ids
from peerd.ids import NodeId

NODE_IDS = st.integers(0, ids.RING - 1).map(NodeId)
POINTS = st.characters(exclude_categories=["Cs"])
TEXTS = st.text(POINTS, max_size=6)
LAST_POINT = chr(0x10FFFF)


def near(base: NodeId) -> st.SearchStrategy[NodeId]:
    """Ids that share a long prefix with ``base``: two uniform ids almost never do."""
    return st.tuples(st.integers(0, ids.ID_BITS - 1), NODE_IDS).map(
        lambda drawn: NodeId((base ^ (drawn[1] >> drawn[0])) % ids.RING)
    )


PAIRS = NODE_IDS.flatmap(lambda base: st.tuples(st.just(base), near(base) | NODE_IDS))


def common_prefix_length(a: str, b: str) -> int:
    """How many leading characters two strings of one length share."""
    return next((index for index, (x, y) in enumerate(zip(a, b, strict=True)) if x != y), len(a))


@given(NODE_IDS)
def test_digits_spell_the_id(node_id: NodeId) -> None:
    spelled = "".join(f"{ids.digit(node_id, index):x}" for index in range(ids.DIGITS))
    assert spelled == ids.format_id(node_id)


@given(PAIRS)
def test_shared_prefix_is_that_of_the_written_forms(pair: tuple[NodeId, NodeId]) -> None:
    a, b = pair
    assert ids.shared_prefix_bits(a, b) == common_prefix_length(f"{a:0128b}", f"{b:0128b}")
    assert ids.shared_prefix_digits(a, b) == common_prefix_length(ids.format_id(a), ids.format_id(b))
    assert ids.shared_prefix_bits(a, b) == ids.shared_prefix_bits(b, a)


@given(NODE_IDS, NODE_IDS, NODE_IDS)
def test_shared_prefix_is_an_ultrametric(a: NodeId, b: NodeId, c: NodeId) -> None:
    through_b = min(ids.shared_prefix_bits(a, b), ids.shared_prefix_bits(b, c))
    assert ids.shared_prefix_bits(a, c) >= through_b


@given(NODE_IDS)
def test_an_id_shares_everything_with_itself(node_id: NodeId) -> None:
    assert ids.shared_prefix_bits(node_id, node_id) == ids.ID_BITS
    assert ids.shared_prefix_digits(node_id, node_id) == ids.DIGITS
    assert ids.ring_distance(node_id, node_id) == 0


@given(NODE_IDS, st.integers(0, ids.ID_BITS - 1), st.integers(0, ids.RING - 1))
def test_with_shared_prefix_shares_exactly_that(node_id: NodeId, bits: int, random_bits: int) -> None:
    drawn = ids.with_shared_prefix(node_id, bits, random_bits)
    assert 0 <= drawn < ids.RING
    assert ids.shared_prefix_bits(node_id, drawn) == bits


@given(NODE_IDS, st.integers(0, ids.ID_BITS - 1), NODE_IDS)
def test_with_shared_prefix_reaches_every_member(node_id: NodeId, bits: int, noise: NodeId) -> None:
    """Any id with exactly that shared prefix is drawn by its own bits, so uniform bits give a uniform member."""
    member = ids.with_shared_prefix(node_id, bits, noise)
    assert ids.with_shared_prefix(node_id, bits, member) == member


@pytest.mark.parametrize("bits", [-1, ids.ID_BITS])
def test_with_shared_prefix_refuses_improper_lengths(bits: int) -> None:
    with pytest.raises(ValueError, match="0 to 127 bits"):
        ids.with_shared_prefix(NodeId(0), bits, 0)


@given(PAIRS)
def test_distances_agree_with_walking_round(pair: tuple[NodeId, NodeId]) -> None:
    a, b = pair
    there, back = ids.clockwise_distance(a, b), ids.clockwise_distance(b, a)
    assert (a + there) % ids.RING == b
    assert there + back == (0 if a == b else ids.RING)
    assert ids.ring_distance(a, b) == min(there, back) == ids.ring_distance(b, a)


@given(NODE_IDS, NODE_IDS, NODE_IDS)
def test_ring_distance_obeys_the_triangle_inequality(a: NodeId, b: NodeId, c: NodeId) -> None:
    assert ids.ring_distance(a, c) <= ids.ring_distance(a, b) + ids.ring_distance(b, c)


@given(NODE_IDS, NODE_IDS, NODE_IDS)
def test_distances_do_not_depend_on_where_the_ring_starts(a: NodeId, b: NodeId, turn: NodeId) -> None:
    turned = NodeId((a + turn) % ids.RING), NodeId((b + turn) % ids.RING)
    assert ids.ring_distance(*turned) == ids.ring_distance(a, b)
    assert ids.clockwise_distance(*turned) == ids.clockwise_distance(a, b)


@given(NODE_IDS, st.lists(NODE_IDS, min_size=1, max_size=8), st.randoms(use_true_random=False))
def test_every_node_names_the_same_root(key: NodeId, nodes: list[NodeId], order: object) -> None:
    root = ids.closest(key, nodes)
    assert ids.closest(key, sorted(nodes, reverse=True)) == root
    assert root in nodes
    assert not any(ids.is_closer(key, node_id, root) for node_id in nodes)


@given(NODE_IDS, st.integers(1, ids.RING // 2))
def test_of_two_nodes_at_equal_distance_the_smaller_id_is_the_root(key: NodeId, step: int) -> None:
    left, right = NodeId((key - step) % ids.RING), NodeId((key + step) % ids.RING)
    assert ids.closest(key, [left, right]) == ids.closest(key, [right, left]) == min(left, right)


@given(PAIRS, NODE_IDS)
def test_closeness_is_a_strict_total_order(pair: tuple[NodeId, NodeId], key: NodeId) -> None:
    a, b = pair
    assert [ids.is_closer(key, a, b), ids.is_closer(key, b, a), a == b].count(True) == 1


def test_closest_of_nobody_is_an_error() -> None:
    with pytest.raises(ValueError, match="empty"):
        ids.closest(NodeId(0), [])


@given(NODE_IDS)
def test_bytes_and_text_round_trip(node_id: NodeId) -> None:
    assert ids.id_from_bytes(ids.id_to_bytes(node_id)) == node_id
    assert ids.parse_id(ids.format_id(node_id)) == ids.parse_id(ids.format_id(node_id).upper()) == node_id
    assert ids.format_id(node_id).startswith(ids.short_id(node_id))
    assert len(ids.short_id(node_id)) == 8


@given(NODE_IDS, NODE_IDS)
def test_bytes_and_text_sort_like_ids(a: NodeId, b: NodeId) -> None:
    assert (a < b) == (ids.id_to_bytes(a) < ids.id_to_bytes(b)) == (ids.format_id(a) < ids.format_id(b))


@given(st.binary(max_size=40).filter(lambda data: len(data) != ids.ID_BYTES))
def test_other_lengths_are_no_id(data: bytes) -> None:
    with pytest.raises(ValueError, match="16 bytes"):
        ids.id_from_bytes(data)


@given(st.text(max_size=40))
@example("0x" + "0" * 30)
@example("_".join(["0" * 16] * 2)[:32])
@example(" " + "0" * 31)
@example("+" + "0" * 31)
@example("٠" * 32)
def test_parse_id_takes_32_hexadecimal_digits_and_nothing_else(text: str) -> None:
    assume(not (len(text) == ids.DIGITS and set(text) <= set("0123456789abcdefABCDEF")))
    with pytest.raises(ValueError, match="32 hexadecimal digits"):
        ids.parse_id(text)


def test_key_of_is_sha_256_cut_to_128_bits() -> None:
    assert ids.format_id(ids.key_of("")) == "e3b0c44298fc1c149afbf4c8996fb924"
    assert ids.format_id(ids.key_of("abc")) == "ba7816bf8f01cfea414140de5dae2223"
