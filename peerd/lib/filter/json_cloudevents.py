"""Filters of CloudEvents subscriptions: ``[{"prefix": {"type": "com.example."}}, {"not": {"exact": {"id": "7"}}}]``.

A list of filters must all hold. Each is an object with one dialect: exact, prefix or suffix (an object of names and
texts that must all hold), all or any (a list of filters), not (a filter), sql (a text in the filter language). As the
CloudEvents specification demands, ``not`` knows only true and false: the opposite of exact, prefix and suffix holds
where the attribute is missing. Within ``sql`` the language's three values apply.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from peerd.lib.filter.errors import FilterError, FilterTooLarge
from peerd.lib.filter.json_values import check_budget, text_in
from peerd.lib.filter.limits import DEPTH_MAX
from peerd.lib.filter.parse import parse
from peerd.lib.filter.tree import Affix, And, Compare, Constant, IsNull, Node, Not, Or, all_of, any_of, check_limits
from peerd.lib.filter.write import write

_LEAVES: Final = ("exact", "prefix", "suffix")


def from_cloudevents(document: object) -> Node:
    """The filter of a list of filters, or of one. Raises `FilterError`."""
    check_budget(document)
    filters = document if isinstance(document, list) else [document]
    return check_limits(all_of(_filter(each, negated=False, depth=1) for each in filters))


def _filter(document: object, *, negated: bool, depth: int) -> Node:
    if depth > DEPTH_MAX:
        raise FilterTooLarge("DEPTH_MAX", f"a filter is nested at most {DEPTH_MAX} deep")
    if not isinstance(document, Mapping) or len(document) != 1:
        raise FilterError(f"a filter of CloudEvents is an object with one dialect, not {document!r:.60}")
    [(dialect, value)] = document.items()
    if dialect in _LEAVES and isinstance(value, Mapping) and value:
        leaves = [_leaf(dialect, name, text_in(name, text), negated=negated) for name, text in value.items()]
        return any_of(leaves) if negated else all_of(leaves)
    if dialect in ("all", "any") and isinstance(value, list) and value:
        parts = [_filter(each, negated=negated, depth=depth + 1) for each in value]
        return all_of(parts) if (dialect == "all") is not negated else any_of(parts)
    if dialect == "not":
        return _filter(value, negated=not negated, depth=depth + 1)
    if dialect == "sql" and isinstance(value, str):
        return Not(parse(value)) if negated else parse(value)
    raise FilterError(
        f"{dialect!r:.60} is no dialect of CloudEvents' filters (exact, prefix, suffix, all, any, not, sql), "
        "or its value is empty or of the wrong type"
    )


def _leaf(dialect: str, name: str, text: str, *, negated: bool) -> Node:
    where = {"prefix": "STARTS WITH", "suffix": "ENDS WITH"}
    leaf: Node = Compare(name, "=", text) if dialect == "exact" else Affix(name, where[dialect], text)
    return any_of([Not(leaf), IsNull(name)]) if negated else leaf


def to_cloudevents(node: Node) -> list[dict[str, Any]]:
    """A list of filters that means the same; conditions that have no dialect of their own go into ``sql``."""
    if node == Constant(True):
        return []
    return [_written(part) for part in (node.parts if isinstance(node, And) else (node,))]


def _written(node: Node) -> dict[str, Any]:
    if isinstance(node, And):
        return {"all": [_written(part) for part in node.parts]}
    if isinstance(node, Or):
        return {"any": [_written(part) for part in node.parts]}
    if isinstance(node, Compare) and node.operator == "=" and isinstance(node.value, str):
        return {"exact": {node.name: node.value}}
    if isinstance(node, Affix) and node.where != "CONTAINS":
        return {"prefix" if node.where == "STARTS WITH" else "suffix": {node.name: node.text}}
    return {"sql": write(node)}
