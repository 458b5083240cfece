"""The job behind ``peerd analyze --engine duckdb``: the same tables without Java, of what fits one machine.

A table is written down once, as a DataFrame of Spark. Here `sqlframe` stands in for pyspark, and turns DataFrames into
DuckDB's SQL; so `use_duckdb` comes before any module with tables is imported, and Spark cannot be had in that process.
"""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import re
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from peerd.errors import Bug, PeerdError, Unavailable
from peerd.pipeline.sources import (
    FILE,
    IS_GOOD,
    IS_NEWER,
    NEEDED,
    OF_LINE,
    RAW,
    Sources,
    check_apart,
    nothing_in,
    until_files_stay,
)
from peerd.pipeline.tail import EventFileTail
from peerd.telemetry.schema import SCHEMA_VERSION, Event, columns_of

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection
    from pyspark.sql import DataFrame

    from peerd.front import SparkTable
    from peerd.pipeline.findings import LineCounts, Report

LINE_BYTES_MAX: Final = 2 * 1024 * 1024
"""A longer line is corrupt. DuckDB's buffers are 32 times as long, one for each thread."""
GROUP_ROWS: Final = 32_768
"""Rows that DuckDB holds before it writes them: of its 122,880, with a column for each field of any event, two threads
have more than 1 GiB."""
STAND_IN: Final = "sqlframe"
INTERRUPTED: Final = "Query interrupted"
"""What DuckDB makes of a signal's `KeyboardInterrupt`."""
LINES: Final = "lines"
_TYPES: Final[dict[type, str]] = {bool: "BOOLEAN", int: "BIGINT", float: "DOUBLE", str: "VARCHAR"}
_NO_DELIMITER: Final = "\x01\x02\x03\x04"
"""A line is one column. JSON writes these characters in another way."""
_LINE: Final = "_line"
_FILE_GONE: Final = ("No such file", "No files found")


def use_duckdb() -> None:
    """Let sqlframe stand in for pyspark. Raises `Unavailable` if it or DuckDB is not installed, `Bug` when pyspark has
    been imported before."""
    missing = [name for name in ("duckdb", "sqlframe", "pyarrow") if importlib.util.find_spec(name) is None]
    if missing:
        raise Unavailable(f"{' and '.join(missing)} not installed: pip install 'peerd[duckdb]'")
    if "pyspark" in sys.modules:
        raise Bug("pyspark has been imported: DuckDB's tables need a process of their own")
    import sqlframe

    sqlframe.activate("duckdb")


def threads_of(master: str) -> int | None:
    """The threads of ``local[N]``; ``None``: as many as there are cores. Raises `Unavailable` for another master."""
    found = re.fullmatch(r"local(?:\[(\d+|\*)\])?", master)
    if found is None:
        raise Unavailable(f"{master}: DuckDB works on this machine alone: --master is local[THREADS]")
    return 1 if found[1] is None else None if found[1] == "*" else int(found[1])


@contextlib.contextmanager
def duckdb_connection(threads: int | None, memory: str) -> Iterator[DuckDBPyConnection]:
    """A database of its own for the length of a ``with`` block, in a temporary folder.

    ``memory``: such as ``1g``; what needs more goes to that folder. Raises `Unavailable` where it cannot be opened,
    `PeerdError` for what DuckDB reports inside the block.
    """
    import duckdb

    with _ended_by_signals(), tempfile.TemporaryDirectory(prefix="peerd-duckdb-") as scratch:
        settings: dict[str, Any] = {"memory_limit": _bytes(memory), "temp_directory": scratch}
        settings |= {"preserve_insertion_order": False}
        settings |= {} if threads is None else {"threads": threads}
        try:
            connection = duckdb.connect(str(Path(scratch, "lines.duckdb")), config=settings)
        except duckdb.Error as error:
            raise Unavailable(f"DuckDB does not start: {_first_line(error)}") from error
        try:
            yield connection
        except duckdb.OutOfMemoryException as error:
            raise PeerdError(
                f"DuckDB needs more memory than {memory}: --driver-memory ({_first_line(error)})"
            ) from error
        except duckdb.Error as error:
            raise PeerdError(f"DuckDB failed: {_first_line(error)}") from error
        except RuntimeError as error:
            if str(error) == INTERRUPTED:
                raise KeyboardInterrupt from error
            raise
        finally:
            connection.close()


@contextlib.contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Let what a service manager sends to stop a program do what Ctrl-C does: the temporary folder goes as well."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


