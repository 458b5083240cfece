"""One run of the thesis's evaluation in the simulator: nodes join, subscriptions are installed, events are published.

The setting is that of section 4.1 unless a point says otherwise: capacities drawn between 10 and 30, five subscriptions
a node on average, drawn as in tables 4.2 and 4.3, a subscription every 2 s and an event every second (exponentially
distributed), each at a random node.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from random import Random
from statistics import fmean
from typing import Any, Final

from peerd.ids import NodeId
from peerd.lab.experiment import Notify, Point, Row
from peerd.lab.simulated import Outcome, simulate
from peerd.lib.feed import FeedItem, Reader
from peerd.lib.filter import matcher, parse
from peerd.lib.filter.evaluate import Matcher
from peerd.messages import message_type
from peerd.sim.rng import fork
from peerd.sim.simulation import Place, Simulation
from protocols.pubsub.front.judging import plugin_of
from protocols.pubsub.front.workload import ThesisWorkload
from protocols.pubsub.models import Published, ReceivedEvent, SubscriptionRequest, SubscriptionView

SUBSCRIPTIONS_A_NODE: Final = 5
CAPACITY: Final = (10, 30)
SUBSCRIBE_GAP_S: Final = 2.0
PUBLISH_GAP_S: Final = 1.0
DRAIN_S: Final = 60.0
CARRIERS: Final = frozenset({"Route", "RouteAck"})
"""The overlay's messages in which those of others travel. Nothing else is routed during a run."""
OURS: Final = (*range(0x0060, 0x0070), *range(0x0200, 0x0220))
"""Type ids of records (leaves are kept as records) and of publish/subscribe."""
SENT_BYTES: Final = 1
THESIS: Final[dict[str, Any]] = {
    "base_attribute": "random",
    "delivery": "direct",
    "ack": "received",
    "leaf_cache_max": 0,
    "lease": "7d",
    "merge_share": 0.0,
    "update_interval": "1h",
}
"""The thesis's choices where our defaults differ: subscriptions do not lapse, leaves are not merged, nothing is
remembered of leaves."""


@dataclass
class Subscribed:
    """One subscription of the run. ``took_s``: until it was acknowledged; ``None`` if it never was."""

    place: Place
    filter: str
    matches: Matcher
    begun_at: float
    took_s: float | None = None
    reader: Reader[ReceivedEvent] | None = None
    seen: dict[str, None] = field(default_factory=dict)


@dataclass
class Sent:
    """One event of the run."""

    place: Place
    values: dict[str, float]
    begun_at: float
    outcome: str = "pending"
    leaves: int = 0
    arrivals: dict[NodeId, float] = field(default_factory=dict)
    """By subscriber's node, how long it took."""


class Thesis:
    """The phases of a run, on a ring that has formed."""

    def __init__(self, simulation: Simulation, point: Point) -> None:
        self.simulation = simulation
        self.rng: Random = fork(point.seed, "pubsub", "thesis")
        focus = point.variant.get("focus")
        self.workload = ThesisWorkload(self.rng, focus=float(focus) if focus else None)
        self.subscriptions: list[Subscribed] = []
        self.events: dict[str, Sent] = {}
        self.stranger_events = 0
        self.wrong = 0
        self.doubled = 0

    # Phases

    def prepare(self) -> None:
        """Draw the capacities, and declare the schema."""
        for place in self.simulation.live_nodes():
            plugin = plugin_of(place)
            plugin.config = plugin.config.model_copy(update={"leaf_capacity": self.rng.randint(*CAPACITY)})
        done: list[object] = []
        plugin_of(self._anybody()).declare(self.workload.document(), done.append)
        self.simulation.run_until(lambda: bool(done), limit_s=60.0)
        if isinstance(done[0], Exception):
            raise done[0]

    def install(self, count: int, gap_s: float = SUBSCRIBE_GAP_S) -> None:
        """Install subscriptions, one after the other, and wait until the tree is quiet."""
        self._poisson(count, gap_s, self._subscribe)
        self.simulation.run_for(DRAIN_S)

    def publish(self, count: int, gap_s: float = PUBLISH_GAP_S) -> None:
        """Publish events, one after the other, and wait for what is under way."""
        self._poisson(count, gap_s, self._publish)
        self.simulation.run_for(DRAIN_S)

    def _poisson(self, count: int, gap_s: float, act: Callable[[], None]) -> None:
        for _ in range(count):
            self.simulation.run_for(self.rng.expovariate(1.0 / gap_s))
            act()

    def _anybody(self) -> Place:
        return self.rng.choice(self.simulation.live_nodes())

    def _subscribe(self) -> None:
        place, text = self._anybody(), self.workload.subscription()
        made = Subscribed(place, text, matcher(parse(text)), self.simulation.now)

        def done(answer: SubscriptionView | Exception) -> None:
            if isinstance(answer, SubscriptionView) and made.took_s is None:
                made.took_s = self.simulation.now - made.begun_at

        plugin = plugin_of(place)
        asked = SubscriptionRequest.model_validate({"schema": self.workload.schema, "filter": text})
        view = plugin.subscribe(asked, done)
        _, feed = plugin.reading(view.id)
        made.reader = feed.reader("start", on_ready=lambda: self._arrived(made))
        self.subscriptions.append(made)

    def _publish(self) -> None:
        place, values = self._anybody(), self.workload.event()
        sent = Sent(place, values, self.simulation.now)

        def done(answer: Published | Exception) -> None:
            if isinstance(answer, Published):
                sent.outcome, sent.leaves = answer.outcome, answer.leaves

        event = plugin_of(place).publish(self.workload.schema, values, done)
        self.events[str(event)] = sent

    def _arrived(self, made: Subscribed) -> None:
        assert made.reader is not None
        while (entry := made.reader.take()) is not None:
            if not isinstance(entry, FeedItem):
                continue
            sent = self.events.get(entry.value.event)
            if sent is None:
                self.stranger_events += 1
                continue
            self.wrong += not made.matches(sent.values)
            self.doubled += entry.value.event in made.seen
            made.seen[entry.value.event] = None
            sent.arrivals.setdefault(made.place.id, self.simulation.now - sent.begun_at)

    # Figures

    def recall(self) -> tuple[int, int]:
        """How many (event, subscription) pairs match, and how many of these did not arrive."""
        due = missing = 0
        for made in self.subscriptions:
            if made.took_s is None or not made.place.is_live:
                continue
            established = made.begun_at + made.took_s
            for event, sent in self.events.items():
                if sent.begun_at > established and made.matches(sent.values):
                    due += 1
                    missing += event not in made.seen
        return due, missing


