"""The entry-point groups through which protocols are found, and what is registered there. Imports nothing of it."""

from __future__ import annotations

from importlib import metadata
from typing import Final

PLUGINS: Final = "peerd.protocols"
"""Subclasses of `peerd.api.Plugin`."""
FRONTS: Final = "peerd.fronts"
"""Subclasses of `peerd.front.Front`, each under the name of its plugin."""


def installed(group: str = PLUGINS) -> list[str]:
    """The names in a group, sorted."""
    return sorted({entry.name for entry in metadata.entry_points(group=group)})


def entries(group: str, name: str) -> list[metadata.EntryPoint]:
    """What is registered under a name: one entry, unless two distributions use it."""
    found = [entry for entry in metadata.entry_points(group=group) if entry.name == name]
    return sorted(found, key=lambda entry: entry.value)
