"""Where a daemon's things are when nobody says otherwise.

These are defaults of the configuration. They stand apart from it because a command that asks a daemon needs the path of
the socket and nothing else, and loading all models of the configuration takes longer than asking.
"""

from __future__ import annotations

from typing import Final

ADMIN_SOCKET: Final = "/run/peerd/admin.sock"
SOCKET_VARIABLE: Final = "PEERD_SOCKET"
"""The environment variable that names the daemon which commands and the client ask. No daemon reads it."""
STATE_DIRECTORY: Final = "/var/lib/peerd"
