"""Measurement queries (Chandramouli): puts the parts together, and hears what the node tells."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import ClassVar, Final

from peerd.api import (
    AcceptSwap,
    Host,
    Metric,
    Plugin,
    PluginConfig,
    RecordRole,
    RefuseSwap,
    SwapRequest,
    handles,
    on_timer,
)
from peerd.ids import NodeId
from peerd.messages import Message, PeerRef
from protocols.measurement.aggregates.messages import AGGREGATE_MESSAGES
from protocols.measurement.aggregates.tree import AggregateTree
from protocols.measurement.asking import ClientReads
from protocols.measurement.config import MeasurementConfig
from protocols.measurement.directory import Directory
from protocols.measurement.events import EVENTS
from protocols.measurement.guarantee.caching import Caching
from protocols.measurement.guarantee.effects import Disbelieved, Effect, Moved, ProviderLate, ProviderLost, SendTo
from protocols.measurement.guarantee.messages import CacheAsk, CacheUpdate
from protocols.measurement.guarantee.words import Measurement
from protocols.measurement.messages import MESSAGES, NAMES_MAX, PAIRS_MAX, Description, MeasureName, Tag
from protocols.measurement.names import split_name
from protocols.measurement.placing.along import DISTRUSTED_S, ReadsAlong, WayProofs
from protocols.measurement.placing.checking import OwnerSignatures, SpotChecks
from protocols.measurement.placing.decider import CacheDecider
from protocols.measurement.placing.messages import PLACING_MESSAGES
from protocols.measurement.placing.splicing import Splicing
from protocols.measurement.placing.squares import Spot, spot_of
from protocols.measurement.placing.statistics import SAMPLES, updates_s
from protocols.measurement.placing.tree import ROOT_KEY, RouteTree, TreeRoutes
from protocols.measurement.placing.wants import DIRECT_S, AskedOften, HeldWants
from protocols.measurement.reading import Readings
from protocols.measurement.readings import OwnReading
from protocols.measurement.sources.network import BandwidthProbes
from protocols.measurement.sources.past import PastSamples
from protocols.measurement.sources.sampling import METRICS as SAMPLING_METRICS, Sampling
from protocols.measurement.sources.source import MeasurementSource
from protocols.measurement.standing import Queries
from protocols.measurement.traffic import TRAFFIC_METRICS, TrafficCounts
from protocols.measurement.watching import Watching

TICK_S: Final = 0.25
"""How often it is looked whom to ask and whom to tell, while this node holds or provides anything."""
INSTANCES_MAX: Final = 1 << 10
"""Instances of this plugin in one boot of a node: failed ones are replaced."""
SUMMED_IN_TREE: Final = 64
"""With placing = "auto", aggregates of so many nodes are reckoned in T: it takes as many messages as to hold all values
here, for one that watches, but they do not all come to this node."""
_TICK: Final = "tick"


class MeasurementQueries(Plugin):
    """Clients ask `readings` and `watching`; `sampled` gets what this node measures."""

    name = "measurement"
    version = 1
    messages: ClassVar[tuple[type[Message], ...]] = (*MESSAGES, *PLACING_MESSAGES, *AGGREGATE_MESSAGES)
    metrics = (
        *SAMPLING_METRICS,
        *TRAFFIC_METRICS,
        Metric("peerd_measurement_held", "gauge", "Values of other nodes that this one holds."),
        Metric("peerd_measurement_holders", "gauge", "Nodes that this one provides values for."),
    )
    events = EVENTS
    Config: ClassVar[type[PluginConfig]] = MeasurementConfig
    config: MeasurementConfig

    def __init__(self, config: PluginConfig | None = None, sources: Sequence[MeasurementSource] | None = None) -> None:
        super().__init__(config)
        self._sources = sources
        """In a simulation; else those of the configuration."""
        self._instance = 0

    def start(self, host: Host) -> None:
        super().start(host)
        self.past = PastSamples()
        self._names: dict[str, None] = {}
        self._spot: Spot | None = None
        self._partners: dict[NodeId, PeerRef] = {}
        """Nodes that provide for this one, or that it provides for."""
        boot = host.boot_epoch * INSTANCES_MAX + self._instance
        is_signing = self.config.signed and bool(host.public_key)
        signatures = OwnerSignatures(host, lambda: self.directory.keys) if is_signing else None
        self.caching = Caching(host.id, boot, self.config.terms(), signatures)
        self.traffic = TrafficCounts(host, self.caching)
        self.directory = Directory(host, self.config, self.describe, self.traffic)
        self.decider = CacheDecider(host, self.config, self.caching)
        statistics = self.decider.statistics
        self.tree, proofs = RouteTree(host), WayProofs(host, self._send)
        routes = TreeRoutes(self.tree, self.directory)
        self.splicing = Splicing(
            host,
            self.caching,
            routes,
            statistics,
            proofs,
            self._carry_out,
            self._send,
            self._know,
            self._peer_of,
            self.decider.renew_s,
        )
        self.along = ReadsAlong(
            host, self.config, self.caching, routes, self.directory, statistics, proofs, self._send, self._updates_s
        )
        self.wants = HeldWants(host, self.config, self.caching, self.splicing, self._carry_out, self.decider.wake)
        self.decider.start(self.wants, self.splicing)
        often = AskedOften(host, self.config.update_interval, self.wants, statistics)
        self.readings = Readings(
            host, self.caching, self.directory, self._pairs, self.traffic, statistics, self.along, often
        )
        self.watching = Watching(host, self.caching, self.directory, self.wants)
        self.asking = ClientReads(self.directory, self.readings)
        self.aggregates = AggregateTree(
            host, self.tree, ROOT_KEY, self.caching, self._names, lambda: self.config.tags, self._send
        )
        has_tree = self.config.placing in ("auto", "tree")
        aggregates = self.aggregates if has_tree else None
        fewest = 0 if self.config.placing == "tree" else SUMMED_IN_TREE
        self.queries = Queries(host, self.directory, self.readings, self.watching, aggregates, fewest)
        self.bandwidth = BandwidthProbes(host, self.config.bandwidth_interval)
        made = self._sources is None
        sources = self.config.make_sources(host, self.bandwidth.found) if made else self._sources or ()
        self.sampling = Sampling(host, sources, self, self.config.smoothings())
        self.add_parts(self.directory, self.readings, self.watching, self.queries, self.sampling, self.traffic)
        self.checks = SpotChecks(host, self.caching, self.past, self.traffic, self._peer_of, self._distrust)
        self.along.checks, self.along.is_signed = self.checks.read, self.checks.is_signed
        self.add_parts(self.checks, self.bandwidth, self.tree, self.along, self.splicing, self.decider)
        self.add_parts(self.aggregates, often)
        self._is_ticking = False
        self.directory.start()
        if has_tree:
            self.tree.start()
        self.sampling.begin()
        self.bandwidth.begin()

    def inherit(self, failed: MeasurementQueries) -> None:
        """Numbers of promises and samples begin anew, so this is another boot for whoever knows those of before."""
        self._instance = failed._instance + 1

    def reconfigured(self) -> None:
        self.directory.changed()

    def swap_requested(self, request: SwapRequest) -> AcceptSwap | RefuseSwap:
        return self.bandwidth.requested(request)

    def stop(self) -> None:
        """A goodbye: nobody expects this node to answer any more."""
        self.traffic.report()
        self.directory.leave(lambda: None)

    def record_changed(self, key: NodeId, role: RecordRole, item: bytes) -> None:
        self.directory.record_changed(key)

    def drain(self, done: Callable[[], None]) -> None:
        self.directory.leave(done)

    # What this node is

    def tags(self) -> Mapping[str, str]:
        """What the operator calls it."""
        return self.config.tags

    def describe(self) -> Description:
        """What this node says of itself."""
        peers: dict[str, list[NodeId]] = {}
        for full in self._names:
            name, peer = split_name(full)
            peers.setdefault(name, []).extend([] if peer is None else [peer])
        names = [MeasureName(name, tuple(sorted(of)[:PAIRS_MAX])) for name, of in sorted(peers.items())]
        tags = tuple(Tag(key, value) for key, value in sorted(self.config.tags.items()))
        self._spot = spot_of(self.host.coordinate, self._spot)
        key = self.host.public_key if self.config.signed else b""
        return Description(self.host.peer, self.caching.boot, tags, tuple(names[:NAMES_MAX]), self._spot, key)

    def _pairs(self, name: str) -> Sequence[str]:
        return [full for full in self._names if full.startswith(f"{name}@")]

    # Measuring

    def sampled(self, values: Mapping[str, float], asked_at: float) -> None:
        """A source of this node was asked at that time, and has answered."""
        self._carry_out(self.caching.sampled(values, asked_at, self.host.now()))
        self.aggregates.sampled()
        at_s = self.host.wall_time()
        for name, value in values.items():
            known = self.caching.owner.known(Measurement(self.host.id, name))
            self.past.add(name, at_s, value, 0 if known is None else known.claim.since.number, self.host.now())
        if not self._names.keys() >= values.keys():
            self._names.update(dict.fromkeys(values))
            self.directory.changed()

    def failed(self, names: Iterable[str]) -> None:
        """A source has no values of these any more."""
        gone = [name for name in names if name in self._names]
        self._carry_out(self.caching.failed(gone, self.host.now()))
        for name in gone:
            del self._names[name]
        self.aggregates.sampled()
        self.directory.changed()

    def own(self) -> list[OwnReading]:
        """What this node measures, by name."""
        return [self._own(name) for name in sorted(self._names)]

    def put(self, name: str, value: float, ttl_s: float) -> OwnReading:
        """An application measures this. Raises `ClientRefusal`."""
        self.sampling.put(name, value, ttl_s)
        return self._own(name)

    def _own(self, name: str) -> OwnReading:
        answer = self.caching.read(Measurement(self.host.id, name), self.host.now())
        source = self.sampling.source_of(name)
        return (
            OwnReading(name, source) if answer is None else OwnReading(name, source, answer.claim.value, answer.age_s)
        )

    # The guarantee

    @handles(CacheAsk)
    def _on_ask(self, ask: CacheAsk, source: PeerRef) -> None:
        self._know(source)
        self._carry_out(self.caching.asked(source.id, ask, self.host.now()))

    @handles(CacheUpdate)
    def _on_update(self, update: CacheUpdate, source: PeerRef) -> None:
        self.splicing.heard(source.id, update)
        effects = self.caching.heard(source.id, update, self.host.now())
        self._carry_out(effects)
        if self.caching.holder.is_provider(source.id):  # perhaps only to be told that nothing of it is wanted
            self._know(source)
            self._keep_ticking()
        for measurement in (effect.measurement for effect in effects if isinstance(effect, Moved)):
            held = self.caching.holder.held.get(measurement)
            if held is not None and held.provider == source.id and held.vouched:
                self.decider.statistics.updated(measurement)
                self.readings.remember(measurement, held.claim.value)

    @on_timer(_TICK)
    def _tick(self, payload: None) -> None:
        self._is_ticking = False
        self._carry_out(self.caching.tick(self.host.now()))
        self.checks.tick(self.host.now())
        self.splicing.tidy(self.host.now())
        self.wants.look()
        holder, provider = self.caching.holder, self.caching.provider
        partners = provider.edges.keys() | holder.providers()
        self._partners = {node: peer for node, peer in self._partners.items() if node in partners}
        self.host.gauge("peerd_measurement_held", len(holder.held))
        self.host.gauge("peerd_measurement_holders", sum(bool(edge.guarantees) for edge in provider.edges.values()))
        if partners or holder.held:
            self._keep_ticking()

    def _keep_ticking(self) -> None:
        if not self._is_ticking:
            self._is_ticking = True
            self.host.set_timer(_TICK, TICK_S * self.host.rng.uniform(0.8, 1.0))

    def _carry_out(self, effects: Iterable[Effect]) -> None:
        """Do what the guarantee wants done."""
        late: list[Measurement] = []
        doubts: list[Disbelieved] = []
        for effect in effects:
            match effect:
                case SendTo(to, message):
                    self._keep_ticking()
                    peer = self._peer_of(to)
                    if peer is None:  # what was to be said is said again, and the node asked for meanwhile
                        self.directory.refreshed(lambda: None)
                    else:
                        self._send(peer, message)
                case Moved(measurement):
                    self.watching.moved(measurement)
                case ProviderLost(measurement, provider):
                    self.splicing.lost(measurement, provider)
                case ProviderLate(measurement):
                    late.append(measurement)
                case Disbelieved():
                    doubts.append(effect)
        if late:  # together: a provider that has died may have had thousands
            self.wants.late(late)
        if doubts:
            self._doubt(doubts)

    def _doubt(self, told: Sequence[Disbelieved]) -> None:
        """Caches have told what owners have not signed. Where a key is not known here yet, it may be soon."""
        for cache, forged in {each.provider: each.measurement for each in told if each.is_forged}.items():
            self.checks.lied(forged, cache, "forged")
        self.wants.avoid_caches([each.measurement for each in told if each.is_forged], DISTRUSTED_S)
        self.wants.avoid_caches([each.measurement for each in told if not each.is_forged], DIRECT_S)
        self.directory.refreshed(lambda: None)

    def _send(self, peer: PeerRef, message: Message) -> None:
        self.host.send(peer, message)
        self.traffic.sent(message)

    def _distrust(self, cache: NodeId) -> None:
        """What a cache has told is wrong: of all that it provides for this node, owners do so from now on."""
        self.along.distrust(cache)
        held = self.caching.holder.held.items()
        told = [each for each, value in held if value.provider == cache and each.owner != cache]
        self._carry_out(self.caching.unwant(told, self.host.now()))
        self.wants.avoid_caches(told, DISTRUSTED_S)

    def _know(self, peer: PeerRef) -> None:
        self._partners[peer.id] = peer

    def _peer_of(self, node: NodeId) -> PeerRef | None:
        return self._partners.get(node) or self.directory.peer(node)

    # Placing

    def _updates_s(self, name: str, half_width: float) -> float:
        return updates_s(self.past.last(name, SAMPLES), half_width)

    def peer_down(self, peer: PeerRef, reason: str) -> None:
        self.tree.lost((peer.id,))
        self.directory.lost(peer.id)
        self._carry_out(self.caching.holder.lost(peer.id))

    def validate(self) -> None:
        self.caching.provider.validate(self.host.now())
