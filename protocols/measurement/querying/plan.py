"""What a statement reads: its columns as measurements of rows, and with which bounds to ask for them first. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NoReturn, TypeAlias

from peerd.errors import closest
from peerd.ids import NodeId, format_id
from peerd.lib.filter import tree
from peerd.lib.filter.errors import FilterError
from protocols.measurement.guarantee.interval import Interval
from protocols.measurement.guarantee.words import Measurement
from protocols.measurement.names import full_name
from protocols.measurement.placing.squares import Spot
from protocols.measurement.querying.intervals import UNKNOWN
from protocols.measurement.querying.statement import ALL, COLUMNS_MAX, NamedColumn, Selected, Statement
from protocols.measurement.readings import NodeEntry, NoReading, Reading

Row: TypeAlias = tuple[NodeEntry, ...]
"""A node, or of a join one of each side."""
SYMMETRIC: Final = frozenset({"rtt"})
"""Measurements of two nodes that are the same from either of them."""
COORDINATES: Final = "coordinates"
"""The column that says where a node is; ``coordinates TO 'x y z'`` is its round trip to there, as it is expected."""
NAMES_LIKE_MAX: Final = 256
"""Names among which one is looked for that somebody may have meant."""


class Knowledge:
    """What is known of the columns of rows: from what nodes say of themselves, and from readings."""

    def __init__(self, statement: Statement, nodes: Sequence[NodeEntry]) -> None:
        self.statement = statement
        self.nodes = nodes
        self.readings: dict[Measurement, Reading] = {}
        self.summed = 1
        """Rows that may belong to the answer, at first."""
        self.reasons: dict[Measurement, str] = {}
        """Why there is no reading of these."""
        self._listed = {entry.id: frozenset(entry.measurements) for entry in nodes}
        self._measured = {name.partition("@")[0] for entry in nodes for name in entry.measurements}
        tags = {tag for entry in nodes for tag in entry.tags}
        for column in statement.columns.values():
            self._check(column, {"node", "address", COORDINATES} | self._measured | tags)
        self._peers = {
            each.label: self._node_called(each)
            for each in statement.columns.values()
            if isinstance(each.peer, str) and each.name != COORDINATES
        }
        self._centres = {
            each.label: self._centre(each) for each in statement.columns.values() if each.name == COORDINATES
        }
        self.shown = self._shown()

    def _refuse(self, message: str, column: NamedColumn) -> NoReturn:
        raise FilterError(message, text=self.statement.text, column=column.at)

    def _check(self, column: NamedColumn, known: set[str]) -> None:
        """Some node has the column, unless it is only asked whether it does; and groups are exact."""
        atoms, name = tree.atoms(self.statement.where), column.name.removeprefix("tag.")
        may_miss = any(isinstance(atom, tree.IsNull) and atom.name == column.label for atom in atoms)
        if self.nodes and name not in known and not may_miss:
            near = closest(name[:64], sorted(known)[:NAMES_LIKE_MAX])
            self._refuse(f"no node has {name!r:.80}{f', did you mean {near!r:.80}?' if near else ''}", column)
        if column in self.statement.group_by and (column.name in self._measured or column.peer is not None):
            self._refuse(f"groups are by what is exact, such as a tag, and {column.label} is measured", column)

    def _node_called(self, column: NamedColumn) -> NodeId:
        """The node with this id, address or host."""
        wanted = str(column.peer)
        exact = [entry.id for entry in self.nodes if wanted.lower() in (format_id(entry.id), entry.address.lower())]
        found = exact or [entry.id for entry in self.nodes if entry.address.rpartition(":")[0].strip("[]") == wanted]
        if len(found) != 1:
            self._refuse(f"{len(found) or 'no'} nodes have the id or address {wanted!r:.80}", column)
        return found[0]

    def _centre(self, column: NamedColumn) -> Spot | None:
        match = re.fullmatch(r"\s*(-?\d{1,5})[\s,]+(-?\d{1,5})[\s,]+(-?\d{1,5})\s*", str(column.peer))
        if match is None and column.peer is not None:
            self._refuse("a place is three whole numbers, milliseconds, as in '100 60 -150'", column)
        return Spot(*map(int, match.groups())) if match else None

    def _place(self, column: NamedColumn, entry: NodeEntry) -> Interval | str | None:
        spot, centre = entry.spot, self._centres[column.label]
        if spot is None:
            return None
        rtt_s = spot.rtt_ms(centre) / 1000.0 if centre else 0.0
        return Interval(rtt_s, rtt_s) if centre else f"{spot.x} {spot.y} {spot.z}"

    def _shown(self) -> tuple[Selected, ...]:
        """The columns of the answer; ``*`` is the node, its address, all tags, and all that single nodes measure."""
        if self.statement.selected:
            return self.statement.selected
        tags = sorted({tag for entry in self.nodes for tag in entry.tags})
        measured = sorted({name for listed in self._listed.values() for name in listed if "@" not in name})
        names = ["node", "address", *(f"tag.{tag}" if tag in measured else tag for tag in tags), *measured]
        if len(names) > COLUMNS_MAX:
            raise FilterError(f"* would be {len(names)} columns; at most {COLUMNS_MAX} can be shown, so name them")
        return tuple(Selected(name, NamedColumn(name, name)) for name in names)

    def is_numeric(self, selected: Selected) -> bool:
        """Whether the column has numbers: aggregates and what is measured, and no text."""
        column = selected.column
        if selected.function or column is None or column.peer is not None:
            return True
        return column.name in self._measured

    def measurement(self, column: NamedColumn, row: Row) -> Measurement | None:
        """What the column is of this row, if it is measured."""
        entry, name = row[column.side], column.name
        if name == COORDINATES:
            return None
        if column.peer is None:
            return Measurement(entry.id, name) if name in self._listed[entry.id] else None
        peer = row[column.peer].id if isinstance(column.peer, int) else self._peers[column.label]
        either_way = ((entry.id, peer), (peer, entry.id)) if name in SYMMETRIC else ((entry.id, peer),)
        for owner, other in either_way:
            measured = self._listed.get(owner, frozenset())
            if owner != other and (f"{name}@" in measured or full_name(name, other) in measured):
                return Measurement(owner, full_name(name, other))
        return None

    def value(self, column: NamedColumn, row: Row) -> Interval | str | None:
        """The bounds of a measurement (of a stale value they are not known), a text, or ``None``: there is none."""
        entry = row[column.side]
        if column.name in ("node", "address") and column.peer is None:
            return format_id(entry.id) if column.name == "node" else entry.address
        if column.name == COORDINATES:
            return self._place(column, entry)
        measurement = self.measurement(column, row)
        if measurement is None:
            return entry.tags.get(column.name.removeprefix("tag.")) if column.peer is None else None
        reading = self.readings.get(measurement)
        return UNKNOWN if reading is None or reading.is_stale else reading.interval

    def reading(self, column: NamedColumn | None, row: Row) -> Reading | None:
        """What was told of the column of this row, if it is measured."""
        measurement = None if column is None else self.measurement(column, row)
        return None if measurement is None else self.readings.get(measurement)

    def estimate(self, column: NamedColumn, row: Row) -> Interval | str | None:
        """What to sort by: the value as it was told. An order by these is one that the bounds allow."""
        reading, value = self.reading(column, row), self.value(column, row)
        if reading is None:
            return None if isinstance(value, Interval) else value
        told = min(max(reading.value, reading.interval.low), reading.interval.high)
        return Interval(told, told)

    def accessor(self, label: str) -> Callable[[Any], Any]:
        """For conditions: the function that takes a column's value out of a row."""
        column = self.statement.columns[label]
        return lambda row: self.value(column, row)

    def told(self, reading: Reading | NoReading) -> None:
        """Keep what is told of a measurement."""
        if isinstance(reading, NoReading):
            if reading.measurement not in self.readings:
                self.reasons[reading.measurement] = reading.reason
        else:
            self.readings[reading.measurement] = reading
            self.reasons.pop(reading.measurement, None)


def first_half_width(statement: Statement, name: str, default: Callable[[str], float], summed: int = 1) -> float:
    """The bounds to ask for at first: what WITHIN says, else what is usual for the measurement. What it says without a
    name of one sum is about the sum, to which each of its ``summed`` values may add a share."""
    bare = name.partition("@")[0]
    is_share = [(each.function, each.column and each.column.name) for each in statement.selected] == [("SUM", bare)]
    share = max(1, summed) if is_share and not statement.group_by else 1
    within = statement.within
    return within[bare] if bare in within else within[ALL] / share if ALL in within else default(bare)


def sides_of(statement: Statement, labels: Iterable[str]) -> set[int]:
    """The sides of the join that have these columns."""
    columns = [statement.columns[label] for label in labels]
    return {column.side for column in columns} | {column.peer for column in columns if isinstance(column.peer, int)}
