"""The queue of one peer against a model: order, bound, and who gives way to whom."""

from __future__ import annotations

from hypothesis import given, strategies as st

from peerd.api import Priority
from peerd.linking.send_queue import SendQueue
from peerd.wire.frames import Frame, FrameDecoder

FRAMES = st.lists(st.tuples(st.sampled_from(list(Priority)), st.integers(0, 60)), max_size=60)
BYTES_MAX = 300


def frame(number: int, size: int) -> Frame:
    return Frame(1 + number, 0, bytes(size))


def drain(queue: SendQueue, step: int) -> list[Frame]:
    decoder, frames = FrameDecoder(), []
    while queue:
        frames += decoder.feed(b"".join(queue.take(step)))
    assert not decoder.is_mid_frame
    return frames


@given(FRAMES, st.integers(1, 500))
def test_nothing_is_lost_that_was_not_counted(pushes: list[tuple[Priority, int]], step: int) -> None:
    queue = SendQueue(BYTES_MAX)
    dropped = 0
    for number, (priority, size) in enumerate(pushes):
        dropped += queue.push(frame(number, size), priority)
        assert queue.size_bytes <= BYTES_MAX
    sent = drain(queue, step)
    assert len(sent) + dropped == len(pushes)
    assert queue.size_bytes == 0
    by_priority = [[each.type_id for each in sent if pushes[each.type_id - 1][0] is level] for level in Priority]
    assert [each.type_id for each in sent] == [number for numbers in by_priority for number in numbers]
    assert all(numbers == sorted(numbers) for numbers in by_priority)


@given(FRAMES)
def test_a_frame_is_only_dropped_for_one_as_important(pushes: list[tuple[Priority, int]]) -> None:
    queue = SendQueue(BYTES_MAX)
    urgent_bytes, urgent = 0, []
    for number, (priority, size) in enumerate(pushes):
        queue.push(frame(number, size), priority)
        if priority is Priority.URGENT and urgent_bytes + 8 + size <= BYTES_MAX:
            urgent_bytes += 8 + size
            urgent.append(number + 1)
    sent = [each.type_id for each in drain(queue, 100) if pushes[each.type_id - 1][0] is Priority.URGENT]
    assert sent == urgent


def test_background_gives_way_oldest_first_then_normal_to_urgent() -> None:
    queue = SendQueue(4 * 18)
    for number in range(2):
        queue.push(frame(number, 10), Priority.BACKGROUND)
    for number in range(2, 4):
        queue.push(frame(number, 10), Priority.NORMAL)
    assert queue.push(frame(4, 10), Priority.NORMAL) == 1
    assert queue.push(frame(5, 10), Priority.URGENT) == 1
    assert queue.push(frame(6, 10), Priority.URGENT) == 1
    assert queue.push(frame(7, 10), Priority.BACKGROUND) == 1
    assert [each.type_id - 1 for each in drain(queue, 1)] == [5, 6, 3, 4]


def test_a_frame_larger_than_the_queue_is_dropped_itself() -> None:
    queue = SendQueue(100)
    assert queue.push(frame(0, 93), Priority.URGENT) == 1
    assert queue.push(frame(1, 92), Priority.URGENT) == 0
    assert queue.clear() == 1
    assert (len(queue), queue.size_bytes) == (0, 0)
