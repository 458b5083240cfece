"""Filter policies as Amazon's SNS and EventBridge write them: ``{"price": [{"numeric": [">=", 10, "<", 20]}]}``.

An object maps names (nested objects: dotted names) to lists. One element of each list must hold, for every name;
``"$or"`` holds a list of objects of which one must hold. What an absent attribute means is the language's own rule: no
element but ``{"exists": false}`` and ``null`` holds for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, cast

from peerd.lib.filter import tree
from peerd.lib.filter.errors import FilterError, FilterTooLarge
from peerd.lib.filter.json_values import check_budget, number_in, text_in
from peerd.lib.filter.limits import DEPTH_MAX
from peerd.lib.filter.meaning import Fits, Presence, Test, Within
from peerd.lib.filter.normal import Conjunct, normal_form
from peerd.lib.filter.patterns import PatternKind, fixed_text, like_parts
from peerd.lib.filter.ranges import Ranges, prefix
from peerd.lib.filter.tree import all_of, any_of, check_limits
from peerd.lib.filter.values import View

_NUMERIC: Final = {"=", "<", "<=", ">", ">="}
_REGEX_SIGNS: Final = frozenset("\\.+*?()|[]{}^$")


def from_policy(document: object) -> tree.Node:
    """Read a filter from a policy. Raises `FilterError`."""
    check_budget(document)
    return check_limits(_object(document, "", 1))


def _object(document: object, above: str, depth: int) -> tree.Node:
    if not isinstance(document, Mapping):
        raise FilterError(f"a filter policy is an object, not {document!r:.60}")
    if depth > DEPTH_MAX:
        raise FilterTooLarge("DEPTH_MAX", f"a filter is nested at most {DEPTH_MAX} deep")
    parts: list[tree.Node] = []
    for name, value in document.items():
        full = f"{above}{name}"
        if name == "$or":
            if not isinstance(value, list) or not value:
                raise FilterError("$or takes a list of objects")
            parts.append(any_of(_object(each, above, depth + 1) for each in value))
        elif isinstance(value, Mapping):
            parts.append(_object(value, f"{full}.", depth + 1))
        elif isinstance(value, list) and value:
            parts.append(_alternatives(full, value))
        else:
            raise FilterError(f"{full!r:.80} takes a list of values and conditions, not {value!r:.60}")
    return all_of(parts)


def _alternatives(name: str, elements: list[Any]) -> tree.Node:
    texts = [element for element in elements if isinstance(element, str)]
    rest = [_element(name, element) for element in elements if not isinstance(element, str)]
    exact: list[tree.Node] = (
        [] if not texts else [tree.Compare(name, "=", texts[0]) if len(texts) == 1 else tree.In(name, tuple(texts))]
    )
    return any_of([*exact, *rest])


def _element(name: str, element: object) -> tree.Node:
    if element is None:
        return tree.IsNull(name)
    if isinstance(element, bool | int | float):
        return tree.Compare(name, "=", element)
    if not isinstance(element, Mapping) or len(element) != 1:
        raise FilterError(f"{name}: a value, or an object with one operator, is expected, not {element!r:.60}")
    [(operator, value)] = element.items()
    if operator == "numeric":
        return _numeric(name, value)
    if operator == "anything-but":
        return _anything_but(name, value)
    if operator == "exists" and isinstance(value, bool):
        return tree.Not(tree.IsNull(name)) if value else tree.IsNull(name)
    return _text_operator(name, operator, value)


def _text_operator(name: str, operator: object, value: object) -> tree.Node:
    if operator == "cidr":
        return tree.InNetwork(
            name, tuple(text_in(name, each) for each in (value if isinstance(value, list) else [value]))
        )
    if operator in ("prefix", "suffix", "contains", "equals-ignore-case", "wildcard", "matches"):
        text = text_in(name, value)
        if operator == "equals-ignore-case":
            return tree.Matches(name, "(?i)" + "".join(f"\\{each}" if each in _REGEX_SIGNS else each for each in text))
        if operator == "wildcard":
            return tree.Like(name, _like_of(text), "\\")
        if operator == "matches":
            return tree.Matches(name, text)
        where = {"prefix": "STARTS WITH", "suffix": "ENDS WITH", "contains": "CONTAINS"}[str(operator)]
        return tree.Affix(name, where, text)
    raise FilterError(f"{name}: {operator!r:.60} is no operator of a filter policy, or has a value of the wrong type")


def _like_of(wildcard: str) -> str:
    """A wildcard pattern (``*`` any text, ``\\`` escapes) as a pattern of LIKE with ``\\`` as its escape character."""
    written, characters = [], iter(wildcard)
    for character in characters:
        literal = next(characters, "\\") if character == "\\" else character
        if character == "*":
            written.append("%")
        else:
            written.append(f"\\{literal}" if literal in "%_\\" else literal)
    return "".join(written)


def _numeric(name: str, terms: object) -> tree.Node:
    if not isinstance(terms, list) or not terms or len(terms) % 2:
        raise FilterError(f'{name}: numeric takes pairs of an operator and a number, such as [">=", 10, "<", 20]')
    parts: list[tree.Node] = []
    for operator, value in zip(terms[::2], terms[1::2], strict=True):
        if not isinstance(operator, str) or operator not in _NUMERIC:
            raise FilterError(f"{name}: numeric knows {' '.join(sorted(_NUMERIC))}, not {operator!r:.60}")
        parts.append(tree.Compare(name, operator, number_in(name, value)))
    return all_of(parts)


def _anything_but(name: str, value: object) -> tree.Node:
    if isinstance(value, Mapping):
        if len(value) != 1:
            raise FilterError(f"{name}: anything-but takes values, or an object with one operator")
        [(operator, inner)] = value.items()
        listed = inner if isinstance(inner, list) else [inner]
        return all_of(tree.Not(_text_operator(name, operator, each)) for each in listed)
    values: list[Any] = value if isinstance(value, list) else [value]
    if not values or not all(isinstance(each, bool | int | float | str) for each in values):
        raise FilterError(f"{name}: anything-but takes texts and numbers, not {value!r:.60}")
    if len(values) == 1:
        return tree.Not(tree.Compare(name, "=", values[0]))
    return tree.Not(tree.In(name, tuple(values)))


# --- writing --------------------------------------------------------------------------------------------------------


def to_policy(node: tree.Node) -> dict[str, Any]:
    """A policy that means the same. Raises `FilterError` naming the condition that a policy cannot express.

    A policy has one list for each name and ORs its elements, so two patterns on one attribute cannot be joined, and it
    knows no timestamps.
    """
    objects = [_object_of(conjunct) for conjunct in normal_form(node).conjuncts]
    if not objects:
        raise FilterError("a filter policy cannot say that nothing matches")
    return objects[0] if len(objects) == 1 else {"$or": objects}


def _object_of(conjunct: Conjunct) -> dict[str, Any]:
    written: dict[str, Any] = {}
    for test in conjunct.tests:
        if test.name in written or test.name == "$or":
            raise FilterError(f"a filter policy cannot join two conditions on {test.name}; use the form of CloudEvents")
        written[test.name] = _elements(test)
    return written


def _elements(test: Test) -> list[Any]:
    if isinstance(test, Presence):
        return [{"exists": test.present}]
    if isinstance(test, Fits):
        return [_pattern(test)]
    if test.view is View.NUMBER:
        return _number_elements(test)
    if test.view is View.BOOLEAN:
        return [bool(point) for point in test.ranges.points(View.BOOLEAN) or ()]
    found = _texts(test, test.ranges)
    if found is None and (opposite := _texts(test, ~test.ranges)) is not None:
        if all(isinstance(each, str) for each in opposite):
            return [{"anything-but": opposite}]
        if len(opposite) == 1:
            return [{"anything-but": opposite[0]}]
    if found is None:
        raise FilterError(
            f"a filter policy has no such range of the {test.view} {test.name}; use the form of CloudEvents"
        )
    return found


def _texts(test: Within, ranges: Ranges) -> list[Any] | None:
    """Exact texts, beginnings or endings that make up the ranges; ``None`` when they are something else."""
    if test.view not in (View.TEXT, View.ENDING):
        return None
    if test.view is View.TEXT and (points := ranges.points(View.TEXT)) is not None:
        return list(points)
    if ranges.is_full:
        return [{"prefix": ""}]
    found = []
    for low, high in ranges.intervals():
        text = low[0] if low is not None else ""
        if Ranges(low is None, tuple(cut for cut in (low, high) if cut is not None)) != prefix(test.view, text):
            return None
        found.append({"prefix": text} if test.view is View.TEXT else {"suffix": text[::-1]})
    return found


def _number_elements(test: Within) -> list[Any]:
    found: list[Any] = []
    if test.ranges.is_full:
        return [{"numeric": ["<", 0]}, {"numeric": [">=", 0]}]
    for low, high in test.ranges.intervals():
        for cut in (low, high):
            if cut is not None and not isinstance(cut[0], int | float):
                raise FilterError(f"{test.name}: JSON has no decimals; write the filter as text")
        if low is not None and high == (low[0], 1) and not low[1]:
            found.append({"numeric": ["=", low[0]]})
            continue
        terms: list[Any] = [] if low is None else [">" if low[1] else ">=", low[0]]
        terms += [] if high is None else ["<=" if high[1] else "<", high[0]]
        found.append({"numeric": terms})
    return found


def _pattern(test: Fits) -> dict[str, Any]:
    if test.pattern.kind is PatternKind.MATCHES:
        element = {"matches": test.pattern.text}
    elif test.pattern.kind is PatternKind.CONTAINS:
        element = {"contains": test.pattern.text}
    else:
        parts = [fixed_text(part) for part in like_parts(test.pattern.text)]
        if None in parts:
            raise FilterError(f"{test.name}: a filter policy has no sign for _ in LIKE; use the form of CloudEvents")
        escaped = (part.replace("\\", "\\\\").replace("*", "\\*") for part in cast(list[str], parts))
        element = {"wildcard": "*".join(escaped)}
    return {"anything-but": element} if test.negated else element
