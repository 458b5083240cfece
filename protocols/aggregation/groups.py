"""GROUP BY: a function for each value of a key, with a cap on how many.

When there are more than ``groups_max`` groups the smallest (see `Function.rank`) are folded into a `Remainder`: their
merged state, and an upper bound on how many distinct groups were folded. What stays exact under every order of merges:
all groups merged with the remainder. What then depends on the order: which groups near the cap are listed, and how much
of a listed group was folded before (its value may lack what the remainder holds). An empty remainder means that every
group is exact.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

import msgspec

from peerd.errors import ProtocolError, Unavailable
from peerd.frozen import Frozen
from protocols.aggregation.columns import (
    ARRAYS_MIN,
    GroupColumns,
    parts_of,
    read_column,
    read_keys,
    write_column,
    write_keys,
)
from protocols.aggregation.numbers import COUNT_MAX, add_counts
from protocols.aggregation.scalars import ScalarReader, ScalarWriter

if TYPE_CHECKING:
    from protocols.aggregation.figures import Figure, Figures, GroupedAnswer
    from protocols.aggregation.functions import Function

S = TypeVar("S")
_T = TypeVar("_T")

GROUPS_MAX_DEFAULT: Final = 100_000
GROUPS_HARD_MAX: Final = 200_000
"""Most groups that one value may hold as a whole; of more it goes in slices (`protocols.aggregation.slices`)."""
SLICES: Final = 64
"""As many as nodes may exchange pieces: each piece has one slice or more."""
GROUPS_MAX: Final = SLICES * 156_250
"""Most groups of a query: ten million."""
EXPANDING_BYTES_MAX: Final = 4 * 1024 * 1024
"""Most bytes of all groups' quantiles, histograms, lists and vectors. As objects they take up to 60 times as much."""


def key_of(texts: Sequence[str]) -> str:
    """The key of the group of these values: the value itself, or a JSON array of several.

    Raises ``UnicodeEncodeError`` for half of a surrogate pair.
    """
    return texts[0] if len(texts) == 1 else msgspec.json.encode(texts).decode()


def in_pairs(merge: Callable[[_T, _T], _T], values: Sequence[_T]) -> _T:
    """All of these, at least one, merged two by two: one after another would go through the first ones each time."""
    while len(values) > 1:
        values = [reduce(merge, values[at : at + 2]) for at in range(0, len(values), 2)]
    return values[0]


class Remainder(Frozen, Generic[S]):
    """The groups that were folded away: at most ``groups`` different ones, whose states together are ``state``."""

    groups: int
    """Upper bound: a group that is folded twice, here and on another node, counts twice."""
    state: S


class GroupStates(Generic[S]):
    """GROUP BY state: never changed once made, though `groups` is a plain dict for speed.

    Many groups may be there as `columns`; `groups` is then made of them when somebody looks at it.
    """

    __slots__ = ("_function", "_groups", "columns", "remainder")

    def __init__(self, groups: dict[str, S], remainder: Remainder[S]) -> None:
        self._groups: dict[str, S] | None = groups
        self._function: Function[S] | None = None
        self.columns: GroupColumns | None = None
        self.remainder = remainder

    @staticmethod
    def of(function: Function[S], columns: GroupColumns, remainder: Remainder[S]) -> GroupStates[S]:
        """From columns of the states of ``function``."""
        made: GroupStates[S] = GroupStates({}, remainder)
        made._groups, made._function, made.columns = None, function, columns
        return made

    @property
    def groups(self) -> dict[str, S]:
        """Return the state of each group."""
        if self._groups is None:
            assert self.columns is not None and self._function is not None
            states = self._function.from_lists(self.columns.lists())
            self._groups = dict(zip(self.columns.texts(), states, strict=True))
        return self._groups

    def __len__(self) -> int:
        return len(self.groups) if self.columns is None else len(self.columns)

    def as_columns(self, function: Function[S], least: int | None = None) -> GroupColumns | None:
        """Return the groups as columns; ``None`` where they are not for that, or fewer than ``least``."""
        if self.columns is not None:
            return self.columns
        keys = sorted(self.groups)
        lists = function.to_lists(list(map(self.groups.__getitem__, keys)))
        return GroupColumns.of(function.arrays, keys, lists, least)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, GroupStates):
            return NotImplemented
        return self.remainder == other.remainder and self.groups == other.groups

    __hash__ = None  # type: ignore[assignment]  # as a dict's

    def __repr__(self) -> str:
        return f"GroupStates({dict(sorted(self.groups.items()))!r}, {self.remainder!r})"


