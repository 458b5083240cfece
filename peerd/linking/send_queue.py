"""The frames that wait for one peer, in three priorities, bounded in bytes."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final

from peerd.api import Priority
from peerd.limits import FRAME_HEADER_BYTES, SEND_HIGH_WATER_BYTES, SEND_LOW_WATER_SHARE
from peerd.wire.frames import HEADER, MAGIC, Frame, frame_size

_PRIORITIES: Final = len(Priority)


class SendQueue:
    """The queue outlives connections: frames stay here until one has taken them, so closing a duplicate one loses none.

    Within a priority the order is kept. When full, background frames give way first, then normal ones to urgent ones.
    Above its high-water mark, half of what it holds at most, the peer counts as slow until `has_recovered` says so.
    """

    __slots__ = ("_bytes_max", "_high_bytes", "_is_slow", "_queues", "size_bytes")

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._queues: tuple[deque[Frame], ...] = ()  # made for the first frame: a simulator has very many of these
        self._high_bytes = min(SEND_HIGH_WATER_BYTES, bytes_max // 2)
        self._is_slow = False
        self.size_bytes = 0

    def resize(self, bytes_max: int) -> None:
        """Another limit from now on; what is queued above it stays and is sent."""
        self._bytes_max = bytes_max
        self._high_bytes = min(SEND_HIGH_WATER_BYTES, bytes_max // 2)

    def __len__(self) -> int:
        return sum(len(queue) for queue in self._queues)

    def __bool__(self) -> bool:
        return self.size_bytes > 0  # no frame is without its header

    def push(self, frame: Frame, priority: Priority) -> Sequence[Frame]:
        """Queue a frame; returns the frames that were dropped for it (it may be the one)."""
        dropped: Sequence[Frame] = ()
        size = frame_size(frame)
        if self.size_bytes + size > self._bytes_max:
            dropped = self._make_room(size, priority)
            if self.size_bytes + size > self._bytes_max:
                return (*dropped, frame)
        if not self._queues:
            self._queues = tuple([deque() for _ in range(_PRIORITIES)])
        self._queues[priority].append(frame)
        self.size_bytes += size
        if self.size_bytes > self._high_bytes:
            self._is_slow = True
        return dropped

    def has_recovered(self) -> bool:
        """Whether it was above the high-water mark and is not above the low one now; says so once each time."""
        if not self._is_slow or self.size_bytes > self._high_bytes // SEND_LOW_WATER_SHARE:
            return False
        self._is_slow = False
        return True

    def take_frames(self, bytes_max: int) -> list[Frame]:
        """Take up to about ``bytes_max`` bytes of frames (at least one frame), in sending order."""
        frames: list[Frame] = []
        taken = 0
        for queue in self._queues:
            while queue and taken < bytes_max:
                frame = queue.popleft()
                frames.append(frame)
                taken += FRAME_HEADER_BYTES + len(frame[2])
        self.size_bytes -= taken
        return frames

    def take(self, bytes_max: int) -> list[bytes]:
        """Take frames as bytes for a socket: headers and bodies in turn."""
        parts: list[bytes] = []
        for type_id, flags, body in self.take_frames(bytes_max):
            parts.append(HEADER.pack(MAGIC, type_id, flags, len(body)))
            parts.append(body)
        return parts

    def clear(self) -> list[Frame]:
        """Drop everything; returns the frames, in sending order."""
        dropped = [frame for queue in self._queues for frame in queue]
        self._queues = ()
        self.size_bytes = 0
        return dropped

    def _make_room(self, size: int, priority: Priority) -> list[Frame]:
        dropped: list[Frame] = []
        for victim in range(len(self._queues) - 1, priority, -1):
            queue = self._queues[victim]
            while queue and self.size_bytes + size > self._bytes_max:
                dropped.append(queue.popleft())
                self.size_bytes -= frame_size(dropped[-1])
        return dropped
