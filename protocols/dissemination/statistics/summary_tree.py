"""The node-labelled data summary tree of a stream of XML documents (CoDD section 3.1.1). Pure.

One tree for all documents: a node stands for a path of labels from the root, and its bitmap says which documents have
such a node. A document is taken in with one pass over it. Which documents meet a query is told by following the query's
pattern through the tree, and intersecting bitmaps.

A query that is one path of child steps is answered exactly. With branches the answer may have too many documents, never
too few: that ``/a/b[c][d]`` is met needs a ``b`` with both, and the bitmaps only say that the document has an ``a/b/c``
and an ``a/b/d``, perhaps below different ``b``. So it is with values above `TEXTS_MAX`, with ``not``, and with what was
pruned.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from operator import eq, ge, gt, le, lt, ne
from typing import Final

from pyroaring import BitMap64

from protocols.dissemination.interests.xpath.document import Document, parse
from protocols.dissemination.interests.xpath.numbers import number_of
from protocols.dissemination.interests.xpath.pattern import (
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
from protocols.dissemination.messages import StreamItem
from protocols.dissemination.names import StreamPosition
from protocols.dissemination.ports import Interest
from protocols.dissemination.statistics.received import ItemSet

SUMMARY_EVERY: Final = 4
"""One document in so many is taken in (a power of two): the others would cost time and hardly change an estimate."""
SUMMARY_NODES_MAX: Final = 4096
SUMMARY_BYTES_MAX: Final = 2 << 20
"""What the tree may take, about; looked at whenever old documents are forgotten."""
TEXTS_MAX: Final = 16
"""Different texts of one node that are told apart."""
TEXT_LENGTH_MAX: Final = 32
NOTED_BYTES_MAX: Final = 1 << 20
"""Of documents that wait until somebody asks: to take so many in takes some 50 ms."""
NODE_BYTES: Final = 400
ENTRY_BYTES: Final = 2
PRUNED_TO: Final = 0.75
"""Pruning goes on down to this part of the limits, so that it is seldom."""
GROWTH_PART: Final = 8
"""Between two prunings the tree grows by one such part of its limit at most."""
_COMPARE: Final = {"=": eq, "!=": ne, "<": lt, "<=": le, ">": gt, ">=": ge}


@dataclass(eq=False, slots=True)
class _Node:
    documents: BitMap64 = field(default_factory=BitMap64)
    children: dict[str, _Node] = field(default_factory=dict)
    texts: dict[str, BitMap64] = field(default_factory=dict)
    other_texts: BitMap64 = field(default_factory=BitMap64)
    """Documents with a text here that is not told apart."""
    pruned: BitMap64 = field(default_factory=BitMap64)
    """Documents that had a child here which was cut off: of any label, with anything below it."""

    def bitmaps(self) -> Iterator[BitMap64]:
        """All that it has."""
        yield self.documents
        yield self.other_texts
        yield self.pruned
        yield from self.texts.values()

    def put_text(self, text: str, number: int) -> None:
        """A document has this text here."""
        known = self.texts.get(text)
        if known is None:
            if len(text) > TEXT_LENGTH_MAX or len(self.texts) >= TEXTS_MAX:
                self.other_texts.add(number)
                return
            known = self.texts[text] = BitMap64()
        known.add(number)


class SummaryTree:
    """The summary of the last ``window`` items of one stream."""

    def __init__(
        self,
        window: int,
        every: int = SUMMARY_EVERY,
        nodes_max: int = SUMMARY_NODES_MAX,
        bytes_max: int = SUMMARY_BYTES_MAX,
    ) -> None:
        self._window = window
        self._every = every
        self._nodes_max = nodes_max
        self._bytes_max = bytes_max
        self._root = _Node()
        self._epoch = 0
        self._since = 0
        self._through = 0
        self._noted: deque[StreamItem] = deque()
        self.noted_bytes = 0
        """Of documents that have to be taken in before the next answer."""
        self.nodes = 1
        self._nodes_until = nodes_max
        """So many nodes there may be before old documents are forgotten the next time."""

    # Documents

    def note(self, item: StreamItem) -> None:
        """A document has come. It is taken in when somebody asks: most are out of the window before that."""
        if item.position.sequence % self._every:
            return
        self._noted.append(item)
        self.noted_bytes += item.size
        while len(self._noted) > max(1, self._window // self._every) or (
            self.noted_bytes > NOTED_BYTES_MAX and len(self._noted) > 1
        ):
            self.noted_bytes -= self._noted.popleft().size
            self._epoch = 0  # the tree lacks what was let go: it is made anew of what is left

    def add(self, position: StreamPosition, document: Document) -> None:
        """Take a document in: its root element, as lxml has it."""
        number = position.sequence
        if position.epoch != self._epoch:
            self._root, self.nodes, self._nodes_until = _Node(), 1, self._nodes_max
            self._epoch, self._since = position.epoch, number - 1
        elif number <= self._through:
            return
        self._through = number
        if number % self._every:
            return
        self._root.documents.add(number)
        waiting = [(self._root, document)]
        while waiting:
            parent, element = waiting.pop()
            node = self._child(parent, element.tag, number)
            if node is None:
                continue
            for name, text in element.attrib.items():
                attribute = self._child(node, ATTRIBUTE + name, number)
                if attribute is not None:
                    attribute.put_text(text, number)
            if len(element):
                node.other_texts.add(number)
                waiting.extend((node, child) for child in element)
            else:
                node.put_text(element.text or "", number)
        if number - self._since > self._window + self._window // 8:
            self._forget(number - self._window)

    def _child(self, parent: _Node, label: str, number: int) -> _Node | None:
        node = parent.children.get(label)
        if node is None:
            if self.nodes >= self._nodes_until:
                parent.pruned.add(number)
                return None
            node = parent.children[label] = _Node()
            self.nodes += 1
        node.documents.add(number)
        return node

    def _forget(self, watermark: int) -> None:
        """Forget documents up to a number, and prune."""
        self._since = watermark
        for node in self._all():
            for bitmap in node.bitmaps():
                bitmap.remove_range(0, watermark + 1)
            node.texts = {text: known for text, known in node.texts.items() if known}
            node.children = {label: child for label, child in node.children.items() if _is_met_after(child, watermark)}
        self.nodes = sum(1 for _ in self._all())
        self._prune()
        self._nodes_until = min(self._nodes_max, self.nodes + self._nodes_max // GROWTH_PART)

    def _all(self) -> Iterator[_Node]:
        waiting = [self._root]
        while waiting:
            node = waiting.pop()
            yield node
            waiting.extend(node.children.values())

    @property
    def bytes(self) -> int:
        """What it takes, about."""
        return sum(NODE_BYTES + ENTRY_BYTES * sum(map(len, node.bitmaps())) for node in self._all())

    def _prune(self) -> None:
        """Cut off leaves that the fewest documents have, until the tree is small enough."""
        size = self.bytes
        if self.nodes <= self._nodes_max * PRUNED_TO and size <= self._bytes_max:
            return
        while self.nodes > self._nodes_max * PRUNED_TO or size > self._bytes_max * PRUNED_TO:
            leaves = [
                (len(child.documents), label, parent)
                for parent in self._all()
                for label, child in parent.children.items()
                if not child.children
            ]
            leaves.sort(key=lambda leaf: leaf[:2])
            for _, label, parent in leaves[: max(1, len(leaves) // 4)]:
                gone = parent.children.pop(label)
                size -= NODE_BYTES + ENTRY_BYTES * sum(map(len, gone.bitmaps()))
                size += ENTRY_BYTES * len(gone.documents - parent.pruned)
                parent.pruned |= gone.documents
                self.nodes -= 1
            if not leaves:
                return

    # Queries

    def wanted_by(self, interests: Sequence[Interest]) -> ItemSet | None:
        """The documents that meet one of these queries; ``None``: one of them is no pattern, or nothing has come."""
        patterns = [interest.meaning.pattern for interest in interests]
        if not all(interest.meaning.is_exact for interest in interests):
            return None
        while self._noted:
            item = self._noted.popleft()
            self.add(item.position, parse(item.payload))
        self.noted_bytes = 0
        if not self._root.documents:
            return None
        found = BitMap64()
        for pattern in patterns:
            found |= _Query().meets(self._root, pattern)
        return ItemSet(self._epoch, self._since, self._through, found, self._every)


class _Query:
    """One query on the tree; remembers what it has found, so that each step looks at each node once."""

    def __init__(self) -> None:
        self._below: dict[tuple[int, PatternStep], BitMap64] = {}

    def meets(self, node: _Node, condition: Condition) -> BitMap64:
        """Documents with a node here that may meet a condition: all that do, and perhaps others."""
        match condition:
            case Has(axis=StepAxis.CHILD, step=step):
                return self._children(node, step)
            case Has(step=step):
                return self._descendants(node, step)
            case All(parts=parts):
                found = node.documents.copy()
                for part in parts:
                    found &= self.meets(node, part)
                return found
            case Some(parts=parts):
                found = BitMap64()
                for part in parts:
                    found |= self.meets(node, part)
                return found
            case Value():
                return _with_value(node, condition)
            case NoneOf():
                return node.documents

    def _children(self, node: _Node, step: PatternStep) -> BitMap64:
        found = node.pruned.copy()
        if step.label == ANY:
            for label, child in node.children.items():
                if not label.startswith(ATTRIBUTE):
                    found |= self.meets(child, step.condition)
        elif (named := node.children.get(step.label)) is not None:
            found |= self.meets(named, step.condition)
        return found

    def _descendants(self, node: _Node, step: PatternStep) -> BitMap64:
        key = id(node), step
        found = self._below.get(key)
        if found is None:
            found = self._children(node, step)
            for child in node.children.values():
                found |= self._descendants(child, step)
            self._below[key] = found
        return found


def _with_value(node: _Node, value: Value) -> BitMap64:
    found = node.other_texts.copy()
    for text, documents in node.texts.items():
        if _holds(value, text):
            found |= documents
    return found


def _holds(value: Value, text: str) -> bool:
    constant = value.constant
    if isinstance(constant, str):
        return (text == constant) == (value.op == "=")
    return bool(_COMPARE[value.op](number_of(text), constant))


def _is_met_after(node: _Node, watermark: int) -> bool:
    """Whether a document after this number has the node. Bitmaps of nodes below may not have been cut yet."""
    return bool(node.documents) and node.documents.max() > watermark
