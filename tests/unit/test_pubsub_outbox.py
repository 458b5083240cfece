"""The stream of events to one subscriber's node, against a model of that node and of a network that loses things."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from itertools import chain, count

import pytest
from hypothesis import given, settings, strategies as st

from peerd.errors import ProtocolError
from protocols.pubsub.delivering.items import PendingDelivery
from protocols.pubsub.delivering.losses import LossReason, LostEvents
from protocols.pubsub.delivering.outbox import RETRY_S_MAX, DeliveryAttempt, Outbox, OutboxLimits
from protocols.pubsub.messages import EVENTS_BYTES_MAX, EVENTS_MAX
from tests.support.examples import examples
from tests.support.pubsub_leaf import SCHEMA, FakeSchema, event, event_id

LIMITS = OutboxLimits(window=4, retry_s=1.0, keep_s=60.0, bytes_max=1 << 20)
LOST = (LostEvents(LossReason.SILENT, 1),)


def outbox(limits: OutboxLimits = LIMITS) -> Outbox:
    """An empty one; its streams have the numbers 100, 101 and so on."""
    numbers = count(100)
    return Outbox(limits, lambda: next(numbers))


def item(number: int, size: int = 0, schema: FakeSchema = SCHEMA) -> PendingDelivery:
    """An event by its number."""
    body = event(number, payload=b"x" * size)
    return PendingDelivery(body, event_id(number), schema, True)


def numbers(items: list[PendingDelivery] | tuple[PendingDelivery, ...]) -> list[int]:
    """The events' numbers."""
    return [each.event.sequence for each in items]


def fill(box: Outbox, *events: int) -> None:
    """Add events; nothing is dropped."""
    for number in events:
        assert box.add(item(number)) == []


def test_what_piles_up_travels_together() -> None:
    box = outbox()
    fill(box, 1)
    [first] = box.sends(0.0)
    fill(box, 2, 3)
    [second] = box.sends(0.0)
    assert (first.number, numbers(first.items)) == (1, [1])
    assert (second.number, numbers(second.items)) == (2, [2, 3])
    assert numbers(box.answered(first, 1, 0.0, 0.1)) == [1]
    assert numbers(box.answered(second, 2, 0.0, 0.1)) == [2, 3]
    assert (box.count, box.size, box.stalled_since) == (0, 0, None)


def test_the_window_bounds_what_is_under_way() -> None:
    box, sent = outbox(), list[DeliveryAttempt]()
    for number in range(6):
        fill(box, number)
        sent += box.sends(0.0)
    assert [numbers(attempt.items) for attempt in sent] == [[0], [1], [2], [3]]
    assert numbers(list(box.items())) == [0, 1, 2, 3, 4, 5]
    box.answered(sent[0], 1, 0.0, 0.1)
    assert [numbers(attempt.items) for attempt in box.sends(0.1)] == [[4, 5]]


def test_that_events_were_dropped_is_told_although_no_other_comes() -> None:
    box = outbox()
    fill(box, 1)
    box.sends(0.0)
    assert numbers(box.expire(60.0)) == [1]
    box.note_lost(SCHEMA.name, LossReason.SILENT)
    [mark] = box.sends(60.0)
    assert (mark.number, mark.items, mark.lost) == (1, (), LOST)
    box.failed(mark, 61.0)
    assert box.needs_care()
    [again] = box.sends(70.0)
    assert (again.number, again.lost) == (1, LOST)
    assert box.answered(again, 1, 0.0, 70.1) == []
    assert not box.has_lost and not box.needs_care() and box.sends(70.2) == []


def test_a_node_that_stays_silent_hears_it_with_the_next_event() -> None:
    """Not by a message every few seconds for as long as the leaf knows the node."""
    box = outbox()
    fill(box, 1)
    box.sends(0.0)
    box.expire(60.0)
    box.note_lost(SCHEMA.name, LossReason.SILENT)
    box.sends(60.0)
    assert box.expire(120.0) == []
    assert box.has_lost and not box.needs_care() and box.sends(200.0) == []
    fill(box, 2)
    [attempt] = box.sends(200.0)
    assert (numbers(attempt.items), attempt.lost) == ([2], LOST)


