"""Which nodes a question is about (regions, section 5.1): by a list, or by a filter on what nodes say of themselves."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from peerd.errors import ClientRefusal
from peerd.ids import format_id
from peerd.lib.filter import FilterError, matcher, parse
from protocols.measurement.readings import NodeEntry


def attributes(entry: NodeEntry) -> Mapping[str, Any]:
    """A node as a filter sees it: its tags, ``node`` (its id) and ``address``."""
    return {**entry.tags, "node": format_id(entry.id), "address": entry.address}


def selection(where: str = "", nodes: Sequence[str] = ()) -> Callable[[NodeEntry], bool]:
    """Whether a node is meant. ``nodes``: ids, beginnings of ids of at least four digits, or addresses.

    Raises `ClientRefusal` for what is no filter.
    """
    named = frozenset(nodes)
    prefixes = tuple(each for each in nodes if len(each) >= 4)
    if where.strip():
        try:
            matches = matcher(parse(where))
        except FilterError as error:
            raise ClientRefusal("invalid", str(error)) from error
    else:
        matches = None

    def is_meant(entry: NodeEntry) -> bool:
        if named and entry.address not in named and not format_id(entry.id).startswith(prefixes):
            return False
        return matches is None or matches(attributes(entry))

    return is_meant
