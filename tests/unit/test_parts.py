"""A plugin of several parts: their handlers and timers are the plugin's, and nothing is handled twice."""

from __future__ import annotations

from typing import ClassVar

import pytest

from peerd.api import Host, Part, Plugin, handles, on_timer
from peerd.errors import Bug
from peerd.messages import Message, PeerRef, message
from peerd.testing.host import FakeHost, peer
from peerd.testing.simulation import ring


@message(0x7FA0, bytes_max=64)
class Question(Message):
    """Asks one part."""

    number: int


@message(0x7FA1, bytes_max=64)
class Echo(Message):
    """What that part answers."""

    number: int


@message(0x7FA2, bytes_max=64)
class Stray(Message):
    """Listed, and handled by nobody."""


class Answerer(Part):
    """Answers questions, and is woken by the plugin's timer."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self.woken: list[object] = []

    @handles(Question)
    def _asked(self, question: Question, source: PeerRef) -> Echo:
        return Echo(question.number)

    @on_timer("wake")
    def _wake(self, payload: object) -> None:
        self.woken.append(payload)


class Hearer(Part):
    """Hears answers."""

    def __init__(self) -> None:
        self.heard: list[tuple[int, PeerRef]] = []

    @handles(Echo)
    def _heard(self, echo: Echo, source: PeerRef) -> None:
        self.heard.append((echo.number, source))


class Composed(Plugin):
    """Has two parts, and a timer of its own."""

    name: ClassVar[str] = "composed"
    messages = (Question, Echo, Stray)

    def start(self, host: Host) -> None:
        """The parts first: a timer can only be armed when its method is known."""
        super().start(host)
        self.answerer, self.hearer = Answerer(host), Hearer()
        self.add_parts(self.answerer, self.hearer)
        self.ticks = 0
        host.set_timer("wake", 1.0, "early")
        host.set_timer("tick", 1.0)

    @on_timer("tick")
    def _tick(self, payload: object) -> None:
        self.ticks += 1


def test_messages_and_timers_reach_the_part_that_handles_them() -> None:
    plugin = Composed()
    host = FakeHost(1, plugin)
    assert host.deliver(Question(7), peer(2)) == Echo(7)
    assert host.deliver(Echo(8), peer(3)) is None
    assert plugin.hearer.heard == [(8, peer(3))]
    host.fire("wake", "early")
    host.fire("tick")
    assert (plugin.answerer.woken, plugin.ticks) == (["early"], 1)


def test_a_routed_message_is_delivered_to_the_part_that_handles_it() -> None:
    plugin = Composed()
    host = FakeHost(1, plugin)
    plugin.deliver(host.id, Echo(4), peer(2))
    plugin.deliver(host.id, Stray(), peer(2))
    assert plugin.hearer.heard == [(4, peer(2))]


def test_a_node_dispatches_to_parts_and_to_those_of_a_new_instance() -> None:
    simulation = ring(2, seed=1, plugins=lambda index: [Composed()], settle_s=3.0)
    asker, asked = simulation.nodes
    answers: list[Message] = []

    def ask() -> None:
        host = asker.node.hosts["composed"]
        host.request(asked.peer, Question(5), 2.0, lambda reply, source: answers.append(reply), lambda: None)
        simulation.run_for(2.0)

    ask()
    first = asked.node.plugins["composed"]
    assert isinstance(first, Composed) and first.answerer.woken == ["early"] and first.ticks == 1
    asked.node.restart_plugin("composed")
    ask()
    assert answers == [Echo(5), Echo(5)]
    fresh = asked.node.plugins["composed"]
    assert isinstance(fresh, Composed) and fresh is not first and fresh.ticks == 1


def test_two_parts_that_handle_the_same_message_are_refused_by_name() -> None:
    class Another(Part):
        @handles(Question)
        def asked_too(self, question: Question, source: PeerRef) -> None: ...

    class Doubled(Composed):
        def start(self, host: Host) -> None:
            super().start(host)
            self.add_parts(Another())

    with pytest.raises(Bug, match=r"Answerer\._asked and .*Another\.asked_too both handle Question"):
        FakeHost(1, Doubled())


def test_a_part_and_its_plugin_cannot_share_a_timer() -> None:
    class Ticking(Part):
        @on_timer("tick")
        def beat(self, payload: object) -> None: ...

    class Doubled(Composed):
        def start(self, host: Host) -> None:
            super().start(host)
            self.add_parts(Ticking())

    with pytest.raises(Bug, match=r"Composed\._tick and .*Ticking\.beat both handle the timer 'tick'"):
        FakeHost(1, Doubled())


def test_two_methods_of_one_class_cannot_handle_the_same() -> None:
    with pytest.raises(Bug, match=r"one and .*two both handle the timer 'again'"):

        class Twice(Part):
            @on_timer("again")
            def one(self, payload: object) -> None: ...

            @on_timer("again")
            def two(self, payload: object) -> None: ...


def test_a_subclass_may_handle_what_its_base_handles() -> None:
    class Louder(Answerer):
        @handles(Question)
        def _asked(self, question: Question, source: PeerRef) -> Echo:
            return Echo(2 * question.number)

    host = FakeHost(1)
    plugin = Plugin.__new__(Composed)
    Plugin.start(plugin, host)
    plugin.add_parts(Louder(host))
    assert plugin.handlers.messages[Question](Question(3), peer(2)) == Echo(6)


def test_a_part_may_only_handle_what_the_plugin_lists() -> None:
    class Narrow(Plugin):
        name: ClassVar[str] = "narrow"
        messages = (Question,)

        def start(self, host: Host) -> None:
            super().start(host)
            self.add_parts(Hearer())

    with pytest.raises(Bug, match="Hearer handles Echo but does not list"):
        FakeHost(1, Narrow())


def test_a_timer_of_a_part_that_was_not_added_cannot_be_armed() -> None:
    class Forgetful(Plugin):
        name: ClassVar[str] = "forgetful"
        messages = (Question,)

        def start(self, host: Host) -> None:
            super().start(host)
            self.answerer = Answerer(host)
            host.set_timer("wake", 1.0)

    with pytest.raises(Bug, match="wake"):
        FakeHost(1, Forgetful())
