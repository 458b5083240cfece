"""Many patterns on one document: one pass over it, from the leaves up, whatever their number.

Each step of each pattern is a bit. An element's bits say which steps it meets; they follow from its label, its values,
and the bits of its children and of all below it. What follows from an element and all below it is its state. Documents
of one kind are full of elements with the same label whose children have the same states, so the state is looked up by
these, and worked out only where such an element has not been seen: a bottom-up tree automaton, made while it runs.

To work a state out takes some operations on bits, for all patterns at once. A step comes right after the steps that it
needs (its children in the pattern), so one shift brings its first need's bit to its own place, a longer shift its
second one's, and so on. It is met where all of them are there. Eight patterns of one length share their bytes, a bit of
each byte for each pattern, so a shift by one step is one by eight bits, and their last steps are one byte.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import compress
from typing import Final, TypeAlias

from peerd.lib.filter.column import positions
from peerd.limits import MIB
from protocols.dissemination.interests.xpath.document import Document, namespaces_of
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
STATE_BYTES: Final = 600
"""What a remembered element takes besides its bits, and besides its children."""
CHILD_BYTES: Final = 64
"""What each of its children takes."""
NEEDS_MAX: Final = 4
"""A step with more needs is looked at by itself, as one with ``or`` and ``not`` is."""
SHIFT_MAX: Final = 16
"""So is a step that comes more than this many places after one that it needs."""
LANES: Final = 8
"""So many patterns share their bytes."""
VALUES_MAX: Final = 1024
"""Comparisons that are met together, of which it is remembered what needs they are."""
TAGS_MAX: Final = 4096
"""Labels of elements that are remembered; publishers may make up any number of them."""
ANSWERS_MAX: Final = 64
"""Documents of which it is remembered which queries they meet."""
REMOVED_MIN: Final = 64
"""Removed patterns are forgotten when there are more than this many, and more than there are patterns left."""

_Test: TypeAlias = Callable[[int, int, int], bool]
"""Whether a condition holds, by the bits of comparisons, of children, and of all that is below."""


@dataclass(frozen=True, slots=True, eq=False)
class _State:
    """What follows from an element, or attribute, and all below it."""

    met: int
    """The steps that it meets."""
    below: int
    """The steps that it or anything below it meets, of those that may be asked for at any depth."""


@dataclass(slots=True)
class _Move:
    """The bits that are brought to the steps that need them by one shift."""

    children: int = 0
    """Of steps that are needed of children."""
    below: int = 0
    """Of steps that are needed at any depth."""


@dataclass(slots=True)
class _Column:
    """The first needs of all steps, or the second ones, and so on."""

    steps: int = 0
    """The steps that have such a need."""
    moves: dict[int, _Move] = field(default_factory=dict)
    """By how far they shift."""


@dataclass(slots=True)
class _Label:
    """The steps of one label."""

    mask: int = 0
    """The steps that are met where all their needs are."""
    others: list[tuple[int, _Test]] = field(default_factory=list)
    """Steps with ``or`` and ``not``, or with very many needs."""
    numbers: dict[Value, int] = field(default_factory=dict)
    """The bits of comparisons, which are this label's own."""
    tests: dict[Of, ValueTests] = field(default_factory=dict)
    needs: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    """Which need of which step a comparison is, by the number of its bit."""
    needs_met: dict[int, tuple[int, ...]] = field(default_factory=dict)
    """The steps whose first, second, ... need is among comparisons that are met together."""

    def number(self, value: Value) -> int:
        """The bit of a comparison."""
        bit = self.numbers.get(value)
        if bit is None:
            bit = self.numbers[value] = 1 << len(self.numbers)
            self.tests.setdefault(value.of, ValueTests()).add(value, bit)
        return bit

    def values_of_text(self, text: str) -> int:
        """The comparisons that an attribute meets. It has no text nodes, so none of those with ``text()``."""
        tests = self.tests.get(Of.NODE)
        return 0 if tests is None else tests.met_by(text)

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


@dataclass(slots=True)
class _Tag:
    """What is asked of elements with one name: the steps with this label, and those with any."""

    labels: tuple[_Label, ...]
    tested: tuple[_Label, ...]
    """The labels with comparisons."""
    leaf: _State | None = None
    """The state of those that have nothing in them, where there are no comparisons."""
    plain_states: dict[frozenset[_State], _State] = field(default_factory=dict)
    """By the states of children and attributes, where there are no comparisons."""
    states: dict[tuple[tuple[int, ...], frozenset[_State]], _State] = field(default_factory=dict)
    """By the comparisons that are met, too."""


