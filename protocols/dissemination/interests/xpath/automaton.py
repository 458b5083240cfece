"""Many patterns on one document: one pass over it, from the leaves up, whatever their number.

Each distinct step of all patterns is a bit. An element's bits say which steps it meets; they follow from its label, its
values, and the bits of its children and of all below it. Elements that agree in those have the same bits, and documents
of one kind are full of such elements, so what was worked out once is remembered: a bottom-up tree automaton that is
made while it runs. Only those bits of its children count for an element that some step of its label asks for, so that
many elements agree.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import chain
from typing import Final

from peerd.lib.filter.column import positions
from peerd.limits import MIB
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
from protocols.dissemination.interests.xpath.value_tests import ValueTests

STATES_BYTES_MAX: Final = 16 * MIB
"""What is remembered of elements takes so much memory; then all is forgotten, and worked out again where needed."""
STATE_BYTES: Final = 400
"""What a remembered element takes besides its bits."""
PORTION_BITS: Final = 16
"""So many bits are looked up at once."""
PORTIONS_MAX: Final = 64
"""Values of a portion for which it is remembered what was found, on average."""
HEADS_MAX: Final = 1 << 14
"""Lots of queries that are met together, of which it is remembered which they are."""
TAGS_MAX: Final = 4096
"""Labels of elements that are remembered; publishers may make up any number of them."""
REMOVED_MIN: Final = 64
"""Removed patterns are forgotten when there are more than this many, and more than there are patterns left."""


@dataclass(frozen=True, slots=True)
class _Needs:
    """A step whose condition is that all of these are there: bits of children, of what is below, and of values."""

    bit: int
    children: int
    below: int
    values: int


@dataclass(slots=True)
class _Sources:
    """Steps by one of the bits that they need: only where it is there are they looked at.

    Bits are looked up a portion at a time. Only a few bits of a portion concern one label, so the same portions come
    again and again.
    """

    mask: int = 0
    alone: dict[int, int] = field(default_factory=dict)
    """Steps that need nothing else, by the number of their bit."""
    among: dict[int, list[_Needs]] = field(default_factory=dict)
    """Steps that need more."""
    portions: list[int] = field(default_factory=list)
    """The numbers of the portions that have bits of the mask."""
    found: dict[int, _Found] = field(default_factory=dict)
    """What was found for a portion."""

    def add(self, bit: int, needs: _Needs, *, is_alone: bool) -> None:
        """One more step, with the bit that it is found by."""
        self.found.clear()
        position = bit.bit_length() - 1
        self.mask |= bit
        if is_alone:
            self.alone[position] = self.alone.get(position, 0) | needs.bit
        else:
            self.among.setdefault(position, []).append(needs)
        if position // PORTION_BITS not in self.portions:
            self.portions.append(position // PORTION_BITS)

    def met(self, bits: int, children: int, below: int, values: int) -> int:
        """The steps that are met, of those that are found by ``bits``."""
        bits &= self.mask
        if not bits:
            return 0
        met = 0
        no_children, not_below, no_values = ~children, ~below, ~values
        view = memoryview(bits.to_bytes(_size(self.mask), "little")).cast("H")
        for number in self.portions:
            portion = view[number]
            if portion:
                found = self.found.get(number << PORTION_BITS | portion)
                alone, of_children, others = found or self._find(number, portion)
                met |= alone
                for needed, bit in of_children:
                    if not needed & no_children:
                        met |= bit
                for needs in others:
                    if not (needs.children & no_children or needs.below & not_below or needs.values & no_values):
                        met |= needs.bit
        return met

    def _find(self, number: int, portion: int) -> _Found:
        alone = 0
        of_children: list[tuple[int, int]] = []
        others: list[_Needs] = []
        for position in positions(portion << number * PORTION_BITS):
            alone |= self.alone.get(position, 0)
            for needs in self.among.get(position, ()):
                if needs.below or needs.values:
                    others.append(needs)
                else:
                    of_children.append((needs.children, needs.bit))
        if len(self.found) >= PORTIONS_MAX * len(self.portions):
            self.found.clear()
        found = self.found[number << PORTION_BITS | portion] = alone, of_children, others
        return found


_Found = tuple[int, list[tuple[int, int]], list[_Needs]]
"""Of one portion: the steps that need nothing else; those that need more children; those that need something else."""


def _size(bits: int) -> int:
    """In bytes, whole portions."""
    return -(-bits.bit_length() // PORTION_BITS) * PORTION_BITS // 8


@dataclass(slots=True)
class _Label:
    """The steps of one label."""

    free: int = 0
    """Steps that need nothing."""
    children: _Sources = field(default_factory=_Sources)
    below: _Sources = field(default_factory=_Sources)
    values: _Sources = field(default_factory=_Sources)
    others: list[tuple[int, Condition]] = field(default_factory=list)
    """Steps with ``or`` and ``not``."""
    needs_children: int = 0
    needs_below: int = 0
    numbers: dict[Value, int] = field(default_factory=dict)
    """The bits of comparisons, which are this label's own."""
    tests: dict[Of, ValueTests] = field(default_factory=dict)
    known: dict[tuple[int, int, int], int] = field(default_factory=dict)
    """What was worked out, by the bits of values, of children, and of what is below."""

    def add(self, needs: _Needs) -> None:
        """One more step without ``or`` and ``not``."""
        self.needs_children |= needs.children
        self.needs_below |= needs.below
        is_alone = (needs.children.bit_count() + needs.below.bit_count() + needs.values.bit_count()) == 1
        for bits, sources in (
            (needs.values, self.values),
            (needs.children, self.children),
            (needs.below, self.below),
        ):
            if bits:  # inner steps have lower bits than the steps that they are in, so the highest says most
                sources.add(1 << (bits.bit_length() - 1), needs, is_alone=is_alone)
                return
        self.free |= needs.bit

    def met(self, values: int, children: int, below: int) -> int:
        """The steps that are met; those of `others` are not among them."""
        met = self.free | self.children.met(children, children, below, values)
        met |= self.below.met(below, children, below, values)
        return met | self.values.met(values, children, below, values) if values else met

    def number(self, value: Value) -> int:
        """The bit of a comparison."""
        bit = self.numbers.get(value)
        if bit is None:
            bit = self.numbers[value] = 1 << len(self.numbers)
            self.tests.setdefault(value.of, ValueTests()).add(value, bit)
        return bit

    def values_of(self, element: Document) -> int:
        """The comparisons that an element meets."""
        met = 0
        if (tests := self.tests.get(Of.NODE)) is not None:
            met = tests.met_by("".join(element.itertext()) if len(element) else element.text or "")
        if (tests := self.tests.get(Of.TEXT)) is not None:
            for text in (element.text, *(child.tail for child in element)):
                if text:
                    met |= tests.met_by(text)
        return met


