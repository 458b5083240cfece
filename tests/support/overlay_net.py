"""Simulated rings whose nodes are told whom to contact, and a plugin that notes what reaches it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, ClassVar, Final

from peerd.api import Envelope, LookupResult, Plugin, Verdict
from peerd.ids import NodeId
from peerd.messages import Message, PeerRef, message
from peerd.sim.checkers import RING_CHECKERS, RingOracle
from peerd.sim.simulation import Place, Simulation

Address = tuple[str, int]
Contacts = Callable[["OverlayRing", Place], list[Address]]

READY_LIMIT_S: Final = 120.0
REPAIR_LIMIT_S: Final = 120.0


@message(0x7F30)
class Note(Message):
    """A numbered message with some weight."""

    number: int
    padding: bytes = b""


class Recorder(Plugin):
    """Notes what is delivered, and what passes through."""

    name: ClassVar[str] = "recorder"
    messages = (Note,)

    def __init__(self, config: Any = None) -> None:
        super().__init__(config)
        self.delivered: list[tuple[NodeId, int, PeerRef]] = []
        self.forwarded: list[Envelope] = []
        self.verdict: Verdict | PeerRef = Verdict.PASS

    def deliver(self, key: NodeId, message: Message, source: PeerRef) -> None:
        """Note it."""
        assert isinstance(message, Note)
        self.delivered.append((key, message.number, source))

    def forward(self, envelope: Envelope) -> Verdict | PeerRef:
        """Note it, and decide as told."""
        self.forwarded.append(envelope)
        return self.verdict

    def count(self, number: int) -> int:
        """How often the note of that number was delivered here."""
        return sum(number == found for _, found, _ in self.delivered)


def first_node(ring: OverlayRing, place: Place) -> list[Address]:
    """Everybody contacts node 0, which founds the ring."""
    return [] if place.index == 0 else [address(ring.nodes[0])]


def address(place: Place) -> Address:
    """Where a node listens."""
    return place.peer.host, place.peer.port


def seeds(count: int) -> Contacts:
    """Everybody, the seeds too, has the same list of the first ``count`` nodes."""

    def contacts(ring: OverlayRing, place: Place) -> list[Address]:
        return [address(other) for other in ring.nodes[:count]]

    return contacts


class OverlayRing(Simulation):
    """A simulation with a `Recorder` on each node and contacts of the test's choice."""

    def __init__(self, seed: int = 1, contacts: Contacts = first_node, **arguments: Any) -> None:
        super().__init__(seed, plugins=lambda index: (Recorder(),), **arguments)
        self.contacts = contacts

    def started(self, place: Place) -> None:
        """Join as told."""
        place.node.start(self.contacts(self, place))

    def is_exact(self) -> bool:
        """Every live node is ready, and every leaf set is what the sorted ring says."""
        return self.is_ready() and not any(checker.check(self) for checker in RING_CHECKERS)

    def grow(self, count: int, *, spacing_s: float = 0.0, limit_s: float = READY_LIMIT_S) -> None:
        """Start ``count`` more nodes and wait until the ring is exact."""
        self.start(count, spacing_s=spacing_s)
        self.run_until(self.is_exact, limit_s=limit_s + count * spacing_s)

    def settle(self, limit_s: float = REPAIR_LIMIT_S) -> float:
        """Wait until the ring is exact; how long that took, seconds."""
        begun = self.now
        self.run_until(self.is_exact, limit_s=limit_s)
        return self.now - begun

    def lookups(self, count: int, *, wait_s: float = 12.0) -> list[LookupResult]:
        """Random keys from random nodes, all at once."""
        found: list[LookupResult] = []
        live = self.live_nodes()
        for _ in range(count):
            key = NodeId(self.rng.getrandbits(128))
            self.rng.choice(live).node.overlay.lookup(key, found.append, 10.0)
        self.run_for(wait_s)
        return found

    def wrong_lookups(self, count: int) -> list[LookupResult]:
        """Those of ``count`` random lookups that did not end at the root."""
        results = self.lookups(count)
        assert len(results) == count
        oracle = RingOracle.of(self)
        return [result for result in results if result.root is None or result.root.id != oracle.root(result.key)]

    def broadcast(self, number: int, origin: Place, *, wait_s: float = 12.0) -> Counter[int]:
        """Broadcast a note; how many live nodes got it how often (``{1: all}`` is right)."""
        origin.node.hosts["recorder"].broadcast(Note(number))
        self.run_for(wait_s)
        return Counter(recorder(place).count(number) for place in self.live_nodes())


def recorder(place: Place) -> Recorder:
    """The recorder of a node."""
    plugin = place.node.plugins["recorder"]
    assert isinstance(plugin, Recorder)
    return plugin
