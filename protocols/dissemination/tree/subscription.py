"""A subscription of this node, and what it is given. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from protocols.dissemination.names import StreamPosition
from protocols.dissemination.ports import Interest, LastGiven, ParsedItem


@dataclass(frozen=True, slots=True)
class Lost:
    """What a subscription did not get, wholly or in part: what came after ``since``, up to ``until``."""

    since: StreamPosition
    until: StreamPosition


@dataclass(frozen=True, slots=True)
class StaleFrom:
    """Nobody vouches for what a subscription was given, until items come again. ``at``: how far the stream was then."""

    at: StreamPosition


@dataclass(frozen=True, slots=True)
class FreshAgain:
    """Somebody vouches again for what a subscription is given from here on. ``at``: how far the stream is."""

    at: StreamPosition


Delivered = ParsedItem | Lost | StaleFrom | FreshAgain


@dataclass(eq=False, slots=True)
class OwnSubscription:
    """A subscription of this node. ``deliver`` is called in order, each item once."""

    number: int
    interest: Interest
    deliver: Callable[[Delivered], None]
    after: StreamPosition | None
    on_live: Callable[[], None]
    through: StreamPosition | None = None
    """It has been given everything up to here; ``None``: it has not begun."""
    given: LastGiven | None = None
    """What it was last given of each object, where the kind of interests goes by that."""
    is_stale: bool = False
    """It was told that nobody vouches for that."""

    def give(self, held: ParsedItem) -> None:
        """Give it an item, unless it has got that already."""
        if self.through is not None and held.position > self.through:
            self.through = held.position
            self.deliver(held)

    def fall_back(self, through: StreamPosition) -> None:
        """The stream is only so far. What this was given, or told to be lost, after that was not of it."""
        if self.through is not None:
            self.through = min(self.through, through)

    def lose(self, since: StreamPosition, until: StreamPosition) -> None:
        """Tell it of a loss, as far as that is one for it."""
        if self.through is not None and until > self.through:
            lost = Lost(max(since, self.through), until)
            self.through = until
            self.deliver(lost)
