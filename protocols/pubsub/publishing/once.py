"""Events that clients name themselves, and may send again: each is published once. Pure.

Who sends an event and hears no answer sends it again, and the first one may have been published. A client that gives
its event a name gets the answer of the first one: its id and its outcome. Only this node knows, for `ONCE_S` and for
the last `ONCE_MAX` names; an event whose outcome was not certain is published anew.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Final

from peerd.api import HistorySize
from protocols.pubsub.models import Published
from protocols.pubsub.names import EventId

ONCE_S: Final = 600.0
"""The name of an event is remembered for so long."""
ONCE_MAX: Final = 8192
"""So many names are remembered."""
NAME_BYTES: Final = 1000
"""What one takes, measured."""
DIGEST_BYTES: Final = 16

OnPublished = Callable[[Published | Exception], None]


@dataclass(slots=True)
class _Named:
    at_s: float
    event: EventId | None = None
    answer: Published | None = None
    waiting: list[OnPublished] = field(default_factory=list)


class OnceWindow:
    """The names that were used lately."""

    def __init__(self) -> None:
        self._names: OrderedDict[bytes, _Named] = OrderedDict()

    def __len__(self) -> int:
        return len(self._names)

    def publish(self, name: str, now: float, on_done: OnPublished, begin: Callable[[OnPublished], EventId]) -> EventId:
        """Publish with ``begin``, or give the answer of the event that had this name. Raises what ``begin`` raises."""
        self._forget_old(now)
        key = blake2b(name.encode(errors="replace"), digest_size=DIGEST_BYTES).digest()
        known = self._names.get(key)
        if known is not None and known.event is not None:
            if known.answer is not None:
                on_done(known.answer)
            else:
                known.waiting.append(on_done)
            return known.event
        named = self._names[key] = _Named(now, waiting=[on_done])

        def done(answer: Published | Exception) -> None:
            if isinstance(answer, Published) and answer.outcome != "unknown":
                named.answer = answer
            elif self._names.get(key) is named:
                del self._names[key]
            waiting, named.waiting = named.waiting, []
            for each in waiting:
                each(answer)

        try:
            named.event = begin(done)
        except Exception:  # whatever it is, it is the caller's; the event may come again
            self._names.pop(key, None)
            raise
        return named.event

    def history(self) -> HistorySize:
        """What is remembered of them."""
        return HistorySize("names of events", len(self._names), len(self._names) * NAME_BYTES, ONCE_MAX * NAME_BYTES)

    def _forget_old(self, now: float) -> None:
        while self._names:
            key, oldest = next(iter(self._names.items()))
            if len(self._names) < ONCE_MAX and now - oldest.at_s < ONCE_S:
                return
            del self._names[key]
