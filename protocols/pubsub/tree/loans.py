"""Helpers of a hot leaf at its root: who has which pieces, and who may answer for the leaf at this moment. Pure.

A leaf whose subscriptions all have one point cannot be split, and moved elsewhere it would be as hot there. So its root
lends it to neighbours. Each publisher has one of them, or the root, by a hash of the two, and its events go there and
nowhere else: their order is kept, and none visits a node more than before. The root alone takes pieces in.

A helper may serve for `LEASE_S` from when it asked the root last. The root counts from its answer, which is later, and
for as much longer as clocks may differ (`peerd.lib.leases`). While one may serve, no subscriber is told that events
match a piece which that one has not. So nothing has to be written down: whatever fails, the loan is over after that
time, and the leaf is what it was.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Final

from peerd.frozen import Frozen
from peerd.ids import NodeId, id_to_bytes
from peerd.lib.leases import at_most
from peerd.messages import PeerRef
from protocols.pubsub.messages import SUBS_MAX, SubObject
from protocols.pubsub.names import SubscriptionKey
from protocols.pubsub.tree.copying import BATCH_BYTES_MAX, SUB_BYTES
from protocols.pubsub.tree.messages import HELPERS_MAX, PIECES_LENT_MAX, PieceName
from protocols.pubsub.tree.piece import Piece

LEASE_S: Final = 5.0
"""How long a helper may serve without hearing of the root; so long a new subscription waits for one that is silent."""
OFFER_S: Final = 30.0
"""A piece that was brought to helpers ahead, and is in no leaf by then, was made up or given up."""
OFFERS_MAX: Final = 1024


class SendPieces(Frozen):
    """A helper lacks these pieces, and has those that are over."""

    to: PeerRef
    number: int
    begins: bool
    subs: tuple[SubObject, ...]
    gone: tuple[PieceName, ...]


class TakeBack(Frozen):
    """A helper is not needed any more."""

    to: PeerRef
    number: int


@dataclass(slots=True)
class Loan:
    """What one helper has. ``until``: it may serve up to then; 0: it never might."""

    peer: PeerRef
    number: int
    begun_at: float
    has: dict[SubscriptionKey, None] = field(default_factory=dict)
    until: float = 0.0
    load: int = 0
    """Events a minute that it had last."""
    is_sending: bool = False
    has_taken: bool = False
    """It has answered, and so has the loan."""


class Loans:
    """All helpers of one leaf."""

    def __init__(self) -> None:
        self.of: dict[NodeId, Loan] = {}
        self.is_ending = False
        """Nobody is told to go on, and nobody is added."""
        self.cool_since: float | None = None
        self._offered: dict[SubscriptionKey, tuple[SubObject, float]] = {}

    def add(self, peer: PeerRef, number: int, now: float) -> None:
        """One more node is to help."""
        self.of[peer.id] = Loan(peer, number, now)

    def serving(self, now: float) -> list[Loan]:
        """Those that may serve at this moment."""
        return [loan for loan in self.of.values() if now < loan.until]

    def helpers(self, now: float) -> tuple[PeerRef, ...]:
        """The same, as others may be told of them."""
        return tuple(loan.peer for loan in self.serving(now))[:HELPERS_MAX]

    def lacks(self, sub: SubObject, now: float) -> bool:
        """Whether a piece has to be brought to helpers before anybody relies on it; if so `due` has it sent."""
        key = sub.key
        if all(key in loan.has for loan in self.serving(now)):
            return False
        if len(self._offered) < OFFERS_MAX:
            self._offered[key] = sub, now + OFFER_S
        return True

    def due(self, pieces: Mapping[SubscriptionKey, Piece], now: float) -> Iterator[SendPieces | TakeBack]:
        """What is to be sent now, at most one message to each helper; what is returned is under way."""
        self._offered = {key: (sub, until) for key, (sub, until) in self._offered.items() if now < until}
        wanted = {key: sub for key, (sub, _) in self._offered.items()}
        wanted.update((key, piece.sub) for key, piece in pieces.items())
        if len(wanted) > PIECES_LENT_MAX:
            self.is_ending = True
        for loan in self.of.values():
            if loan.is_sending:
                continue
            if self.is_ending:
                loan.is_sending = True
                yield TakeBack(loan.peer, loan.number)
                continue
            subs = tuple(_fitting(sub for key, sub in wanted.items() if key not in loan.has))
            gone = [key for key in loan.has if key not in wanted][:SUBS_MAX]
            if not (subs or gone):
                continue
            begins = not loan.has_taken
            for key in gone:
                del loan.has[key]
            loan.is_sending = True
            yield SendPieces(loan.peer, loan.number, begins, subs, tuple(PieceName(*key) for key in gone))

    def taken(self, number: int, subs: tuple[SubObject, ...]) -> bool:
        """A helper has taken these pieces in; whether it is one."""
        loan = self._find(number)
        if loan is not None:
            loan.is_sending, loan.has_taken = False, True
            loan.has.update((sub.key, None) for sub in subs)
        return loan is not None

    def silent(self, number: int) -> None:
        """A helper has not answered, or has no room for more at this moment."""
        loan = self._find(number)
        if loan is not None:
            loan.is_sending = False

    def refused(self, number: int) -> None:
        """A helper does not help (any more): it has given the leaf back before it said so."""
        loan = self._find(number)
        if loan is not None:
            del self.of[loan.peer.id]

    def may_serve(
        self, helper: NodeId, number: int, load: int, pieces: Mapping[SubscriptionKey, Piece], now: float
    ) -> bool | None:
        """A helper asks whether it may serve; ``None``: not yet, for it has not all pieces."""
        loan = self.of.get(helper)
        if loan is None or loan.number != number or self.is_ending:
            return False
        loan.load = load
        if now >= loan.until and not all(key in loan.has for key in pieces):
            return None
        loan.until = now + at_most(LEASE_S)
        return True

    def tidy(self, now: float) -> None:
        """Let go of helpers that have not asked for too long."""
        gone = [loan for loan in self.of.values() if now >= (loan.until or loan.begun_at + OFFER_S)]
        for loan in gone:
            del self.of[loan.peer.id]

    def are_over(self, now: float) -> bool:
        """Whether no helper may serve, nor will."""
        return self.is_ending and not self.serving(now)

    def load(self) -> int:
        """Events a minute that helpers have taken, all together."""
        return sum(loan.load for loan in self.of.values())

    def _find(self, number: int) -> Loan | None:
        return next((loan for loan in self.of.values() if loan.number == number), None)


def sharer_of(publisher: NodeId, sharers: Iterable[PeerRef]) -> PeerRef:
    """Who of those that share a leaf is to have the events of a publisher.

    The node whose hash with the publisher is highest: so one that comes or goes moves its own share only.
    """
    return max(sharers, key=lambda node: _hash(node.id, publisher))


def _fitting(subs: Iterator[SubObject]) -> Iterator[SubObject]:
    """The first of these, as many as fit into one message."""
    size = 0
    for count, sub in enumerate(subs):
        size += len(sub.filter.encode()) + SUB_BYTES
        if count == SUBS_MAX or (count and size > BATCH_BYTES_MAX):
            return
        yield sub


def _hash(node: NodeId, publisher: NodeId) -> bytes:
    return blake2b(id_to_bytes(node) + id_to_bytes(publisher), digest_size=8).digest()
