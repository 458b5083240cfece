"""The swaps of one node in one round, one at a time: proposed, opened, and given to the tree when they have ended."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from peerd.api import AcceptSwap, Host, PreparedSwap, SwapCallbacks, SwapHandle, Value
from peerd.messages import Message, PeerRef
from protocols.aggregation.exchange import swap_tag
from protocols.aggregation.messages import AnswerKind, Propose, ProposeAnswer
from protocols.aggregation.tree import patience_s

PREPARED_RTT_S: Final = 0.005
"""From this distance on a swap's connection is opened along with its proposal, two latencies earlier. Nearer by, that
is not worth the handshake which is in vain when the proposal is refused."""

SILENCE_S: Final = 3.0
"""A partner that says nothing for so long, or for eight round trips, is given up: others have its data. TCP would wait
for 15 s when its machine is gone, which is longer than a round takes."""


class Swapper(Protocol):
    """Hears how proposals and swaps have ended: `protocols.aggregation.participant.Participant`."""

    def proposal_answered(self, peer: PeerRef, accepted: bool, kind: AnswerKind) -> None: ...
    def proposal_lost(self, peer: PeerRef) -> None: ...

    def swap_received(self, peer: PeerRef, level: int, value: Value) -> None:
        """The partner's value is here: whether it has ours is its own matter."""

    def swap_failed(self, peer: PeerRef, reason: str) -> None: ...


class _Exchange:
    """One swap with one partner, from its proposal on."""

    def __init__(self, peer: PeerRef, level: int, swapper: Swapper) -> None:
        self.peer = peer
        self.level = level
        self.prepared: PreparedSwap | None = None
        """Its connection, from the proposal until it is used, or not wanted, or lost."""
        self.is_agreed = False
        self.swap: SwapHandle | None = None
        """The swap, until the partner's value is here: then only the partner waits for the rest of it."""
        self._swapper = swapper
        self._is_here = False

    def callbacks(self) -> SwapCallbacks:
        return SwapCallbacks(done=lambda value: None, failed=self._failed, received=self._received)

    def drop(self) -> None:
        """Close the connection that was opened in vain."""
        prepared, self.prepared = self.prepared, None
        if prepared is not None:
            prepared.cancel()

    def _received(self, value: Value) -> None:
        self._is_here, self.swap = True, None
        self._swapper.swap_received(self.peer, self.level, value)

    def _failed(self, reason: str) -> None:
        if not self.is_agreed:
            self.prepared = None  # if they agree yet, the swap takes another connection
        elif not self._is_here:
            self._swapper.swap_failed(self.peer, reason)


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
    ) -> None:
        self._host = host
        self._round_id = round_id
        self._swapper = swapper
        self._deadline_s = deadline_s
        self._patience_s = patience_s
        self._rtt_s = rtt_s
        self._proposed: _Exchange | None = None
        self._expected: dict[int, _Exchange] = {}
        """By level, of those to come: the swap with the first node that has invited us to it."""
        self._begun: _Exchange | None = None

    def expect(self, peer: PeerRef, level: int) -> None:
        """Somebody is ready for a level that we come to yet: open the connection to the first one."""
        if level not in self._expected:
            self._expected[level] = self._prepare(peer, level)

    def level_left(self, level: int) -> None:
        """Whatever was prepared for a level is in vain when the level is done."""
        exchange = self._expected.pop(level, None)
        if exchange is not None:
            exchange.drop()

    def propose(self, peer: PeerRef, level: int) -> None:
        """Ask for a swap, and meanwhile open its connection where that takes long."""
        expected = self._expected.get(level)
        if expected is not None and expected.peer.id == peer.id:
            exchange = self._expected.pop(level)
        else:
            exchange = self._prepare(peer, level)
        self._proposed = exchange

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

        self._host.request(peer, Propose(self._round_id, level), self._patience_s(peer), replied, lost)

    def begin(self, peer: PeerRef, level: int, value: Value) -> None:
        """The partner has agreed: give our value for its."""
        exchange = self._proposed
        if exchange is None or exchange.peer.id != peer.id or exchange.level != level:
            exchange = _Exchange(peer, level, self._swapper)
        exchange.is_agreed, self._proposed = True, None
        prepared, exchange.prepared = exchange.prepared, None
        self._begun = exchange
        if prepared is not None:
            exchange.swap = prepared
            prepared.offer(value)
        else:
            tag = swap_tag(self._round_id, level)
            limits = self._deadline_s(), self._silence_s(peer)
            exchange.swap = self._host.swap(peer, tag, value, exchange.callbacks(), *limits)

    def _prepare(self, peer: PeerRef, level: int) -> _Exchange:
        exchange = _Exchange(peer, level, self._swapper)
        if self._rtt_s(peer) >= PREPARED_RTT_S:
            tag = swap_tag(self._round_id, level)
            limits = self._deadline_s(), self._silence_s(peer)
            exchange.prepared = self._host.prepare_swap(peer, tag, exchange.callbacks(), *limits)
        return exchange

    def _silence_s(self, peer: PeerRef) -> float:
        return patience_s(SILENCE_S, self._rtt_s(peer))

    def accept(self, peer: PeerRef, level: int, value: Value) -> AcceptSwap:
        """Return the answer to the partner that begins the swap to which we have agreed."""
        exchange = _Exchange(peer, level, self._swapper)
        exchange.is_agreed = True
        return AcceptSwap(value, exchange.callbacks(), self._deadline_s(), self._silence_s(peer))

    def cancel(self) -> None:
        """End what is under way; a partner that has given its value still gets ours."""
        if self._begun is not None and self._begun.swap is not None:
            self._begun.swap.cancel()
        if self._proposed is not None:
            self._proposed.drop()
        for level in list(self._expected):
            self.level_left(level)
