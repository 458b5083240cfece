"""One run of the thesis's evaluation in the simulator: nodes join, subscriptions are installed, events are published.

The setting is that of section 4.1 unless a point says otherwise: capacities drawn between 10 and 30, five subscriptions
a node on average, drawn as in tables 4.2 and 4.3, a subscription every 2 s and an event every second (exponentially
distributed), each at a random node. Events come in ``point.duration_s``, about ``point.lookups`` of them, and the pause
between two subscriptions is twice that between two events, as in table 4.1.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from statistics import fmean
from typing import Any, Final

from peerd.errors import Unavailable
from peerd.lab.experiment import Notify, Point, Row
from peerd.lab.simulated import simulate
from peerd.lib.feed import FeedItem, Reader
from peerd.lib.filter import matcher, parse
from peerd.lib.filter.evaluate import Matcher
from peerd.messages import message_type
from peerd.sim.churn import Churn, ChurnSettings
from peerd.sim.rng import fork
from peerd.sim.simulation import Place, Simulation
from protocols.pubsub.front.judging import plugin_of
from protocols.pubsub.front.lab.figures import bytes_row, difference, latency_row
from protocols.pubsub.front.workload import ThesisWorkload
from protocols.pubsub.models import Published, ReceivedEvent, SubscriptionRequest, SubscriptionView

SUBSCRIPTIONS_A_NODE: Final = 5
CAPACITY: Final = (10, 30)
SUBSCRIBE_GAPS: Final = 2.0
"""The pause between two subscriptions, in pauses between two events."""
DRAIN_S: Final = 60.0
SCHEMA_S: Final = 10.0
"""For so long all nodes look up the schema, before anything is counted."""
CARRIERS: Final = frozenset({"Route", "RouteAck"})
"""The overlay's messages in which those of others travel. Nothing else is routed during a run."""
PROBES: Final = frozenset({"ProbePub", "EventAck"})
"""Messages that bring events to leaves, and the answers. Figures 4.5 to 4.8 count the first (section 4.3.2: "we ignore
the bandwidth cost of EventDeliveryMessages"); what the overlay and the record store do meanwhile is not among them."""
OURS: Final = frozenset((*range(0x0060, 0x0070), *range(0x0200, 0x0220)))
"""Type ids of records (leaves are kept as records) and of publish/subscribe."""
RECORDS: Final = frozenset(
    kind.__name__ for type_id in range(0x0060, 0x0070) if (kind := message_type(type_id)) is not None
)
"""The record store's messages: what replicates leaves. The thesis leaves that to PAST and does not count it."""
OF_THE_RUN: Final = frozenset({"focus", "publishers", "session_min", "warm"})
"""What a variant may say about the run; everything else that it says is a setting of publish/subscribe."""
PAIRS_MAX: Final = 4_000_000
"""About so many pairs of an event and a subscription are judged; where there are more, only some of the events are."""
ACKNOWLEDGED: Final = ("received", "replicated")
SENT_BYTES: Final = 1
"""The column of a node's counts that has the bytes it has sent."""
NOTHING: Final = (0, 0)
MINUTE_S: Final = 60.0
THESIS: Final[dict[str, Any]] = {
    "base_attribute": "random",
    "delivery": "direct",
    "ack": "received",
    "balancing": "static",
    "leaf_cache_max": 0,
    "leaf_capacity": sum(CAPACITY) // 2,
    "lease": "7d",
    "merge_share": 0.0,
    "update_interval": "1h",
}
"""The thesis's choices where our defaults differ: subscriptions do not lapse, leaves are not merged, nothing is
remembered of leaves."""

Nodes = Mapping[int, Mapping[int, Sequence[int]]]
"""By index of a node and type id of a message: what the node has counted."""


