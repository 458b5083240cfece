"""Converts tests of a normal form back to conditions that people can read."""

from __future__ import annotations

from typing import Final

from peerd.lib.filter import tree
from peerd.lib.filter.meaning import Fits, Presence, Test, Within
from peerd.lib.filter.normal import NormalForm
from peerd.lib.filter.patterns import PatternKind
from peerd.lib.filter.ranges import FULL, Cut, Ranges, prefix
from peerd.lib.filter.tree import all_of, any_of
from peerd.lib.filter.values import ADDRESS_END, Address, Key, Literal, Timestamp, View

_LOWEST: Final = {View.TEXT: "", View.ADDRESS: 0, View.BOOLEAN: 0}


def node_of(form: NormalForm) -> tree.Node:
    """A filter that is true where the normal form is."""
    return any_of(all_of(map(node_of_test, conjunct.tests)) for conjunct in form.conjuncts)


def node_of_test(test: Test) -> tree.Node:
    """A filter that is true where the test is."""
    if isinstance(test, Presence):
        return tree.Not(tree.IsNull(test.name)) if test.present else tree.IsNull(test.name)
    if isinstance(test, Fits):
        atom = _pattern(test)
        return tree.Not(atom) if test.negated else atom
    if test.view is View.ENDING:
        return _ending(test)
    points, excluded = test.ranges.points(test.view), (~test.ranges).points(test.view)
    if points:
        return _listed(test, points)
    if excluded and test.view is not View.BOOLEAN:
        return (
            tree.Not(_listed(test, excluded))
            if len(excluded) > 1
            else tree.Compare(test.name, "<>", _literal(test, excluded[0]))
        )
    if test.ranges.is_full:
        return _anything(test)
    return any_of(_interval(test, low, high) for low, high in test.ranges.intervals())


def _listed(test: Within, points: tuple[Key, ...]) -> tree.Atom:
    values = tuple(_literal(test, point) for point in points)
    return tree.Compare(test.name, "=", values[0]) if len(values) == 1 else tree.In(test.name, values)


def _anything(test: Within) -> tree.Node:
    """Return a test that is true for every value that the view can read."""
    if test.view in _LOWEST:
        return tree.Compare(test.name, ">=", _literal(test, _LOWEST[test.view]))
    zero = _literal(test, 0)
    return any_of([tree.Compare(test.name, "<", zero), tree.Compare(test.name, ">=", zero)])


def _interval(test: Within, low: Cut | None, high: Cut | None) -> tree.Node:
    name = test.name
    if test.view is View.TEXT and low is not None and _is_prefix(low, high):
        return tree.Affix(name, "STARTS WITH", low[0])
    lower = None if low is None else _low(test, low)
    upper = None if high is None else _high(test, high)
    if lower is None or upper is None:
        found = [end for end in (lower, upper) if end is not None]
        return all_of(found) if found else tree.Constant(True)
    if lower.operator == ">" and upper.operator == "<":
        return all_of([lower, upper])
    if lower.operator == ">=" and upper.operator == "<=" and lower.value == upper.value:
        return tree.Compare(name, "=", lower.value)
    return tree.Between(name, lower.value, upper.value, lower.operator == ">=", upper.operator == "<=")


def _is_prefix(low: Cut, high: Cut | None) -> bool:
    text = low[0]
    ends = (low,) if high is None else (low, high)
    return bool(text) and not text.endswith("\0") and prefix(View.TEXT, text) == Ranges(False, ends)


def _low(test: Within, cut: Cut) -> tree.Compare:
    key, after = cut
    if test.view is View.TEXT and key.endswith("\0"):
        key, after = key[:-1], 1
    return tree.Compare(test.name, ">" if after else ">=", _literal(test, key))


def _high(test: Within, cut: Cut) -> tree.Compare:
    key, after = cut
    if test.view is View.TEXT and key.endswith("\0"):
        key, after = key[:-1], 1
    elif test.view is View.ADDRESS and 0 < key < ADDRESS_END:
        key, after = key - 1, 1  # a range of addresses is written with its last one
    return tree.Compare(test.name, "<=" if after else "<", _literal(test, key))


def _literal(test: Within, key: Key) -> Literal:
    if test.view is View.TIME:
        return Timestamp(key)
    if test.view is View.ADDRESS:
        return Address(key)
    literal: Literal = bool(key) if test.view is View.BOOLEAN else key
    return literal


def _ending(test: Within) -> tree.Node:
    """An ending or its negation: a normal form keeps them one by one."""
    for ranges, negated in ((test.ranges, False), (~test.ranges, True)):
        [(low, _)] = ranges.intervals()[:1] or [(None, None)]
        text = "" if low is None else low[0]
        if ranges == prefix(View.ENDING, text) or ranges == FULL:
            atom = tree.Affix(test.name, "ENDS WITH", text[::-1])
            return tree.Not(atom) if negated else atom
    return tree.Constant(False)


def _pattern(test: Fits) -> tree.Atom:
    if test.pattern.kind is PatternKind.LIKE:
        return tree.Like(test.name, test.pattern.text, "\\")
    if test.pattern.kind is PatternKind.CONTAINS:
        return tree.Affix(test.name, "CONTAINS", test.pattern.text)
    return tree.Matches(test.name, test.pattern.text)
