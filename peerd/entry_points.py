"""The entry-point groups through which protocols are found, and what is registered there. No protocol is imported."""

from __future__ import annotations

from importlib import metadata
from typing import Final

PLUGINS: Final = "peerd.protocols"
"""Subclasses of `peerd.api.Plugin`."""
FRONTS: Final = "peerd.fronts"
"""Subclasses of `peerd.front.Front`, each under the name of its plugin."""


# fmt: off
CONFIGURATION_TABLES: Final = frozenset(
    {
        "admin", "data", "groups", "issuer", "limits", "node", "overlay", "protocols", "records", "swap", "telemetry",
        "tls",
    }
)
# fmt: on
"""Tables of the configuration that are peerd's own: no plugin may be called like one. A test compares them."""
# fmt: off
CLIENT_NAMES: Final = frozenset(
    {
        "access_tokens", "address", "answers", "call", "certificate", "check_ring", "close", "create_access",
        "create_token", "denials", "deny", "drain", "events", "fetch", "follow", "forget", "get", "health", "history",
        "install_certificate", "known", "metrics", "peers", "publish_notice", "reach", "ready", "reload",
        "renew_certificate", "revoke_access", "revoke_token", "ring", "rotate_ca", "route", "rtt", "rtt_known",
        "send", "send_lines", "settings", "status", "stream", "tokens", "wait_ready",
    }
)
# fmt: on
"""What `peerd.client.Client` has itself: ``client.NAME`` could never reach a plugin of such a name. A test compares
them; they are listed here because importing the client costs more than all of the other checks."""


def installed(group: str = PLUGINS) -> list[str]:
    """The names in a group, sorted."""
    return sorted({entry.name for entry in metadata.entry_points(group=group)})


def entries(group: str, name: str) -> list[metadata.EntryPoint]:
    """What is registered under a name: one entry, unless two distributions use it."""
    found = [entry for entry in metadata.entry_points(group=group) if entry.name == name]
    return sorted(found, key=lambda entry: entry.value)
