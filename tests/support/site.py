"""Whole daemons of one cluster in this process, over TLS."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from peerd.config import LoadedConfig, load_config
from peerd.daemon.service import Daemon
from peerd.identity.authority import ClusterAuthority, create_node_files


class Site:
    """A cluster's authority and the state directories of its nodes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.authority = ClusterAuthority.create("test")

    def config(self, name: str, *, bootstrap: list[str] | None = None, **flags: Any) -> LoadedConfig:
        directory = self.path / name
        if not directory.exists():
            create_node_files(self.authority, directory)
        settings: dict[str, object] = {
            "node.cluster": "test",
            "node.profile": "local",
            "node.listen": "127.0.0.1:0",
            "node.state_dir": str(directory),
            "node.bootstrap": bootstrap or [],
            "node.shutdown_timeout": "1s",
            "admin.http": "",
        }
        settings.update({key.replace("__", "."): value for key, value in flags.items()})
        return load_config(environment={}, flags=settings)

    def daemon(self, name: str, bootstrap: list[str] | None = None, **flags: Any) -> Daemon:
        return Daemon(self.config(name, bootstrap=bootstrap, **flags), plugins=[])


def is_complete(*daemons: Daemon) -> bool:
    members = len(daemons) - 1
    return all(daemon.node.is_ready and len(daemon.node.overlay.leaf_set().members()) == members for daemon in daemons)