class Grouped(Generic[S]):
    """A function for each key, at most ``groups_max`` of them; itself a (capped) monoid."""

    def __init__(self, function: Function[S], groups_max: int) -> None:
        self.function = function
        self.groups_max = groups_max

    @property
    def zero(self) -> GroupStates[S]:
        """Return the state without groups, with nothing folded away."""
        return GroupStates({}, Remainder(0, self.function.zero))

    def lift(self, key: str, value: object) -> GroupStates[S]:
        """Return the state of one record."""
        return GroupStates({key: self.function.lift(value)}, Remainder(0, self.function.zero))

    def merge(self, a: GroupStates[S], b: GroupStates[S]) -> GroupStates[S]:
        """Both, folded down to the cap. Exact, commutative and associative as long as nothing is folded."""
        merge = self.function.merge
        remainder = Remainder(
            add_counts(a.remainder.groups, b.remainder.groups), merge(a.remainder.state, b.remainder.state)
        )
        columns = self._merged_columns(a, b)
        if columns is not None:
            return self.fold(GroupStates.of(self.function, columns, remainder))
        large, small = (a, b) if len(a) >= len(b) else (b, a)
        merged = large.groups.copy()
        get = merged.get
        for key, state in small.groups.items():
            present = get(key)
            merged[key] = state if present is None else merge(present, state)
        return self.fold(GroupStates(merged, remainder))

    def _merged_columns(self, a: GroupStates[S], b: GroupStates[S]) -> GroupColumns | None:
        """Many groups, merged as arrays; ``None`` where that is no way for them, which their decoding has found."""
        kinds = self.function.arrays
        if a.columns is None and b.columns is None:
            return None
        if not len(a) or not len(b):
            return a.columns or b.columns
        left, right = a.as_columns(self.function, 1), b.as_columns(self.function, 1)
        return None if left is None or right is None else left.merge(kinds, right)

    def split(self, value: GroupStates[S], parts: int) -> list[GroupStates[S]]:
        """The groups of each part by their keys, the same on every node. What was folded goes with the first part."""
        empty = Remainder(0, self.function.zero)
        folded = [value.remainder, *[empty] * (parts - 1)]
        if value.columns is not None:
            columns = value.columns.split(parts)
            made = [GroupStates.of(self.function, *each) for each in zip(columns, folded, strict=True)]
            return [each if len(each) >= ARRAYS_MIN else GroupStates(each.groups, each.remainder) for each in made]
        groups: list[dict[str, S]] = [{} for _ in range(parts)]
        for (key, state), number in zip(value.groups.items(), parts_of(value.groups, parts), strict=True):
            groups[number][key] = state
        return [GroupStates(*each) for each in zip(groups, folded, strict=True)]

    def fold(self, value: GroupStates[S]) -> GroupStates[S]:
        """At most ``groups_max`` groups: those of the smallest rank go, of equal ones the last in key order."""
        excess = len(value) - self.groups_max
        if excess <= 0:
            return value
        folded = add_counts(value.remainder.groups, excess)
        function, state = self.function, value.remainder.state
        if value.columns is not None:
            columns, totals = value.columns.fold(function.arrays, self.groups_max)
            state = function.merge(state, self._state_of(totals))
            return GroupStates.of(function, columns, Remainder(folded, state))
        ranked = sorted(value.groups)
        ranked.sort(key=lambda key: function.rank(value.groups[key]), reverse=True)
        for key in ranked[self.groups_max :]:
            state = function.merge(state, value.groups[key])
        kept = {key: value.groups[key] for key in ranked[: self.groups_max]}
        return GroupStates(kept, Remainder(folded, state))

    def _state_of(self, totals: Sequence[object]) -> S:
        try:
            return self.function.from_columns(totals)
        except ValueError as error:
            raise ProtocolError("aggregation_overflow", f"what is folded passes a bound: {error}") from error

    def total(self, value: GroupStates[S]) -> S:
        """All groups and the remainder merged: what the function without groups would give."""
        function = self.function
        if value.columns is not None:
            listed = function.from_columns(value.columns.totals(function.arrays))
        else:
            listed = function.merge_all(value.groups.values())
        return function.merge(value.remainder.state, listed)

    def lower(self, value: GroupStates[S], top: int | None = None) -> GroupedAnswer:
        """The ``top`` (default all) groups, largest `Function.rank` first, then by key."""
        from protocols.aggregation.figures import GroupedAnswer  # with the first answer

        answers: dict[str, Figure | Figures] = {}
        for key, state in self.ranked(value, top):
            answer = self.function.lower(state)
            if answer is not None:
                answers[key] = answer
        folded = value.remainder.groups
        return GroupedAnswer(
            groups=answers,
            groups_total=len(value),
            remainder_groups_max=folded,
            remainder=self.function.lower(value.remainder.state) if folded else None,
        )

    def ranked(self, value: GroupStates[S], top: int | None) -> Iterable[tuple[str, S]]:
        """The first ``top`` (default all) groups, in the order of `lower`."""
        if value.columns is not None:
            keys, lists = value.columns.ranked(self.function.arrays, top)
            return zip(keys, self.function.from_lists(lists), strict=True)
        rank, groups = self.function.rank, value.groups
        order = heapq.nsmallest(len(groups) if top is None else top, groups, key=lambda key: (-rank(groups[key]), key))
        return ((key, groups[key]) for key in order)


