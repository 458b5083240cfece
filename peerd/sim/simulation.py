"""A whole simulated cluster of real nodes::

simulation = Simulation(seed=7, plugins=lambda index: [MyPlugin()])
simulation.start(64)
simulation.run_until(simulation.is_ready, limit_s=60)
simulation.kill(simulation.nodes[3])
simulation.run_for(30)
simulation.check(RING_CHECKERS)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Final, TypeAlias

from peerd.api import Plugin, PluginConfig
from peerd.driver import Driver
from peerd.errors import PeerMisbehaved
from peerd.ids import NodeId, closest
from peerd.linking.settings import LinkSettings
from peerd.messages import Message, PeerRef
from peerd.node.node import Node, NodeSettings, Traffic
from peerd.overlay.config import OverlayConfig
from peerd.sim.driver import SimDriver
from peerd.sim.latency import LatencyModel
from peerd.sim.network import NetworkConfig, State
from peerd.sim.observed import Delivery, ObservedNode, Observer, Place as Place, WatchedNode
from peerd.sim.rng import fork
from peerd.sim.truth import RingOracle, Truth
from peerd.sim.world import World
from peerd.swap.config import SwapConfig
from peerd.telemetry.schema import Event
from peerd.telemetry.sinks import EventSink

CONTACTS: Final = 3
"""How many running nodes a new node is given to join through."""
SWEEP_EVENTS: Final = 1000
"""Events between two sweeps of the checkers, when there are any."""
SWEEP_S: Final = 5.0
"""Virtual seconds between two sweeps at most: in a small ring little happens."""
SHUTDOWN_TIMEOUT_S: Final = 5.0
"""How long a node may take to stop; the default of the daemon's ``node.shutdown_timeout``."""
NodeKind: TypeAlias = Callable[[Driver, NodeSettings, Sequence[Plugin], Observer, int], ObservedNode]
"""Makes a node: a subclass of `ObservedNode`, for instance."""
_HOOKS: Final = ("booted", "delivered", "passed", "handled", "sent", "emitted", "ready_changed")


class Watcher:
    """Base of what watches the nodes. Methods that are not overridden cost nothing.

    If a method returns a text, the run ends with that as its failure.
    """

    name: ClassVar[str] = "watcher"
    watched_messages: ClassVar[tuple[type[Message], ...]] = ()
    """The types of messages for which `handled` is called."""

    def booted(self, simulation: Simulation, place: Place, node: Node) -> str | None:
        """A new incarnation is about to start."""

    def delivered(self, simulation: Simulation, delivery: Delivery) -> str | None:
        """A message is delivered."""

    def passed(self, simulation: Simulation, place: Place, type_id: int, body: bytes, hops: int) -> str | None:
        """A routed message is at this node, ``hops`` after its source; it is delivered or forwarded next."""

    def handled(self, simulation: Simulation, place: Place, message: Any, source: PeerRef) -> str | None:
        """One of the ``watched_messages`` arrived, and is handled next."""

    def sent(self, simulation: Simulation, place: Place, message: Message) -> str | None:
        """A node sends a message, a request or an answer."""

    def emitted(self, simulation: Simulation, place: Place, event: Event) -> str | None:
        """A node records an event."""

    def ready_changed(self, simulation: Simulation, place: Place, is_ready: bool) -> str | None:
        """A node has joined, or has lost its place."""


class Checker(Watcher):
    """Base of all invariants.

    `check` and `check_node` return what does not hold, one sentence each. With ``holds_always`` set, sweeps ask
    `check`, and check mode asks `check_node` about the node that an event touched; else `check` is for a ring that has
    had time to repair itself.
    """

    number: ClassVar[int] = 0
    """The invariant's number in docs/simulator.md; 0 if it has none."""
    holds_always: ClassVar[bool] = False

    def check(self, simulation: Simulation) -> list[str]:
        """Return what does not hold now; by default `check_node` is asked about every running node that is honest."""
        return [text for place in simulation.honest_nodes() for text in self.check_node(simulation, place)]

    def check_node(self, simulation: Simulation, place: Place) -> list[str]:
        """Return what does not hold at this node."""
        return []


