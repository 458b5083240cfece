"""The swaps of one node in one round, one at a time: proposed, opened, and given to the tree when they have ended."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol

from peerd.api import AcceptSwap, Host, PreparedSwap, SwapCallbacks, SwapHandle, Value
from peerd.messages import Message, PeerRef
from protocols.aggregation.exchange import named_swap_tag, swap_tag
from protocols.aggregation.messages import AnswerKind, Propose, ProposeAnswer
from protocols.aggregation.patience import patience_s

PREPARED_RTT_S: Final = 0.005
"""From this distance on the connection of a swap is opened before it is agreed to, two latencies earlier. Nearer by,
that is not worth the handshake which is in vain when it is refused. That with a counterpart seldom is."""
SILENCE_S: Final = 3.0
"""A partner that says nothing for so long, or for eight round trips, is given up: others have its data. TCP would wait
for 15 s when its machine is gone, which is longer than a round takes."""


AHEAD_RTTS: Final = 4.0
"""Values are given ahead of their level where swaps took no more round trips than these."""
SLOW: Final = 1.5
"""A swap that takes so many times as long as the longest one before is a slow one."""


REFUSALS: Final = {f"refused:{kind.name.lower()}": kind for kind in AnswerKind} | {"peer_down": AnswerKind.MAYBE_LATER}
"""How a swap ends whose offer was a proposal that was refused. The connection may have been closed, as it was there for
long: that says nothing of the partner."""


class Swapper(Protocol):
    """Hears how proposals and swaps have ended: `protocols.aggregation.treerun.TreeRun`."""

    def proposal_answered(self, peer: PeerRef, accepted: bool, kind: AnswerKind) -> None: ...
    def proposal_lost(self, peer: PeerRef) -> None: ...

    def swap_received(self, peer: PeerRef, level: int, value: Value) -> None:
        """The partner's value is here: whether it has ours is its own matter."""

    def swap_failed(self, peer: PeerRef, reason: str) -> None: ...


@dataclass(slots=True, eq=False)
class _Exchange:
    """One swap with one partner, from its proposal on."""

    peer: PeerRef
    level: int
    prepared: PreparedSwap | None = None
    """Its connection, from the proposal until it is used, or not wanted, or lost."""
    agreed_at: float | None = None
    swap: SwapHandle | None = None
    """The swap, agreed to or offered, until the partner's value is here: then only the partner waits for its rest."""
    is_here: bool = False

    def drop(self) -> None:
        """Close the connection that was opened in vain."""
        prepared, self.prepared = self.prepared, None
        if prepared is not None:
            prepared.cancel()


class Ahead:
    """A connection for this node's first swap after the naming, opened before: nodes that are named swap with one next
    to them first, and half of them with the next one in the ring."""

    def __init__(self, host: Host, round_id: bytes, peer: PeerRef, deadline_s: float, silence_s: float) -> None:
        self.peer = peer
        self.prepared: PreparedSwap | None = None
        self.taken: SwapCallbacks | None = None
        """Who hears of the swap once it is one of a tree."""
        callbacks = SwapCallbacks(
            done=lambda value: None, failed=self._failed, accepted=self._accepted, received=self._received
        )
        self.prepared = host.prepare_swap(peer, named_swap_tag(round_id), callbacks, deadline_s, silence_s)

    def drop(self) -> None:
        """Close it, if no tree has taken it."""
        prepared, self.prepared = self.prepared, None
        if prepared is not None:
            prepared.cancel()

    def _failed(self, reason: str) -> None:
        self.prepared = None
        if self.taken is not None:
            self.taken.failed(reason)

    def _accepted(self) -> None:
        if self.taken is not None and self.taken.accepted is not None:
            self.taken.accepted()

    def _received(self, value: Value) -> None:
        if self.taken is not None and self.taken.received is not None:
            self.taken.received(value)


