"""A plugin that uses the record store, and simulated rings of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

from peerd.api import Host, Plugin, RecordOutcome, RecordResult, RecordRole
from peerd.ids import NodeId, closeness, key_of
from peerd.services.records.config import RecordsConfig
from peerd.services.records.messages import RecordRequest
from peerd.services.records.record import Record
from peerd.sim.rng import fork
from peerd.sim.simulation import Place, Simulation
from peerd.testing.simulation import ring

TTL_S = 1800.0
ANSWER_LIMIT_S = 60.0


class RecordUser(Plugin):
    """Notes what it is told about its records."""

    name: ClassVar[str] = "record_user"

    def start(self, host: Host) -> None:
        """Begin with nothing noted."""
        super().start(host)
        self.roles: dict[NodeId, RecordRole] = {}
        self.items: dict[tuple[NodeId, bytes], RecordRole] = {}

    def record_changed(self, key: NodeId, role: RecordRole, item: bytes) -> None:
        """Remember the last role; forget a record that is gone."""
        if self.host.records.local(key, item) is None:
            self.items.pop((key, item), None)
        else:
            self.items[key, item] = role
        if not item and self.host.records.local(key) is None:
            self.roles.pop(key, None)
        elif not item:
            self.roles[key] = role


def record_ring(count: int, seed: int, config: RecordsConfig | None = None, **arguments: Any) -> Simulation:
    """A settled ring whose nodes all have a `RecordUser`."""
    services = {"records": config or RecordsConfig()}
    return ring(count, seed, plugins=lambda index: [RecordUser()], services=services, **arguments)


def user(place: Place) -> RecordUser:
    """The plugin of one node."""
    plugin = place.node.plugins[RecordUser.name]
    assert isinstance(plugin, RecordUser)
    return plugin


def key_number(number: int) -> NodeId:
    """Keys all round the ring."""
    return key_of(f"record {number}")


def holders(simulation: Simulation, key: NodeId, count: int = 3) -> list[Place]:
    """The live nodes closest to a key, closest first."""
    return sorted(simulation.live_nodes(), key=lambda place: closeness(key, place.id))[:count]


def held(place: Place, key: NodeId, item: bytes = b"") -> Record:
    """What one node holds under a name, whosever it is; it must hold something."""
    record = place.node.records.state.current((key, RecordUser.name, item), None)
    assert record is not None
    return record


def drop(place: Place, key: NodeId, item: bytes = b"") -> None:
    """Have one node lose what it holds under a name."""
    place.node.records.state.table.drop(held(place, key, item).identity)


def signed(place: Place, write: RecordRequest) -> RecordRequest:
    """A write as the store of that node sends it."""
    return place.node.records._signed(write)


def copies_of(simulation: Simulation, key: NodeId) -> list[Place]:
    """The live nodes that hold a value under a key."""
    return [place for place in simulation.live_nodes() if user(place).host.records.local(key) is not None]


def outcome_of(simulation: Simulation, start: Callable[[Callable[[RecordResult], None]], None]) -> RecordResult:
    """Run the simulation until one operation has ended."""
    results: list[RecordResult] = []
    start(results.append)
    simulation.run_until(lambda: bool(results), limit_s=ANSWER_LIMIT_S, poll_s=0.05)
    assert len(results) == 1
    return results[0]


def put(
    simulation: Simulation, place: Place, key: NodeId, value: bytes, ttl_s: float = TTL_S, **how: Any
) -> RecordResult:
    """Put, and wait."""
    return outcome_of(simulation, lambda done: user(place).host.records.put(key, value, ttl_s, done, **how))


def get(simulation: Simulation, place: Place, key: NodeId, **how: Any) -> RecordResult:
    """Get, and wait."""
    return outcome_of(simulation, lambda done: user(place).host.records.get(key, done, **how))


def delete(simulation: Simulation, place: Place, key: NodeId, **how: Any) -> RecordResult:
    """Delete, and wait."""
    return outcome_of(simulation, lambda done: user(place).host.records.delete(key, done, **how))


def put_many(simulation: Simulation, count: int, *, shared: bool = False) -> dict[NodeId, bytes]:
    """``count`` records, put at once from all over the ring and acknowledged as replicated."""
    live, values = simulation.live_nodes(), {key_number(number): b"value %d" % number for number in range(count)}
    results: list[RecordResult] = []
    for number, (key, value) in enumerate(values.items()):
        place = live[number % len(live)]
        user(place).host.records.put(key, value, TTL_S, results.append, ack="replicated", shared=shared)
    simulation.run_until(lambda: len(results) == count, limit_s=ANSWER_LIMIT_S, poll_s=0.05)
    assert [result.outcome for result in results] == [RecordOutcome.STORED] * count
    assert {result.copies for result in results} == {3}
    return values


def get_many(simulation: Simulation, keys: list[NodeId]) -> dict[NodeId, RecordResult]:
    """All of them at once, from all over the ring."""
    live, results = simulation.live_nodes(), dict[NodeId, RecordResult]()
    for number, key in enumerate(keys):
        user(live[-1 - number % len(live)]).host.records.get(key, partial(results.__setitem__, key))
    simulation.run_until(lambda: len(results) == len(keys), limit_s=ANSWER_LIMIT_S, poll_s=0.05)
    return results


class Workload:
    """Puts, gets and deletes of live nodes, one at a time for each key, against a model of what each key may hold.

    ``allowed`` has the values (``None``: no record) that a key may have: one after an acknowledged write, the old and
    the new one after a write of unknown outcome.
    """

    PERIOD_S = 0.2

    def __init__(self, simulation: Simulation, seed: int, keys: int) -> None:
        self._simulation = simulation
        self._rng = fork(seed, "record workload")
        self.keys = [key_number(number) for number in range(keys)]
        self.allowed: dict[NodeId, list[bytes | None]] = {key: [None] for key in self.keys}
        self.outcomes: Counter[RecordOutcome] = Counter()
        self.offences: list[str] = []
        self._busy: dict[NodeId, tuple[Place, bytes | None, bool]] = {}
        self._ends_at = 0.0
        self._writes = 0

    def run_for(self, duration_s: float) -> None:
        """Schedule operations from now on; the simulation is run by the caller."""
        self._ends_at = self._simulation.now + duration_s
        self._tick()

    def _tick(self) -> None:
        self._bury()
        ready = [place for place in self._simulation.live_nodes() if place.node.is_ready]
        self._operate(self._rng.choice(self.keys), self._rng.choice(ready))
        if self._simulation.now < self._ends_at:
            self._simulation.after(self.PERIOD_S, self._tick)

    def _bury(self) -> None:
        """An operation of a node that died may or may not have taken effect."""
        for key, (place, value, is_write) in list(self._busy.items()):
            if not place.is_live:
                del self._busy[key]
                self.allowed[key] += [value] if is_write else []

    def _operate(self, key: NodeId, place: Place) -> None:
        if key in self._busy:
            return
        records, draw = user(place).host.records, self._rng.random()
        if draw < 0.4:
            self._busy[key] = place, None, False
            records.get(key, partial(self._got, key))
            return
        self._writes += 1
        value = b"%d" % self._writes if draw < 0.8 else None
        self._busy[key] = place, value, True
        if value is not None:
            records.put(key, value, TTL_S, partial(self._wrote, key, value), ack="replicated", shared=True)
        else:
            records.delete(key, partial(self._wrote, key, value), ack="replicated", shared=True)

    def _got(self, key: NodeId, result: RecordResult) -> None:
        del self._busy[key]
        self.outcomes[result.outcome] += 1
        if result.outcome in (RecordOutcome.FOUND, RecordOutcome.ABSENT) and result.value not in self.allowed[key]:
            self.offences.append(f"{self._simulation.now:.1f}: {result.value!r}, not one of {self.allowed[key]}")

    def _wrote(self, key: NodeId, value: bytes | None, result: RecordResult) -> None:
        del self._busy[key]
        self.outcomes[result.outcome] += 1
        if result.outcome is RecordOutcome.STORED:
            self.allowed[key] = [value]
        elif result.outcome is RecordOutcome.UNKNOWN:
            self.allowed[key].append(value)

    def check(self) -> None:
        """Assert that every key holds an allowed value, and that no get returned a wrong one."""
        for key, result in get_many(self._simulation, self.keys).items():
            assert result.outcome in (RecordOutcome.FOUND, RecordOutcome.ABSENT)
            if result.value not in self.allowed[key]:
                self.offences.append(f"at the end: {result.value!r}, not one of {self.allowed[key]}")
        assert not self.offences, self.offences
