"""The syntax tree of a filter, and the limits that every tree keeps.

A filter is a `Node`. Trees are made by `all_of`, `any_of` and the classes here, and checked by `check_limits`; what
comes from text or JSON has been checked. The truth of each node is said in docs/filters.md: an atom on an attribute
that is missing or cannot be read as its values are is unknown, and AND, OR, NOT follow Kleene's three values.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from decimal import Decimal
from typing import Final, TypeAlias

from peerd.frozen import Frozen
from peerd.lib.filter.errors import FilterError, FilterTooLarge
from peerd.lib.filter.limits import (
    ATOMS_MAX,
    DEPTH_MAX,
    LIST_ITEMS_MAX,
    NAME_BYTES_MAX,
    NUMBER_CHARACTERS_MAX,
    STRING_CHARACTERS_MAX,
)
from peerd.lib.filter.patterns import check_regex, normalise_like
from peerd.lib.filter.values import Literal, View, is_unicode, parse_network, view_of

OPERATORS: Final = ("=", "<>", "<", "<=", ">", ">=")
FLIPPED: Final = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}
"""What an operator becomes when its sides change places; the others stay as they are."""
AFFIXES: Final = ("STARTS WITH", "ENDS WITH", "CONTAINS")


class Compare(Frozen):
    """A comparison: ``name operator value``."""

    name: str
    operator: str
    value: Literal


class Between(Frozen):
    """``name BETWEEN low AND high``, or with one end left out: ``name IN [low, high)``."""

    name: str
    low: Literal
    high: Literal
    low_closed: bool = True
    high_closed: bool = True


class In(Frozen):
    """``name IN (value, ...)``, all values of one kind."""

    name: str
    values: tuple[Literal, ...]


class Like(Frozen):
    """``name LIKE 'pattern' [ESCAPE 'c']``: ``%`` is any text and ``_`` any one character."""

    name: str
    pattern: str
    escape: str | None = None


class Affix(Frozen):
    """``name STARTS WITH 'text'``, also ENDS WITH and CONTAINS."""

    name: str
    where: str
    text: str


class Matches(Frozen):
    """``name MATCHES 'regular expression'``: the whole text, RE2's syntax."""

    name: str
    regex: str


class InNetwork(Frozen):
    """A condition on an IP address: ``name IN CIDR ('10.0.0.0/8', ...)``."""

    name: str
    networks: tuple[str, ...]


class IsNull(Frozen):
    """``name IS NULL``: missing, or null. The only atom that is never unknown."""

    name: str


class Constant(Frozen):
    """The condition TRUE or the condition FALSE."""

    value: bool


class Not(Frozen):
    """The negation of its part; unknown when the part is unknown."""

    part: Node


class And(Frozen):
    """True if all parts are true. It is made by `all_of`."""

    parts: tuple[Node, ...]


class Or(Frozen):
    """True if at least one part is true. It is made by `any_of`."""

    parts: tuple[Node, ...]


Atom: TypeAlias = Compare | Between | In | Like | Affix | Matches | InNetwork | IsNull
Node: TypeAlias = Atom | Constant | Not | And | Or


def all_of(parts: Iterable[Node]) -> Node:
    """The conjunction: one part is itself, none is TRUE, and conjunctions among the parts are taken apart."""
    flat = [inner for part in parts for inner in (part.parts if isinstance(part, And) else (part,))]
    return flat[0] if len(flat) == 1 else And(tuple(flat)) if flat else Constant(True)


def any_of(parts: Iterable[Node]) -> Node:
    """The disjunction: one part is itself, none is FALSE, and disjunctions among the parts are taken apart."""
    flat = [inner for part in parts for inner in (part.parts if isinstance(part, Or) else (part,))]
    return flat[0] if len(flat) == 1 else Or(tuple(flat)) if flat else Constant(False)


def atoms(node: Node) -> Iterator[Atom]:
    """Yield every atom from left to right."""
    if isinstance(node, And | Or):
        for part in node.parts:
            yield from atoms(part)
    elif isinstance(node, Not):
        yield from atoms(node.part)
    elif not isinstance(node, Constant):
        yield node


def names(node: Node) -> tuple[str, ...]:
    """The attributes that a filter reads, each once, in the order of their first mention."""
    return tuple(dict.fromkeys(atom.name for atom in atoms(node)))


# --- limits and validity --------------------------------------------------------------------------------------------


def check_limits(node: Node) -> Node:
    """The node itself. Raises `FilterTooLarge` or `FilterError` for a tree that no parser would have made."""
    count = _check_depth(node, 1)
    if count > ATOMS_MAX:
        raise FilterTooLarge("ATOMS_MAX", f"a filter has at most {ATOMS_MAX} conditions, not {count}")
    for atom in atoms(node):
        check_atom(atom)
    return node


