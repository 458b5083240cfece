"""``state.db``: one SQLite file, made, checked, repaired and written so that no crash and no damage goes unnoticed.

Every change is one transaction in the write-ahead log (WAL mode, ``synchronous = FULL``): one sync of the disk, and it
is durable. The log is written into the file once it is large, when the file is opened, and when it is closed. A file
of another version, or a damaged one, is set aside; of a damaged one every row whose checksum is right is kept.
Recovery, torn writes and locking are SQLite's: https://www.sqlite.org/atomiccommit.html, https://www.sqlite.org/wal.html.
"""

from __future__ import annotations

import os
import sqlite3
import stat
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from struct import Struct
from typing import Final

from peerd.daemon.storage.tables import FORMAT_VERSION, TABLES, Row, TableSchema
from peerd.errors import ConfigError, Unavailable
from peerd.limits import MIB
from peerd.system.durable_files import sync_directory

PAGE_BYTES: Final = 4096
CACHE_KIB: Final = 256
"""SQLite's page cache: what is kept is small, and a daemon at rest should be, too."""
WAL_BYTES_MAX: Final = 2 * MIB
"""With more in the write-ahead log, a thread writes it into the file: some 50 ms, once in a few hundred changes."""
WAL_OVER_MAX: Final = 4
"""With so many times as much, the next change does that itself and waits: the thread was not fast enough."""
BUSY_TIMEOUT_S: Final = 1.0
"""How long an operator's ``sqlite3`` may hold the file while a daemon starts."""

_APPLICATION_ID: Final = int.from_bytes(b"prd\x01", "big")
_IS_STRICT: Final = sqlite3.sqlite_version_info >= (3, 37)
_SETTINGS: Final = (
    "synchronous = FULL",
    f"cache_size = -{CACHE_KIB}",
    "wal_autocheckpoint = 0",  # we decide when, and truncate the log afterwards
    "secure_delete = ON",  # so that damage cannot bring a replaced row back
    "cell_size_check = ON",
    "trusted_schema = OFF",
    "temp_store = MEMORY",
)
_WAL_HEADER_BYTES: Final = 32
_WAL_FRAME: Final = Struct(">II8s8x")
_WAL_FRAME_BYTES: Final = _WAL_FRAME.size + PAGE_BYTES
_OF_THE_DISK: Final = {
    sqlite3.SQLITE_PERM: "Permission denied",
    sqlite3.SQLITE_BUSY: "another process has it open",
    sqlite3.SQLITE_LOCKED: "another process has it open",
    sqlite3.SQLITE_NOMEM: "Cannot allocate memory",
    sqlite3.SQLITE_READONLY: "it cannot be written: permissions, or a read-only file system",
    sqlite3.SQLITE_IOERR: "the disk refuses (input/output error, or a limit on file sizes)",
    sqlite3.SQLITE_FULL: "No space left on device",
    sqlite3.SQLITE_CANTOPEN: "it, or a file beside it, cannot be opened",
}
"""Errors of the disk, which do not mean that the file's content is damaged."""


class Damaged(Exception):
    """The file's content is not what was written. The text says how that was found."""


class OtherVersion(Exception):
    """A version of peerd with other tables wrote the file."""


