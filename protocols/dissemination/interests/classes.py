"""The kind of interest ``classes``: an item's first word is its class, and an interest is a set of classes.

"1,3" wants every item of class 1 or 3, and "" wants everything. It is the simplest kind with all that kinds have, and
what the CoDD paper's evaluation uses (section 7: interest classes).
"""

from __future__ import annotations

from typing import Any, Final

from protocols.dissemination.interests.errors import InterestError, ItemError
from protocols.dissemination.messages import StreamItem
from protocols.dissemination.names import interest_id
from protocols.dissemination.ports import Interest

CLASS_LENGTH_MAX: Final = 32
CLASSES_MAX: Final = 1000


class Everything(frozenset[str]):
    """The set of all classes."""

    def __contains__(self, item: object) -> bool:
        return True

    def __ge__(self, other: object) -> bool:
        return True


class ClassesKind:
    """Implements `protocols.dissemination.ports.InterestKind`."""

    name = "classes"

    def parse(self, text: str) -> Interest:
        names = sorted(set(text.split(","))) if text else []
        if len(names) > CLASSES_MAX:
            raise InterestError(f"an interest of {len(names)} classes: {CLASSES_MAX} is the limit")
        if any(not name.isalnum() or len(name) > CLASS_LENGTH_MAX for name in names):
            raise InterestError(f"expected names of classes with commas between them, not {text!r:.100}")
        canonical = ",".join(names)
        return Interest(interest_id(self.name, canonical), canonical, frozenset(names) if names else Everything())

    def content(self, item: StreamItem) -> Any:
        try:
            text = item.payload.decode()
        except UnicodeDecodeError as error:
            raise ItemError("the item is no text") from error
        name = text.partition(" ")[0]
        if not name.isalnum():
            raise ItemError(f"an item begins with its class, not with {name!r:.40}")
        return name

    def make_set(self) -> ClassSet:
        return ClassSet()

    def matches(self, interest: Interest, content: Any) -> bool:
        return content in interest.meaning

    def covers(self, wide: Interest, narrow: Interest) -> bool:
        if isinstance(narrow.meaning, Everything):
            return isinstance(wide.meaning, Everything)
        return bool(wide.meaning >= narrow.meaning)

    def overlap(self, one: Interest, other: Interest) -> float:
        if isinstance(one.meaning, Everything) or isinstance(other.meaning, Everything):
            return 1.0
        return len(one.meaning & other.meaning) / len(one.meaning)


class ClassSet:
    """Implements `protocols.dissemination.ports.InterestSet`."""

    def __init__(self) -> None:
        self._known: dict[bytes, Interest] = {}

    def add(self, interest: Interest) -> None:
        self._known[interest.id] = interest

    def remove(self, id: bytes) -> None:
        self._known.pop(id, None)

    def match(self, content: Any) -> set[bytes]:
        return {id for id, interest in self._known.items() if content in interest.meaning}

    def __len__(self) -> int:
        return len(self._known)
