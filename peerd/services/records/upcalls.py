"""How the record store reaches the plugins of its node. A plugin that does not override an upcall is not called."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from peerd.api import Plugin, RecordResult, RecordRole
from peerd.errors import PeerMisbehaved
from peerd.ids import NodeId

Run = Callable[..., Any]
"""Runs code of a plugin: ``run(plugin, function, *arguments)``."""


class RecordUpcalls:
    """The upcalls of one node. ``run`` calls nobody once the node has stopped; ``ask`` returns the plugin's answer."""

    def __init__(
        self,
        call_soon: Callable[[Callable[[], None]], None],
        plugins: Mapping[str, Plugin],
        is_disabled: Callable[[str], bool],
        run: Run,
        ask: Run,
    ) -> None:
        self._call_soon = call_soon
        self._plugins = plugins
        self._is_disabled = is_disabled
        self._run = run
        self._ask = ask

    def changed(self, plugin: str, key: NodeId, role: RecordRole, item: bytes) -> None:
        """Tell the plugin that a record belongs to, after the current handler, if this node has it."""
        owner = self._plugins.get(plugin)
        if owner is not None and type(owner).record_changed is not Plugin.record_changed:
            self._call_soon(lambda: self._run(plugin, self._plugins[plugin].record_changed, key, role, item))

    def settled(self) -> None:
        """Tell every plugin, after the current handler, that the node has caught up with its neighbours."""

        def run() -> None:
            for name, plugin in list(self._plugins.items()):
                if type(plugin).records_settled is not Plugin.records_settled:
                    self._run(name, plugin.records_settled)

        self._call_soon(run)

    def ended(self, plugin: str, on_result: Callable[[RecordResult], None], result: RecordResult) -> None:
        """Call back into the plugin that asked."""
        self._run(plugin, on_result, result)

    def has_plugin(self, plugin: str) -> bool:
        """Whether this node has it, in service or not."""
        return plugin in self._plugins

    def takes_owned(self, plugin: str) -> bool:
        """Whether nodes may have records of their own in this plugin's namespace; they may on a node without it."""
        owner = self._plugins.get(plugin)
        return owner is None or owner.takes_owned_records

    def is_allowed(self, plugin: str, key: NodeId, item: bytes, value: bytes | None, writer: NodeId) -> bool:
        """Ask the plugin that a shared record belongs to, at once.

        A node without the plugin holds what others write. One whose plugin is out of service refuses: it cannot judge,
        and gets later, in repair, what it refuses now.
        """
        owner = self._plugins.get(plugin)
        if owner is None or type(owner).record_allowed is Plugin.record_allowed:
            return True
        if self._is_disabled(plugin):
            return False
        try:
            return bool(self._ask(plugin, owner.record_allowed, key, item, value, writer))
        except PeerMisbehaved:  # about the value; who gave it to this node may have got it from others
            return False
