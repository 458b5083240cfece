"""Some members of a stream misbehave with its documents: everybody else gets them, and nothing else than them."""

from __future__ import annotations

from random import Random

import pytest

from peerd.api import Plugin
from peerd.limits import MIB
from peerd.sim.hostile.member import Party, behaviours_of
from peerd.sim.simulation import Place, Simulation
from protocols.dissemination.config import DisseminationConfig
from protocols.dissemination.documents.download import REFUSED_S
from protocols.dissemination.documents.messages import DocumentAsk
from protocols.dissemination.front import attached
from protocols.dissemination.front.attached import DocumentJudge
from protocols.dissemination.front.hostile import EXCHANGING, StreamBehaviour
from protocols.dissemination.front.hostile_documents import AbsurdManifests, RefusesChunks
from protocols.dissemination.front.judging import StreamJudge
from protocols.dissemination.models import StreamSpec, StreamView
from protocols.dissemination.plugin import Dissemination

COUNT = 8
SETTINGS = {"fan_out": 2, "documents_max_bytes": "64MiB", "document_max_bytes": "48MiB"}


class World:
    """A ring in which everybody wants the documents of the first node, and these nodes are liars."""

    def __init__(self, kind: type[StreamBehaviour], liars: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(attached, "SIZE_BYTES_MIN", 1 * MIB)
        monkeypatch.setattr(attached, "SIZE_BYTES_MAX", 2 * MIB)
        self.simulation = Simulation(31, plugins=self._plugins)
        self.party = Party(self.simulation, {index: [kind] for index in liars})
        self.simulation.misbehaviour_is_failure = True
        self.simulation.start(COUNT, spacing_s=0.2)
        self.simulation.run_for(COUNT * 0.2)
        self.simulation.run_until(self.simulation.is_ready, 60.0)
        self.judge = StreamJudge()
        self.documents = DocumentJudge(self.judge, Random(3))
        self.producer = self.simulation.nodes[0]
        told: list[StreamView | Exception] = []
        self.judge.create(self.producer, StreamSpec(name="s", kind="classes", policy="first_fit"), told.append)
        self.simulation.run_until(lambda: bool(told), limit_s=30.0)
        # The liars come first, so that they are high up in the tree.
        for index in (*liars, *(each for each in range(1, COUNT) if each not in liars)):
            watched = self.judge.subscribe(self.simulation.nodes[index], "s", "")
            self.simulation.run_until(lambda watched=watched: watched.reader is not None, 30.0)  # type: ignore[misc]  # bound early
        self.judge.watched = [each for each in self.judge.watched if each.place.index not in liars]

    def _plugins(self, index: int) -> list[Plugin]:
        return [Dissemination(DisseminationConfig.model_validate(SETTINGS))]

    def publish(self) -> None:
        told: list[Exception | None] = []
        self.documents.publish(self.producer, "s", "a", told.append)
        self.simulation.run_until(lambda: bool(told), limit_s=10.0)
        assert told == [None]

    def settle(self, duration_s: float) -> None:
        until = self.simulation.now + duration_s
        while self.simulation.now < until:
            self.simulation.run_for(0.5)
            self.judge.read()

    def assert_all_right(self, documents: int) -> None:
        assert not self.documents.wrong
        assert len(self.documents.readings) == documents * len(self.judge.watched)
        assert not [each.told for each in self.documents.readings if each.told]
        waiting = [str(each.watched.place) for each in self.documents.readings if each.is_waiting]
        assert not waiting

    def has_struck(self) -> bool:
        behaviours = [each for place in self.liars for each in behaviours_of(place)]
        return any(each.said for each in behaviours if isinstance(each, StreamBehaviour))

    @property
    def asked(self) -> int:
        """How many chunks were asked for so far."""
        return self.simulation.traffic()[DocumentAsk.TYPE_ID][0]

    @property
    def liars(self) -> list[Place]:
        return [place for place in self.simulation.nodes if place.index in self.simulation.hostile]


@pytest.mark.parametrize("liars", [(1,), pytest.param((1, 2, 3), marks=pytest.mark.long)], ids=["one", "three"])
@pytest.mark.parametrize("kind", EXCHANGING, ids=lambda kind: kind.name)
def test_everybody_gets_the_documents(
    kind: type[StreamBehaviour], liars: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(kind, liars, monkeypatch)
    world.publish()
    world.settle(15.0)
    world.assert_all_right(1)
    world.party.begin()
    for _ in range(2):
        world.publish()
        world.settle(25.0)
    assert world.has_struck()
    world.assert_all_right(3)


def test_documents_that_nobody_has_leave_the_others_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(AbsurdManifests, (1,), monkeypatch)
    world.party.begin()
    for _ in range(4):
        world.publish()
        world.settle(2.0)
    assert world.has_struck()
    world.simulation.kill(world.liars[0])
    world.settle(40.0)
    before = len(world.documents.readings)
    world.publish()
    world.settle(20.0)
    new = world.documents.readings[before:]
    assert len(new) == len(world.judge.watched) and not any(each.told or each.is_waiting for each in new)
    assert not world.documents.wrong


def test_who_refuses_what_it_promises_is_not_asked_at_once_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else each refusal and promise would cost the honest node a question, and a word to all its neighbours."""
    world = World(RefusesChunks, (1,), monkeypatch)
    world.party.begin()
    world.publish()
    world.simulation.run_for(0.5)
    world.simulation.kill(world.producer)
    before = world.asked
    world.settle(20.0)
    assert before < world.asked <= before + 1.2 * (COUNT - 2) * 20.0 / REFUSED_S
