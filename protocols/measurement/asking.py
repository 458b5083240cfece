"""What clients of this node ask: of which nodes (regions, section 5.1), which measurements."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from peerd.errors import ClientRefusal, nearest
from peerd.ids import format_id
from peerd.lib.filter import FilterError, matcher, parse
from protocols.measurement.bounds import usual_half_width
from protocols.measurement.directory import PARTLY_FRESH_S, Directory
from protocols.measurement.guarantee.words import Measurement, Want
from protocols.measurement.names import split_name
from protocols.measurement.reading import Readings
from protocols.measurement.readings import NodeEntry, NoReading, Reading

VALUES_MAX = 16_384
"""Values that one question may be about."""
ReadTold = Callable[[list[Reading | NoReading] | Exception], None]


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


def wants_of(entries: Sequence[NodeEntry], names: Sequence[str], within: Mapping[str, float]) -> list[Want]:
    """What to read of these nodes; who does not measure a name is not asked. ``rtt`` means all pairs of that name.

    Raises `ClientRefusal` for too many, and for a name that none of them measures.
    """
    if len(entries) * len(names) > VALUES_MAX:
        text = f"{len(names)} names of {len(entries)} nodes are more than {VALUES_MAX:,} values; ask for fewer"
        raise ClientRefusal("quota", text)
    wants: list[Want] = []
    nobodys = dict.fromkeys(names)
    for entry in entries:
        for name in names:
            simple = split_name(name.removesuffix("@"))[0]
            half_width = within.get(name, within.get(simple, usual_half_width(simple)))
            if name in entry.measurements:
                full = name
            elif f"{simple}@" in entry.measurements:
                full = name if "@" in name else f"{name}@"
            else:
                continue
            nobodys.pop(name, None)
            wants.append(Want(Measurement(entry.id, full), half_width))
    if entries and nobodys:
        known = sorted({name.removesuffix("@") for entry in entries for name in entry.measurements})
        unknown = next(iter(nobodys))
        text = f"none of these {len(entries)} nodes measures {unknown}{nearest(unknown, known)}"
        raise ClientRefusal("unknown", text)
    return wants


class ClientReads:
    """Questions of clients, about all nodes that they mean."""

    def __init__(self, directory: Directory, readings: Readings) -> None:
        self._directory, self._readings = directory, readings

    def read(
        self,
        names: Sequence[str],
        is_meant: Callable[[NodeEntry], bool],
        within: Mapping[str, float],
        max_age_s: float,
        told: ReadTold,
    ) -> None:
        """Tell all values of these names, of the nodes that are meant; an exception instead of what cannot be."""

        def known(is_newest: bool = False) -> None:
            entries = [entry for entry in self._directory.known() if is_meant(entry)]
            try:
                wants = wants_of(entries, names, within)
            except ClientRefusal as error:
                if is_newest:
                    told(error)
                else:  # what nobody measured a moment ago, somebody may measure by now
                    self._directory.refreshed(partial(known, is_newest=True), PARTLY_FRESH_S)
                return
            self._readings.read(wants, max_age_s, told)

        self._directory.refreshed(known)
