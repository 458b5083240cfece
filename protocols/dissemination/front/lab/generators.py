"""Random documents and XPath queries of a document type, as section 5.4 of the CoDD paper has them.

Everything follows from the generator of random numbers that is given: the same seed, the same documents and queries.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Final
from xml.sax.saxutils import escape, quoteattr

from protocols.dissemination.front.lab.dtd import DocumentType, ElementModel, Particle

WORDS: Final = (
    "alpha",
    "bravo",
    "charlie",
    "delta",
    "echo",
    "foxtrot",
    "golf",
    "hotel",
    "india",
    "juliet",
    "kilo",
    "lima",
    "mike",
)
NUMBERS_MAX: Final = 100
"""Texts that are numbers are below this."""


@dataclass(frozen=True, slots=True)
class DocumentShape:
    """How random documents look. The defaults come near the paper's NITF documents (its figure 15)."""

    depth: int = 9
    """Levels, but for what the document type makes necessary."""
    elements: int = 150
    """After so many elements whatever may be left out is left out."""
    optional: float = 0.6
    """The probability of what may be there or not, and of one more of what may be repeated."""
    attributes: float = 0.5
    """The probability of an attribute that may be left out."""
    numbers: float = 0.3
    """The share of texts that are numbers."""


@dataclass(frozen=True, slots=True)
class QueryShape:
    """How random queries look: the paper's probabilities."""

    wildcard: float = 0.2
    """The probability of ``*`` in the place of a name."""
    twig: float = 0.3
    """The probability of one more branch at a step."""
    closure: float = 0.2
    """The probability of ``//`` in the place of ``/``."""
    value: float = 0.0
    """The probability of a comparison with a constant at the end of a path. The paper has none."""
    depth: int = 6
    """Most steps of the path, and of each branch."""


def random_document(kind: DocumentType, random: Random, shape: DocumentShape | None = None) -> bytes:
    """Return a document that is valid for its type, but for attributes of types that no text is known for."""
    return _DocumentWriter(kind, random, shape or DocumentShape()).document()


class _DocumentWriter:
    def __init__(self, kind: DocumentType, random: Random, shape: DocumentShape) -> None:
        self.kind, self.random, self.shape = kind, random, shape
        self.pieces: list[str] = []
        self.count = 0

    def document(self) -> bytes:
        """Write it."""
        self._element(self.kind.root, 1)
        return "".join(self.pieces).encode()

    def _element(self, name: str, depth: int) -> None:
        self.count += 1
        model = self.kind.elements.get(name) or ElementModel(name, None, ())
        attributes = "".join(
            f" {each.name}={quoteattr(self.random.choice(each.values) if each.values else self._text())}"
            for each in model.attributes
            if each.is_required or self.random.random() < self.shape.attributes
        )
        self.pieces.append(f"<{name}{attributes}>")
        if model.content is not None:
            self._particle(model.content, depth + 1)
        self.pieces.append(f"</{name}>")

    def _particle(self, particle: Particle, depth: int) -> None:
        for _ in range(self._times(particle, depth)):
            if particle.kind == "pcdata":
                self.pieces.append(escape(self._text()))
            elif particle.kind == "element":
                self._element(particle.name, depth)
            elif particle.kind == "seq":
                for part in particle.parts:
                    self._particle(part, depth)
            else:
                self._particle(self._choice(particle, depth), depth)

    def _times(self, particle: Particle, depth: int) -> int:
        least = 1 if particle.occurs in ("once", "plus") else 0
        if particle.occurs == "once" or depth > self.shape.depth or self.count >= self.shape.elements:
            return least
        most = 1 if particle.occurs == "opt" else self.shape.elements
        times = least
        while times < most and self.random.random() < self.shape.optional:
            times += 1
        return times

    def _choice(self, particle: Particle, depth: int) -> Particle:
        if depth < self.shape.depth and self.count < self.shape.elements:
            return self.random.choice(particle.parts)
        return min(particle.parts, key=self.kind.height_of)

    def _text(self) -> str:
        if self.random.random() < self.shape.numbers:
            return str(self.random.randrange(NUMBERS_MAX))
        return self.random.choice(WORDS)


def random_query(kind: DocumentType, random: Random, shape: QueryShape | None = None) -> str:
    """Return an XPath query for documents of a type: a walk down from the root, with branches."""
    return _QueryWriter(kind, random, shape or QueryShape()).query()


class _QueryWriter:
    def __init__(self, kind: DocumentType, random: Random, shape: QueryShape) -> None:
        self.kind, self.random, self.shape = kind, random, shape

    def query(self) -> str:
        """Write it."""
        steps = self.random.randint(2, max(2, self.shape.depth))
        name, axis = self.kind.root, "/"
        if self.random.random() < self.shape.closure:
            name, axis = self._below(name), "//"
        return axis + self._step(name, steps, is_outside=True)

    def _step(self, name: str, steps: int, *, is_outside: bool) -> str:
        """A step with its branches, and the rest of its path."""
        text = "*" if self.random.random() < self.shape.wildcard else name
        children = self._children(name)
        if children and steps > 1 and self.random.random() < self.shape.twig:
            text += f"[{self._branch(children, steps)}]"
        if steps <= 1 or not children:
            is_compared = not children and self.random.random() < self.shape.value
            return text + self._comparison(is_outside=is_outside) if is_compared else text
        if self.random.random() < self.shape.closure:
            return f"{text}//{self._step(self._below(name), steps - 1, is_outside=is_outside)}"
        return f"{text}/{self._step(self.random.choice(children), steps - 1, is_outside=is_outside)}"

    def _branch(self, children: list[str], steps: int) -> str:
        axis = ".//" if self.random.random() < self.shape.closure else ""
        name = self.random.choice(children)
        return axis + self._step(
            self._below(name) if axis else name, self.random.randint(1, steps - 1), is_outside=False
        )

    def _comparison(self, *, is_outside: bool) -> str:
        if self.random.random() < 0.5:
            text = f" {self.random.choice(('<', '<=', '>', '>='))} {self.random.randrange(NUMBERS_MAX)}"
        else:
            text = f" = '{self.random.choice(WORDS)}'"
        return f"[.{text}]" if is_outside else text

    def _children(self, name: str) -> list[str]:
        model = self.kind.elements.get(name)
        return model.children if model is not None else []

    def _below(self, name: str) -> str:
        """An element some levels below another one; the other one itself where nothing is."""
        for _ in range(self.random.randint(1, 3)):
            children = self._children(name)
            if not children:
                break
            name = self.random.choice(children)
        return name
