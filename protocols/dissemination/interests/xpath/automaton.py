"""Many patterns on one document: one pass over it, from the leaves up, whatever their number.

Each distinct step of all patterns is a bit. A node's bits say which steps it meets; they follow from its label, its
values, and the bits of its children and of all below it. Nodes that agree in those have the same bits, and documents of
one kind are full of such nodes, so what was worked out once is remembered: a bottom-up tree automaton that is made
while it runs.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import reduce
from operator import or_
from typing import Final

from protocols.dissemination.interests.xpath.document import Document
from protocols.dissemination.interests.xpath.pattern import (
    ANY,
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
    steps_of,
)
from protocols.dissemination.interests.xpath.reading import NUMBER

STATES_MAX: Final = 1 << 16
"""So many results are remembered; then all are forgotten, and worked out again where they are needed."""
TEXTS_MAX: Final = 4096
"""Texts of which a label's tests remember what they meet."""
TEXT_KEPT_MAX: Final = 64
"""Longer texts are not remembered."""


class Tests:
    """All comparisons of one label with constants: which of them a text meets."""

    def __init__(self) -> None:
        self.bits: dict[Value, int] = {}
        self._equal: dict[str, int] = {}
        self._not_equal: list[tuple[str, int]] = []
        self._limits: dict[str, list[tuple[float, int]]] = {op: [] for op in ("<", "<=", ">", ">=", "=", "!=")}
        self._known: dict[str, int] = {}

    def add(self, value: Value, bit: int) -> None:
        """One more."""
        self._known.clear()
        self.bits[value] = bit
        if isinstance(value.constant, float):
            limits = self._limits[value.op]
            limits.append((value.constant, bit))
            limits.sort()
        elif value.op == "=":
            self._equal[value.constant] = self._equal.get(value.constant, 0) | bit
        else:
            self._not_equal.append((value.constant, bit))

    def met_by(self, text: str) -> int:
        """The bits of those that a text meets."""
        known = self._known.get(text)
        if known is None:
            known = self._met_by(text)
            if len(text) <= TEXT_KEPT_MAX:
                if len(self._known) >= TEXTS_MAX:
                    self._known.clear()
                self._known[text] = known
        return known

    def _met_by(self, text: str) -> int:
        met = self._equal.get(text, 0)
        for constant, bit in self._not_equal:
            if constant != text:
                met |= bit
        if any(self._limits.values()):
            met |= self._numbers(float(text) if NUMBER.fullmatch(text) else None)
        return met

    def _numbers(self, number: float | None) -> int:
        limits = self._limits
        if number is None:  # not a number: it differs from every number, and nothing else
            return _or(limits["!="])
        met = _or(each for each in limits["="] if each[0] == number)
        met |= _or(each for each in limits["!="] if each[0] != number)
        met |= _or(limits[">"][: bisect_left(limits[">"], (number, -1))])
        met |= _or(limits[">="][: bisect_right(limits[">="], (number, 1 << 62))])
        met |= _or(limits["<"][bisect_right(limits["<"], (number, 1 << 62)) :])
        return met | _or(limits["<="][bisect_left(limits["<="], (number, -1)) :])


def _or(limits: Iterable[tuple[float, int]]) -> int:
    return reduce(or_, (bit for _, bit in limits), 0)


@dataclass(frozen=True, slots=True)
class _Needs:
    """A step whose condition is that all of these are there: bits of children, of what is below, and of values."""

    bit: int
    children: int
    below: int
    values: int


@dataclass(slots=True)
class _Label:
    """What is asked of nodes of one label. A step is looked at only where one of the bits that it needs is there."""

    free: int = 0
    """Steps that need nothing."""
    by_child: dict[int, list[_Needs]] = field(default_factory=dict)
    by_below: dict[int, list[_Needs]] = field(default_factory=dict)
    by_value: dict[int, list[_Needs]] = field(default_factory=dict)
    others: list[tuple[int, Condition]] = field(default_factory=list)
    """Steps with ``or`` and ``not``."""
    tests: dict[Of, Tests] = field(default_factory=dict)

    def add(self, needs: _Needs) -> None:
        """One more step."""
        for bits, table in (
            (needs.values, self.by_value),
            (needs.children, self.by_child),
            (needs.below, self.by_below),
        ):
            if bits:
                table.setdefault(bits & -bits, []).append(needs)
                return
        self.free |= needs.bit

    def met(self, values: int, children: int, below: int) -> int:
        """The steps that are met; those of `others` are not among them."""
        met = self.free
        for bits, table in ((values, self.by_value), (children, self.by_child), (below, self.by_below)):
            for bit in table if bits.bit_count() > len(table) else _single(bits):
                for needs in table.get(bit, ()) if bit & bits else ():
                    if not needs.values & ~values and not needs.children & ~children and not needs.below & ~below:
                        met |= needs.bit
        return met


