"""What a tree remembers of invitations: those that it has sent at its level, and those that came for later ones."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from peerd.ids import NodeId, id_to_bytes
from peerd.messages import PeerRef
from protocols.aggregation.messages import AnswerKind

INVITED_PER_LEVEL_MAX: Final = 64
OFFERS_PER_LEVEL_MAX: Final = 2
OFFERS_MAX: Final = 32
"""Values of others that a tree keeps until it comes to their level: so many for one level, and for all of them."""


@dataclass(slots=True)
class LevelState:
    """The knowledge about the current level; it is forgotten when the level ends."""

    level: int
    counterpart: PeerRef | None = None
    """The node that this one tries first, and that tries this one."""
    offered: PeerRef | None = None
    """The counterpart, while our value is offered to it and it has not come to the level."""
    is_pairing: bool = False
    """Whether counterparts still have their time, so that nobody is invited."""
    invited: dict[NodeId, PeerRef] = field(default_factory=dict)
    """The nodes that were given our value with an invitation."""
    pauses: int = 0
    """How often it was waited for them in vain."""
    said_no: dict[NodeId, PeerRef] = field(default_factory=dict)
    absent: set[NodeId] = field(default_factory=set)
    hinted: dict[NodeId, PeerRef] = field(default_factory=dict)
    is_hinted_empty: bool = False

    def note(self, peer: PeerRef, kind: AnswerKind) -> None:
        """Who answers so is not swapped with at this level."""
        if kind is AnswerKind.NO:
            self.said_no[peer.id] = peer
        elif kind is AnswerKind.ABSENT:
            self.absent.add(peer.id)


class Invitations:
    """Who has invited this node to a level, until it comes to that level, and the values that rode along."""

    def __init__(self) -> None:
        self._inviters: dict[int, dict[NodeId, PeerRef]] = {}
        self._riders: dict[int, dict[NodeId, PeerRef]] = {}
        self._offers: dict[int, dict[NodeId, tuple[PeerRef, bytes]]] = {}

    def remember(self, peer: PeerRef, level: int) -> None:
        """This node is ready for a swap of its own. It says so again as long as it is."""
        inviters = self._inviters.setdefault(level, {})
        inviters.pop(peer.id, None)
        _add(inviters, peer)

    def remember_rider(self, peer: PeerRef, level: int) -> bool:
        """This node wants our value; returns whether it is the first time that it says so."""
        riders = self._riders.setdefault(level, {})
        is_first = peer.id not in riders
        _add(riders, peer)
        return is_first

    def keep_offer(self, peer: PeerRef, level: int, value: bytes) -> None:
        """Keep a value for later, if there is room."""
        offers = self._offers.setdefault(level, {})
        if len(offers) < OFFERS_PER_LEVEL_MAX and sum(map(len, self._offers.values())) < OFFERS_MAX:
            offers[peer.id] = peer, value

    def take_riders(self, level: int) -> list[PeerRef]:
        """The nodes that want our value of this level."""
        return list(self._riders.pop(level, {}).values())

    def take_offer(self, level: int, banned: set[NodeId]) -> tuple[PeerRef, bytes] | None:
        """The next value for this level, of a node that is not banned."""
        offers = self._offers.get(level, {})
        while offers:
            node_id = next(iter(offers))
            offer = offers.pop(node_id)
            if node_id not in banned:
                return offer
        return None

    def of(self, level: int) -> dict[NodeId, PeerRef]:
        """The nodes that are ready for a swap of their own at this level, the one that said so last at the end. The
        caller takes from it."""
        return self._inviters.get(level, {})

    def take(self, level: int) -> Iterable[PeerRef]:
        """Forget the level, and return who was ready for a swap of its own."""
        self._offers.pop(level, None)
        return self._inviters.pop(level, {}).values()

    def clear(self) -> None:
        """The tree is over."""
        self._inviters.clear()
        self._riders.clear()
        self._offers.clear()

    def validate(self) -> None:
        """Assert that all is within its bounds."""
        assert all(len(peers) <= INVITED_PER_LEVEL_MAX for peers in (*self._inviters.values(), *self._riders.values()))
        assert sum(map(len, self._offers.values())) <= OFFERS_MAX


def _add(peers: dict[NodeId, PeerRef], peer: PeerRef) -> None:
    if peer.id in peers or len(peers) < INVITED_PER_LEVEL_MAX:
        peers[peer.id] = peer


def preference(round_id: bytes, one: NodeId, other: NodeId) -> bytes:
    """How much two nodes like each other in a round, the smaller the more: both compute the same (rendezvous)."""
    first, second = sorted((one, other))
    return hashlib.blake2b(round_id + id_to_bytes(first) + id_to_bytes(second), digest_size=8).digest()
