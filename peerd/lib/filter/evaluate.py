"""Whether a filter holds for an event: a fast function, the three-valued truth, and an explanation."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from decimal import Decimal
from functools import partial
from typing import Any, Final, TypeAlias

from peerd.frozen import Frozen
from peerd.lib.filter.meaning import AllOf, Fits, Positive, Presence, Test, Within, opposite, positive, test_of
from peerd.lib.filter.tree import And, Constant, Node, Not, Or
from peerd.lib.filter.values import STRICT, Reader, View, find
from peerd.lib.filter.write import write

Truth: TypeAlias = bool | None
"""The truth of a condition; ``None`` stands for unknown."""
Matcher: TypeAlias = Callable[[Any], bool]
Accessor: TypeAlias = Callable[[str], Callable[[Any], Any]]
"""Given an attribute's name, returns the function that takes its raw value out of an event (``None``: missing)."""
Tester: TypeAlias = Callable[[Within | Fits], Callable[[Any], bool]]
"""Turns a test into a function of the key."""


def by_name(name: str) -> Callable[[Any], Any]:
    """The accessor of events that are mappings; see `peerd.lib.filter.values.find`."""

    def get(event: Mapping[str, Any]) -> Any:
        value = event.get(name)
        return find(event, name) if value is None and dotted else value

    dotted = "." in name
    return get if dotted else operator.methodcaller("get", name)


def key_tester(test: Within | Fits) -> Callable[[Any], bool]:
    """Turn the test into a function of the key."""
    if isinstance(test, Within):
        return test.ranges.tester(test.view)
    fits = test.pattern.tester()
    return (lambda key: not fits(key)) if test.negated else fits


def matcher(
    node: Node,
    *,
    reader: Reader = STRICT,
    accessor: Accessor = by_name,
    absent_matches: bool = False,
    tester: Tester = key_tester,
) -> Matcher:
    """A function that says whether the filter is true for an event. Made once, called for every event.

    ``absent_matches``: conditions on a missing attribute are true, negated or not, but for those that ask just that.
    ``tester``: for keys of another kind, such as intervals of which one asks whether all of it passes, or some.
    """
    make = partial(compiled_test, reader=reader, accessor=accessor, absent_matches=absent_matches, tester=tester)
    return _compiled(positive(node), make)


def _compiled(node: Positive, make: Callable[[Test], Matcher]) -> Matcher:
    if isinstance(node, Within | Fits | Presence):
        return make(node)
    parts = [_compiled(part, make) for part in node.parts]
    if len(parts) == 1:
        return parts[0]
    return partial(_all, parts) if isinstance(node, AllOf) else partial(_any, parts)


def _all(parts: list[Matcher], event: Any) -> bool:
    for part in parts:  # noqa: SIM110  a generator costs twice as much
        if not part(event):
            return False
    return True


def _any(parts: list[Matcher], event: Any) -> bool:
    for part in parts:  # noqa: SIM110  a generator costs twice as much
        if part(event):
            return True
    return False


def compiled_test(
    test: Test, reader: Reader, accessor: Accessor, *, absent_matches: bool = False, tester: Tester = key_tester
) -> Matcher:
    """Turn one test into a function of the event."""
    get = accessor(test.name)
    if isinstance(test, Presence):
        return (lambda event: get(event) is not None) if test.present else (lambda event: get(event) is None)
    read, holds = reader[_view(test)], tester(test)

    def matches(event: Any) -> bool:
        value = get(event)
        if value is None:
            return absent_matches
        key = read(value)
        return key is not None and holds(key)

    return matches


def _view(test: Within | Fits) -> View:
    return test.view if isinstance(test, Within) else View.TEXT


# --- three values ---------------------------------------------------------------------------------------------------


def truth(node: Node, event: Any, *, reader: Reader = STRICT, accessor: Accessor = by_name) -> Truth:
    """Whether the event fulfils the filter: true, false or unknown (``None``), by Kleene's tables."""
    if isinstance(node, Constant):
        return node.value
    if isinstance(node, Not):
        inner = truth(node.part, event, reader=reader, accessor=accessor)
        return None if inner is None else not inner
    if isinstance(node, And | Or):
        decisive = isinstance(node, Or)
        unknown = False
        for part in node.parts:
            inner = truth(part, event, reader=reader, accessor=accessor)
            if inner is decisive:
                return decisive
            unknown |= inner is None
        return None if unknown else not decisive
    test = test_of(node)
    if compiled_test(test, reader, accessor)(event):
        return True
    return False if compiled_test(opposite(test), reader, accessor)(event) else None


# --- explanations ---------------------------------------------------------------------------------------------------

_SHOWN_CHARACTERS: Final = 80


class Reason(Frozen):
    """One atom of a filter, and what it was for an event."""

    atom: str
    name: str
    truth: Truth
    value: str
    """The event's value for the atom's attribute, shortened; "missing" when the event has none."""

    def __str__(self) -> str:
        return f"{self.atom}: {_WORDS[self.truth]}, {self.name} is {self.value}"


class Explanation(Frozen):
    """The truth of a filter for one event, and the atoms that decided it."""

    truth: Truth
    reasons: tuple[Reason, ...]
    """If the filter is true, the atoms that made it true; otherwise those that would have had to be different."""

    @property
    def matches(self) -> bool:
        """Whether the event matches: only when the filter is true, not when it is unknown."""
        return self.truth is True

    def __str__(self) -> str:
        return "\n".join([_WORDS[self.truth], *(f"  {reason}" for reason in self.reasons)])


_WORDS: Final[dict[Truth, str]] = {True: "true", False: "false", None: "unknown"}


def explain(node: Node, event: Any, *, reader: Reader = STRICT, accessor: Accessor = by_name) -> Explanation:
    """Why a filter holds for an event or does not: which atoms, and with which values."""
    reasons: list[Reason] = []
    judged = partial(truth, event=event, reader=reader, accessor=accessor)

    def visit(part: Node) -> None:
        if isinstance(part, Not):
            if isinstance(part.part, And | Or | Not | Constant):
                visit(part.part)
            else:
                reasons.append(_reason(write(part), part.part.name, judged(part), accessor(part.part.name)(event)))
        elif isinstance(part, And | Or):
            outcome = judged(part)
            to_show = [inner for inner in part.parts if judged(inner) is outcome]
            for inner in to_show[:1] if outcome is isinstance(part, Or) and outcome else to_show:
                visit(inner)
        elif not isinstance(part, Constant):
            reasons.append(_reason(write(part), part.name, judged(part), accessor(part.name)(event)))

    visit(node)
    return Explanation(judged(node), tuple(reasons))


def _reason(atom: str, name: str, outcome: Truth, value: object) -> Reason:
    shown = "missing" if value is None else str(value) if isinstance(value, Decimal) else repr(value)
    return Reason(atom, name, outcome, shown if len(shown) <= _SHOWN_CHARACTERS else f"{shown[:_SHOWN_CHARACTERS]}...")
