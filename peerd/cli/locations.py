"""Where things are when no option says so: configuration files, the state directory, the admin socket."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from peerd.places import ADMIN_SOCKET, SOCKET_VARIABLE, STATE_DIRECTORY, clusters_folder

SYSTEM_FILE: Final = Path("/etc/peerd/peerd.toml")
SYSTEM_FOLDER: Final = Path("/etc/peerd/conf.d")
CONFIG_NAME: Final = "peerd.toml"


def own_directory(environment: Mapping[str, str] = os.environ, user_id: int | None = None) -> Path:
    """Where `peerd init` puts a node by default: the system's place for root, else below the user's state home."""
    if (os.geteuid() if user_id is None else user_id) == 0:
        return Path(STATE_DIRECTORY)
    home = environment.get("XDG_STATE_HOME", "")
    return (Path(home) if home.startswith("/") else Path.home() / ".local" / "state") / "peerd"


def standard_files() -> list[Path]:
    """The configuration to use when none is named: the system's, else that of `own_directory`, else none."""
    system = [path for path in (SYSTEM_FILE, SYSTEM_FOLDER) if path.exists()]
    if system:
        return system
    own = own_directory() / CONFIG_NAME
    return [own] if os.access(own, os.F_OK) else []  # another user's home, as after sudo -u, holds none of ours


def admin_address(given: str | None) -> str:
    """Where the daemon to ask listens: ``--socket``, ``PEERD_SOCKET``, the standard files, the default.

    A standard file that this user may not read counts as none: it is the daemon's, and the default may still be right.
    """
    if given:
        return given
    if from_environment := os.environ.get(SOCKET_VARIABLE):
        return from_environment
    for path in standard_files():
        if path.is_file() and (found := _socket_in(path)) is not None:
            return found
    return ADMIN_SOCKET


def local_cluster_sockets() -> list[Path]:
    """A socket of each local cluster that runs here, the default cluster's first; for a hint, so it raises nothing."""
    import json

    from peerd.system.proc import start_ticks

    found = []
    for file in sorted(clusters_folder().glob("*/cluster.json"), key=lambda file: (file.parent.name != "local", file)):
        with suppress(OSError, ValueError, LookupError, TypeError):  # as `peerd.cluster.layout` writes it, or no record
            record = json.loads(file.read_bytes())
            alive = [node for node in record["nodes"] if (process := node["process"]) is not None
                     and start_ticks(process["pid"]) == process["start_ticks"]]  # fmt: skip
            found += [Path(record["socket_dir"]) / f"{int(node['index'])}.sock" for node in alive[:1]]
    return found


def _socket_in(file: Path) -> str | None:
    """The admin socket that a configuration file names. The daemon checks its files; here they are only looked at."""
    import tomllib

    try:
        socket = tomllib.loads(file.read_text("utf-8"))["admin"]["socket"]
    except (OSError, ValueError, LookupError, TypeError):
        return None
    return socket if isinstance(socket, str) else None
