"""The experiments ``pubsub/...`` of ``peerd lab``: chapter 4 of the thesis (Li 2008), and what it leaves open.

Latencies are those between PlanetLab hosts, scaled to the thesis's mean round trip, where the folder that
``PEERD_DATA`` names has them; else nodes are random points of a square with the same mean. Neither is the King data set
of the thesis.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from peerd.lab.experiment import Column, Draw, Experiment, Settings, Values
from peerd.lab.overlay import rows
from peerd.lab.topologies import measured_or_square
from protocols.pubsub.front.lab import charts
from protocols.pubsub.front.lab.claims import LI_SAYS
from protocols.pubsub.front.lab.run import BEGINNING, measure

PLANETLAB: Final = "latency/planetlab_rtt_ms_18x490x490.npz"
SLICE: Final = 9
"""The slice without outliers: the longest round trip is 1.0 s when scaled. In the first one, a host is up to 3.7 s away
from a third of the others, and its node does not become ready: a connection takes it longer than nodes wait."""
MEAN_RTT: Final = "180ms"
"""That of the thesis's network of 1,740 nodes (section 4.1.1)."""
EVENT_GAP_S: Final = 0.2
"""Events follow each other five times as fast as in the thesis, which no figure is about."""
EVENTS: Final = 10_000
"""As in table 4.1."""
FEWER: Final = 1000
"""Enough for means over nodes and for shares of deliveries, of which there are a hundred for each event."""
QUICK_EVENTS: Final = 100
SETTLE_S: Final = 60.0


def topology() -> str:
    """Measured latencies where they are at hand, else a square; both with the thesis's mean."""
    return measured_or_square("planetlab", PLANETLAB, MEAN_RTT, f"#{SLICE}")


def settings(nodes: Sequence[int], events: int, gap_s: float = EVENT_GAP_S) -> Settings:
    """So many events in rings of these sizes."""
    duration_s = max(events, 1) * gap_s
    return Settings(tuple(nodes), duration_s, lookups=events, settle_s=SETTLE_S, topologies=(topology(),))


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
    *latency_columns("install", "until its leaf has it, as its node hears (the thesis's measure)", 600, 1000),
    Column("replicated_mean_s", "replicated s", "until it is at all replicas of its leaf: mean, seconds", 3),
    Column("replicated_p90_s", "p90 s", "the same: 90 % take no longer", 3),
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
LEAVES: Final = Column("leaves_mean", "leaves", "that an event visits, mean")
PROBED: Final = (
    Column("probe_bytes_mean", "B/event", "bytes that a node sends for one event, without delivery, mean", 2),
    Column("probe_bytes_p98", "p98 B", "98 % of the nodes send no more", 1),
    Column("probe_bytes_max", "most B", "the most loaded node", 1),
    LEAVES,
)
TOGETHER: Final = Column("multicast", "multicast", "probes that share a next hop are one message")
CUTOFF: Final = Column("cutoff", "cut-off", "longest range kept as one point; 1: no cut-off line")
MAPPED: Final = Column(
    "tree_maps", "maps", "publishers ask for the leaves of a tree once; else they guess, as in the thesis"
)
BALANCING: Final = Column("balancing", "balancing", "adaptive: leaves are split also when their node is busy")
PUBLISHERS: Final = (
    Column("burst", "burst", "twenty nodes publish all events, five times as fast"),
    Column("publishers", "publishers", "nodes that publish"),
)
CACHED: Final = Column("leaf_cache_max", "leaves remembered", "at most, by a publisher's node")
LEAST: Final = (
    Column("direct_mean_s", "direct s", "mean latency straight from publisher to subscriber", 3),
    Column("one_hop_s", "one hop s", "mean latency between two nodes", 3),
    Column("over_direct", "/ least", "mean delivery over the direct latency plus one hop"),
)
WENT: Final = (
    Column("departures", "went", "nodes that were killed or lost power while events were published"),
    Column("pieces_lost", "lost", "pieces of running nodes' subscriptions that were in no leaf in the end"),
)
HALVES: Final = (
    Column("cut", "cut off", "share of the nodes on one side of the cut", 2),
    Column("cut_published", "events in the cut", "published while the network was cut; not among those judged"),
    Column("cut_acknowledged", "acked", "of them acknowledged"),
    Column("whole_s", "whole after s", "from the end of the cut until all nodes agree on one ring", 1),
)
LI: Final = "Li (2008)"
SKEWED: Final[tuple[Values, ...]] = (
    {"focus": 0.01, "warm": True, "cutoff": 0.25, "balancing": "adaptive", "hot_rate": "50B"},
    {"focus": 0.01, "warm": True, "cutoff": 0.25, "balancing": "static"},
    {"focus": 0.01, "warm": True, "cutoff": 1.0, "balancing": "static"},
)
"""As many events as are counted are published before, so that balancing has had the time to follow. No node sends much
at the rate of these experiments, so what counts as much is set as low."""
CROWDED: Final[tuple[Values, ...]] = tuple(
    {
        "crowd": 0.25,
        "publishers": 30,
        "warm": True,
        "leaf_cache_max": 4096,
        "widen": 0.0,
        "balancing": balancing,
        "hot_rate": "50B",
    }
    for balancing in ("adaptive", "static")
)
"""A quarter of all subscribe to one and the same, which no split can part, and a quarter of the events match them."""
CUTOFFS: Final = (0.25, 1.0)
RING_GAP_S: Final = 1.0
"""Each of the thesis's 5,000 nodes publishes every 5,000 s."""
PACES: Final[tuple[Values, ...]] = ({}, {"burst": True})
"""As in the thesis; and the same events in a burst of twenty nodes, each of which publishes every 4 s."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One experiment: a figure of the thesis, or one like them."""

    title: str
    reproduces: str
    columns: Sequence[Column]
    charts: Draw
    variants: tuple[Values, ...] = ({},)
    events: int = FEWER
    nodes: tuple[int, ...] = (1000,)
    quick_nodes: tuple[int, ...] = (30,)
    gap_s: float = EVENT_GAP_S
    takes: str = "--quick: 20 s"

    def experiment(self, name: str) -> Experiment:
        """The experiment of this name."""
        return Experiment(
            name,
            self.title,
            self.reproduces,
            takes=self.takes,
            full=settings(self.nodes, self.events, self.gap_s),
            quick=settings(self.quick_nodes, min(self.events, QUICK_EVENTS), self.gap_s),
            columns=(*rows.POINT, *self.columns, *rows.COST),
            measure=measure,
            charts=self.charts,
            variants=self.variants,
            beginning=BEGINNING,
            paper=LI_SAYS.get(name, ""),
        )


