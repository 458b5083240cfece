"""How acknowledgements come back to a publisher: over a link between the two, else along the way of the events.

Where there is no link yet, the root of a leaf opens one: it is the shortest way for this answer, and for those that
follow. But an event may visit hundreds of leaves, whose roots then all open a link to one node, which takes no more
than ``links_max``, and so many a second. An answer whose link is refused must not be lost, for it would have the event
sent again, to the same effect. It goes back the way that the event came, from node to node (`CarriedAck`). These nodes
might acknowledge what they have dropped, so it carries the leaf's root's proof, and the publisher believes only that.

Each node on the way remembers from whom an event came to it first. That one had it before, so ways lead to the
publisher, and in no circle. A later try may come another way, and its answers go back that way.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Final, TypeAlias

from msgspec.structs import replace

from peerd.api import HistorySize, Host, Metric, Part, SendRefusal, handles
from peerd.errors import ProtocolError
from peerd.ids import NodeId, id_to_bytes
from peerd.lib.admission import TokenBucket
from peerd.messages import Message, PeerRef, decode_body, encode_body
from protocols.pubsub.messages import CARRIED_HOPS_MAX, CELLS_MAX, CarriedAck, EventAck
from protocols.pubsub.publishing.spread import Batch

WAYS_MAX: Final = 8192
"""Events of which a node remembers from whom they came."""
WAY_BYTES: Final = 230
"""What one takes, measured."""
KEPT_MAX: Final = 1024
"""Answers that wait until it is clear whether their link can be opened."""
KEPT_S: Final = 10.0
"""They are kept for so long; by then every link is up, or has been refused."""
CHECKS_PER_S: Final = 500
"""Proofs that a publisher looks at in a second, at some 0.4 ms each; what comes beyond is left to the next try."""

METRICS: Final = (
    Metric(
        "peerd_pubsub_acks_carried_total",
        "counter",
        "Acknowledgements without a link of their own: begun, passed, taken, lost, forged, unchecked.",
        ("what",),
    ),
)

_EventKey: TypeAlias = tuple[NodeId, int, int]
"""Publisher, epoch and sequence number."""


@dataclass(frozen=True, slots=True)
class _Way:
    """From whom an event came in which try."""

    hop: PeerRef
    publisher: PeerRef
    attempt: int


@dataclass(frozen=True, slots=True)
class _Kept:
    """An answer that was given to a link that is not up yet."""

    at_s: float
    publisher: PeerRef
    ack: EventAck


class Answering(Part):
    """Sends this node's answers to publishers, passes on those of others, and takes those to its own events."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self.take: Callable[[EventAck, PeerRef], None]
        """Set by who makes the publisher, as is `awaits`. Given what a leaf's root says of this node's own events."""
        self.awaits: Callable[[EventAck], bool]
        """Whether this node waits for an answer to one of these events; others are not worth looking at the proof."""
        self._ways: OrderedDict[_EventKey, _Way] = OrderedDict()
        self._kept: deque[_Kept] = deque()
        self._checks = TokenBucket(CHECKS_PER_S, CHECKS_PER_S, host.now())

    def came(self, batch: Batch, source: PeerRef) -> None:
        """Events have come from this node for the first time, or in another try."""
        way = _Way(source, batch.publisher, batch.attempt)
        for event in batch.events:
            key = batch.publisher.id, event.epoch, event.sequence
            known = self._ways.get(key)
            if known is None or known.attempt < batch.attempt:
                self._ways[key] = way
                self._ways.move_to_end(key)
        while len(self._ways) > WAYS_MAX:
            self._ways.popitem(last=False)

    # Where the answer comes from

    def answer(self, publisher: PeerRef, ack: EventAck) -> None:
        """Tell a publisher something about its events."""
        if not self._is_linked(publisher):
            now = self._host.now()
            self._kept.append(_Kept(now, publisher, ack))
            while len(self._kept) > KEPT_MAX or now - self._kept[0].at_s > KEPT_S:
                self._kept.popleft()
        self._host.send(publisher, ack)

    def send_refused(self, peer: PeerRef, message_type: type[Message], reason: SendRefusal, count: int) -> None:
        """No link could be opened: the last ``count`` answers go the way back."""
        if message_type is not EventAck or reason is not SendRefusal.PEER_DOWN:
            return
        refused = [kept for kept in self._kept if kept.publisher.id == peer.id]
        self._kept = deque(kept for kept in self._kept if kept.publisher.id != peer.id)
        for kept in refused[-count:]:
            body = encode_body(kept.ack)
            proof = self._host.sign(ack_statement(peer.id, self._host.peer, body))
            self._count("begun")
            self._pass_on(CarriedAck(peer.id, self._host.peer, body, proof), kept.ack)

    # On the way, and at its end

    @handles(CarriedAck)
    def on_carried(self, carried: CarriedAck, source: PeerRef) -> None:
        """An answer goes back to a publisher by way of this node."""
        ack = decode_body(EventAck, carried.ack)
        check_ack(ack)
        if carried.publisher == self._host.id:
            self._take(carried, ack)
        elif carried.hops >= CARRIED_HOPS_MAX:
            self._count("lost")
        else:
            self._pass_on(replace(carried, hops=carried.hops + 1), ack, source)

    def _pass_on(self, carried: CarriedAck, ack: EventAck, source: PeerRef | None = None) -> None:
        way = self._ways.get((carried.publisher, ack.epoch, ack.sequences[0])) if ack.sequences else None
        if way is None:
            self._count("lost")
            return
        hop = way.publisher if self._is_linked(way.publisher) else way.hop
        if source is not None and hop.id == source.id:
            self._count("lost")
            return
        if source is not None:
            self._count("passed")
        self._host.send(hop, carried)

    def _take(self, carried: CarriedAck, ack: EventAck) -> None:
        """Nobody on the way is blamed for a proof that is not valid: those who pass it on do not look at it."""
        if ack.epoch != self._host.boot_epoch or not self.awaits(ack):
            return
        if not self._checks.take(self._host.now()):
            self._count("unchecked")
            return
        statement = ack_statement(carried.publisher, carried.leaf, carried.ack)
        if not self._host.verify(carried.leaf.id, statement, carried.proof):
            self._count("forged")
            return
        self._count("taken")
        self.take(ack, carried.leaf)

    def _is_linked(self, peer: PeerRef) -> bool:
        """Whether a link is up to a node that speaks this protocol."""
        return self._host.peer_version(peer) is not None

    def _count(self, what: str) -> None:
        self._host.count("peerd_pubsub_acks_carried_total", what=what)

    def history(self) -> HistorySize:
        """What is remembered of the ways of events."""
        count = len(self._ways)
        return HistorySize("ways back", count, count * WAY_BYTES, WAYS_MAX * WAY_BYTES)

    def validate(self) -> None:
        """Assert the invariants."""
        assert len(self._ways) <= WAYS_MAX
        assert len(self._kept) <= KEPT_MAX


def check_ack(ack: EventAck) -> None:
    """Raises `ProtocolError` for what no leaf answers."""
    if sum(len(each.cells) for each in ack.covered) > CELLS_MAX or (
        not ack.failed and len(ack.matched) != len(ack.sequences)
    ):
        raise ProtocolError("bad_ack", "an acknowledgement of too many cells, or without the number of matches")


def ack_statement(publisher: NodeId, leaf: PeerRef, ack: bytes) -> bytes:
    """The root of leaves, at this address, to a publisher: I say this of your events."""
    address = f"{leaf.host}:{leaf.port}".encode()
    parts: Sequence[bytes] = (id_to_bytes(publisher), id_to_bytes(leaf.id), address, ack)
    return b"ack" + sha256(b"".join(len(part).to_bytes(4, "big") + part for part in parts)).digest()
