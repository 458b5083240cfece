"""What the root of a shard tells those who know an earlier state of it."""

from __future__ import annotations

import pytest
from hypothesis import given, settings, strategies as st

from peerd.ids import NodeId
from protocols.measurement import shards
from protocols.measurement.messages import DESCRIPTION_BYTES_MAX, PAGE_BYTES_MAX
from protocols.measurement.shards import HeldShard
from tests.support.examples import examples

NODES = st.integers(1, 12).map(NodeId)
STATES = st.lists(st.dictionaries(NODES, st.binary(min_size=1, max_size=2), max_size=12), min_size=1, max_size=12)
NONE = NodeId(0)


def asked(shard: HeldShard, known: dict[NodeId, bytes], mark: bytes) -> tuple[dict[NodeId, bytes], int]:
    """What somebody knows after a question who has known this, and how many descriptions that took."""
    page = shard.page(mark, NONE)
    taken = list(page.nodes)
    found = {node: value for node, value in known.items() if node not in page.gone} if page.is_changes else {}
    while not page.is_all:
        page = shard.page(b"", taken[-1][0])
        taken += page.nodes
    return found | dict(taken), len(taken)


@given(STATES, st.integers(1, 4), st.integers(1, 6), st.integers(1, 4))
@settings(max_examples=examples(300))
def test_whoever_knows_any_state_knows_the_present_one_after_a_question(
    states: list[dict[NodeId, bytes]], marks: int, gone: int, page: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shards, "MARKS_MAX", marks)
        patch.setattr(shards, "GONE_MAX", gone)
        patch.setattr(shards, "PAGE_MAX", page)
        shard, earlier = HeldShard(), [(b"", dict[NodeId, bytes]())]
        for state in states:
            shard.update(state)
            for mark, known in earlier:
                found, _ = asked(shard, known, mark)
                assert found == state
            earlier.append((shard.mark, state))


def test_only_what_has_changed_is_told() -> None:
    shard = HeldShard()
    held = {NodeId(node): bytes([node]) for node in range(1, 100)}
    shard.update(held)
    first, known = shard.mark, dict(held)
    assert asked(shard, {}, b"") == (held, 99)
    assert asked(shard, known, first) == (held, 0)
    held = {**held, NodeId(5): b"new", NodeId(200): b"one more"}
    del held[NodeId(7)]
    shard.update(held)
    second = shard.mark
    assert asked(shard, known, first) == (held, 2)
    assert shard.page(first, NONE).gone == (NodeId(7),)
    shard.update({**held, NodeId(7): b"back"})
    assert asked(shard, known, first)[1] == 3
    assert asked(shard, held, second)[1] == 1
    shard.update(dict(known))
    assert shard.mark == first, "the same descriptions have the same mark"
    assert asked(shard, known, first) == (known, 0)


def test_changes_that_do_not_fit_into_one_answer_are_told_with_all_the_rest() -> None:
    shard = HeldShard()
    large = b"x" * DESCRIPTION_BYTES_MAX
    count = 1 + PAGE_BYTES_MAX // DESCRIPTION_BYTES_MAX
    shard.update({NodeId(1): b"small"})
    mark, known = shard.mark, {NodeId(1): b"small"}
    held = known | {NodeId(2 + number): large for number in range(count)}
    shard.update(held)
    assert not shard.page(mark, NONE).is_changes
    assert asked(shard, known, mark) == (held, count + 1)


def test_a_description_that_is_too_large_is_told_to_nobody() -> None:
    shard = HeldShard()
    shard.update({NodeId(1): b"small"})
    mark = shard.mark
    shard.update({NodeId(1): b"x" * (DESCRIPTION_BYTES_MAX + 1), NodeId(2): b"small"})
    assert shard.page(mark, NONE) == shard.page(b"", NONE) == ([(NodeId(2), b"small")], True, (), False)