def test_batches_keep_to_one_schema_and_to_the_sizes_of_messages() -> None:
    box = outbox(OutboxLimits(64, 1.0, 60.0, 1 << 30))
    other = FakeSchema("other")
    for number in range(2):
        box.add(item(number))
    box.add(item(2, schema=other))
    box.add(item(3, EVENTS_BYTES_MAX // 2))
    box.add(item(4, EVENTS_BYTES_MAX // 2))
    for number in range(5, 5 + EVENTS_MAX + 1):
        box.add(item(number))
    found = [numbers(attempt.items) for attempt in box.sends(0.0)]
    assert found[:3] == [[0, 1], [2], [3]]
    assert all(sum(item(number).size for number in batch) <= EVENTS_BYTES_MAX for batch in found[2:])
    assert list(chain(*found)) == list(range(5 + EVENTS_MAX + 1))
    assert max(map(len, found)) <= EVENTS_MAX


def test_an_unanswered_batch_is_sent_again_alone_and_ever_later() -> None:
    box = outbox()
    fill(box, 1)
    first = box.sends(0.0)
    fill(box, 2)
    second = box.sends(0.0)
    now, waits = 0.0, []
    box.failed(first[0], 1.0)
    box.failed(second[0], 1.0)
    for _ in range(5):
        now += 1.0
        while not (again := box.sends(now)):
            now += 0.5
        assert [(attempt.number, numbers(attempt.items)) for attempt in again] == [(1, [1])]
        waits.append(again[0].timeout_s)
        now += again[0].timeout_s
        box.failed(again[0], now)
    assert waits == [2.0, 4.0, RETRY_S_MAX, RETRY_S_MAX, RETRY_S_MAX]


def test_a_send_that_fails_at_once_waits_its_pause() -> None:
    box = outbox()
    fill(box, 1)
    [attempt] = box.sends(5.0)
    box.failed(attempt, 5.0)
    assert box.sends(5.9) == []
    assert box.sends(6.0) != []


def test_a_node_that_asks_for_a_pause_gets_one_and_is_not_given_up() -> None:
    box = outbox()
    fill(box, 1)
    now = 0.0
    for _ in range(200):
        [attempt] = box.sends(now)
        assert box.answered(attempt, 0, 2.0, now) == []
        assert box.sends(now + 1.9) == []
        now += 2.0
        assert box.expire(now) == []
    [attempt] = box.sends(now)
    assert numbers(box.answered(attempt, 1, 0.0, now)) == [1]


def test_a_node_that_is_silent_for_too_long_loses_all() -> None:
    box = outbox()
    fill(box, 1, 2)
    [attempt] = box.sends(10.0)
    fill(box, 3)
    box.failed(attempt, 11.0)
    assert box.expire(69.9) == []
    assert numbers(box.expire(70.0)) == [1, 2, 3]
    assert (box.count, box.size) == (0, 0)
    fill(box, 4)
    [later] = box.sends(80.0)
    assert (later.stream, later.number, numbers(later.items)) == (101, 1, [4])
    assert box.answered(attempt, 1, 0.0, 80.0) == []


def test_the_oldest_unsent_is_dropped_when_too_much_waits() -> None:
    size = item(1, 1000).size
    box = outbox(OutboxLimits(1, 1.0, 60.0, 3 * size))
    assert box.add(item(1, 1000)) == []
    box.sends(0.0)
    dropped = [numbers(tuple(box.add(item(number, 1000)))) for number in (2, 3, 4, 5)]
    assert dropped == [[], [], [2], [3]]
    assert numbers(list(box.items())) == [1, 4, 5]


def test_taken_without_being_sent_is_nonsense() -> None:
    box = outbox()
    fill(box, 1)
    [attempt] = box.sends(0.0)
    with pytest.raises(ProtocolError):
        box.answered(attempt, 2, 0.0, 0.1)
    with pytest.raises(ProtocolError):
        box.confirmed(attempt.stream, 2, 0.1)
    assert box.confirmed(attempt.stream + 1, 2, 0.1) == []


def test_what_is_told_later_counts_like_an_answer() -> None:
    box = outbox()
    fill(box, 1)
    [attempt] = box.sends(0.0)
    box.answered(attempt, 0, 0.05, 0.1)
    fill(box, 2)
    assert box.sends(0.1) == []
    assert numbers(box.confirmed(attempt.stream, 1, 0.12)) == [1]
    assert [numbers(each.items) for each in box.sends(0.12)] == [[2]]


def test_nothing_overtakes_what_is_due_by_multicast() -> None:
    box = outbox()
    first = item(1)
    box.await_note(first, 0.0, 2.0)
    fill(box, 2)
    assert box.sends(0.1) == []
    assert not box.repair(1.9)
    assert box.repair(2.0)
    assert [numbers(attempt.items) for attempt in box.sends(2.0)] == [[1, 2]]
    assert box.noted(first.event_id) is None


def test_a_note_lets_the_rest_go() -> None:
    box = outbox()
    first = item(1)
    box.await_note(first, 0.0, 2.0)
    fill(box, 2)
    assert box.noted(first.event_id) is first
    assert [numbers(attempt.items) for attempt in box.sends(0.2)] == [[2]]


@dataclass
class _Receiver:
    """A subscriber's node: takes batches in order; a restart forgets how far each stream was."""

    taken_to: dict[int, int] = field(default_factory=dict)
    got: list[int] = field(default_factory=list)

    def take(self, attempt: DeliveryAttempt) -> int:
        """What it answers."""
        if attempt.stream not in self.taken_to and attempt.number != 1:
            return 0
        before = self.taken_to.setdefault(attempt.stream, 0)
        if attempt.number == before + 1:
            self.taken_to[attempt.stream] = attempt.number
            self.got += [number for number in numbers(attempt.items) if number not in self.got]
        return self.taken_to[attempt.stream]


_STEPS = st.lists(
    st.sampled_from(["add", "add", "send", "lose", "lose_answer", "answer", "pause", "restart", "wait"]), max_size=120
)


@settings(max_examples=examples(300))
@given(_STEPS, st.integers(1, 5))
def test_each_event_once_in_order_or_counted(steps: list[str], window: int) -> None:
    size = item(1).size
    box = outbox(OutboxLimits(window, 1.0, 1e9, 8 * size))
    receiver, under_way, now, added = _Receiver(), deque[DeliveryAttempt](), 0.0, 0
    settled: list[int] = []
    dropped: list[int] = []

    def answer(attempt: DeliveryAttempt, pause_s: float = 0.0) -> None:
        settled.extend(numbers(box.answered(attempt, receiver.take(attempt), pause_s, now)))

    for step in steps:
        if step == "add":
            added += 1
            dropped += numbers(tuple(box.add(item(added))))
        elif step == "send":
            under_way += box.sends(now)
        elif step == "wait":
            now += 11.0
        elif step == "restart":
            receiver.taken_to.clear()
        elif under_way:
            attempt = under_way.popleft()
            if step == "lose":
                box.failed(attempt, now)
            elif step == "lose_answer":
                receiver.take(attempt)
                box.failed(attempt, now)
            else:
                answer(attempt, 3.0 if step == "pause" else 0.0)
        left = list(box.items())
        assert sorted([*settled, *dropped, *numbers(left)]) == list(range(1, added + 1))
        assert (box.count, box.size) == (len(left), sum(each.size for each in left))
    for _ in range(400):  # the network is good now
        while under_way:
            answer(under_way.popleft())
        now += 11.0
        under_way += box.sends(now)
    assert box.count == 0
    assert sorted([*settled, *dropped]) == list(range(1, added + 1))
    assert receiver.got == sorted(receiver.got)
    assert set(receiver.got) == set(settled)
