"""The author's tests, which need nothing of peerd's repository: `peerd.testing` is in its wheel."""

from __future__ import annotations

import asyncio
import json
from contextlib import aclosing

import pytest
from rollcall.config import RollCallConfig
from rollcall.front.simulation import NewestRollComplete, RollCallWork, plugin_of
from rollcall.messages import Call, Present
from rollcall.plugin import RollCall
from rollcall.roll import Roll

from peerd.client.streams import Item
from peerd.messages import PeerRef
from peerd.sim.simulation import Simulation
from peerd.sim.swarm.swarm import run_seed
from peerd.sim.world import SimulationFailure
from peerd.testing import FakeHost, assert_one_run, peer, ring, run_to_rest
from peerd.testing.daemons import daemons, wait_for

# The plugin alone


def test_a_node_answers_a_call() -> None:
    host = FakeHost(1, RollCall(RollCallConfig(label="rack 3")))
    host.time_s = 20.0
    host.deliver(Call(7), peer(2))
    assert host.take_sent() == [(peer(2), Present(7, 20.0, "rack 3"))]
    assert host.events[0].KIND == "rollcall.answered"


def test_only_the_first_answer_of_a_node_counts() -> None:
    rolls: list[Roll] = []
    plugin = RollCall()
    host = FakeHost(1, plugin)
    number = plugin.call(rolls.append)
    for uptime_s in (3.0, 4.0):
        host.deliver(Present(number, uptime_s), peer(2))
    host.deliver(Present(number + 1, 5.0), peer(3))  # an answer to a call that nobody made
    host.fire("call_due", number)
    [roll] = rolls
    assert [(answer.node, answer.uptime_s) for answer in roll.answers.values()] == [(peer(2).id, 3.0)]


# In the simulator


def called(seed: int, plugin: type[RollCall] = RollCall) -> Simulation:
    """A call in a ring of 40, of which 4 have crashed."""
    simulation = ring(40, seed, plugins=lambda index: [plugin()], check_every=1)
    for place in simulation.nodes[10:14]:
        simulation.kill(place)
    run_to_rest(simulation)
    plugin_of(simulation.nodes[3]).call(lambda roll: None)
    simulation.run_for(10)
    return simulation


def test_everybody_who_runs_answers() -> None:
    simulation = called(seed=7)
    simulation.check([NewestRollComplete()])
    roll = plugin_of(simulation.nodes[3]).last
    assert roll is not None
    assert len(roll.answers) == 36


class ForgetsItself(RollCall):
    """A bug, made on purpose: the caller does not count itself."""

    def on_call(self, call: Call, source: PeerRef) -> None:
        if source.id != self.host.id:
            super().on_call(call, source)


def test_the_checker_catches_a_plugin_that_forgets_itself() -> None:
    with pytest.raises(SimulationFailure, match="runs and is not on the newest roll"):
        called(7, ForgetsItself).check([NewestRollComplete()])


def test_the_swarm_is_green_and_with_the_bug_it_is_red(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run_seed(0, protocols=["rollcall"]).passed
    monkeypatch.setattr(RollCallWork, "plugin", lambda index: ForgetsItself())
    assert "is not on the newest roll" in str(run_seed(0, protocols=["rollcall"]).failure)


def test_one_seed_is_one_run() -> None:
    assert_one_run(called, seed=7)


# In real daemons


async def test_daemons_client_and_stream() -> None:
    async with asyncio.timeout(50), daemons(3, settings={"protocols.rollcall.label": "rack 3"}) as running:
        async with running[0].client() as client, aclosing(client.rollcall.heard(after="start")) as heard:
            answer = await client.rollcall.call()
            assert answer.is_complete
            assert [each.label for each in answer.answers] == ["rack 3"] * 3
            entries = [await anext(heard) for _ in range(3)]
            assert {entry.data["node"] for entry in entries if isinstance(entry, Item)} == {
                each.node for each in answer.answers
            }
            await client.rollcall.set_label("rack 4")
            assert await client.rollcall.label() == "rack 4"

        def recorded() -> list[str]:
            lines = [line for file in running[0].events.rglob("*.part") for line in file.read_text().splitlines()]
            return [json.loads(line)["event"] for line in lines]  # the file that is being written has them all

        await wait_for(lambda: {"rollcall.answered", "rollcall.finished"} <= set(recorded()))
