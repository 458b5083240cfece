"""Partners at rest compare ever more rarely while nothing is new, from one side only, and never about nothing."""

from __future__ import annotations

from peerd.ids import NodeId
from peerd.messages import PeerRef
from peerd.services.records.config import RecordsConfig
from peerd.services.records.schedule import PAUSE_FACTOR_MAX, Schedule

INTERVAL_S = 60.0
CONFIG = RecordsConfig(sync_interval=INTERVAL_S, replicas=3)
ONE, TWO = (PeerRef(NodeId(number), "10.0.0.1", 7420) for number in (1, 2))
BOTH = (ONE, TWO)
MINE, ALL = frozenset({ONE.id}), frozenset({ONE.id, TWO.id})


def moments(schedule: Schedule, duration_s: float, asks: frozenset[NodeId], writes: int = 0) -> list[float]:
    """Return the times at which to compare with `ONE`, asked every ten seconds; each time both agree."""
    found: list[float] = []
    for step in range(int(duration_s / 10)):
        now = 10.0 * step
        if schedule.next((ONE,), asks, now, writes) is not None:
            schedule.compared(ONE.id, now, writes, is_equal=True)
            found.append(now)
    return found


def test_the_pause_doubles_while_nothing_is_new_up_to_a_limit() -> None:
    found = moments(Schedule(CONFIG), 4000.0, MINE)
    pauses = [later - earlier for earlier, later in zip([0.0, *found], found, strict=False)]
    assert pauses == [60, 120, 240, 480, 960, 960, 960]
    assert pauses[-1] == PAUSE_FACTOR_MAX * INTERVAL_S


def test_a_write_or_a_difference_brings_the_interval_back() -> None:
    schedule = Schedule(CONFIG)
    moments(schedule, 500.0, MINE)  # the last one at 420
    assert schedule.next((ONE,), MINE, 520.0, 0) is None
    assert schedule.next((ONE,), MINE, 520.0, 1) == ONE, "something was written"
    schedule.compared(ONE.id, 520.0, 1, is_equal=True)
    assert schedule.next((ONE,), MINE, 579.0, 1) is None
    assert schedule.next((ONE,), MINE, 580.0, 1) == ONE, "news of the last interval may be on its way"
    schedule.compared(ONE.id, 580.0, 1, is_equal=True)
    schedule.compared(ONE.id, 600.0, 1, is_equal=False)
    assert schedule.next((ONE,), MINE, 660.0, 1) == ONE


def test_who_does_not_begin_waits_and_is_content_with_being_asked() -> None:
    schedule = Schedule(CONFIG)
    assert moments(schedule, 230.0, frozenset()) == []
    schedule.compared(ONE.id, 230.0, 0, is_equal=True)
    assert schedule.next((ONE,), frozenset(), 500.0, 0) is None
    assert schedule.next((ONE,), frozenset(), 590.0, 0) == ONE, "it does when it was not asked"


def test_one_at_a_time_and_the_longest_due_first() -> None:
    schedule = Schedule(CONFIG)
    schedule.next(BOTH, ALL, 0.0, 0)
    schedule.compared(TWO.id, 10.0, 0, is_equal=False)
    assert schedule.next(BOTH, ALL, 100.0, 0) == ONE
    schedule.compared(ONE.id, 100.0, 0, is_equal=True)
    assert schedule.next(BOTH, ALL, 100.0, 0) == TWO


def test_others_are_forgotten() -> None:
    schedule = Schedule(CONFIG)
    schedule.compared(TWO.id, 0.0, 0, is_equal=True)
    assert schedule.next((ONE,), ALL, 0.0, 0) is None
    assert len(schedule) == 1
