"""Simulated rings whose nodes have numbers instead of files, and rounds over them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from peerd.api import Plugin
from peerd.ids import NodeId
from peerd.messages import PeerRef
from peerd.sim.identity import SimulatedKeys
from peerd.sim.latency import LatencyModel
from peerd.sim.network import NetworkConfig
from peerd.sim.simulation import Simulation
from peerd.telemetry.sinks import EventSink
from peerd.testing.simulation import ring
from protocols.aggregation.answer import Answer, RoundProgress
from protocols.aggregation.config import AggregationConfig
from protocols.aggregation.exchange import Extractor
from protocols.aggregation.messages import StartRound
from protocols.aggregation.partial import Extraction, ExtractionReport
from protocols.aggregation.plugin import Aggregation
from protocols.aggregation.query import Query, parse_query
from protocols.aggregation.requester import RoundListener
from protocols.aggregation.statements import NONCE_BYTES, round_id_of, start_statement

SUM = parse_query("sum(value)")


def signed(signer: NodeId, statement: bytes) -> bytes:
    """The proof that hosts of tests (`peerd.testing.host.FakeHost`) accept for this node."""
    return SimulatedKeys(0).sign(signer, Aggregation.name, statement)


def started(
    requester: PeerRef,
    query: bytes,
    *,
    number: int = 0,
    begins_at_s: float = 0.0,
    remaining_s: float = 60.0,
    census: bool = True,
    is_direct: bool = True,
    may_name: bool = False,
) -> StartRound:
    """The start of a round as it is broadcast; another number makes it another round."""
    nonce = number.to_bytes(NONCE_BYTES, "big")
    lasts_ms, begins_at_ms = round(remaining_s * 1000), round(begins_at_s * 1000)
    round_id = round_id_of(nonce, requester, query, begins_at_ms, lasts_ms, census, is_direct, (), may_name)
    proof = signed(requester.id, start_statement(round_id))
    how = census, is_direct, begins_at_ms, lasts_ms, nonce, proof, (), may_name
    return StartRound(round_id, requester, query, 0, lasts_ms, *how)


def weight(index: int) -> int:
    """What node ``index`` contributes: powers of two up to 2^40 and then odd multiples, so sums tell who is in."""
    return 1 << index if index < 40 else (2 * index + 1) << 41


def number_extractor(index: int) -> Extractor:
    """Extraction without files: one record with this node's weight."""

    def run(query: Query, own: NodeId) -> Extraction:
        value = query.function.lift(weight(index))
        return Extraction(value, ExtractionReport(records=1, records_selected=1))

    return run


def aggregation_plugins(index: int, padding_bytes: int = 0) -> list[Plugin]:
    """The plugins of simulated node ``index``."""
    plugin = Aggregation(AggregationConfig())
    plugin.data.extractor = number_extractor(index)
    plugin.data.padding_bytes = padding_bytes
    return [plugin]


def aggregation_ring(
    count: int,
    seed: int,
    *,
    padding_bytes: int = 0,
    network: NetworkConfig | None = None,
    latency: LatencyModel | None = None,
    sink: EventSink | None = None,
    check_every: int = 0,
) -> Simulation:
    """A converged ring of nodes that aggregate."""
    return ring(
        count,
        seed,
        plugins=lambda index: aggregation_plugins(index, padding_bytes),
        network=network,
        latency=latency,
        sink=sink,
        check_every=check_every,
    )


@dataclass
class Round:
    """One round under way, asked for by one node."""

    simulation: Simulation
    requester: int = 0
    deadline_s: float = 60.0
    query: Query = SUM
    top: int | None = None
    to: str = ""
    answers: list[Answer] = field(default_factory=list)
    progress: list[RoundProgress] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.began_at = self.simulation.now
        listener = RoundListener(self.answers.append, self.progress.append, self.top, self.to)
        self.round_id = self.plugin.requesting.aggregate(self.query, listener, self.deadline_s)

    @property
    def plugin(self) -> Aggregation:
        """The requester's."""
        return aggregation_of(self.simulation, self.requester)

    def answer(self, limit_s: float = 120.0) -> Answer:
        """Run until the answer is there; it comes once."""
        self.simulation.run_until(lambda: bool(self.answers), limit_s=limit_s)
        [answer] = self.answers
        return answer


def aggregation_of(simulation: Simulation, index: int) -> Aggregation:
    """The aggregation plugin of a node."""
    plugin = simulation.nodes[index].node.plugins["aggregation"]
    assert isinstance(plugin, Aggregation)
    return plugin


def total(simulation: Simulation, contributors: Iterable[NodeId]) -> int:
    """The reference: the sum of the weights of exactly these nodes."""
    indices = {place.id: place.index for place in simulation.nodes}
    return sum(weight(indices[node_id]) for node_id in contributors)


def check_answer(simulation: Simulation, answer: Answer) -> None:
    """An answer is honest: each contributor once, the value theirs exactly, and the missing are the others."""
    assert len(set(answer.contributor_ids)) == len(answer.contributor_ids) == answer.contributors
    assert (answer.value or 0) == total(simulation, answer.contributor_ids)
    named = {missing.node for missing in answer.missing}
    assert named.isdisjoint(answer.contributor_ids)
    assert answer.contributors + answer.missing_count == answer.expected
    assert all(missing.reason for missing in answer.missing)
