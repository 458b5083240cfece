"""Sets of keys of one view, as sorted cuts.

A *cut* is a place between keys: ``(key, 0)`` lies just before the key and ``(key, 1)`` just after it. A set of ranges
is a sorted tuple of cuts, at each of which one passes from inside to outside or back, and whether one starts
inside. That makes complement, union and intersection exact and short, for half-lines as well as for points.

In every view but NUMBER a key has a next one (of a text it is the text with a NUL behind it), so there "after" is
written as "before the next", and two sets are equal exactly if their cuts are. Numbers lie dense: between 1 and 2
there is always another one.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable
from typing import Final, TypeAlias

from peerd.frozen import Frozen
from peerd.lib.filter.values import ADDRESS_END, OTHER, Key, View

Cut: TypeAlias = tuple[Key, int]
_FIRST: Final[dict[View, Cut]] = {View.BOOLEAN: (0, 0), View.TEXT: ("", 0), View.ENDING: ("", 0), View.ADDRESS: (0, 0)}
_END: Final[dict[View, Cut]] = {View.BOOLEAN: (2, 0), View.ADDRESS: (ADDRESS_END, 0)}


class Ranges(Frozen):
    """A set of keys; ``inside`` says whether the lowest keys belong to it. Made by the functions below."""

    inside: bool
    cuts: tuple[Cut, ...]

    @property
    def is_empty(self) -> bool:
        """Whether no key belongs to the set."""
        return not self.inside and not self.cuts

    @property
    def is_full(self) -> bool:
        """Whether every key of the view belongs to the set."""
        return self.inside and not self.cuts

    def __contains__(self, key: Key) -> bool:
        if key is OTHER:
            return self.holds_other
        return self.inside is not bool(bisect_right(self.cuts, (key, 0)) & 1)

    @property
    def holds_other(self) -> bool:
        """Whether a value unlike every key (`OTHER`) belongs to the set: it belongs to complements of bounded sets."""
        return self.inside and not len(self.cuts) & 1

    def __invert__(self) -> Ranges:
        return Ranges(not self.inside, self.cuts)

    def __and__(self, other: Ranges) -> Ranges:
        return _combine(self, other, lambda mine, its: mine and its)

    def __or__(self, other: Ranges) -> Ranges:
        return _combine(self, other, lambda mine, its: mine or its)

    def __le__(self, other: Ranges) -> bool:
        """Whether every key of this set is one of the other's."""
        return (self & ~other).is_empty

    def intervals(self) -> list[tuple[Cut | None, Cut | None]]:
        """Pairs of cuts from low to high; ``None`` where there is no bound."""
        ends: list[Cut | None] = [*([None] if self.inside else []), *self.cuts]
        if len(ends) % 2:
            ends.append(None)
        return list(zip(ends[::2], ends[1::2], strict=True))

    def points(self, view: View) -> tuple[Key, ...] | None:
        """Return the keys one by one when the set consists of single keys, else ``None``."""
        keys = []
        if view is View.BOOLEAN:
            return tuple(key for key in (0, 1) if key in self)
        for low, high in self.intervals():
            low, high = low or _FIRST.get(view), high or _END.get(view)
            if low is None or high is None or low[1] or high != after(view, low[0]):
                return None
            keys.append(low[0])
        return tuple(keys)

    def tester(self, view: View) -> Callable[[Key], bool]:
        """Return a function that answers ``key in self`` quickly."""
        if (points := self.points(view)) is not None:
            return points[0].__eq__ if len(points) == 1 and view is View.TEXT else frozenset(points).__contains__
        if (points := (~self).points(view)) is not None:
            excluded = frozenset(points)
            return lambda key: key not in excluded
        intervals = self.intervals()
        return self.__contains__ if len(intervals) > 1 else _interval_tester(*intervals[0])


EMPTY: Final = Ranges(False, ())
FULL: Final = Ranges(True, ())


def after(view: View, key: Key) -> Cut:
    """Return the cut just after a key."""
    if view is View.NUMBER:
        return (key, 1)
    return (key + "\0", 0) if view is View.TEXT or view is View.ENDING else (key + 1, 0)


def between(view: View, low: Cut | None, high: Cut | None) -> Ranges:
    """All keys from one cut to another; ``None`` for no bound."""
    if low is not None and low == _FIRST.get(view):
        low = None
    if high is not None and high == _END.get(view):
        high = None
    if low is not None and high is not None and low >= high:
        return EMPTY
    if high is not None and high == _FIRST.get(view):
        return EMPTY
    if low is not None and low == _END.get(view):
        return EMPTY
    return Ranges(low is None, tuple(cut for cut in (low, high) if cut is not None))


def compared(view: View, operator: str, key: Key) -> Ranges:
    """All keys that stand in the relation (= <> < <= > >=) to the given one."""
    before, behind = (key, 0), after(view, key)
    if operator == "=":
        return between(view, before, behind)
    if operator == "<>":
        return ~between(view, before, behind)
    if operator == "<":
        return between(view, None, before)
    if operator == "<=":
        return between(view, None, behind)
    return between(view, behind if operator == ">" else before, None)


def union(parts: Iterable[Ranges]) -> Ranges:
    """Return the set of all keys that belong to at least one of the parts, which may be many."""
    listed = list(parts)
    while len(listed) > 1:  # in pairs, so that a long list costs n log n and not n squared
        pairs = [left | right for left, right in zip(listed[::2], listed[1::2], strict=False)]
        listed = pairs + listed[len(pairs) * 2 :]
    return listed[0] if listed else EMPTY


def prefix(view: View, text: str) -> Ranges:
    """Return the range of all texts that begin with ``text``."""
    return between(view, (text, 0), beyond(text))


def beyond(text: str) -> Cut | None:
    """The cut after all texts that begin with ``text``; ``None`` when nothing comes after them."""
    for index in range(len(text) - 1, -1, -1):
        code = ord(text[index])
        if code < 0x10FFFF:
            following = 0xE000 if code == 0xD7FF else code + 1  # surrogates are not characters
            return (text[:index] + chr(following), 0)
    return None


def _combine(mine: Ranges, its: Ranges, keep: Callable[[bool, bool], bool]) -> Ranges:
    mine_cuts, its_cuts = frozenset(mine.cuts), frozenset(its.cuts)
    in_mine, in_its = mine.inside, its.inside
    start = inside = keep(in_mine, in_its)
    cuts = []
    for cut in sorted(mine_cuts | its_cuts):
        in_mine ^= cut in mine_cuts
        in_its ^= cut in its_cuts
        if keep(in_mine, in_its) != inside:
            inside = not inside
            cuts.append(cut)
    return Ranges(start, tuple(cuts))


def _interval_tester(low: Cut | None, high: Cut | None) -> Callable[[Key], bool]:
    if low is None and high is None:
        return lambda key: True
    if low is None:
        assert high is not None
        end = high[0]
        return (lambda key: bool(key <= end)) if high[1] else (lambda key: bool(key < end))
    start = low[0]
    if high is None:
        return (lambda key: bool(key > start)) if low[1] else (lambda key: bool(key >= start))
    end = high[0]
    if low[1]:
        return (lambda key: start < key <= end) if high[1] else (lambda key: start < key < end)
    return (lambda key: start <= key <= end) if high[1] else (lambda key: start <= key < end)
