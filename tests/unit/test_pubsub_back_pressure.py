"""A publisher where leaves are slow: what waits has no deadline, clients wait, and what is late is still tried."""

from __future__ import annotations

from itertools import count

import pytest
from msgspec.structs import replace

from peerd.errors import Unavailable
from protocols.pubsub.names import EVERY
from protocols.pubsub.publishing.coverage import Coverage
from protocols.pubsub.publishing.lanes import Lanes
from protocols.pubsub.publishing.outcomes import PendingPublish, PublishResult, PublishStatus
from protocols.pubsub.publishing.publisher import QUEUED_MAX, UNDER_WAY_MAX
from protocols.pubsub.publishing.spread import AttributeCell, Batch
from protocols.pubsub.publishing.stragglers import (
    CELLS_AT_ONCE,
    LATE_BYTES_MAX,
    LATE_MAX,
    LATE_S,
    PAUSE_MAX_S,
    PAUSE_MIN_S,
    Stragglers,
)
from protocols.pubsub.tree.cells import WHOLE
from tests.support.pubsub_events import LineSchema
from tests.unit.test_pubsub_publishing import OTHER, ROOT, World


def test_a_slow_leaf_makes_later_events_wait_and_none_of_them_ends_unknown() -> None:
    """Each batch is answered shortly before its time is over; the last event waits for many times as long."""
    world = World(publish_timeout=10.0, publish_retry=60.0)
    world.publish(UNDER_WAY_MAX + QUEUED_MAX)
    assert not world.plugin.publishing.may_publish()
    answered = 0
    while answered < UNDER_WAY_MAX + QUEUED_MAX:
        [(numbers, places, attempt)] = world.sent()
        assert attempt == 0
        world.wait(9.9)
        world.answer(numbers, *places)
        answered += len(numbers)
    assert world.host.time_s > 5 * 10.0
    assert {status for _, status in world.ended} == {PublishStatus.REPLICATED}


def test_events_that_wait_are_counted_and_not_only_their_bytes() -> None:
    world = World()
    world.publish(UNDER_WAY_MAX + QUEUED_MAX)
    with pytest.raises(Unavailable, match=f"{QUEUED_MAX} events wait"):
        world.publish()


def test_what_waits_for_a_leaf_that_never_answers_ends_with_what_it_waits_for() -> None:
    """Not batch by batch: else a thousand events would take minutes for each further batch."""
    world = World(publish_timeout=10.0, publish_retry=60.0)
    world.publish(UNDER_WAY_MAX)
    world.wait(10.1)
    assert [number for number, _ in world.ended] == list(range(1, UNDER_WAY_MAX + 1))
    assert [status for _, status in world.ended].count(PublishStatus.UNKNOWN) == 1


def test_the_end_of_the_plugin_is_an_outcome() -> None:
    world = World()
    told: list[PublishResult] = []
    publishing = world.plugin.publishing
    for _ in range(UNDER_WAY_MAX + 1):
        world.plugin.publish({}, on_result=told.append)
    publishing.end("this daemon stops")
    assert len(told) == UNDER_WAY_MAX + 1
    assert told[0].status is PublishStatus.UNKNOWN
    assert {outcome.status for outcome in told[1:]} == {PublishStatus.FAILED}
    assert {outcome.reason for outcome in told} == {"this daemon stops"}


def test_a_leaf_that_is_back_gets_what_its_publisher_was_told_is_unknown() -> None:
    world = World(publish_timeout=10.0, publish_retry=60.0)
    world.publish()
    world.sent()
    world.wait(10.1)
    assert world.ended == [(1, PublishStatus.UNKNOWN)]
    world.wait(PAUSE_MIN_S)
    assert world.sent() == [([1], [ROOT], 2)]
    world.publish()
    assert world.sent() == [([2], [ROOT], 0)], "it does not wait for the one that is late"
    world.answer([2], ROOT)
    world.answer([1], ROOT)
    world.wait(10 * PAUSE_MAX_S)
    assert world.sent() == []
    assert world.ended == [(1, PublishStatus.UNKNOWN), (2, PublishStatus.REPLICATED)], "each has one outcome"


