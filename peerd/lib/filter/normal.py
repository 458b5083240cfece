"""The normal form: a disjunction of conjunctions, each with one set of ranges for each attribute and view.

Routing, covering and the index work on it. Each test carries a mark that says what routing may do with it:

- ROUTABLE: the ranges are the condition.
- APPROXIMATE: there are ranges that hold every match and more, such as the prefix of ``LIKE 'a%b'``.
- RESIDUAL: nothing to route by (ENDS WITH, CONTAINS, presence, negated patterns).

`Conjunct.ranges` has the ranges to route by, but for those of ENDING. They may let too much through, never too little:
who delivers asks the filter itself again. Everything here reads values as `peerd.lib.filter.values.STRICT` does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import StrEnum
from functools import reduce
from operator import and_
from typing import Final

from peerd.frozen import Frozen
from peerd.lib.filter.errors import FilterTooLarge
from peerd.lib.filter.limits import CONJUNCT_ATOMS_MAX, CONJUNCTS_MAX, NORMAL_STEPS_MAX
from peerd.lib.filter.meaning import AllOf, AnyOf, Fits, Positive, Presence, Test, Within, implied, opposite, positive
from peerd.lib.filter.ranges import Ranges, compared
from peerd.lib.filter.tree import Node
from peerd.lib.filter.values import STRICT, View


class Mark(StrEnum):
    """What routing may do with a test; the module's docstring explains the marks."""

    ROUTABLE = "routable"
    APPROXIMATE = "approximate"
    RESIDUAL = "residual"


def mark_of(test: Test) -> Mark:
    """Return the mark of one test."""
    if isinstance(test, Within):
        return Mark.RESIDUAL if test.view is View.ENDING else Mark.ROUTABLE
    if isinstance(test, Fits) and any(each.view is View.TEXT for each in implied(test)):
        return Mark.APPROXIMATE
    return Mark.RESIDUAL


class Conjunct(Frozen):
    """Tests that must all be true, sorted. At most one `Within` for an attribute and a view, but for ENDING."""

    tests: tuple[Test, ...]

    def ranges(self) -> dict[tuple[str, View], Ranges]:
        """All ranges by attribute and view, those that patterns imply included."""
        found: dict[tuple[str, View], Ranges] = {}
        for test in self.tests:
            for within in _ranges_of(test):
                key = (within.name, within.view)
                found[key] = found[key] & within.ranges if key in found else within.ranges
        return found

    def named(self, name: str) -> Iterator[Test]:
        """Return the tests that concern one attribute."""
        return (test for test in self.tests if test.name == name)

    def text_points(self, name: str) -> tuple[str, ...] | None:
        """The texts that the attribute may have, where its tests name them one by one."""
        for test in self.named(name):
            if isinstance(test, Within) and test.view is View.TEXT:
                return test.ranges.points(View.TEXT)
        return None


class NormalForm(Frozen):
    """The alternatives. Without any the filter matches nothing; with one that has no tests it matches everything."""

    conjuncts: tuple[Conjunct, ...]


def normal_form(node: Node, *, absent_matches: bool = False) -> NormalForm:
    """The normal form. Raises `FilterTooLarge` with CONJUNCTS_MAX, CONJUNCT_ATOMS_MAX or NORMAL_STEPS_MAX.

    ``absent_matches``: for readers to whom a test of a missing attribute is true (but `Presence`, which asks just
    that). Then ``a = 1 AND a = 2`` holds where ``a`` is missing, so contradictions and redundant tests are kept.
    """
    drafts = _Normaliser(absent_matches).drafts(positive(node))
    if absent_matches:
        kept = dict.fromkeys(Conjunct(tuple(sorted(draft.values(), key=_test_order))) for draft in drafts)
        return NormalForm(tuple(sorted(kept, key=_order)))
    found = dict.fromkeys(conjunct for draft in drafts if (conjunct := _finished(draft.values())) is not None)
    if any(not conjunct.tests for conjunct in found):
        return NormalForm((Conjunct(()),))
    return NormalForm(tuple(sorted(found, key=_order)))


def conjoined(left: Conjunct, right: Conjunct) -> Conjunct | None:
    """Return the conjunction of the two; ``None`` when no event can match both."""
    draft: _Draft | None = dict(_keyed(left.tests))
    for test in right.tests:
        draft = None if draft is None else _with(draft, test)
    return None if draft is None else _finished(draft.values())


