"""The host of a service: it offers more than that of a plugin."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from peerd.api import Host
from peerd.messages import PeerRef


class ServiceHost(Host, Protocol):
    """A plugin's host, plus calling back into other plugins, and the limit of what a node passes on."""

    def call_plugin(
        self, plugin: str, function: Callable[..., Any], *arguments: Any, then: Callable[[Any], None] | None = None
    ) -> None:
        """Run ``function`` as that plugin, after the current handler; ``then`` gets what it returned (``None`` when
        it raised, which is that plugin's failure and not the service's)."""

    def may_pass(self, peer: PeerRef, messages: int = 1) -> bool:
        """Whether so many more messages of others may go on to this peer now; if so, they are counted.

        See docs/overlay.md.
        """