FIGURES: Final = {
    "pubsub/installation": Figure(
        "how long installing a subscription takes, and what it costs",
        f"{LI}, figures 4.1 and 4.2",
        INSTALLING,
        charts.installation,
        events=0,
    ),
    "pubsub/delivery": Figure(
        "how long an event takes to subscribers, and what it costs",
        f"{LI}, figures 4.3 and 4.4",
        (*JUDGED, *DELIVERING, *SENT),
        charts.delivery,
        events=EVENTS,
    ),
    "pubsub/multicast": Figure(
        "what sending probes together saves",
        f"{LI}, figures 4.5 and 4.6",
        (TOGETHER, MAPPED, *PROBED, *JUDGED),
        charts.compared("multicast", "multicast", "Probes sent together or each alone"),
        tuple({"tree_maps": mapped, "multicast": is_on} for mapped in (True, False) for is_on in (True, False)),
    ),
    "pubsub/balancing": Figure(
        "what the cut-off line saves",
        f"{LI}, figures 4.7 and 4.8",
        (CUTOFF, MAPPED, *PROBED, *JUDGED),
        charts.compared("balancing", "cutoff", "With the cut-off line and without"),
        tuple({"tree_maps": mapped, "cutoff": cutoff} for mapped in (True, False) for cutoff in CUTOFFS),
    ),
    "pubsub/scale": Figure(
        "delivery in rings of several sizes",
        f"{LI}, figures 4.9 and 4.10, table 4.5",
        (*PUBLISHERS, *JUDGED, LEAVES, *DELIVERING, *SENT),
        charts.scale,
        PACES,
        nodes=(1000, 1740, 3000, 4000, 5000),
        quick_nodes=(15, 30),
        gap_s=RING_GAP_S,
    ),
    "pubsub/warm": Figure(
        "delivery from publishers that remember leaves, beside the direct way plus one hop",
        f"beyond {LI}",
        (CACHED, *DELIVERING, *LEAST, *JUDGED),
        charts.latencies("warm", "Time to a subscriber, leaves remembered or not", "leaf_cache_max"),
        tuple({"publishers": 10, "warm": True, "leaf_cache_max": cached} for cached in (0, 4096)),
    ),
    "pubsub/churn": Figure(
        "precision, recall and latency while nodes come and go (median session 60 minutes)",
        f"beyond {LI}, which asks for it in section 5.2",
        (*JUDGED, *DELIVERING, *SENT, *WENT),
        charts.latencies("churn", "Time to a subscriber while nodes come and go", "nodes"),
        ({"session_min": 60.0, "ack": "replicated"},),
        gap_s=1.0,
    ),
    "pubsub/crashes": Figure(
        "precision, recall and latency while the root of a leaf and a replica die at once, 50 times",
        f"beyond {LI}",
        (*JUDGED, *DELIVERING, *WENT),
        charts.latencies("crashes", "Time to a subscriber while roots die with a replica", "nodes"),
        ({"strikes": 50, "ack": "replicated"},),
        gap_s=1.0,
    ),
    "pubsub/partition": Figure(
        "precision, recall and latency after the network was cut into two for 10 minutes",
        f"beyond {LI}",
        (*HALVES, *JUDGED, *DELIVERING, *WENT),
        charts.latencies("partition", "Time to a subscriber after the network was cut", "cut"),
        tuple({"cut": share, "ack": "replicated"} for share in (0.5, 0.1)),
        nodes=(300,),
    ),
    "pubsub/skew": Figure(
        "load when all events lie in 1 % of each domain",
        f"beyond {LI}, which asks for it in section 5.2",
        (CUTOFF, BALANCING, LEAVES, *SENT, *JUDGED),
        charts.most_loaded("skew", "cutoff", "All events in a small part of the domain"),
        SKEWED,
        gap_s=0.4,
    ),
    "pubsub/crowd": Figure(
        "load when a quarter of the subscriptions are all the same",
        f"beyond {LI}, which splits no such leaf",
        (BALANCING, LEAVES, *SENT, *JUDGED),
        charts.most_loaded("crowd", "balancing", "A quarter of the subscriptions are all the same"),
        CROWDED,
    ),
}
EXPERIMENTS: Final = tuple(plan.experiment(name) for name, plan in FIGURES.items())