_Draft = dict[tuple[object, ...], Test]
"""Tests by what they are about; two about the same thing have been merged."""
_TEST_ORDER: Final[tuple[type, ...]] = (Within, Fits, Presence)


def _key(test: Test) -> tuple[object, ...]:
    if isinstance(test, Within):
        return (test.name, test.view, test.ranges) if test.view is View.ENDING else (test.name, test.view)
    return (test.name, test.pattern, test.negated) if isinstance(test, Fits) else (test.name, test.present)


def _keyed(tests: Iterable[Test]) -> Iterator[tuple[tuple[object, ...], Test]]:
    return ((_key(test), test) for test in tests)


def _with(draft: _Draft, test: Test, *, keeps_empty: bool = False) -> _Draft | None:
    """Return the draft with this test added; ``None`` when no value is left that fulfils all its ranges."""
    key = _key(test)
    present = draft.get(key)
    if isinstance(test, Within) and isinstance(present, Within):
        test = Within(test.name, test.view, present.ranges & test.ranges)
    if isinstance(test, Within) and test.ranges.is_empty and not keeps_empty:
        return None
    return {**draft, key: test}


class _Normaliser:
    """One walk over a filter, with a count of the combinations that it tried."""

    def __init__(self, keeps_empty: bool) -> None:
        self.steps = 0
        self.keeps_empty = keeps_empty

    def drafts(self, node: Positive) -> list[_Draft]:
        """Return the alternatives that a part stands for."""
        if isinstance(node, AnyOf):
            return self._any_of(node)
        if isinstance(node, AllOf):
            return self._all_of(node)
        draft = _with({}, node, keeps_empty=self.keeps_empty)
        return [] if draft is None else [draft]

    def _any_of(self, node: AnyOf) -> list[_Draft]:
        found: dict[tuple[object, ...], _Draft] = {}
        alike: dict[tuple[object, ...], list[Within]] = {}
        for part in node.parts:
            for draft in self.drafts(part):  # equal drafts fall together, as they have one key
                self._step()
                # Alternatives that are ranges of the same attribute are one set of ranges.
                [only] = draft.values() if len(draft) == 1 else (None,)
                if isinstance(only, Within) and only.view is not View.ENDING:
                    key: tuple[object, ...] = _key(only)
                    alike.setdefault(key, []).append(only)
                else:
                    key = tuple(draft.items())
                found[key] = draft
                _check_count(len(found))
        for key, tests in alike.items():
            found[key] = {key: Within(tests[0].name, tests[0].view, _united([test.ranges for test in tests]))}
        return list(found.values())

    def _all_of(self, node: AllOf) -> list[_Draft]:
        found: list[_Draft] = [{}]
        # Plain tests come first, so that fewer combinations have to be tried.
        for part in sorted(node.parts, key=lambda part: isinstance(part, AnyOf)):
            alternatives = self.drafts(part)
            merged: dict[tuple[object, ...], _Draft] = {}
            for draft in found:
                for alternative in alternatives:
                    self._step()
                    if (product := self._merged(draft, alternative)) is not None:
                        merged[tuple(product.items())] = product
                        _check_count(len(merged))
            found = list(merged.values())
        return found

    def _merged(self, left: _Draft, right: _Draft) -> _Draft | None:
        draft: _Draft | None = left
        for test in right.values():
            draft = None if draft is None else _with(draft, test, keeps_empty=self.keeps_empty)
        if draft is not None and len(draft) > CONJUNCT_ATOMS_MAX:
            message = f"an alternative of a normal form has at most {CONJUNCT_ATOMS_MAX} conditions"
            raise FilterTooLarge("CONJUNCT_ATOMS_MAX", message)
        return draft

    def _step(self) -> None:
        self.steps += 1
        if self.steps > NORMAL_STEPS_MAX:
            message = f"making the normal form would try more than {NORMAL_STEPS_MAX} combinations"
            raise FilterTooLarge("NORMAL_STEPS_MAX", message)


def _united(ranges: list[Ranges]) -> Ranges:
    """Return the union of one or more; of neighbours first, because the effort of each is as large as the two are."""
    while len(ranges) > 1:
        pairs = zip(ranges[::2], ranges[1::2], strict=False)
        ranges = [one | other for one, other in pairs] + (ranges[-1:] if len(ranges) % 2 else [])
    return ranges[0]


