"""Who pays when a plugin says that a peer misbehaved: the sender of a direct message, nobody for a routed one."""

from __future__ import annotations

from typing import ClassVar

import pytest

from peerd.api import Plugin, handles, on_timer
from peerd.errors import ProtocolError
from peerd.ids import NodeId
from peerd.limits import CONTROL_FRAME_BYTES_MAX
from peerd.messages import Message, PeerRef
from peerd.sim.simulation import Place, Simulation
from peerd.sim.world import SimulationFailure
from peerd.testing.simulation import ring
from tests.support.sinks import ListSink
from tests.support.talker import Ask, Say


class Strict(Plugin):
    """Takes no even numbers, and answers every question with one."""

    name: ClassVar[str] = "strict"
    messages = (Say, Ask)
    answer = Say(2)

    @handles(Say)
    def on_say(self, say: Say, source: PeerRef) -> None:
        """Refuse even numbers."""
        if say.number % 2 == 0:
            raise ProtocolError("even", f"{say.number} is even")

    @handles(Ask)
    def on_ask(self, ask: Ask, source: PeerRef) -> Say:
        """Give an even number, unless the test says otherwise."""
        return self.answer

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


def test_a_reply_that_is_too_large_is_a_failure_of_its_plugin() -> None:
    simulation, asker, answerer, _ = strict_ring()
    plugin_of(answerer).answer = Say(1, bytes(CONTROL_FRAME_BYTES_MAX))
    plugin_of(asker).ask(answerer.peer)
    with pytest.raises(SimulationFailure, match="strict raised Bug: Say encodes to"):
        simulation.run_for(1.0)


class Late(Strict):
    """Finds out only later that a number is even: in a timer, at the end of some work, or in the timer after that."""

    name: ClassVar[str] = "late"

    @handles(Say)
    def on_say(self, say: Say, source: PeerRef) -> None:
        """Look at it later."""
        self.look_at(say.number)

    def look_at(self, number: int) -> None:
        """In the way that the number says."""
        match number % 10:
            case 2:
                self.host.set_timer("look", 0.1, number)
            case 4:
                self.host.offload(abs, number, done=self.refuse, failed=self.refuse)
            case 6:
                self.host.set_timer("again", 0.1, number)

    @on_timer("look")
    def look(self, number: int) -> None:
        """The number is even."""
        self.refuse(number)

    @on_timer("again")
    def again(self, number: int) -> None:
        """Look at it later still."""
        self.host.set_timer("look", 0.1, number)

    def refuse(self, number: object) -> None:
        """Blame whoever it is that said it."""
        raise ProtocolError("even", f"{number} is even")

    def deliver(self, key: NodeId, message: Message, source: PeerRef) -> None:
        """What is routed is looked at later, too."""
        assert isinstance(message, Say)
        self.look_at(message.number)


def late_ring() -> tuple[Simulation, ListSink]:
    sink = ListSink()
    simulation = ring(4, seed=3, plugins=lambda index: (Late(),), sink=sink)
    simulation.misbehaviour_is_failure = False
    return simulation, sink


@pytest.mark.parametrize("number", [2, 4])
def test_what_a_timer_or_work_finds_wrong_costs_the_sender_its_link(number: int) -> None:
    simulation, _ = late_ring()
    sender, receiver = simulation.nodes[:2]
    sender.node.hosts["late"].send(receiver.peer, Say(number))
    simulation.run_for(1.0)
    assert accused(simulation) == [(receiver.peer, sender.peer, f"even: {number} is even")]


@pytest.mark.parametrize("number", [2, 4])
def test_what_is_found_wrong_later_in_a_routed_message_costs_nobody_a_link(number: int) -> None:
    simulation, sink = late_ring()
    sender, receiver = simulation.nodes[:2]
    sender.node.hosts["late"].route(receiver.id, Say(number))
    simulation.run_for(1.0)
    assert accused(simulation) == []
    [record] = sink.of_kind("peer.misbehaved")
    assert (record["node"], record["peer"], record["detail"]) == (
        f"{receiver.id:032x}",
        None,
        f"late: even: {number} is even",
    )


def test_a_timer_that_a_timer_armed_is_nobodys_fault() -> None:
    simulation, sink = late_ring()
    sender, receiver = simulation.nodes[:2]
    sender.node.hosts["late"].send(receiver.peer, Say(6))
    simulation.run_for(1.0)
    assert accused(simulation) == []
    assert [record["peer"] for record in sink.of_kind("peer.misbehaved")] == [None]
