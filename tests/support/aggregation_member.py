"""A node with the aggregation plugin on a fake host, one other node next to it, and a round that a third one starts."""

from __future__ import annotations

from peerd.ids import NodeId
from peerd.messages import Message, PeerRef
from peerd.testing.host import FakeHost, peer
from protocols.aggregation.config import AggregationConfig
from protocols.aggregation.groups import Grouped
from protocols.aggregation.messages import (
    Enrolled,
    StartRound,
)
from protocols.aggregation.partial import Extraction, ExtractionReport
from protocols.aggregation.plugin import Aggregation
from protocols.aggregation.query import Query, parse_query
from tests.support.aggregation import started

QUERY = parse_query("sum(value) by k")
OWN, SIBLING, ASKER = 1 << 120, 3 << 120, 200 << 120
LEVEL = 6


def one_record(query: Query, own: NodeId) -> Extraction:
    """The data of a node: one record, of group "a"."""
    function = query.function
    report = ExtractionReport(records=1, records_selected=1)
    if not query.by:
        return Extraction(function.lift(1), report)
    return Extraction(Grouped(function, query.groups_max).lift("a", 1), report)


def member(*, is_near: bool = True) -> tuple[Aggregation, FakeHost]:
    """A node with data, and one other node next to it. ``is_near``: so is who asks."""
    plugin = Aggregation(AggregationConfig())
    plugin.data.extractor = one_record
    host = FakeHost(OWN, plugin)
    host.neighbours = (peer(SIBLING), peer(ASKER)) if is_near else (peer(SIBLING),)
    return plugin, host


def start(
    query: bytes = QUERY.to_wire(), requester: PeerRef | None = None, number: int = 0, remaining_s: float = 60.0
) -> StartRound:
    """The start of a round; another number makes it another round."""
    return started(requester or peer(ASKER), query, number=number, remaining_s=remaining_s)


ROUND = start().round_id


def broadcast(host: FakeHost, message: Message, source: PeerRef) -> None:
    """It comes through the overlay: whoever is between may have made up its source."""
    assert host.plugin is not None
    host.plugin.deliver(source.id, message, source)
    host.run_later()


def enrolments(host: FakeHost, asker: PeerRef) -> int:
    """How often this node said to the requester that it takes part."""
    direct = [(request.peer.id, request.message) for request in host.requests]
    return sum(isinstance(each, Enrolled) and to == asker.id for to, each in [*host.routed, *direct])
