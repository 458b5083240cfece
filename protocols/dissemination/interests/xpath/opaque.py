"""Queries that are no patterns: lxml evaluates them. What that may cost is bounded here, before it is ever done. Pure.

Libxml2 compares each node that a step finds with all that were found from other nodes, so ``//a//b`` and ``a | b`` take
it the square of a document's size. Only whether there is a result matters for a subscription, so such a query is asked
in another form: ``//a[.//b]`` and ``(a) or (b)`` have a result when these have, and nothing is compared.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from protocols.dissemination.interests.errors import InterestError
from protocols.dissemination.interests.xpath.parsing import COMPARISONS, FUNCTIONS, QueryToken, is_path, write

FREE_STEPS_MAX: Final = 2
"""Steps of any depth (//): each multiplies what a query costs by the depth of the document."""
FUNCTIONS_MAX: Final = 8
"""Calls of functions: each may read all text of the document."""
SEARCHED_MAX: Final = 128
"""Bytes of all constants that are searched for in texts: libxml2 may look at each of them at each place of a text."""
SEARCHED_DEEP_MAX: Final = 16
"""The same, where there is more than one step of any depth."""

SEARCHES: Final = frozenset(["contains", "substring-before", "substring-after"])
_DEEP: Final = frozenset(["//", "descendant", "descendant-or-self"])
_HEADS: Final = frozenset(["/", "//", "|", "[", "(", "and", "or", "not", *COMPARISONS])
"""What a query may be as a whole."""


def tokens_of(token: QueryToken) -> Iterator[QueryToken]:
    """A token and all inside it."""
    waiting = [token]
    while waiting:
        each = waiting.pop()
        yield each
        waiting.extend(each)


def check(token: QueryToken) -> None:
    """Bound what lxml needs for a query to a small multiple of the document's size. Raises `InterestError`."""
    if token.symbol not in _HEADS:
        raise InterestError("a subscription is a path that begins with / or //, or a condition on such paths")
    free = sum(each.symbol in _DEEP for each in tokens_of(token))
    if free > FREE_STEPS_MAX:
        raise InterestError(f"{free} steps of any depth (//) cost too much in such a query, limit {FREE_STEPS_MAX}")
    functions = sum(each.symbol in FUNCTIONS and each.symbol != "not" for each in tokens_of(token))
    if functions > FUNCTIONS_MAX:
        raise InterestError(f"{functions} functions cost too much, limit {FUNCTIONS_MAX}")
    _check_searches(token, SEARCHED_DEEP_MAX if free > 1 else SEARCHED_MAX)
    for each in tokens_of(token):
        if each.symbol == "[" and any(map(_is_absolute, tokens_of(each[1]))):
            raise InterestError("a path in a predicate begins at its element, not with / or //")
        if each.symbol in COMPARISONS and all(map(_may_find_many, each)):
            raise InterestError(f"comparing two paths by {each.symbol} costs too much; compare with a constant")
    _check_sets(token)


def _check_searches(token: QueryToken, limit: int) -> None:
    searches = [each for each in tokens_of(token) if each.symbol in SEARCHES]
    for each in searches:
        if len(each) != 2 or each[1].symbol != "(string)":
            raise InterestError(f"{each.symbol}() searches for a constant text only")
    length = sum(len(each[1].value.encode(errors="replace")) for each in searches)
    if length > limit:
        raise InterestError(f"texts of {length} bytes to search for cost too much in such a query, limit {limit}")


def _check_sets(token: QueryToken) -> None:
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


def _joints(path: QueryToken) -> Iterator[QueryToken]:
    """The signs / and // between the steps of a path, the last one first."""
    while path.symbol in ("/", "//") and len(path) == 2:
        yield path
        path = path[0]


def _without_predicates(step: QueryToken) -> QueryToken:
    while step.symbol == "[":
        step = step[0]
    return step


def _is_one_node(token: QueryToken) -> bool:
    return token.symbol == "." or (token.symbol == "/" and len(token) == 1)


def _may_find_many(token: QueryToken) -> bool:
    """Whether this finds more than one node: all paths may, but ``.`` and an attribute."""
    if token.symbol == "(":
        return _may_find_many(token[0])
    return is_path(token) and _without_predicates(token).symbol not in (".", "@", "self")


def _is_absolute(token: QueryToken) -> bool:
    return token.symbol in ("/", "//") and len(token) < 2


def existence(token: QueryToken) -> str:
    """A query that has a result, or is true, on the same documents, and for which no nodes are compared."""
    return _existence(token, counts_the_document=False)


def _existence(token: QueryToken, *, counts_the_document: bool) -> str:
    """The same of a part. ``counts_the_document``: the document is a result, too; lxml leaves it out."""
    symbol = token.symbol
    if symbol in ("|", "or", "and"):
        counts = counts_the_document or symbol != "|"
        left, right = (_existence(each, counts_the_document=counts) for each in token)
        return f"({left}) {'and' if symbol == 'and' else 'or'} ({right})"
    if symbol in ("(", "not"):
        inner = _existence(token[0], counts_the_document=counts_the_document or symbol == "not")
        return f"not({inner})" if symbol == "not" else f"({inner})"
    inside = "" if counts_the_document or not _may_be_the_document(token) else "[..]"
    is_changed = bool(inside)
    first = token
    for joint in _joints(token):
        is_changed = True
        inside = f"[{'.//' if joint.symbol == '//' else ''}{write(joint[1])}{inside}]"
        first = joint[0]
    is_from_the_document = is_changed and _may_be_the_document(first)
    return f"boolean({write(first)}{inside})" if is_from_the_document else write(first) + inside


def _may_be_the_document(token: QueryToken) -> bool:
    """Whether a path may find the document itself, which has no parent."""
    bare = _without_predicates(token)
    if bare.symbol == "|":
        return any(map(_may_be_the_document, bare))
    if bare.symbol == "(":
        return is_path(bare) and _may_be_the_document(bare[0])
    if bare.symbol not in ("/", "//") or not len(bare):
        return bare.symbol == "/"
    is_self = _without_predicates(bare[-1]).symbol in (".", "self", "descendant-or-self")
    return is_self and (len(bare) == 1 or _may_be_the_document(bare[0]))