_FLAGS: Final = [bytes(value >> lane & 1 for lane in range(LANES)) for value in range(256)]
"""The bits of a byte, each as a byte, the lowest first."""
_NO_VALUES: Final[tuple[int, ...]] = ()
_NO_CHILDREN: Final[frozenset[_State]] = frozenset()


class Automaton:
    """The conditions of many queries, on the document."""

    def __init__(self, states_bytes_max: int | None = None) -> None:
        self._states_bytes_max = STATES_BYTES_MAX if states_bytes_max is None else states_bytes_max
        self._patterns: dict[bytes, Condition] = {}
        self._removed = 0
        self._clear()

    def _clear(self) -> None:
        self._labels: dict[str, _Label] = {}
        self._root_labels: dict[str, _Label] = {}
        """The steps that some query asks of the root. Only there do they count."""
        self._columns: list[_Column] = []
        self._bytes = 0
        """How many bytes of bits there are."""
        self._lanes: dict[int, list[int]] = {}
        """The bits where a pattern of some length may begin, by the length."""
        self._next = 0
        """The number of the bit that the next step gets."""
        self._free_steps = 0
        """The steps that some step, or some query, asks for at any depth."""
        self._head_bytes: list[int] = []
        """The numbers of the bytes with steps that queries ask for."""
        self._ids: list[bytes] = []
        """The queries that ask for them, eight a byte."""
        self._slots: dict[int, int] = {}
        """By the number of such a byte: where its queries begin in this list."""
        self._heads: dict[bytes, int] = {}
        """The steps that each query asks for, of the root or at any depth; one of them has to be met."""
        self._all_heads = 0
        self._other_heads: dict[bytes, list[_Test]] = {}
        """Conditions of queries that are no steps."""
        self._has_attributes = self._has_others = False
        self._prefixes: frozenset[str] = frozenset()
        """Of all labels that have one."""
        self._namespaces: tuple[tuple[str, str], ...] = ()
        """What they mean in the documents for which the tags and states are that are remembered."""
        self._forget()

    def _forget(self) -> None:
        self._forget_states()
        self._tags: dict[str, _Tag] = {}
        for label in (*self._labels.values(), *self._root_labels.values()):
            label.needs_met.clear()

    def _forget_states(self) -> None:
        self._states: dict[tuple[int, int], _State] = {}
        self._states_bytes = 0
        self._answers: dict[tuple[str, tuple[int, ...], frozenset[_State]], frozenset[bytes]] = {}

    def __len__(self) -> int:
        return len(self._patterns)

    # Patterns come and go

    def add(self, id: bytes, condition: Condition) -> None:
        """One more query; harmless when it is there already."""
        if id in self._patterns:
            return
        self._patterns[id] = condition
        self._add(id, condition)
        self._forget()

    def remove(self, id: bytes) -> None:
        """One query less. Its steps stay until there are many such."""
        if self._patterns.pop(id, None) is None:
            return
        self._all_heads &= ~self._heads.pop(id, 0)
        self._other_heads.pop(id, None)
        self._answers.clear()
        self._removed += 1
        if self._removed > max(REMOVED_MIN, len(self._patterns)):
            self._removed = 0
            self._clear()
            for each, pattern in self._patterns.items():
                self._add(each, pattern)

    def _add(self, id: bytes, condition: Condition) -> None:
        for head in condition.parts if isinstance(condition, Some) else (condition,):
            self._add_head(id, head)

    def _add_head(self, id: bytes, head: Condition) -> None:
        start = self._next = self._lane(_size(head))
        if not isinstance(head, Has) or (head.axis is StepAxis.CHILD and head.step.label.startswith(ATTRIBUTE)):
            self._other_heads.setdefault(id, []).append(self._test(head, None))
            self._free_steps |= sum(1 << each for each in range(start, self._next, LANES))
            return
        is_root = head.axis is StepAxis.CHILD
        bit = self._place(head.step, self._root_labels if is_root else self._labels)
        self._free_steps |= 0 if is_root else bit
        self._all_heads |= bit
        self._heads[id] = self._heads.get(id, 0) | bit
        number, lane = divmod(bit.bit_length() - 1, LANES)
        self._ids[self._slots[number] + lane] = id

    def _lane(self, length: int) -> int:
        """The bit where a pattern with so many steps may begin."""
        lanes = self._lanes.setdefault(length, [])
        if not lanes:
            start = self._bytes * 8
            lanes.extend(range(start + LANES - 1, start - 1, -1))
            self._bytes += length
            if length:
                self._head_bytes.append(self._bytes - 1)
                self._slots[self._bytes - 1] = len(self._ids)
                self._ids += [b""] * LANES
        return lanes.pop()

    def _place(self, step: PatternStep, labels: dict[str, _Label] | None = None) -> int:
        """Give a step a bit, after those of the steps that it needs."""
        self._has_attributes |= step.label.startswith(ATTRIBUTE)
        prefix, colon, _ = step.label.removeprefix(ATTRIBUTE).partition(":")
        if colon:
            self._prefixes |= {prefix}
        label = (self._labels if labels is None else labels).setdefault(step.label, _Label())
        parts = list(step.condition.parts) if isinstance(step.condition, All) else [step.condition]
        inner = sorted((part for part in parts if isinstance(part, Has)), key=_size)
        values = [part for part in parts if isinstance(part, Value)]
        is_near = sum(map(_size, inner[:-1])) < SHIFT_MAX
        if len(inner) + len(values) < len(parts) or len(parts) > NEEDS_MAX or not is_near:
            test = self._test(step.condition, label)
            bit = self._new_bit()
            self._has_others = True
            label.others.append((bit, test))
            return bit
        needed = [self._place(part.step) for part in reversed(inner)][::-1]
        bit = self._new_bit()
        while len(self._columns) < len(parts):
            self._columns.append(_Column())
        for column in self._columns[: len(parts)]:
            column.steps |= bit
        for at, (part, each) in enumerate(zip(inner, needed, strict=True)):
            move = self._columns[at].moves.setdefault(bit.bit_length() - each.bit_length(), _Move())
            if part.axis is StepAxis.CHILD:
                move.children |= each
            else:
                move.below |= each
                self._free_steps |= each
        for at, value in enumerate(values, len(inner)):
            label.needs.setdefault(label.number(value).bit_length() - 1, []).append((at, bit))
        label.mask |= bit
        return bit

    def _new_bit(self) -> int:
        self._next += LANES
        return 1 << (self._next - LANES)

    def _test(self, condition: Condition, label: _Label | None) -> _Test:
        """A condition that is looked at by itself; the steps in it are given their bits."""
        match condition:
            case Has(axis=axis, step=step):
                bit = self._place(step)
                if axis is StepAxis.CHILD:
                    return lambda values, children, below: bool(children & bit)
                self._free_steps |= bit
                return lambda values, children, below: bool(below & bit)
            case All(parts=parts):
                every = [self._test(part, label) for part in parts]
                return lambda *bits: all(test(*bits) for test in every)
            case Some(parts=parts):
                some = [self._test(part, label) for part in parts]
                return lambda *bits: any(test(*bits) for test in some)
            case NoneOf(part=part):
                denied = self._test(part, label)
                return lambda *bits: not denied(*bits)
            case Value():
                number = label.number(condition) if label is not None else 0
                return lambda values, children, below: bool(values & number)

    # A document

    def match(self, root: Document) -> set[bytes]:
        """The ids of the queries that a document meets."""
        if self._prefixes and (namespaces := namespaces_of(root, self._prefixes)) != self._namespaces:
            self._namespaces = namespaces
            self._forget()
        children = frozenset(map(self._visitor(), root))
        if self._has_attributes:
            children |= self._attributes(root.items())
        names = self._names(root.tag)
        labels = tuple(label for name in names if (label := self._root_labels.get(name)) is not None)
        at_root = _Tag(labels, tuple(label for label in labels if label.numbers))
        own = self._tags.get(root.tag) or self._tag(root.tag)
        values = tuple([label.values_of(root) for label in (*own.tested, *at_root.tested)])
        known = self._answers.get((root.tag, values, children))
        if known is None:
            if len(self._answers) >= ANSWERS_MAX:
                self._answers.clear()
            known = self._answers[root.tag, values, children] = self._answer(own, at_root, values, children)
        return set(known)

    def _answer(
        self, own: _Tag, at_root: _Tag, values: tuple[int, ...], children: frozenset[_State]
    ) -> frozenset[bytes]:
        count = len(own.tested)
        met, below = self._met(own, values[:count], children)
        heads = self._met(at_root, values[count:], children)[0] | below
        met_bytes = (heads & self._all_heads).to_bytes(self._bytes, "little")
        flags = b"".join([_FLAGS[met_bytes[number]] for number in self._head_bytes])
        found = frozenset(compress(self._ids, flags))
        if self._other_heads:
            return found.union(
                id for id, tests in self._other_heads.items() if any(test(0, met, below) for test in tests)
            )
        return found

    def _visitor(self) -> Callable[[Document], _State]:
        """The function that visits an element and all below it, and returns its state."""
        tags, tag_of, state_of, attributes_of = self._tags, self._tag, self._state, self._attributes
        has_attributes = self._has_attributes

        def visit(element: Document) -> _State:
            name = element.tag
            tag = tags.get(name) or tag_of(name)
            children = frozenset(map(visit, element)) if len(element) else _NO_CHILDREN
            if has_attributes and (items := element.items()):
                children |= attributes_of(items)
            if tag.tested:
                values = tuple([label.values_of(element) for label in tag.tested])
            elif not children:
                return tag.leaf or state_of(tag, _NO_VALUES, children)
            else:
                return tag.plain_states.get(children) or state_of(tag, _NO_VALUES, children)
            return tag.states.get((values, children)) or state_of(tag, values, children)

        return visit

    def _attributes(self, items: list[tuple[str, str]]) -> frozenset[_State]:
        found = []
        for name, text in items:
            if (ATTRIBUTE + name) in self._labels or (self._prefixes and name[0] == "{"):
                tag = self._tags.get(ATTRIBUTE + name) or self._tag(ATTRIBUTE + name)
                values = tuple([label.values_of_text(text) for label in tag.tested])
                known = tag.states.get((values, _NO_CHILDREN)) if values else tag.leaf
                found.append(known or self._state(tag, values, _NO_CHILDREN))
        return frozenset(found)

    def _tag(self, name: str) -> _Tag:
        labels = tuple(self._labels[each] for each in self._names(name) if each in self._labels)
        tag = _Tag(labels, tuple(label for label in labels if label.numbers))
        if len(self._tags) < TAGS_MAX:
            self._tags[name] = tag
        return tag

    def _names(self, name: str) -> list[str]:
        """The labels of steps that an element or attribute with this name meets."""
        mark, own = (ATTRIBUTE, name[1:]) if name.startswith(ATTRIBUTE) else ("", name)
        names = [name] if mark else [name, ANY]
        if own.startswith("{"):
            namespace, _, local = own[1:].partition("}")
            for prefix, meant in self._namespaces:
                if meant == namespace:
                    names += [f"{mark}{prefix}:{local}", f"{mark}{prefix}:*"]
        return names

    # Elements that have not been seen

    def _state(self, tag: _Tag, values: tuple[int, ...], children: frozenset[_State]) -> _State:
        """Work out the state of an element, and remember it."""
        met_and_below = self._met(tag, values, children)
        state = self._states.setdefault(met_and_below, _State(*met_and_below))
        self._states_bytes += STATE_BYTES + 2 * self._bytes + CHILD_BYTES * len(children)
        if self._states_bytes > self._states_bytes_max:
            self._forget_states()
            for each in self._tags.values():
                each.states.clear()
                each.plain_states.clear()
                each.leaf = None
        if values:
            tag.states[values, children] = state
        elif children:
            tag.plain_states[children] = state
        else:
            tag.leaf = state
        return state

    def _met(self, tag: _Tag, values: tuple[int, ...], states: Iterable[_State]) -> tuple[int, int]:
        """The steps that an element meets; those that it, or anything below it, meets and that are free steps."""
        children = below = met = 0
        for state in states:
            children |= state.met
            below |= state.below
        for label in tag.labels:
            met |= label.mask
        needs_met = [self._needs_met(*each) for each in zip(tag.tested, values, strict=True)]
        for at, column in enumerate(self._columns):
            missing = met & column.steps
            if not missing:
                continue
            met ^= missing
            have = 0
            for shift, move in column.moves.items():
                if found := children & move.children | below & move.below:
                    have |= found << shift
            for each in needs_met:
                have |= each[at]
            met |= missing & have
        if self._has_others:
            numbers = dict(zip(map(id, tag.tested), values, strict=True))
            for label in tag.labels:
                for bit, test in label.others:
                    if test(numbers.get(id(label), 0), children, below):
                        met |= bit
        return met, below | met & self._free_steps

    def _needs_met(self, label: _Label, values: int) -> tuple[int, ...]:
        """The steps whose first, second, ... need is among these comparisons."""
        known = label.needs_met.get(values)
        if known is None:
            needs = [0 for _ in self._columns]
            for position in positions(values):
                for at, bit in label.needs.get(position, ()):
                    needs[at] |= bit
            if len(label.needs_met) >= VALUES_MAX:
                label.needs_met.clear()
            known = label.needs_met[values] = tuple(needs)
        return known


def _size(part: Condition) -> int:
    """How many steps there are in a part of a pattern."""
    return sum(1 for _ in steps_of(part))