_NO_VALUES: Final[tuple[int, ...]] = ()
_State = tuple[int, int]
"""The steps that an element meets, and those of them that some step may ask for at any depth."""


@dataclass(slots=True)
class _Tag:
    """What is asked of elements with one name: the steps with this label, and those with any."""

    labels: tuple[_Label, ...]
    children: int
    """The bits of children that count."""
    below: int
    tested: tuple[_Label, ...]
    """The labels with comparisons."""
    leaf: _State | None = None
    """What those meet that have nothing in them that counts, where there are no comparisons."""
    states: dict[tuple[tuple[int, ...], tuple[int, int]], _State] = field(default_factory=dict)


class Automaton:
    """The conditions of many queries, on the document."""

    def __init__(self) -> None:
        self._patterns: dict[bytes, Condition] = {}
        self._removed = 0
        self._clear()

    def _clear(self) -> None:
        self._steps: dict[PatternStep, int] = {}
        self._labels: dict[str, _Label] = {}
        self._free_steps = 0
        """The steps that some step, or some query, asks for at any depth."""
        self._ids: dict[Condition, list[bytes]] = {}
        """The queries with each condition; of a condition with ``or`` at its head, with each of its parts."""
        self._free_heads: dict[int, list[bytes]] = {}
        """The queries that ask for one step at any depth, by the number of its bit."""
        self._free_heads_mask = 0
        self._roots: dict[PatternStep, int] = {}
        """The steps that some query asks of the root. Only there do they count, so they have bits of their own."""
        self._root_labels: dict[str, _Label] = {}
        self._root_heads: dict[int, list[bytes]] = {}
        """The queries that ask for one step of the root, by the number of its bit."""
        self._other_heads: list[tuple[Condition, list[bytes]]] = []
        self._has_attributes = False
        self._forget()

    def _forget(self) -> None:
        self._tags: dict[str, _Tag] = {}
        self._head_ids: dict[int, tuple[bytes, ...]] = {}
        self._count = 0
        for label in (*self._labels.values(), *self._root_labels.values()):
            label.known.clear()

    def __len__(self) -> int:
        return len(self._patterns)

    @property
    def step_count(self) -> int:
        """How many distinct steps there are."""
        return len(self._steps) + len(self._roots)

    def add(self, id: bytes, condition: Condition) -> None:
        """One more query; harmless when it is there already."""
        if id in self._patterns:
            return
        self._patterns[id] = condition
        self._add(id, condition)
        self._forget()

    def remove(self, id: bytes) -> None:
        """One query less. Its steps stay until there are many such."""
        condition = self._patterns.pop(id, None)
        if condition is None:
            return
        for part in _heads_of(condition):
            self._ids[part].remove(id)
        self._head_ids.clear()
        self._removed += 1
        if self._removed > max(REMOVED_MIN, len(self._patterns)):
            self._removed = 0
            self._clear()
            for each, pattern in self._patterns.items():
                self._add(each, pattern)

    def _add(self, id: bytes, condition: Condition) -> None:
        for part in _heads_of(condition):
            if part not in self._ids:
                self._ids[part] = []
                self._add_head(part, self._ids[part])
            self._ids[part].append(id)

    def _add_steps(self, condition: Condition) -> None:
        for step in steps_of(condition):
            if step not in self._steps:
                bit = self._steps[step] = 1 << len(self._steps)
                self._has_attributes |= step.label.startswith(ATTRIBUTE)
                self._place(step, bit, self._labels.setdefault(step.label, _Label()))

    def _place(self, step: PatternStep, bit: int, label: _Label) -> None:
        children = below = values = 0
        is_plain = True
        for part in step.condition.parts if isinstance(step.condition, All) else (step.condition,):
            match part:
                case Has(axis=StepAxis.CHILD, step=inner):
                    children |= self._steps[inner]
                case Has(step=inner):
                    below |= self._steps[inner]
                case Value():
                    values |= label.number(part)
                case _:
                    is_plain = False
                    self._add_needs(label, part)
        self._free_steps |= below
        if is_plain:
            label.add(_Needs(bit, children, below, values))
        else:
            label.needs_children |= children
            label.needs_below |= below
            label.others.append((bit, step.condition))

    def _add_needs(self, label: _Label, condition: Condition) -> None:
        match condition:
            case Has(axis=StepAxis.CHILD, step=step):
                label.needs_children |= self._steps[step]
            case Has(step=step):
                label.needs_below |= self._steps[step]
                self._free_steps |= self._steps[step]
            case Value():
                label.number(condition)
            case All(parts=parts) | Some(parts=parts):
                for part in parts:
                    self._add_needs(label, part)
            case NoneOf(part=part):
                self._add_needs(label, part)

    def _add_head(self, head: Condition, ids: list[bytes]) -> None:
        match head:
            case Has(axis=StepAxis.CHILD, step=step) if not step.label.startswith(ATTRIBUTE):
                self._add_steps(step.condition)
                bit = self._roots[step] = 1 << len(self._roots)
                self._root_heads[bit.bit_length() - 1] = ids
                self._place(step, bit, self._root_labels.setdefault(step.label, _Label()))
            case Has(axis=StepAxis.DESCENDANT, step=step):
                self._add_steps(head)
                self._free_heads[self._steps[step].bit_length() - 1] = ids
                self._free_heads_mask |= self._steps[step]
                self._free_steps |= self._steps[step]
            case _:
                self._add_steps(head)
                self._other_heads.append((head, ids))
                for step in steps_of(head):
                    self._free_steps |= self._steps[step]

    def match(self, root: Document) -> frozenset[bytes]:
        """The ids of the queries that a document meets."""
        visit = self._visitor()
        children = below = 0
        for child in root:
            met, deeper = visit(child)
            children |= met
            below |= deeper
        attributes = self._attributes(root.items()) if self._has_attributes else 0
        children, below = children | attributes, below | attributes & self._free_steps
        at_root = self._met_at(self._root_labels, root, children, below)
        met = self._met_at(self._labels, root, children, below)
        below |= met & self._free_steps
        if self._other_heads:
            return self._met_by(at_root, below).union(*self._others(met, below))
        return self._met_by(at_root, below)

    def _met_at(self, labels: dict[str, _Label], root: Document, children: int, below: int) -> int:
        met = 0
        for name in (root.tag, ANY):
            if (label := labels.get(name)) is not None:
                values = label.values_of(root) if label.numbers else 0
                met |= self._meets(label, values, children, below)
        return met

    def _others(self, met: int, below: int) -> list[list[bytes]]:
        return [ids for head, ids in self._other_heads if self._holds(head, None, 0, met, below)]

    def _met_by(self, at_root: int, below: int) -> frozenset[bytes]:
        known = self._head_ids
        found: list[tuple[bytes, ...]] = []
        for is_free, bits in enumerate((at_root, below & self._free_heads_mask)):
            for number, portion in enumerate(memoryview(bits.to_bytes(_size(bits), "little")).cast("H")):
                if portion:
                    key = number << 17 | portion << 1 | is_free
                    ids = known.get(key)
                    if ids is None:
                        ids = known[key] = self._ids_of(bool(is_free), portion << 16 * number)
                    found.append(ids)
        if len(known) > HEADS_MAX:
            known.clear()
        return frozenset(chain.from_iterable(found))

    def _ids_of(self, is_free: bool, bits: int) -> tuple[bytes, ...]:
        """The queries that ask for one of these steps."""
        heads = self._free_heads if is_free else self._root_heads
        found = (heads.get(position, ()) for position in positions(bits))
        return tuple(chain.from_iterable(found))

    def _visitor(self) -> Callable[[Document], _State]:
        """The function that visits an element and all below it. Its result: the bits that the element meets, and those
        that it or something below it does, of the steps that may be asked for at any depth."""
        tags, tag_of, work_out, attributes_of = self._tags, self._tag, self._work_out, self._attributes
        has_attributes, free_steps = self._has_attributes, self._free_steps

        def visit(element: Document) -> _State:
            name = element.tag
            tag = tags.get(name)
            if tag is None:
                tag = tag_of(name)
            children = below = 0
            if len(element):
                for child in element:
                    met, deeper = visit(child)
                    children |= met
                    below |= deeper
            if has_attributes and (items := element.items()):
                met = attributes_of(items)
                children |= met
                below |= met & free_steps
            if tag.tested:
                values = tuple([label.values_of(element) for label in tag.tested])
            elif not children and not below:
                return tag.leaf or work_out(tag, _NO_VALUES, 0, 0)
            else:
                values = _NO_VALUES
            seen = children & tag.children, below & tag.below
            state = tag.states.get((values, seen))
            if state is None:
                state = work_out(tag, values, *seen)
            return (state[0], below | state[1]) if below else state

        return visit

    def _tag(self, name: str) -> _Tag:
        labels = tuple(self._labels[each] for each in (name, ANY) if each in self._labels)
        children = below = 0
        for label in labels:
            children |= label.needs_children
            below |= label.needs_below
        tag = _Tag(labels, children, below, tuple(label for label in labels if label.numbers))
        if len(self._tags) < TAGS_MAX:
            self._tags[name] = tag
        return tag

    def _work_out(self, tag: _Tag, values: tuple[int, ...], children: int, below: int) -> _State:
        by_label = dict(zip(map(id, tag.tested), values, strict=True))
        met = 0
        for label in tag.labels:
            met |= self._meets(label, by_label.get(id(label), 0), children, below)
        self._remember()
        state = tag.states[values, (children, below)] = met, met & self._free_steps
        if not tag.tested and not children and not below:
            tag.leaf = state
        return state

    def _remember(self) -> None:
        self._count += 1
        if self._count * (STATE_BYTES + len(self._steps) // 2) > STATES_BYTES_MAX:
            self._count = 0
            for tag in self._tags.values():
                tag.states.clear()
            for label in (*self._labels.values(), *self._root_labels.values()):
                label.known.clear()

    def _attributes(self, items: list[tuple[str, str]]) -> int:
        met = 0
        for name, text in items:
            label = self._labels.get(ATTRIBUTE + name)
            if label is not None:
                tests = label.tests.get(Of.NODE)
                met |= self._meets(label, tests.met_by(text) if tests is not None else 0, 0, 0)
        return met

    def _meets(self, label: _Label, values: int, children: int, below: int) -> int:
        key = values, children & label.needs_children, below & label.needs_below
        met = label.known.get(key)
        if met is None:
            met = label.met(*key)
            for bit, condition in label.others:
                if self._holds(condition, label, *key):
                    met |= bit
            self._remember()
            label.known[key] = met
        return met

    def _holds(self, condition: Condition, label: _Label | None, values: int, children: int, below: int) -> bool:
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
                return label is not None and bool(values & label.numbers[condition])


def _heads_of(condition: Condition) -> tuple[Condition, ...]:
    """The conditions of which one has to hold."""
    return tuple(condition.parts) if isinstance(condition, Some) else (condition,)
