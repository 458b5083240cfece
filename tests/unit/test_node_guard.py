"""Who pays when a handler says that a peer misbehaved: the sender of a direct message, nobody for a routed one."""

from __future__ import annotations

from typing import ClassVar

import pytest

from peerd.api import Plugin, handles
from peerd.errors import ProtocolError
from peerd.messages import Message, PeerRef
from peerd.sim.records import ListSink
from peerd.sim.simulation import Place, Simulation
from peerd.sim.world import SimulationFailure
from peerd.testing.simulation import ring
from tests.support.talker import Ask, Say


class Strict(Plugin):
    """Takes no even numbers, and answers every question with one."""

    name: ClassVar[str] = "strict"
    messages = (Say, Ask)

    @handles(Say)
    def on_say(self, say: Say, source: PeerRef) -> None:
        """Refuse even numbers."""
        if say.number % 2 == 0:
            raise ProtocolError("even", f"{say.number} is even")

    @handles(Ask)
    def on_ask(self, ask: Ask, source: PeerRef) -> Say:
        """Give an even number."""
        return Say(2)

    def ask(self, peer: PeerRef) -> None:
        """Ask somebody whose answer will be refused."""

        def replied(reply: Message, source: PeerRef) -> None:
            assert isinstance(reply, Say)
            self.on_say(reply, source)

        self.host.request(peer, Ask(1), 5.0, replied, lambda: None)


def strict_ring() -> tuple[Simulation, Place, Place, ListSink]:
    sink = ListSink()
    simulation = ring(4, seed=3, plugins=lambda index: (Strict(),), sink=sink)
    simulation.misbehaviour_is_failure = False
    return simulation, simulation.nodes[0], simulation.nodes[1], sink


def plugin_of(place: Place) -> Strict:
    found = place.node.plugins["strict"]
    assert isinstance(found, Strict)
    return found


def accused(simulation: Simulation) -> list[tuple[PeerRef, PeerRef, str]]:
    return [(by, about, text) for _, by, about, text in simulation.misbehaviours]


def test_a_handler_that_refuses_a_message_costs_the_sender_its_link() -> None:
    simulation, sender, receiver, _ = strict_ring()
    plugin_of(sender).host.send(receiver.peer, Say(4))
    simulation.run_for(1.0)
    assert accused(simulation) == [(receiver.peer, sender.peer, "even: 4 is even")]


def test_a_reply_that_is_refused_costs_whoever_gave_it() -> None:
    simulation, asker, answerer, _ = strict_ring()
    plugin_of(asker).ask(answerer.peer)
    simulation.run_for(1.0)
    assert accused(simulation) == [(asker.peer, answerer.peer, "even: 2 is even")]


def test_what_turns_out_later_costs_whom_the_plugin_names() -> None:
    simulation, one, other, _ = strict_ring()
    plugin_of(one).host.misbehaved(other.peer, ProtocolError("late", "the worker says so"))
    assert accused(simulation) == [(one.peer, other.peer, "late: the worker says so")]


def test_a_routed_message_that_is_refused_is_recorded_and_costs_nobody_a_link() -> None:
    simulation, sender, receiver, sink = strict_ring()
    plugin_of(sender).host.route(receiver.id, Say(6))
    simulation.run_for(1.0)
    assert accused(simulation) == []
    [record] = sink.of_kind("peer.misbehaved")
    assert record["peer"] is None
    assert record["detail"] == "routed: even: 6 is even"


def test_what_a_node_sends_itself_is_its_own_mistake() -> None:
    simulation, one, _, _ = strict_ring()
    plugin_of(one).host.send(one.peer, Say(8))
    with pytest.raises(SimulationFailure, match="strict raised ProtocolError: even"):
        simulation.run_for(1.0)
