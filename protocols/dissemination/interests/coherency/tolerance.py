"""How far a value that somebody holds may be from the one at the source, and how far two values are apart. Pure.

A divergence (Zhou, Ooi and Tan 2008, section 2.1) is a distance: what is apart by at most a from one value, and that
one by at most b from another, is apart by at most a + b from the other. So tolerances can be passed down a tree.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, TypeGuard

EDIT_TEXT_MAX: Final = 128
"""Edit distances are worked out for texts up to this length. Longer ones that differ count as wholly different."""
EDITS_MAX: Final = 16

Scalar = int | float | str | bool | None
NUMBERS: Final = frozenset((int, float))


class Divergence(IntEnum):
    """What is measured; in this order in canonical texts."""

    CHANGES = 0
    """How many changes of the object a holder has not been told of."""
    VALUE = 1
    """The difference of two numbers. Two texts that differ are infinitely far apart."""
    PERCENT = 2
    """The same, in percent of the value that is held."""
    AGE = 3
    """The difference of the times of two values, in milliseconds."""
    EDITS = 4
    """How many characters have to be put in, taken out or changed (Levenshtein distance)."""


@dataclass(frozen=True, slots=True)
class ObjectValue:
    """An item of a stream of values: the object, its value, and the time of the value in milliseconds since 1970."""

    object: str
    value: Scalar
    time_ms: int


@dataclass(frozen=True, slots=True, order=True)
class Tolerance:
    """A holder's value is good as long as the source's is not farther away than ``limit``.

    ``CHANGES`` counts the changes that a holder may lack, so that ``CHANGES 1`` in a text is 0 here. ``AGE`` is in
    milliseconds, and 1 less than in the text: an update that is exactly so much newer is wanted.
    """

    divergence: Divergence
    limit: float

    def amount(self, value: Scalar) -> float:
        """The limit for a holder of this value, in the unit in which `apart` measures."""
        if self.divergence is not Divergence.PERCENT:
            return self.limit
        return self.limit / 100 * abs(value) if is_number(value) else 0.0

    @property
    def is_exact(self) -> bool:
        """Whether every change is wanted."""
        return self.divergence is Divergence.CHANGES and self.limit == 0

    def covers(self, other: Tolerance) -> bool:
        """Whether who is kept within this one is within the other one as well. A "no" may be wrong."""
        if self.is_exact:
            return True
        if self.divergence is other.divergence:
            return self.limit <= other.limit
        is_equal = self.divergence is Divergence.VALUE and self.limit == 0
        return is_equal and other.divergence in (Divergence.PERCENT, Divergence.EDITS)

    def __str__(self) -> str:
        """The canonical text."""
        match self.divergence:
            case Divergence.CHANGES:
                return f"CHANGES {int(self.limit) + 1}"
            case Divergence.VALUE:
                return f"WITHIN {number_text(self.limit)}"
            case Divergence.PERCENT:
                return f"WITHIN {number_text(self.limit)} PERCENT"
            case Divergence.EDITS:
                return f"WITHIN {int(self.limit)} EDITS"
        at_least_ms = int(self.limit) + 1
        return f"AT MOST EVERY {at_least_ms // 1000}s" if at_least_ms % 1000 == 0 else f"AT MOST EVERY {at_least_ms}ms"


EXACT: Final = Tolerance(Divergence.CHANGES, 0)
"""Every change."""


def number_text(number: float) -> str:
    """The shortest text that reads as this number."""
    return repr(float(number)).removesuffix(".0")


def is_number(value: Scalar) -> TypeGuard[int | float]:
    """Whether differences can be taken. JSON's true and false are no numbers."""
    return type(value) in NUMBERS


def apart(divergence: Divergence, one: ObjectValue, other: ObjectValue, limit: float) -> float:
    """How far two values of an object are apart; anything above ``limit`` is told as above it, no more precisely."""
    if divergence is Divergence.AGE:
        return abs(one.time_ms - other.time_ms)
    a, b = one.value, other.value
    if type(a) is type(b) and a == b:
        return 0.0
    if divergence is Divergence.EDITS:
        return edits(value_text(a), value_text(b), limit)
    return abs(a - b) if is_number(a) and is_number(b) else math.inf


def value_text(value: Scalar) -> str:
    """What the edit distance looks at: a text as it is, anything else as JSON has it."""
    return value if isinstance(value, str) else json.dumps(value)


def edits(one: str, other: str, limit: float) -> float:
    """The edit distance, or infinity where that is above the limit."""
    if abs(len(one) - len(other)) > limit or limit < 0:
        return math.inf
    if max(len(one), len(other)) > EDIT_TEXT_MAX:
        return 0.0 if one == other else math.inf
    above = list(range(len(other) + 1))
    for row, letter in enumerate(one, start=1):
        line = [row]
        for column, its in enumerate(other, start=1):
            line.append(min(above[column] + 1, line[-1] + 1, above[column - 1] + (letter != its)))
        if min(line) > limit:
            return math.inf
        above = line
    return above[-1] if above[-1] <= limit else math.inf
