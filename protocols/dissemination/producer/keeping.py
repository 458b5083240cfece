"""A durable stream at its producer: each item is on disk before it goes out, as long as the disk takes it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from peerd.errors import Unavailable
from peerd.frozen import Frozen
from protocols.dissemination.interests.errors import ItemError
from protocols.dissemination.messages import StreamItem
from protocols.dissemination.names import StreamPosition
from protocols.dissemination.ports import ParsedItem
from protocols.dissemination.producer.log import ProducerLog, ProducerLogs
from protocols.dissemination.producer.release_queue import ReleaseQueue
from protocols.dissemination.service import StreamRefused

BEGIN_AGAIN_S: Final = 5.0
"""Where the disk has refused, it is asked again after this."""

Kept = Callable[[bool | Exception], None]
"""Told whether an item is on disk; or that it was refused in the end."""
OnChange = Callable[[bool, str], None]
"""Told that items are kept from now on, or are not, and why."""


class PastItems(Frozen):
    """What a producer had on disk when it was restarted: all that came after ``floor``, and when each was kept."""

    floor: StreamPosition
    items: tuple[tuple[StreamItem, float], ...]
    log: ProducerLog

    @property
    def last(self) -> StreamPosition:
        """Where the stream stood."""
        return self.items[-1][0].position if self.items else self.floor


class Keeping:
    """Holds items back until they are on disk. Where the disk refuses they go out without; ``on_change`` is told."""

    def __init__(
        self, name: str, logs: ProducerLogs, log: ProducerLog | None, releasing: ReleaseQueue, on_change: OnChange
    ) -> None:
        self._name, self._logs, self._log, self._releasing, self._on_change = name, logs, log, releasing, on_change
        self.is_kept = log is not None
        """Whether what has gone out is on disk, so that a restart loses nothing of it."""
        self._pending: deque[ParsedItem] = deque()
        self._waiting: deque[tuple[StreamPosition, Kept]] = deque()
        self._begin_at = 0.0

    @property
    def is_busy(self) -> bool:
        """Whether publishers should wait for the disk."""
        return self._log is not None and self._log.is_busy

    @property
    def is_waiting(self) -> bool:
        """Whether something that was published has still to get to the disk, and has not gone out."""
        return bool(self._pending)

    def begin(self, at: StreamPosition) -> None:
        """Begin with an empty past: what comes after this mark is kept. Raises `Unavailable`, `StreamRefused`."""
        log = self._logs.begin(self._name)

        def marked() -> None:
            if self._log is not log:
                return
            try:
                self._logs.counts(self._name)
            except Unavailable as error:
                self._failed(log, str(error))
                return
            self.is_kept = True
            self._on_change(True, "")
            self._out(log.durable_through)

        log.append(at, None, marked, lambda why: self._failed(log, why))
        self._log = log

    def publish(self, parsed: ParsedItem) -> None:
        """The next item. Raises `Unavailable`: the disk is behind; `ItemError` where it goes out at once."""
        log, at = self._log, parsed.position
        if log is None:
            self._releasing.release(parsed)
            return

        def durable() -> None:
            if self._log is log and self.is_kept:
                self._out(log.durable_through)  # with all that was written together with it

        log.append(at, parsed.item, durable, lambda why: self._failed(log, why))
        self._pending.append(parsed)

    def _out(self, watermark: StreamPosition) -> None:
        """These are on disk: they go to the children."""
        is_any = False
        while self._pending and self._pending[0].position <= watermark:
            is_any = True
            self._let_out(self._pending.popleft())
        if is_any:
            self._releasing.on_out()

    def _let_out(self, parsed: ParsedItem) -> None:
        answer: bool | Exception = self.is_kept
        try:
            self._releasing.release(parsed)
        except ItemError as error:  # what its kind knows only when it counts: there are too many objects
            answer = StreamRefused("invalid", str(error))
        while self._waiting and self._waiting[0][0] <= parsed.position:
            self._waiting.popleft()[1](answer)

    def _failed(self, log: ProducerLog, why: str) -> None:
        if self._log is not log:
            return
        was_kept, self._log, self.is_kept = self.is_kept, None, False
        with suppress(Unavailable):  # until `tick` can remove it, the stream's record says that it does not count
            self._logs.remove(self._name)
        if was_kept or self._pending:
            self._on_change(False, why)
        if self._pending:
            self._out(self._pending[-1].position)

    def when_kept(self, on_done: Kept) -> None:
        """Call back when the last item is on disk, or cannot be."""
        if self._pending:
            self._waiting.append((self._pending[-1].position, on_done))
        else:
            on_done(self.is_kept)

    def tick(self, now: float, watermark: StreamPosition, floor: StreamPosition) -> None:
        """Remove what is not remembered any more; or try again what the disk has refused.

        ``watermark``: the newest item that was let go without the disk. It may still wait to be matched, and a log that
        began before it would not say that it is missing.
        """
        if self._log is not None:
            self._log.trim(floor)
        elif now >= self._begin_at:
            self._begin_at = now + BEGIN_AGAIN_S
            try:
                self.begin(watermark)
            except (Unavailable, StreamRefused):
                return  # it is asked again

    def stop(self, *, is_over: bool) -> None:
        """Nothing more is published here. What waits for the disk gets there, or goes out if the stream is over."""
        if is_over and self._pending:
            self._out(self._pending[-1].position)
        self._log = None
        self._pending.clear()
        self.let_go(f"the stream {self._name} is over")

    def let_go(self, reason: str) -> None:
        """Nobody is told of the disk any more: the plugin ends, or is replaced."""
        waiting, self._waiting = self._waiting, deque()
        for _, on_done in waiting:
            on_done(Unavailable(reason))
