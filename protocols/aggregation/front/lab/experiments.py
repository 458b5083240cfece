"""The experiments ``aggregation/...`` of ``peerd lab``: Cappos and Hartman 2008, section 5, and what rounds cost.

Latencies are those between PlanetLab hosts where the folder that ``PEERD_DATA`` names has them; else nodes are random
points of a square with the same mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from peerd.lab.charts import Chart, lines, reference
from peerd.lab.experiment import Column, Experiment, Row, Settings
from peerd.lab.overlay import rows
from peerd.lab.topologies import measured_or_square
from protocols.aggregation.front.lab.run import BEGINNING, KILLED, SILENT, law_latencies, measure

PAPER: Final = "Cappos and Hartman (2008)"
CONSTANT: Final = "constant=constant@100ms"
PLANETLAB: Final = "latency/planetlab_rtt_ms_18x490x490.npz"
SLICE: Final = "#9"
MEAN_RTT: Final = "160ms"
ROUNDS: Final = 5
SETTLE_S: Final = 60.0
SIZES: Final = (8, 16, 32, 64, 128, 256, 512, 1024)
SPAN_S: Final = 0.7
"""Nodes fail in the first 14 latencies of 50 ms: as long as a round of 128 nodes takes without failures."""


def wide_area() -> str:
    """Measured latencies where they are at hand, else a square with the same mean."""
    return measured_or_square("planetlab", PLANETLAB, MEAN_RTT, SLICE)


TAKEN: Final = (
    Column("rounds", "rounds", "one after the other, each asked for by another node"),
    Column("latency_ms", "L ms", "mean one-way latency of two nodes", 1),
    Column("answer_s", "answer s", "from the request to the answer: median, seconds", 3),
    Column("latencies", "/ L", "the same in mean latencies", 1),
    Column("latencies_max", "most / L", "the slowest round", 1),
    Column("law", "law / L", "of pairs that are always ready: log2 n + 1", 1),
)
SENT: Final = (
    Column(
        "messages", "messages", "control messages that a node sends during a round, those of the overlay included", 1
    ),
    Column("kib", "KiB", "of these, with the values that ride along", 1),
    Column("kib_max", "most KiB", "the same of the most loaded node", 1),
)
COUNTED: Final = (
    Column("of_all", "of all", "share of all nodes whose data is in the answer; the worst round", 3),
    Column("of_survivors", "of survivors", "the same of the nodes that live on", 3),
    Column("doubled", "doubled", "contributors that were counted twice"),
    Column("wrong", "wrong", "answers whose value is not that of their contributors"),
)
FAILED: Final = (
    Column("failing", "failing", "share of the nodes that fail during the round", 2),
    Column("how", "how", "killed: their processes end. silent: their machines say nothing more"),
    Column("dead", "dead", "nodes that had failed when the answer came"),
)


def latency_charts(found: Sequence[Row]) -> list[Chart]:
    """Answer time and messages over the number of nodes."""
    sizes = sorted({row["nodes"] for row in found})
    law = reference("log2 n + 1", [(float(size), law_latencies(size)) for size in sizes])
    aim = reference("2.5 log2 n + 10", [(float(size), 2.5 * (law_latencies(size) - 1) + 10) for size in sizes])
    took = (*lines(found, "nodes", "latencies", "topology"), law, aim)
    sent = lines(found, "nodes", "messages", "topology")
    return [
        Chart("latency", "From the request to the answer", "nodes", "mean one-way latencies", took, x_is_log=True),
        Chart("messages", "Control messages of a round", "nodes", "messages a node", sent, x_is_log=True),
    ]


def failure_charts(found: Sequence[Row]) -> list[Chart]:
    """Completeness and answer time over the share of nodes that fail."""
    return [
        Chart(
            "completeness",
            "Data in the answer",
            "share that fails",
            "share of all nodes",
            lines(found, "failing", "of_all", "how"),
        ),
        Chart(
            "failure-time",
            "From the request to the answer",
            "share that fails",
            "seconds",
            lines(found, "failing", "answer_s", "how"),
        ),
    ]


EXPERIMENTS: Final = (
    Experiment(
        "aggregation/latency",
        "how long a round over small values takes, and what it costs",
        f"beyond {PAPER}, section 5: figure 9 in small values",
        takes="5 minutes on two cores; --quick: 10 s",
        full=Settings(SIZES, 0.0, ROUNDS, SETTLE_S, (CONSTANT, wide_area())),
        quick=Settings((8, 32), 0.0, ROUNDS, SETTLE_S, (CONSTANT,)),
        columns=(*rows.POINT, *TAKEN, *SENT, *COUNTED, *rows.COST),
        measure=measure,
        charts=latency_charts,
        beginning=BEGINNING,
        paper="on the PlanetLab topology all data sizes under 128 KB take about 4 s with 100 nodes (section 5.2)",
    ),
    Experiment(
        "aggregation/failures",
        "whose data is in the answer when nodes fail during the round",
        f"{PAPER}, figures 11 and 12, in small values",
        takes="--quick: 8 s",
        full=Settings((128, 512), 0.0, 1, SETTLE_S, (CONSTANT,)),
        quick=Settings((32,), 0.0, 1, SETTLE_S, (CONSTANT,)),
        columns=(*rows.POINT, *FAILED, *TAKEN[2:3], *COUNTED, *rows.COST),
        measure=measure,
        charts=failure_charts,
        variants=tuple(
            {"failing": share, "how": how, "span_s": SPAN_S} for share in (0.05, 0.1, 0.2) for how in (KILLED, SILENT)
        ),
        beginning=BEGINNING,
        paper="with 10 % of the nodes failing during the aggregation the answer has the data of more than 97 % of all, "
        "and comes before the overlay has noticed the failures",
    ),
)
