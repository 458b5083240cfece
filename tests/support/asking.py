"""A requester on a fake host, and the results that others may offer to it."""

from __future__ import annotations

from peerd.api import SwapCallbacks
from peerd.ids import NodeId
from peerd.testing.host import FakeHost, peer
from protocols.aggregation.answer import Answer
from protocols.aggregation.config import AggregationConfig
from protocols.aggregation.exchange import Aggregate, extract_own, merge_received, open_own
from protocols.aggregation.messages import Enrolled, ResultReady
from protocols.aggregation.partial import Extraction, ExtractionReport
from protocols.aggregation.plugin import Aggregation
from protocols.aggregation.prefix import IdLevels
from protocols.aggregation.query import Query, parse_query
from protocols.aggregation.registry import function_named
from protocols.aggregation.requester import RoundListener

OWN = 1
QUERY = parse_query("count")


def one_zero(query: Query, own: NodeId) -> Extraction:
    return Extraction(function_named("count").lift(0), ExtractionReport(records=1, records_selected=1))


def data_of(*numbers: int) -> Aggregate:
    """The result of a tree that holds these nodes: a list of one each, merged in an order that the levels allow."""
    parts = [
        open_own(QUERY, NodeId(number << 120), 0, extract_own(one_zero, QUERY, NodeId(number << 120)))
        for number in numbers
    ]
    whole = parts[0]
    for number, part in zip(numbers[1:], parts[1:], strict=True):
        level = 8 - (numbers[0] ^ number).bit_length()
        whole = merge_received(IdLevels(NodeId(numbers[0] << 120)), level, whole, part.value)
    return whole


class Asking:
    """A requester without data of its own among other nodes."""

    def __init__(self) -> None:
        self.plugin = Aggregation(AggregationConfig())
        self.host = FakeHost(OWN, self.plugin)
        self.host.neighbours = tuple(peer(number << 120) for number in range(1, 9))
        self.answers: list[Answer] = []
        self.round_id = self.plugin.requesting.aggregate(QUERY, RoundListener(self.answers.append), 60.0)
        self.enrol(*range(2, 9))

    def enrol(self, *numbers: int) -> None:
        """These nodes take part."""
        for number in numbers:
            self.host.deliver(Enrolled(self.round_id, ""), peer(number << 120))

    def offer(self, number: int, contributors: int, value: bytes = b"") -> None:
        """A node's tree is complete."""
        self.host.deliver(ResultReady(self.round_id, contributors, 100, value=value), peer(number << 120))

    def fetches(self) -> list[tuple[int, SwapCallbacks]]:
        """Whose results were fetched so far, and how to answer."""
        asked = [each.arguments for each in self.host.asked if each.what == "fetch"]
        return [(each["peer"].id >> 120, each["callbacks"]) for each in asked]

    def fetched(self, *numbers: int) -> None:
        """The last fetch brings the data of these nodes."""
        self.fetches()[-1][1].done(data_of(*numbers).value)
        self.host.run_later()

    def asked(self) -> list[int]:
        """Who was asked why it is missing."""
        return [request.peer.id >> 120 for request in self.host.requests]

    def settled(self) -> None:
        """No fuller result came in time."""
        self.host.fire("settle_due", self.round_id)

    def answer(self) -> Answer:
        """After everybody who is missing was asked in vain."""
        for request in self.host.requests:
            request.on_timeout()
        [answer] = self.answers
        return answer
