"""Routed messages at a given rate, judged against the truth at the instant of their delivery.

All bookkeeping is outside the nodes: a probe carries only a number, no answer is sent, and no plugin receives it. So
the cost of a probe is the cost of routing.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from peerd.ids import NodeId
from peerd.messages import U64, Message, encode_body, message, message_type
from peerd.node.node import SENT, SENT_BYTES
from peerd.overlay.messages import LookupReply, Route, RouteAck
from peerd.sim.observed import Delivery
from peerd.sim.rng import fork, random_id
from peerd.sim.simulation import Place, Simulation, Watcher

LOST_AFTER_S: Final = 60.0
"""A probe that is not delivered within this time is lost: no hop holds a message for longer."""
PENDING_MAX: Final = 1_000_000

PAYLOAD: Final[frozenset[int]] = frozenset((Route.TYPE_ID, LookupReply.TYPE_ID))
ACKS: Final = RouteAck.TYPE_ID


@message(0x7EFF, bytes_max=32)
class SimulationProbe(Message):
    """Travels inside a `Route` in simulations only: the workload counts where and when it is delivered."""

    number: U64


@dataclass(slots=True)
class PendingProbe:
    """One probe on its way."""

    key: NodeId
    source: Place
    boot_epoch: int
    root: NodeId
    """The root of its key when it was sent."""
    sent_at: float
    hops: int = 0


@dataclass
class MessageRate:
    """How many messages and bytes of one type a node sends each second."""

    message: str
    sent_per_s: float
    sent_bytes_per_s: float


@dataclass
class LookupReport:
    """The outcome of one workload. Every probe is in exactly one of the first six counts, or still on its way."""

    phase: str = ""
    sent: int = 0
    right: int = 0
    """Probes delivered by the joined node closest to the key."""
    wrong: int = 0
    """Probes delivered by another node (incorrect delivery)."""
    lost: int = 0
    """Probes not delivered within `LOST_AFTER_S`, although the source ran all the time."""
    orphaned: int = 0
    """Probes not delivered in time whose source was gone or paused at the end of it."""
    excused: int = 0
    """Lost, or delivered by another node, after a hostile node had them in its hands; or delivered by the closest
    honest node, with only hostile ones closer."""
    duplicates: int = 0
    """Deliveries of a probe after its first."""
    moved: int = 0
    """Delivered probes whose right root changed after they were sent."""
    duration_s: float = 0.0
    node_seconds: float = 0.0
    hops_sum: int = 0
    hop_counts: list[int] = field(default_factory=list)
    """How many of the delivered probes took 0, 1, 2... hops."""
    path_s_sum: float = 0.0
    direct_s_sum: float = 0.0
    """Sum of the direct latencies from the source to the delivering node. Neither sum has probes that never left."""
    times_s: array[float] = field(default_factory=lambda: array("d"), repr=False)
    """Seconds from sending to delivery, of every delivered probe."""
    rates: list[MessageRate] = field(default_factory=list)
    """What nodes sent, by type, largest first: the mean over all running nodes."""
    control_per_s: float = 0.0
    """Control messages a second a node: all but the routed messages, so including acknowledgements of hops."""
    maintenance_per_s: float = 0.0
    """The same without acknowledgements of hops: the cost of a ring that is not used."""
    bytes_per_s: float = 0.0
    """Bytes sent a second a node, of all messages."""
    wrong_max: float = 1.0
    lost_max: float = 1.0
    """Largest shares that the scenario accepts."""

    @property
    def delivered(self) -> int:
        """How many probes were delivered, right or wrong."""
        return self.right + self.wrong

    @property
    def judged(self) -> int:
        """How many probes have an outcome that counts: all but the orphaned and those on their way."""
        return self.right + self.wrong + self.lost

    @property
    def right_share(self) -> float:
        """The share of the judged probes that reached the right node."""
        return self.right / self.judged if self.judged else 1.0

    @property
    def wrong_share(self) -> float:
        """The share of the judged probes that reached a wrong node."""
        return self.wrong / self.judged if self.judged else 0.0

    @property
    def lost_share(self) -> float:
        """The share of the judged probes that were lost."""
        return self.lost / self.judged if self.judged else 0.0

    @property
    def mean_hops(self) -> float:
        """The mean number of hops of the delivered probes."""
        return self.hops_sum / self.delivered if self.delivered else 0.0

    @property
    def stretch(self) -> float:
        """Latency of the path over the direct latency, as a ratio of means."""
        return self.path_s_sum / self.direct_s_sum if self.direct_s_sum else 1.0

    def count_hops(self, hops: int) -> None:
        """Count the hops of one more delivered probe."""
        self.hops_sum += hops
        self.hop_counts += [0] * (hops + 1 - len(self.hop_counts))
        self.hop_counts[hops] += 1

    def quantile_s(self, share: float) -> float:
        """Return the time, seconds, that this share of the delivered probes took at most; 0 without any."""
        times = sorted(self.times_s)
        return times[min(int(share * len(times)), len(times) - 1)] if times else 0.0

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        plain = {name: value for name, value in vars(self).items() if name not in ("times_s", "rates")}
        names = ("delivered", "right_share", "wrong_share", "lost_share", "mean_hops", "stretch")
        plain |= {name: getattr(self, name) for name in names}
        plain["median_s"], plain["p99_s"] = self.quantile_s(0.5), self.quantile_s(0.99)
        return {**plain, "rates": [vars(rate) for rate in self.rates]}


class Workload(Watcher):
    """Sends probes from random joined nodes to random keys, Poisson at ``rate_per_s``, from `start` until `stop`."""

    name = "workload"

    def __init__(
        self,
        simulation: Simulation,
        rate_per_s: float,
        *,
        name: str = "workload",
        phase: str = "",
        excuses: Callable[[int, bytes], bool] = lambda type_id, body: False,
    ) -> None:
        """``excuses``: whether a routed message, of this type and body, cannot be asked of honest nodes any more."""
        self.report = LookupReport(phase)
        self._excuses = excuses
        self._simulation = simulation
        self._gap_s = 1.0 / rate_per_s
        self._rng = fork(simulation.seed, name)
        self._pending: dict[bytes, PendingProbe] = {}
        self._done: set[bytes] = set()
        self._number = self._rng.getrandbits(32) << 24
        self._is_on = False
        self._begun_s = 0.0
        self._node_seconds = 0.0
        self._traffic = simulation.traffic()
        simulation.watch(self)

    @property
    def pending(self) -> int:
        """Probes on their way."""
        return len(self._pending)

    def start(self) -> None:
        """Send from now on; traffic is counted from now on."""
        simulation = self._simulation
        self._is_on = True
        self._begun_s, self._node_seconds = simulation.now, simulation.truth.node_seconds
        self._traffic = simulation.traffic()
        self._send_later()

    def stop(self) -> None:
        """Send no more and take stock of the traffic, once; probes on their way are still judged."""
        if not self._is_on:
            return
        self._is_on = False
        simulation, report = self._simulation, self.report
        report.duration_s = simulation.now - self._begun_s
        report.node_seconds = simulation.truth.node_seconds - self._node_seconds
        self._count_traffic()

    def finish(self) -> LookupReport:
        """Judge whatever has not arrived, as if its time were over."""
        for body in list(self._pending):
            self._expire(body)
        return self.report

    def send(self) -> bool:
        """Send a probe now. Returns whether there was a node to send it."""
        simulation, ready = self._simulation, self._simulation.truth.ready
        sources = (
            [node_id for node_id in ready.ids if not simulation.is_hostile(node_id)]
            if simulation.hostile
            else ready.ids
        )
        if not sources or len(self._pending) >= PENDING_MAX:
            return False
        source = simulation.places[self._rng.choice(sources)]
        key = random_id(self._rng)
        self._number += 1
        probe = SimulationProbe(self._number)
        body = encode_body(probe)
        self._pending[body] = PendingProbe(key, source, source.boot_epoch, ready.root(key), simulation.now)
        self.report.sent += 1
        simulation.after(LOST_AFTER_S, lambda: self._expire(body))
        source.node.overlay.route(key, probe)
        return True

    def _send_later(self) -> None:
        def due() -> None:
            if self._is_on:
                self.send()
                self._send_later()

        self._simulation.after(self._rng.expovariate(1.0 / self._gap_s), due)

    # Watching

    def passed(self, simulation: Simulation, place: Place, type_id: int, body: bytes, hops: int) -> str | None:
        """Note how many hops the probe has come."""
        if type_id == SimulationProbe.TYPE_ID:
            probe = self._pending.get(body)
            if probe is not None and hops > probe.hops:
                probe.hops = hops
        return None

    def delivered(self, simulation: Simulation, delivery: Delivery) -> str | None:
        """Judge the delivery of a probe."""
        if delivery.type_id != SimulationProbe.TYPE_ID:
            return None
        report, probe = self.report, self._pending.pop(delivery.body, None)
        if probe is None:
            report.duplicates += delivery.body in self._done
            return None
        self._done.add(delivery.body)
        root = simulation.truth.ready.root(probe.key) if len(simulation.truth.ready) else None
        if delivery.node.id == root:
            report.right += 1
        elif self._excuses(delivery.type_id, delivery.body) or self._is_passed_over(root, delivery):
            report.excused += 1
        else:
            report.wrong += 1
        report.moved += root != probe.root
        report.count_hops(probe.hops)
        elapsed_s = simulation.now - probe.sent_at
        report.times_s.append(elapsed_s)
        target = simulation.places[delivery.node.id]
        if target is not probe.source:
            report.path_s_sum += elapsed_s
            report.direct_s_sum += simulation.network.latency_s(probe.source.port, target.port)
        return None

    def _is_passed_over(self, root: NodeId | None, delivery: Delivery) -> bool:
        """Whether only hostile nodes are closer to the key than the one that delivered."""
        simulation = self._simulation
        is_hostile = root is not None and simulation.is_hostile(root)
        return is_hostile and simulation.honest_root(delivery.key) == delivery.node.id

    def _expire(self, body: bytes) -> None:
        self._done.discard(body)
        probe = self._pending.pop(body, None)
        if probe is None:
            return
        if self._excuses(SimulationProbe.TYPE_ID, body):
            self.report.excused += 1
        elif probe.source.is_live and probe.source.boot_epoch == probe.boot_epoch:
            self.report.lost += 1
        else:
            self.report.orphaned += 1

    def _count_traffic(self) -> None:
        report, node_seconds = self.report, max(self.report.node_seconds, 1e-9)
        report.rates, report.control_per_s, report.maintenance_per_s, report.bytes_per_s = [], 0.0, 0.0, 0.0
        for type_id, counts in self._simulation.traffic().items():
            before = self._traffic[type_id]
            sent = (counts[SENT] - before[SENT]) / node_seconds
            sent_bytes = (counts[SENT_BYTES] - before[SENT_BYTES]) / node_seconds
            kind = message_type(type_id)
            report.rates.append(MessageRate(kind.__name__ if kind else f"{type_id:#06x}", sent, sent_bytes))
            report.bytes_per_s += sent_bytes
            if type_id not in PAYLOAD:
                report.control_per_s += sent
                report.maintenance_per_s += 0.0 if type_id == ACKS else sent
        report.rates = sorted((rate for rate in report.rates if rate.sent_per_s), key=lambda rate: -rate.sent_per_s)
