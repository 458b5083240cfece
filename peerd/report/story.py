"""What became of one thing: a round, a publication, a document, or whatever else has an id in events.

The events that name it, on all nodes, with those that led to them and those to which they led (``cause``), in the order
of the nodes' clocks, which are corrected where they are off.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_
from pathlib import Path
from typing import Any, Final

from peerd.errors import PeerdError, Unavailable
from peerd.front import Row
from peerd.report.making import read_rows
from peerd.report.opening import open_table

PREFIX_MIN: Final = 4
"""So much of an id has to be given at least."""
ID_LENGTH: Final = 32
"""Hexadecimal digits of most ids; what is shorter may be in a tag by chance."""
STEPS_MAX: Final = 2000
WITHIN_S: Final = 60.0
"""Causes and effects are looked for so long before and after."""
CANDIDATES_MAX: Final = 5
COMMON: Final = ("schema_version", "ts", "mono_s", "node", "boot", "id", "cause", "event", "batch")
NO_IDS: Final = (
    "node",
    "event",
    "address",
    "query",
    "error",
    "detail",
    "reason",
    "outcome",
    "metric",
    "labels",
    "message",
)
"""Columns of texts that are not looked at for an id."""
CARRIER: Final = "tag"
"""A plugin's name for a swap has the id of what the swap is for somewhere in it."""

EventKey = tuple[str, int, int]
"""Node, boot, and number of the event."""


@dataclass(frozen=True, slots=True)
class StoryEvent:
    """One event. ``fields``: its own, without those that are null. ``why``: the event of this node that led to it."""

    after_s: float
    node: str
    boot: int
    number: int
    why: int | None
    event: str
    fields: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Story:
    """All that is known of ``name``. ``is_cut``: there are more events than `STEPS_MAX`."""

    name: str
    begins_ts: float
    steps: Sequence[StoryEvent]
    is_cut: bool

    @property
    def duration_s(self) -> float:
        """From the first to the last event."""
        return self.steps[-1].after_s

    def parts(self) -> list[Row]:
        """What happened, by kind and outcome, in the order in which it began: event, outcome, nodes, times, first_s,
        last_s, and longest_s of those that tell how long they took."""
        found: dict[tuple[str, str | None], list[StoryEvent]] = {}
        for step in self.steps:
            found.setdefault((step.event, step.fields.get("outcome")), []).append(step)
        return [
            {
                "event": event,
                "outcome": outcome,
                "nodes": len({step.node for step in steps}),
                "times": len(steps),
                "first_s": steps[0].after_s,
                "last_s": steps[-1].after_s,
                "longest_s": max((step.fields["duration_s"] for step in steps if _is_timed(step)), default=None),
            }
            for (event, outcome), steps in found.items()
        ]

    def longest(self) -> list[StoryEvent]:
        """What took longest of each kind and outcome, the longest first."""
        timed = sorted(filter(_is_timed, self.steps), key=lambda step: -step.fields["duration_s"])
        first = {(step.event, step.fields.get("outcome")): step for step in reversed(timed)}
        return sorted(first.values(), key=lambda step: -step.fields["duration_s"])


def tell(folder: Path, name: str) -> Story:
    """What became of ``name``: an id, or the beginning of one. ``folder``: with the table of events.

    Raises `Unavailable` where there is no such table or no such thing, `PeerdError` where there are several.
    """
    events = _EventTable(folder / "events")
    rows = events.naming(name, whole=True)
    if not rows and len(name) >= PREFIX_MIN:
        rows = events.naming(name, whole=False)
        names = sorted({value for row in rows for value in events.ids_in(row) if value.startswith(name)})
        if len(names) > 1:
            some = ", ".join(names[:CANDIDATES_MAX]) + (", ..." if len(names) > CANDIDATES_MAX else "")
            raise PeerdError(f"{name} is the beginning of several ids: {some}")
        if names:
            name = names[0]
            rows = events.naming(name, whole=True)
    if not rows:
        raise Unavailable(f"no event in {folder / 'events'} names {name}")
    off = {row["node"]: row["offset_s"] for row in read_rows(folder, "clocks") if row["is_off"]}
    told = ({**row, "ts": row["ts"] - off.get(row["node"], 0.0)} for row in events.with_causes(rows))
    rows = sorted(told, key=lambda row: (row["ts"], row["node"], row["id"]))
    begin = rows[0]["ts"]
    return Story(name, begin, [_step(row, begin) for row in rows[:STEPS_MAX]], len(rows) > STEPS_MAX)


