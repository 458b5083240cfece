"""Tree patterns: what most XPath queries are. Pure.

A query is a condition on the document. A condition asks for children and descendants that meet conditions of their own,
and for values; conditions may be joined by ``and``, ``or`` and ``not``. Which part of an XPath query is its result does
not matter for us, only whether there is one, so ``/a/b`` and ``/a[b]`` are one pattern.

Patterns are values: equal ones are equal, whatever their texts were.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, TypeAlias

ANY: str = "*"
"""The label of a step that meets every element."""
ATTRIBUTE: str = "@"
"""The labels of attributes begin with this."""


class StepAxis(Enum):
    """How far below a node another one is. An attribute is a child of its element."""

    CHILD = "/"
    DESCENDANT = "//"


class Of(Enum):
    """Which text a value test looks at."""

    NODE = "."
    """The string-value of the node: all text below it, joined."""
    TEXT = "text()"
    """Any of its own text nodes."""


@dataclass(frozen=True, slots=True)
class Value:
    """A comparison with a constant. ``op``: one of = != < <= > >=; with a text only = and !=."""

    of: Of
    op: str
    constant: str | float


@dataclass(frozen=True, slots=True)
class PatternStep:
    """An element or attribute: its label, and the condition that it meets."""

    label: str
    condition: Condition


@dataclass(frozen=True, slots=True)
class Has:
    """There is such a node below."""

    axis: StepAxis
    step: PatternStep


@dataclass(frozen=True, slots=True)
class All:
    """All of them hold; none at all: always."""

    parts: frozenset[Condition]


@dataclass(frozen=True, slots=True)
class Some:
    """At least one of them holds; none at all: never."""

    parts: frozenset[Condition]


@dataclass(frozen=True, slots=True)
class NoneOf:
    """It does not hold."""

    part: Condition


Condition: TypeAlias = "Value | Has | All | Some | NoneOf"
ALWAYS = All(frozenset())
NEVER = Some(frozenset())


def both(one: Condition, other: Condition) -> Condition:
    """Join two conditions by ``and``."""
    return _joined(All, one, other)


def either(one: Condition, other: Condition) -> Condition:
    """Join two conditions by ``or``."""
    return ALWAYS if ALWAYS in (one, other) else _joined(Some, one, other)


def none_of(part: Condition) -> Condition:
    """Negate a condition."""
    return NEVER if part == ALWAYS else NoneOf(part)


def _joined(kind: type[All] | type[Some], one: Condition, other: Condition) -> Condition:
    parts: set[Condition] = set()
    for each in (one, other):
        if isinstance(each, kind):
            parts.update(each.parts)
        else:
            parts.add(each)
    return next(iter(parts)) if len(parts) == 1 else kind(frozenset(parts))


def steps_of(condition: Condition) -> Iterator[PatternStep]:
    """All steps in a condition, each after those inside it."""
    match condition:
        case Has(step=step):
            yield from steps_of(step.condition)
            yield step
        case All(parts=parts) | Some(parts=parts):
            for part in parts:
                yield from steps_of(part)
        case NoneOf(part=part):
            yield from steps_of(part)


def labels_required(condition: Condition) -> frozenset[str]:
    """Labels that whatever a pattern covers has to mention."""
    match condition:
        case Has(step=step):
            own = frozenset(() if step.label == ANY else (step.label,))
            return own | labels_required(step.condition)
        case All(parts=parts):
            return frozenset().union(*map(labels_required, parts))
        case Some(parts=parts) if parts:
            first, *others = map(labels_required, parts)
            return first.intersection(*others)
    return frozenset()


def labels_mentioned(condition: Condition) -> frozenset[str]:
    """All labels of a pattern."""
    return frozenset(step.label for step in steps_of(condition))


def depth_of(condition: Condition) -> int:
    """How many steps are inside each other, at most."""
    match condition:
        case Has(step=step):
            return 1 + depth_of(step.condition)
        case All(parts=parts) | Some(parts=parts):
            return max(map(depth_of, parts), default=0)
        case NoneOf(part=part):
            return depth_of(part)
    return 0


class FreeSteps(NamedTuple):
    """Steps of any depth: how many there are, how many of them below others, and how many inside each other."""

    number: int
    below: int
    depth: int


def free_steps_of(condition: Condition) -> FreeSteps:
    """Those of a condition."""
    match condition:
        case Has(axis=axis, step=step):
            inside = free_steps_of(step.condition)
            if axis is StepAxis.CHILD:
                return inside
            return FreeSteps(inside.number + 1, inside.number, inside.depth + 1)
        case All(parts=parts) | Some(parts=parts) if parts:
            numbers, below, depths = zip(*map(free_steps_of, parts), strict=True)
            return FreeSteps(sum(numbers), sum(below), max(depths))
        case NoneOf(part=part):
            return free_steps_of(part)
    return FreeSteps(0, 0, 0)
