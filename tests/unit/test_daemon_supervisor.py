"""A failing plugin is replaced five times in five minutes, then it stays off; nobody else notices."""

from __future__ import annotations

import asyncio

from peerd.daemon import supervisor
from peerd.daemon.supervisor import RESTARTS_MAX, PluginSupervisor
from peerd.ids import NodeId
from peerd.messages import PeerRef
from peerd.telemetry.schema import Event, PluginRestarted
from tests.support.both_loops import Counters, both_loops

SENDER = PeerRef(NodeId(7), "10.0.0.1", 7420)


class Plugins:
    """The node's side: notes restarts, and can refuse to start."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.events: list[PluginRestarted] = []
        self.changed = asyncio.Event()
        self.start_error: Exception | None = None

    def emit(self, event: Event) -> int:
        assert isinstance(event, PluginRestarted)
        self.events.append(event)
        self.changed.set()
        return 1

    def restart_plugin(self, name: str) -> None:
        self.calls.append(f"restart {name}")
        if self.start_error is not None:
            raise self.start_error

    def disable_plugin(self, name: str) -> None:
        self.calls.append(f"disable {name}")

    async def next_event(self) -> PluginRestarted:
        await asyncio.wait_for(self.changed.wait(), 30.0)
        self.changed.clear()
        return self.events[-1]


def make(clock: list[float]) -> tuple[PluginSupervisor, Plugins, Counters]:
    counters, plugins = Counters(), Plugins()
    watched = PluginSupervisor(counters, lambda: clock[0], pause_s=0.0)
    watched.attach(plugins)
    return watched, plugins, counters


@both_loops
async def test_restarts_then_stays_off() -> None:
    watched, plugins, counters = make([0.0])
    for _ in range(RESTARTS_MAX):
        watched.handler_failed("pubsub", ValueError("bad"))
        event = await plugins.next_event()
        assert (event.plugin, event.error, event.disabled) == ("pubsub", "ValueError('bad')", False)
    watched.handler_failed("pubsub", ValueError("again"))
    assert (await plugins.next_event()).disabled
    watched.handler_failed("pubsub", ValueError("late"))
    assert watched.disabled == {"pubsub": "ValueError('again')"}
    assert plugins.calls.count("restart pubsub") == RESTARTS_MAX
    assert plugins.calls[-1] == "disable pubsub"
    assert counters.values["peerd_handler_failures_total{plugin=pubsub}"] == RESTARTS_MAX + 2
    assert counters.values["peerd_plugins_disabled"] == 1


@both_loops
async def test_rare_failures_are_forgiven() -> None:
    clock = [0.0]
    watched, plugins, _ = make(clock)
    for _ in range(3 * RESTARTS_MAX):
        watched.handler_failed("pubsub", ValueError("bad"))
        assert not (await plugins.next_event()).disabled
        clock[0] += supervisor.RESTART_WINDOW_S / 4
    assert watched.disabled == {}


@both_loops
async def test_what_peers_send_never_switches_a_plugin_off() -> None:
    watched, plugins, counters = make([0.0])
    for _ in range(3 * RESTARTS_MAX):
        watched.handler_failed("pubsub", ValueError("bad"), SENDER)
        assert not (await plugins.next_event()).disabled
    assert watched.disabled == {}
    assert plugins.calls.count("restart pubsub") == 3 * RESTARTS_MAX
    assert counters.values["peerd_handler_failures_total{plugin=pubsub}"] == 3 * RESTARTS_MAX
    for _ in range(RESTARTS_MAX + 1):
        watched.handler_failed("pubsub", ValueError("our own"))
        event = await plugins.next_event()
    assert event.disabled


@both_loops
async def test_nothing_changes_before_the_failing_handler_has_returned() -> None:
    watched, plugins, counters = make([0.0])
    watched.handler_failed("pubsub", ValueError("one"))
    watched.handler_failed("pubsub", ValueError("two, before the restart"))
    assert plugins.calls == []
    await plugins.next_event()
    assert plugins.calls == ["disable pubsub", "restart pubsub"]
    assert counters.values["peerd_handler_failures_total{plugin=pubsub}"] == 2


@both_loops
async def test_a_plugin_that_cannot_even_start_ends_up_off() -> None:
    watched, plugins, _ = make([0.0])
    plugins.start_error = RuntimeError("start")
    watched.handler_failed("pubsub", ValueError("bad"))
    event = await plugins.next_event()
    assert event.disabled
    assert event.error == "RuntimeError('start')"


@both_loops
async def test_the_overlay_goes_on_with_its_state() -> None:
    watched, plugins, counters = make([0.0])
    for _ in range(20):
        watched.handler_failed("overlay", KeyError("x"))
    watched.handler_failed("pubsub", KeyError("x"))
    await plugins.next_event()
    assert plugins.calls == ["disable pubsub", "restart pubsub"]
    assert counters.values["peerd_handler_failures_total{plugin=overlay}"] == 20


@both_loops
async def test_no_restart_after_the_stop() -> None:
    watched, plugins, counters = make([0.0])
    watched.handler_failed("pubsub", ValueError("bad"))
    watched.stop()
    watched.handler_failed("aggregation", ValueError("bad, while it was stopped"))
    assert not watched._restarting
    other = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_later(0.01, other.set_result, None)
    await other
    assert not [call for call in plugins.calls if call.startswith("restart")]
    assert counters.values["peerd_handler_failures_total{plugin=aggregation}"] == 1
