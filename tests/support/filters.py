"""Filters and events at random, and an evaluator of filters that shares nothing with the real one but the tree."""

from __future__ import annotations

import ipaddress
import math
import re
from collections.abc import Mapping
from datetime import datetime
from decimal import Decimal
from fractions import Fraction
from typing import Any

from hypothesis import strategies as st

from peerd.lib.filter.tree import (
    AFFIXES,
    OPERATORS,
    Affix,
    And,
    Atom,
    Between,
    Compare,
    Constant,
    In,
    InNetwork,
    IsNull,
    Like,
    Matches,
    Node,
    Not,
    Or,
    all_of,
    any_of,
)
from peerd.lib.filter.values import Address, Literal, Timestamp, parse_address, parse_timestamp

Truth = bool | None

# --- at random ------------------------------------------------------------------------------------------------------

NAMES = ("a", "b", "c.d", "e-1", "in")
TIMES = tuple(f"2024-01-01T00:00:0{second}{zone}" for second in range(3) for zone in ("Z", ".5Z", "+00:01"))
ADDRESSES = ("10.0.0.1", "10.0.0.255", "10.0.1.0", "0.0.0.0", "255.255.255.255", "::", "2001:db8::1", "ff::")
NETWORKS = ("10.0.0.0/24", "10.0.0.0/8", "0.0.0.0/0", "::/0", "2001:db8::/32", "10.0.0.1", "10.0.0.7/31")
REGEXES = ("a+", "a|b.*", ".*b", "[ab]{2}", "", "(?i)A.*", "é?a*", ".", "b.*a")

names = st.sampled_from(NAMES)
texts = st.sampled_from(["", "a", "ab", "aba", "b", "ba", "é", "a%", "a_b", "a'b", "\0", "a\0", "\ud7ff", "\U0010ffff"])
texts = texts | st.text("ab", max_size=4)
numbers = st.sampled_from([-1, 0, 1, 2, 3, 0.5, 1.0, 2.5, -0.0, 0.1, Decimal("0.1"), Decimal(1), 2**53, 2**53 + 1])
numbers = numbers | st.sampled_from([float(2**53), 10**30, 1e30, Decimal("1e30"), -5])
times = st.sampled_from(TIMES).map(lambda text: Timestamp(parse_timestamp(text) or 0))
addresses = st.sampled_from(ADDRESSES).map(lambda text: Address(parse_address(text) or 0))
ordered: tuple[st.SearchStrategy[Any], ...] = (numbers, texts, times, addresses)
literals = st.one_of(*ordered, st.booleans())


@st.composite
def comparisons(draw: st.DrawFn, names: st.SearchStrategy[str] = names) -> Atom:
    """Atoms whose meaning is a set of ranges or presence."""
    name, values = draw(names), draw(st.sampled_from(ordered))
    kind = draw(st.integers(0, 6))
    if kind == 0:
        return Compare(name, draw(st.sampled_from(["=", "<>"])), draw(st.booleans()))
    if kind == 1:
        return Compare(name, draw(st.sampled_from(OPERATORS)), draw(values))
    if kind == 2:
        low_closed, high_closed = draw(st.sampled_from([(True, True), (True, False), (False, True)]))
        return Between(name, draw(values), draw(values), low_closed, high_closed)
    if kind == 3:
        return In(name, tuple(draw(st.lists(values, min_size=1, max_size=3))))
    if kind == 4:
        return InNetwork(name, tuple(draw(st.lists(st.sampled_from(NETWORKS), min_size=1, max_size=2))))
    return IsNull(name) if kind == 5 else Affix(name, "STARTS WITH", draw(texts))


@st.composite
def patterns(draw: st.DrawFn, names: st.SearchStrategy[str] = names) -> Atom:
    """Atoms over text that are not ranges."""
    name, kind = draw(names), draw(st.integers(0, 2))
    if kind == 0:
        pattern = draw(st.text("ab%_", max_size=5))
        escape = draw(st.sampled_from([None, "!"]))
        return Like(name, pattern.replace("a", "!%", 1) if escape and "a" in pattern else pattern, escape)
    if kind == 1:
        return Affix(name, draw(st.sampled_from(AFFIXES)), draw(texts))
    return Matches(name, draw(st.sampled_from(REGEXES)))


def nodes(atoms: st.SearchStrategy[Any] | None = None, leaves: int = 7) -> st.SearchStrategy[Node]:
    """Trees of atoms."""
    atoms = comparisons() | patterns() if atoms is None else atoms
    return st.recursive(
        atoms | st.booleans().map(Constant) if leaves > 1 else atoms,
        lambda inner: st.one_of(
            inner.map(Not),
            st.lists(inner, min_size=2, max_size=3).map(all_of),
            st.lists(inner, min_size=2, max_size=3).map(any_of),
        ),
        max_leaves=leaves,
    )


def conjunctions(atoms: st.SearchStrategy[Any]) -> st.SearchStrategy[Node]:
    """Atoms and negated atoms, all of which must hold."""
    return st.lists(atoms | atoms.map(Not), min_size=1, max_size=4).map(all_of)