# --- groups on the wire ---------------------------------------------------------------------------------------


def put_groups(stream: ScalarWriter, function: Function[Any], value: GroupStates[Any]) -> None:
    """Write the groups of a value. Raises `Unavailable` when they take too much."""
    if value.columns is not None:
        lengths, keys, columns = value.columns.write()
    else:
        ordered = sorted(value.groups)
        lengths, keys = write_keys(ordered)
        columns = list(map(write_column, function.to_lists(list(map(value.groups.__getitem__, ordered)))))
    if _expanding_bytes(function, columns) > EXPANDING_BYTES_MAX:
        raise Unavailable(f"the functions of all groups take more than {EXPANDING_BYTES_MAX} bytes; lower groups_max")
    stream.put(len(value), lengths, keys, *columns)
    stream.put(value.remainder.groups, *function.to_columns(value.remainder.state))


def _expanding_bytes(function: Function[Any], columns: Sequence[bytes]) -> int:
    """The bytes of the states that take many times as much memory as on the wire."""
    return sum(len(column) for column, expands in zip(columns, function.expanding(), strict=True) if expands)


def take_groups(reader: ScalarReader, function: Function[Any], groups_max: int) -> GroupStates[Any]:
    """Inverse of `put_groups`. Raises ``ValueError`` for what no node writes."""
    count = reader.count(min(groups_max, GROUPS_HARD_MAX))
    lengths, keys = reader.blob(), reader.blob()
    columns = [reader.blob() for _ in range(function.columns)]
    if _expanding_bytes(function, columns) > EXPANDING_BYTES_MAX:
        raise ValueError(f"the states of functions take more than {EXPANDING_BYTES_MAX} bytes")
    folded = reader.count(COUNT_MAX)
    state = function.from_scalars(reader.take(function.columns))
    if folded == 0 and state != function.zero:
        raise ValueError("a remainder of no groups")
    remainder = Remainder(folded, state)
    arrays = GroupColumns.read(function.arrays, count, lengths, keys, columns)
    if arrays is not None:
        return GroupStates.of(function, arrays, remainder)
    texts = read_keys(lengths, keys, count)
    states = function.from_lists([read_column(column, count) for column in columns])
    if function.has_empty(states):
        raise ValueError("a group without records")
    return GroupStates(dict(zip(texts, states, strict=True)), remainder)


def malformed(error: Exception) -> ProtocolError:
    """What is raised in place of what reading a value has raised."""
    detail = str(error) if type(error) is ValueError else f"not msgpack: {type(error).__name__}"
    return ProtocolError("aggregation_partial", detail)