def run_on_duckdb(
    connection: DuckDBPyConnection,
    sources: Sources,
    out: str,
    *,
    events: Mapping[str, type[Event]],
    plugin_tables: Sequence[Sequence[SparkTable]],
    wanted: Collection[str] | None = None,
    progress: Callable[[str], None] = lambda step: None,
) -> Report:
    """See `peerd.pipeline.job.run_job`. The sources are of this machine."""
    from peerd.pipeline import tables
    from peerd.pipeline.findings import report_of
    from peerd.pipeline.making import EVENTS, EventTable, TableMaker

    class Events(EventTable):
        """What a table is made of is a view: sqlframe copies the query, each column of it, at every step of a table."""

        def with_columns(self, columns: Sequence[str]) -> DataFrame:
            wanted = ", ".join(f'"{each}"' for each in columns)
            return store.query(f"SELECT {wanted} FROM {LINES} WHERE {IS_GOOD}")

    store = DuckTableStore(connection, Path(out))
    maker = TableMaker(store, plugin_tables, wanted)

    def read() -> tuple[list[str], LineCounts]:
        files = sorted(EventFileTail(sources.paths, sources.has_parts, sources.hours).files())
        if not files:
            raise nothing_in(sources.paths)
        check_apart({name: str(store.path(name).resolve()) for name in maker.names()}, files)
        progress(f"reading {len(files)} files")
        return files, _read(connection, files, events, sources)

    files, counts = until_files_stay(read, _is_gone, progress)
    progress(f"counting {counts.good:,} events")
    duplicates = _leave_out_copies(connection)
    table = store.query(f"SELECT * EXCLUDE ({', '.join(OF_LINE)}) FROM {LINES} WHERE {IS_GOOD}")
    if maker.is_wanted(EVENTS):
        store.write(EVENTS, table)
    progress("making tables")
    try:
        made = maker.make(Events(table, events), store.keep(tables.losses(table, _numbers)))
    except AttributeError as error:
        if STAND_IN not in str(error):
            raise
        raise Unavailable(f"a plugin's table needs Spark ({error}): leave it out with --tables") from error
    return report_of(made, files, counts, duplicates, events)


class DuckTableStore:
    """The tables in a folder of this machine, as DuckDB writes and reads them."""

    def __init__(self, connection: DuckDBPyConnection, out: Path) -> None:
        from sqlframe.duckdb import DuckDBSession

        self._connection, self._out = connection, out
        self._session: Any = DuckDBSession(conn=connection)
        self._numbers = itertools.count()

    def path(self, name: str) -> Path:
        """Where a table is."""
        return self._out / name

    def query(self, sql: str) -> DataFrame:
        """What this query gives."""
        return self._made("VIEW", f"AS {sql}")

    def keep(self, table: DataFrame) -> DataFrame:
        """A table that is not written, computed once."""
        return self._made("TABLE", f"AS {_sql(table)}")

    def _made(self, kind: str, definition: str) -> DataFrame:
        name = f"_{kind.lower()}_{next(self._numbers)}"
        self._connection.execute(f"CREATE {kind} {name} {definition}")
        table = self._connection.table(name)
        # Quoted: sqlframe takes a column's name such as ``values`` for SQL.
        columns = {f"`{column}`": str(type_) for column, type_ in zip(table.columns, table.types, strict=True)}
        self._session.catalog.add_table(name, columns)
        found: DataFrame = self._session.table(name)
        return found

    def write(self, name: str, table: DataFrame) -> DataFrame:
        """See `peerd.pipeline.making.Tables`."""
        query = self._connection.sql(_sql(table))
        # Sums of integers are wider than any integer of Parquet.
        columns = (
            f'"{column}"' if str(kind) != "HUGEINT" else f'CAST("{column}" AS BIGINT) AS "{column}"'
            for column, kind in zip(query.columns, query.types, strict=True)
        )
        new = self.path(f"_new_{name}")
        shutil.rmtree(new, ignore_errors=True)
        new.mkdir(parents=True)
        file = _quoted(str(new / "part-0.parquet"))
        wanted = f"SELECT {', '.join(columns)} FROM ({query.sql_query()})"
        self._connection.execute(f"COPY ({wanted}) TO {file} (ROW_GROUP_SIZE {GROUP_ROWS})")
        self.remove(name)
        new.rename(self.path(name))
        return self.query(f"SELECT * FROM read_parquet({_quoted(str(self.path(name) / '*.parquet'))})")

    def remove(self, name: str) -> None:
        """See `peerd.pipeline.making.Tables`."""
        shutil.rmtree(self.path(name), ignore_errors=True)

    def frame(self, rows: Iterable[tuple[object, ...]], columns: str) -> DataFrame:
        """See `peerd.pipeline.making.Tables`."""
        name, rows = f"_rows_{next(self._numbers)}", list(rows)
        self._connection.execute(f"CREATE TABLE {name} ({columns})")
        if rows:
            places = ", ".join("?" for _ in rows[0])
            self._connection.executemany(f"INSERT INTO {name} VALUES ({places})", rows)
        return self.query(f"SELECT * FROM {name}")


