"""Whether one filter covers another, and whether two can match the same event.

Both answers are sound: what `covers` affirms and what `overlaps` denies is certain. They are also complete (the other
answer is certain, too) for filters whose normal form is one conjunct and whose tests are comparisons, BETWEEN, IN, IN
CIDR, STARTS WITH, IS NULL and EXISTS, with every attribute read through one view; numbers are taken as dense there
(an attribute that only ever has whole numbers may make more hold). With patterns, with several alternatives, and where
one attribute is read both as text and as a time or an address, `covers` may wrongly say no and `overlaps` yes.
"""

from __future__ import annotations

from peerd.lib.filter.meaning import Fits, Presence, Test, Within
from peerd.lib.filter.normal import Conjunct, NormalForm, conjoined, holds_for_text, normal_form
from peerd.lib.filter.patterns import PatternKind
from peerd.lib.filter.tree import Node
from peerd.lib.filter.values import View


def covers(wide: Node, narrow: Node) -> bool:
    """Whether every event that matches ``narrow`` matches ``wide``; see the module for when "no" is not certain."""
    return covers_form(normal_form(wide), normal_form(narrow))


def overlaps(left: Node, right: Node) -> bool:
    """Whether some event matches both; see the module for when "yes" is not certain."""
    return overlaps_form(normal_form(left), normal_form(right))


def covers_form(wide: NormalForm, narrow: NormalForm) -> bool:
    """`covers` for normal forms: each alternative of the narrow one lies within an alternative of the wide one."""
    return all(any(_covers(outer, inner) for outer in wide.conjuncts) for inner in narrow.conjuncts)


def overlaps_form(left: NormalForm, right: NormalForm) -> bool:
    """Answer `overlaps` for two normal forms."""
    return any(conjoined(mine, its) is not None for mine in left.conjuncts for its in right.conjuncts)


def _covers(wide: Conjunct, narrow: Conjunct) -> bool:
    return all(_implies(narrow, test) for test in wide.tests)


def _implies(conjunct: Conjunct, test: Test) -> bool:
    """Whether the test is true wherever the conjunct is."""
    own = list(conjunct.named(test.name))
    if test in own:
        return True
    if isinstance(test, Presence):
        return test.present and bool(own) and Presence(test.name, False) not in own
    points = conjunct.text_points(test.name)
    if points is not None:
        return all(holds_for_text(test, point) for point in points)
    if isinstance(test, Within):
        ranges = conjunct.ranges().get((test.name, test.view))
        if ranges is not None:
            return ranges <= test.ranges
        reads_text = any(isinstance(each, Fits) or (isinstance(each, Within) and _is_text(each)) for each in own)
        return test.ranges.is_full and _is_text(test) and reads_text
    return any(_fits_implies(each, test) for each in own)


def _is_text(test: Within) -> bool:
    return test.view in (View.TEXT, View.ENDING)


def _fits_implies(given: Test, wanted: Fits) -> bool:
    """Whether one pattern implies the other. Only simple cases are seen: a fixed part that lies within a longer one."""
    if wanted.pattern.kind is not PatternKind.CONTAINS or not isinstance(given, Fits):
        return False
    if given.pattern.kind is not PatternKind.CONTAINS or given.negated is not wanted.negated:
        return False
    longer, shorter = (wanted, given) if wanted.negated else (given, wanted)
    return shorter.pattern.text in longer.pattern.text
