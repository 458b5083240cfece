"""Carries out on the Host what `pieces.Pieces` decides: one node's part in one round whose values go in pieces."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Final, Protocol

from peerd.api import (
    IN_MEMORY,
    AcceptSwap,
    Host,
    PreparedSwap,
    RefuseSwap,
    Scratch,
    SwapCallbacks,
    SwapHandle,
    Value,
    value_size_bytes,
)
from peerd.errors import Bug, ProtocolError, Unavailable
from peerd.ids import NodeId
from peerd.messages import PeerRef
from protocols.aggregation.effects import PIECES_TIMER
from protocols.aggregation.events import PiecesFinished
from protocols.aggregation.exchange import (
    MERGE_COST_S_PER_BYTE,
    Aggregate,
    PieceRejected,
    is_givers_fault,
    join_pieces,
    merge_pieces,
    merged_tag,
    piece_tag,
    split_own,
)
from protocols.aggregation.messages import PieceStage, PieceTold, StartRound
from protocols.aggregation.pieces import (
    PIECES_NODES_MIN,
    ExchangePieces,
    FetchMerged,
    GoWhole,
    JoinPieces,
    MergePieces,
    PieceEffect,
    Pieces,
    TellStage,
)
from protocols.aggregation.prefix import PlacedNeighbourhood
from protocols.aggregation.query import Query
from protocols.aggregation.swapping import Swapping
from protocols.aggregation.treerun import TreeRun

QUICK_S: Final = 1.0
"""A transfer, from the opening of its connection on, that takes less is quick: the link has room for more."""
NO_PLACE: Final = frozenset(("busy", "refused:busy"))
"""How a swap ends for which this node or the other one had no place: it is begun again when another one has ended."""
PIECES_SHARE: Final = 0.5
"""After this share of the time that a round has left when it begins, a node goes on with whole values."""


class Splitter(Protocol):
    """Hears how an exchange in pieces has ended: `protocols.aggregation.participant.Participant`."""

    def pieces_held(self) -> None:
        """This node has done its part, and waits for the round's end."""

    def pieces_joined(self, aggregate: Aggregate) -> None:
        """At the requester: the value of all nodes."""

    def goes_whole(self) -> None:
        """Nothing has come of it: go on with whole values."""


