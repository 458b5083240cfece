"""Large values of few nodes, exchanged in pieces: one node's part in one round, as a pure state machine.

Where whole values are swapped, each node sends log2 N of them, the paper's bound. Here each of the N nodes of a round
holds one piece of all values in the end: it gets that piece of everybody's value, merges these, and the requester
fetches the merged pieces. A node sends about one value for its pieces, and the requester receives one more.

    READING -begin-> EXCHANGING -> MERGING -> HOLDING                  at the requester: -> JOINING -> OVER
                  all of these -> OVER, and the node goes on with its tree (`tree.BinomialTree`)

It is all or nothing: the merged pieces hold the data of all nodes that were named. Whatever fails, ends all of it: who
sees it says so to the others, and all go on with whole values, of which each node still has its own. So the tree is
what copes with failures, and nothing here tries a thing twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Final

from peerd.errors import Bug
from peerd.frozen import Frozen
from peerd.ids import NodeId
from peerd.messages import PeerRef
from protocols.aggregation.messages import PieceStage

PIECES_NODES_MIN: Final = 4
"""With fewer nodes whole values take no longer: each sends two at most."""
PIECES_NODES_MAX: Final = 64
"""With more nodes a node would need more connections than it may have beside those of the overlay."""
AT_ONCE: Final = 4
"""So many exchanges a node has begun and not ended, so many others begin with it, and so many pieces the requester
fetches at first: more would fill a slow link, so that the ring's own messages come late. Each that is quick makes room
for one more, up to `STREAMS_MAX`."""
STREAMS_MAX: Final = 16
"""Of each at most; and so many connections the requester opens ahead, those of its exchanges included."""


class PiecePhase(Enum):
    """The phases of an exchange in pieces."""

    READING = "reading"
    EXCHANGING = "exchanging"
    MERGING = "merging"
    HOLDING = "holding"
    JOINING = "joining"
    OVER = "over"


class TellStage(Frozen):
    """Tell these nodes how far this one is."""

    peers: tuple[PeerRef, ...]
    stage: PieceStage


class ExchangePieces(Frozen):
    """Give this node its piece for ours; the end goes to `Pieces.piece_here` or `Pieces.failed`."""

    peer: PeerRef


class MergePieces(Frozen):
    """Merge what all have given; then call `Pieces.merged` (or `failed`)."""


class FetchMerged(Frozen):
    """Fetch the piece that this node has merged; the end goes to `Pieces.fetched` or `Pieces.failed`."""

    peer: PeerRef


class JoinPieces(Frozen):
    """Make one value of all merged pieces; then call `Pieces.joined` (or `failed`)."""


class GoWhole(Frozen):
    """Go on with whole values, for this reason."""

    reason: str


PieceEffect = TellStage | ExchangePieces | MergePieces | FetchMerged | JoinPieces | GoWhole


class Pieces:
    """The state machine. ``peers`` are all other nodes of the round, ``requester`` is the node that asked.

    ``is_agreed``: the requester has told all that values go in pieces, so nobody need say that it is ready.
    """

    def __init__(
        self, own: NodeId, requester: NodeId, peers: Mapping[NodeId, PeerRef], is_agreed: bool = False
    ) -> None:
        self.phase = PiecePhase.READING
        self.nodes = tuple(sorted((own, *peers)))
        """All nodes; each holds the piece of its place in this order."""
        self._own, self._requester, self._peers = own, requester, dict(peers)
        self._is_agreed = is_agreed
        place, count = self.nodes.index(own), len(self.nodes)
        ahead = [self.nodes[(place + step) % count] for step in range(1, count // 2 + 1)]
        if count % 2 == 0 and place >= count // 2:
            ahead.pop()  # of two that are opposite each other the first one begins
        self._to_begin = ahead
        """With whom this node begins the exchange, the next ones in the ring first: all nodes with equally many."""
        behind = [self.nodes[place - step] for step in range(1, count)]
        self._to_tell = [node for node in behind if node not in ahead]
        """Who begins the exchange with this node, the nearest before it first."""
        self._at_once = AT_ONCE
        self._told: set[NodeId] = set()
        """Who has been told to begin."""
        self._accepted: set[NodeId] = set()
        """Who has begun since."""
        self._ready: set[NodeId] = set()
        """Whose own value is in pieces."""
        self._may_begin: set[NodeId] = set()
        self._begun: set[NodeId] = set()
        self._here: set[NodeId] = set()
        self._ended: set[NodeId] = set()
        """With whom the exchange is over on both sides."""
        self._merged: set[NodeId] = set()
        self._asked: set[NodeId] = set()
        """Whose merged pieces are being fetched, or are here."""
        self._fetched: set[NodeId] = set()
        self._fetches_ended: set[NodeId] = set()

    @property
    def is_over(self) -> bool:
        """Whether nothing is done in pieces (any more)."""
        return self.phase is PiecePhase.OVER

    @property
    def is_wanted(self) -> bool:
        """Whether another node waits for this one's pieces."""
        return (self._is_agreed or bool(self._ready)) and not self.is_over

    def peer(self, node: NodeId) -> PeerRef | None:
        """Where another node of the round is; ``None`` for this one."""
        return self._peers.get(node)

    def begin(self) -> list[PieceEffect]:
        """This node's own data is ready, and in pieces."""
        if self.phase is not PiecePhase.READING:
            raise Bug(f"pieces begin once, not in phase {self.phase.value}")
        self.phase = PiecePhase.EXCHANGING
        begins = self._tell_begin()
        waiting = tuple(peer for node, peer in self._peers.items() if node not in self._told)
        ready = [TellStage(waiting, PieceStage.READY)] if waiting and not self._is_agreed else []
        return [*begins, *ready, *self._exchange()]

    def to_fetch_from(self) -> list[PeerRef]:
        """At the requester: nodes whose merged pieces it will fetch at first, beside the exchanges that it begins."""
        if self._own != self._requester or self.is_over:
            return []
        return list(self._peers.values())[: max(0, STREAMS_MAX - len(self._to_begin))]

    def told(self, peer: PeerRef, stage: PieceStage) -> list[PieceEffect]:
        """Another node says how far it is. Who is not of the round has no say."""
        if peer.id not in self._peers:
            return []
        if self.is_over:
            is_ready = stage in (PieceStage.READY, PieceStage.BEGIN)
            return [TellStage((peer,), PieceStage.WHOLE)] if is_ready else []
        match stage:
            case PieceStage.READY:
                self._ready.add(peer.id)
                return []
            case PieceStage.BEGIN:
                self._ready.add(peer.id)
                self._may_begin.add(peer.id)
                return self._exchange()
            case PieceStage.MERGED:
                self._merged.add(peer.id)
                return self._fetch()
            case PieceStage.WHOLE:
                return self._give_up("told", ())

    def accept(self, peer: PeerRef) -> bool:
        """Whether to exchange pieces with this node, which begins: once, when it was told to."""
        is_due = self.phase is PiecePhase.EXCHANGING and peer.id in self._told - self._accepted
        if is_due:
            self._accepted.add(peer.id)
        return is_due

    def gives_merged(self, peer: PeerRef) -> bool:
        """Whether to give this node the piece that is merged here."""
        return self.phase is PiecePhase.HOLDING and peer.id == self._requester

    def piece_here(self, peer: PeerRef, is_quick: bool = False) -> list[PieceEffect]:
        """This node's piece of another one's value is here, soon after the exchange began if so."""
        if self.phase is not PiecePhase.EXCHANGING:
            return []
        self._here.add(peer.id)
        self._make_room(is_quick)
        if len(self._here) < len(self._peers):
            return [*self._tell_begin(), *self._exchange()]
        self.phase = PiecePhase.MERGING
        return [MergePieces()]

    def postponed(self, peer: PeerRef) -> None:
        """There was no place for the exchange with this node, or the fetch from it."""
        (self._asked if self.phase is PiecePhase.HOLDING else self._begun).discard(peer.id)

    def ended(self, peer: PeerRef, *, is_fetch: bool) -> list[PieceEffect]:
        """The exchange with this node, or the fetch from it, takes no place any more: both have what they wait for."""
        (self._fetches_ended if is_fetch else self._ended).add(peer.id)
        return [*self._tell_begin(), *self._exchange(), *self._fetch()]

    def merged(self) -> list[PieceEffect]:
        """This node's piece of all values is merged."""
        if self.phase is not PiecePhase.MERGING:
            return []
        self.phase = PiecePhase.HOLDING
        if self._own != self._requester:
            return [TellStage((self._peers[self._requester],), PieceStage.MERGED)]
        return self._fetch()

    def fetched(self, peer: PeerRef, is_quick: bool = False) -> list[PieceEffect]:
        """At the requester: another node's merged piece is here, soon after it was asked for if so."""
        if self.phase is not PiecePhase.HOLDING:
            return []
        self._fetched.add(peer.id)
        self._make_room(is_quick)
        if len(self._fetched) < len(self._peers):
            return self._fetch()
        self.phase = PiecePhase.JOINING
        return [JoinPieces()]

    def joined(self) -> bool:
        """The value of all is here: whether it is still wanted."""
        is_wanted = self.phase is PiecePhase.JOINING
        self.phase = PiecePhase.OVER
        return is_wanted

    def failed(self, reason: str) -> list[PieceEffect]:
        """An exchange, a fetch or a merge has failed, or all takes too long. Who has not begun tells those who wait;
        the others will say that they are ready, if they ever are."""
        is_expected = self._is_agreed or self.phase is not PiecePhase.READING
        waiting = self._peers if is_expected else self._ready
        return self._give_up(reason, tuple(peer for node, peer in self._peers.items() if node in waiting))

    def stop(self) -> None:
        """The round is over, or this node swaps whole values, and tells those who are ready for anything else."""
        self.phase = PiecePhase.OVER

    def live_are(self, live: Iterable[NodeId]) -> list[PieceEffect]:
        """The ring has changed: whoever is gone will do nothing more."""
        if self._peers.keys() <= set(live):
            return []
        return self.failed("gone")

    def validate(self) -> None:
        """Assert the invariants of the state."""
        assert self._accepted <= self._told
        assert len(self._told - self._ended) <= STREAMS_MAX
        assert len(self._begun - self._ended) + len(self._asked - self._fetches_ended) <= STREAMS_MAX
        for found in (
            self._told,
            self._ready,
            self._may_begin,
            self._begun,
            self._here,
            self._merged,
            self._asked,
            self._fetched,
        ):
            assert found <= self._peers.keys()
        if self.phase in (PiecePhase.MERGING, PiecePhase.HOLDING, PiecePhase.JOINING):
            assert self._here == self._peers.keys(), "merged before everybody's piece was there"

    # Inside

    def _make_room(self, is_quick: bool) -> None:
        self._at_once = min(STREAMS_MAX, self._at_once + is_quick)

    def _room(self, begun: set[NodeId], here: set[NodeId], ended: set[NodeId], besides: int = 0) -> int:
        """How many more may be begun. What is here takes a place until the other side has its part as well."""
        return max(0, min(self._at_once - len(begun - here), STREAMS_MAX - len(begun - ended) - besides))

    def _tell_begin(self) -> list[PieceEffect]:
        if self.phase is not PiecePhase.EXCHANGING:
            return []
        room = self._room(self._told, self._here, self._ended)
        told = [node for node in self._to_tell if node not in self._told][:room]
        self._told.update(told)
        return [TellStage(tuple(map(self._peers.__getitem__, told)), PieceStage.BEGIN)] if told else []

    def _exchange(self) -> list[PieceEffect]:
        if self.phase is not PiecePhase.EXCHANGING:
            return []
        waiting = [node for node in self._to_begin if node in self._may_begin and node not in self._begun]
        room = self._room(self._begun, self._here, self._ended)
        self._begun.update(waiting[:room])
        return [ExchangePieces(self._peers[node]) for node in waiting[:room]]

    def _fetch(self) -> list[PieceEffect]:
        if self.phase is not PiecePhase.HOLDING or self._own != self._requester:
            return []
        waiting = sorted(self._merged - self._asked)
        room = self._room(self._asked, self._fetched, self._fetches_ended, len(self._begun - self._ended))
        self._asked.update(waiting[:room])
        return [FetchMerged(self._peers[node]) for node in waiting[:room]]

    def _give_up(self, reason: str, told: tuple[PeerRef, ...]) -> list[PieceEffect]:
        if self.is_over:
            return []
        self.phase = PiecePhase.OVER
        tell = [TellStage(told, PieceStage.WHOLE)] if told else []
        return [*tell, GoWhole(reason)]
