"""The canonical text of a pattern: read again, it is the same pattern. Pure."""

from __future__ import annotations

from protocols.dissemination.interests.xpath.numbers import number_text
from protocols.dissemination.interests.xpath.pattern import (
    ALWAYS,
    ATTRIBUTE,
    All,
    Condition,
    Has,
    NoneOf,
    Of,
    PatternStep,
    Some,
    StepAxis,
    Value,
    depth_of,
)

EVERYTHING = "/*"
"""Every document has a root element."""


class Unwritable(Exception):
    """A pattern that no text of an XPath query says."""


def write(condition: Condition, *, in_brackets: bool = False) -> str:
    """The text of a condition on a document. Raises `Unwritable`.

    ``in_brackets``: as no path, ``/a[b[.//c]]`` for ``/a/b//c``, so that who evaluates it collects no elements.
    """
    return _Writer(in_brackets=in_brackets).document(condition)


class _Writer:
    """Writes one pattern. Each part is written once for each use of it: else nested branches would take for ever."""

    def __init__(self, *, in_brackets: bool) -> None:
        self._in_brackets = in_brackets
        self._steps: dict[tuple[int, bool], str] = {}

    def document(self, condition: Condition) -> str:
        """A condition on the document."""
        if condition == ALWAYS:
            return EVERYTHING
        match condition:
            case Has(axis=axis, step=step):
                return axis.value + self._step(step, with_comparison=False)
            case Some(parts=parts) if parts:
                return " | ".join(sorted(map(self.document, parts)))
        raise Unwritable

    def _step(self, step: PatternStep, *, with_comparison: bool) -> str:
        """A step and what it leads to. ``with_comparison``: one may stand at the end, as in ``b/c = 2``."""
        key = id(step), with_comparison
        if key not in self._steps:
            self._steps[key] = self._written(step, with_comparison)
        return self._steps[key]

    def _written(self, step: PatternStep, with_comparison: bool) -> str:
        condition = step.condition
        if with_comparison and isinstance(condition, Value):
            return step.label + _text_of(condition) + _compared(condition)
        parts = list(condition.parts) if isinstance(condition, All) else [condition]
        # A path reads better than brackets; any of the children may be its next step, so take the deepest.
        ways = [part for part in parts if isinstance(part, Has) and not part.step.label.startswith(ATTRIBUTE)]
        way = None
        if not self._in_brackets:
            way = max(ways, key=lambda part: (depth_of(part), self._predicate(part)), default=None)
        brackets = sorted(self._predicate(part) for part in parts if part is not way)
        text = step.label + "".join(f"[{bracket}]" for bracket in brackets)
        if way is None:
            return text
        return text + way.axis.value + self._step(way.step, with_comparison=with_comparison)

    def _predicate(self, condition: Condition) -> str:
        match condition:
            case Has(axis=StepAxis.CHILD, step=step):
                return self._step(step, with_comparison=True)
            case Has(step=step):
                return ".//" + self._step(step, with_comparison=True)
            case Value(of=Of.TEXT):
                return "text()" + _compared(condition)
            case Value():
                return "." + _compared(condition)
            case NoneOf(part=part):
                return f"not({self._predicate(part)})"
            case All(parts=parts) if parts:
                return " and ".join(sorted(map(self._operand, parts)))
            case Some(parts=parts) if parts:
                return " or ".join(sorted(map(self._predicate, parts)))
        return "." if condition == ALWAYS else "not(.)"

    def _operand(self, condition: Condition) -> str:
        text = self._predicate(condition)
        return f"({text})" if isinstance(condition, Some) and condition.parts else text


def _text_of(value: Value) -> str:
    return "/text()" if value.of is Of.TEXT else ""


def _compared(value: Value) -> str:
    return f" {value.op} {_constant(value.constant)}"


def _constant(constant: str | float) -> str:
    if isinstance(constant, str):
        if '"' in constant and "'" in constant:
            raise Unwritable
        return f'"{constant}"' if "'" in constant else f"'{constant}'"
    text = number_text(constant)
    if text is None:
        raise Unwritable
    return text
