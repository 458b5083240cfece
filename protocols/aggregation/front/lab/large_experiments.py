"""The experiments ``aggregation/...`` over large values: Cappos and Hartman 2008, figures 7 to 14 and table 2."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from peerd.lab.charts import Chart, lines
from peerd.lab.experiment import Column, Experiment, Row, Settings
from peerd.lab.overlay import rows
from protocols.aggregation.front.lab.experiments import PAPER, SETTLE_S, wide_area
from protocols.aggregation.front.lab.large import BEGINNING, CENTRAL, LEVELS, PIECES, SAN_FERMIN, SUPERNODES, measure
from protocols.aggregation.front.lab.run import KILLED, SILENT

DEPARTMENT: Final = "department=constant@0.2ms"
UNIFORM: Final = "uniform=constant@0.2ms"
SYSTEMS: Final = (SAN_FERMIN, "sdims-1", "sdims-4", "tree-2", "tree-16", SUPERNODES, LEVELS, CENTRAL)
MIB_KIB: Final = 1024
VALUES_KIB: Final = (16, 64, 128, 256, 512, 1024, 4096)

CHOSEN: Final = (
    Column("system", "system", "who aggregates"),
    Column("value_kib", "value KiB", "size of the value of one node, and of an aggregate"),
)
TAKEN: Final = (
    Column("answer_s", "answer s", "from the request to the answer, seconds", 3),
    Column("ms_each", "ms each", "the same by the nodes whose data is in the answer, milliseconds", 2),
    Column("of_all", "of all", "share of all nodes whose data is in the answer", 3),
    Column("wrong", "wrong", "1 where the value is not that of the contributors, each once"),
)
MOVED: Final = (
    Column("messages", "messages", "control messages that a node sends meanwhile, those of the overlay included", 1),
    Column("control_kib", "control KiB", "of these", 1),
    Column("bulk_mib", "bulk MiB", "values that a node sends meanwhile", 2),
    Column("most_mib", "most MiB", "values that one node receives, at most", 1),
)
STATES: Final = (
    Column("complete", "complete", "nodes whose tree holds everything when the answer is there"),
    Column("complete_mbit", "Mbit/s", "mean rate of their links", 1),
    Column("working", "working", "nodes that are still at it"),
    Column("working_mbit", "Mbit/s", "mean rate of their links", 1),
    Column("pruned", "pruned", "nodes that have given up, as others have their data"),
    Column("pruned_mbit", "Mbit/s", "mean rate of their links", 1),
)
FAILED: Final = (
    Column("failing", "failing", "share of the nodes that fail while it lasts", 2),
    Column("how", "how", "killed: their processes end. silent: their machines say nothing more"),
    Column("calm_s", "calm s", "how long it took before, when nobody failed, seconds", 3),
    Column("of_survivors", "of survivors", "share of the nodes that live on whose data is in the answer", 3),
)


def nodes_charts(found: Sequence[Row]) -> list[Chart]:
    """Figures 9 and 13a."""
    return [
        Chart("time", "Time", "nodes", "seconds", lines(found, "nodes", "answer_s", "topology"), x_is_log=True),
        Chart("moved", "Values", "nodes", "MiB a node", lines(found, "nodes", "bulk_mib", "topology"), x_is_log=True),
        Chart(
            "control",
            "Control messages",
            "nodes",
            "KiB a node",
            lines(found, "nodes", "control_kib", "topology"),
            x_is_log=True,
        ),
    ]


def values_charts(found: Sequence[Row]) -> list[Chart]:
    """Figures 10 and 13b."""
    of = ("topology", "nodes")
    return [
        Chart(
            "time",
            "Time",
            "KiB",
            "seconds",
            lines(found, "value_kib", "answer_s", *of),
            x_is_log=True,
            y_is_log=True,
        ),
        Chart(
            "moved",
            "Values",
            "KiB",
            "MiB a node",
            lines(found, "value_kib", "bulk_mib", *of),
            x_is_log=True,
            y_is_log=True,
        ),
    ]


def systems_charts(found: Sequence[Row]) -> list[Chart]:
    """Figures 7c, 13c and 14."""
    of = ("system", "topology")
    return [
        Chart(name, title, "KiB", unit, lines(found, "value_kib", column, *of), x_is_log=True, y_is_log=True)
        for name, title, unit, column in (
            ("time", "Time", "milliseconds for each node in the answer", "ms_each"),
            ("moved", "Values", "MiB a node", "bulk_mib"),
            ("most", "The node that receives most", "MiB", "most_mib"),
        )
    ]


def deaths_charts(found: Sequence[Row]) -> list[Chart]:
    """Figures 11 and 12."""
    of = ("system", "topology", "how")
    return [
        Chart(
            "completeness", "Data in the answer", "share that fails", "of all", lines(found, "failing", "of_all", *of)
        ),
        Chart("time", "Time", "share that fails", "seconds", lines(found, "failing", "answer_s", *of)),
    ]


def pieces_charts(found: Sequence[Row]) -> list[Chart]:
    """Whole values beside pieces."""
    ways = lines(found, "nodes", "answer_s", "system", "value_kib", "topology")
    return [Chart("time", "Time", "nodes", "seconds", ways, y_is_log=True)]


LARGE: Final = (
    Experiment(
        "aggregation/nodes",
        "values of 1 MiB of more and more nodes",
        f"{PAPER}, figures 9 and 13a, table 2",
        takes="7 minutes; --quick: 5 s",
        full=Settings((32, 64, 128, 256, 512, 1024), 0.0, 1, SETTLE_S, (DEPARTMENT, wide_area())),
        quick=Settings((8, 32), 0.0, 1, SETTLE_S, (DEPARTMENT,)),
        columns=(*rows.POINT, *CHOSEN, *TAKEN, *MOVED, *STATES, *rows.COST),
        measure=measure,
        charts=nodes_charts,
        variants=({"system": SAN_FERMIN, "value_kib": MIB_KIB},),
        beginning=BEGINNING,
        paper="in the department 1,024 nodes take less than 500 ms; from 32 to 1,024 nodes the time grows about four "
        "times, there and on PlanetLab. On PlanetLab nodes that have pruned their trees have a third less bandwidth",
    ),
    Experiment(
        "aggregation/values",
        "larger and larger values",
        f"{PAPER}, figures 10 and 13b",
        takes="80 s; --quick: 5 s",
        full=Settings((100,), 0.0, 1, SETTLE_S, (DEPARTMENT, wide_area())),
        quick=Settings((32,), 0.0, 1, SETTLE_S, (DEPARTMENT,)),
        columns=(*rows.POINT, *CHOSEN, *TAKEN, *MOVED, *rows.COST),
        measure=measure,
        charts=values_charts,
        variants=tuple({"system": SAN_FERMIN, "value_kib": kib} for kib in VALUES_KIB),
        beginning=BEGINNING,
        paper="all sizes below 128 KB take the same time (on PlanetLab about 4 s); above, the time grows linearly, and "
        "so do the bytes; control messages are few beside them",
    ),
    Experiment(
        "aggregation/systems",
        "San Fermin beside trees of the overlay, balanced ones, supernodes, levels, and one node that fetches all",
        f"{PAPER}, figures 7, 8, 13c and 14",
        takes="3 minutes on two cores; --quick: 4 s",
        full=Settings((100,), 0.0, 1, SETTLE_S, (DEPARTMENT, wide_area())),
        quick=Settings((16,), 0.0, 1, SETTLE_S, (DEPARTMENT,)),
        columns=(*rows.POINT, *CHOSEN, *TAKEN, *MOVED, *rows.COST),
        measure=measure,
        charts=systems_charts,
        variants=tuple({"system": system, "value_kib": kib} for system in SYSTEMS for kib in (64, 256, MIB_KIB)),
        beginning=BEGINNING,
        paper="above 256 KB the trees of SDIMS lose most nodes, as those with many children are overwhelmed, while San "
        "Fermin has the data of most; its most loaded node has less than two thirds of the peak traffic of SDIMS'",
    ),
    Experiment(
        "aggregation/pieces",
        "values exchanged in pieces beside whole ones, in rings whose nodes know each other",
        f"beyond {PAPER}: below the bound of its section 4, log2 N values a node",
        takes="a minute; --quick: 3 s",
        full=Settings((4, 8, 16), 0.0, 1, SETTLE_S, (UNIFORM, DEPARTMENT, wide_area())),
        quick=Settings((4, 16), 0.0, 1, SETTLE_S, (UNIFORM,)),
        columns=(*rows.POINT, *CHOSEN, *TAKEN, *MOVED, *rows.COST),
        measure=measure,
        charts=pieces_charts,
        variants=tuple(
            {"system": system, "value_kib": kib} for system in (SAN_FERMIN, PIECES) for kib in (64, 256, 1024, 8192)
        ),
        beginning=BEGINNING,
        paper="a node sends log2 N whole values",
    ),
    Experiment(
        "aggregation/deaths",
        "whose data is in the answer when nodes fail, and when it comes",
        f"{PAPER}, figures 11 and 12",
        takes="--quick: 45 s",
        full=Settings((100,), 0.0, 1, SETTLE_S, (DEPARTMENT, wide_area())),
        quick=Settings((32,), 0.0, 1, SETTLE_S, (DEPARTMENT,)),
        columns=(*rows.POINT, *CHOSEN, *FAILED, *TAKEN, *MOVED, *rows.COST),
        measure=measure,
        charts=deaths_charts,
        variants=tuple(
            {"system": system, "value_kib": MIB_KIB, "failing": share, "how": how}
            for system in (SAN_FERMIN, "sdims-1", "sdims-4", "tree-2", SUPERNODES, LEVELS)
            for share in (0.05, 0.1, 0.2)
            for how in (KILLED, SILENT)
        ),
        beginning=BEGINNING,
        paper="with 10 % of the nodes failing the answer has the data of more than 97 % of all nodes, and comes before "
        "the overlay has recovered",
    ),
)
