"""Where a producer's items go out in their order: a large one once it is matched, and those after it wait. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from peerd.errors import Unavailable
from protocols.dissemination.names import StreamPosition
from protocols.dissemination.ports import ParsedItem
from protocols.dissemination.tree.state import MemberState

RELEASING_MAX: Final = 256
"""Items that wait until a large one before them is matched. Publishers that ask before they publish have one each."""

HASTE_S: Final = 0.02
"""Where items come no faster than this, on the average, none is held back: each is signed alone."""
TOGETHER: Final = 32
"""So many are signed at once where they come faster."""
HOLD_S: Final = 0.04
"""Or as many as come within this after what was sent before."""
_KEEP: Final = 0.9
_GAP_MAX_S: Final = 1.0


class SendPace:
    """When a producer that signs sends: every node that gets any of a batch has to check its signature.

    That takes as long as all else that is done with an item. So where items come fast, some wait for others.
    """

    def __init__(self, holds: Callable[[], bool]) -> None:
        self._holds = holds
        """Whether the producer signs."""
        self.is_paced = False
        """What was published goes out soon, together with what is published until then."""
        self._sent_at, self._waiting = 0.0, 0
        self._gap_s = _GAP_MAX_S
        """Between two items, on the average."""
        self._published_at = 0.0

    def published(self, now: float) -> None:
        """One more."""
        self._gap_s = _KEEP * self._gap_s + (1 - _KEEP) * min(_GAP_MAX_S, now - self._published_at)
        self._published_at = now
        self._waiting += 1

    def sent(self, now: float) -> None:
        """All that was published is on its way."""
        self._sent_at, self._waiting = now, 0

    def pause_s(self, now: float) -> float:
        """How long those that were not sent have to wait."""
        is_due = self._gap_s > HASTE_S or self._waiting >= TOGETHER
        return 0.0 if is_due or not self._holds() else self._sent_at + HOLD_S - now


class ReleaseQueue:
    """``let_out`` sends an item on; ``on_out`` is called after some went that had waited, here or for the disk."""

    def __init__(self, state: MemberState, let_out: Callable[[ParsedItem], None], on_out: Callable[[], None]) -> None:
        self._state, self._let_out, self.on_out = state, let_out, on_out
        self._waiting: deque[ParsedItem] = deque()
        """The first one is a large item that is being matched."""

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def watermark(self) -> StreamPosition:
        """The newest item that has gone out, or waits here until it can."""
        return self._waiting[-1].position if self._waiting else self._state.watermark

    def check_room(self) -> None:
        """Raise `Unavailable` where too much waits already."""
        if len(self._waiting) >= RELEASING_MAX:
            raise Unavailable(f"{RELEASING_MAX} items wait until a large one is matched")

    def release(self, parsed: ParsedItem) -> None:
        """Send an item on, after those before it."""
        if self._waiting or self._is_for_aside(parsed):
            self._waiting.append(parsed)
            if len(self._waiting) == 1:
                self._match(parsed)
        else:
            self._let_out(parsed)

    def _is_for_aside(self, parsed: ParsedItem) -> bool:
        return self._state.last_sent is None and self._state.matching.is_for_aside(parsed.item)

    def _match(self, parsed: ParsedItem) -> None:
        self._state.matching.prepare(parsed, self._matched, self._not_matched)

    def _matched(self, parsed: ParsedItem) -> None:
        if not self._waiting or self._waiting[0].item is not parsed.item:
            return  # it has gone out, because the stream has got another producer
        self._waiting[0] = parsed
        while self._waiting:
            first = self._waiting[0]
            if first.met is None and self._is_for_aside(first):
                self._match(first)
                break
            self._waiting.popleft()
            self._let_out(first)
        self.on_out()

    @staticmethod
    def _not_matched(error: BaseException) -> None:
        raise error

    def release_all(self) -> None:
        """Send on what still waits to be matched, now."""
        while self._waiting:
            self._let_out(self._waiting.popleft())
