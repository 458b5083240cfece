"""Nodes on a network: starting, dying, pausing, partitions, and the run of time.

`World` knows how to start a node only through `World.boot`, so tests can put trivial handlers on the network;
`peerd.sim.simulation.Simulation` starts real ones.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, Generic, NoReturn, TypeVar

from peerd.errors import Bug, PeerMisbehaved
from peerd.ids import NodeId, short_id
from peerd.linking.settings import LinkSettings
from peerd.messages import PeerRef
from peerd.sim.driver import SimDriver, SimStore
from peerd.sim.engine import NO_NODE, Engine, mark_of
from peerd.sim.identity import SimulatedKeys
from peerd.sim.latency import LatencyModel
from peerd.sim.network import Network, NetworkConfig, Port, Receiver, State
from peerd.sim.rng import fork, random_id
from peerd.telemetry.sinks import EventSink, NullSink

NODES_MAX: Final = 1_000_000
PORT: Final = 7420
GC_THRESHOLDS: Final = (500_000, 10, 5)
"""While events run, Python looks for reference cycles this rarely: millions of objects live long, and none that the
protocols make on their common path dies in a cycle (a whole node that ends does)."""
BOOT_MARK: Final = 0x424F4F
ACTION_MARK: Final = 0x414354

N = TypeVar("N", bound=Receiver)


@contextmanager
def rare_collections() -> Iterator[None]:
    """Let Python look for reference cycles rarely meanwhile.

    Whoever runs a simulation in many short steps puts all of them into one of these: between two steps Python would go
    through all objects that have been made in a step.
    """
    thresholds = gc.get_threshold()
    gc.set_threshold(*GC_THRESHOLDS)
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)


class SimulationFailure(Bug):
    """A run that went wrong: an exception in a handler or a broken invariant, with all that repeats it."""

    def __init__(self, reason: str, *, seed: int, time_s: float, events: int, node: str | None = None) -> None:
        place = f"node {node}, " if node is not None else ""
        super().__init__(f"{reason} [{place}t={time_s:.6f} s, event {events}, seed {seed}]")
        self.reason = reason
        self.seed = seed
        self.time_s = time_s
        self.events = events
        self.node = node


class SimNode(Generic[N]):
    """A place in the simulated cluster, through all incarnations of its node."""

    def __init__(self, port: Port) -> None:
        self.port = port
        self.boot_epoch = 0
        self.stores: dict[str, SimStore] = {}
        self.latest: SimDriver | None = None
        self.current: N | None = None
        """The node of the newest incarnation, dead or alive."""

    @property
    def index(self) -> int:
        """Position in `World.nodes`."""
        return self.port.index

    @property
    def id(self) -> NodeId:
        """The node's id, which is the same in every incarnation."""
        return self.port.peer.id

    @property
    def peer(self) -> PeerRef:
        """The node's id and address."""
        return self.port.peer

    @property
    def node(self) -> N:
        """The node of the newest incarnation. Raises `Bug` before the first start."""
        if self.current is None:
            raise Bug(f"{self.peer} has not started")
        return self.current

    @property
    def driver(self) -> SimDriver:
        """The driver of the newest incarnation. Raises `Bug` before the first start."""
        if self.latest is None:
            raise Bug(f"{self.peer} has not started")
        return self.latest

    @property
    def state(self) -> State:
        """The state of the newest incarnation."""
        return self.port.state

    @property
    def is_live(self) -> bool:
        """Whether the node runs and is not paused."""
        return self.port.state is State.RUNNING

    def __repr__(self) -> str:
        return f"SimNode({self.index}, {self.peer}, {self.state.name.lower()})"


