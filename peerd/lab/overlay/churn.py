"""``overlay/churn`` and ``overlay/traffic``: what churn does to lookups, and what keeping up with it costs.

Castro, Costa and Rowstron, *Performance and dependability of structured peer-to-peer overlays* (DSN 2004), section 5:
outcome of lookups and control traffic against session time, with and without loss of messages. Rhea, Geels, Roscoe and
Kubiatowicz, *Handling churn in a DHT* (USENIX 2004): median sessions down to 1.4 minutes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from peerd.lab.charts import Chart, Stack, lines, values
from peerd.lab.experiment import Column, Experiment, Notify, Point, Row, Settings, Values
from peerd.lab.overlay import rows
from peerd.lab.simulated import lookups_action, simulate

CALM: Final = "calm"
MINUTE_S: Final = 60.0
SESSIONS_MIN: Final = (60.0, 15.0, 5.0, 1.4)
"""Median session times. Sessions are exponential: the mean is the median over ln 2."""
WARM_UP_SHARE: Final = 0.25
"""Churn goes on for this share of the measured time before anything is measured."""
PARTS_MAX: Final = 7
"""Message types that a bar of the traffic tells apart; all others are one more part."""
OTHERS: Final = "others"
NOT_CONTROL: Final = ("Route", "LookupReply", "SimulationProbe")


def measure(point: Point, notify: Notify) -> Row:
    """Run a ring whose nodes come and go (half of them by power loss), on paths that may lose messages."""
    session_min, loss = point.variant.get("session_min"), point.variant.get("loss", 0.0)
    warm_up_s = WARM_UP_SHARE * point.duration_s
    actions: list[dict[str, Any]] = [{"do": "network", "loss": loss}]
    if isinstance(session_min, float):
        actions.append({"do": "churn", "session_median_s": session_min * MINUTE_S})
    phases = [
        {"name": "settle", "duration_s": point.settle_s},
        {
            "name": "churn",
            "duration_s": warm_up_s + point.duration_s,
            "actions": [*actions, lookups_action(point, warm_up_s)],
        },
        rows.DRAIN,
    ]
    outcome = simulate(point, phases, notify)
    report = outcome.report.workloads[0]
    churn = outcome.report.churn[0] if outcome.report.churn else None
    return {
        **rows.lookups_row(report),
        "measured_s": point.duration_s,
        "mean_nodes": round(report.node_seconds / report.duration_s, 1) if report.duration_s else None,
        "arrivals": churn.arrivals if churn else 0,
        "departures": churn.departures if churn else 0,
        "false_evictions": outcome.evictions.false,
        **outcome.cost(),
    }


def session_name(session_min: object) -> str:
    """Return the session time that a category of the chart stands for."""
    return f"{session_min:g} min" if isinstance(session_min, float) else str(session_min)


def churn_charts(found: Sequence[Row]) -> list[Chart]:
    """Draw lookups that fail, their delay, and traffic, against session time."""
    ticks = values(found, "session_min")

    def chart(name: str, title: str, y: str, *, y_is_log: bool = False, **columns: str) -> Chart:
        by = ("nodes", "topology", "loss")
        several = len(columns) > 1
        made = [
            line
            for label, column in columns.items()
            for line in lines(found, "session_min", column, *by, name=label if several else "")
        ]
        return Chart(
            name, title, "median session time, minutes", y, tuple(made), x_is_log=True, y_is_log=y_is_log, x_ticks=ticks
        )

    return [
        chart(
            "churn-failures",
            "Lookups that failed under churn",
            "per mille of the lookups",
            lost="lost_per_mille",
            wrong="wrong_per_mille",
        ),
        chart(
            "churn-delay",
            "Time of a lookup under churn",
            "seconds",
            y_is_log=True,
            median="delay_p50_s",
            p95="delay_p95_s",
        ),
        chart("churn-bytes", "Traffic under churn", "bytes a second a node", bytes="bytes_per_s"),
    ]


def traffic_charts(found: Sequence[Row]) -> list[Chart]:
    """Draw control messages by type: a bar for each session time (and size and topology, if there are several)."""
    naming = [column for column in ("nodes", "topology") if len({row[column] for row in found}) > 1]
    bars: dict[str, list[dict[str, float]]] = {}
    for row in found:
        words = [session_name(row["session_min"]), *(str(row[column]) for column in naming)]
        bars.setdefault("\n".join(words), []).append(row["sent_per_s"])
    means = {name: mean_rates(several) for name, several in bars.items()}
    weights = mean_rates(list(means.values()))
    kept = sorted(weights, key=lambda message: (-weights[message], message))[:PARTS_MAX]
    stacks = [Stack(message, tuple(rates.get(message, 0.0) for rates in means.values())) for message in kept]
    others = tuple(sum(rate for message, rate in rates.items() if message not in kept) for rates in means.values())
    if any(others):
        stacks.append(Stack(OTHERS, others))
    title = "Control traffic by message type"
    return [
        Chart(
            "traffic",
            title,
            "median session time",
            "messages sent a second a node",
            categories=tuple(means),
            stacks=tuple(stacks),
        )
    ]


def mean_rates(several: Sequence[dict[str, float]]) -> dict[str, float]:
    """Return the mean rates by type, of control messages only."""
    names = {message: None for rates in several for message in rates if message not in NOT_CONTROL}
    return {message: sum(rates.get(message, 0.0) for rates in several) / len(several) for message in names}


SESSION: Final = Column("session_min", "session", "median session time, minutes; calm: nobody comes or goes")
MEASURED: Final = (
    Column("measured_s", "measured s", "virtual seconds in which lookups were sent and traffic counted", 0),
    Column("mean_nodes", "running", "nodes that ran meanwhile, mean", 1),
    Column("departures", "went", "nodes that were killed or lost power, warm-up included"),
)
QUICK: Final = Settings(nodes=(60,), duration_s=200.0, lookups=1000, settle_s=60.0)
TRAFFIC_VARIANTS: Final[tuple[Values, ...]] = tuple({"session_min": session} for session in (CALM, *SESSIONS_MIN))

EXPERIMENTS: Final = (
    Experiment(
        "overlay/traffic",
        "control traffic by message type, against session time",
        "MSPastry (Castro, Costa and Rowstron 2004), section 5: control traffic",
        takes="--quick: 25 s",
        full=Settings(nodes=(1000,), duration_s=1800.0, lookups=18_000),
        quick=QUICK,
        columns=(
            *rows.POINT,
            SESSION,
            *rows.TRAFFIC,
            *MEASURED,
            Column("sent_per_s", "by type", "messages a second a node, largest first", 3),
            *rows.COST,
        ),
        measure=measure,
        charts=traffic_charts,
        variants=TRAFFIC_VARIANTS,
    ),
    Experiment(
        "overlay/churn",
        "outcome and delay of lookups, against session time and loss",
        "MSPastry (2004), section 5; Bamboo (Rhea et al. 2004): sessions down to 1.4 min",
        takes="--quick: 1 min",
        full=Settings(nodes=(1000,), duration_s=1800.0, lookups=18_000),
        quick=QUICK,
        columns=(
            *rows.POINT,
            SESSION,
            Column("loss", "loss", "probability that a message is lost on its way"),
            Column("lookups", "lookups", "sample size: those whose outcome counts (correct, wrong and lost)"),
            Column("correct_per_mille", "correct ‰", "delivered by the root, per mille", 2),
            Column("wrong_per_mille", "wrong ‰", "delivered by a node that was not the root at that instant", 2),
            Column("lost_per_mille", "lost ‰", "not delivered within 60 s, by a source that ran all the time", 2),
            Column("delay_p50_s", "p50 s", "median time from sending to delivery, seconds", 3),
            Column("delay_p95_s", "p95 s", "of that time", 3),
            *rows.TRAFFIC,
            Column("false_evictions", "false", "running nodes that a node took for dead, in the whole run"),
            *MEASURED,
            *rows.COST,
        ),
        measure=measure,
        charts=churn_charts,
        variants=tuple({"session_min": session, "loss": loss} for loss in (0.0, 0.05) for session in SESSIONS_MIN),
    ),
)
