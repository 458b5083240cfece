"""One run of the thesis's evaluation in the simulator: nodes join, subscriptions are installed, events are published.

The setting is that of section 4.1 unless a point says otherwise: capacities drawn between 10 and 30, five subscriptions
a node on average, drawn as in tables 4.2 and 4.3, each at a random node, after exponentially distributed pauses. Events
come in ``point.duration_s``, about ``point.lookups`` of them.

What a point says about installing decides the ring that it needs, and points that need the same ring share it:
`prepare` makes the ring, and `measure_on` goes on from there.
"""

from __future__ import annotations

import json
import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from statistics import fmean
from typing import Any, Final

from peerd.errors import Unavailable
from peerd.lab.experiment import Beginning, Notify, Point, Row
from peerd.lab.simulated import Outcome, simulate
from peerd.lib.feed import FeedItem, Reader
from peerd.sim.rng import fork
from peerd.sim.simulation import Place, Simulation
from peerd.sim.world import rare_collections
from protocols.pubsub.config import PubSubConfig
from protocols.pubsub.front.judging import plugin_of
from protocols.pubsub.front.lab.faults import CUT_S, Departures, pieces_lost, seconds_until_whole, sides
from protocols.pubsub.front.lab.figures import bytes_row, difference, latency_row
from protocols.pubsub.front.lab.traffic import PROBES, RECORDS, Nodes, by_message, bytes_of, bytes_sent, traffic
from protocols.pubsub.front.workload import Ranges, ThesisWorkload, filter_of
from protocols.pubsub.models import AckWord, Published, ReceivedEvent, SubscriptionRequest, SubscriptionView

SUBSCRIPTIONS_A_NODE: Final = 5
CAPACITY: Final = (10, 30)
EVENTS_OF_ALL: Final = 10_000
"""The thesis's events, which all nodes publish together. Where there are fewer, fewer nodes publish, so that each
publishes as many as there, and learns as much of the trees: ten in a ring of 1,000 nodes, two in one of 5,000."""
BURST_PUBLISHERS: Final = 20
BURST_SHARE: Final = 0.2
"""In a burst so many nodes publish all events, with pauses that are this share of the usual ones."""
SUBSCRIBE_GAP_S: Final = 0.2
"""The mean pause between two subscriptions, in rings of up to `PACED_NODES`. In larger ones it is shorter, so that a
node has as much to do in a second."""
PACED_NODES: Final = 1000
DRAIN_S: Final = 60.0
SCHEMA_S: Final = 10.0
"""For so long all nodes look up the schema, before anything is counted."""
FAULTS: Final = frozenset({"session_min", "strikes", "cut"})
OF_THE_RUN: Final = frozenset({"focus", "crowd", "publishers", "burst", "warm", "ack", *FAULTS})
"""What a variant may say about the run; everything else that it says is a setting of publish/subscribe."""
OF_EVENTS: Final = frozenset({"multicast", "tree_maps", "leaf_cache_max", "delivery", "balancing", "hot_rate"})
"""Settings that are of no importance before events are published."""
ACKNOWLEDGED: Final = ("received", "replicated")
THESIS: Final[dict[str, Any]] = {
    "base_attribute": "random",
    "cutoff": 0.25,
    "delivery": "direct",
    "multicast": True,
    "tree_maps": True,
    "balancing": "static",
    "hot_rate": "64KiB",
    "leaf_cache_max": 0,
    "leaf_capacity": sum(CAPACITY) // 2,
    "lease": "7d",
    "merge_share": 0.0,
    "update_interval": "1h",
    "history_age": "1m",
    "feed_items": 100,
}
"""The thesis's choices where our defaults differ: subscriptions do not lapse, leaves are not merged, nothing is
remembered of leaves. And little is remembered of events, which would fill the simulator's memory."""


def matches(ranges: Ranges, values: Mapping[str, float]) -> bool:
    """Whether each value lies within its range."""
    return all(low <= values[name] <= high for name, (low, high) in ranges.items())


