"""The kind of interest ``everything``: items of any bytes, which everybody who asks gets all of."""

from __future__ import annotations

from typing import Any, Final

from protocols.dissemination.interests.errors import InterestError
from protocols.dissemination.messages import StreamItem
from protocols.dissemination.names import interest_id
from protocols.dissemination.ports import Interest

WORDS: Final = ("", "*")


class EverythingKind:
    """Implements `protocols.dissemination.ports.InterestKind`. Nothing looks into the items."""

    name = "everything"

    def parse(self, text: str) -> Interest:
        if text.strip() not in WORDS:
            raise InterestError(f"a stream of the kind {self.name!r} has no filters: leave the interest empty")
        return Interest(interest_id(self.name, ""), "", None)

    def content(self, item: StreamItem) -> bytes:
        return item.payload

    def make_set(self) -> EverythingSet:
        return EverythingSet()

    def matches(self, interest: Interest, content: Any) -> bool:
        return True

    def covers(self, wide: Interest, narrow: Interest) -> bool:
        return True

    def overlap(self, one: Interest, other: Interest) -> float:
        return 1.0


class EverythingSet:
    """Implements `protocols.dissemination.ports.InterestSet`."""

    def __init__(self) -> None:
        self._ids: set[bytes] = set()

    def add(self, interest: Interest) -> None:
        self._ids.add(interest.id)

    def remove(self, id: bytes) -> None:
        self._ids.discard(id)

    def match(self, content: Any) -> set[bytes]:
        return set(self._ids)

    def __len__(self) -> int:
        return len(self._ids)
