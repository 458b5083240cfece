"""The meaning of atoms: sets of keys through a view, patterns over text, and presence.

An atom becomes one *test*. `Within`: the key of the attribute through a view lies in a set. `Fits`: the text fits a
pattern, or does not. `Presence`: the attribute is there, or is not. Tests know two values, "true" and "not true"
(false or unknown): that is all that matching needs, since NOT is pushed down to the tests first. The negation of
``Within`` keeps the view and takes the complement of the set, so it does not hold either where nothing can be read.
"""

from __future__ import annotations

from typing import TypeAlias

from peerd.frozen import Frozen
from peerd.lib.filter import tree
from peerd.lib.filter.patterns import Pattern, PatternKind, fixed_text, like_parts, normalise_like
from peerd.lib.filter.ranges import FULL, Ranges, after, between, compared, prefix, union
from peerd.lib.filter.values import View, key_of, parse_network, view_of


class Within(Frozen):
    """The attribute can be read through the view, and its key lies in the ranges."""

    name: str
    view: View
    ranges: Ranges


class Fits(Frozen):
    """The attribute is text that fits the pattern (or, negated, does not)."""

    name: str
    pattern: Pattern
    negated: bool = False


class Presence(Frozen):
    """A test whether the attribute has a value, or whether it has none."""

    name: str
    present: bool


Test: TypeAlias = Within | Fits | Presence


class AllOf(Frozen):
    """A test that is true if all its parts are; without parts it is always true."""

    parts: tuple[Positive, ...]


class AnyOf(Frozen):
    """A test that is true if one of its parts is; without parts it is never true."""

    parts: tuple[Positive, ...]


Positive: TypeAlias = Test | AllOf | AnyOf
"""A filter without NOT: true exactly where the filter is true."""


def positive(node: tree.Node, *, negated: bool = False) -> Positive:
    """The filter, or its negation, with NOT pushed down to the tests: De Morgan's rules hold in three values, too."""
    if isinstance(node, tree.Not):
        return positive(node.part, negated=not negated)
    if isinstance(node, tree.And | tree.Or):
        parts = tuple(positive(part, negated=negated) for part in node.parts)
        return AllOf(parts) if isinstance(node, tree.And) != negated else AnyOf(parts)
    if isinstance(node, tree.Constant):
        return AllOf(()) if node.value != negated else AnyOf(())
    return opposite(test_of(node)) if negated else test_of(node)


def opposite(test: Test) -> Test:
    """The test that is true where this one is false (not where it is unknown)."""
    if isinstance(test, Within):
        return Within(test.name, test.view, ~test.ranges)
    if isinstance(test, Fits):
        return Fits(test.name, test.pattern, not test.negated)
    return Presence(test.name, not test.present)


def test_of(atom: tree.Atom) -> Test:
    """Return the test that an atom stands for."""
    name = atom.name
    if isinstance(atom, tree.Compare):
        view = view_of(atom.value)
        return Within(name, view, compared(view, atom.operator, key_of(atom.value)))
    if isinstance(atom, tree.Between):
        view, low, high = view_of(atom.low), key_of(atom.low), key_of(atom.high)
        first = (low, 0) if atom.low_closed else after(view, low)
        return Within(name, view, between(view, first, after(view, high) if atom.high_closed else (high, 0)))
    if isinstance(atom, tree.In):
        view = view_of(atom.values[0])
        return Within(name, view, union(compared(view, "=", key_of(value)) for value in atom.values))
    if isinstance(atom, tree.InNetwork):
        return Within(name, View.ADDRESS, union(map(_network, atom.networks)))
    if isinstance(atom, tree.IsNull):
        return Presence(name, False)
    if isinstance(atom, tree.Like):
        return _like(name, normalise_like(atom.pattern, atom.escape))
    if isinstance(atom, tree.Affix):
        return _affix(name, atom.where, atom.text)
    return Fits(name, Pattern(PatternKind.MATCHES, atom.regex))


def _network(text: str) -> Ranges:
    network = parse_network(text)
    assert network is not None, "checked with the tree"
    return between(View.ADDRESS, (network[0], 0), (network[1], 0))


def _affix(name: str, where: str, text: str) -> Test:
    if where == "STARTS WITH":
        return Within(name, View.TEXT, prefix(View.TEXT, text))
    if where == "ENDS WITH":
        return Within(name, View.ENDING, prefix(View.ENDING, text[::-1]))
    return Fits(name, Pattern(PatternKind.CONTAINS, text)) if text else Within(name, View.TEXT, FULL)


def _like(name: str, pattern: str) -> Test:
    """The simplest test for a pattern: most are a comparison, a beginning, an ending or a fixed part."""
    texts = [fixed_text(part) for part in like_parts(pattern)]
    if texts == [texts[0]] and texts[0] is not None:
        return Within(name, View.TEXT, compared(View.TEXT, "=", texts[0]))
    if len(texts) == 2 and texts[0] is not None and texts[1] == "":
        return _affix(name, "STARTS WITH", texts[0])
    if len(texts) == 2 and texts[0] == "" and texts[1] is not None:
        return _affix(name, "ENDS WITH", texts[1])
    if len(texts) == 3 and texts[0] == texts[2] == "" and texts[1] is not None:
        return _affix(name, "CONTAINS", texts[1])
    return Fits(name, Pattern(PatternKind.LIKE, pattern))


def implied(test: Fits) -> list[Within]:
    """Return range tests that are true wherever the pattern fits; for a negated pattern there are none."""
    if test.negated:
        return []
    found = [Within(test.name, View.TEXT, test.pattern.bounds())]
    if test.pattern.kind is PatternKind.LIKE:
        ending = fixed_text(like_parts(test.pattern.text)[-1])
        if ending:
            found.append(Within(test.name, View.ENDING, prefix(View.ENDING, ending[::-1])))
    return [each for each in found if not each.ranges.is_full]
