"""What a daemon keeps across restarts, and the lock on all of it.

Boot epoch, known peers, tokens, the CA's notices and the plugins' small stores are tables of one SQLite file,
``state.db`` (`peerd.daemon.storage.database`): they belong to this directory, and one lock is on all of them.
A damaged file is set aside, not fatal. Plugins' logs are files of their own (`peerd.daemon.storage.log_files`), and so
are keys and certificates, which other tools read, too (`peerd.identity.node_identity`).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

from peerd.api import Metric
from peerd.daemon.storage.database import (
    Damaged,
    Database,
    OtherVersion,
    make_database,
    open_database,
    read_wal,
    salvage,
    wal_of,
)
from peerd.daemon.storage.log_files import Work, open_log
from peerd.daemon.storage.plugin_files import PluginFiles
from peerd.daemon.storage.plugin_store import PluginStore
from peerd.daemon.storage.state_table import StateTable
from peerd.daemon.storage.tables import NUMBERS, PEERS, TRUSTED_TABLES, Row, TableSchema
from peerd.errors import Bug, ConfigError, Unavailable
from peerd.ids import format_id, parse_id
from peerd.lib.group_log import LOG_NAME, GroupLog
from peerd.limits import HOST_LENGTH_MAX, KNOWN_PEERS_MAX, LOGS_PER_PLUGIN_MAX
from peerd.messages import PeerRef
from peerd.system.durable_files import sync_directory

STATE_REPAIRS: Final = Metric(
    "peerd_state_repairs", "gauge", "Damages of the state directory that the last start found and set aside or mended."
)
DATABASE_FILE: Final = "state.db"
CORRUPT_FILES_MAX: Final = 8
"""Damaged files kept for inspection, of each state file."""

_PLUGIN_NAME: Final = re.compile(r"[a-z][a-z0-9_-]{0,63}")
_EPOCH: Final = "boot_epoch"
_EPOCH_MAX: Final = 2**63 - 1


class StateDirectory:
    """One daemon's state directory, locked from construction until `close`.

    ``wall_time`` gives Unix seconds. What went wrong without stopping us is appended to ``warnings``, one line each.
    Raises `ConfigError` when the directory cannot be made or written, or another daemon holds it. The database is
    opened when something of it is asked for first: that raises `ConfigError` when it cannot be used, and `Unavailable`
    when the disk is full. Changes raise `Unavailable` when the disk refuses (full, read-only): nothing changed then.
    """

    def __init__(self, path: Path, *, wall_time: Callable[[], float] = time.time) -> None:
        self.path = path
        self.warnings: list[str] = []
        self.closed_off = ""
        """Says that others could open the directory until now, if they could: that is no damage."""
        self._wall_time = wall_time
        self._boot_epoch: int | None = None
        self._opened: Database | None = None
        self._tables: dict[str, StateTable] = {}
        self._stores: dict[str, PluginStore] = {}
        self._logs: dict[tuple[str, str], GroupLog] = {}
        self._make_private()
        self._lock: int | None = self._take_lock()
        self._remove_temporary_files()

    def __enter__(self) -> StateDirectory:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close everything and release the lock. Idempotent; the kernel releases it when the process dies."""
        for (plugin, name), log in self._logs.items():
            try:
                log.close()
            except Unavailable as error:
                self.warnings.append(f"log {name} of {plugin}: what was appended last is lost: {error}")
        self._logs.clear()
        if self._opened is not None:
            self._opened.close()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    # Boot epoch -----------------------------------------------------------------------------------------

    def boot_epoch(self) -> int:
        """This start's number: larger than every earlier one's, and on disk before it is returned first.

        ``max(persisted + 1, Unix milliseconds)``: it grows across restarts with a wrong clock, and across a lost file
        with a right one. Raises `Unavailable` when it cannot be made durable.
        """
        if self._boot_epoch is None:
            numbers = self.table(NUMBERS)
            persisted = max(numbers.load(_parse_epoch), default=0)
            epoch = max(persisted + 1, int(self._wall_time() * 1000))
            numbers.replace([(_EPOCH, epoch)])
            self._boot_epoch = epoch
        return self._boot_epoch

    # Tables ---------------------------------------------------------------------------------------------

    def table(self, table: TableSchema) -> StateTable:
        """One table, for its owner: always the same object for a table."""
        if table.name not in self._tables:
            self._tables[table.name] = StateTable(self._database, table, self.warnings)
        return self._tables[table.name]

    def load_known_peers(self) -> list[PeerRef]:
        """The peers that an earlier run saved, in the order in which it saved them."""
        return self.table(PEERS).load(_parse_known_peer)[:KNOWN_PEERS_MAX]

    def save_known_peers(self, peers: Iterable[PeerRef]) -> None:
        """Replace the list; only the first ``KNOWN_PEERS_MAX`` are kept, so give the best ones first."""
        rows = [(position, format_id(peer.id), peer.host, peer.port) for position, peer in enumerate(peers)]
        self.table(PEERS).replace(rows[:KNOWN_PEERS_MAX])

    def plugin_store(self, plugin: str) -> PluginStore:
        """The durable key-value store of a plugin: always the same object for a name. Raises ``ValueError``."""
        if _PLUGIN_NAME.fullmatch(plugin) is None:
            raise ValueError(f"not a plugin name: {plugin!r}")
        if plugin not in self._stores:
            self._stores[plugin] = PluginStore(self._database, plugin)
        return self._stores[plugin]

    # Plugin logs ----------------------------------------------------------------------------------------

    def plugin_log(self, plugin: str, name: str, work: Work) -> GroupLog:
        """A plugin's log, always the same object for a name; ``work`` runs its writes off the loop.

        Raises `Unavailable` for one too many or one that cannot be read, `Bug` for a bad name.
        """
        if _PLUGIN_NAME.fullmatch(plugin) is None or LOG_NAME.fullmatch(name) is None:
            raise Bug(f"not names of a plugin and a log: {plugin!r}, {name!r}")
        log = self._logs.get((plugin, name))
        if log is None:
            folder = self.path / "logs" / plugin / name
            others = {path.name for path in folder.parent.glob("*")} - {name}
            if len(others) >= LOGS_PER_PLUGIN_MAX:
                raise Unavailable(f"{plugin} has {len(others)} logs, limit {LOGS_PER_PLUGIN_MAX}")
            log, warnings = open_log(folder, work)
            self.warnings += warnings
            self._logs[plugin, name] = log
        return log

    def plugin_files(self, plugin: str, work: Work) -> PluginFiles:
        """The large files of one plugin. ``work`` runs a job after the other in a thread."""
        if not _PLUGIN_NAME.fullmatch(plugin):
            raise Bug(f"not a plugin name: {plugin!r}")
        return PluginFiles(self.path / "files" / plugin, work)

    # Files ----------------------------------------------------------------------------------------------

    @property
    def _database(self) -> Database:
        if self._opened is None:
            self._opened = self._open()
        return self._opened

    def _open(self) -> Database:
        path = self.path / DATABASE_FILE
        if not os.path.lexists(path):
            wal_of(path).unlink(missing_ok=True)
            make_database(path, ())
        wal = read_wal(path)
        try:
            database = open_database(path)
        except OtherVersion as error:
            self._set_aside(path, f"{error}; starting without it")
            make_database(path, ())
            return open_database(path)
        except Damaged as error:
            return self._repaired(path, str(error), TRUSTED_TABLES if wal else ())
        if database.torn_bytes:
            aside = self._keep(wal_of(path), wal)
            what = f"{database.torn_bytes} bytes hold no whole change: a crash cut them off, or they are damaged"
            self.warnings.append(f"{wal_of(path)}: {what}; it is now {aside.name}")
        if database.lost_changes > 1:  # a crash may cut one; more than that had been reported as durable
            for table in TRUSTED_TABLES:
                database.change(table, removed=list(database.checksums(table)))
            self.warnings.append(
                f"{path}: {database.lost_changes} changes are lost; so that no token comes back that was revoked or "
                "used up, there is none left: make new ones"
            )
        return database

    def _repaired(self, path: Path, reason: str, without: Sequence[TableSchema]) -> Database:
        """Put a file with every good row of a damaged one in its place.

        ``without``: tables to leave out, because the newest of their changes may have been in a damaged log.
        """
        kept = 0

        def good() -> Iterator[tuple[TableSchema, Row]]:
            nonlocal kept
            for table, row in salvage(path):
                if table not in without:
                    kept += 1
                    yield table, row

        repaired = path.with_name(f".{path.name}.repaired.tmp")
        make_database(repaired, good())
        self._set_aside(path, f"{reason}; keeping the {kept} rows that are as they were written")
        repaired.replace(path)
        sync_directory(path.parent)
        return open_database(path)

    def _set_aside(self, path: Path, reason: str) -> None:
        """Keep a damaged file for inspection under a name that is not read, and say so."""
        aside = self._aside(path)
        try:
            aside.hardlink_to(path)  # the damaged file keeps its name until its successor replaces it
            if wal_of(path).exists():
                wal_of(path).rename(self._aside(wal_of(path)))
        except OSError as error:
            raise ConfigError(f"damaged ({reason}) and cannot be set aside", file=str(path)) from error
        self.warnings.append(f"{path}: {reason}; the damaged file is now {aside.name}")
        self._remove_outdated(path)

    def _keep(self, path: Path, content: bytes) -> Path:
        aside = self._aside(path)
        with contextlib.suppress(OSError):  # for inspection only: a full disk is no obstacle
            aside.write_bytes(content)
        self._remove_outdated(path)
        return aside

    def _aside(self, path: Path) -> Path:
        return path.with_name(f"{path.name}.corrupt-{int(self._wall_time() * 1000)}")

    def _remove_outdated(self, path: Path) -> None:
        for outdated in sorted(path.parent.glob(f"{path.name}.corrupt-*"))[:-CORRUPT_FILES_MAX]:
            outdated.unlink(missing_ok=True)

    def _make_private(self) -> None:
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            mode = stat.S_IMODE(self.path.stat().st_mode)
            if mode & 0o077:
                self.path.chmod(0o700)
                self.closed_off = f"{self.path}: was open to other users (mode {mode:04o}), is 0700 now"
        except OSError as error:
            raise ConfigError(
                f"cannot use it as the state directory: {error.strerror}", file=str(self.path), key="node.state_dir"
            ) from error

    def _take_lock(self) -> int:
        path = self.path / "lock"
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            hint = _owner_hint(self.path) if isinstance(error, PermissionError) else ""
            raise ConfigError(f"cannot open the lock file: {error.strerror}{hint}", file=str(path)) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.read(descriptor, 32).decode("ascii", "replace").strip()
            os.close(descriptor)
            raise ConfigError(
                f"another daemon (process {holder or 'unknown'}) uses this state directory",
                file=str(self.path),
                key="node.state_dir",
            ) from error
        with contextlib.suppress(OSError):  # the process id is only for error messages: the lock holds without it
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, b"%d\n" % os.getpid(), 0)
        return descriptor

    def _remove_temporary_files(self) -> None:
        for leftover in sorted([*self.path.glob(".*.tmp"), *self.path.glob(".*.tmp-*")]):
            leftover.unlink(missing_ok=True)


def _owner_hint(path: Path) -> str:
    """Name the directory's owner and our own user, by number, when they differ: that explains most refusals."""
    owner, own = path.stat().st_uid, os.geteuid()
    return "" if owner == own else f"; the directory is user {owner}'s, this daemon runs as {own}"


def _parse_epoch(row: Row) -> int:
    match row:
        case (str(name), int(epoch)) if name == _EPOCH and 0 <= epoch < _EPOCH_MAX:
            return epoch
    raise ValueError("the boot epoch is a number that is not negative")


def _parse_known_peer(row: Row) -> PeerRef:
    match row:
        case (int(), str(identifier), str(host), int(port)):
            if 0 < len(host) <= HOST_LENGTH_MAX and host.isascii() and 0 < port < 65536:
                return PeerRef(parse_id(identifier), host, port)
    raise ValueError("a peer is a position, an id, a host and a port")