class Database:
    """The open file. Methods may be called in any thread; each change is durable before it returns.

    A change that raises `Unavailable` has changed nothing. ``lost_changes``: how many durable changes the write-ahead
    log had held and damage has made unreadable; ``torn_bytes``: how much of it was no whole change.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lost_changes = 0
        self.torn_bytes = 0
        self._lock = threading.Lock()
        self._is_emptying = False
        self._wal = wal_of(path)
        wal = read_wal(path)
        self._connection = _connect(path)
        try:
            self._begin(wal)
            _check(self._connection, path)
        except BaseException:
            self._connection.close()
            raise

    def close(self) -> None:
        """Write the log into the file, and close it. Idempotent; what was changed is durable already."""
        with self._lock:
            self._connection.close()

    # Reading

    def rows(self, table: TableSchema, prefix: Row = ()) -> list[Row]:
        """Every row whose key begins with ``prefix``, in the order of keys. Raises `Unavailable`."""
        text = f"SELECT {table.names} FROM {table.name} WHERE {table.matches(len(prefix))} ORDER BY {table.key}"
        with self._lock, self._told("read"):
            return self._connection.execute(text, prefix).fetchall()

    def checksums(self, table: TableSchema) -> dict[Row, int]:
        """The checksum of every row, by the row's key. Raises `Unavailable`."""
        with self._lock, self._told("read"):
            found = self._connection.execute(f"SELECT {table.key}, checksum FROM {table.name}").fetchall()
        return {row[:-1]: row[-1] for row in found}

    # Changing

    def change(self, table: TableSchema, put: Iterable[Row] = (), removed: Iterable[Row] = ()) -> None:
        """Remove rows by their keys, then put others, in the place of those with the same key: all or nothing."""
        marks = "?, " * len(table.columns)
        remove = f"DELETE FROM {table.name} WHERE {table.matches(table.key_length)}"
        insert = f"INSERT OR REPLACE INTO {table.name} ({table.names}, checksum) VALUES ({marks}?)"
        with self._lock, self._told("write"):
            with _transaction(self._connection):
                self._connection.executemany(remove, removed)
                self._connection.executemany(insert, ((*row, table.checksum(row)) for row in put))
            size = self._wal.stat().st_size if self._wal.exists() else 0
            if size > WAL_OVER_MAX * WAL_BYTES_MAX:
                self._empty_log()
        if size > WAL_BYTES_MAX and not self._is_emptying:
            self._is_emptying = True
            threading.Thread(target=self._empty_log_aside, name="peerd-state", daemon=True).start()

    # Inside

    def _begin(self, wal: bytes) -> None:
        """Take the exclusive lock, apply what a crash left in the write-ahead log, and count what is unreadable in it.

        The lock comes first: then there is no index of the log in shared memory, and no third file.
        """
        ask = self._connection.execute
        ask("PRAGMA locking_mode = EXCLUSIVE")
        _check_kind(self._connection)
        if ask("PRAGMA journal_mode = WAL").fetchone()[0] != "wal":
            raise Damaged("it has no write-ahead log")
        for setting in _SETTINGS:
            ask(f"PRAGMA {setting}")
        with _transaction(self._connection):
            pass  # raises here, and not at the first change, when the file cannot be written
        applied = ask("PRAGMA wal_checkpoint(PASSIVE)").fetchone()[1] if wal else 0
        self.torn_bytes = max(0, len(wal) - _WAL_HEADER_BYTES - applied * _WAL_FRAME_BYTES) if wal else 0
        self.lost_changes = lost_changes(wal, applied)
        if wal:
            ask("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    def _empty_log(self) -> None:
        """Write the log into the file. What it holds is durable, and the next change will try again if this fails."""
        with suppress(sqlite3.OperationalError):
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    def _empty_log_aside(self) -> None:
        """Off the event loop, which waits for it only if it wants to change or read something meanwhile."""
        with self._lock, suppress(sqlite3.ProgrammingError):  # the database may be closed by now
            self._empty_log()
        self._is_emptying = False

    @contextmanager
    def _told(self, verb: str) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise Unavailable(f"cannot {verb} {self.path}: {_reason(error)}") from error


def open_database(path: Path) -> Database:
    """Open a file that `make_database` made. Raises `Damaged`, `OtherVersion`, and `ConfigError` for other obstacles.

    Raises `Unavailable` when the disk is so full that not even the file's own log can be written back.
    """
    if not stat.S_ISREG(path.lstat().st_mode):
        raise ConfigError("it is a directory or something else that is no file; move it away", file=str(path))
    try:
        _check_head(path)
        return Database(path)
    except OSError as error:
        raise ConfigError(f"cannot read the state file: {error.strerror}", file=str(path)) from error
    except UnicodeDecodeError as error:  # even SQLite's message about it cannot be decoded
        raise Damaged("its tables are others") from error
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF
        if code == sqlite3.SQLITE_FULL:
            raise Unavailable(f"cannot write {path}: {_reason(error)}") from error
        if code in _OF_THE_DISK:
            raise ConfigError(f"cannot use the state file: {_reason(error)}", file=str(path)) from error
        raise Damaged(str(error)) from error


def make_database(path: Path, rows: Iterable[tuple[TableSchema, Row]]) -> None:
    """Make the file with these rows, or put one in the place of another, whole or not at all. Raises `Unavailable`.

    A write-ahead log beside the old file must be removed before: SQLite would apply it to the new file.
    """
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        _remove(temporary)
        os.close(os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))
        _fill(temporary, rows)
        _sync(temporary)
        temporary.replace(path)
        sync_directory(path.parent)
    except (OSError, sqlite3.Error) as error:
        reason = error.strerror if isinstance(error, OSError) else _reason(error)
        raise Unavailable(f"cannot write {path}: {reason}") from error
    finally:
        _remove(temporary)


def salvage(path: Path) -> Iterator[tuple[TableSchema, Row]]:
    """Every row of a damaged file that can be read and whose checksum is right, each once.

    Each table is read from both ends, because reading stops at the first page that makes no sense.
    """
    try:
        connection = _connect(path)
    except sqlite3.Error:
        return
    try:
        for table in TABLES:
            seen: set[Row] = set()
            for order in ("ASC", "DESC"):
                for row in _readable(connection, table, order):
                    if row[: table.key_length] not in seen:
                        seen.add(row[: table.key_length])
                        yield table, row
    finally:
        connection.close()