class Splitting:
    """The pieces of one node. ``peers`` are all other nodes of the round."""

    def __init__(
        self,
        host: Host,
        round_id: bytes,
        query: Query,
        requester: NodeId,
        peers: Mapping[NodeId, PeerRef],
        splitter: Splitter,
        swapping: Swapping,
        live: Callable[[], Iterable[NodeId]],
        is_agreed: bool = False,
    ) -> None:
        self.pieces = Pieces(host.id, requester, peers, is_agreed)
        self._live = live
        self._host, self._round_id, self._query, self._splitter = host, round_id, query, splitter
        self._swapping = swapping
        """That of whole values: it knows how long a swap may take."""
        self._to_give: dict[NodeId, Value] = {}
        """The pieces of this node's own value, by who gets them."""
        self._here: dict[NodeId, Value] = {}
        """What has come: pieces of others' values, and then, at the requester, merged ones."""
        self._merged: Aggregate | None = None
        self._swaps: set[SwapHandle] = set()
        self._prepared: dict[NodeId, PreparedSwap] = {}
        """At the requester: connections for merged pieces, opened while pieces are exchanged."""
        self._under_way = 0
        """Swaps that have not ended, those included that are only prepared."""
        self._is_begun = False
        self._begun_at = host.now()
        self._scratch: Scratch = IN_MEMORY

    @classmethod
    def of_round(
        cls, host: Host, start: StartRound, query: Query, splitter: Splitter, run: TreeRun, *, is_agreed: bool = False
    ) -> Splitting | None:
        """That of a round over groups whose nodes, the requester among them, are named, all known here, and not few.

        ``is_agreed``: the requester has told all that values go in pieces.
        """
        around = run.neighbourhood
        if not isinstance(around, PlacedNeighbourhood) or not query.by:
            return None
        named, peers = around.levels.nodes, dict(around.live)
        is_known = start.requester.id in named and {host.id, *peers} == named
        if not is_known or len(named) < PIECES_NODES_MIN:
            return None
        requester, swapping, live = start.requester.id, run.swapping, lambda: around.live
        return cls(host, start.round_id, query, requester, peers, splitter, swapping, live, is_agreed)

    def is_to_begin(self, is_large: bool) -> bool:
        """Whether this node's value, which is large or not, goes in pieces: not if others swap whole ones."""
        return not self.pieces.is_over and (is_large or self.pieces.is_wanted)

    @property
    def is_under_way(self) -> bool:
        """Whether this node has begun, and is not done."""
        return self._is_begun and not self.pieces.is_over

    def begin(self, own: Aggregate, remaining_s: float) -> None:
        """This node's own data is ready, and may go to others."""
        self._is_begun, self._begun_at, self._scratch = True, self._host.now(), own.scratch
        self._host.set_timer(PIECES_TIMER, PIECES_SHARE * max(0.0, remaining_s), self._round_id)

        def done(pieces: list[Value]) -> None:
            if not self.pieces.is_over:
                self._to_give = dict(zip(self.pieces.nodes, pieces, strict=True))
                self._apply(self.pieces.begin())
                self._look_ahead()

        cost_s = MERGE_COST_S_PER_BYTE * value_size_bytes(own.value)
        self._host.offload(split_own, own, len(self.pieces.nodes), done=done, failed=self._work_failed, cost_s=cost_s)

    def told(self, peer: PeerRef, told: PieceTold) -> None:
        """Another node says how far it is."""
        try:
            stage = PieceStage(told.stage)
        except ValueError:
            return  # of a newer version
        self._apply(self.pieces.told(peer, stage))

    def go_whole(self) -> None:
        """Another node swaps whole values already."""
        self._apply(self.pieces.failed("not_agreed"))

    def due(self) -> None:
        """It takes too long."""
        self._apply(self.pieces.failed("timed_out"))

    def neighbours_changed(self) -> None:
        """The leaf set changed."""
        self._apply(self.pieces.live_are(self._live()))

    def piece_requested(self, peer: PeerRef) -> AcceptSwap | RefuseSwap:
        """Another node begins the exchange with this one."""
        if not self.pieces.accept(peer):
            return RefuseSwap("not_agreed")
        callbacks = self._callbacks(peer, self._piece_here)
        return AcceptSwap(self._to_give[peer.id], callbacks, self._swapping.deadline_s())

    def merged_requested(self, peer: PeerRef) -> AcceptSwap | RefuseSwap:
        """The requester fetches what is merged here."""
        if self._merged is None or not self.pieces.gives_merged(peer):
            return RefuseSwap("no_result")
        ignore = SwapCallbacks(done=lambda value: None, failed=lambda reason: None)
        return AcceptSwap(self._merged.value, ignore, self._swapping.deadline_s())

    def leave(self) -> None:
        """Leave nothing under way: the round is over, or goes on with whole values."""
        self.pieces.stop()
        self._host.cancel_timer(PIECES_TIMER, self._round_id)
        swaps = *self._swaps, *self._prepared.values()
        self._swaps, self._prepared = set(), {}
        for swap in swaps:
            swap.cancel()
        self._to_give, self._here, self._merged = {}, {}, None

    # Inside

    def _apply(self, effects: list[PieceEffect]) -> None:
        for effect in effects:
            self._carry_out(effect)

    def _carry_out(self, effect: PieceEffect) -> None:
        host, own = self._host, self._host.id
        match effect:
            case TellStage(peers, stage):
                for peer in peers:
                    host.send(peer, PieceTold(self._round_id, stage))
            case ExchangePieces(peer):
                tag, value = piece_tag(self._round_id), self._to_give[peer.id]
                callbacks = self._callbacks(peer, self._piece_here)
                self._swaps.add(host.swap(peer, tag, value, callbacks, self._swapping.deadline_s()))
            case FetchMerged(peer) if (prepared := self._prepared.pop(peer.id, None)) is not None:
                self._swaps.add(prepared)
                prepared.offer(b"")
            case FetchMerged(peer):
                callbacks = self._callbacks(peer, self._merged_here)
                self._swaps.add(host.fetch(peer, merged_tag(self._round_id), callbacks, self._swapping.deadline_s()))
            case MergePieces():
                self._here[own], self._to_give = self._to_give[own], {}
                self._offload(merge_pieces, self._has_merged)
            case JoinPieces():
                assert self._merged is not None
                self._here[own] = self._merged.value
                self._offload(join_pieces, self._has_joined)
            case GoWhole(reason):
                if self._is_begun:
                    self._tell(reason, 0)
                self.leave()
                self._splitter.goes_whole()

    def _look_ahead(self) -> None:
        tag = merged_tag(self._round_id)
        for peer in filter(self._swapping.is_far, self.pieces.to_fetch_from()):
            callbacks = self._callbacks(peer, self._merged_here, partial(self._prepared_failed, peer))
            self._prepared[peer.id] = self._host.prepare_swap(peer, tag, callbacks, self._swapping.deadline_s())

    def _offload(self, work: Callable[..., Aggregate], done: Callable[[Aggregate], None]) -> None:
        pieces, self._here = self._here, {}
        cost_s = MERGE_COST_S_PER_BYTE * sum(map(value_size_bytes, pieces.values()))
        arguments = self._query, self._host.id, pieces, self._scratch
        self._host.offload(work, *arguments, done=done, failed=self._work_failed, cost_s=cost_s)

    def _callbacks(
        self,
        peer: PeerRef,
        received: Callable[[PeerRef, Value, bool], None],
        lost: Callable[[str], None] | None = None,
    ) -> SwapCallbacks:
        is_here, begun_at, is_fetch = False, self._host.now(), received == self._merged_here
        self._under_way += 1

        def ended(value: Value) -> None:
            self._under_way -= 1
            self._apply(self.pieces.ended(peer, is_fetch=is_fetch))

        def arrived(value: Value) -> None:
            nonlocal is_here
            is_here = True
            received(peer, value, self._host.now() - begun_at < QUICK_S)

        def failed(reason: str) -> None:
            self._under_way -= 1
            if is_here:  # only the other node waits for the rest of it, and sees for itself
                self._apply(self.pieces.ended(peer, is_fetch=is_fetch))
            else:
                (lost or partial(self._swap_failed, peer))(reason)

        return SwapCallbacks(done=ended, failed=failed, received=arrived)

    def _prepared_failed(self, peer: PeerRef, reason: str) -> None:
        if self._prepared.pop(peer.id, None) is None:  # else it is fetched without
            self._swap_failed(peer, reason)

    def _swap_failed(self, peer: PeerRef, reason: str) -> None:
        if reason in NO_PLACE and self._under_way > len(self._prepared):
            self.pieces.postponed(peer)
        elif not self.pieces.is_over:
            self._host.count("peerd_aggregation_swaps_total", outcome=reason.partition(":")[0])
            self._apply(self.pieces.failed("swap_failed"))

    def _piece_here(self, peer: PeerRef, value: Value, is_quick: bool) -> None:
        if not self.pieces.is_over:
            self._host.count("peerd_aggregation_swaps_total", outcome="piece")
            self._here[peer.id] = value
            self._apply(self.pieces.piece_here(peer, is_quick))

    def _merged_here(self, peer: PeerRef, value: Value, is_quick: bool) -> None:
        if not self.pieces.is_over:
            self._here[peer.id] = value
            self._apply(self.pieces.fetched(peer, is_quick))

    def _has_merged(self, aggregate: Aggregate) -> None:
        if self.pieces.is_over:
            return
        self._merged = aggregate
        self._tell("merged", value_size_bytes(aggregate.value))
        self._splitter.pieces_held()
        self._apply(self.pieces.merged())

    def _has_joined(self, aggregate: Aggregate) -> None:
        if self.pieces.joined():
            self._tell("joined", value_size_bytes(aggregate.value))
            self.leave()
            self._splitter.pieces_joined(aggregate)

    def _work_failed(self, error: BaseException) -> None:
        if not isinstance(error, ProtocolError | Unavailable):
            raise Bug(f"work on pieces failed: {error}") from error
        reason = error.reason if isinstance(error, ProtocolError) else "busy"  # no worker was free
        self._host.count("peerd_aggregation_rejected_total", reason=reason)
        self._apply(self.pieces.failed(reason))
        if isinstance(error, PieceRejected) and is_givers_fault(error):
            peer = self.pieces.peer(error.giver)
            if peer is not None:
                self._host.misbehaved(peer, error)

    def _tell(self, outcome: str, value_bytes: int) -> None:
        self._host.emit(
            PiecesFinished(
                round=self._round_id.hex(),
                outcome=outcome,
                nodes=len(self.pieces.nodes),
                value_bytes=value_bytes,
                duration_s=self._host.now() - self._begun_at,
            )
        )