def _is_timed(step: StoryEvent) -> bool:
    return isinstance(step.fields.get("duration_s"), float)


def _step(row: Row, begin: float) -> StoryEvent:
    fields = {key: value for key, value in row.items() if value is not None and key not in COMMON}
    return StoryEvent(row["ts"] - begin, row["node"], row["boot"], row["id"], row["cause"], row["event"], fields)


class _EventTable:
    """The table of events, read without Spark."""

    def __init__(self, path: Path) -> None:
        if not path.is_dir():
            raise Unavailable(f"{path}: there is no table of events, which peerd analyze writes")
        self._events = open_table(path)
        from pyarrow import types

        texts = [field.name for field in self._events.schema if types.is_string(field.type)]
        self._ids = [name for name in texts if name not in NO_IDS]
        self._columns = [name for name in self._events.schema.names if name != "raw"]

    def naming(self, name: str, *, whole: bool) -> list[Row]:
        """The events that have this in a column, or in a swap's tag; or something that begins with it."""
        from pyarrow import compute

        columns = {column: compute.field(column) for column in self._ids}
        found = [
            column == name if whole else compute.starts_with(column, name)
            for where, column in columns.items()
            if where != CARRIER
        ]
        if CARRIER in columns and whole and len(name) >= ID_LENGTH:
            found.append(compute.match_substring(columns[CARRIER], name))
        return self._read(reduce(or_, found), STEPS_MAX + 1)

    def ids_in(self, row: Row) -> list[str]:
        """Whatever may be an id in an event."""
        return [row[column] for column in self._ids if row[column] is not None and column != CARRIER]

    def with_causes(self, rows: Sequence[Row]) -> list[Row]:
        """These, and what led to them, and what they led to, step by step, on the same node."""
        from pyarrow import compute

        found = {_key(row): row for row in rows}
        begin, end = min(row["ts"] for row in rows) - WITHIN_S, max(row["ts"] for row in rows) + WITHIN_S
        ts, node, cause = (compute.field(name) for name in ("ts", "node", "cause"))
        is_near = (ts >= begin) & (ts <= end) & node.isin(sorted({row["node"] for row in rows}))
        wanted = [row["cause"] for row in rows if row["cause"] is not None]
        near = self._read(is_near & (cause.is_valid() | compute.field("id").isin(wanted)), None)
        by_key = {_key(row): row for row in near}
        effects: dict[EventKey, list[Row]] = {}
        for row in near:
            if row["cause"] is not None:
                effects.setdefault(_cause(row), []).append(row)
        waiting = list(found)
        while waiting and len(found) <= STEPS_MAX:
            key = waiting.pop()
            led_to_it = by_key.get(_cause(found[key])) if found[key]["cause"] is not None else None
            for row in [*effects.get(key, ()), *filter(None, [led_to_it])]:
                if _key(row) not in found:
                    found[_key(row)] = row
                    waiting.append(_key(row))
        return list(found.values())

    def _read(self, wanted: Any, rows_max: int | None) -> list[Row]:
        from pyarrow import ArrowException

        scanner = self._events.scanner(columns=self._columns, filter=wanted)
        try:
            table = scanner.to_table() if rows_max is None else scanner.head(rows_max)
        except (ArrowException, OSError) as error:
            raise PeerdError(f"the table of events cannot be read: {error}") from error
        rows: list[Row] = table.to_pylist()
        return rows


def _key(row: Row) -> EventKey:
    return row["node"], row["boot"], row["id"]


def _cause(row: Row) -> EventKey:
    return row["node"], row["boot"], row["cause"]


def details(fields: Mapping[str, Any], left_out: Iterable[str] = ()) -> str:
    """An event's own fields in one line."""
    return ", ".join(f"{key} {_short(value)}" for key, value in fields.items() if key not in left_out)


def _short(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.3g}"
    text = str(value)
    return f"{text[:8]}.." if len(text) >= 32 and " " not in text else text
