"""Helpers of both JSON forms: they bound the size of documents from elsewhere, and check the types of values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from peerd.lib.filter.errors import FilterError, FilterTooLarge
from peerd.lib.filter.limits import ATOMS_MAX, DEPTH_MAX, LIST_ITEMS_MAX

ELEMENTS_MAX: Final = ATOMS_MAX + LIST_ITEMS_MAX * 4
"""The largest number of objects, lists and values in one JSON filter."""
NESTING_MAX: Final = 2 * DEPTH_MAX + 4
"""How deep objects and lists may be nested; one operator of a filter takes two levels."""


def check_budget(document: object) -> None:
    """Raises `FilterTooLarge` for a document that is deeper or has more parts than any filter."""
    todo, count = [(document, 0)], 0
    while todo:
        value, depth = todo.pop()
        count += 1
        if depth > NESTING_MAX:
            raise FilterTooLarge("DEPTH_MAX", f"a filter is nested at most {DEPTH_MAX} deep")
        inner = list(value.values()) if isinstance(value, Mapping) else value if isinstance(value, list) else []
        if count + len(inner) + len(todo) > ELEMENTS_MAX:
            raise FilterTooLarge("ELEMENTS_MAX", f"a JSON filter has at most {ELEMENTS_MAX} values")
        if isinstance(value, Mapping) and not all(isinstance(name, str) for name in value):
            raise FilterError("the names in a JSON filter are texts")
        todo += [(each, depth + 1) for each in inner]


def text_in(name: str, value: object) -> str:
    """The text. Raises `FilterError` naming the attribute when it is something else."""
    if not isinstance(value, str):
        raise FilterError(f"{name}: a text is expected, not {value!r:.60}")
    return value


def number_in(name: str, value: object) -> int | float:
    """The number. Raises `FilterError` naming the attribute when it is something else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise FilterError(f"{name}: a number is expected, not {value!r:.60}")
    return value
