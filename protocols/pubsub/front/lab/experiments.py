"""The experiments ``pubsub/...`` of ``peerd lab``: chapter 4 of the thesis (Li 2008), and what it leaves open.

Latencies are those between PlanetLab hosts, scaled to the thesis's mean round trip, where the folder that
``PEERD_DATA`` names has them; else nodes are random points of a square with the same mean. Neither is the King data set
of the thesis.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from peerd.lab.charts import Chart, Line, lines, reference
from peerd.lab.experiment import Column, Experiment, Row, Settings, Values
from peerd.lab.overlay import rows
from protocols.pubsub.front.lab.figures import STEPS
from protocols.pubsub.front.lab.run import BEGINNING, measure

DATA: Final = "PEERD_DATA"
PLANETLAB: Final = "latency/planetlab_rtt_ms_18x490x490.npz"
SLICE: Final = 9
"""The slice without outliers: the longest round trip is 1.0 s when scaled. In the first one it is 3.7 s, and a node
that is so far from its neighbours on the ring does not become ready with the overlay's default time-outs."""
MEAN_RTT: Final = "180ms"
"""That of the thesis's network of 1,740 nodes (section 4.1.1)."""


def topology() -> str:
    """Measured latencies where they are at hand, else a square; both with the thesis's mean."""
    path = Path(os.environ.get(DATA, "")) / PLANETLAB
    return (
        f"planetlab={path}#{SLICE}@{MEAN_RTT}"
        if DATA in os.environ and path.is_file()
        else f"square=euclidean@{MEAN_RTT}"
    )


def full(*nodes: int) -> Settings:
    """The size of table 4.1: 10,000 events. They follow each other five times as fast, which no figure is about."""
    return Settings(nodes=nodes, duration_s=2000.0, lookups=10_000, settle_s=60.0, topologies=(topology(),))


def quick(*nodes: int) -> Settings:
    """Sizes that take less than a minute."""
    return Settings(nodes=nodes, duration_s=50.0, lookups=100, settle_s=30.0, topologies=(topology(),))


def cumulative(found: Sequence[Row], column: str, by: str) -> tuple[Line, ...]:
    """For each row, the share of the values up to x."""
    made = []
    for row in found:
        values = row.get(column) or []
        points = tuple((value, step / STEPS, step / STEPS, step / STEPS) for step, value in enumerate(values))
        made.append(Line(_label(row, by), points))
    return tuple(made)


def ranked(found: Sequence[Row], column: str, by: str) -> tuple[Line, ...]:
    """For each row, the most loaded nodes in order."""
    return tuple(
        Line(_label(row, by), tuple((float(rank), y, y, y) for rank, y in enumerate(row.get(column) or [], 1)))
        for row in found
    )


def _label(row: Row, by: str) -> str:
    return f"{row['nodes']:,} nodes" if by == "nodes" else f"{by} = {row.get(by)}"


def installation_charts(found: Sequence[Row]) -> list[Chart]:
    """Figures 4.1 and 4.2."""
    thesis = reference("thesis, figure 4.1", [(0.6, 0.7), (1.0, 0.9)])
    spread = reference("thesis, figure 4.2", [(20.0, 0.78), (60.0, 0.98)])
    return [
        Chart(
            "installation-latency",
            "Time until a subscription is acknowledged",
            "seconds",
            "share of subscriptions",
            (*cumulative(found, "install_s", "nodes"), thesis),
        ),
        Chart(
            "installation-bytes",
            "What nodes send while subscriptions are installed",
            "bytes a subscription",
            "share of nodes",
            (*cumulative(found, "install_bytes", "nodes"), spread),
        ),
    ]


def delivery_charts(found: Sequence[Row]) -> list[Chart]:
    """Figures 4.3 and 4.4."""
    thesis = reference("thesis, figure 4.3", [(0.4, 0.7), (1.0, 0.99)])
    spread = reference("thesis, figure 4.4", [(1600.0, 0.7), (3000.0, 0.9)])
    return [
        Chart(
            "delivery-latency",
            "Time from publishing to a subscriber",
            "seconds",
            "share of deliveries",
            (*cumulative(found, "delivery_s", "nodes"), thesis),
        ),
        Chart(
            "delivery-bytes",
            "What nodes send while events are published",
            "bytes an event",
            "share of nodes",
            (*cumulative(found, "event_bytes", "nodes"), spread),
        ),
    ]


def multicast_charts(found: Sequence[Row]) -> list[Chart]:
    """Figures 4.5 and 4.6."""
    return _compared(found, "multicast", "multicast", "Probes sent together or each alone")