class World(Generic[N]):
    """Engine, network and nodes; subclasses say what a node is."""

    def __init__(
        self,
        seed: int = 0,
        *,
        network: NetworkConfig | None = None,
        latency: LatencyModel | None = None,
        sink: EventSink | None = None,
        links: LinkSettings | None = None,
    ) -> None:
        self.seed = seed
        self.keys = SimulatedKeys(seed)
        self.engine = Engine()
        self.network = Network(self.engine, seed, network or NetworkConfig(), latency, links)
        self.nodes: list[SimNode[N]] = []
        self.sink: EventSink = sink if sink is not None else NullSink()
        self.rng = fork(seed, "workload")
        """For code that drives the simulation; nodes and network have their own generators."""
        self.misbehaviour_is_failure = True
        """Whether a report of misbehaviour ends the run: among honest nodes it shows a bug. Off to inject some."""
        self.misbehaviours: list[tuple[float, PeerRef, PeerRef, str]] = []
        """Reports of misbehaviour: (time, the reporting node, the accused one, what it did)."""
        self.starting = 0
        """Starts that are scheduled and have not happened."""
        self._ids = fork(seed, "ids")

    # Nodes

    def boot(self, place: SimNode[N], driver: SimDriver) -> N:
        """Make and attach the node of a new incarnation; it is started right after by `started`."""
        raise Bug("World.boot is for subclasses")

    def started(self, place: SimNode[N]) -> None:
        """Start the new node, which is attached."""

    def add_node(self, node_id: NodeId | None = None, *, delay_s: float | None = 0.0) -> SimNode[N]:
        """A new place, whose node starts after ``delay_s`` virtual seconds (``None``: not until `restart`)."""
        if len(self.nodes) >= NODES_MAX:
            raise Bug(f"{NODES_MAX} nodes are enough")
        index = len(self.nodes)
        host = f"10.{index >> 16 & 255}.{index >> 8 & 255}.{index & 255}"
        peer = PeerRef(random_id(self._ids) if node_id is None else node_id, host, PORT)
        place: SimNode[N] = SimNode(self.network.add_port(peer))
        self.nodes.append(place)
        if delay_s is not None:
            self._start_later(place, delay_s)
        return place

    def start(self, count: int, *, spacing_s: float = 0.1, ids: Sequence[NodeId] = ()) -> list[SimNode[N]]:
        """Add ``count`` nodes that start one after another, ``spacing_s`` apart; does not run.

        The first ones have the ``ids`` that are given.
        """
        named = [*ids[:count], *([None] * (count - len(ids)))]
        return [self.add_node(node_id, delay_s=spacing_s * number) for number, node_id in enumerate(named)]

    def _start_later(self, place: SimNode[N], delay_s: float) -> None:
        self.starting += 1
        self.after(delay_s, lambda: self._start(place), mark_of(place.index, BOOT_MARK))

    def _start(self, place: SimNode[N]) -> None:
        self.starting -= 1
        if place.port.driver is not None and place.port.driver.is_alive:
            raise Bug(f"{place.peer} runs already")
        place.boot_epoch += 1
        driver = SimDriver(self, self.network, place.port, place.boot_epoch, place.stores)
        place.port.driver = place.latest = driver
        place.current = self.boot(place, driver)
        driver.attach(place.current)
        self.network.version += 1
        self.started(place)

    def kill(self, place: SimNode[N]) -> None:
        """SIGKILL: the process ends between two events, its kernel resets its connections."""
        place.driver.end(State.STOPPED)

    def silence(self, place: SimNode[N]) -> None:
        """Power loss: the machine sends nothing any more."""
        place.driver.end(State.SILENT)

    def pause(self, place: SimNode[N]) -> None:
        """SIGSTOP: what arrives waits."""
        place.driver.pause()

    def resume(self, place: SimNode[N]) -> None:
        """SIGCONT."""
        place.driver.resume()

    def restart(self, place: SimNode[N], *, delay_s: float = 0.0) -> None:
        """Start the node anew, with a larger boot epoch and what its stores hold; kills it first if it runs."""
        if place.port.driver is not None and place.port.driver.is_alive:
            self.kill(place)
        self._start_later(place, delay_s)

    def live_nodes(self) -> list[SimNode[N]]:
        """The nodes that run, in order of creation."""
        return [place for place in self.nodes if place.is_live]

    def find(self, node_id: NodeId) -> SimNode[N]:
        """The place of an id. Raises ``KeyError``."""
        for place in self.nodes:
            if place.id == node_id:
                return place
        raise KeyError(f"no node {short_id(node_id)}")

    # Faults of the network

    def partition(self, *groups: Iterable[SimNode[N]]) -> None:
        """Let only nodes of the same group reach each other; all other nodes form one more group."""
        self.network.partition([place.index for place in group] for group in groups)

    def heal(self) -> None:
        """Undo partition, cuts and clogs."""
        self.network.heal()

    # Time

    @property
    def now(self) -> float:
        """The virtual time, seconds."""
        return self.engine.now

    def after(self, delay_s: float, action: Callable[[], None], mark: int = mark_of(NO_NODE, ACTION_MARK)) -> None:
        """Do something to the simulation ``delay_s`` virtual seconds from now; it is part of the trace."""
        self.engine.schedule(self.engine.now + delay_s, mark, _call, action)

    def run_for(self, duration_s: float) -> int:
        """Run ``duration_s`` virtual seconds; returns how many events ran."""
        return self._run(self.engine.now + duration_s)

    def run_until(self, predicate: Callable[[], bool], limit_s: float, *, poll_s: float = 0.1) -> float:
        """Run until the predicate holds, checked every ``poll_s`` virtual seconds; returns how many that took.

        Raises `SimulationFailure` when it does not hold after ``limit_s`` virtual seconds.
        """
        begun = self.engine.now
        while not predicate():
            if self.engine.now >= begun + limit_s:
                raise self.failure(f"{_name(predicate)} does not hold after {limit_s} s")
            self._run(min(self.engine.now + poll_s, begun + limit_s))
        return self.engine.now - begun

    @property
    def pending(self) -> int:
        """How many events wait."""
        return self.engine.pending

    def digest(self) -> str:
        """The trace hash: equal for equal runs."""
        return self.engine.digest()

    def close(self) -> None:
        """Finish the sink."""
        self.sink.close()

    def _run(self, until_s: float) -> int:
        with rare_collections():
            try:
                return self.engine.run(until_s)
            except SimulationFailure:
                raise
            except Exception as error:  # any exception of a node ends the run, with the command that repeats it
                index = self.engine.current
                place = self.nodes[index] if index < len(self.nodes) else None
                raise self.failure(f"{type(error).__name__}: {error}", place) from error

    # What drivers report (peerd.sim.driver.Surroundings)

    def record(self, record: dict[str, object]) -> None:
        """Write a record to the sink."""
        self.sink.write(record)

    def handler_failed(self, driver: SimDriver, plugin: str, error: Exception) -> NoReturn:
        """Raises `SimulationFailure`."""
        if isinstance(error, SimulationFailure):
            raise error
        reason = f"{plugin} raised {type(error).__name__}: {error}"
        raise self.failure(reason, self.nodes[driver.port.index]) from error

    def misbehaved(self, driver: SimDriver, peer: PeerRef, error: PeerMisbehaved) -> None:
        """Note it; raises `SimulationFailure` unless misbehaviour is expected."""
        self.misbehaviours.append((self.engine.now, driver.peer, peer, str(error)))
        if self.misbehaviour_is_failure:
            raise self.failure(f"{driver.peer} says that {peer} misbehaved: {error}", self.nodes[driver.port.index])

    def duplicate_identity(self, driver: SimDriver, detail: str) -> None:
        """A newer process has the node's identity: this one ends, as the daemon does."""
        place = self.nodes[driver.port.index]
        self.after(0.0, lambda: self.kill(place) if place.driver is driver and driver.is_alive else None)

    def failure(self, reason: str, place: SimNode[N] | None = None) -> SimulationFailure:
        """Make an error to raise, with place, time and seed."""
        engine = self.engine
        node = None if place is None else f"{place.index} ({place.peer}, boot {place.boot_epoch})"
        return SimulationFailure(reason, seed=self.seed, time_s=engine.now, events=engine.events, node=node)


def _call(action: Callable[[], Any]) -> None:
    action()


def _name(predicate: Callable[..., Any]) -> str:
    return str(getattr(predicate, "__qualname__", predicate))
