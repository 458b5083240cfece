"""The queue of one peer against a model: order, bound, and who gives way to whom."""

from __future__ import annotations

from hypothesis import given, strategies as st

from peerd.api import Priority
from peerd.linking.send_queue import SendQueue
from peerd.wire.frames import Frame, FrameDecoder

FRAMES = st.lists(st.tuples(st.sampled_from(list(Priority)), st.integers(0, 60)), max_size=60)
BYTES_MAX = 300


def frame(number: int, size: int) -> Frame:
    return (1 + number, 0, bytes(size))


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
        dropped += len(queue.push(frame(number, size), priority))
        assert queue.size_bytes <= BYTES_MAX
    sent = drain(queue, step)
    assert len(sent) + dropped == len(pushes)
    assert queue.size_bytes == 0
    by_priority = [[each[0] for each in sent if pushes[each[0] - 1][0] is level] for level in Priority]
    assert [each[0] for each in sent] == [number for numbers in by_priority for number in numbers]
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
    sent = [each[0] for each in drain(queue, 100) if pushes[each[0] - 1][0] is Priority.URGENT]
    assert sent == urgent


def test_background_gives_way_oldest_first_then_normal_to_urgent() -> None:
    queue = SendQueue(4 * 18)
    for number in range(2):
        queue.push(frame(number, 10), Priority.BACKGROUND)
    for number in range(2, 4):
        queue.push(frame(number, 10), Priority.NORMAL)
    pushes = (4, Priority.NORMAL), (5, Priority.URGENT), (6, Priority.URGENT), (7, Priority.BACKGROUND)
    dropped = [queue.push(frame(number, 10), priority) for number, priority in pushes]
    assert [[each[0] - 1 for each in frames] for frames in dropped] == [[0], [1], [2], [7]]
    assert [each[0] - 1 for each in drain(queue, 1)] == [5, 6, 3, 4]


def test_a_frame_larger_than_the_queue_is_dropped_itself() -> None:
    queue = SendQueue(100)
    assert queue.push(frame(0, 93), Priority.URGENT) == (frame(0, 93),)
    assert queue.push(frame(1, 92), Priority.URGENT) == ()
    assert queue.clear() == [frame(1, 92)]
    assert (len(queue), queue.size_bytes) == (0, 0)


@given(st.lists(st.integers(0, 60), max_size=40), st.lists(st.integers(1, 120), min_size=1, max_size=60))
def test_a_slow_peer_recovers_once_for_each_time_that_it_was_slow(sizes: list[int], takes: list[int]) -> None:
    """The high-water mark of a queue of 300 bytes is 150, the low one a quarter of that."""
    queue, is_slow, recoveries = SendQueue(BYTES_MAX), False, 0
    for number, take in enumerate(takes):
        for size in sizes[number::7]:
            queue.push(frame(number, size), Priority.NORMAL)
            is_slow |= queue.size_bytes > BYTES_MAX // 2
        assert queue.has_recovered() == (is_slow and queue.size_bytes <= BYTES_MAX // 8)
        is_slow &= queue.size_bytes > BYTES_MAX // 8
        queue.take(take)
        recoveries += queue.has_recovered()
        is_slow &= queue.size_bytes > BYTES_MAX // 8
        assert not queue.has_recovered(), "only once"
    if is_slow:
        queue.clear()
        assert queue.has_recovered() and not queue.has_recovered()
