"""The figures of the thesis's chapter 4, beside what it says."""

from __future__ import annotations

from collections.abc import Sequence

from peerd.lab.charts import Chart, Line, lines, reference
from peerd.lab.experiment import Draw, Row
from protocols.pubsub.front.lab.figures import STEPS

SHARE_OF_NODES = "share of nodes"


def cumulative(found: Sequence[Row], column: str, by: str, what: str = "") -> tuple[Line, ...]:
    """For each row, the share of the values up to x. ``what`` is added to the label."""
    made = []
    for row in found:
        values = row.get(column) or []
        points = tuple((value, step / STEPS, step / STEPS, step / STEPS) for step, value in enumerate(values))
        made.append(Line(_label(row, by) + what, points))
    return tuple(made)


def ranked(found: Sequence[Row], column: str, by: str) -> tuple[Line, ...]:
    """For each row, the most loaded nodes in order."""
    return tuple(
        Line(_label(row, by), tuple((float(rank), y, y, y) for rank, y in enumerate(row.get(column) or [], 1)))
        for row in found
    )


def _label(row: Row, by: str) -> str:
    if by == "nodes":
        return f"{row['nodes']:,} nodes"
    kind = f", {row['balancing']}" if row.get("balancing") else ""
    guessed = "" if row.get("tree_maps", True) else ", leaves guessed"
    return f"{by} = {row.get(by)}{kind}{guessed}"


def installation(found: Sequence[Row]) -> list[Chart]:
    """Figures 4.1 and 4.2."""
    thesis = reference("thesis, figure 4.1", [(0.6, 0.7), (1.0, 0.9)])
    spread = reference("thesis, figure 4.2", [(20.0, 0.78), (60.0, 0.98)])
    safe = cumulative(found, "replicated_s", "nodes", ", with all replicas")
    took = (*cumulative(found, "install_s", "nodes"), *safe, thesis)
    sent = (*cumulative(found, "install_bytes", "nodes"), spread)
    title = "What nodes send while subscriptions are installed"
    return [
        Chart("installation-latency", "Time until a subscription is there", "seconds", "share of subscriptions", took),
        Chart("installation-bytes", title, "bytes a subscription", SHARE_OF_NODES, sent),
    ]


def delivery(found: Sequence[Row]) -> list[Chart]:
    """Figures 4.3 and 4.4."""
    thesis = reference("thesis, figure 4.3", [(0.4, 0.7), (1.0, 0.99)])
    spread = reference("thesis, figure 4.4", [(1600.0, 0.7), (3000.0, 0.9)])
    sent = (*cumulative(found, "event_bytes", "nodes"), spread)
    return [
        latencies("delivery-latency", "Time from publishing to a subscriber", "nodes", thesis)(found)[0],
        Chart("delivery-bytes", "What nodes send while events are published", "bytes an event", SHARE_OF_NODES, sent),
    ]


def latencies(name: str, title: str, by: str, *references: Line) -> Draw:
    """Draw the distribution of the time to subscribers."""

    def draw(found: Sequence[Row]) -> list[Chart]:
        made = (*cumulative(found, "delivery_s", by), *references)
        return [Chart(name, title, "seconds", "share of deliveries", made)]

    return draw


def compared(name: str, by: str, title: str) -> Draw:
    """Draw what nodes send for events with one setting and another: figures 4.5 to 4.8."""
    sent = "bytes an event, without delivery"

    def draw(found: Sequence[Row]) -> list[Chart]:
        return [
            Chart(f"{name}-bytes", title, sent, SHARE_OF_NODES, cumulative(found, "probe_bytes", by)),
            Chart(f"{name}-top", f"{title}: most loaded", "rank", sent, ranked(found, "probe_bytes_ranked", by)),
        ]

    return draw


def most_loaded(name: str, by: str, title: str) -> Draw:
    """Draw what the most loaded nodes send."""

    def draw(found: Sequence[Row]) -> list[Chart]:
        return [Chart(name, title, "rank", "bytes an event", ranked(found, "event_bytes_ranked", by))]

    return draw


def scale(found: Sequence[Row]) -> list[Chart]:
    """Figures 4.9 and 4.10, and beside them the same number of events in a burst of few nodes."""
    thesis = reference("thesis, mean", [(1000.0, 0.33), (5000.0, 0.43)])
    burst = [row for row in found if row.get("burst")]
    paced = [row for row in found if not row.get("burst")]
    title = "Time from publishing to a subscriber"

    def mean(column: str) -> tuple[Line, ...]:
        return *lines(paced, "nodes", column, name="mean"), *lines(burst, "nodes", column, name="mean, a burst")

    sent = "What a node sends for an event"
    return [
        Chart("scale-latency", title, "nodes", "seconds", (*mean("delivery_mean_s"), thesis)),
        Chart("scale-bytes", sent, "nodes", "bytes an event", mean("event_bytes_mean")),
    ]
