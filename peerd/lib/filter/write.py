"""Writes a tree as text: ``parse(write(node))`` gives the same tree."""

from __future__ import annotations

import json
import re
from decimal import Decimal
from typing import Final

from peerd.lib.filter import tree
from peerd.lib.filter.grammar import BARE_NAME, Dialect
from peerd.lib.filter.values import Address, Literal, Timestamp

_BARE_NAME: Final = re.compile(BARE_NAME, re.IGNORECASE)
_BARE_WORD: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.\-]*")
_MORE_KEYWORDS: Final = frozenset({"by", "where", "and"})


def write(node: tree.Node, dialect: Dialect = Dialect.SQL) -> str:
    """Return the text of a tree, in one line."""
    return _Writer(dialect).node(node)


def write_name(name: str) -> str:
    """An attribute's name, quoted where it has to be."""
    return name if _BARE_NAME.fullmatch(name) else json.dumps(name, ensure_ascii=False)


def write_text(text: str) -> str:
    """Return a text literal as SQL writes it."""
    return "'" + text.replace("'", "''") + "'"


class _Writer:
    def __init__(self, dialect: Dialect) -> None:
        self.words = dialect is Dialect.WORDS

    def node(self, node: tree.Node) -> str:
        """Return the text of any node, without parentheses around it."""
        if isinstance(node, tree.Or):
            return " OR ".join(self._part(part, (tree.Or,)) for part in node.parts)
        if isinstance(node, tree.And):
            connective = " and " if self.words else " AND "
            return connective.join(self._part(part, (tree.Or, tree.And)) for part in node.parts)
        if isinstance(node, tree.Constant):
            return "TRUE" if node.value else "FALSE"
        if isinstance(node, tree.Not):
            return self._negated(node.part)
        return self.atom(node, "")

    def _part(self, node: tree.Node, loose: tuple[type, ...]) -> str:
        return f"({self.node(node)})" if isinstance(node, loose) else self.node(node)

    def _negated(self, part: tree.Node) -> str:
        if isinstance(part, tree.IsNull):
            return f"{write_name(part.name)} IS NOT NULL"
        if isinstance(part, tree.Compare | tree.Constant | tree.Not):
            return f"NOT {self.node(part)}"
        return f"NOT ({self.node(part)})" if isinstance(part, tree.And | tree.Or) else self.atom(part, "NOT ")

    def atom(self, atom: tree.Atom, negation: str) -> str:
        """An atom, with ``NOT`` before its operator where that is wanted."""
        name = write_name(atom.name)
        if isinstance(atom, tree.Compare):
            operator = "!=" if self.words and atom.operator == "<>" else atom.operator
            if self.words and isinstance(atom.value, bool):  # on the right they would be words
                return f"{self.literal(atom.value)} {tree.FLIPPED.get(operator, operator)} {name}"
            return f"{name} {operator} {self.literal(atom.value, alone=True)}"
        if isinstance(atom, tree.Between):
            low, high = self.literal(atom.low), self.literal(atom.high)
            if atom.low_closed and atom.high_closed:
                return f"{name} {negation}BETWEEN {low} AND {high}"
            return (
                f"{name} {negation}IN {'[' if atom.low_closed else '('}{low}, {high}{']' if atom.high_closed else ')'}"
            )
        if isinstance(atom, tree.In):
            return f"{name} {negation}IN ({', '.join(map(self.literal, atom.values))})"
        if isinstance(atom, tree.InNetwork):
            networks = ", ".join(map(write_text, atom.networks))
            return (
                f"{name} {negation}IN CIDR ({networks})"
                if len(atom.networks) > 1
                else f"{name} {negation}IN CIDR {networks}"
            )
        if isinstance(atom, tree.IsNull):
            return f"{name} IS NULL"
        if isinstance(atom, tree.Like):
            escape = "" if atom.escape is None else f" ESCAPE {write_text(atom.escape)}"
            return f"{name} {negation}LIKE {write_text(atom.pattern)}{escape}"
        if isinstance(atom, tree.Affix):
            return f"{name} {negation}{atom.where} {write_text(atom.text)}"
        return f"{name} {negation}MATCHES {write_text(atom.regex)}"

    def literal(self, value: Literal, *, alone: bool = False) -> str:
        """A literal. ``alone``: the right-hand side of a comparison, where the dialect has bare words."""
        if isinstance(value, bool):
            return "TRUE" if value else "FALSE"
        if isinstance(value, str):
            if self.words and alone:
                is_word = _BARE_WORD.fullmatch(value) and value.lower() not in _MORE_KEYWORDS
                return value if is_word else json.dumps(value, ensure_ascii=False)
            return write_text(value)
        if isinstance(value, Decimal):
            return f"DECIMAL '{value}'"
        if isinstance(value, Timestamp):
            return f"TIMESTAMP '{value}'"
        return f"IP '{value}'" if isinstance(value, Address) else repr(value)