class MatchFinder:
    """Finds the events that a subscription matches: those with the rarest of its ranges, compared one by one.

    It does so apart from the filter language and the indexes of the protocol.
    """

    def __init__(self, events: Sequence[Mapping[str, float]]) -> None:
        """All events have the same attributes."""
        self._events = events
        self._sorted = {
            name: sorted((values[name], index) for index, values in enumerate(events))
            for name in (events[0] if events else ())
        }

    def of(self, ranges: Ranges) -> list[int]:
        """The indexes of the events that match, in order."""
        if not self._events:
            return []
        rarest = min((self._within(name, *ends) for name, ends in ranges.items()), key=len)
        return sorted(index for _, index in rarest if matches(ranges, self._events[index]))

    def _within(self, name: str, low: float, high: float) -> Sequence[tuple[float, int]]:
        ordered = self._sorted[name]
        return ordered[bisect_left(ordered, (low, -1)) : bisect_right(ordered, (high, len(ordered)))]


@dataclass
class Subscribed:
    """One subscription of the run. ``took_s``: until it was acknowledged; ``None`` if it never was."""

    place: Place
    boot: int
    ranges: Ranges
    begun_at: float
    took_s: float | None = None
    reader: Reader[ReceivedEvent] | None = None
    seen: set[int] = field(default_factory=set)
    """The numbers of the events that came."""

    @property
    def is_live(self) -> bool:
        """Whether its node has run ever since it subscribed."""
        return self.place.is_live and self.place.boot_epoch == self.boot


@dataclass
class SentEvent:
    """One event of the run."""

    number: int
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
        self.workload = ThesisWorkload(self.rng, crowd=crowd_of(point))
        self.publishers: list[Place] = []
        """The nodes that publish; empty: all."""
        self.ack: AckWord = "received"
        self.subscriptions: list[Subscribed] = []
        self.received: list[float] = []
        """How long it took until the leaves of a subscription had it."""
        self.replicated: list[float] = []
        """How long it took until a subscription was at all replicas of its leaves."""
        self.events: dict[str, SentEvent] = {}
        self._early: list[tuple[Subscribed, str]] = []
        """Came before `publish` had returned: publisher, leaf and subscriber are one node."""
        self.wrong = 0
        self.doubled = 0
        self.refused = 0

    def prepare(self) -> None:
        """Draw the capacities, and make the schema known to all nodes."""
        for place in self.simulation.live_nodes():
            adjust(place, {"leaf_capacity": self.rng.randint(*CAPACITY)})
            installer = plugin_of(place).installer
            installer.on_received, installer.on_replicated = self.received.append, self.replicated.append
        done: list[object] = []
        plugin_of(self._anybody()).schemas.declare(self.workload.document(), done.append)
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
        with rare_collections():
            for _ in range(count):
                self.simulation.run_for(self.rng.expovariate(1.0 / gap_s))
                act()
            self.simulation.run_for(DRAIN_S)

    def _anybody(self) -> Place:
        return self.rng.choice(self.simulation.live_nodes())

    def _subscribe(self) -> None:
        place, ranges = self._anybody(), self.workload.ranges()
        made = Subscribed(place, place.boot_epoch, ranges, self.simulation.now)

        def done(answer: SubscriptionView | Exception) -> None:
            if isinstance(answer, SubscriptionView) and made.took_s is None:
                made.took_s = self.simulation.now - made.begun_at

        plugin = plugin_of(place)
        asked = SubscriptionRequest.model_validate({"schema": self.workload.schema, "filter": filter_of(ranges)})
        view = plugin.subscriptions.subscribe(asked, done)
        _, feed = plugin.subscriptions.reading(view.id)
        made.reader = feed.reader("start", on_ready=lambda: self._arrived(made))
        self.subscriptions.append(made)

    def _publish(self) -> None:
        place = self.rng.choice(self.publishers) if self.publishers else self._anybody()
        sent = SentEvent(len(self.events), place, self.workload.event(), self.simulation.now)

        def done(answer: Published | Exception) -> None:
            if isinstance(answer, Published):
                sent.outcome, sent.leaves = answer.outcome, answer.leaves

        self._early.clear()
        try:
            event = plugin_of(place).entering.publish(self.workload.schema, sent.values, done, self.ack)
        except Unavailable:  # a node that has just come: it is not ready, or looks up the schema
            self.refused += 1
            return
        self.events[str(event)] = sent
        for made, name in self._early:
            if name == str(event):
                self._take(made, sent)

    def _arrived(self, made: Subscribed) -> None:
        assert made.reader is not None
        while (entry := made.reader.take()) is not None:
            if not isinstance(entry, FeedItem):
                continue
            if (sent := self.events.get(entry.value.event)) is not None:
                self._take(made, sent)
            else:
                self._early.append((made, entry.value.event))

    def _take(self, made: Subscribed, sent: SentEvent) -> None:
        self.wrong += not matches(made.ranges, sent.values)
        self.doubled += sent.number in made.seen
        made.seen.add(sent.number)
        sent.arrivals.setdefault(made.place.index, self.simulation.now - sent.begun_at)

    def judged(self) -> Row:
        """Columns on what came where: of pairs of a subscription and an event that was acknowledged and published
        while it was established, how many match, and how many of these did not arrive.
        """
        pairs = due = missing = 0
        acknowledged = [sent for sent in self.events.values() if sent.outcome in ACKNOWLEDGED]
        index = MatchFinder([sent.values for sent in acknowledged])
        for made in self.subscriptions:
            if made.took_s is None or not made.is_live:
                continue
            established = made.begun_at + made.took_s
            pairs += sum(sent.begun_at > established for sent in acknowledged)
            matching = [sent for each in index.of(made.ranges) if (sent := acknowledged[each]).begun_at > established]
            due += len(matching)
            missing += sum(sent.number not in made.seen for sent in matching)
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


