"""Queries that are no patterns: lxml evaluates them. What that may cost is bounded here, before it is ever done. Pure.

Libxml2 compares each node that a step finds with all that were found from other nodes, so ``//a//b`` and ``a | b`` take
it the square of a document's size. Only whether there is a result matters for a subscription, so such a query is asked
in another form: ``//a[.//b]`` and ``(a) or (b)`` have a result when these have, and nothing is compared.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from protocols.dissemination.interests.errors import InterestError

FREE_STEPS_MAX: Final = 2
"""Steps of any depth (//): each multiplies what a query costs by the depth of the document."""
FUNCTIONS_MAX: Final = 8
"""Calls of functions: each may read all text of the document."""
SEARCHED_MAX: Final = 128
"""Bytes of all constants that are searched for in texts: libxml2 may look at each of them at each place of a text."""
SEARCHED_DEEP_MAX: Final = 16
"""The same, where there is more than one step of any depth."""

COMPARISONS: Final = {"=": "=", "!=": "!=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
"""Each with the one that means the same with its sides exchanged."""
FUNCTIONS: Final = frozenset(
    [
        "contains",
        "starts-with",
        "count",
        "position",
        "last",
        "string",
        "string-length",
        "number",
        "sum",
        "normalize-space",
        "substring",
        "substring-before",
        "substring-after",
        "concat",
        "name",
        "local-name",
        "boolean",
        "true",
        "false",
        "floor",
        "ceiling",
        "round",
    ]
)
SEARCHES: Final = frozenset(["contains", "substring-before", "substring-after"])
LITERALS: Final = frozenset(["(string)", "(float)", "(decimal)", "(integer)"])
PATHS: Final = {"/", "//", "|", "[", "(name)", "*", "child", "descendant", "text", "node"}
"""What a path begins with, as elementpath has it; ``.`` and attributes are one node only."""
_DEEP: Final = frozenset(["//", "descendant", "descendant-or-self"])


def tokens_of(token: Any) -> Iterator[Any]:
    """A token and all inside it."""
    waiting = [token]
    while waiting:
        each = waiting.pop()
        yield each
        waiting.extend(each)


def check(token: Any) -> None:
    """Bound what lxml needs for a query to a small multiple of the document's size. Raises `InterestError`."""
    if token.symbol not in ("/", "//", "|", "[", "(", "and", "or", "not", *COMPARISONS):
        raise InterestError("a subscription is a path that begins with / or //, or a condition on such paths")
    free = sum(each.symbol in _DEEP for each in tokens_of(token))
    if free > FREE_STEPS_MAX:
        raise InterestError(f"{free} steps of any depth (//) cost too much in such a query, limit {FREE_STEPS_MAX}")
    functions = sum(each.symbol in FUNCTIONS for each in tokens_of(token))
    if functions > FUNCTIONS_MAX:
        raise InterestError(f"{functions} functions cost too much, limit {FUNCTIONS_MAX}")
    _check_searches(token, SEARCHED_DEEP_MAX if free > 1 else SEARCHED_MAX)
    for each in tokens_of(token):
        paths = each[:2] if each.symbol == "|" else each[:1] if each.symbol in ("/", "//", "[") else ()
        if not all(map(_has_nodes, paths)):
            raise InterestError(f"what stands beside {each.symbol} is no path")
        if each.symbol == "[" and any(map(_is_absolute, tokens_of(each[1]))):
            raise InterestError("a path in a predicate begins at its element, not with / or //")
        if each.symbol in COMPARISONS and each[0].symbol in PATHS and each[1].symbol in PATHS:
            raise InterestError(f"comparing two paths by {each.symbol} costs too much; compare with a constant")
    _check_sets(token)


def _check_searches(token: Any, limit: int) -> None:
    searches = [each for each in tokens_of(token) if each.symbol in SEARCHES]
    for each in searches:
        if len(each) != 2 or each[1].symbol != "(string)":
            raise InterestError(f"{each.symbol}() searches for a constant text only")
    length = sum(len(each[1].value.encode(errors="replace")) for each in searches)
    if length > limit:
        raise InterestError(f"texts of {length} bytes to search for cost too much in such a query, limit {limit}")


def _check_sets(token: Any) -> None:
    """Refuse what would have libxml2 compare nodes with each other, but where `existence` takes it away."""
    if token.symbol in ("|", "or", "and", "not") or (token.symbol == "(" and len(token) == 1):
        for part in token:
            _check_sets(part)
        return
    joints = [id(each) for each in _joints(token)]
    for each in tokens_of(token):
        if each.symbol == "|":
            raise InterestError("in such a query | costs too much inside brackets; use or, or two subscriptions")
        if each.symbol not in ("/", "//") or len(each) != 2 or id(each) in joints:
            continue
        is_deep = each.symbol == "//" or _without_predicates(each[1]).symbol in _DEEP
        if is_deep and not _is_one_node(each[0]):
            raise InterestError("in such a query a path in brackets looks at any depth only at its beginning (.//)")


def _joints(path: Any) -> Iterator[Any]:
    """The signs / and // between the steps of a path, the last one first."""
    while path.symbol in ("/", "//") and len(path) == 2:
        yield path
        path = path[0]


def _without_predicates(step: Any) -> Any:
    while step.symbol == "[":
        step = step[0]
    return step


def _is_one_node(token: Any) -> bool:
    return token.symbol == "." or (token.symbol == "/" and len(token) == 1)


def _has_nodes(token: Any) -> bool:
    """Whether this is a path, and no number, text or truth value: those have no steps and no conditions."""
    if token.symbol == "(" and len(token) == 1:
        return _has_nodes(token[0])
    is_operator = token.symbol in ("and", "or", "not", "+", "-", "div", "mod", *COMPARISONS)
    is_product = token.symbol == "*" and len(token) == 2
    return not (is_operator or is_product or token.symbol in LITERALS or token.symbol in FUNCTIONS)


def _is_absolute(token: Any) -> bool:
    return token.symbol in ("/", "//") and len(token) < 2


def existence(text: str, token: Any) -> str:
    """A query that has a result, or is true, on the same documents, and for which no nodes are compared."""
    return _existence(text, token, 0, len(text))


def _existence(text: str, token: Any, start: int, end: int) -> str:
    """The form of the part of a query that a token stands for."""
    if token.symbol in ("|", "or", "and") and len(token) == 2:
        left = _existence(text, token[0], start, token.span[0])
        right = _existence(text, token[1], token.span[1], end)
        return f"({left}) {'and' if token.symbol == 'and' else 'or'} ({right})"
    if token.symbol in ("(", "not") and len(token) == 1:
        inner = _existence(text, token[0], text.index("(", token.span[0]) + 1, text.rindex(")", start, end))
        return f"not({inner})" if token.symbol == "not" else f"({inner})"
    inside = ""
    for joint in _joints(token):
        step = text[joint.span[1] : end].strip()
        inside = f"[{'.//' if joint.symbol == '//' else ''}{step}{inside}]"
        end = joint.span[0]
    return text[start:end].strip() + inside
