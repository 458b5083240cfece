"""What a daemon keeps across restarts: boot epoch, known peers, plugin stores; and the lock on all of it.

Small files are replaced as a whole (temporary file, fsync, rename, fsync of the directory): after a crash a file is
entirely old or entirely new. Each starts with a line ``peerd-state <version> <SHA-256 of the rest>``, so that
damage shows; a damaged file is set aside, not fatal. The node's key is not among them: see
`peerd.identity.node_identity`.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import stat
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final, TypeVar

from peerd.daemon.storage.log_files import Work, open_log
from peerd.daemon.storage.plugin_store import STORE_BYTES_MAX, DamagedStore, PluginStore, read_store
from peerd.errors import Bug, ConfigError, Unavailable
from peerd.ids import format_id, parse_id
from peerd.lib.group_log import LOG_NAME, GroupLog
from peerd.limits import HOST_LENGTH_MAX, KNOWN_PEERS_MAX, LOGS_PER_PLUGIN_MAX
from peerd.messages import PeerRef
from peerd.system.durable_files import write_atomically

STORE_FILE_BYTES_MAX: Final = 3 * STORE_BYTES_MAX
"""A store's log holds at most as many outdated bytes as live ones, and some slack."""
CORRUPT_FILES_MAX: Final = 8
"""Damaged files kept for inspection, of each state file."""
FORMAT_VERSION: Final = 1

_MAGIC: Final = b"peerd-state"
_HEADER: Final = re.compile(rb"peerd-state ([0-9]{1,4}) ([0-9a-f]{64})\n")
_HEADER_BYTES_MAX: Final = 96
_PLUGIN_NAME: Final = re.compile(r"[a-z][a-z0-9_-]{0,63}")
_EPOCH_MAX: Final = 2**63 - 1
Value = TypeVar("Value")


