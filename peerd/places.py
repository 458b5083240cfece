"""Where a daemon's things are when nobody says otherwise.

These are defaults of the configuration. They stand apart from it because a command that asks a daemon needs the path of
the socket and nothing else, and loading all models of the configuration takes longer than asking.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

ADMIN_SOCKET: Final = "/run/peerd/admin.sock"
SOCKET_VARIABLE: Final = "PEERD_SOCKET"
"""The environment variable that names the daemon which commands and the client ask. No daemon reads it."""
STATE_DIRECTORY: Final = "/var/lib/peerd"


def clusters_folder() -> Path:
    """Below which every local cluster has a folder of its name: ``peerd/clusters`` in ``$XDG_STATE_HOME``."""
    state_home = os.environ.get("XDG_STATE_HOME", "")
    base = Path(state_home) if os.path.isabs(state_home) else Path.home() / ".local" / "state"
    return base / "peerd" / "clusters"
