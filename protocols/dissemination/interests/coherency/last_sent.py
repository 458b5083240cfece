"""What a holder was last given of each object, and whether it has to be given more. Pure.

A node holds a value that is at most c_p away from the source's: that is what it *promises*, because its own parent
keeps it so. A child that tolerates c_c was given another value last. As long as that one is at most c_c - c_p away from
the node's, the child is at most c_c away from the source, by the triangle inequality; farther away, and the source
could leave the child's tolerance without the node ever learning of it. So that is when the child gets the node's value
(the two conditions of Shah, Ramamritham and Shenoy 2002 in one). The source promises 0.

Changes are counted from above: a node that may lack n of them may have lacked n before each update that it got.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from protocols.dissemination.interests.coherency.reading import ANY_OBJECT, Needs, simplest
from protocols.dissemination.interests.coherency.tolerance import Divergence, ObjectValue, Scalar, Tolerance, apart
from protocols.dissemination.interests.errors import ItemError
from protocols.dissemination.names import StreamPosition
from protocols.dissemination.ports import Interest, ParsedItem

OBJECTS_MAX: Final = 4096
"""Objects of one stream."""


@dataclass(eq=False, slots=True)
class _Sent:
    """``at``: where ``parsed`` stands in the stream. ``seen``: the newest value that was offered. ``changes``: so many
    the holder may lack by then, at most."""

    parsed: ParsedItem
    at: StreamPosition
    seen: StreamPosition
    changes: float = 0.0


@dataclass(frozen=True, slots=True)
class _Wanted:
    """What is wanted of one object. ``promised``: see `SentValues.promise`, by divergence; ``None`` where that differs
    from value to value."""

    tolerances: tuple[Tolerance, ...]
    promised: tuple[float | None, ...]


class SentValues:
    """Implements `protocols.dissemination.ports.LastSent`."""

    def __init__(self, *, is_source: bool = False) -> None:
        self._is_source = is_source
        self._given: dict[str, _Sent] = {}
        self._needs: Needs = {}
        self._of: dict[str, _Wanted] = {}

    def want(self, interests: Iterable[Interest]) -> None:
        """What the holder wants from now on; for a node's own values: what its parent keeps it within."""
        # Each tolerance that is left is looked at for each value: what others cover is left out.
        found = simplest(
            (name, each) for interest in interests for name, some in interest.meaning.items() for each in some
        )
        for name, last in self._given.items():
            if not self._wanted(name).tolerances:
                last.changes = math.inf  # nobody counted while it was not wanted
        self._needs = found
        self._of.clear()

    def offer(self, parsed: ParsedItem, here: SentValues) -> bool:
        """Whether the holder has to get this value, which the node has now; if so it counts as given."""
        content: ObjectValue = parsed.content
        name, position = content.object, parsed.position
        last = self._given.get(name)
        wanted = self._wanted(name).tolerances
        if last is None:
            if wanted:
                self._given[name] = _Sent(parsed, position, position)
            return bool(wanted)
        if position == last.at:
            return False
        if position != last.seen:
            last.seen = position
            last.changes += here.promise(Divergence.CHANGES, content) + 1
        for each in wanted:
            if self._is_due(each, last, content, here):
                last.parsed, last.at, last.changes = parsed, position, 0.0
                return True
        return False

    @staticmethod
    def _is_due(wanted: Tolerance, last: _Sent, now: ObjectValue, here: SentValues) -> bool:
        before: ObjectValue = last.parsed.content
        room = wanted.amount(before.value) - here.promise(wanted.divergence, now)
        if wanted.divergence is Divergence.CHANGES:
            return last.changes > room
        return apart(wanted.divergence, before, now, room) > room

    def promise(self, divergence: Divergence, value: ObjectValue) -> float:
        """How far the source may be from this value of the node's own without its learning of that, at most."""
        if self._is_source:
            return 0.0
        wanted = self._wanted(value.object)
        promised = wanted.promised[divergence]
        return _promised(wanted.tolerances, divergence, value.value) if promised is None else promised

    def _wanted(self, name: str) -> _Wanted:
        found = self._of.get(name)
        if found is None:
            if len(self._of) >= OBJECTS_MAX:
                self._of.clear()
            tolerances = (*self._needs.get(name, ()), *self._needs.get(ANY_OBJECT, ()))
            is_relative = any(each.divergence is Divergence.PERCENT for each in tolerances)
            promised = (
                None if is_relative and _is_value(each) else _promised(tolerances, each, None) for each in Divergence
            )
            found = self._of[name] = _Wanted(tolerances, tuple(promised))
        return found

    def give(self, parsed: ParsedItem) -> None:
        """The holder has this value now, whatever it had. Raises `ItemError`: there are too many objects."""
        name = parsed.content.object
        if name not in self._given and len(self._given) >= OBJECTS_MAX:
            raise ItemError(f"a stream has at most {OBJECTS_MAX} objects")
        position = parsed.position
        self._given[name] = _Sent(parsed, position, position)

    def has(self, parsed: ParsedItem) -> bool:
        """Whether this is the value that the holder has."""
        last = self._given.get(parsed.content.object)
        return last is not None and last.at == parsed.position

    def newest(self) -> list[ParsedItem]:
        """What the holder has, in the order of the stream."""
        return sorted((each.parsed for each in self._given.values()), key=lambda parsed: parsed.position)

    def unsettle(self) -> None:
        """The node gets its values from elsewhere now: nobody knows how many changes lie between them and the last."""
        for each in self._given.values():
            each.changes = math.inf

    def clear(self) -> None:
        """Nothing that was given counts any more."""
        self._given.clear()


def _promised(tolerances: Iterable[Tolerance], divergence: Divergence, value: Scalar) -> float:
    found = math.inf
    for each in tolerances:
        if each.is_exact:
            return 0.0
        if each.divergence is divergence or (_is_value(each.divergence) and _is_value(divergence)):
            found = min(found, each.amount(value))
        elif divergence is Divergence.EDITS and each.divergence is Divergence.VALUE and each.limit == 0:
            found = 0.0
    return found


def _is_value(divergence: Divergence) -> bool:
    return divergence in (Divergence.VALUE, Divergence.PERCENT)
