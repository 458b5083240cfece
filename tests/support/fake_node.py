"""A node for the fork server that is no daemon. What it does depends on ``FAKE_NODE``: wait, stubborn, fail."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from peerd.errors import ConfigError


def prepare() -> None:
    """Nothing to load."""


def run(config_file: Path) -> int:
    """Wait for SIGTERM (or, stubborn, for SIGKILL); the second node of ``fail`` cannot start."""
    mode = os.environ.get("FAKE_NODE", "wait")
    print(f"fake node {config_file.parent.name}", flush=True)
    if mode == "fail" and config_file.parent.name == "1":
        raise ConfigError("no luck today", file="fake.toml", key="node.luck")
    if mode == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    else:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    (config_file.parent / "running").touch()
    while True:
        signal.pause()
