"""A whole simulated cluster of real nodes::

simulation = Simulation(seed=7, plugins=lambda index: [MyPlugin()])
simulation.start(64)
simulation.run_until(simulation.is_ready, limit_s=60)
simulation.kill(simulation.nodes[3])
simulation.run_for(30)
simulation.check(RING_CHECKERS)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from peerd.api import Plugin
from peerd.ids import NodeId
from peerd.messages import PeerRef
from peerd.node import Node, NodeSettings
from peerd.overlay.config import OverlayConfig
from peerd.services.records.config import RecordsConfig
from peerd.sim.checkers import Checker, Delivery, RingOracle
from peerd.sim.driver import SimDriver
from peerd.sim.latency import LatencyModel
from peerd.sim.network import NetworkConfig, State
from peerd.sim.records import RecordSink
from peerd.sim.rng import fork
from peerd.sim.world import SimNode, World
from peerd.swap.config import SwapConfig

CONTACTS: Final = 3
"""How many running nodes a new one is told of."""
SWEEP_EVENTS: Final = 1000
"""Events between two sweeps of the checkers, when there are any."""


class ObservedNode(Node):
    """A node whose deliveries checkers can see."""

    on_delivery: Callable[[Delivery], None] | None = None

    def deliver(self, key: NodeId, type_id: int, body: bytes, source: PeerRef) -> None:
        """Tell the checkers, then as ever."""
        if self.on_delivery is not None:
            self.on_delivery(Delivery(self.peer, key, type_id, source))
        super().deliver(key, type_id, body, source)


Place = SimNode[ObservedNode]


class Simulation(World[ObservedNode]):
    """``plugins(index)`` makes the plugins of the node at that index, anew for each incarnation.

    ``check_every``: call `Node.validate` on the node that an event touched, after every so many events (0: never).
    ``checkers`` are asked every ``sweep_every`` events about the invariants that hold always.
    """

    def __init__(
        self,
        seed: int = 0,
        *,
        plugins: Callable[[int], Sequence[Plugin]] = lambda index: (),
        overlay: OverlayConfig | None = None,
        swap: SwapConfig | None = None,
        records: RecordsConfig | None = None,
        network: NetworkConfig | None = None,
        latency: LatencyModel | None = None,
        sink: RecordSink | None = None,
        checkers: Sequence[Checker] = (),
        check_every: int = 0,
        sweep_every: int = SWEEP_EVENTS,
    ) -> None:
        super().__init__(seed, network=network, latency=latency, sink=sink)
        self._plugins = plugins
        self._overlay = overlay or OverlayConfig()
        self._swap = swap or SwapConfig()
        self._records = records or RecordsConfig()
        self._contacts = fork(seed, "contacts")
        self.checkers = tuple(checkers)
        self.sweeps = 0
        self._oracle: tuple[int, RingOracle] | None = None
        self._check_every = check_every
        self._sweep_every = sweep_every
        self._until_check = check_every
        self._until_sweep = sweep_every
        if check_every or checkers:
            self.engine.after = self._after_event

    # Nodes

    def boot(self, place: Place, driver: SimDriver) -> ObservedNode:
        """A node as the daemon would make it."""
        settings = NodeSettings(
            peer=place.peer,
            boot_epoch=place.boot_epoch,
            overlay=self._overlay,
            swap=self._swap,
            records=self._records,
            profile="simulator",
        )
        node = ObservedNode(driver, settings, self._plugins(place.index))
        watching = [checker for checker in self.checkers if checker.wants_deliveries]
        if watching:
            node.on_delivery = lambda delivery: self._delivered(watching, delivery)
        return node

    def started(self, place: Place) -> None:
        """Join through a few running nodes; the first one founds the ring."""
        running = [other for other in self.live_nodes() if other is not place]
        contacts = self._contacts.sample(running, min(CONTACTS, len(running)))
        place.node.start([(other.peer.host, other.peer.port) for other in contacts])

    def stop(self, place: Place, reason: str = "stopped") -> None:
        """Leave in order; the process ends once its last messages are under way."""
        if place.is_live:
            place.node.stop(reason)
            driver = place.driver
            self.after(0.0, lambda: driver.end(State.STOPPED))

    def is_ready(self) -> bool:
        """Whether every node that should run does, and is ready."""
        live = self.live_nodes()
        return bool(live) and all(place.node.is_ready for place in live) and not self.starting

    # Invariants

    def oracle(self) -> RingOracle:
        """The ring of the running nodes, sorted once for as long as nobody comes or goes."""
        version = self.network.version
        if self._oracle is None or self._oracle[0] != version:
            self._oracle = version, RingOracle.of(self)
        return self._oracle[1]

    def check(self, checkers: Iterable[Checker]) -> None:
        """Ask these checkers now. Raises `SimulationFailure` with everything that does not hold."""
        offences = [f"{checker.name}: {offence}" for checker in checkers for offence in checker.check(self)]
        if offences:
            raise self.failure("; ".join(offences[:8]) + (f"; and {len(offences) - 8} more" if offences[8:] else ""))

    def validate(self) -> None:
        """`Node.validate` on every running node."""
        for place in self.live_nodes():
            self._validate(place)

    def _validate(self, place: Place) -> None:
        try:
            place.node.validate()
        except Exception as error:  # a broken invariant of one node, told with where and when
            raise self.failure(f"validate: {type(error).__name__}: {error}", place) from error

    def _after_event(self, index: int) -> None:
        if self._check_every and index < len(self.nodes):
            self._until_check -= 1
            if self._until_check <= 0:
                self._until_check = self._check_every
                if self.nodes[index].is_live:
                    self._validate(self.nodes[index])
        self._until_sweep -= 1
        if self._until_sweep <= 0:
            self._until_sweep = self._sweep_every
            self.sweeps += 1
            self.check(checker for checker in self.checkers if checker.holds_always)

    def _delivered(self, checkers: Sequence[Checker], delivery: Delivery) -> None:
        for checker in checkers:
            offence = checker.delivered(self, delivery)
            if offence is not None:
                raise self.failure(f"{checker.name}: {offence}", self.find(delivery.node.id))

    # Workload

    def snapshot_traffic(self) -> None:
        """Have every running node record what it sent and received."""
        for place in self.live_nodes():
            place.node.snapshot_traffic()