def test_what_waits_for_a_first_answer_is_not_looked_at_again_for_each_event_behind_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A thousand guessed cells, each looked at for each of a thousand events, held the daemon up for 20 seconds."""
    ready, looked = Lanes.ready, list[int]()

    def counted(lanes: Lanes, cell: int, flights_max: int) -> list[int]:
        looked.append(cell)
        return ready(lanes, cell, flights_max)

    monkeypatch.setattr(Lanes, "ready", counted)
    world = World(attributes=2, probe_level_min=6, probe_probability=0.5)
    cells = 0
    for number in range(100):
        name = world.plugin.publish({"1": number << 20, "2": number << 24})
        pending = world.plugin.publishing.pending(name)
        assert pending is not None
        cells += sum(map(len, pending.coverage.outstanding.values()))
    assert cells > 1000
    assert len(looked) == cells


class Late:
    """Stragglers, and what they send and lose."""

    def __init__(self) -> None:
        self.sent: list[tuple[Batch, list[AttributeCell]]] = []
        self.lost = 0
        self.late = Stragglers(lambda batch, places: self.sent.append((batch, places)), self._lose)
        self._numbers = count(1)
        world = World()
        world.publish()
        pending = world.plugin.publishing.pending(world.plugin.publish({}))
        assert pending is not None
        self._body = pending.body

    def _lose(self, some: int) -> None:
        self.lost += some

    def add(self, *cells: int, size: int = 100) -> PendingPublish:
        """An event that these cells have not answered for."""
        number = next(self._numbers)
        body = replace(self._body, sequence=number)
        schema = LineSchema(attributes=0)
        coverage = Coverage(schema.targets({}))
        coverage.expect(EVERY, cells or (WHOLE,))
        event = PendingPublish(body.sequence, body, schema, coverage, 2, 0.0, size, lambda outcome: None)
        self.late.add(event, 0.0)
        self.late.validate()
        return event


def test_events_that_became_late_out_of_order_are_sent_in_order() -> None:
    """Swarm, seed 8 with 8 nodes: a node that got them otherwise blamed their publisher."""
    late = Late()
    first, second = late.add(), late.add()
    late.late = Stragglers(lambda batch, places: late.sent.append((batch, places)), late._lose)
    for event in (second, first):
        late.late.add(event, 0.0)
    late.late.look(PAUSE_MIN_S, OTHER)
    [(batch, _)] = late.sent
    assert [body.sequence for body in batch.events] == [first.number, second.number]


def test_what_is_late_is_tried_ever_less_often_and_not_for_ever() -> None:
    late = Late()
    late.add()
    times = []
    now = 0.0
    while len(late.late):
        now = late.late.due_s
        late.late.look(now, OTHER)
        late.late.validate()
        times.append(now)
    assert times[:4] == [5.0, 15.0, 35.0, 75.0]
    assert LATE_S <= now <= LATE_S + PAUSE_MAX_S
    assert late.lost == 1
    assert len(late.sent) == len(times) - 1


def test_there_are_limits_to_what_is_late() -> None:
    late = Late()
    for _ in range(LATE_MAX + 3):
        late.add()
    assert (len(late.late), late.lost) == (LATE_MAX, 3)
    late.add(size=LATE_BYTES_MAX)
    assert (len(late.late), late.lost) == (1, LATE_MAX + 3)


def test_many_cells_have_their_turn_one_after_the_other() -> None:
    late = Late()
    cells = range(1024, 1024 + 2 * CELLS_AT_ONCE)
    late.add(*cells)
    visited = []
    for _ in range(2):
        late.late.look(late.late.due_s, OTHER)
    for _, places in late.sent:
        visited += [cell for _, cell in places]
    assert sorted(visited) == list(cells)


def test_an_answer_is_of_its_schema_and_its_cell() -> None:
    late = Late()
    late.add()
    late.late.covered("another", EVERY, WHOLE, [1], 0.0)
    assert len(late.late) == 1
    late.late.covered(LineSchema().name, EVERY, WHOLE, [1], 0.0)
    late.late.validate()
    assert len(late.late) == 0