def _check_depth(node: Node, depth: int) -> int:
    """The number of atoms; stops at the first node that lies too deep."""
    if depth > DEPTH_MAX:
        raise FilterTooLarge("DEPTH_MAX", f"a filter is nested at most {DEPTH_MAX} deep")
    if isinstance(node, And | Or):
        return sum(_check_depth(part, depth + 1) for part in node.parts)
    if isinstance(node, Not):
        return _check_depth(node.part, depth + 1)
    return 1


def check_atom(atom: Atom) -> None:
    """Raises `FilterError` unless the atom's name, values and pattern are sound."""
    check_name(atom.name)
    if isinstance(atom, Compare):
        _check_comparison(atom)
    elif isinstance(atom, Between):
        _check_between(atom)
    elif isinstance(atom, In):
        _check_items(atom.name, atom.values)
        for value in atom.values:
            check_literal(value)
        one_view(atom.name, atom.values)
    elif isinstance(atom, InNetwork):
        _check_items(atom.name, atom.networks)
        for network in atom.networks:
            check_network(network)
    elif isinstance(atom, Like):
        check_literal(atom.pattern)
        normalise_like(atom.pattern, atom.escape)
    elif isinstance(atom, Matches):
        check_literal(atom.regex)
        check_regex(atom.regex)
    elif isinstance(atom, Affix):
        if atom.where not in AFFIXES:
            raise FilterError(f"one of {', '.join(AFFIXES)}, not {atom.where!r:.40}")
        check_literal(atom.text)


def _check_comparison(atom: Compare) -> None:
    check_literal(atom.value)
    if atom.operator not in OPERATORS:
        raise FilterError(f"an operator is one of {' '.join(OPERATORS)}, not {atom.operator!r:.40}")
    if isinstance(atom.value, bool) and atom.operator not in ("=", "<>"):
        raise FilterError(f"{atom.name}: TRUE and FALSE are compared with = and <> only, not with {atom.operator}")


def _check_between(atom: Between) -> None:
    check_literal(atom.low)
    check_literal(atom.high)
    if one_view(atom.name, (atom.low, atom.high)) is View.BOOLEAN:
        raise FilterError(f"{atom.name}: TRUE and FALSE have no order")
    if not (atom.low_closed or atom.high_closed):
        raise FilterError(f"{atom.name}: a range without both of its ends is written with > and <")


def check_name(name: str) -> None:
    """Raises `FilterError` unless an attribute can have this name."""
    if not name or "\0" in name or not is_unicode(name):
        raise FilterError(f"a name is not empty, valid Unicode and without NUL, not {name!r:.60}")
    if len(name.encode()) > NAME_BYTES_MAX:
        raise FilterTooLarge("NAME_BYTES_MAX", f"a name has at most {NAME_BYTES_MAX} bytes")


def check_literal(value: Literal) -> None:
    """Raises `FilterError` for a value that cannot be written in a filter."""
    if isinstance(value, str):
        if len(value) > STRING_CHARACTERS_MAX:
            message = f"a text has at most {STRING_CHARACTERS_MAX} characters, not {len(value)}"
            raise FilterTooLarge("STRING_CHARACTERS_MAX", message)
        if not is_unicode(value):
            raise FilterError(f"a text is valid Unicode, not {value!r:.60}")
    elif isinstance(value, int):
        if value.bit_length() > 4 * NUMBER_CHARACTERS_MAX or len(str(value)) > NUMBER_CHARACTERS_MAX:
            raise FilterTooLarge("NUMBER_CHARACTERS_MAX", f"a number has at most {NUMBER_CHARACTERS_MAX} characters")
    elif isinstance(value, Decimal):
        if not value.is_finite():
            raise FilterError("a number is finite")
        if len(str(value)) > NUMBER_CHARACTERS_MAX:
            raise FilterTooLarge("NUMBER_CHARACTERS_MAX", f"a number has at most {NUMBER_CHARACTERS_MAX} characters")
    elif isinstance(value, float) and not -1e999 < value < 1e999:
        raise FilterError("a number is finite and in the range of a double")


def check_network(network: str) -> None:
    """Raises `FilterError` unless it is an address or a network of either version."""
    if parse_network(network) is None:
        raise FilterError(f"a network such as 10.0.0.0/8 or 2001:db8::/32 is expected, not {network!r:.60}")


def one_view(name: str, values: tuple[Literal, ...]) -> View:
    """The view that all values share. Raises `FilterError` when they do not."""
    views = dict.fromkeys(map(view_of, values))
    if len(views) > 1:
        raise FilterError(f"{name}: values of one kind are expected, not {' and '.join(views)}")
    return next(iter(views))


def _check_items(name: str, items: tuple[object, ...]) -> None:
    if not items:
        raise FilterError(f"{name}: a list has at least one value")
    if len(items) > LIST_ITEMS_MAX:
        raise FilterTooLarge("LIST_ITEMS_MAX", f"{name}: a list has at most {LIST_ITEMS_MAX} values, not {len(items)}")