def _check_count(count: int) -> None:
    if count > CONJUNCTS_MAX:
        raise FilterTooLarge("CONJUNCTS_MAX", f"a normal form has at most {CONJUNCTS_MAX} alternatives")


# --- simplifying one conjunct ---------------------------------------------------------------------------------------

_KINDS: Final = {
    View.BOOLEAN: frozenset({"boolean"}),
    View.NUMBER: frozenset({"number"}),
    View.TEXT: frozenset({"text"}),
    View.ENDING: frozenset({"text"}),
    View.TIME: frozenset({"text of a time", "time"}),
    View.ADDRESS: frozenset({"text of an address", "address"}),
}
"""The types of values that each view can read."""


def _finished(tests: Iterable[Test]) -> Conjunct | None:
    """A conjunct without redundant tests; ``None`` when it is seen that nothing can match it."""
    by_name: dict[str, list[Test]] = {}
    for test in tests:
        by_name.setdefault(test.name, []).append(test)
    found: list[Test] = []
    for own in by_name.values():
        reduced = _reduced(own)
        if reduced is None:
            return None
        found += reduced
    return Conjunct(tuple(sorted(found, key=_test_order)))


def _reduced(tests: list[Test]) -> list[Test] | None:
    """The tests of one attribute, simplified; ``None`` when they contradict each other."""
    # Every other test needs a value: it contradicts absence, and makes a test of presence redundant.
    absent = any(isinstance(test, Presence) and not test.present for test in tests)
    rest: list[Test] = [test for test in tests if not isinstance(test, Presence)]
    if absent:
        return None if rest or any(isinstance(test, Presence) and test.present for test in tests) else tests[:1]
    if not rest:
        return tests
    if not _can_be(rest) or any(opposite(test) in rest for test in rest if isinstance(test, Fits)):
        return None
    return _by_points(rest)


def _can_be(tests: list[Test]) -> bool:
    """Whether there is a kind of value that all views can read, and ranges leave something in each view."""
    kinds = [_KINDS[test.view if isinstance(test, Within) else View.TEXT] for test in tests]
    special = {kind for each in kinds for kind in each if kind.startswith("text of")}
    if special:  # a text can be read as a time or as an address as well, but never as both
        kinds = [each | special if "text" in each else each for each in kinds]
    if not reduce(and_, kinds):
        return False
    return not any(ranges.is_empty for ranges in Conjunct(tuple(tests)).ranges().values())


def _by_points(tests: list[Test]) -> list[Test] | None:
    """Handle texts that are named one by one: keep those that meet the other tests, and drop those tests."""
    texts = [test for test in tests if isinstance(test, Within) and test.view is View.TEXT]
    others = [test for test in tests if test not in texts]
    if not texts or not others:
        return tests
    points = texts[0].ranges.points(View.TEXT)
    if points is None:
        # A test that the attribute is a text, whichever, is redundant beside tests that only a text can fulfil.
        return others if texts[0].ranges.is_full and any(_reads_text_only(test) for test in others) else tests
    kept = Ranges(False, ())
    for point in points:
        if all(holds_for_text(test, point) for test in others):
            kept = kept | compared(View.TEXT, "=", point)
    return None if kept.is_empty else [Within(texts[0].name, View.TEXT, kept)]


def _reads_text_only(test: Test) -> bool:
    return isinstance(test, Fits) or (isinstance(test, Within) and test.view is View.ENDING)


def holds_for_text(test: Test, text: str) -> bool:
    """Whether a test is true for an attribute that is this text."""
    if isinstance(test, Presence):
        return test.present
    if isinstance(test, Fits):
        return test.pattern.matches(text) is not test.negated
    key = STRICT[test.view](text)
    return key is not None and key in test.ranges


def _ranges_of(test: Test) -> list[Within]:
    return [test] if isinstance(test, Within) else implied(test) if isinstance(test, Fits) else []


def _test_order(test: Test) -> tuple[str, int, str]:
    return (test.name, _TEST_ORDER.index(type(test)), repr(test))


def _order(conjunct: Conjunct) -> list[tuple[str, int, str]]:
    return [_test_order(test) for test in conjunct.tests]
