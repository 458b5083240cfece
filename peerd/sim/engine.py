"""The event heap, the virtual clock and the trace hash.

Events are ordered by (time, sequence number), so ties are first in, first out, but for `Engine.schedule_first`. An
entry is a plain tuple ``(time, sequence, mark, function, argument)`` and the loop calls ``function(argument)``: no
closure and no object for each event. The mark is ``node index << 32 | what`` where ``what`` is a CRC-32 of the event's
content; times and marks go into a BLAKE2b hash, so two runs agree on their hash only if every event hit the same node
at the same time with the same bytes.

Most events in a simulation are timers of idle nodes, seconds away. The heap holds only what is due within a stretch of
`STRETCH_S`, so it stays small; what is due later waits unsorted, by stretch, and joins it when its time comes.
"""

from __future__ import annotations

import hashlib
import heapq
import math
from array import array
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import repeat
from typing import Any, Final

from peerd.errors import Bug

CHECKPOINT_EVENTS: Final = 4096
"""How many events lie between two points at which runs can be compared."""
CHECKPOINTS_MAX: Final = 65_536
"""Above this number the checkpoints are thinned out: every second one is dropped."""
SOON_MAX: Final = 1_000_000
"""How many callbacks one event may cause in the same instant; more are taken for an endless loop."""
COMPACT_MIN: Final = 4096
"""The heap is not rebuilt for fewer cancelled timers than this."""

STRETCHES_PER_S: Final = 16
"""A power of two, so that the ends of stretches are exact."""
STRETCH_S: Final = 1 / STRETCHES_PER_S

FIRST_SEQUENCE: Final = -(1 << 62)
"""The first sequence number of events that go before all others of their instant."""

NODE_SHIFT: Final = 32
NO_NODE: Final = (1 << 31) - 1
"""The node index of events that belong to no node."""

Entry = tuple[float, int, int, Callable[[Any], object] | None, Any]


def mark_of(node_index: int, what: int) -> int:
    """The trace mark of an event; ``what`` fits 32 bits."""
    return node_index << NODE_SHIFT | what


class Timer:
    """One armed timer. ``gate(timer)`` runs it, or keeps it until its node can (a paused node)."""

    __slots__ = ("_engine", "callback", "gate", "is_in_heap")

    def __init__(self, engine: Engine, callback: Callable[[], None], gate: Callable[[Timer], None]) -> None:
        self._engine = engine
        self.callback: Callable[[], None] | None = callback
        self.gate = gate
        self.is_in_heap = True

    def cancel(self) -> None:
        """Disarm it; harmless after it fired."""
        if self.callback is not None:
            self.callback = None
            if self.is_in_heap:
                self._engine.timer_cancelled()


def _is_live(entry: Entry) -> bool:
    """Whether it is not a timer that was cancelled."""
    return entry[3] is not None or entry[4].callback is not None