@dataclass
class Subscribed:
    """One subscription of the run. ``took_s``: until its leaves had it, as its node was told; ``None``: never."""

    place: Place
    boot: int
    matches: Matcher
    begun_at: float
    took_s: float | None = None
    reader: Reader[ReceivedEvent] | None = None
    seen: dict[str, None] = field(default_factory=dict)

    @property
    def is_live(self) -> bool:
        """Whether its node has run ever since it subscribed."""
        return self.place.is_live and self.place.boot_epoch == self.boot


@dataclass
class SentEvent:
    """One event of the run."""

    place: Place
    values: dict[str, float]
    begun_at: float
    outcome: str = "pending"
    leaves: int = 0
    arrivals: dict[int, float] = field(default_factory=dict)
    """By subscriber's node, how long it took."""


class Thesis:
    """The phases of a run, on a ring that has formed."""

    def __init__(self, simulation: Simulation, point: Point) -> None:
        self.simulation = simulation
        self.rng: Random = fork(point.seed, "pubsub", "thesis")
        focus = point.variant.get("focus")
        self.workload = ThesisWorkload(self.rng, focus=float(focus) if focus else None)
        self.publishers: list[Place] = []
        """The nodes that publish; empty: all."""
        self.subscriptions: list[Subscribed] = []
        self.replicated: list[float] = []
        """How long it took until a subscription was at all replicas of its leaves."""
        self.events: dict[str, SentEvent] = {}
        self._unnamed: SentEvent | None = None
        """The event that is being published: it may come to a subscription of its own node before it has its name."""
        self.wrong = 0
        self.doubled = 0
        self.refused = 0

    def prepare(self) -> None:
        """Draw the capacities, and make the schema known to all nodes."""
        for place in self.simulation.live_nodes():
            plugin = plugin_of(place)
            plugin.config = plugin.config.model_copy(update={"leaf_capacity": self.rng.randint(*CAPACITY)})
            plugin.reconfigured()
            plugin.installer.on_replicated = self.replicated.append
        done: list[object] = []
        plugin_of(self._anybody()).declare(self.workload.document(), done.append)
        self.simulation.run_until(lambda: bool(done), limit_s=60.0)
        if isinstance(done[0], Exception):
            raise done[0]
        for place in self.simulation.live_nodes():
            plugin_of(place).schemas.fetch(self.workload.schema, lambda *answer: None)
        self.simulation.run_for(SCHEMA_S)

    def install(self, count: int, gap_s: float) -> None:
        """Install subscriptions, one after the other, and wait until the tree is quiet."""
        self._poisson(count, gap_s, self._subscribe)

    def publish(self, count: int, gap_s: float) -> None:
        """Publish events, one after the other, and wait for what is under way."""
        self._poisson(count, gap_s, self._publish)

    def forget_events(self) -> None:
        """Judge only what is published from now on."""
        self.events.clear()
        for made in self.subscriptions:
            made.seen.clear()

    def _poisson(self, count: int, gap_s: float, act: Callable[[], None]) -> None:
        for _ in range(count):
            self.simulation.run_for(self.rng.expovariate(1.0 / gap_s))
            act()
        self.simulation.run_for(DRAIN_S)

    def _anybody(self) -> Place:
        return self.rng.choice(self.simulation.live_nodes())

    def _subscribe(self) -> None:
        place, text = self._anybody(), self.workload.subscription()
        made = Subscribed(place, place.boot_epoch, matcher(parse(text)), self.simulation.now)

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
        place = self.rng.choice(self.publishers) if self.publishers else self._anybody()
        sent = SentEvent(place, self.workload.event(), self.simulation.now)

        def done(answer: Published | Exception) -> None:
            if isinstance(answer, Published):
                sent.outcome, sent.leaves = answer.outcome, answer.leaves

        self._unnamed = sent
        try:
            event = plugin_of(place).publish(self.workload.schema, sent.values, done)
        except Unavailable:  # a node that has just come: it is not ready, or looks up the schema
            self.refused += 1
        else:
            self.events[str(event)] = sent
        finally:
            self._unnamed = None

    def _arrived(self, made: Subscribed) -> None:
        assert made.reader is not None
        while (entry := made.reader.take()) is not None:
            if not isinstance(entry, FeedItem):
                continue
            sent = self.events.get(entry.value.event, self._unnamed)
            if sent is None:
                continue
            self.wrong += not made.matches(sent.values)
            self.doubled += entry.value.event in made.seen
            made.seen[entry.value.event] = None
            sent.arrivals.setdefault(made.place.index, self.simulation.now - sent.begun_at)

    def judged(self) -> Row:
        """Columns on what came where: of pairs of a subscription and an event that was acknowledged and published
        while it was established, how many match, and how many of these did not arrive.
        """
        pairs = due = missing = 0
        step = max(1, len(self.events) * len(self.subscriptions) // PAIRS_MAX)
        acknowledged = [(name, sent) for name, sent in self.events.items() if sent.outcome in ACKNOWLEDGED]
        for made in self.subscriptions:
            if made.took_s is None or not made.is_live:
                continue
            established = made.begun_at + made.took_s
            for event, sent in acknowledged[::step]:
                if sent.begun_at > established:
                    pairs += 1
                    if made.matches(sent.values):
                        due += 1
                        missing += event not in made.seen
        return {
            "pairs": pairs,
            "pairs_due": due,
            "pairs_missing": missing,
            "wrong": self.wrong,
            "doubled": self.doubled,
            "refused": self.refused,
        }

    def direct(self) -> list[float]:
        """For each delivery, the latency straight from publisher to subscriber."""
        latency_s = self.simulation.network.latency.latency_s
        return [latency_s(sent.place.index, index) for sent in self.events.values() for index in sent.arrivals]

    def one_hop_s(self) -> float:
        """The mean latency between two nodes, of a thousand pairs."""
        live, latency_s = self.simulation.live_nodes(), self.simulation.network.latency.latency_s
        pairs = (self.rng.sample(live, 2) for _ in range(1000))
        return fmean(latency_s(one.index, other.index) for one, other in pairs)


def traffic(simulation: Simulation) -> Nodes:
    """A copy of what each running node, by index, has sent since it began."""
    return {
        place.index: {type_id: tuple(counts) for type_id, counts in place.node.traffic.items()}
        for place in simulation.live_nodes()
    }


def named(type_id: int) -> str:
    """The name of a message type."""
    kind = message_type(type_id)
    return kind.__name__ if kind is not None else str(type_id)


def bytes_sent(nodes: Nodes, without: Collection[str] = ()) -> dict[int, int]:
    """Bytes that each node has sent for publish/subscribe, the overlay's envelopes and acks included."""
    counted = {
        type_id
        for type_id in dict.fromkeys(key for node in nodes.values() for key in node)
        if (type_id in OURS or named(type_id) in CARRIERS) and named(type_id) not in without
    }
    return {
        index: sum(counts[SENT_BYTES] for type_id, counts in sent.items() if type_id in counted)
        for index, sent in nodes.items()
    }


def bytes_of(nodes: Nodes, names: Collection[str]) -> dict[int, int]:
    """Bytes that each node has sent in messages of these types."""
    return {
        index: sum(counts[SENT_BYTES] for type_id, counts in sent.items() if named(type_id) in names)
        for index, sent in nodes.items()
    }


def by_message(before: Nodes, after: Nodes, divided_by: int) -> Row:
    """Bytes a node for each subscription or event, by type of the outermost message, most first."""
    totals: dict[str, int] = {}
    for index, sent in after.items():
        for type_id, counts in sent.items():
            if type_id in OURS or named(type_id) in CARRIERS:
                former = before.get(index, {}).get(type_id, NOTHING)[SENT_BYTES]
                totals[named(type_id)] = totals.get(named(type_id), 0) + counts[SENT_BYTES] - former
    share = max(divided_by, 1) * max(len(after), 1)
    ordered = sorted(totals.items(), key=lambda item: (-item[1], item[0]))
    return {name: round(total / share, 3) for name, total in ordered if total}


def measure(point: Point, notify: Notify) -> Row:
    """Run a point; ``point.lookups`` is the number of events."""
    begun = time.process_time()
    variant = point.variant
    settings = {**THESIS, **{name: value for name, value in variant.items() if name not in OF_THE_RUN}}
    phases = [{"name": "settle", "duration_s": point.settle_s}]
    outcome = simulate(point, phases, notify, protocols={"pubsub": settings}, records={"ttl_max": settings["lease"]})
    simulation = outcome.simulation
    if outcome.report.failure is not None:
        return outcome.cost()
    thesis, gap_s = Thesis(simulation, point), point.duration_s / max(point.lookups, 1)
    thesis.prepare()
    notify("install", simulation.now)
    before = traffic(simulation)
    thesis.install(SUBSCRIPTIONS_A_NODE * point.nodes, SUBSCRIBE_GAPS * gap_s)
    installed = traffic(simulation)
    if isinstance(publishers := variant.get("publishers"), int):
        thesis.publishers = thesis.rng.sample(simulation.live_nodes(), min(publishers, point.nodes))
    if thesis.publishers or variant.get("warm"):
        notify("warm", simulation.now)
        thesis.publish(point.lookups, gap_s)
        thesis.forget_events()
        installed = traffic(simulation)
    notify("publish", simulation.now)
    churn = _churn(simulation, variant.get("session_min"))
    thesis.publish(point.lookups, gap_s)
    row = {
        **({} if thesis.publishers or variant.get("warm") else _installing(thesis, before, installed)),
        **_publishing(thesis, installed, traffic(simulation)),
        **thesis.judged(),
        "departures": churn.report.departures if churn else 0,
        **outcome.cost(),
        "simulated_s": round(simulation.now, 3),
        "processor_s": round(time.process_time() - begun, 2),
    }
    row["events_of_simulation"] = row.pop("events")
    return row


def _churn(simulation: Simulation, session_min: object) -> Churn | None:
    if not isinstance(session_min, float):
        return None
    churn = Churn(simulation, ChurnSettings(session_median_s=session_min * MINUTE_S))
    churn.start()
    return churn


def _installing(thesis: Thesis, before: Nodes, after: Nodes) -> Row:
    count = len(thesis.subscriptions)
    installs = [made.took_s for made in thesis.subscriptions if made.took_s is not None]
    return {
        "subscriptions": count,
        "installed": len(installs),
        **latency_row("install", installs, (0.6, 1.0)),
        "replicated": len(thesis.replicated),
        **latency_row("replicated", thesis.replicated, (0.6, 1.0)),
        **bytes_row("install", difference(bytes_sent(before), bytes_sent(after)), count),
        **bytes_row("install_tree", difference(bytes_sent(before, RECORDS), bytes_sent(after, RECORDS)), count),
        "install_by_message": by_message(before, after, count),
    }


def _publishing(thesis: Thesis, before: Nodes, after: Nodes) -> Row:
    events = thesis.events.values()
    deliveries = [took for sent in events for took in sent.arrivals.values()]
    direct, one_hop_s = thesis.direct(), thesis.one_hop_s()
    probing = difference(bytes_of(before, PROBES), bytes_of(after, PROBES))
    least_s = fmean(direct) + one_hop_s if direct else None
    return {
        "published": len(events),
        "acknowledged": sum(sent.outcome in ACKNOWLEDGED for sent in events),
        "leaves_mean": round(fmean([sent.leaves for sent in events] or [0]), 2),
        "deliveries": len(deliveries),
        **latency_row("delivery", deliveries, (0.4, 1.0)),
        **bytes_row("event", difference(bytes_sent(before), bytes_sent(after)), len(events)),
        **bytes_row("probe", probing, len(events)),
        "event_by_message": by_message(before, after, len(events)),
        "direct_mean_s": round(fmean(direct), 4) if direct else None,
        "one_hop_s": round(one_hop_s, 4),
        "over_direct": round(fmean(deliveries) / least_s, 3) if least_s else None,
    }