@dataclass
class InstalledRing:
    """A ring with its subscriptions, and what that took."""

    outcome: Outcome
    thesis: Thesis
    before: Nodes
    """What nodes had sent before the first subscription, and (`after`) after the last one."""
    after: Nodes
    processor_s: float


def adjust(place: Place, settings: Row) -> None:
    """Change settings of publish/subscribe on a running node."""
    plugin = plugin_of(place)
    plugin.config = plugin.config.model_copy(update=settings)
    plugin.reconfigured()


def settings_of(point: Point) -> Row:
    """The settings of publish/subscribe that a point asks for."""
    return {**THESIS, **{name: value for name, value in point.variant.items() if name not in OF_THE_RUN}}


def crowd_of(point: Point) -> float:
    """The share of subscriptions that are all the same."""
    crowd = point.variant.get("crowd")
    return crowd if isinstance(crowd, float) else 0.0


def ring_of(point: Point) -> str:
    """Names the ring that a point needs: points with the same name need the same one."""
    settings = {name: value for name, value in settings_of(point).items() if name not in OF_EVENTS}
    about = point.nodes, point.topology, point.settle_s, point.seed, crowd_of(point)
    return json.dumps([*about, settings], sort_keys=True)


def prepare(point: Point, notify: Notify) -> InstalledRing:
    """Let a ring form, and install the subscriptions."""
    begun = time.process_time()
    phases = [{"name": "settle", "duration_s": point.settle_s}]
    settings = {**settings_of(point), **{name: THESIS[name] for name in OF_EVENTS}}
    outcome = simulate(point, phases, notify, protocols={"pubsub": settings}, records={"ttl_max": settings["lease"]})
    thesis = Thesis(outcome.simulation, point)
    made = InstalledRing(outcome, thesis, {}, {}, 0.0)
    if outcome.report.failure is None:
        thesis.prepare()
        notify("install", outcome.simulation.now)
        made.before = traffic(outcome.simulation)
        gap_s = SUBSCRIBE_GAP_S * min(1.0, PACED_NODES / point.nodes)
        thesis.install(SUBSCRIPTIONS_A_NODE * point.nodes, gap_s)
        made.after = traffic(outcome.simulation)
    made.processor_s = time.process_time() - begun
    return made