class Swapping:
    """Carries out what a tree decides about swaps."""

    def __init__(
        self,
        host: Host,
        round_id: bytes,
        swapper: Swapper,
        deadline_s: Callable[[], float],
        patience_s: Callable[[PeerRef], float],
        rtt_s: Callable[[PeerRef], float],
        is_named: bool = False,
    ) -> None:
        self._host = host
        self._round_id = round_id
        self._swapper = swapper
        self.deadline_s = deadline_s
        self._patience_s = patience_s
        self._rtt_s = rtt_s
        self._is_named = is_named
        self._proposed: _Exchange | None = None
        self._expected: dict[int, _Exchange] = {}
        """By level, of those to come: the swap with the first node that has invited us to it."""
        self._agreed: _Exchange | None = None
        """The last swap that was agreed to."""
        self._has_swapped = False
        self._longest_s = 0.0
        """What the longest swap has taken until the partner's value was here."""

    def expect(self, peer: PeerRef, level: int) -> None:
        """We come to a level yet, and swap with this node there: open the connection, to the first one that is said."""
        expected = self._expected.get(level)
        if expected is None or (expected.prepared is None and expected.peer.id == peer.id):
            self._expected[level] = self._prepare(peer, level)

    def ahead_of_names(self, peer: PeerRef) -> Ahead:
        """Open a connection to this node for a swap of named nodes."""
        return Ahead(self._host, self._round_id, peer, self.deadline_s(), self._silence_s(peer))

    def take(self, ahead: Ahead, level: int) -> None:
        """This connection is there already."""
        if ahead.prepared is not None and level not in self._expected:
            exchange = self._expected[level] = _Exchange(ahead.peer, level, ahead.prepared)
            ahead.taken, ahead.prepared = self._callbacks(exchange), None

    def level_left(self, level: int) -> None:
        """Whatever was prepared for a level is in vain when the level is done."""
        exchange = self._expected.pop(level, None)
        if exchange is not None:
            exchange.drop()

    def propose(self, peer: PeerRef, level: int, value: Value) -> None:
        """Ask for a swap: with its offer where a connection has been opened for it. Else one is opened meanwhile, where
        that takes long."""
        if self._offer_expected(peer, level, value, may_wait=False):
            return
        exchange = self._proposed = self._prepare(peer, level) if self.is_far(peer) else _Exchange(peer, level)

        def replied(message: Message, source: PeerRef) -> None:
            accepted = isinstance(message, ProposeAnswer) and message.accepted
            try:
                kind = AnswerKind(message.kind) if isinstance(message, ProposeAnswer) else AnswerKind.ABSENT
            except ValueError:
                kind = AnswerKind.ABSENT
            self._swapper.proposal_answered(source, accepted, kind)
            exchange.drop()  # unless it was agreed

        def lost() -> None:
            self._swapper.proposal_lost(peer)
            exchange.drop()

        self._host.request(peer, Propose(self._round_id, level, self._is_named), self._patience_s(peer), replied, lost)

    def offer_ahead(self, peer: PeerRef, level: int, value: Value) -> bool:
        """Offer our value to a counterpart, which agrees when it comes to the level: where there is a connection."""
        return self._offer_expected(peer, level, value, may_wait=True)

    def _offer_expected(self, peer: PeerRef, level: int, value: Value, *, may_wait: bool) -> bool:
        expected = self._expected.get(level)
        if expected is None or expected.peer.id != peer.id or expected.prepared is None:
            return False
        self._proposed = self._expected.pop(level)
        self._offer(self._proposed, value, may_wait=may_wait)
        return True

    def withdraw(self) -> None:
        """Take back what was offered or proposed, and not agreed to."""
        proposed, self._proposed = self._proposed, None
        if proposed is not None:
            proposed.drop()
            if proposed.swap is not None:
                proposed.swap.cancel()

    def _offer(self, exchange: _Exchange, value: Value, *, may_wait: bool = False) -> None:
        prepared, exchange.prepared = exchange.prepared, None
        assert prepared is not None
        exchange.swap = prepared
        prepared.offer(value, may_wait=may_wait)

    def begin(self, peer: PeerRef, level: int, value: Value) -> None:
        """The partner has agreed: give our value for its, if that is not on its way."""
        exchange = self._proposed
        if exchange is None or exchange.peer.id != peer.id or exchange.level != level:
            exchange = _Exchange(peer, level)
        self._proposed = None
        self._agree(exchange)
        if exchange.prepared is not None:
            self._offer(exchange, value)
        elif exchange.swap is None:
            tag = self._tag(level)
            limits = self.deadline_s(), self._silence_s(peer)
            exchange.swap = self._host.swap(peer, tag, value, self._callbacks(exchange), *limits)

    def _prepare(self, peer: PeerRef, level: int) -> _Exchange:
        exchange = _Exchange(peer, level)
        limits = self.deadline_s(), self._silence_s(peer)
        exchange.prepared = self._host.prepare_swap(peer, self._tag(level), self._callbacks(exchange), *limits)
        return exchange

    def _tag(self, level: int) -> bytes:
        return named_swap_tag(self._round_id) if self._is_named else swap_tag(self._round_id, level)

    def is_far(self, peer: PeerRef) -> bool:
        """Whether to open a connection to this node before it is certain that it will be used."""
        return self._rtt_s(peer) >= PREPARED_RTT_S

    def _silence_s(self, peer: PeerRef) -> float:
        """How long this partner may say nothing while its value, or the connection for ours, is due."""
        return patience_s(SILENCE_S, self._rtt_s(peer))

    def accept(self, peer: PeerRef, level: int, value: Value) -> AcceptSwap:
        """Return the answer to the partner that begins the swap to which we have agreed."""
        exchange = _Exchange(peer, level)
        self._agree(exchange)
        return AcceptSwap(value, self._callbacks(exchange), self.deadline_s(), self._silence_s(peer))

    def cancel(self) -> None:
        """End what is under way; a partner that has given its value still gets ours."""
        if self._agreed is not None and self._agreed.swap is not None:
            self._agreed.swap.cancel()
        self.withdraw()
        for level in list(self._expected):
            self.level_left(level)

    def are_slow(self, peer: PeerRef) -> bool:
        """Whether this node's swaps, or the one under way, took long beside the round trip to this node.

        Then little is gained by a latency, and what is sent ahead of its level takes what the swaps of the level in
        work need, and some of it in vain: with PlanetLab's links a round of 100 nodes and 1 MiB took 46 s in place of
        40 when all gave ahead.
        """
        return max(self._longest_s, self._elapsed_s) > AHEAD_RTTS * self._rtt_s(peer)

    def are_quick(self, peer: PeerRef) -> bool:
        """Whether it is known that they did not."""
        return self._has_swapped and not self.are_slow(peer)

    @property
    def _elapsed_s(self) -> float:
        """How long the last swap has been under way; 0 when the partner's value is here."""
        agreed = self._agreed
        if agreed is None or agreed.is_here or agreed.agreed_at is None:
            return 0.0
        return self._host.now() - agreed.agreed_at

    def due_s(self) -> float:
        """How much longer the last swap may take until it has taken much longer than the longest one before, or, where
        none is known to have taken long, twice as long as by now; and its merge, when the value is here."""
        agreed = self._agreed
        if agreed is None or agreed.agreed_at is None:
            return 0.0
        elapsed_s = self._host.now() - agreed.agreed_at
        if agreed.is_here or self._longest_s <= self._rtt_s(agreed.peer):  # those values may have been given ahead
            return elapsed_s
        return SLOW * self._longest_s - elapsed_s

    def _agree(self, exchange: _Exchange) -> None:
        exchange.agreed_at = self._host.now()
        self._agreed = exchange

    def _callbacks(self, exchange: _Exchange) -> SwapCallbacks:
        return SwapCallbacks(
            done=lambda value: None,
            failed=partial(self._failed, exchange),
            accepted=partial(self._accepted, exchange),
            received=partial(self._received, exchange),
        )

    def _accepted(self, exchange: _Exchange) -> None:
        if exchange.agreed_at is None and exchange is self._proposed:
            self._swapper.proposal_answered(exchange.peer, True, AnswerKind.MAYBE_LATER)
        if exchange.agreed_at is None and exchange.swap is not None:
            exchange.swap.cancel()  # the tree has gone on, and wants it no more

    def _received(self, exchange: _Exchange, value: Value) -> None:
        if exchange.agreed_at is None:
            return
        exchange.is_here, exchange.swap = True, None
        self._has_swapped = True
        self._longest_s = max(self._longest_s, self._host.now() - exchange.agreed_at)
        self._swapper.swap_received(exchange.peer, exchange.level, value)

    def _failed(self, exchange: _Exchange, reason: str) -> None:
        if exchange.agreed_at is not None:
            if not exchange.is_here:
                self._swapper.swap_failed(exchange.peer, reason)
        elif exchange.swap is None:
            exchange.prepared = None  # if they agree yet, the swap takes another connection
        elif exchange is self._proposed:
            self._proposed = None
            if reason in REFUSALS:
                self._swapper.proposal_answered(exchange.peer, False, REFUSALS[reason])
            else:
                self._swapper.proposal_lost(exchange.peer)
