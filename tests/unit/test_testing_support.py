"""`peerd.testing`: the fake host is a host, rings come to rest or say what is missing, and hash order is noticed."""

from __future__ import annotations

import inspect

import pytest

from peerd.api import Host, LookupResult, Plugin, handles, on_timer
from peerd.errors import Bug
from peerd.ids import NodeId
from peerd.messages import U32, Message, PeerRef, message
from peerd.sim.checkers import Checker
from peerd.sim.simulation import Place, Simulation
from peerd.sim.world import SimulationFailure
from peerd.testing import FakeHost, always, assert_one_run, peer, ring, run_to_rest, trace_hashes


@message(0x7F60, bytes_max=16)
class Poke(Message):
    """A message that exists for these tests only."""

    number: U32


class Poker(Plugin):
    """Pokes back, and once more a second later."""

    name = "poker"
    messages = (Poke,)

    @handles(Poke)
    def on_poke(self, poke: Poke, source: PeerRef) -> Poke:
        if poke.number > 0:
            self.host.send(source, Poke(0))
            self.host.set_timer("again", 1.0, (source, poke.number))
        return Poke(poke.number + 1)

    @on_timer("again")
    def again(self, payload: tuple[PeerRef, int]) -> None:
        self.host.send(payload[0], Poke(0))

    def poke_all(self, names: set[str]) -> None:
        for number, name in enumerate(names, start=1):
            self.host.route(NodeId(int.from_bytes(name.encode().ljust(16), "big")), Poke(number))


def hash_ordered(seed: int) -> Simulation:
    """A run in which the order of a set reaches the messages."""
    return poked(seed, {"a", "b", "c", "d", "e", "f", "g", "h"})


def honest(seed: int) -> Simulation:
    """The same, with an order of its own."""
    return poked(seed, {"a"})


def poked(seed: int, names: set[str]) -> Simulation:
    simulation = ring(6, seed, plugins=lambda index: [Poker()])
    plugin = simulation.nodes[0].node.plugins["poker"]
    assert isinstance(plugin, Poker)
    plugin.poke_all(names)
    simulation.run_for(5)
    return simulation


class NeverContent(Checker):
    """A checker that complains about every node."""

    name = "never content"

    def check_node(self, simulation: Simulation, place: Place) -> list[str]:
        return [f"node {place.index} displeases"]


def test_the_fake_host_has_every_word_of_host() -> None:
    words = {name for name, _ in inspect.getmembers(Host) if not name.startswith("_")}
    missing = sorted(words - set(dir(FakeHost(1))))
    assert words and not missing, f"FakeHost lacks {missing}"


def test_the_fake_host_plays_the_world_and_notes_what_the_plugin_did() -> None:
    host = FakeHost(1, Poker())
    assert host.deliver(Poke(6), peer(2)) == Poke(7)
    assert host.take_sent() == [(peer(2), Poke(0))]
    host.fire("again", (peer(2), 6))
    assert host.now() == 1.0
    assert host.take_sent() == [(peer(2), Poke(0))]
    assert [each.partition("(")[0] for each in host.transcript()] == ["send", "set_timer", "send"]
    assert host.transcript()[0] == f"send(peer={peer(2)}, message=Poke(number=0))"


def test_what_the_fake_host_was_asked_is_answered_by_the_test() -> None:
    host = FakeHost(1, Poker())
    found: list[LookupResult] = []
    host.lookup(NodeId(5), found.append)
    result = LookupResult(NodeId(5), peer(4), (), 0.1)
    host.asked[-1].arguments["on_result"](result)
    assert found == [result]
    with pytest.raises(Bug, match="nothing handles"):
        host.set_timer("unknown", 1.0)


def test_a_ring_comes_to_rest_or_says_what_is_missing() -> None:
    simulation = ring(8, seed=3, checkers=always(), check_every=1)
    assert simulation.sweeps > 0
    simulation.kill(simulation.nodes[2])
    assert run_to_rest(simulation) > 0
    with pytest.raises(SimulationFailure, match="never content: node 0 displeases"):
        run_to_rest(simulation, [NeverContent()], limit_s=3)


def test_two_processes_agree_on_a_run_unless_hash_order_reaches_a_message() -> None:
    assert assert_one_run(honest, seed=5) == honest(5).digest()
    first, second = trace_hashes(hash_ordered, 5)
    assert first != second
    with pytest.raises(Bug, match="not a function of a module"):
        trace_hashes(lambda seed: honest(seed), 5)
