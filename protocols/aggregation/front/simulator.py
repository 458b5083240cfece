"""Aggregation in the simulator: an invariant, and its work in the swarm."""

from __future__ import annotations

from random import Random

from peerd.api import Plugin
from peerd.errors import Unavailable
from peerd.ids import format_id, short_id
from peerd.sim.checkers import Checker
from peerd.sim.simulation import Place, Simulation
from peerd.sim.swarm.work import SwarmWork
from protocols.aggregation.answer import Answer
from protocols.aggregation.config import AggregationConfig
from protocols.aggregation.front.scenario import one_record, plugin_of
from protocols.aggregation.plugin import Aggregation
from protocols.aggregation.query import parse_query
from protocols.aggregation.requester import RoundListener

COUNT = parse_query("count", files="**/*")


class CountedOnce(Checker):
    """Every partial on any node names each contributor once, and only nodes that have existed.

    Where there are hostile nodes, only the requester can tell who took part: it is answers that are judged there.
    """

    name = "aggregation once"
    holds_always = True

    def check_node(self, simulation: Simulation, place: Place) -> list[str]:
        plugin = place.node.plugins.get(Aggregation.name)
        if not isinstance(plugin, Aggregation):
            return []
        found: list[str] = []
        for round_id, participant in plugin.participating.participants.items():
            if participant.aggregate is None:
                continue
            contributors = participant.aggregate.partial.contributors
            if len(set(contributors)) != len(contributors):
                found.append(f"round {round_id.hex()[:8]} counts a contributor twice at {short_id(place.id)}")
            found += [
                f"round {round_id.hex()[:8]} has data of {format_id(node)}, which has never been there"
                for node in contributors
                if node not in simulation.places and not simulation.hostile
            ]
        return found


class Rounds(SwarmWork):
    """Each node has one record. Rounds run during the faults; what they count must be who contributed, each once.

    In the calm ring one round must have the data of all nodes. With hostile nodes in the ring it may be partial, but
    must say so, and it names nobody who does not exist. What a hostile node says of its own data is believed.
    """

    gap_s: float = 8.0

    def __init__(self, simulation: Simulation, rng: Random) -> None:
        super().__init__(simulation, rng)
        self._offences: list[str] = []
        self._proof: Answer | None = None

    @classmethod
    def plugin(cls, index: int) -> Plugin:
        plugin = Aggregation(AggregationConfig.model_validate({"deadline": "20s"}))
        plugin.data.extractor = one_record(str(index))
        return plugin

    def act(self, place: Place) -> None:
        try:
            plugin_of(place).requesting.aggregate(COUNT, RoundListener(self._judge))
        except Unavailable:
            return  # as many rounds as it takes are open there: that is an answer, too

    def prove(self, place: Place) -> None:
        def finished(answer: Answer) -> None:
            self._judge(answer)
            self._proof = answer

        plugin_of(place).requesting.aggregate(COUNT, RoundListener(finished))

    def verdict(self) -> list[str]:
        live = len(self.simulation.live_nodes())
        if self.simulation.hostile:
            return [*self._offences, *self._judge_among_liars()]
        if self._proof is None:
            return [*self._offences, "a round in a calm ring has no answer"]
        if self._proof.contributors != live:
            told = f"{self._proof.outcome}, {self._proof.contributors} of {self._proof.expected}"
            return [*self._offences, f"a round in a calm ring of {live} nodes: {told}"]
        return self._offences

    def _judge(self, answer: Answer) -> None:
        """Check what holds for every answer: who is not counted is missing, and the contributors are nodes."""
        if self.simulation.hostile:
            self._judge_names(answer)
        else:
            self._judge_value(answer)
        if answer.contributors + answer.missing_count < answer.expected:
            self._offences.append(f"a round has {answer.contributors} of {answer.expected} nodes and hides some")

    def _judge_value(self, answer: Answer) -> None:
        """The number of records is that of the contributors."""
        counted = answer.value or 0
        distinct = len(set(answer.contributor_ids))
        if not counted == distinct == answer.contributors:
            self._offences.append(
                f"a round counts {counted} records of {distinct} nodes, and says {answer.contributors}"
            )

    def _judge_among_liars(self) -> list[str]:
        """The last round: an answer there is, and one that says that it is complete has all honest nodes."""
        if self._proof is None:
            return ["a round in a calm ring has no answer"]
        named = set(self._proof.contributor_ids)
        missing = [place.index for place in self.simulation.honest_nodes() if place.id not in named]
        if self._proof.outcome == "complete" and missing:
            return [f"a round in a calm ring says that it is complete, and lacks the honest nodes {missing}"]
        return []

    def _judge_names(self, answer: Answer) -> None:
        """Nobody counts twice or never was. The value may be a hostile node's."""
        names = answer.contributor_ids
        invented = [format_id(node) for node in names if node not in self.simulation.places]
        if invented:
            self._offences.append(f"a round has data of {invented[0]}, which has never been there")
        if len(set(names)) != len(names):
            self._offences.append("a round names a contributor twice")
