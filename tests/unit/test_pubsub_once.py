"""Events that their clients name: each is published once, whoever sends it again."""

from __future__ import annotations

from typing import Any

import pytest

from peerd.errors import Unavailable
from protocols.pubsub.models import Published
from protocols.pubsub.names import EventId
from protocols.pubsub.publishing.once import ONCE_MAX, ONCE_S, OnceWindow
from tests.support.fake_daemon import OWN
from tests.support.fake_pubsub import published


class Sender:
    """Publishes by names, and ends the publishes as the test says."""

    def __init__(self) -> None:
        self.window = OnceWindow()
        self.begun: list[Any] = []
        self.told: list[Published | Exception] = []

    def send(self, name: str, now: float = 0.0) -> EventId:
        """Send an event."""

        def begin(done: Any) -> EventId:
            self.begun.append(done)
            return EventId(OWN.id, 1, len(self.begun))

        return self.window.publish(name, now, self.told.append, begin)


def test_what_comes_again_gets_the_answer_of_the_first() -> None:
    sender = Sender()
    assert sender.send("a") == sender.send("a") != sender.send("b")
    assert len(sender.begun) == 2 and not sender.told
    sender.begun[0](published(1))
    assert sender.told == [published(1)] * 2
    sender.send("a", ONCE_S - 1)
    assert len(sender.begun) == 2 and sender.told == [published(1)] * 3


@pytest.mark.parametrize("answer", [Unavailable("gone"), published(1, "unknown")])
def test_without_a_certain_outcome_it_is_published_anew(answer: Published | Exception) -> None:
    sender = Sender()
    sender.send("a")
    sender.begun[0](answer)
    sender.send("a")
    assert len(sender.begun) == 2 and sender.told == [answer]


def test_a_name_is_forgotten_after_a_while_and_when_there_are_too_many() -> None:
    sender = Sender()
    sender.send("a")
    sender.send("a", ONCE_S)
    assert len(sender.begun) == 2
    for number in range(ONCE_MAX + 10):
        sender.send(f"b{number}", ONCE_S)
    assert len(sender.window) == ONCE_MAX
    sender.begun[1](published(1))  # it is not known any more, and its client is told all the same
    assert sender.told == [published(1)]


def test_what_is_refused_at_once_may_come_again() -> None:
    window = OnceWindow()

    def refuse(done: Any) -> EventId:
        raise Unavailable("not now")

    with pytest.raises(Unavailable):
        window.publish("a", 0.0, lambda answer: None, refuse)
    assert len(window) == 0
