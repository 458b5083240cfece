"""A set of interests in which one that fails ends itself only. Pure.

What cannot be said of an interest must not cost anybody an item that is wanted: an interest that has failed counts as
met. So the node below gets the item, tries the interest itself, and whoever subscribed is told there, and nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from peerd.lib.apart import match_apart
from protocols.dissemination.ports import Interest, InterestKind


class GuardedSet:
    """Implements `protocols.dissemination.ports.InterestSet`; nothing that an interest does makes it raise."""

    def __init__(self, kind: InterestKind) -> None:
        self._kind = kind
        self._known: dict[bytes, Interest] = {}
        self._set = kind.make_set()
        self._is_built = True
        """The set has all of them but those that have failed."""
        self.failed: dict[bytes, str] = {}
        """Interests that cannot be tried, and why not. They count as met."""
        self.faults = 0
        """How often the set could not be asked as a whole."""

    def add(self, interest: Interest) -> None:
        """Add one; harmless when it is there already."""
        if interest.id not in self._known:
            self._known[interest.id] = interest
            self._change(lambda: self._set.add(interest))

    def remove(self, id: bytes) -> None:
        """Remove one."""
        if self._known.pop(id, None) is not None and self.failed.pop(id, None) is None:
            self._change(lambda: self._set.remove(id))

    def _change(self, change: Callable[[], None]) -> None:
        try:
            if self._is_built:
                change()
        except MemoryError:
            raise
        except Exception:  # the set may be half-changed: it is made anew for the next item, where what fails is found
            self._is_built = False

    def match(self, content: Any) -> set[bytes]:
        """The ids of the interests that an item's content meets, or that have failed."""
        keys = (id for id in self._known if id not in self.failed)
        found = match_apart(self._match, keys, self._is_met, content)
        if not found.fault:
            return {*found.met, *self.failed} if self.failed else set(found.met)
        self.faults += 1
        if found.failed:
            self.failed.update(found.failed)
            self._is_built = False
        return {*found.met, *self.failed}

    def _match(self, content: Any) -> set[bytes]:
        if not self._is_built:
            self._set = self._kind.make_set()
            for id, interest in self._known.items():
                if id not in self.failed:
                    self._set.add(interest)
            self._is_built = True
        return self._set.match(content)

    def _is_met(self, id: bytes, content: Any) -> bool:
        return self._kind.matches(self._known[id], content)

    def __len__(self) -> int:
        return len(self._known)
