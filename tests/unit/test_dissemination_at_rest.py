"""What the plugin costs a daemon that takes part in no stream: nothing."""

from __future__ import annotations

import subprocess
import sys

import pytest

from peerd.node.host import PluginHost
from peerd.testing.simulation import ring
from protocols.dissemination.config import DisseminationConfig
from protocols.dissemination.front.judging import plugin_of
from protocols.dissemination.models import StreamSpec, StreamView
from protocols.dissemination.plugin import Dissemination

HEAVY = ("lxml", "pyroaring", "numpy", "lark")


def test_a_fresh_import_brings_no_libraries_that_only_streams_need() -> None:
    code = (
        "import sys, protocols.dissemination.plugin as plugin; plugin.Dissemination(); "
        f"print([name for name in {HEAVY!r} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"


def test_no_timer_runs_before_the_first_stream_nor_after_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    simulation = ring(3, 1, plugins=lambda index: [Dissemination(DisseminationConfig())])
    armed: list[str] = []
    right = PluginHost.set_timer

    def set_timer(self: PluginHost, name: str, *args: object, **more: object) -> None:
        if self._name == Dissemination.name:
            armed.append(name)
        right(self, name, *args, **more)  # type: ignore[arg-type]  # whatever the caller gave

    monkeypatch.setattr(PluginHost, "set_timer", set_timer)
    simulation.run_for(30.0)
    assert not armed
    plugin = plugin_of(simulation.nodes[0])
    told: list[StreamView | Exception] = []
    plugin.changes.create(StreamSpec(name="s", kind="classes", policy="first_fit"), told.append)
    simulation.run_until(lambda: bool(told), limit_s=30.0)
    assert armed
    plugin.changes.remove("s", told.append)
    simulation.run_for(30.0)
    armed.clear()
    simulation.run_for(30.0)
    assert not armed
