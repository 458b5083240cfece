"""What is remembered of multicasts: seen ones, and those to replay."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st
from pydantic import ValidationError

from peerd.ids import NodeId
from peerd.services.groups.config import GroupsConfig
from peerd.services.groups.messages import GroupMulticast, MulticastPosition, Publication
from peerd.services.groups.stream import ReplayLog, Seen, later, missed
from peerd.testing.host import peer

ROOT, OTHER = NodeId(1), NodeId(2)
GROUP = NodeId(9)


def at(generation: int, sequence: int, root: NodeId = ROOT) -> MulticastPosition:
    """A position."""
    return MulticastPosition(generation, root, sequence)


def multicast(position: MulticastPosition, size: int = 10, group: NodeId = GROUP) -> GroupMulticast:
    """A multicast of that size at that position."""
    return GroupMulticast(group, position, Publication(peer(5), 1, position.sequence, 1, b"x" * size))


def test_the_window_forgets_the_oldest() -> None:
    seen = Seen(3)
    assert [seen.is_new((ROOT, 1, number)) for number in (1, 2, 3, 1, 4, 1)] == [True] * 3 + [False, True, True]
    assert len(seen) == 3


@pytest.mark.parametrize(
    ("last", "start", "count"),
    [
        (None, at(1, 7), 0),
        (at(1, 3), at(1, 7), 4),
        (at(1, 7), at(1, 3), 0),
        (at(1, 7), at(2, 3), 3),
        (at(2, 7), at(1, 3), 0),
        (at(1, 7), at(1, 3, OTHER), 3),
    ],
)
def test_what_was_missed(last: MulticastPosition | None, start: MulticastPosition, count: int) -> None:
    assert missed(last, start) == count


def test_later_is_where_the_stream_goes_on() -> None:
    assert later(None, at(1, 3)) == later(at(1, 2), at(1, 3)) == later(at(1, 3), at(1, 2)) == at(1, 3)
    assert later(at(5, 9), at(4, 1)) == at(4, 1)


def test_a_child_is_owed_the_rest_of_its_reign_and_later_ones() -> None:
    log = ReplayLog(10, 10_000)
    positions = [at(1, 8), at(1, 9), at(2, 1, OTHER), at(2, 2, OTHER)]
    for position in positions:
        log.add(multicast(position))
    own = positions[-1]

    def owed(child: MulticastPosition | None) -> tuple[MulticastPosition | None, list[MulticastPosition]]:
        replay = log.replay(GROUP, child, own)
        return replay.start, [each.position for each in replay.multicasts]

    assert owed(at(1, 8)) == (at(1, 8), positions[1:])
    assert owed(at(1, 3)) == (at(1, 7), positions)
    assert owed(at(1, 40)) == (at(2, 0, OTHER), positions[2:])
    assert owed(at(2, 1, OTHER)) == (at(2, 1, OTHER), positions[3:])
    assert owed(at(2, 5)) == (at(2, 0, OTHER), positions[2:])
    assert owed(own) == owed(None) == owed(at(3, 1)) == (own, [])


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(0, 40)), max_size=60), st.integers(0, 5), st.integers(0, 100))
def test_the_log_keeps_the_latest_within_both_bounds(
    sizes: list[tuple[int, int]], messages_max: int, bytes_max: int
) -> None:
    log = ReplayLog(messages_max, bytes_max)
    kept: list[tuple[NodeId, int, int]] = []
    for number, (group, size) in enumerate(sizes, start=1):
        log.add(multicast(at(1, number), size, NodeId(group)))
        kept.append((NodeId(group), number, size))
        of_group = [entry for entry in kept if entry[0] == group]
        if len(of_group) > messages_max:
            kept.remove(of_group[0])
        while sum(entry[2] for entry in kept) > bytes_max:
            kept.pop(0)
    assert (len(log), log.size_bytes) == (len(kept), sum(size for _, _, size in kept))
    for group in (NodeId(1), NodeId(2), NodeId(3)):
        replayed = log.replay(group, at(1, 0), None).multicasts
        assert [each.position.sequence for each in replayed] == [number for key, number, _ in kept if key == group]
        log.forget(group)
    assert (len(log), log.size_bytes) == (0, 0)


@pytest.mark.parametrize(
    "fields",
    [
        {"refresh_timeout": 3, "refresh_attempts": 2},
        {"lease": 10},
        {"dedupe_window": 128, "replay_messages": 100},
        {"children_max": 1},
    ],
)
def test_settings_that_do_not_fit_are_refused(fields: dict[str, int]) -> None:
    with pytest.raises(ValidationError):
        GroupsConfig.model_validate(fields)
