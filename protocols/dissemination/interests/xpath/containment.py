"""Which pattern covers which, and how much two have in common. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from protocols.dissemination.interests.xpath.pattern import (
    ALWAYS,
    ANY,
    ATTRIBUTE,
    All,
    Condition,
    Has,
    NoneOf,
    PatternStep,
    Some,
    StepAxis,
    Value,
)

VALUE_GUESS: Final = 0.3
"""The assumed share of documents that meet a comparison of which nothing is known."""


def covers(wide: Condition, narrow: Condition) -> bool:
    """Whether every node that meets ``narrow`` meets ``wide``. Sound; a "no" may be wrong.

    A "yes" is a map from the wide pattern's nodes into the narrow one's that keeps labels, axes and conditions (a
    homomorphism). For patterns with / // [] and * there are contained ones without such a map (Miklau and Suciu 2004);
    finding those too is too costly.
    """
    return _Comparison().covers(wide, narrow)


class _Comparison:
    """One comparison. Each pair of parts is compared once: without that, paths of // would take exponential time."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, int], bool] = {}

    def covers(self, wide: Condition, narrow: Condition) -> bool:
        key = id(wide), id(narrow)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._covers(wide, narrow)
        return found

    def _covers(self, wide: Condition, narrow: Condition) -> bool:
        if wide in (ALWAYS, narrow):
            return True
        if isinstance(narrow, Some):
            return all(self.covers(wide, part) for part in narrow.parts)
        if isinstance(wide, All):
            return all(self.covers(part, narrow) for part in wide.parts)
        facts: frozenset[Condition] | tuple[Condition] = narrow.parts if isinstance(narrow, All) else (narrow,)
        match wide:
            case Some(parts=parts):
                return any(self.covers(part, narrow) for part in parts)
            case Has():
                return any(self._shows(fact, wide) for fact in facts)
            case Value():
                return any(isinstance(fact, Value) and _value_covers(wide, fact) for fact in facts)
            case NoneOf(part=part):
                return any(isinstance(fact, NoneOf) and self.covers(fact.part, part) for fact in facts)
        return False

    def _shows(self, fact: Condition, wanted: Has) -> bool:
        """Whether a condition that holds shows that there is a node as wanted."""
        if not isinstance(fact, Has):
            return False
        is_near = wanted.axis is StepAxis.DESCENDANT or fact.axis is StepAxis.CHILD
        if is_near and self._step_covers(wanted.step, fact.step):
            return True
        return wanted.axis is StepAxis.DESCENDANT and self.covers(wanted, fact.step.condition)

    def _step_covers(self, wide: PatternStep, narrow: PatternStep) -> bool:
        is_any = wide.label == ANY and not narrow.label.startswith(ATTRIBUTE)
        return (is_any or wide.label == narrow.label) and self.covers(wide.condition, narrow.condition)


def _value_covers(wide: Value, narrow: Value) -> bool:
    if wide == narrow:
        return True
    if wide.of is not narrow.of:
        return False
    if isinstance(wide.constant, str) or isinstance(narrow.constant, str):
        return wide.op == "!=" and narrow.op == "=" and type(wide.constant) is type(narrow.constant)
    w, n = wide.constant, narrow.constant
    match wide.op, narrow.op:
        case (">", ">") | (">=", ">=") | (">=", ">") | (">=", "="):
            return n >= w
        case (">", ">=") | (">", "="):
            return n > w
        case ("<", "<") | ("<=", "<=") | ("<=", "<") | ("<=", "="):
            return n <= w
        case ("<", "<=") | ("<", "="):
            return n < w
        case ("!=", ">") | ("!=", "<"):
            return n >= w if narrow.op == ">" else n <= w
        case ("!=", ">="):
            return n > w
        case ("!=", "<="):
            return n < w
        case ("!=", "="):
            return n != w
    return False


# Overlap


def overlap_of(one: Condition, other: Condition) -> float:
    """The share of what meets ``one`` that meets ``other`` too, 0 to 1, guessed from structure and constants.

    It is the share of the other's nodes, each with the path to it, that the one shows to be there (CoDD's structural
    match); every comparison with a constant that the one does not show takes its guess off.
    """
    if isinstance(other, Some) and other.parts:
        return max(overlap_of(one, part) for part in other.parts)
    legs = list(_legs(other))
    shown = [covers(leg, one) for leg, _ in legs]
    structure = [is_shown for is_shown, (_, is_value) in zip(shown, legs, strict=True) if not is_value]
    missing = sum(is_value and not is_shown for is_shown, (_, is_value) in zip(shown, legs, strict=True))
    share = sum(structure) / len(structure) if structure else 1.0
    return float(share * VALUE_GUESS**missing)


def _legs(condition: Condition) -> Iterator[tuple[Condition, bool]]:
    """Each node of a pattern with nothing but the path to it, and each other condition; whether it is a condition."""
    match condition:
        case Has(axis=axis, step=step):
            yield Has(axis, PatternStep(step.label, ALWAYS)), False
            for leg, is_value in _legs(step.condition):
                yield Has(axis, PatternStep(step.label, leg)), is_value
        case All(parts=parts):
            for part in parts:
                yield from _legs(part)
        case _:
            yield condition, True
