"""The kind of interest ``coherency``: the current values of objects, each within a tolerance."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from protocols.dissemination.interests.coherency.last_sent import SentValues
from protocols.dissemination.interests.coherency.reading import (
    ANY_OBJECT,
    Needs,
    interest_text,
    read_interest,
    read_item,
)
from protocols.dissemination.interests.coherency.tolerance import Divergence, ObjectValue, Tolerance
from protocols.dissemination.messages import StreamItem
from protocols.dissemination.names import interest_id
from protocols.dissemination.ports import Interest

OTHER_MEASURE_SHARE: Final = 0.5
"""The guess for two tolerances that do not measure the same."""


class CoherencyKind:
    """Implements `protocols.dissemination.ports.InterestKind` and `RememberingKind`.

    An item concerns an interest if it is about one of its objects. Whether a holder has to get it depends on what that
    holder has: `SentValues`.
    """

    name = "coherency"

    def parse(self, text: str) -> Interest:
        return _parsed(text)

    def content(self, item: StreamItem) -> ObjectValue:
        return read_item(item)

    def make_set(self) -> CoherencySet:
        return CoherencySet()

    def make_last_sent(self, *, is_source: bool = False) -> SentValues:
        return SentValues(is_source=is_source)

    def object_of(self, content: ObjectValue) -> str:
        return content.object

    def matches(self, interest: Interest, content: ObjectValue) -> bool:
        return content.object in interest.meaning or ANY_OBJECT in interest.meaning

    def covers(self, wide: Interest, narrow: Interest) -> bool:
        for name, some in narrow.meaning.items():
            those = (*wide.meaning.get(name, ()), *wide.meaning.get(ANY_OBJECT, ()))
            if not all(any(other.covers(each) for other in those) for each in some):
                return False
        return True

    def overlap(self, one: Interest, other: Interest) -> float:
        shares = [
            max((share(its, each) for its in _concerning(other.meaning, name)), default=0.0)
            for name, some in one.meaning.items()
            for each in some
        ]
        return sum(shares) / len(shares)


def _concerning(needs: Needs, name: str) -> tuple[Tolerance, ...]:
    if name == ANY_OBJECT:
        return tuple(each for some in needs.values() for each in some)
    return (*needs.get(name, ()), *needs.get(ANY_OBJECT, ()))


def share(its: Tolerance, mine: Tolerance) -> float:
    """Guess the share of the updates for one tolerance that another one wants too.

    A value that goes up and down by chance needs a time that grows as the square of the distance to get so far away.
    """
    if its.covers(mine):
        return 1.0
    if its.divergence is not mine.divergence:
        return OTHER_MEASURE_SHARE
    if its.divergence is Divergence.CHANGES or its.divergence is Divergence.AGE:
        return (mine.limit + 1) / (its.limit + 1)
    if its.divergence is Divergence.EDITS:
        return max(1.0, mine.limit) / its.limit
    return (mine.limit / its.limit) ** 2


@lru_cache(maxsize=1 << 14)
def _parsed(text: str) -> Interest:
    needs = read_interest(text)
    canonical = interest_text(needs)
    return Interest(interest_id("coherency", canonical), canonical, needs)


class CoherencySet:
    """Implements `protocols.dissemination.ports.InterestSet`: which interests an object concerns."""

    def __init__(self) -> None:
        self._known: dict[bytes, Interest] = {}
        self._of: dict[str, set[bytes]] = {}

    def add(self, interest: Interest) -> None:
        if interest.id not in self._known:
            self._known[interest.id] = interest
            for name in interest.meaning:
                self._of.setdefault(name, set()).add(interest.id)

    def remove(self, id: bytes) -> None:
        interest = self._known.pop(id, None)
        for name in () if interest is None else interest.meaning:
            self._of[name].discard(id)
            if not self._of[name]:
                del self._of[name]

    def match(self, content: ObjectValue) -> set[bytes]:
        return {*self._of.get(content.object, ()), *self._of.get(ANY_OBJECT, ())}

    def __len__(self) -> int:
        return len(self._known)