class StateDirectory:
    """One daemon's state directory, locked from construction until `close`.

    ``wall_time`` gives Unix seconds. What went wrong without stopping us is appended to ``warnings``, one line each.
    Raises `ConfigError` when the directory cannot be made or written, or another daemon holds it. Writes raise
    `Unavailable` when the disk refuses (full, read-only); the file on disk is then the old one.
    """

    def __init__(self, path: Path, *, wall_time: Callable[[], float] = time.time) -> None:
        self.path = path
        self.warnings: list[str] = []
        self._wall_time = wall_time
        self._boot_epoch: int | None = None
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
        """Close the stores and give the lock back. Idempotent; the kernel does it too when the process dies."""
        for store in self._stores.values():
            store.close()
        for (plugin, name), log in self._logs.items():
            try:
                log.close()
            except Unavailable as error:
                self.warnings.append(f"log {name} of {plugin}: what was appended last is lost: {error}")
        self._logs.clear()
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
            persisted = self.load("boot-epoch", 32, _parse_epoch)
            epoch = max((persisted or 0) + 1, int(self._wall_time() * 1000))
            self.write("boot-epoch", b"%d\n" % epoch)
            self._boot_epoch = epoch
        return self._boot_epoch

    # Known peers ----------------------------------------------------------------------------------------

    def load_known_peers(self) -> list[PeerRef]:
        """Peers of an earlier life, in the order saved; empty when there is no (usable) file."""
        return self.load("known-peers.json", KNOWN_PEERS_MAX * 512, _parse_known_peers) or []

    def save_known_peers(self, peers: Iterable[PeerRef]) -> None:
        """Replace the list; only the first ``KNOWN_PEERS_MAX`` are kept, so give the best ones first."""
        rows = [{**asdict(peer), "id": format_id(peer.id)} for peer in peers][:KNOWN_PEERS_MAX]
        self.write("known-peers.json", json.dumps(rows, indent=1).encode())

    # Plugin stores --------------------------------------------------------------------------------------

    def plugin_store(self, plugin: str) -> PluginStore:
        """The durable key-value store of a plugin: always the same object for a name. Raises ``ValueError``.

        Of a damaged file, what came before the damage is kept (an earlier state of the store), with a warning.
        """
        if _PLUGIN_NAME.fullmatch(plugin) is None:
            raise ValueError(f"not a plugin name: {plugin!r}")
        if plugin not in self._stores:
            path = self.path / f"store-{plugin}.log"
            content = self._read(path, STORE_FILE_BYTES_MAX)
            try:
                self._stores[plugin] = PluginStore(path, {} if content is None else read_store(content))
            except DamagedStore as error:
                self._set_aside(path, f"{error}; keeping the {len(error.entries)} entries before it")
                self._stores[plugin] = PluginStore.rewritten(path, error.entries)
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

    # Files ----------------------------------------------------------------------------------------------

    def write(self, name: str, body: bytes) -> None:
        """Replace the state file ``name`` atomically and durably. Raises `Unavailable`; the old file then stays."""
        header = b"%s %d %s\n" % (_MAGIC, FORMAT_VERSION, hashlib.sha256(body).hexdigest().encode())
        try:
            write_atomically(self.path / name, header + body)
        except OSError as error:
            raise Unavailable(f"cannot write {self.path / name}: {error.strerror}") from error

    def load(self, name: str, size_max: int, parse: Callable[[bytes], Value]) -> Value | None:
        """Read and check a state file; ``None`` when there is none, or none that can be used.

        ``parse`` raises ``ValueError`` for a damaged one, which is then set aside with a warning.
        """
        path = self.path / name
        content = self._read(path, size_max + _HEADER_BYTES_MAX)
        if content is None:
            return None
        try:
            return parse(_unwrap(content, size_max + _HEADER_BYTES_MAX))
        except ValueError as error:
            self._set_aside(path, f"{error}; starting without it")
            path.unlink()
            return None

    def _read(self, path: Path, size_max: int) -> bytes | None:
        """The content, cut one byte above ``size_max`` (so that "too large" shows), or ``None`` without a file."""
        try:
            with path.open("rb") as file:
                return file.read(size_max + 1)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise ConfigError(f"cannot read the state file: {error.strerror}", file=str(path)) from error

    def _set_aside(self, path: Path, reason: str) -> None:
        """Keep a damaged file for inspection under a name that is not read, and say so."""
        aside = path.with_name(f"{path.name}.corrupt-{int(self._wall_time() * 1000)}")
        try:
            aside.hardlink_to(path)  # the damaged file keeps its name until its successor replaces it
        except OSError as error:
            raise ConfigError(f"damaged ({reason}) and cannot be set aside", file=str(path)) from error
        self.warnings.append(f"{path}: {reason}; the damaged file is now {aside.name}")
        for outdated in sorted(path.parent.glob(f"{path.name}.corrupt-*"))[:-CORRUPT_FILES_MAX]:
            outdated.unlink(missing_ok=True)

    def _make_private(self) -> None:
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            mode = stat.S_IMODE(self.path.stat().st_mode)
            if mode & 0o077:
                self.path.chmod(0o700)
                self.warnings.append(f"{self.path}: was open to other users (mode {mode:04o}), is 0700 now")
        except OSError as error:
            raise ConfigError(
                f"cannot use it as the state directory: {error.strerror}",
                file=str(self.path),
                key="node.state_dir",
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
        with contextlib.suppress(OSError):  # only whom to blame: a full disk takes nothing from the lock itself
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, b"%d\n" % os.getpid(), 0)
        return descriptor

    def _remove_temporary_files(self) -> None:
        for leftover in sorted(self.path.glob(".*.tmp")):
            leftover.unlink(missing_ok=True)


def _owner_hint(path: Path) -> str:
    """Two numbers that explain most refusals of a directory."""
    owner, own = path.stat().st_uid, os.geteuid()
    return "" if owner == own else f"; the directory is user {owner}'s, this daemon runs as {own}"


def _unwrap(content: bytes, size_max: int) -> bytes:
    """The body below the header line. Raises ``ValueError`` saying what is wrong."""
    if len(content) > size_max:
        raise ValueError(f"larger than {size_max} bytes")
    header = _HEADER.match(content)
    if header is None:
        raise ValueError("no header line")
    if int(header[1]) != FORMAT_VERSION:
        raise ValueError(f"format version {int(header[1])}, this peerd reads {FORMAT_VERSION}")
    body = content[header.end() :]
    if hashlib.sha256(body).hexdigest().encode() != header[2]:
        raise ValueError("its digest does not match")
    return body


def _parse_epoch(body: bytes) -> int:
    epoch = int(body)
    if not 0 <= epoch < _EPOCH_MAX:
        raise ValueError("boot epoch out of range")
    return epoch


def _parse_known_peers(body: bytes) -> list[PeerRef]:
    rows = json.loads(body)
    if not isinstance(rows, list) or len(rows) > KNOWN_PEERS_MAX:
        raise ValueError("not a bounded list of peers")
    return [_parse_known_peer(row) for row in rows]


def _parse_known_peer(row: Any) -> PeerRef:
    match row:
        case {"id": str(identifier), "host": str(host), "port": int(port)}:
            if 0 < len(host) <= HOST_LENGTH_MAX and 0 < port < 65536:
                return PeerRef(parse_id(identifier), host, port)
    raise ValueError("a peer is {id, host, port}")
