"""Document types: what elements may contain, as a DTD says it. lxml reads the DTD."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.resources import files
from io import BytesIO
from pathlib import Path
from typing import Any, Final

from lxml import etree

from peerd.errors import ConfigError
from peerd.lab.topologies import DATA, data_file

DTDS: Final = "xml/dtd"
"""Where DTDs are in the folder of data sets."""
BUILT_IN: Final = "news"
_ENDLESS: Final = 1 << 30
_FREE_TYPES: Final = ("cdata", "enumeration", "nmtoken", "nmtokens")
"""Types of attributes for which any word will do; others, such as names of other elements, are left out."""


@dataclass(frozen=True, slots=True)
class Particle:
    """A part of a content model. ``kind``: ``element``, ``seq``, ``or``, ``pcdata``; ``occurs``: once opt mult plus."""

    kind: str
    occurs: str
    name: str = ""
    parts: tuple[Particle, ...] = ()

    def children(self) -> list[str]:
        """The names of all elements that may be in it, each once."""
        inside = [name for part in self.parts for name in part.children()]
        return list(dict.fromkeys([self.name, *inside] if self.kind == "element" else inside))


@dataclass(frozen=True, slots=True)
class AttributeModel:
    """An attribute: its values where the DTD lists them, and whether it has to be there."""

    name: str
    values: tuple[str, ...]
    is_required: bool


@dataclass(slots=True)
class ElementModel:
    """What an element may contain."""

    name: str
    content: Particle | None
    attributes: tuple[AttributeModel, ...]
    children: list[str] = field(default_factory=list)
    height: int = _ENDLESS
    """Levels of elements below it that cannot be left out."""


@dataclass(slots=True)
class DocumentType:
    """A DTD. ``root``: the element that is in no other one; of several, the one that leads to most."""

    elements: dict[str, ElementModel]
    root: str

    def height_of(self, particle: Particle) -> int:
        """Levels of elements in it that cannot be left out, itself included."""
        if particle.occurs in ("opt", "mult") or particle.kind == "pcdata":
            return 0
        if particle.kind == "element":
            model = self.elements.get(particle.name)
            return 1 + (model.height if model is not None else 0)
        heights = map(self.height_of, particle.parts)
        return min(heights, default=0) if particle.kind == "or" else max(heights, default=0)


def read_dtd(data: bytes) -> DocumentType:
    """Read a DTD. Raises `ConfigError` for what is none, or declares no elements."""
    try:
        dtd: Any = etree.DTD(BytesIO(data))
    except etree.DTDParseError as error:
        raise ConfigError(f"no valid DTD: {error}") from error
    elements = {each.name: _element(each) for each in dtd.iterelements()}
    if not elements:
        raise ConfigError("the DTD declares no elements")
    inside = {child for model in elements.values() for child in model.children if child != model.name}
    roots = [name for name in elements if name not in inside] or list(elements)
    found = DocumentType(elements, max(roots, key=lambda name: len(_reached(elements, name))))
    _measure(found)
    return found


def _element(declared: Any) -> ElementModel:
    content = None if declared.content is None else _particle(declared.content)
    attributes = tuple(
        AttributeModel(
            each.name,
            (each.default_value,) if each.default == "fixed" else tuple(each.values()),
            each.default == "required",
        )
        for each in declared.iterattributes()
        if each.prefix is None and (each.type in _FREE_TYPES or each.default == "required")
    )
    return ElementModel(declared.name, content, attributes, [] if content is None else content.children())


def _particle(content: Any) -> Particle:
    if content.type in ("element", "pcdata"):
        return Particle(content.type, content.occur, content.name or "")
    return Particle(content.type, content.occur, parts=tuple(map(_particle, _listed(content))))


def _listed(content: Any) -> Iterator[Any]:
    """The parts of a list. lxml gives it as a pair: its first part, and a list of the others."""
    yield content.left
    rest = content.right
    if rest is not None and rest.type == content.type and rest.occur == "once":
        yield from _listed(rest)
    elif rest is not None:
        yield rest


def _reached(elements: dict[str, ElementModel], name: str) -> set[str]:
    found, waiting = {name}, [name]
    while waiting:
        model = elements.get(waiting.pop())
        for child in model.children if model is not None else ():
            if child not in found:
                found.add(child)
                waiting.append(child)
    return found


def _measure(document_type: DocumentType) -> None:
    """Find the least height of each element; an element inside itself gets it from its other parts."""
    is_new = True
    while is_new:
        is_new = False
        for model in document_type.elements.values():
            height = 0 if model.content is None else document_type.height_of(model.content)
            if height < model.height:
                model.height, is_new = height, True


@lru_cache(maxsize=16)
def document_type(name: str = BUILT_IN) -> DocumentType:
    """The built-in document type, or one from the folder of data sets. Raises `ConfigError` where there is none."""
    if name == BUILT_IN:
        return read_dtd(files(__package__).joinpath(f"{BUILT_IN}.dtd").read_bytes())
    path = data_file(f"{DTDS}/{name}.dtd")
    if path is None:
        raise ConfigError(
            f"there is no DTD {name!r}: {DATA}, expected a folder with {DTDS}/{name}.dtd; or use {BUILT_IN}"
        )
    return read_dtd(path.read_bytes())


def document_types() -> list[str]:
    """The names that `document_type` takes."""
    folder = os.environ.get(DATA)
    found = sorted(path.stem for path in (Path(folder) / DTDS).glob("*.dtd")) if folder else []
    return [BUILT_IN, *found]