def balancing_charts(found: Sequence[Row]) -> list[Chart]:
    """Figures 4.7 and 4.8."""
    return _compared(found, "balancing", "cutoff", "With the cut-off line and without")


def _compared(found: Sequence[Row], name: str, by: str, title: str) -> list[Chart]:
    sent = "bytes an event, without delivery"
    return [
        Chart(f"{name}-bytes", title, sent, "share of nodes", cumulative(found, "probe_bytes", by)),
        Chart(f"{name}-top", f"{title}: most loaded", "rank", sent, ranked(found, "probe_bytes_ranked", by)),
    ]


def scale_charts(found: Sequence[Row]) -> list[Chart]:
    """Figures 4.9 and 4.10."""
    ends = [(1000.0, 0.33), (5000.0, 0.43)]
    return [
        Chart(
            "scale-latency",
            "Time from publishing to a subscriber",
            "nodes",
            "seconds",
            (*lines(found, "nodes", "delivery_mean_s", name="mean"), reference("thesis, mean", ends)),
        ),
        Chart(
            "scale-bytes",
            "What a node sends for an event",
            "nodes",
            "bytes an event",
            lines(found, "nodes", "event_bytes_mean", name="mean"),
        ),
    ]


def warm_charts(found: Sequence[Row]) -> list[Chart]:
    """The distribution with leaves remembered and without."""
    made = cumulative(found, "delivery_s", "leaf_cache_max")
    return [Chart("warm", "Time to a subscriber, leaves remembered or not", "seconds", "share of deliveries", made)]


def skew_charts(found: Sequence[Row]) -> list[Chart]:
    """The most loaded nodes."""
    made = ranked(found, "event_bytes_ranked", "cutoff")
    return [Chart("skew", "All events in a small part of the domain", "rank", "bytes an event", made)]


def churn_charts(found: Sequence[Row]) -> list[Chart]:
    """Latency while nodes come and go."""
    made = cumulative(found, "delivery_s", "nodes")
    return [Chart("churn", "Time to a subscriber while nodes come and go", "seconds", "share of deliveries", made)]


def latency_columns(prefix: str, what: str, *bounds_ms: int) -> tuple[Column, ...]:
    """Columns of `figures.latency_row`."""
    return (
        Column(f"{prefix}_mean_s", "mean s", f"{what}: mean, seconds", 3),
        Column(f"{prefix}_p50_s", "p50 s", f"{what}: median", 3),
        Column(f"{prefix}_p99_s", "p99 s", f"{what}: 99 % take no longer", 3),
        *(
            Column(f"{prefix}_within_{bound}ms", f"<= {bound} ms", f"{what}: share within {bound} ms", 3)
            for bound in bounds_ms
        ),
    )


def bytes_columns(prefix: str, what: str) -> tuple[Column, ...]:
    """Columns of `figures.bytes_row`."""
    return (
        Column(f"{prefix}_bytes_mean", f"B/{what}", f"bytes that a node sends for one {what}, mean over nodes", 2),
        Column(f"{prefix}_bytes_max", f"most B/{what}", "the same of the most loaded node", 1),
        Column(f"{prefix}_bytes_peak", "most / mean", "the most loaded node's share, relative to the mean"),
    )


INSTALLING: Final = (
    Column("installed", "installed", "subscriptions that were acknowledged"),
    *latency_columns("install", "from asking to the acknowledgement", 600, 1000),
    *bytes_columns("install", "subscription"),
    Column("install_tree_bytes_mean", "B without replicas", "the same without the record store's messages"),
)
JUDGED: Final = (
    Column("published", "events", "published while it was measured"),
    Column("acknowledged", "acked", "of them acknowledged as received by all their leaves"),
    Column("deliveries", "deliveries", "to subscribers' nodes"),
    Column("pairs", "pairs", "of a subscription and an event published after it was acknowledged, judged one by one"),
    Column("pairs_missing", "missing", "of those that match, how many did not arrive"),
    Column("wrong", "wrong", "arrived without a match"),
    Column("doubled", "doubled", "arrived twice at a client"),
)
DELIVERING: Final = latency_columns("delivery", "from publishing to the subscriber's client", 400, 1000)
SENT: Final = bytes_columns("event", "event")
PROBED: Final = (
    Column("probe_bytes_mean", "B/event", "bytes that a node sends for one event, without delivery, mean", 2),
    Column("probe_bytes_p98", "p98 B", "98 % of the nodes send no more", 1),
    Column("probe_bytes_max", "most B", "the most loaded node", 1),
    Column("leaves_mean", "leaves", "that an event visits, mean"),
)
WARM: Final[tuple[Values, ...]] = tuple({"publishers": 10, "leaf_cache_max": cached} for cached in (0, 4096))
LI: Final = "Li (2008)"

