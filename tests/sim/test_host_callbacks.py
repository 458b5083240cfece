"""Nothing that an instance of a plugin began calls back into it once it is out of service."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, cast

import pytest

from peerd.api import Host, Plugin, WorkHandle
from peerd.ids import key_of
from peerd.node.node import Node
from peerd.testing.simulation import ring


class Busy(Plugin):
    """Has one of everything under way that takes a while."""

    name: ClassVar[str] = "busy"

    def __init__(self, config: Any = None) -> None:
        super().__init__(config)
        self.told: list[str] = []

    def start(self, host: Host) -> None:
        """The log."""
        super().start(host)
        self.log = host.store.log("busy")

    def begin(self) -> None:
        """A lookup, a computation, and an append."""
        self.host.lookup(key_of("x"), lambda result: self.told.append("lookup"))
        self.host.offload(
            len, b"xy", done=lambda size: self.told.append("offload"), failed=lambda error: None, cost_s=0.01
        )
        self.log.append(b"x", lambda number: self.told.append("append"))


def nothing(node: Node) -> None:
    """Do nothing, so that the plugin goes on."""


@pytest.mark.parametrize(
    ("what", "expected"),
    [
        (nothing, ["append", "lookup", "offload"]),
        (lambda node: node.disable_plugin("busy"), []),
        (lambda node: node.restart_plugin("busy"), []),
        (lambda node: node.stop("test"), []),
    ],
    ids=["goes on", "disabled", "replaced", "node stopped"],
)
def test_who_is_out_of_service_is_not_called_back(what: Callable[[Node], None], expected: list[str]) -> None:
    simulation = ring(3, seed=2, plugins=lambda index: [Busy()])
    node = simulation.nodes[0].node
    plugin = node.plugins["busy"]
    assert isinstance(plugin, Busy)
    plugin.begin()
    assert plugin.told == []
    what(node)
    simulation.run_for(5.0)
    assert sorted(plugin.told) == expected


@pytest.mark.parametrize("what", ["disable_plugin", "restart_plugin"])
def test_who_is_out_of_service_keeps_no_worker(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    node = ring(3, seed=2, plugins=lambda index: [Busy()]).nodes[0].node
    plugin = node.plugins["busy"]
    assert isinstance(plugin, Busy)
    given: list[Any] = []
    offload = node.driver.offload

    def noted(*arguments: Any) -> WorkHandle:
        given.append(offload(*arguments))
        return cast(WorkHandle, given[-1])

    monkeypatch.setattr(node.driver, "offload", noted)
    plugin.begin()
    getattr(node, what)("busy")
    assert [handle.is_cancelled for handle in given] == [True]
