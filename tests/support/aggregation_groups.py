"""Rounds over groups, of a size that counts as large: what the nodes have, and what an answer then has to be."""

from __future__ import annotations

from peerd.sim.latency import ConstantLatency
from peerd.sim.network import NetworkConfig
from peerd.sim.simulation import Simulation
from protocols.aggregation.config import AggregationConfig
from protocols.aggregation.figures import GroupedAnswer
from protocols.aggregation.groups import GroupStates, Remainder
from protocols.aggregation.partial import Extraction, ExtractionReport
from protocols.aggregation.query import Query, parse_query
from tests.support.aggregation import Round, aggregation_of, aggregation_ring
from tests.support.sinks import ListSink

COUNTS = parse_query("count by key")
L_S = 0.05
FREE = NetworkConfig(jitter=0.0, up_bytes_per_s=None, down_bytes_per_s=None)


def counts_of(index: int, groups: int = 300) -> dict[str, int]:
    """What a node has counted: most keys are everybody's, some its own."""
    return {f"key-{number}": index + number + 1 for number in range(groups)} | {f"own-{index}": 1}


def ring_of_groups(count: int, seed: int, *, pieces_from: int = 1, sink: ListSink | None = None) -> Simulation:
    simulation = aggregation_ring(
        count, seed, network=FREE, latency=ConstantLatency(L_S), sink=sink, check_every=10, padding_bytes=1 << 20
    )
    for index in range(count):
        plugin = aggregation_of(simulation, index)
        plugin.participating.config = plugin.requesting.config = AggregationConfig(pieces_from=pieces_from)

        def run(query: Query, own: int, index: int = index) -> Extraction:
            counts = counts_of(index)
            total = sum(counts.values())
            return Extraction(
                GroupStates(counts, Remainder(0, 0)), ExtractionReport(records=total, records_selected=total)
            )

        plugin.data.extractor = run
    return simulation


def expected(indices: list[int]) -> dict[str, int]:
    total: dict[str, int] = {}
    for index in indices:
        for key, count in counts_of(index).items():
            total[key] = total.get(key, 0) + count
    return total


def check_groups(simulation: Simulation, round_: Round) -> list[int]:
    """The answer is that of its contributors; returns these."""
    answer = round_.answer()
    ids = {place.id: index for index, place in enumerate(simulation.nodes)}
    inside = sorted(ids[node] for node in answer.contributor_ids)
    assert isinstance(answer.value, GroupedAnswer)
    assert dict(answer.value.groups) == expected(inside)
    return inside