class _Later:
    """Events that are not due soon, unsorted, by the stretch of time in which they are due."""

    __slots__ = ("_by_stretch", "_stretches", "count")

    def __init__(self) -> None:
        self._by_stretch: dict[int, list[Entry]] = {}
        self._stretches: list[int] = []
        """The keys, as a heap."""
        self.count = 0

    def put(self, entry: Entry) -> None:
        """Keep it until `take`."""
        stretch = int(entry[0] * STRETCHES_PER_S)
        entries = self._by_stretch.get(stretch)
        if entries is None:
            self._by_stretch[stretch] = [entry]
            heapq.heappush(self._stretches, stretch)
        else:
            entries.append(entry)
        self.count += 1

    def take(self, before_s: float) -> tuple[float, list[Entry]]:
        """The end of the first stretch that has events, and these; no later one than that of the time ``before_s``."""
        if self._stretches and self._stretches[0] <= before_s * STRETCHES_PER_S:
            stretch = heapq.heappop(self._stretches)
            entries = self._by_stretch.pop(stretch)
            self.count -= len(entries)
            return (stretch + 1) * STRETCH_S, entries
        return (math.floor(before_s * STRETCHES_PER_S) + 1) * STRETCH_S, []

    def drop_cancelled(self) -> None:
        """Forget timers that were cancelled."""
        for stretch, entries in self._by_stretch.items():
            self._by_stretch[stretch] = [entry for entry in entries if _is_live(entry)]
        self.count = sum(map(len, self._by_stretch.values()))

    def __bool__(self) -> bool:
        return bool(self._stretches)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The trace hash after so many events, at that virtual time."""

    events: int
    time_s: float
    digest: str


class Engine:
    """Runs events in order of (time, sequence). Not re-entrant, and no threads.

    ``now`` is the virtual time in seconds; ``heap`` and ``sequence`` are for the network's hot path, everybody else
    calls `schedule`. The heap has all events that are due before the end of the current stretch, and may have others.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self.sequence = 0
        self.heap: list[Entry] = []
        self.soon: deque[tuple[Callable[[Any], object], Any]] = deque()
        self.after: Callable[[int], None] | None = None
        """Called with the node index after each event, when set; read once at the start of `run`."""
        self.checkpoints: list[Checkpoint] = []
        self.checkpoint_every = CHECKPOINT_EVENTS
        self.events_hashed = 0
        self.keep_chunk: int | None = None
        """Which chunk of `CHECKPOINT_EVENTS` events to keep for `chunk`, counted from 0."""
        self.kept: list[tuple[float, int]] = []
        self._mark = mark_of(NO_NODE, 0)
        """Of the event that runs or ran last."""
        self._later = _Later()
        self._stretch_end_s = 0.0
        self._cancelled = 0
        self._first_sequence = FIRST_SEQUENCE
        self._times = array("d")
        self._marks = array("Q")
        self._hash = hashlib.blake2b(digest_size=16)
        self._is_running = False

    # Putting events in

    def schedule(self, time_s: float, mark: int, function: Callable[[Any], object], argument: Any = None) -> None:
        """Call ``function(argument)`` at a virtual time, not before now."""
        self.sequence = sequence = self.sequence + 1
        if time_s < self.now:
            time_s = self.now
        if time_s >= self._stretch_end_s:
            self._later.put((time_s, sequence, mark, function, argument))
        else:
            heapq.heappush(self.heap, (time_s, sequence, mark, function, argument))

    def schedule_first(self, mark: int, function: Callable[[Any], object], argument: Any) -> None:
        """Call ``function(argument)`` now, as an event before all that `schedule` put at this instant."""
        self._first_sequence += 1
        heapq.heappush(self.heap, (self.now, self._first_sequence, mark, function, argument))

    def call_later(
        self, delay_s: float, mark: int, callback: Callable[[], None], gate: Callable[[Timer], None]
    ) -> Timer:
        """Arm a timer. Raises `Bug` for a delay that is not a number or infinite."""
        if not math.isfinite(delay_s):
            raise Bug(f"a timer of {delay_s} seconds")
        timer = Timer(self, callback, gate)
        self.sequence = sequence = self.sequence + 1
        time_s = self.now + delay_s if delay_s > 0.0 else self.now
        if time_s >= self._stretch_end_s:
            self._later.put((time_s, sequence, mark, None, timer))
        else:
            heapq.heappush(self.heap, (time_s, sequence, mark, None, timer))
        return timer

    def call_soon(self, function: Callable[[Any], object], argument: Any) -> None:
        """Call ``function(argument)`` after the current event, before any other."""
        self.soon.append((function, argument))

    def timer_cancelled(self) -> None:
        """A waiting timer was disarmed. Forget all such timers when most of what waits is one."""
        self._cancelled += 1
        if self._cancelled > COMPACT_MIN and self._cancelled * 2 > self.entries:
            self.heap[:] = filter(_is_live, self.heap)  # in place: the running loop holds this list
            heapq.heapify(self.heap)
            self._later.drop_cancelled()
            self._cancelled = 0

    # Running them

    @property
    def current(self) -> int:
        """Index of the node of the event that runs or ran last."""
        return self._mark >> NODE_SHIFT

    @property
    def entries(self) -> int:
        """What is held of events to come, cancelled timers among them."""
        return len(self.heap) + self._later.count

    @property
    def pending(self) -> int:
        """Events waiting, without cancelled timers."""
        return self.entries - self._cancelled + len(self.soon)

    @property
    def events(self) -> int:
        """Events run so far."""
        return self.events_hashed + len(self._marks)

    @property
    def next_time_s(self) -> float | None:
        """When the next event is due; ``None`` when there is none."""
        heap = self.heap
        while heap or self._later:
            if not heap or heap[0][0] >= self._stretch_end_s:
                self._begin_stretch()
            elif _is_live(heap[0]):
                return heap[0][0]
            else:
                heapq.heappop(heap)
                self._cancelled -= 1
        return None

    def run(self, until_s: float, events_max: int | None = None) -> int:
        """Run every event due by ``until_s``, then set the clock to it; returns how many ran.

        With ``events_max`` it may return earlier, with the clock at the last event. Exceptions are not caught.
        """
        if self._is_running:
            raise Bug("the engine was asked to run from within an event")
        self._is_running = True
        before = self.events
        try:
            self._drain_soon()
            is_due_done = self._loop(until_s, math.inf if events_max is None else before + events_max)
            if is_due_done and until_s < math.inf:
                self.now = max(self.now, until_s)
        finally:
            self._is_running = False
        return self.events - before

    def _loop(self, until_s: float, events_max: float) -> bool:
        heap, soon, marks, after = self.heap, self.soon, self._marks, self.after
        add_time, add_mark, pop = self._times.append, marks.append, heapq.heappop
        while heap or self._later:
            if self.events >= events_max:
                return False
            if len(marks) >= CHECKPOINT_EVENTS:
                self._flush()
            if not heap or heap[0][0] >= self._stretch_end_s:
                self._begin_stretch()
            room = int(min(CHECKPOINT_EVENTS - len(marks), events_max - self.events))
            for _ in repeat(None, room):  # cancelled timers count too: then it comes by here once more
                if not heap:
                    break
                entry = pop(heap)
                time, _, mark, function, argument = entry
                if time >= self._stretch_end_s:
                    heapq.heappush(heap, entry)
                    break
                if time > until_s:
                    heapq.heappush(heap, entry)
                    return True
                if function is None:
                    if argument.callback is None:
                        self._cancelled -= 1
                        continue
                    argument.is_in_heap = False
                    function = argument.gate
                self.now = time
                self._mark = mark
                add_time(time)
                add_mark(mark)
                function(argument)
                if soon:
                    self._drain_soon()
                if after is not None:
                    after(mark >> NODE_SHIFT)
        return True

    def _begin_stretch(self) -> None:
        """Put the events of the next stretch into the heap. For when nothing is left of the current one."""
        heap = self.heap
        self._stretch_end_s, entries = self._later.take(heap[0][0] if heap else math.inf)
        live = [entry for entry in entries if _is_live(entry)]
        self._cancelled -= len(entries) - len(live)
        heap += live
        heapq.heapify(heap)

    def _drain_soon(self) -> None:
        soon = self.soon
        for _ in range(SOON_MAX):
            if not soon:
                return
            function, argument = soon.popleft()
            function(argument)
        raise Bug(f"over {SOON_MAX} callbacks at {self.now:.6f} s: a handler calls itself for ever")

    # The trace

    def digest(self) -> str:
        """The hash of every event so far, 32 hexadecimal digits."""
        rest = self._hash.copy()
        rest.update(self._times.tobytes())
        rest.update(self._marks.tobytes())
        return rest.hexdigest()

    def chunk(self) -> list[tuple[float, int]]:
        """(time, mark) of each event of the chunk to keep, as far as it was run."""
        if self.keep_chunk is not None and self.keep_chunk * CHECKPOINT_EVENTS == self.events_hashed:
            return list(zip(self._times, self._marks, strict=True))
        return self.kept

    def _flush(self) -> None:
        # Times and marks of one chunk are hashed one after the other, so chunks must end at the same event in every
        # run: they do, every CHECKPOINT_EVENTS.
        if len(self._marks) < CHECKPOINT_EVENTS:
            raise Bug("a trace chunk was cut short")
        self._hash.update(self._times.tobytes())
        self._hash.update(self._marks.tobytes())
        if self.keep_chunk is not None and self.keep_chunk * CHECKPOINT_EVENTS == self.events_hashed:
            self.kept = list(zip(self._times, self._marks, strict=True))
        self.events_hashed += len(self._marks)
        del self._times[:]
        del self._marks[:]
        if self.events_hashed % self.checkpoint_every == 0:
            self.checkpoints.append(Checkpoint(self.events_hashed, self.now, self._hash.hexdigest()))
        if len(self.checkpoints) > CHECKPOINTS_MAX:
            self.checkpoint_every *= 2
            self.checkpoints = self.checkpoints[1::2]