def _single(bits: int) -> list[int]:
    found = []
    while bits:
        found.append(bits & -bits)
        bits &= bits - 1
    return found


class Automaton:
    """The conditions of many queries, on the document."""

    def __init__(self) -> None:
        self._steps: dict[PatternStep, int] = {}
        self._labels: dict[str, _Label] = {}
        self._values: dict[tuple[str, Value], int] = {}
        self._states: dict[tuple[str, int, int, int], int] = {}
        self._conditions: dict[Condition, list[bytes]] = {}
        self._document: dict[tuple[int, int], frozenset[bytes]] = {}

    def __len__(self) -> int:
        return len(self._steps)

    def add(self, id: bytes, condition: Condition) -> None:
        """One more query."""
        for step in steps_of(condition):
            if step not in self._steps:
                self._steps[step] = 1 << len(self._steps)
                label = self._labels.setdefault(step.label, _Label())
                self._add_values(step.label, label, step.condition)
                needs = self._needs(step)
                if needs is None:
                    label.others.append((self._steps[step], step.condition))
                else:
                    label.add(needs)
        self._conditions.setdefault(condition, []).append(id)
        self._forget()

    def _add_values(self, name: str, label: _Label, condition: Condition) -> None:
        match condition:
            case Value():
                if (name, condition) not in self._values:
                    bit = self._values[name, condition] = 1 << len(self._values)
                    label.tests.setdefault(condition.of, Tests()).add(condition, bit)
            case All(parts=parts) | Some(parts=parts):
                for part in parts:
                    self._add_values(name, label, part)
            case NoneOf(part=part):
                self._add_values(name, label, part)

    def _needs(self, step: PatternStep) -> _Needs | None:
        condition = step.condition
        children = below = values = 0
        for part in condition.parts if isinstance(condition, All) else (condition,):
            match part:
                case Has(axis=StepAxis.CHILD, step=inner):
                    children |= self._steps[inner]
                case Has(step=inner):
                    below |= self._steps[inner]
                case Value():
                    values |= self._values[step.label, part]
                case _:
                    return None
        return _Needs(self._steps[step], children, below, values)

    def _forget(self) -> None:
        self._states.clear()
        self._document.clear()

    def match(self, root: Document) -> frozenset[bytes]:
        """The ids of the queries that a document meets."""
        met, below = self._visit(root)
        key = met, below | met
        found = self._document.get(key)
        if found is None:
            holds = (
                ids for condition, ids in self._conditions.items() if self._holds(condition, "", 0, met, below | met)
            )
            found = self._document[key] = frozenset(id for ids in holds for id in ids)
            if len(self._document) > STATES_MAX:
                self._forget()
        return found

    def _visit(self, element: Document) -> tuple[int, int]:
        """The steps that an element meets, and those that some node below it does."""
        children = below = 0
        for child in element:
            met, deeper = self._visit(child)
            children |= met
            below |= deeper
        for name, text in element.attrib.items():
            children |= self._attribute(ATTRIBUTE + name, text)
        below |= children
        label = element.tag
        values = self._values_of(label, element) | self._values_of(ANY, element)
        key = label, values, children, below
        found = self._states.get(key)
        if found is None:
            found = self._states[key] = self._meets(label, values, children, below)
            found = self._states[key] = found | self._meets(ANY, values, children, below)
            if len(self._states) > STATES_MAX:
                self._states.clear()
        return found, below

    def _attribute(self, label: str, text: str) -> int:
        known = self._labels.get(label)
        if known is None:
            return 0
        values = sum(tests.met_by(text) for of, tests in known.tests.items() if of is Of.NODE)
        return self._meets(label, values, 0, 0)

    def _values_of(self, label: str, element: Document) -> int:
        known = self._labels.get(label)
        if known is None or not known.tests:
            return 0
        met = 0
        if (tests := known.tests.get(Of.NODE)) is not None:
            met |= tests.met_by(element.text or "" if not len(element) else "".join(element.itertext()))
        if (tests := known.tests.get(Of.TEXT)) is not None:
            for text in (element.text, *(child.tail for child in element)):
                if text:
                    met |= tests.met_by(text)
        return met

    def _meets(self, label: str, values: int, children: int, below: int) -> int:
        known = self._labels.get(label)
        if known is None:
            return 0
        met = known.met(values, children, below)
        for bit, condition in known.others:
            if self._holds(condition, label, values, children, below):
                met |= bit
        return met

    def _holds(self, condition: Condition, label: str, values: int, children: int, below: int) -> bool:
        match condition:
            case Has(axis=axis, step=step):
                return bool(self._steps[step] & (children if axis is StepAxis.CHILD else below))
            case All(parts=parts):
                return all(self._holds(part, label, values, children, below) for part in parts)
            case Some(parts=parts):
                return any(self._holds(part, label, values, children, below) for part in parts)
            case NoneOf(part=part):
                return not self._holds(part, label, values, children, below)
            case Value():
                return bool(values & self._values[label, condition])
