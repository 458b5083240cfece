"""Aggregation in the swarm: some of its seeds, and that its checker and its judge find what is wrong."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from peerd.errors import Bug, ConfigError
from peerd.ids import NodeId
from peerd.sim.simulation import Simulation
from peerd.sim.swarm.plan import Attackers
from peerd.sim.swarm.swarm import run_seed
from peerd.telemetry.schema import Event
from peerd.testing.simulation import ring
from protocols.aggregation.front.scenario import plugin_of
from protocols.aggregation.front.simulator import CountedOnce, Rounds
from protocols.aggregation.requester import RoundListener
from tests.support.aggregation import SUM, aggregation_ring
from tests.support.fake_aggregation import ANSWER
from tests.support.long_cases import cases

PROTOCOLS = ("aggregation",)
LARGE = (2, 3)
"""In the rings that they draw, of 64 and 24 nodes, these two take longer than all others together."""
SMALLER = 12


@pytest.mark.parametrize("seed", cases((0, 2, 3, 4, 5), (1, *range(6, 12))))
def test_seed(seed: int) -> None:
    result = run_seed(seed, nodes=SMALLER if seed in LARGE else None, protocols=PROTOCOLS)
    assert result.passed, f"{result.plan}: {result.failure}"
    assert result.plan.startswith("aggregation, ")


@pytest.mark.long
@pytest.mark.parametrize("seed", LARGE)
def test_seed_in_the_ring_that_it_draws(seed: int) -> None:
    result = run_seed(seed, protocols=PROTOCOLS)
    assert result.passed, f"{result.plan}: {result.failure}"


@pytest.mark.parametrize("seed", cases((0, 1, 77), range(2, 8)))
def test_seed_among_liars(seed: int) -> None:
    """Seed 77 was red once: a node went on at the instant when another died that had left, and come back, before."""
    result = run_seed(seed, nodes=6, protocols=PROTOCOLS, attackers=Attackers(number=1))
    assert result.passed, f"{result.plan}: {result.failure}"


def test_a_seed_is_one_run_with_protocols_too() -> None:
    with_it = [run_seed(6, protocols=PROTOCOLS).digest for _ in range(2)]
    assert with_it[0] == with_it[1] != run_seed(6).digest


def test_an_unknown_protocol_is_a_config_error() -> None:
    with pytest.raises(ConfigError, match=r"protocols\.agregation: .*did you mean"):
        run_seed(6, protocols=("agregation",))


def merged_ring() -> Simulation:
    """A ring in the middle of a round: somebody has merged already."""
    simulation = aggregation_ring(8, seed=3)
    plugin_of(simulation.nodes[0]).requesting.aggregate(SUM, RoundListener(lambda answer: None))
    simulation.run_until(lambda: any(_participants(simulation)), limit_s=30)
    return simulation


def _participants(simulation: Simulation) -> list[object]:
    return [
        participant
        for place in simulation.nodes
        for participant in plugin_of(place).participating.participants.values()
        if participant.aggregate is not None
    ]


@pytest.mark.parametrize(
    ("contributors", "offence"),
    [((5, 5), "counts a contributor twice"), ((NodeId(5),), "has never been there")],
)
def test_the_checker_finds_who_is_counted_twice(contributors: tuple[NodeId, ...], offence: str) -> None:
    simulation, checker = merged_ring(), CountedOnce()
    assert checker.check(simulation) == []
    for place in simulation.nodes:
        for participant in plugin_of(place).participating.participants.values():
            if participant.aggregate is not None:
                partial = replace(participant.aggregate.partial, contributors=contributors)
                participant.aggregate = replace(participant.aggregate, partial=partial)
    assert offence in "; ".join(checker.check(simulation))


def calm_rounds() -> Rounds:
    """The work of a seed in a calm ring of five."""
    return Rounds(ring(5, seed=1, plugins=lambda index: [Rounds.plugin(index)]), Random(1))


def test_the_judge_wants_all_nodes_in_a_calm_ring() -> None:
    work = calm_rounds()
    assert work.verdict() == ["a round in a calm ring has no answer"]
    work.prove(work.simulation.nodes[2])
    work.simulation.run_for(10)
    assert work.verdict() == []
    work.simulation.start(1)
    work.simulation.run_for(10)
    assert work.verdict() == ["a round in a calm ring of 6 nodes: complete, 5 of 5"]


def test_the_judge_finds_what_is_counted_twice_or_hidden() -> None:
    work = calm_rounds()
    work._judge(replace(ANSWER, value=2))
    assert work._offences == []
    work._judge(replace(ANSWER, value=3))
    work._judge(replace(ANSWER, value=2, missing_count=0))
    assert [text.partition(" ")[2] for text in work._offences] == [
        "round counts 3 records of 2 nodes, and says 2",
        "round has 2 of 3 nodes and hides some",
    ]


class Undeclared(Event):
    """An event that no plugin has declared."""

    KIND = "aggregation.undeclared"


def test_a_plugin_records_only_what_it_declares() -> None:
    work = calm_rounds()
    with pytest.raises(Bug, match="aggregation records Undeclared, which is not among"):
        plugin_of(work.simulation.nodes[0]).host.emit(Undeclared())