EXPERIMENTS: Final = (
    Experiment(
        "pubsub/installation",
        "how long installing a subscription takes, and what it costs",
        f"{LI}, figures 4.1 and 4.2",
        takes="--quick: 15 s",
        full=full(1000),
        quick=quick(30),
        columns=(*rows.POINT, *INSTALLING, *rows.COST),
        measure=measure,
        beginning=BEGINNING,
        charts=installation_charts,
    ),
    Experiment(
        "pubsub/delivery",
        "how long an event takes to subscribers, and what it costs",
        f"{LI}, figures 4.3 and 4.4",
        takes="--quick: 15 s",
        full=full(1000),
        quick=quick(30),
        columns=(*rows.POINT, *JUDGED, *DELIVERING, *SENT, *rows.COST),
        measure=measure,
        beginning=BEGINNING,
        charts=delivery_charts,
    ),
    Experiment(
        "pubsub/multicast",
        "what sending probes together saves",
        f"{LI}, figures 4.5 and 4.6",
        takes="--quick: 30 s",
        full=full(1000),
        quick=quick(30),
        columns=(
            *rows.POINT,
            Column("multicast", "multicast", "probes that share a next hop are one message"),
            *PROBED,
            *JUDGED,
            *rows.COST,
        ),
        measure=measure,
        beginning=BEGINNING,
        charts=multicast_charts,
        variants=tuple({"multicast": is_on} for is_on in (True, False)),
    ),
    Experiment(
        "pubsub/balancing",
        "what the cut-off line saves",
        f"{LI}, figures 4.7 and 4.8",
        takes="--quick: 30 s",
        full=full(1000),
        quick=quick(30),
        columns=(
            *rows.POINT,
            Column("cutoff", "cut-off", "longest range kept as one point; 1: no cut-off line"),
            *PROBED,
            *JUDGED,
            *rows.COST,
        ),
        measure=measure,
        beginning=BEGINNING,
        charts=balancing_charts,
        variants=tuple({"cutoff": cutoff} for cutoff in (0.25, 1.0)),
    ),
    Experiment(
        "pubsub/scale",
        "delivery in rings of several sizes",
        f"{LI}, figures 4.9 and 4.10, table 4.5",
        takes="--quick: 30 s",
        full=full(1000, 1740, 3000, 4000, 5000),
        quick=quick(15, 30),
        columns=(*rows.POINT, *JUDGED, *DELIVERING, *SENT, *rows.COST),
        measure=measure,
        beginning=BEGINNING,
        charts=scale_charts,
    ),
    Experiment(
        "pubsub/warm",
        "delivery from publishers that remember leaves, beside the direct way plus one hop",
        f"beyond {LI}",
        takes="--quick: 30 s",
        full=full(1000),
        quick=quick(30),
        columns=(
            *rows.POINT,
            Column("leaf_cache_max", "leaves remembered", "at most, by a publisher's node"),
            *DELIVERING,
            Column("direct_mean_s", "direct s", "mean latency straight from publisher to subscriber", 3),
            Column("one_hop_s", "one hop s", "mean latency between two nodes", 3),
            Column("over_direct", "/ least", "mean delivery over the direct latency plus one hop"),
            *JUDGED,
            *rows.COST,
        ),
        measure=measure,
        beginning=BEGINNING,
        charts=warm_charts,
        variants=WARM,
    ),
    Experiment(
        "pubsub/churn",
        "precision, recall and latency while nodes come and go (median session 60 minutes)",
        f"beyond {LI}, which asks for it in section 5.2",
        takes="--quick: 20 s",
        full=full(1000),
        quick=quick(30),
        columns=(
            *rows.POINT,
            *JUDGED,
            *DELIVERING,
            *SENT,
            Column("departures", "went", "nodes that were killed or lost power"),
            *rows.COST,
        ),
        measure=measure,
        beginning=BEGINNING,
        charts=churn_charts,
        variants=({"session_min": 60.0, "ack": "replicated"},),
    ),
    Experiment(
        "pubsub/skew",
        "load when all events lie in 1 % of each domain",
        f"beyond {LI}, which asks for it in section 5.2",
        takes="--quick: 30 s",
        full=full(1000),
        quick=quick(30),
        columns=(
            *rows.POINT,
            Column("cutoff", "cut-off", "longest range kept as one point"),
            *SENT,
            *JUDGED,
            *rows.COST,
        ),
        measure=measure,
        beginning=BEGINNING,
        charts=skew_charts,
        variants=tuple({"focus": 0.01, "cutoff": cutoff} for cutoff in (0.25, 1.0)),
    ),
)