def _read(
    connection: DuckDBPyConnection, files: Sequence[str], events: Mapping[str, type[Event]], sources: Sources
) -> LineCounts:
    """Read these files into the table `LINES`, with the columns of `peerd.pipeline.lines.parse`."""
    from peerd.pipeline.findings import CORRUPT_FILES_MAX, LineCounts

    columns = {name: _TYPES[kind] for name, kind in columns_of(events).items()}
    form = ", ".join(f'"{name}": "{kind}"' for name, kind in columns.items())
    times = [f"ts >= {sources.since_s!r}"] if sources.since_s is not None else []
    times += [f"ts < {sources.until_s!r}"] if sources.until_s is not None else []
    for name in ("reject_errors", "reject_scans", LINES):
        connection.execute(f"DROP TABLE IF EXISTS {name}")
    connection.execute(
        f"""
        CREATE TABLE {LINES} AS
        WITH parsed AS (
            SELECT filename, {_LINE},
                unnest(json_transform(CASE WHEN json_valid({_LINE}) THEN {_LINE} END, '{{{form}}}'))
            FROM read_csv(
                [{", ".join(map(_quoted, files))}], columns = {{'{_LINE}': 'VARCHAR'}}, auto_detect = false,
                header = false, delim = '{_NO_DELIMITER}', quote = '', escape = '', strict_mode = false,
                filename = true, max_line_size = {LINE_BYTES_MAX}, ignore_errors = true, store_rejects = true
            ) WHERE length(trim({_LINE})) > 0
        ), judged AS (
            SELECT *,
                {" AND ".join(f"{name} IS NOT NULL" for name in NEEDED)} AS {IS_GOOD},
                {IS_GOOD} AND event NOT IN ({", ".join(map(_quoted, events))}) AS _is_foreign,
                {IS_GOOD} AND schema_version > {SCHEMA_VERSION} AS {IS_NEWER}
            FROM parsed
        )
        SELECT {", ".join(f'"{name}"' for name in columns)},
            CASE WHEN _is_foreign OR {IS_NEWER} THEN {_LINE}::JSON::VARIANT END AS {RAW},
            filename AS {FILE}, {IS_GOOD}, {IS_NEWER}
        FROM judged WHERE {" AND ".join(f"(NOT {IS_GOOD} OR {each})" for each in times) or "true"}
        """
    )
    # What is no text at all, or too long, is a line as well.
    corrupt = f"""
        SELECT {FILE} AS file, count(*) AS corrupt FROM (
            SELECT {FILE} FROM {LINES} WHERE NOT {IS_GOOD}
            UNION ALL
            SELECT file_path FROM (SELECT DISTINCT scan_id, file_id, line FROM reject_errors)
            JOIN reject_scans USING (scan_id, file_id)
        ) GROUP BY file
    """
    rows = connection.execute(f"{corrupt} ORDER BY corrupt DESC, file").fetchall()
    good, newer = _row(connection, f"SELECT count(*), count_if({IS_NEWER}) FROM {LINES} WHERE {IS_GOOD}")
    worst = [{"file": file, "corrupt": count} for file, count in rows[:CORRUPT_FILES_MAX]]
    return LineCounts(good + sum(count for _, count in rows), good, newer, worst)


def _leave_out_copies(connection: DuckDBPyConnection) -> int:
    """Leave each event in `LINES` once; returns how many were too many."""
    same = f"""
        SELECT node, boot FROM {LINES} WHERE {IS_GOOD} GROUP BY node, boot HAVING count(*) > count(DISTINCT id)
    """
    copies = f"""
        SELECT rowid AS row, row_number() OVER (PARTITION BY node, boot, id ORDER BY {FILE}, rowid) AS number
        FROM {LINES} SEMI JOIN ({same}) USING (node, boot) WHERE {IS_GOOD}
    """
    (left_out,) = _row(connection, f"DELETE FROM {LINES} WHERE rowid IN (SELECT row FROM ({copies}) WHERE number > 1)")
    return int(left_out)


def _numbers(marked: DataFrame) -> DataFrame:
    """See `peerd.pipeline.tables.numbers_as_bits`; one group an incarnation is enough here."""
    from pyspark.sql import functions as F

    from peerd.pipeline.tables import number_ends

    ids = (F.countDistinct(name).alias(f"{name}s") for name in ("id", "own_id"))
    return marked.groupBy("node", "boot").agg(*ids, *number_ends())


def _sql(table: Any) -> str:
    return str(table.sql("duckdb", pretty=False))


def _row(connection: DuckDBPyConnection, sql: str) -> tuple[Any, ...]:
    found: tuple[Any, ...] | None = connection.execute(sql).fetchone()
    assert found is not None
    return found


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _bytes(memory: str) -> str:
    """A size as Spark takes it, such as ``1g``, as DuckDB takes it."""
    found = re.fullmatch(r"(\d+)([kmgt]?)b?", memory.lower())
    if found is None:
        raise Unavailable(f"{memory}: expected a size such as 512m or 4g: --driver-memory")
    return f"{found[1]}{found[2].upper()}iB" if found[2] else f"{found[1]}B"


def _is_gone(error: Exception) -> bool:
    return any(words in str(error) for words in _FILE_GONE)


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0]
