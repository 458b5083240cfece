"""The metrics of dissemination, and the line about each stream in the event log every minute."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from peerd.api import Host, Metric
from protocols.dissemination.events import StreamLoad
from protocols.dissemination.meter import StreamCounts
from protocols.dissemination.stream_node import StreamNode

METRICS: Final[tuple[Metric, ...]] = (
    Metric("peerd_dissemination_items_total", "counter", "Items of streams, by direction.", ("direction",)),
    Metric("peerd_dissemination_bytes_total", "counter", "Bytes of items of streams, by direction.", ("direction",)),
    Metric("peerd_dissemination_spurious_total", "counter", "Items that came, and that no subscription here wanted."),
    Metric("peerd_dissemination_refusals_total", "counter", "Nodes that were not taken as children."),
    Metric("peerd_dissemination_moves_total", "counter", "Attempts to get a parent, by how they ended.", ("end",)),
    Metric("peerd_dissemination_gaps_total", "counter", "Parts of streams that this node has lost, and knows of."),
    Metric(
        "peerd_dissemination_lies_total",
        "counter",
        "Parents that forged a stream, left items out, or went back in it.",
        ("reason",),
    ),
    Metric(
        "peerd_dissemination_reader_drops_total",
        "counter",
        "Items that were let go before a slow reader had taken them.",
        ("reason",),
    ),
    Metric("peerd_dissemination_unkept_total", "counter", "Times that the disk refused a durable stream's items."),
    Metric("peerd_dissemination_failed_interests_total", "counter", "Interests that could not be matched, and ended."),
    Metric("peerd_dissemination_take_overs_total", "counter", "Streams taken over because their producer was gone."),
    Metric("peerd_dissemination_streams", "gauge", "Streams that this node takes part in."),
    Metric("peerd_dissemination_children", "gauge", "Children in the trees of all streams."),
    Metric("peerd_dissemination_orphans", "gauge", "Streams for which this node has no parent at the moment."),
    Metric("peerd_dissemination_depth_max", "gauge", "The most edges between this node and a producer."),
    Metric("peerd_dissemination_queued_bytes", "gauge", "What waits to be sent to children."),
    Metric("peerd_dissemination_documents_total", "counter", "Documents, by what became of them.", ("outcome",)),
    Metric("peerd_dissemination_document_bytes_total", "counter", "Bytes of documents, by direction.", ("direction",)),
    Metric("peerd_dissemination_chunks_refused_total", "counter", "Chunks that were not what the manifest says."),
    Metric("peerd_dissemination_documents_bytes", "gauge", "What the documents take that are kept here."),
)
REPORT_S: Final = 60.0
_NONE: Final = StreamCounts()


class StreamLedger:
    """Takes what streams have counted."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._taken: dict[StreamNode, StreamCounts] = {}
        self._shown: dict[str, float] = {}
        self._reported: dict[StreamNode, StreamCounts] = {}
        self._report_at = host.now() + REPORT_S
        self.uplink_bytes_per_s = 0.0
        """What this node sends to children, of all streams."""

    def take(self, nodes: Sequence[StreamNode]) -> None:
        """Count what has happened since the last call."""
        for node in nodes:
            self._take(node)
        self.uplink_bytes_per_s = sum(node.meter.rates["bytes_out"] for node in nodes)
        self._show("peerd_dissemination_streams", len(nodes))
        self._show("peerd_dissemination_children", sum(len(node.member.down.children) for node in nodes))
        self._show("peerd_dissemination_orphans", sum(node.depth is None for node in nodes))
        self._show("peerd_dissemination_depth_max", max((node.depth or 0 for node in nodes), default=0))
        self._show("peerd_dissemination_queued_bytes", sum(node.queued_bytes() for node in nodes))
        if self._host.now() >= self._report_at:
            self._report_at = self._host.now() + REPORT_S
            self.report(nodes)

    def gone(self, node: StreamNode) -> None:
        """Count and tell the rest of a stream that this node has no part in from now on."""
        self._take(node)
        self._report(node)
        self._taken.pop(node, None)
        self._reported.pop(node, None)

    def report(self, nodes: Iterable[StreamNode]) -> None:
        """Tell the event log what has happened since the last time."""
        for node in nodes:
            self._report(node)

    def _take(self, node: StreamNode) -> None:
        counts, before = node.meter.counts, self._taken.get(node, _NONE)
        if counts != before or node.gaps or node.seeking.moves:  # mostly nothing has happened
            self._count(node, counts.minus(before))
            self._taken[node] = counts.copy()

    def _show(self, gauge: str, value: float) -> None:
        """Set a gauge, unless it has this value already, as it mostly has."""
        if self._shown.get(gauge) != value:
            self._shown[gauge] = value
            self._host.gauge(gauge, value)

    def _count(self, node: StreamNode, since: StreamCounts) -> None:
        amounts: tuple[tuple[str, int, dict[str, str]], ...] = (
            ("peerd_dissemination_items_total", since.items_in, {"direction": "in"}),
            ("peerd_dissemination_items_total", since.items_out, {"direction": "out"}),
            ("peerd_dissemination_bytes_total", since.bytes_in, {"direction": "in"}),
            ("peerd_dissemination_bytes_total", since.bytes_out, {"direction": "out"}),
            ("peerd_dissemination_spurious_total", since.spurious, {}),
            ("peerd_dissemination_refusals_total", since.refused, {}),
            ("peerd_dissemination_gaps_total", node.gaps, {}),
        )
        for name, amount, labels in amounts:
            if amount:
                self._host.count(name, amount, **labels)
        for end, count in node.seeking.moves.items():
            self._host.count("peerd_dissemination_moves_total", count, end=end)
        node.gaps = 0
        node.seeking.moves.clear()

    def _report(self, node: StreamNode) -> None:
        since = node.meter.counts.minus(self._reported.get(node, _NONE))
        if replace(since, held_ms=0) == _NONE:
            return  # nothing but that values were held: that is told with what happens next
        self._reported[node] = node.meter.counts.copy()
        self._host.emit(
            StreamLoad(
                stream=node.name,
                depth=-1 if node.depth is None else node.depth,
                children=len(node.member.down.children),
                items_in=since.items_in,
                bytes_in=since.bytes_in,
                items_out=since.items_out,
                bytes_out=since.bytes_out,
                spurious=since.spurious,
                queued_bytes=node.queued_bytes(),
                refused=since.refused,
                late_s=since.late_ms / 1000,
                held_s=since.held_ms / 1000,
                outdated_s=since.outdated_ms / 1000,
            )
        )