class Simulation(World[ObservedNode]):
    """A simulated cluster. ``plugins(index)`` makes the plugins of the node at that index, anew for each incarnation.

    ``check_every``: ask `Node.validate` and the checkers about the node that an event touched, after every so many
    events (0: never). ``checkers`` are asked about the invariants that hold always every ``sweep_every`` events, and
    every `SWEEP_S` virtual seconds unless that is 0, which means never.
    """

    def __init__(
        self,
        seed: int = 0,
        *,
        plugins: Callable[[int], Sequence[Plugin]] = lambda index: (),
        overlay: OverlayConfig | None = None,
        swap: SwapConfig | None = None,
        network: NetworkConfig | None = None,
        latency: LatencyModel | None = None,
        sink: EventSink | None = None,
        checkers: Sequence[Checker] = (),
        check_every: int = 0,
        sweep_every: int = SWEEP_EVENTS,
        links: LinkSettings | None = None,
        services: Mapping[str, PluginConfig] | None = None,
    ) -> None:
        super().__init__(seed, network=network, latency=latency, sink=sink, links=links)
        self.truth = Truth(self.network)
        self.places: dict[NodeId, Place] = {}
        """The places by id; if two have the same id, the newer one."""
        self.introducers: dict[int, list[Place]] = {}
        """By index, the nodes that the newest incarnation of a node was given to join through."""
        self.was_in_hostile_hands: Callable[[int, bytes], bool] = lambda type_id, body: False
        """Whether a message, by its type and body, reached a hostile node, which may have altered all else of it."""
        self.hostile: dict[int, NodeKind] = {}
        """Nodes that misbehave, by index, and what makes them; to be filled before they start. Checkers ask nothing of
        them, and an honest node may say that they misbehave."""
        self.checkers = tuple(checkers)
        self.sweeps = 0
        self._plugins = plugins
        self._overlay = overlay or OverlayConfig()
        self._swap = swap or SwapConfig()
        self._services = services or {}
        self._contacts = fork(seed, "contacts")
        self._watchers: dict[str, list[Watcher]] = {hook: [] for hook in _HOOKS}
        self._former_traffic = Traffic()
        self._leaving: dict[SimDriver, None] = {}
        self._check_every = check_every
        self._sweep_every = sweep_every
        self._until_check = check_every
        self._until_sweep = sweep_every
        self._next_sweep_s = SWEEP_S
        for checker in self.checkers:
            self.watch(checker)
        if check_every or checkers:
            self.engine.after = self._after_event

    # Nodes

    def boot(self, place: Place, driver: SimDriver) -> ObservedNode:
        """Make a node as the daemon would."""
        self.places[place.id] = place
        self._keep_traffic(place)
        settings = NodeSettings(
            peer=place.peer,
            boot_epoch=place.boot_epoch,
            overlay=self._overlay,
            swap=self._swap,
            services=self._services,
            profile="simulator",
        )
        plugins = self._plugins(place.index)
        is_watched = any(self._watchers[hook] for hook in ("handled", "sent", "emitted"))
        honest: NodeKind = WatchedNode if is_watched else ObservedNode
        node = self.hostile.get(place.index, honest)(driver, settings, plugins, self, place.index)
        self.truth.runs(place)
        for watcher in self._watchers["booted"]:
            self._judge(watcher, watcher.booted(self, place, node), place)
        return node

    def started(self, place: Place) -> None:
        """Have a new node join through a few running nodes, an honest one among them if there is any.

        The first node founds the ring.
        """
        running = [other for other in self.live_nodes() if other is not place]
        contacts = self._contacts.sample(running, min(CONTACTS, len(running)))
        if contacts and all(other.index in self.hostile for other in contacts):
            contacts[0] = next((other for other in running if other.index not in self.hostile), contacts[0])
        self.introducers[place.index] = contacts
        place.node.start([(other.peer.host, other.peer.port) for other in contacts])

    def live_nodes(self) -> list[Place]:
        """The nodes that run, in order of creation."""
        return [self.nodes[index] for index in self.truth.running]

    def honest_nodes(self) -> list[Place]:
        """Those of them that do not misbehave."""
        live = self.live_nodes()
        return [place for place in live if place.index not in self.hostile] if self.hostile else live

    def is_hostile(self, node_id: NodeId) -> bool:
        """Whether this is the id of a node that misbehaves."""
        return bool(self.hostile) and node_id in self.places and self.places[node_id].index in self.hostile

    def honest_root(self, key: NodeId) -> NodeId:
        """The honest node in the ring that is closest to a key. Raises ``ValueError`` when there is none."""
        return closest(key, [node_id for node_id in self.truth.ready.ids if not self.is_hostile(node_id)])

    def find(self, node_id: NodeId) -> Place:
        """The place of an id. Raises ``KeyError``."""
        return self.places[node_id] if node_id in self.places else super().find(node_id)

    def kill(self, place: Place) -> None:
        """SIGKILL."""
        self._leaving.pop(place.driver, None)
        super().kill(place)
        self.truth.rests(place, is_paused=False)

    def silence(self, place: Place) -> None:
        """Power loss."""
        self._leaving.pop(place.driver, None)
        super().silence(place)
        self.truth.rests(place, is_paused=False)

    def pause(self, place: Place) -> None:
        """SIGSTOP."""
        if place.is_live:
            super().pause(place)
            self.truth.rests(place, is_paused=True)
            self.truth.observe()

    def resume(self, place: Place) -> None:
        """SIGCONT."""
        if place.state is State.PAUSED:
            super().resume(place)
            self.truth.runs(place)
            if place.node.is_ready:
                self.truth.ready.add(place.id)
            self.truth.observe()

    def partition(self, *groups: Iterable[Place]) -> None:
        """Let only nodes of the same group reach each other."""
        super().partition(*groups)
        self.truth.observe()

    def heal(self) -> None:
        """Undo partition, cuts and clogs."""
        super().heal()
        self.truth.observe()

    def stop(
        self,
        place: Place,
        reason: str = "stopped",
        *,
        limit_s: float = SHUTDOWN_TIMEOUT_S,
        then: Callable[[], None] = lambda: None,
    ) -> None:
        """Stop a node in order, as the daemon does: hand over in at most half of ``limit_s``, leave the ring, flush.

        ``then`` is called once the process has ended in this way, and not if it is killed meanwhile.
        """
        driver = place.driver
        if not place.is_live or driver in self._leaving:
            return
        self._leaving[driver] = None
        ends_at = self.now + limit_s

        def ended() -> None:
            self.kill(place)
            then()

        def leave(unfinished: tuple[str, ...]) -> None:
            place.node.stop(reason)
            driver.leave(ends_at - self.now, ended)

        if place.node.is_ready:
            place.node.drain(limit_s / 2, leave, reason)
        else:
            leave(())

    def bury(self, place: Place) -> None:
        """Free the memory of a node that has ended for good; a restart still works."""
        if place.current is not None and not place.driver.is_alive:
            self._keep_traffic(place)
            place.driver.detach()
            place.current = None

    def is_ready(self) -> bool:
        """Whether every node that should run does, and is ready; of those that misbehave nobody asks that."""
        live = self.honest_nodes()
        return bool(live) and all(place.node.is_ready for place in live) and not self.starting

    # Invariants

    def oracle(self) -> RingOracle:
        """The ring of the running nodes."""
        return RingOracle.of(self)

    def check(self, checkers: Iterable[Checker]) -> None:
        """Ask these checkers now. Raises `SimulationFailure` with everything that does not hold."""
        offences = [f"{checker.name}: {offence}" for checker in checkers for offence in checker.check(self)]
        if offences:
            raise self.failure("; ".join(offences[:8]) + (f"; and {len(offences) - 8} more" if offences[8:] else ""))

    def validate(self) -> None:
        """`Node.validate` on every running node."""
        for place in self.honest_nodes():
            self._validate(place)

    def _validate(self, place: Place) -> None:
        try:
            place.node.validate()
        except Exception as error:  # a broken invariant of one node, reported with place and time
            raise self.failure(f"validate: {type(error).__name__}: {error}", place) from error

    def _after_event(self, index: int) -> None:
        self.truth.observe()
        if self._check_every and index < len(self.nodes):
            self._until_check -= 1
            if self._until_check <= 0:
                self._until_check = self._check_every
                if self.nodes[index].is_live and index not in self.hostile:
                    self._check_node(self.nodes[index])
        if self._sweep_every:
            self._until_sweep -= 1
            if self._until_sweep <= 0 or self.engine.now >= self._next_sweep_s:
                self.sweep()

    def _check_node(self, place: Place) -> None:
        self._validate(place)
        for checker in self.checkers:
            if checker.holds_always:
                for offence in checker.check_node(self, place):
                    raise self.failure(f"{checker.name}: {offence}", place)

    def sweep(self) -> None:
        """Ask the checkers that hold always. Raises `SimulationFailure`."""
        self.sweeps += 1
        self._until_sweep = self._sweep_every
        self._next_sweep_s = self.engine.now + SWEEP_S
        self.check(checker for checker in self.checkers if checker.holds_always)

    # What nodes do (peerd.sim.observed.Observer)

    def watch(self, watcher: Watcher) -> None:
        """Show a watcher what happens from now on. One for messages or events must be added before the first node."""
        for hook in _HOOKS:
            if getattr(type(watcher), hook) is not getattr(Watcher, hook):
                self._watchers[hook].append(watcher)

    def watches(self, kind: type[Message]) -> bool:
        """Whether anybody wants to see this message handled."""
        return any(kind in watcher.watched_messages for watcher in self._watchers["handled"])

    def on_delivered(self, delivery: Delivery) -> None:
        """A message is delivered."""
        for watcher in self._watchers["delivered"]:
            self._judge(watcher, watcher.delivered(self, delivery), self.places[delivery.node.id])

    def on_passed(self, index: int, type_id: int, body: bytes, hops: int) -> None:
        """A routed message comes by."""
        for watcher in self._watchers["passed"]:
            self._judge(watcher, watcher.passed(self, self.nodes[index], type_id, body, hops), self.nodes[index])

    def on_ready_changed(self, index: int, is_ready: bool) -> None:
        """A node has joined, or has lost its place."""
        place = self.nodes[index]
        if is_ready:
            self.truth.ready.add(place.id)
        else:
            self.truth.ready.discard(place.id)
        for watcher in self._watchers["ready_changed"]:
            self._judge(watcher, watcher.ready_changed(self, place, is_ready), place)

    def on_handled(self, index: int, message: Message, source: PeerRef) -> None:
        """A message arrived."""
        place, kind = self.nodes[index], type(message)
        for watcher in self._watchers["handled"]:
            if kind in watcher.watched_messages:
                self._judge(watcher, watcher.handled(self, place, message, source), place)

    def on_sent(self, index: int, message: Message) -> None:
        """A message leaves."""
        for watcher in self._watchers["sent"]:
            self._judge(watcher, watcher.sent(self, self.nodes[index], message), self.nodes[index])

    def on_emitted(self, index: int, event: Event) -> None:
        """A line of the event log."""
        for watcher in self._watchers["emitted"]:
            self._judge(watcher, watcher.emitted(self, self.nodes[index], event), self.nodes[index])

    def _judge(self, watcher: Watcher, offence: str | None, place: Place) -> None:
        if offence is not None and place.index not in self.hostile:
            raise self.failure(f"{watcher.name}: {offence}", place)

    def misbehaved(self, driver: SimDriver, peer: PeerRef, error: PeerMisbehaved) -> None:
        """As ever, but of a hostile node anything may be said, and what one says is only noted."""
        if driver.port.index in self.hostile or self.is_hostile(peer.id):
            self.misbehaviours.append((self.now, driver.peer, peer, str(error)))
        else:
            super().misbehaved(driver, peer, error)

    # Traffic

    def traffic(self) -> Traffic:
        """What all nodes, dead ones included, have sent and received since the beginning, by message type."""
        total = Traffic()
        _add_traffic(total, self._former_traffic)
        for place in self.nodes:
            if place.current is not None:
                _add_traffic(total, place.current.traffic)
        return total

    def _keep_traffic(self, place: Place) -> None:
        if place.current is not None:
            _add_traffic(self._former_traffic, place.current.traffic)

    def snapshot_traffic(self) -> None:
        """Have every running node record what it sent and received."""
        for place in self.live_nodes():
            place.node.snapshot_traffic()


def _add_traffic(total: Traffic, part: Traffic) -> None:
    for type_id, counts in part.items():
        total[type_id] = [before + more for before, more in zip(total[type_id], counts, strict=True)]
