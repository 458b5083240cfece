"""What the rooms of the plugin need of each other. Nothing here acts."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from protocols.dissemination.messages import StreamItem
from protocols.dissemination.names import StreamPosition


@dataclass(frozen=True, slots=True)
class Interest:
    """What a member wants of a stream. ``text`` is canonical: two texts that mean the same are one interest.

    ``meaning`` is the kind's own form of it.
    """

    id: bytes
    text: str
    meaning: Any


@dataclass(frozen=True, slots=True, eq=False)
class ParsedItem:
    """An item as a node holds it: parsed once, for all interests."""

    item: StreamItem
    content: Any

    @property
    def position(self) -> StreamPosition:
        """Where it stands in its stream."""
        return self.item.position


class InterestSet(Protocol):
    """Many interests, matched together: never one after another."""

    def add(self, interest: Interest) -> None:
        """Add one; harmless when it is there already."""

    def remove(self, id: bytes) -> None: ...
    def match(self, content: Any) -> set[bytes]:
        """The ids of the interests that an item's content meets."""

    def __len__(self) -> int: ...


class InterestKind(Protocol):
    """A language of interests: entry point group ``peerd.interests``."""

    name: str

    def parse(self, text: str) -> Interest:
        """Read one. Raises `InterestError`: not valid, or it would cost too much to match."""

    def content(self, item: StreamItem) -> Any:
        """Parse an item. Raises `ItemError` for what is malformed or above a limit."""

    def make_set(self) -> InterestSet: ...
    def matches(self, interest: Interest, content: Any) -> bool: ...
    def covers(self, wide: Interest, narrow: Interest) -> bool:
        """Whether every item that meets ``narrow`` meets ``wide``. Sound; a "no" may be wrong."""

    def overlap(self, one: Interest, other: Interest) -> float:
        """The share of ``one``'s items that ``other`` wants too, 0 to 1, guessed from the texts alone."""

    def reduce(self, interests: Sequence[Interest], limit: int) -> list[Interest]:
        """Leave out what others cover; above the limit put wider ones in their place, one for all in the end."""


Holder = Hashable
"""Who wants something: a child's id, or the number of a subscription of this node."""


def total_bytes(items: Iterable[StreamItem]) -> int:
    """What items count for in a message or a buffer."""
    return sum(item.size for item in items)
