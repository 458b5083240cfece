"""The types of attributes, where somebody has declared them: errors at once instead of conditions that never hold.

A schema is a mapping from names to types, as in ``{"price": "decimal", "at": "timestamp", "from": "ip"}``. A filter
that is read with it compares every attribute as its type says, or is refused with the attribute's name.
"""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from enum import StrEnum
from typing import Any, Final

from msgspec.structs import replace

from peerd.errors import closest
from peerd.frozen import Frozen
from peerd.lib.filter import tree
from peerd.lib.filter.errors import FilterError
from peerd.lib.filter.values import Address, Literal, Timestamp, View, find, parse_address, parse_timestamp, view_of

ATTRIBUTES_MAX: Final = 1024
"""The largest number of attributes in one schema."""


class Type(StrEnum):
    """The types that an attribute can have."""

    INT = "int"
    FLOAT = "float"
    DECIMAL = "decimal"
    STRING = "string"
    BOOL = "bool"
    TIMESTAMP = "timestamp"
    IP = "ip"


_VIEWS: Final = {
    Type.INT: View.NUMBER,
    Type.FLOAT: View.NUMBER,
    Type.DECIMAL: View.NUMBER,
    Type.STRING: View.TEXT,
    Type.BOOL: View.BOOLEAN,
    Type.TIMESTAMP: View.TIME,
    Type.IP: View.ADDRESS,
}


class Schema(Frozen):
    """Names and types of all attributes that filters may use."""

    types: Mapping[str, Type]

    @staticmethod
    def read(document: object) -> Schema:
        """Read a schema from a mapping of names to words for types. Raises `FilterError`."""
        if not isinstance(document, Mapping) or len(document) > ATTRIBUTES_MAX:
            raise FilterError(f"a schema is an object of at most {ATTRIBUTES_MAX} names and types")
        types = {}
        for name, word in document.items():
            if not isinstance(word, str) or word not in set(Type):
                raise FilterError(f"the type of {name!r:.60} is one of {', '.join(Type)}, not {word!r:.60}")
            types[str(name)] = Type(word)
        return Schema(types)

    def apply(self, node: tree.Node) -> tree.Node:
        """A filter with literals of its attributes' types. Raises `FilterError` naming the attribute."""
        if isinstance(node, tree.Constant):
            return node
        if isinstance(node, tree.Not):
            return tree.Not(self.apply(node.part))
        if isinstance(node, tree.And | tree.Or):
            return replace(node, parts=tuple(map(self.apply, node.parts)))
        return self.typed(node)

    def typed(self, atom: tree.Atom) -> tree.Atom:
        """The atom with literals of its attribute's type. Raises `FilterError` naming the attribute."""
        kind = self._type_of(atom.name)
        if isinstance(atom, tree.Compare):
            return replace(atom, value=self._literal(atom.name, kind, atom.value))
        if isinstance(atom, tree.Between):
            low, high = (self._literal(atom.name, kind, value) for value in (atom.low, atom.high))
            return replace(atom, low=low, high=high)
        if isinstance(atom, tree.In):
            return replace(atom, values=tuple(self._literal(atom.name, kind, value) for value in atom.values))
        if isinstance(atom, tree.InNetwork) and kind is not Type.IP:
            raise FilterError(f"{atom.name} is {kind}, and IN CIDR is for ip")
        if isinstance(atom, tree.Like | tree.Affix | tree.Matches) and kind is not Type.STRING:
            operator = atom.where if isinstance(atom, tree.Affix) else type(atom).__name__.upper()
            raise FilterError(f"{atom.name} is {kind}, and {operator} is for string")
        return atom

    def read_event(self, event: Mapping[str, Any]) -> dict[str, Any]:
        """The declared attributes of an event, flat, with decimals made of what JSON wrote for them.

        An attribute of another type than declared is left out, so that every condition on it is unknown.
        """
        values: dict[str, Any] = {}
        for name, kind in self.types.items():
            value = find(event, name)
            if value is not None and (value := _converted(kind, value)) is not None:
                values[name] = value
        return values

    def _type_of(self, name: str) -> Type:
        kind = self.types.get(name)
        if kind is None:
            near = closest(name[:64], self.types)
            hint = "" if near is None else f"; did you mean {near}?"
            raise FilterError(f"the schema has no attribute {name!r:.80}{hint}")
        return kind

    def _literal(self, name: str, kind: Type, value: Literal) -> Literal:
        converted = value
        if kind is Type.DECIMAL and isinstance(value, float):
            converted = Decimal(repr(value))
        elif kind is Type.TIMESTAMP and isinstance(value, str):
            nanoseconds = parse_timestamp(value)
            converted = value if nanoseconds is None else Timestamp(nanoseconds)
        elif kind is Type.IP and isinstance(value, str):
            key = parse_address(value)
            converted = value if key is None else Address(key)
        if view_of(converted) is not _VIEWS[kind]:
            raise FilterError(f"{name} is {kind}, and cannot be compared with {_said(value)}")
        return converted


def _said(value: Literal) -> str:
    return f"the {view_of(value)} {str(value)!r:.60}" if isinstance(value, str) else f"the {view_of(value)} {value}"


def _converted(kind: Type, value: object) -> object | None:
    """Convert the value to the type; return ``None`` where that is not possible."""
    if kind is Type.DECIMAL and isinstance(value, str | float) and not isinstance(value, bool):
        try:
            return Decimal(value if isinstance(value, str) else repr(value))
        except InvalidOperation:
            return None
    if kind is Type.INT:
        return value if isinstance(value, int) and not isinstance(value, bool) else None
    if kind in (Type.FLOAT, Type.DECIMAL):
        return value if isinstance(value, int | float | Decimal) and not isinstance(value, bool) else None
    if kind is Type.BOOL:
        return value if isinstance(value, bool) else None
    if kind is Type.STRING:
        return value if isinstance(value, str) else None
    return value
