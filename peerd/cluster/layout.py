"""The folder of a local cluster: what lies where, what is written before the start, and what is removed after it.

::

    cluster.json          who runs: replaced atomically by the fork server whenever that changes
    lock                  locked (flock) by the fork server and every daemon: free means that all of them are gone
    ca/                   the cluster's own certificate authority
    nodes/K/peerd.toml    configuration of node K, and state/, its state directory
    sockets/K.sock        admin sockets; in a short folder elsewhere when these paths were too long for a socket
    logs/K.log            standard output and error of node K; fork-server.log of the fork server
    events/               event logs of all nodes, for `peerd analyze`
"""

from __future__ import annotations

import fcntl
import os
import shlex
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, ValidationError

from peerd.cluster.processes import ProcessRef
from peerd.config import UNIX_SOCKET_PATH_BYTES_MAX
from peerd.config.sources import leaves, toml_value
from peerd.errors import ConfigError, Unavailable
from peerd.identity.authority import ClusterAuthority, create_node_files
from peerd.identity.node_identity import id_without_tls
from peerd.ids import format_id
from peerd.invalid import first_reason
from peerd.places import clusters_folder
from peerd.system.durable_files import write_atomically

RECORD_VERSION: Final = 1
BOOTSTRAP_NODES: Final = 3
"""Through how many nodes the others join."""
RUNTIME_PATH_BYTES_MAX: Final = 64
"""A longer runtime folder would leave no room for the name of a socket."""
LOOPBACK: Final = "127.0.0.1"
DEFAULT_NAME: Final = "local"

Tables = Mapping[str, Any]
NodeTables = Callable[[int], Tables]
"""Configuration of one node by its index, nested like the file: merged over what the cluster itself sets."""


class NodeRecord(BaseModel):
    """The record of one daemon of the cluster."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    index: int
    id: str
    port: int
    process: ProcessRef | None = None
    exit_status: int | None = None
    """How the daemon ended: an exit code, or minus the number of a signal. ``None`` before that."""

    @property
    def address(self) -> str:
        """Return the address at which its peers reach it."""
        return f"{LOOPBACK}:{self.port}"


class ClusterRecord(BaseModel):
    """The content of ``cluster.json``."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    version: int = RECORD_VERSION
    name: str
    socket_dir: str
    is_kept: bool = False
    """Whether event logs and log files outlive the cluster."""
    server: ProcessRef | None = None
    """The process of the fork server."""
    nodes: tuple[NodeRecord, ...]


def default_directory(name: str = DEFAULT_NAME) -> Path:
    """Where the cluster of this name lives unless told otherwise: below ``$XDG_STATE_HOME``."""
    return clusters_folder() / name


