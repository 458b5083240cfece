"""The entry-point groups through which protocols are found, and what is registered there. No protocol is imported."""

from __future__ import annotations

import os
import sys
from functools import lru_cache
from importlib import metadata
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    if sys.version_info >= (3, 12):
        Registered = metadata.EntryPoints
    else:
        Registered = metadata.SelectableGroups

PLUGINS: Final = "peerd.protocols"
"""Subclasses of `peerd.api.Plugin`."""
FRONTS: Final = "peerd.fronts"
"""Subclasses of `peerd.front.Front`, each under the name of its plugin."""


# fmt: off
CONFIGURATION_TABLES: Final = frozenset(
    {
        "admin", "data", "issuer", "limits", "node", "overlay", "protocols", "records", "swap", "telemetry",
        "tls",
    }
)
# fmt: on
"""Tables of the configuration that are peerd's own: no plugin may be called like one. A test compares them."""
# fmt: off
CLIENT_NAMES: Final = frozenset(
    {
        "access_tokens", "address", "answers", "call", "certificate", "check_ring", "close", "create_access",
        "create_token", "denials", "deny", "drain", "events", "fetch", "follow", "forget", "health", "history",
        "install_certificate", "known", "metrics", "peers", "publish_notice", "reach", "ready", "reload",
        "renew_certificate", "revoke_access", "revoke_token", "ring", "rotate_ca", "route", "rtt", "rtt_known",
        "send_lines", "settings", "status", "stream", "tokens", "wait_ready",
    }
)
# fmt: on
"""What `peerd.client.Client` has itself: ``client.NAME`` could never reach a plugin of such a name. A test compares
them; they are listed here because importing the client costs more than all of the other checks."""


def installed(group: str = PLUGINS) -> list[str]:
    """The names in a group, sorted."""
    return sorted(_registered(_places()).select(group=group).names)


def entries(group: str, name: str) -> list[metadata.EntryPoint]:
    """What is registered under a name: one entry, unless two distributions use it."""
    return sorted(_registered(_places()).select(group=group, name=name), key=lambda entry: entry.value)


def _places() -> tuple[tuple[str, int], ...]:
    """Where distributions are looked for, and when something was last installed or removed there."""
    return tuple((place, _changed_ns(place)) for place in sys.path)


def _changed_ns(place: str) -> int:
    try:
        return os.stat(place or os.curdir).st_mtime_ns
    except OSError:
        return 0


@lru_cache(maxsize=1)
def _registered(places: tuple[tuple[str, int], ...]) -> Registered:
    """What all distributions register. Each has a file to read for it, and a daemon that starts asks ten times."""
    return metadata.entry_points()