def measure_on(made: InstalledRing, point: Point, notify: Notify) -> Row:
    """Publish events on such a ring; ``point.lookups`` is their number."""
    begun = time.process_time()
    outcome, thesis, simulation, variant = made.outcome, made.thesis, made.outcome.simulation, point.variant
    if outcome.report.failure is not None:
        return outcome.cost()
    gap_s = point.duration_s / max(point.lookups, 1)
    if variant.get("burst"):
        gap_s *= BURST_SHARE
    focus = variant.get("focus")
    thesis.workload.concentrate(float(focus) if focus else None)
    asked = PubSubConfig.model_validate(settings_of(point))
    for place in simulation.live_nodes():
        adjust(place, {name: getattr(asked, name) for name in OF_EVENTS})
    if variant.get("ack") == "replicated":
        thesis.ack = "replicated"
    thesis.publishers = _publishers(thesis, point)
    before = made.after
    if variant.get("warm"):
        notify("warm", simulation.now)
        thesis.publish(point.lookups, gap_s)
        thesis.forget_events()
        before = traffic(simulation)
    halves: Row = {}
    if isinstance(share := variant.get("cut"), float):
        notify("cut", simulation.now)
        halves = _cut(thesis, share, point.lookups)
        before = traffic(simulation)
    notify("publish", simulation.now)
    departures = Departures(simulation, thesis.rng)
    if isinstance(session_min := variant.get("session_min"), float):
        departures.come_and_go(session_min)
    if isinstance(strikes := variant.get("strikes"), int | float):
        departures.strike(int(strikes), point.duration_s)
    thesis.publish(point.lookups, gap_s)
    row = {
        **_installing(made),
        **_publishing(thesis, before, traffic(simulation)),
        **thesis.judged(),
        **halves,
        "publishers": len(thesis.publishers) or point.nodes,
        "departures": departures.total,
        "pieces_lost": pieces_lost(simulation),
        **outcome.cost(),
        "simulated_s": round(simulation.now, 3),
        "processor_s": round(made.processor_s + time.process_time() - begun, 2),
    }
    row["events_of_simulation"] = row.pop("events")
    return row


def measure(point: Point, notify: Notify) -> Row:
    """Run a point from its beginning."""
    return measure_on(prepare(point, notify), point, notify)


BEGINNING: Final = Beginning(ring_of, prepare, measure_on)


def _publishers(thesis: Thesis, point: Point) -> list[Place]:
    """The nodes that publish: so many that each publishes as many events as in the thesis, unless the point says."""
    if not FAULTS.isdisjoint(point.variant):
        return []
    live, wanted = thesis.simulation.live_nodes(), point.variant.get("publishers")
    if point.variant.get("burst"):
        wanted = BURST_PUBLISHERS
    as_there = max(1, point.lookups * len(live) // EVENTS_OF_ALL)
    count = int(wanted) if isinstance(wanted, int | float) else as_there
    return thesis.rng.sample(live, min(count, len(live)))


def _cut(thesis: Thesis, share: float, events: int) -> Row:
    """Cut the network, publish meanwhile, heal it, and wait for one ring; what was published then is not judged."""
    simulation = thesis.simulation
    simulation.partition(*sides(simulation, share, thesis.rng))
    thesis.publish(events, (CUT_S - DRAIN_S) / max(events, 1))
    outcomes = [sent.outcome for sent in thesis.events.values()]
    simulation.heal()
    whole_s = seconds_until_whole(simulation)
    simulation.run_for(DRAIN_S)
    thesis.forget_events()
    return {
        "cut_published": len(outcomes),
        "cut_acknowledged": sum(outcome in ACKNOWLEDGED for outcome in outcomes),
        "whole_s": whole_s,
    }


def _installing(made: InstalledRing) -> Row:
    thesis, before, after = made.thesis, made.before, made.after
    count = len(thesis.subscriptions)
    return {
        "subscriptions": count,
        "installed": sum(each.took_s is not None for each in thesis.subscriptions),
        **latency_row("install", thesis.received, (0.6, 1.0)),
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