@dataclass(frozen=True, slots=True)
class Layout:
    """The paths of a cluster's files below its folder."""

    directory: Path

    @property
    def record_file(self) -> Path:
        return self.directory / "cluster.json"

    @property
    def lock_file(self) -> Path:
        return self.directory / "lock"

    @property
    def logs(self) -> Path:
        return self.directory / "logs"

    @property
    def events(self) -> Path:
        return self.directory / "events"

    @property
    def server_log(self) -> Path:
        return self.logs / "fork-server.log"

    def log_file(self, index: int) -> Path:
        return self.logs / f"{index}.log"

    def node(self, index: int) -> Path:
        return self.directory / "nodes" / str(index)

    def config_file(self, index: int) -> Path:
        return self.node(index) / "peerd.toml"

    def command(self, word: str) -> str:
        """Return the command for this cluster, such as ``peerd cluster down``, with its name or folder if needed."""
        if self.directory == default_directory():
            return f"peerd cluster {word}"
        is_named = self.directory == default_directory(self.directory.name)
        which = ["--name", self.directory.name] if is_named else ["--dir", str(self.directory)]
        return shlex.join(["peerd", "cluster", word, *which])

    # The record

    def read(self) -> ClusterRecord | None:
        """The record, or ``None`` when there is no cluster here. Raises `ConfigError` for one that is not ours."""
        try:
            return ClusterRecord.model_validate_json(self.record_file.read_bytes())
        except FileNotFoundError:
            return None
        except ValidationError as error:
            why = f"not the record of a local cluster: {first_reason(error)}"
            raise ConfigError(why, file=str(self.record_file)) from error
        except OSError as error:
            raise ConfigError(f"cannot be read: {error.strerror}", file=str(self.record_file)) from error

    def write(self, record: ClusterRecord) -> None:
        """Replace the record. Raises ``OSError``."""
        write_atomically(self.record_file, record.model_dump_json(indent=1).encode() + b"\n")

    # The lock

    def lock(self) -> int:
        """Take the lock; returns its descriptor, which every process of the cluster inherits.

        Raises `Unavailable` while any process of a cluster in this folder lives.
        """
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        while True:
            descriptor = os.open(self.lock_file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if self._is_lock_file(descriptor):
                    return descriptor
            except BlockingIOError as error:
                os.close(descriptor)
                hint = f"`{self.command('status')}` shows it, `{self.command('down')}` ends it"
                raise Unavailable(f"a cluster is up in {self.directory}: {hint}") from error
            os.close(descriptor)  # the process that held the lock has removed the file meanwhile

    def _is_lock_file(self, descriptor: int) -> bool:
        try:
            return os.path.samestat(os.fstat(descriptor), self.lock_file.stat())
        except FileNotFoundError:
            return False

    def is_locked(self) -> bool:
        """Whether any process of the cluster lives, known to the record or not."""
        if not self.lock_file.exists():
            return False
        try:
            os.close(self.lock())
        except Unavailable:
            return True
        return False

    # Before and after

    def create(
        self, name: str, ports: Sequence[int], *, settings: NodeTables | None = None, is_kept: bool = False
    ) -> ClusterRecord:
        """Write everything that the daemons need: authority, identities, configuration. The caller holds the lock.

        What an earlier cluster left is removed first. Raises `ConfigError` when the folder holds anything else, or
        ``name`` is no cluster name; ``OSError``.
        """
        self.remove()
        foreign = sorted(path.name for path in self.directory.iterdir() if path != self.lock_file)
        if foreign:
            held = ", ".join(foreign[:5])
            hint = "remove what an earlier cluster kept, or name another folder"
            raise ConfigError(f"the folder is not empty, it holds {held}: {hint}", file=str(self.directory))
        authority = ClusterAuthority.create(name)
        record = ClusterRecord(name=name, socket_dir=str(self._socket_folder(len(ports))), is_kept=is_kept, nodes=())
        self.write(record)  # from here on `remove` knows that what lies here is ours
        Path(record.socket_dir).mkdir(mode=0o700, exist_ok=True)
        authority.save(self.directory / "ca")
        self.logs.mkdir()
        self.events.mkdir()
        wanted = [settings(index) if settings else {} for index in range(len(ports))]
        nodes = []
        for index, port in enumerate(ports):
            # No node outlives the machine: a power cut ends all of them, and the next start removes what they left.
            state_dir = self.node(index) / "state"
            node_id = create_node_files(authority, state_dir, is_kept=False)
            if wanted[index].get("tls", {}).get("mode") == "off":
                node_id = id_without_tls(state_dir)
            nodes.append(NodeRecord(index=index, id=format_id(node_id), port=port))
        record = record.model_copy(update={"nodes": tuple(nodes)})
        for node in nodes:
            tables = self._tables(record, node)
            _merge(tables, wanted[node.index])
            self.config_file(node.index).write_text(_to_toml(tables), "utf-8")
        self.write(record)
        return record

    def remove(self, *, keep: bool = False) -> None:
        """Remove what a cluster wrote, and nothing else; ``keep``: not its event logs and log files.

        The caller holds the lock, so no process of the cluster lives; the lock file stays.
        """
        record = self.read()
        if record is None:
            return
        for name in ("ca", "nodes", "sockets", *(() if keep else ("logs", "events"))):
            shutil.rmtree(self.directory / name, ignore_errors=True)
        shutil.rmtree(record.socket_dir, ignore_errors=True)
        self.record_file.unlink()

    def remove_folder(self) -> None:
        """Remove the lock file, and the folder when nothing else is in it. The caller holds the lock."""
        self.lock_file.unlink(missing_ok=True)
        if not any(self.directory.iterdir()):
            self.directory.rmdir()

    def _socket_folder(self, count: int) -> Path:
        folder = self.directory / "sockets"
        if len(os.fsencode(folder / f"{count}.sock")) <= UNIX_SOCKET_PATH_BYTES_MAX:
            return folder
        runtime = os.environ.get("XDG_RUNTIME_DIR", "")
        is_usable = os.path.isabs(runtime) and len(os.fsencode(runtime)) <= RUNTIME_PATH_BYTES_MAX
        base = runtime if is_usable and os.access(runtime, os.W_OK) else "/tmp"
        return Path(tempfile.mkdtemp(prefix="peerd-", dir=base))

    def _tables(self, record: ClusterRecord, node: NodeRecord) -> dict[str, Any]:
        doors = [other.address for other in record.nodes[:BOOTSTRAP_NODES] if other.index != node.index]
        return {
            "node": {
                "cluster": record.name,
                "profile": "local",
                "listen": node.address,
                "bootstrap": doors if node.index else [],  # the first one starts the ring
                "state_dir": str(self.node(node.index) / "state"),
            },
            "admin": {"socket": str(socket_file(record, node.index)), "http": ""},
            "data": {"socket": ""},  # the admin sockets serve the protocols, too
            "telemetry": {"sink": str(self.events), "log_format": "json"},
            # All nodes dial the first few at once, and all of them are ours.
            "limits": {"accepts_per_second": 1000.0, "accepts_burst": 1000},
        }


def socket_file(record: ClusterRecord, index: int) -> Path:
    """Return the path of a node's admin socket."""
    return Path(record.socket_dir) / f"{index}.sock"


def _merge(target: dict[str, Any], source: Tables) -> None:
    for key, value in source.items():
        if isinstance(value, Mapping):
            inner = target.setdefault(key, {})
            _merge(inner, value)
        else:
            target[key] = value


def _to_toml(tables: Tables) -> str:
    """Dotted keys, one a line: valid for any nesting."""
    return "".join(f"{key} = {toml_value(value)}\n" for key, value in leaves(tables))