json_values = st.one_of(
    st.none(),
    st.booleans(),
    numbers.filter(lambda value: not isinstance(value, Decimal)),
    st.sampled_from([math.inf, -math.inf, math.nan]),
    texts,
    st.sampled_from([*TIMES, *ADDRESSES, "\ud800", "10.0.0.0/8"]),
    st.sampled_from([[1], {"d": 1}, {}]),
)
values = json_values | numbers
events = st.dictionaries(st.sampled_from(["a", "b", "c.d", "e-1", "in"]), values, max_size=5) | st.builds(
    lambda inner, rest: {**rest, "c": {"d": inner}},
    values,
    st.dictionaries(st.sampled_from(["a", "b", "e-1"]), values),
)


# --- the naive evaluator --------------------------------------------------------------------------------------------


def naive(node: Node, event: Mapping[str, Any]) -> Truth:
    """The truth of a filter, as slowly and plainly as can be."""
    if isinstance(node, Constant):
        return node.value
    if isinstance(node, Not):
        inner = naive(node.part, event)
        return None if inner is None else not inner
    if isinstance(node, And | Or):
        found = [naive(part, event) for part in node.parts]
        least, most = (False, True) if isinstance(node, And) else (True, False)
        return least if least in found else None if None in found else most
    return naive_atom(node, naive_find(event, node.name))


def naive_find(event: Any, name: str) -> Any:
    """The value of an attribute; ``None`` when there is none."""
    if name in event:
        return event[name]
    if name == "c.d" and isinstance(event.get("c"), dict):
        return event["c"].get("d")
    return None


def naive_where_absent_matches(node: Node, event: Mapping[str, Any], *, negated: bool = False) -> bool:
    """Every condition on a missing attribute holds, negated or not, but for those that ask whether it is missing."""
    if isinstance(node, Not):
        return naive_where_absent_matches(node.part, event, negated=not negated)
    if isinstance(node, And | Or):
        parts = [naive_where_absent_matches(part, event, negated=negated) for part in node.parts]
        return all(parts) if isinstance(node, And) is not negated else any(parts)
    if isinstance(node, Constant):
        return node.value is not negated
    if not isinstance(node, IsNull) and naive_find(event, node.name) is None:
        return True
    found = naive_atom(node, naive_find(event, node.name))
    return found is not None and found is not negated


def naive_atom(atom: Atom, value: Any) -> Truth:
    """The truth of one condition."""
    if isinstance(atom, IsNull):
        return value is None
    if value is None:
        return None
    if isinstance(atom, Compare):
        return _compare(atom.operator, value, atom.value)
    if isinstance(atom, Between):
        low = _compare(">=" if atom.low_closed else ">", value, atom.low)
        high = _compare("<=" if atom.high_closed else "<", value, atom.high)
        return None if low is None or high is None else low and high
    if isinstance(atom, In):
        found = [_compare("=", value, each) for each in atom.values]
        return None if None in found else True in found
    if isinstance(atom, InNetwork):
        address = _address(value)
        return None if address is None else any(address in ipaddress.ip_network(net, False) for net in atom.networks)
    if not isinstance(value, str) or any(0xD800 <= ord(character) < 0xE000 for character in value):
        return None
    if isinstance(atom, Affix):
        tests = {"STARTS WITH": value.startswith, "ENDS WITH": value.endswith, "CONTAINS": value.__contains__}
        return tests[atom.where](atom.text)
    if isinstance(atom, Matches):
        return re.fullmatch(atom.regex, value, re.DOTALL) is not None
    return _like(atom.pattern, atom.escape, value)


def _compare(operator: str, value: Any, literal: Literal) -> Truth:
    left, right = _pair(value, literal)
    if left is None:
        return None
    less, equal = bool(left < right), bool(left == right)
    results = {"=": equal, "<>": not equal, "<": less, "<=": less or equal, ">": not (less or equal), ">=": not less}
    return results[operator]


def _pair(value: Any, literal: Literal) -> tuple[Any, Any]:
    """Both sides as things that Python compares rightly; ``(None, None)`` when they are not of one kind."""
    if isinstance(literal, bool):
        return (value, literal) if isinstance(value, bool) else (None, None)
    if isinstance(literal, str):
        is_text = isinstance(value, str) and not any(0xD800 <= ord(character) < 0xE000 for character in value)
        return (value, literal) if is_text else (None, None)
    if isinstance(literal, Timestamp):
        return _nanoseconds(value), literal.nanoseconds
    if isinstance(literal, Address):
        address = _address(value)
        return (None, None) if address is None else (_place(address), _place(ipaddress.ip_address(str(literal))))
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal) or value != value:
        return None, None
    return (value if value in (math.inf, -math.inf) else Fraction(value)), Fraction(literal)


def _nanoseconds(value: Any) -> int | None:
    if not isinstance(value, str) or value not in TIMES:
        return None
    moment = datetime.fromisoformat(value.replace("Z", "+00:00"))
    return int(Fraction(moment.timestamp()) * 10**9)


def _address(value: Any) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(value) if isinstance(value, str) else None
    except ValueError:
        return None


def _place(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> tuple[int, int]:
    return address.version, int(address)


def _like(pattern: str, escape: str | None, value: str) -> bool:
    """By trying every split: fine for short texts."""
    if not pattern:
        return not value
    if pattern[0] == escape:
        return value[:1] == pattern[1] and _like(pattern[2:], escape, value[1:])
    if pattern[0] == "%":
        return any(_like(pattern[1:], escape, value[cut:]) for cut in range(len(value) + 1))
    return bool(value) and pattern[0] in ("_", value[0]) and _like(pattern[1:], escape, value[1:])