def bytes_sent(simulation: Simulation) -> dict[int, int]:
    """Bytes that each node, by index, has sent for publish/subscribe since the beginning."""
    found = {}
    for place in simulation.nodes:
        if place.current is None:
            continue
        total = 0
        for type_id, counts in place.current.traffic.items():
            kind = message_type(type_id)
            if type_id in OURS or (kind is not None and kind.__name__ in CARRIERS):
                total += counts[SENT_BYTES]
        found[place.index] = total
    return found


def difference(before: Mapping[int, int], after: Mapping[int, int]) -> list[int]:
    """Bytes of each node between two moments, most first."""
    return sorted((count - before.get(index, 0) for index, count in after.items()), reverse=True)


def quantile(values: Iterable[float], share: float) -> float:
    """The value below which this share of them lies; 0 without any."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


def latency_row(prefix: str, values: list[float], bounds_s: Iterable[float]) -> Row:
    """Mean, quantiles and shares within bounds of latencies."""
    row: Row = {
        f"{prefix}_mean_s": round(fmean(values), 4) if values else None,
        **{f"{prefix}_p{percent}_s": round(quantile(values, percent / 100), 4) for percent in (50, 70, 90, 99)},
        f"{prefix}_max_s": round(max(values, default=0.0), 4),
    }
    for bound in bounds_s:
        within = sum(value <= bound for value in values) / max(len(values), 1)
        row[f"{prefix}_within_{bound:g}s"] = round(within, 4)
    row[f"{prefix}_histogram"] = histogram(values)
    return row


def histogram(values: list[float], step_s: float = 0.2, bars: int = 12) -> list[float]:
    """Shares of the values up to each multiple of ``step_s``, as in the thesis's figures; the last has the rest."""
    counts = [0] * bars
    for value in values:
        counts[min(bars - 1, int(value / step_s))] += 1
    return [round(count / max(len(values), 1), 4) for count in counts]


def bytes_row(prefix: str, of_nodes: list[int], divided_by: int) -> Row:
    """Bytes a node for each subscription or event: mean, quantiles, most."""
    each = [count / max(divided_by, 1) for count in of_nodes]
    return {
        f"{prefix}_bytes_mean": round(fmean(each), 3) if each else None,
        **{f"{prefix}_bytes_p{percent}": round(quantile(each, percent / 100), 3) for percent in (50, 78, 90, 98)},
        f"{prefix}_bytes_max": round(max(each, default=0.0), 3),
        f"{prefix}_bytes_ranked": [round(count, 1) for count in each[:125]],
    }


def measure(point: Point, notify: Notify) -> Row:
    """Run a point; ``point.lookups`` is the number of events."""
    settings = {**THESIS, **{name: value for name, value in point.variant.items() if name not in ("focus", "warm")}}
    phases = [{"name": "settle", "duration_s": point.settle_s}]
    outcome = simulate(point, phases, notify, protocols={"pubsub": settings})
    thesis = Thesis(outcome.simulation, point)
    notify("install", outcome.simulation.now)
    thesis.prepare()
    before = bytes_sent(outcome.simulation)
    thesis.install(SUBSCRIPTIONS_A_NODE * point.nodes)
    installed = bytes_sent(outcome.simulation)
    notify("publish", outcome.simulation.now)
    thesis.publish(point.lookups)
    published = bytes_sent(outcome.simulation)
    return _row(point, outcome, thesis, difference(before, installed), difference(installed, published))


def _row(point: Point, outcome: Outcome, thesis: Thesis, installing: list[int], publishing: list[int]) -> Row:
    installs = [made.took_s for made in thesis.subscriptions if made.took_s is not None]
    deliveries = [took for sent in thesis.events.values() for took in sent.arrivals.values()]
    due, missing = thesis.recall()
    return {
        "subscriptions": len(thesis.subscriptions),
        "installed": len(installs),
        **latency_row("install", installs, (0.6, 1.0)),
        **bytes_row("install", installing, len(thesis.subscriptions)),
        "events": len(thesis.events),
        "acknowledged": sum(sent.outcome in ("received", "replicated") for sent in thesis.events.values()),
        "leaves_mean": round(fmean([sent.leaves for sent in thesis.events.values()] or [0]), 2),
        "deliveries": len(deliveries),
        **latency_row("delivery", deliveries, (0.4, 1.0)),
        **bytes_row("event", publishing, len(thesis.events)),
        "pairs_due": due,
        "pairs_missing": missing,
        "wrong": thesis.wrong,
        "doubled": thesis.doubled,
        **outcome.cost(),
    }