def wal_of(path: Path) -> Path:
    """The write-ahead log beside a database."""
    return path.with_name(f"{path.name}-wal")


def read_wal(path: Path) -> bytes:
    """Read the log that a crash left beside a database. Only before SQLite opens it: closing a file drops its locks."""
    try:
        return wal_of(path).read_bytes()
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise ConfigError(f"cannot read it: {error.strerror}", file=str(wal_of(path))) from error


def lost_changes(wal: bytes, applied: int) -> int:
    """How many whole changes a write-ahead log holds behind the ``applied`` pages that SQLite could make out.

    The end of a change is marked in the page's header. A crash may have cut the last change, which had not been
    reported as durable; if more are lost, the log is damaged. If its first bytes are damaged, all of it counts.
    """
    lost, salt = 0, b""
    for start in range(_WAL_HEADER_BYTES, len(wal) - _WAL_FRAME_BYTES + 1, _WAL_FRAME_BYTES):
        _, pages, own_salt = _WAL_FRAME.unpack_from(wal, start)
        salt = salt or own_salt
        is_behind = start >= _WAL_HEADER_BYTES + applied * _WAL_FRAME_BYTES
        lost += is_behind and pages > 0 and own_salt == salt
    return lost


def _connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(
        path, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False, cached_statements=32
    )
    connection.text_factory = lambda raw: raw.decode("utf-8", "replace")  # the checksum shows damage
    return connection


def _remove(path: Path) -> None:
    for leftover in (path, wal_of(path)):
        leftover.unlink(missing_ok=True)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _fill(path: Path, rows: Iterable[tuple[TableSchema, Row]]) -> None:
    connection = _connect(path)
    try:
        ask = connection.execute
        ask(f"PRAGMA page_size = {PAGE_BYTES}")
        ask("PRAGMA journal_mode = MEMORY")  # a crash loses only this file, which has no name yet
        ask("PRAGMA synchronous = OFF")
        with _transaction(connection):
            ask(f"PRAGMA application_id = {_APPLICATION_ID}")
            ask(f"PRAGMA user_version = {FORMAT_VERSION}")
            for table in TABLES:
                ask(table.definition(_IS_STRICT))
            for table, row in rows:
                marks = "?, " * len(row)
                ask(f"INSERT OR REPLACE INTO {table.name} VALUES ({marks}?)", (*row, table.checksum(row)))
        ask("PRAGMA journal_mode = WAL")
    finally:
        connection.close()


def _check_head(path: Path) -> None:
    """Check the two bytes for the file format's version: SQLite takes damaged ones for a later format's, and obeys."""
    with path.open("rb") as file:
        head = file.read(20)
    if head[18:] != b"\x02\x02":
        raise Damaged("its first bytes are not a state file's")


def _check_kind(connection: sqlite3.Connection) -> None:
    if connection.execute("PRAGMA application_id").fetchone()[0] != _APPLICATION_ID:
        raise Damaged("it is no state file of peerd")
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if version != FORMAT_VERSION:
        raise OtherVersion(f"format version {version}, this peerd reads {FORMAT_VERSION}")


def _check(connection: sqlite3.Connection, path: Path) -> None:
    """Raises `Damaged`, or ``sqlite3.Error`` for what SQLite finds by itself."""
    found = dict(connection.execute("SELECT name, sql FROM sqlite_schema").fetchall())
    if found != {table.name: table.definition(_IS_STRICT) for table in TABLES}:
        raise Damaged("its tables are others")
    if (verdict := connection.execute("PRAGMA quick_check(1)").fetchone()[0]) != "ok":
        raise Damaged(verdict.replace("\n", " "))
    pages = connection.execute("PRAGMA page_count").fetchone()[0]
    if (size := path.stat().st_size) != pages * PAGE_BYTES:
        raise Damaged(f"it has {size} bytes, and {pages} pages of {PAGE_BYTES}")
    for table in TABLES:
        for *row, checksum in connection.execute(f"SELECT * FROM {table.name}"):
            if table.checksum(row) != checksum:
                raise Damaged(f"a row of {table.name} is not as it was written")


def _readable(connection: sqlite3.Connection, table: TableSchema, order: str) -> Iterator[Row]:
    keys = ", ".join(f"{name} {order}" for name, _ in table.columns[: table.key_length])
    try:
        for *row, checksum in connection.execute(f"SELECT {table.names}, checksum FROM {table.name} ORDER BY {keys}"):
            if table.checksum(row) == checksum:
                yield tuple(row)
    except (sqlite3.Error, UnicodeDecodeError):
        return  # nothing more can be read from this side


@contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[None]:
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _reason(error: sqlite3.Error) -> str:
    return _OF_THE_DISK.get(getattr(error, "sqlite_errorcode", 0) & 0xFF) or str(error)
