"""Makes the report of tables, which it reads itself: no Spark, no Java."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from peerd.errors import PeerdError, Unavailable
from peerd.front import Row, SparkTable
from peerd.lab.charts import Chart, Line, Span, Stack
from peerd.report.lives import SILENT, UP, ends_of, times_of
from peerd.report.opening import open_table
from peerd.report.page import Page, Section
from peerd.words import counted

NAMES: Final = ("report.html", "report.md", "report.json")
ROWS_MAX: Final = 20_000
"""Of a longer table so many rows are read, evenly out of all."""
MESSAGES_MAX: Final = 15
"""Kinds of messages in the picture."""
NODES_DRAWN_MAX: Final = 400


def write_report(folder: Path, plugin_tables: Iterable[Sequence[SparkTable]], out: Path | None = None) -> list[Path]:
    """Write the report of the tables in ``folder`` into it, or into ``out``, as the files `NAMES`.

    Raises `Unavailable` where there are no tables, or nothing to read them with.
    """
    page = make_page(folder, plugin_tables)
    target = folder if out is None else out
    target.mkdir(parents=True, exist_ok=True)
    paths = [target / name for name in NAMES]
    for path, text in zip(paths, (page.as_html(), page.as_markdown(), page.as_json()), strict=True):
        path.write_text(text)
    return paths


def make_page(folder: Path, plugin_tables: Iterable[Sequence[SparkTable]]) -> Page:
    """The report of the tables in a folder. See `write_report`."""
    nodes = read_rows(folder, "nodes")
    if not nodes:
        raise Unavailable(f"{folder}: there is no table nodes, which peerd analyze writes")
    begin, end = times_of(nodes)
    sections = [_nodes(nodes, begin, end), *_losses(folder), *_clocks(folder), *_messages(folder)]
    for ours in plugin_tables:
        for table in ours:
            sections += _of_plugin(folder, table, begin)
    return Page("What a ring's event logs say", _facts(nodes, sections), sections, bool(_find("matplotlib")))


def _find(module: str) -> object:
    return importlib.util.find_spec(module)


def read_rows(folder: Path, name: str) -> list[Row]:
    """The rows of a table, at most `ROWS_MAX`; none, if it is not there."""
    if not (folder / name).is_dir():
        return []
    table = open_table(folder / name)
    from pyarrow import ArrowException, array, int64

    try:
        step = -(-table.count_rows() // ROWS_MAX)
        rows: list[Row] = []
        at = 0
        for batch in table.to_batches():
            taken = range(-at % step, batch.num_rows, step) if step > 1 else range(batch.num_rows)
            rows += batch.take(array(taken, int64())).to_pylist()
            at += batch.num_rows
    except (ArrowException, OSError) as error:
        raise PeerdError(f"{folder / name} cannot be read: {error}") from error
    return rows


def _facts(nodes: Sequence[Row], sections: Sequence[Section]) -> list[tuple[str, str]]:
    begin, end = times_of(nodes)
    lost = next((sum(row["missing"] for row in each.rows) for each in sections if each.name == "losses"), 0)
    return [
        ("from", _time(begin)),
        ("to", f"{_time(end)} ({(end - begin) / 60:,.1f} minutes)"),
        ("nodes", f"{len({row['node'] for row in nodes}):,} ({counted(len(nodes), 'boot')})"),
        ("events", f"{sum(row['events'] for row in nodes):,}"),
        ("events that are missing", f"{lost:,}"),
    ]


def _time(ts: float) -> str:
    return f"{datetime.fromtimestamp(ts, UTC):%Y-%m-%d %H:%M:%S} UTC"


def _nodes(nodes: list[Row], begin: float, end: float) -> Section:
    rows = sorted(nodes, key=lambda row: (row["first_ts"], row["node"], row["boot"]))
    ends = ends_of(rows)
    cells = [
        {**row, "end": how, "first_s": row["first_ts"] - begin, "last_s": row["last_ts"] - begin}
        for row, how in zip(rows, ends, strict=True)
    ]
    columns = {
        "node": "node",
        "boot": "boot",
        "address": "address",
        "first_s": "first event",
        "last_s": "last event",
        "end": "end",
        "ready_s": "ready after",
        "events": "events",
    }
    text = "When each node was up, by its first and last event. Silent: it has ended, and did not say so."
    charts = [_ring(cells, end - begin), _lives(cells)]
    return Section("nodes", "The ring over time", text, columns, rows, cells, charts)


def _ring(cells: Sequence[Row], duration_s: float) -> Chart:
    ends = [(row["last_s"], -1) for row in cells if row["end"] != UP]
    points: list[tuple[float, float, float, float]] = []
    up = 0
    for at, change in [*sorted([(row["first_s"], 1) for row in cells] + ends), (duration_s, 0)]:
        points.append((at / 60, up, up, up))
        up += change
        points.append((at / 60, up, up, up))
    return Chart("ring", "Nodes that are up", "minutes", "nodes", (Line("nodes", tuple(points)),))


def _lives(cells: Sequence[Row]) -> Chart:
    names = {UP: "up at the end", SILENT: SILENT}
    spans = (
        Span(row["node"][:8], row["first_s"] / 60, row["last_s"] / 60, names.get(row["end"], "stopped"))
        for row in cells[:NODES_DRAWN_MAX]
    )
    return Chart("lives", "Who was up when", "minutes", "", spans=tuple(spans))


def _losses(folder: Path) -> Iterator[Section]:
    gaps = ("missing", "told", "missing_before")
    rows = [row for row in read_rows(folder, "losses") if any(row[name] for name in gaps)]
    if not rows:
        return
    columns = {
        "node": "node",
        "boot": "boot",
        "records": "events",
        "missing": "missing",
        "missing_before": "missing before",
        "told": "dropped by its sink",
    }
    rows.sort(key=lambda row: (-row["missing"], row["node"], row["boot"]))
    text = "Numbers of events that are in no file; those before the first one that is there may have been removed."
    yield Section("losses", "Logs with gaps", text, columns, rows, rows)


def _clocks(folder: Path) -> Iterator[Section]:
    rows = sorted(read_rows(folder, "clocks"), key=lambda row: (-abs(row["offset_s"]), row["node"]))
    if not rows:
        return
    columns = {"node": "node", "offset_s": "ahead by", "error_s": "give or take", "pairs": "by so many pairs of events"}
    off = counted(sum(row["is_off"] for row in rows), "clock")
    text = (
        f"How far each node's clock is ahead of the others', by what two have told of the same moment: {off} off. "
        "What became of one thing is told in corrected times."
    )
    yield Section("clocks", "Clocks", text, columns, rows, rows)


def _messages(folder: Path) -> Iterator[Section]:
    by_kind: dict[str, dict[str, Any]] = {}
    for row in read_rows(folder, "messages"):
        sums = by_kind.setdefault(row["message"], {"message": row["message"], "nodes": set()})
        sums["nodes"].add(row["node"])
        for name in ("sent", "sent_bytes", "received_bytes"):
            sums[name] = sums.get(name, 0) + row[name]
    rows = sorted(by_kind.values(), key=lambda row: (-row["sent_bytes"], row["message"]))
    if not rows:
        return
    rows = [{**row, "nodes": len(row["nodes"])} for row in rows]
    columns = {"message": "message", "nodes": "nodes", "sent": "sent", "sent_bytes": "bytes sent"}
    most = rows[:MESSAGES_MAX]
    chart = Chart(
        *("messages", "What the nodes have sent", "MB", ""),
        categories=tuple(row["message"] for row in most),
        stacks=(Stack("sent", tuple(row["sent_bytes"] / 1e6 for row in most)),),
        lies_down=True,
    )
    text = "Control messages by type, up to each node's last snapshot."
    yield Section("messages", "Traffic by kind", text, columns, rows, rows, [chart])


def _of_plugin(folder: Path, table: SparkTable, begin: float) -> Iterator[Section]:
    """What a plugin's table has to show: its rows, if it is shown, and its pictures."""
    if table.shown is None and table.charts is None:
        return
    rows = read_rows(folder, table.name)
    if not rows:
        return
    charts = () if table.charts is None else table.charts(rows, begin)
    if table.shown is None:
        yield Section(table.name, charts[0].title if charts else table.name, "", {}, [], [], charts)
        return
    how = table.shown
    rows.sort(key=lambda row: [(row[name] is None, row[name]) for name in how.order_by])
    yield Section(table.name, how.title, "", how.columns, rows, [how.cells(row) for row in rows], charts)
