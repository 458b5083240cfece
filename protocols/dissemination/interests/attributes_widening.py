"""What several filters have in common: how much two overlap, and wider filters that take the place of many. Pure.

Works on normal forms (`peerd.lib.filter.normal`): alternatives, each a conjunction of ranges of attributes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from math import prod
from typing import Any, Final

from peerd.lib.filter import Conjunct, NormalForm, covers_form, selectivity
from peerd.lib.filter.meaning import Fits, Presence, Within
from peerd.lib.filter.normal import conjoined
from peerd.lib.filter.patterns import PatternKind
from peerd.lib.filter.ranges import FULL, Ranges, between, union
from peerd.lib.filter.rewrite import node_of_test
from peerd.lib.filter.values import Address, Key, Timestamp, View

INTERVALS_MAX: Final = 16
"""Ranges of one attribute in a widened filter; where there would be more, the gaps between them are filled."""
POINTS_MAX: Final = 64
"""Single values of one attribute in a widened filter; where there would be more, they become ranges."""
PART_GUESS: Final = 0.5
"""The share of a range that another one takes of it, where their lengths do not tell."""

# Overlap


def overlap_of(one: NormalForm, other: NormalForm) -> float:
    """The share of what meets ``one`` that meets ``other`` too, 0 to 1; attributes are taken as independent."""
    if not one.conjuncts:
        return 0.0
    shares = [max((_share(mine, its) for its in other.conjuncts), default=0.0) for mine in one.conjuncts]
    return sum(shares) / len(shares)


def _share(given: Conjunct, wanted: Conjunct) -> float:
    if conjoined(given, wanted) is None:
        return 0.0
    known, form = given.ranges(), NormalForm((given,))
    shares = []
    for test in wanted.tests:
        if covers_form(NormalForm((Conjunct((test,)),)), form):
            continue
        ranges = known.get((test.name, test.view)) if isinstance(test, Within) else None
        if isinstance(test, Within) and ranges is not None:
            shares.append(_part(test.view, ranges, ranges & test.ranges))
        else:
            shares.append(selectivity(node_of_test(test), {}))
    return prod(shares, start=1.0)


def _part(view: View, whole: Ranges, part: Ranges) -> float:
    """Which share of a set of keys a part of it is."""
    all_points, points = whole.points(view), part.points(view)
    if all_points and points is not None:
        return len(points) / len(all_points)
    total, taken = _length(whole), _length(part)
    return taken / total if total and taken is not None else PART_GUESS


def _length(ranges: Ranges) -> float | None:
    length = 0.0
    for low, high in ranges.intervals():
        if low is None or high is None or isinstance(low[0], str):
            return None
        try:
            length += float(high[0]) - float(low[0])
        except OverflowError:
            return None
    return length


# Widening


def widened(forms: Sequence[NormalForm], limit: int) -> list[NormalForm]:
    """At most ``limit`` normal forms that together let through all that these do.

    Filters on the same attributes with near values come together, as in the packed leaves of an R-tree; each lot
    becomes one filter, with the ranges of those attributes that all in the lot have a condition on.
    """
    groups = _groups([form for form in forms if form.conjuncts], limit)
    total = sum(map(len, groups))
    spare = limit - len(groups)
    found = []
    for group in groups:
        lots = 1 + spare * len(group) // total
        each = -(-len(group) // lots)
        ordered = sorted(group, key=_place)
        found += [_hull(ordered[start : start + each]) for start in range(0, len(ordered), each)]
    return found


_Column = tuple[str, View]


def _groups(forms: Sequence[NormalForm], limit: int) -> list[list[NormalForm]]:
    """The forms by the attributes that they have conditions on; if those are too many, by one attribute of each."""
    found: dict[tuple[_Column, ...], list[NormalForm]] = {}
    columns = {id(form): _columns(form) for form in forms}
    for form in forms:
        found.setdefault(tuple(columns[id(form)]), []).append(form)
    if len(found) <= limit:
        return list(found.values())
    left = list(forms)
    groups: list[list[NormalForm]] = []
    while left and len(groups) < limit - 1:
        counts = Counter(column for form in left for column in columns[id(form)])
        if not counts:
            break
        [(most, _)] = counts.most_common(1)
        groups.append([form for form in left if most in columns[id(form)]])
        left = [form for form in left if most not in columns[id(form)]]
    return [*groups, left] if left else groups


def _columns(form: NormalForm) -> list[_Column]:
    """The attributes that all alternatives have a range for."""
    first, *others = (conjunct.ranges() for conjunct in form.conjuncts)
    return sorted(
        column for column in first if column[1] is not View.ENDING and all(column in ranges for ranges in others)
    )


def _place(form: NormalForm) -> list[str]:
    """Sorts filters with near values together."""
    first = form.conjuncts[0].ranges()
    return [_sortable(first[column]) for column in _columns(form)]


def _sortable(ranges: Ranges) -> str:
    low = ranges.intervals()[0][0] if not ranges.is_empty else None
    if low is None:
        return ""
    if isinstance(low[0], str):
        return low[0]
    number = float(low[0])
    return f"{number >= 0:d}{number if number >= 0 else 1 / (1 - number):030.12f}"


def _hull(forms: Sequence[NormalForm]) -> NormalForm:
    found = [conjunct.ranges() for form in forms for conjunct in form.conjuncts]
    common = set(_columns(forms[0])).intersection(*map(_columns, forms[1:]))
    tests = []
    for name, view in sorted(common):
        ranges = _filled(view, union(each[name, view] for each in found))
        if not ranges.is_full:  # else it would only ask for the attribute's presence, and may be left out
            tests.append(Within(name, view, ranges))
    return NormalForm((Conjunct(tuple(tests)),))


def _filled(view: View, ranges: Ranges) -> Ranges:
    intervals, points = ranges.intervals(), ranges.points(view)
    if len(intervals) <= (INTERVALS_MAX if points is None else POINTS_MAX):
        return ranges
    each = -(-len(intervals) // INTERVALS_MAX)
    lots = [intervals[start : start + each] for start in range(0, len(intervals), each)]
    return union(between(view, lot[0][0], lot[-1][1]) for lot in lots)


# Witnesses


def witness_of(form: NormalForm) -> dict[str, Any] | None:
    """An item that should meet a filter; ``None`` where none is found quickly. The caller has to try it."""
    if not form.conjuncts:
        return None
    item: dict[str, Any] = {}
    for test in form.conjuncts[0].tests:
        if test.name in item:
            continue
        if isinstance(test, Presence):
            if test.present:
                item[test.name] = True
        elif isinstance(test, Fits):
            item[test.name] = _fitting(test)
        elif (key := _some_key(test)) is not None:
            item[test.name] = _value(test.view, key)
    return item


def _fitting(test: Fits) -> str:
    """A text that may fit a pattern."""
    if test.negated:
        return ""
    text = test.pattern.text
    return text.replace("%", "").replace("\\", "").replace("_", "a") if test.pattern.kind is PatternKind.LIKE else text


def _some_key(test: Within) -> Key | None:
    return next((key for key in _keys(test.view, test.ranges) if key in test.ranges), None)


def _keys(view: View, ranges: Ranges) -> Iterable[Key]:
    if ranges == FULL:
        yield "" if view in (View.TEXT, View.ENDING) else 0
    for low, high in ranges.intervals():
        if low is not None:
            yield low[0]
            if view is View.NUMBER:
                yield low[0] + 1
        elif high is not None:
            yield "" if view in (View.TEXT, View.ENDING) else high[0]
        if view is View.NUMBER and high is not None:
            yield high[0]
            if low is not None:
                yield (float(low[0]) + float(high[0])) / 2
            else:
                yield high[0] - 1


def _value(view: View, key: Key) -> Any:
    match view:
        case View.BOOLEAN:
            return bool(key)
        case View.ENDING:
            return key[::-1]
        case View.TIME:
            return str(Timestamp(key))
        case View.ADDRESS:
            return str(Address(key))
    return key
