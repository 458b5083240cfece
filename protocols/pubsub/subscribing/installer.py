"""All pieces of this node's subscriptions: what `Installation` wants done becomes messages, and answers go to it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from heapq import heapify, heappop, heappush
from typing import Final

from msgspec.structs import replace

from peerd.api import Host, LookupResult, Part, handles, on_timer
from peerd.errors import ProtocolError, Unavailable
from peerd.messages import Message, PeerRef
from protocols.pubsub.config import PubSubConfig
from protocols.pubsub.events import SubscriptionInstalled
from protocols.pubsub.messages import (
    Arrived,
    Confirm,
    EndSub,
    Established,
    InsertAnswer,
    InsertSub,
    Kept,
    ProbeSub,
    SubObject,
)
from protocols.pubsub.names import Tree, key_of
from protocols.pubsub.ports import PiecePoint
from protocols.pubsub.publishing.probing import LevelGuide
from protocols.pubsub.subscribing.installation import (
    NEVER,
    Find,
    InstallAction,
    Installation,
    InstallReport,
    News,
    SendEnd,
    SendInsert,
    SendProbe,
)
from protocols.pubsub.tree.cells import WHOLE, level
from protocols.pubsub.tree.installing import Installing

REQUEST_TIMEOUT_S: Final = 5.0
PIECES_AT_ONCE: Final = 64
"""So many pieces are dealt with when the timer fires; the others follow after `PAUSE_S`."""
PAUSE_S: Final = 0.05
PIECES_MAX: Final = 256
"""Pieces of one subscription."""
VERSIONS_PER_BOOT_BITS: Final = 20
"""A version is the number of the boot, and so many bits that are counted up; both together have at most 64.

Boots are numbered by their milliseconds since 1970, which need 41 bits now. A count that runs out of its bits does no
harm: for each further million the next boot would have to come within one more millisecond.
"""

Keep = tuple[int, int]
"""For how many seconds, and how many bytes, leaves keep events while this node is away; 0: they do not."""
Place = tuple[int, int]
"""The number of a subscription's filter (``sid``), and the number of its piece."""


@dataclass(eq=False, slots=True)
class Placement:
    """One filter of a subscription on the ring: its pieces, and how far they have come.

    ``on_news`` is called with RECEIVED and REPLICATED once, when all pieces have come so far; with REFUSED once, when
    one was refused; with FOUND_AGAIN for each piece that was lost meanwhile; with ENDED once, when all are over.
    """

    schema: str
    sid: int
    on_news: Callable[[InstallReport], None]
    numbers: tuple[int, ...] = ()
    begun_at: float = 0.0
    not_received: set[int] = field(default_factory=set)
    not_replicated: set[int] = field(default_factory=set)
    not_over: set[int] = field(default_factory=set)


class Installer(Part):
    """Installs, renews and ends the pieces of this node's subscriptions."""

    def __init__(self, host: Host, config: PubSubConfig, guide: LevelGuide, own_leaves: Installing) -> None:
        """``own_leaves`` answers `InsertSub` and `EndSub` where this node is the leaf itself."""
        self._host, self._config, self._guide, self._own_leaves = host, config, guide, own_leaves
        self.on_received: Callable[[float], None] = lambda took_s: None
        """Told how long it took until leaves had all pieces of a filter; for experiments, as is `on_replicated`."""
        self.on_replicated: Callable[[float], None] = lambda took_s: None
        self._pieces: dict[Place, Installation] = {}
        self._placements: dict[Place, Placement] = {}
        self._due: list[tuple[float, Place]] = []
        """A heap of what is due when. Entries whose time is not that of their piece any more are passed over."""
        self._armed_for = NEVER
        self._version = host.boot_epoch << VERSIONS_PER_BOOT_BITS

    # What the subscriptions want

    def install(
        self,
        schema: str,
        sid: int,
        filter_text: str,
        group: str,
        since_ms: int,
        points: Sequence[PiecePoint],
        keep: Keep,
        on_news: Callable[[InstallReport], None],
    ) -> Placement:
        """Find the leaves of all points. ``sid`` was never used before, so nobody takes these for other pieces.

        Raises `Unavailable` for too many points: the filter would be kept in too many places.
        """
        if len(points) > PIECES_MAX:
            raise Unavailable(f"the filter has {len(points)} separate ranges to be kept at, limit {PIECES_MAX}")
        now, guide = self._host.now(), self._guide
        numbers = tuple(range(len(points)))
        placement = Placement(schema, sid, on_news, numbers, now, set(numbers), set(numbers), set(numbers))
        version = self._next_version()
        for number, point in zip(numbers, points, strict=True):
            where = point.attribute, point.low, point.high
            sub = SubObject(self._host.peer, sid, number, version, *where, filter_text, group, since_ms, *keep)
            self._pieces[sid, number] = Installation(
                sub,
                lease_s=self._config.lease,
                retry_s=self._config.install_retry,
                rng=self._host.rng,
                next_levels=partial(guide.install_levels, Tree(schema, point.attribute), self._host.rng),
                next_version=self._next_version,
            )
            self._placements[sid, number] = placement
        for number in numbers:
            self._act((sid, number), self._pieces[sid, number].begin(now))
        if not numbers:  # a filter that nothing can match is kept nowhere
            on_news(InstallReport(News.RECEIVED))
            on_news(InstallReport(News.REPLICATED))
        return placement

    def end(self, placement: Placement) -> None:
        """End all pieces. Repeating it is harmless."""
        for number in placement.numbers:
            if (piece := self._pieces.get((placement.sid, number))) is not None:
                self._act((placement.sid, number), piece.end(self._host.now()))

    def pieces(self, placement: Placement) -> list[Installation]:
        """Those pieces that are not over, in the order of their numbers."""
        places = ((placement.sid, number) for number in placement.numbers)
        return [self._pieces[place] for place in places if place in self._pieces]

    def knows(self, sid: int, number: int) -> bool:
        """Whether there is such a piece, and it is not over."""
        return (sid, number) in self._pieces

    def __len__(self) -> int:
        return len(self._pieces)

    # What others say

    @handles(Arrived)
    def on_arrived(self, message: Arrived, source: PeerRef) -> None:
        """A leaf has a piece, and will ask about it when it has a link to this node."""
        place = message.sid, message.piece
        piece = self._pieces.get(place)
        if piece is None or self._placements[place].schema != message.schema:
            return
        actions = piece.arrived(message.version, message.cell)
        self._note_received(place, piece, level(message.cell), actions)
        self._act(place, actions)

    @handles(Established)
    def on_established(self, message: Established, source: PeerRef) -> Confirm:
        """A leaf has got a piece in a message that may be forged, and asks."""
        place = message.sid, message.piece
        piece = self._pieces.get(place)
        if piece is None or self._placements[place].schema != message.schema:
            return Confirm(message.sid, message.piece, message.version, is_wanted=False)
        if message.level != level(message.cell):
            raise ProtocolError("wrong_level", f"a cell of level {level(message.cell)} is said to have {message.level}")
        if message.version > piece.sub.version:
            return Confirm(message.sid, message.piece, message.version, is_wanted=False)
        is_wanted, actions = piece.established(self._host.now(), source, message.cell, message.version, message.is_new)
        self._note_received(place, piece, message.level, actions)
        version, lasts_s = piece.sub.version, self._lasts_s if is_wanted else 0
        self._act(place, actions)
        return Confirm(message.sid, message.piece, version, is_wanted, lasts_s)

    @handles(Kept)
    def on_kept(self, message: Kept, source: PeerRef) -> None:
        place = message.sid, message.piece
        if (piece := self._pieces.get(place)) is not None and self._placements[place].schema == message.schema:
            said = message.version, message.status, message.detail, message.cell
            self._act(place, piece.kept(self._host.now(), source, *said))

    @on_timer("pieces_due")
    def on_pieces_due(self, payload: None) -> None:
        """Try again and renew, not too many at once."""
        self._armed_for = NEVER
        now = self._host.now()
        for _ in range(PIECES_AT_ONCE):
            if not self._due or self._due[0][0] > now:
                break
            due_at, place = heappop(self._due)
            piece = self._pieces.get(place)
            if piece is not None and piece.due_at == due_at:
                self._act(place, piece.due(now))
        self._arm()

    # Inside

    def _note_received(self, place: Place, piece: Installation, depth: int, actions: Sequence[InstallAction]) -> None:
        """Tell that a leaf of this level has taken a piece, if that is what the actions say."""
        if InstallReport(News.RECEIVED) in actions:
            placement, (sid, number) = self._placements[place], place
            self._guide.saw(Tree(placement.schema, piece.sub.attribute), depth)
            name, latency_s = f"{sid:016x}-{number}", self._host.now() - placement.begun_at
            self._host.emit(
                SubscriptionInstalled(subscription=name, latency_s=latency_s, level=depth, hops=piece.probes)
            )

    @property
    def _lasts_s(self) -> int:
        return round(self._config.lease)

    def _next_version(self) -> int:
        self._version += 1
        return self._version

    def _act(self, place: Place, actions: Sequence[InstallAction]) -> None:
        """Do what a piece wants, and have its next time noted."""
        piece, placement = self._pieces[place], self._placements[place]
        for action in actions:
            if isinstance(action, InstallReport):
                self._told(placement, place[1], action)
            else:
                self._send(place, piece, placement.schema, action)
        if piece.is_over:
            if self._pieces.get(place) is piece:
                del self._pieces[place], self._placements[place]
        elif piece.due_at < NEVER:
            self._schedule(piece.due_at, place)

    def _send(
        self, place: Place, piece: Installation, schema: str, action: SendProbe | SendInsert | SendEnd | Find
    ) -> None:
        tree = Tree(schema, piece.sub.attribute)
        sid, number = place
        if piece.sub.subscriber != self._host.peer:  # this node has another address now
            piece.sub = replace(piece.sub, subscriber=self._host.peer)
        if piece.sub.keep_s:
            piece.sub = replace(piece.sub, until_ms=round((self._host.wall_time() + piece.sub.keep_s) * 1000))
        match action:
            case SendProbe(cell, is_careful, only_leaf):
                self._host.count("peerd_pubsub_install_probes_total")
                # The whole square is a node of every tree, so nobody has to vouch for it.
                how = {"vouched": cell == WHOLE, "careful": is_careful, "only_leaf": only_leaf}
                self._host.route(key_of(tree, cell), ProbeSub(schema, piece.sub, cell, self._lasts_s, **how))
            case SendInsert(owner, cell):
                self._request(place, piece, owner, InsertSub(schema, piece.sub, cell, self._lasts_s))
            case SendEnd(owner, cell):
                message = EndSub(schema, sid, number, piece.sub.version, piece.sub.attribute, cell)
                self._request(place, piece, owner, message)
            case Find(cell):
                self._find(place, piece, tree, cell)

    def _request(self, place: Place, piece: Installation, owner: PeerRef, message: InsertSub | EndSub) -> None:
        is_end = isinstance(message, EndSub)

        def replied(answer: Message, peer: PeerRef) -> None:
            if self._pieces.get(place) is not piece:
                return
            if not isinstance(answer, InsertAnswer):
                raise ProtocolError("wrong_answer", f"{type(answer).__name__} does not answer {type(message).__name__}")
            said = answer.status, answer.cell
            now = self._host.now()
            if is_end:
                self._act(place, piece.end_answered(now, *said))
            else:
                actions = piece.insert_answered(now, *said, answer.is_new, answer.detail)
                self._note_received(place, piece, level(answer.cell), actions)
                self._act(place, actions)

        def silent() -> None:
            if self._pieces.get(place) is piece:
                now = self._host.now()
                self._act(place, piece.end_silent(now) if is_end else piece.insert_silent(now))

        if owner.id != self._host.id:
            self._host.request(owner, message, REQUEST_TIMEOUT_S, replied, silent)
            return
        leaves, here = self._own_leaves, self._host.peer
        own = leaves.end(message, here) if isinstance(message, EndSub) else leaves.insert(message, here)
        if own is not None:
            replied(own, here)
        else:
            silent()

    def _find(self, place: Place, piece: Installation, tree: Tree, cell: int) -> None:
        def found(result: LookupResult) -> None:
            if self._pieces.get(place) is piece and result.root is not None:
                self._act(place, piece.found(self._host.now(), cell, result.root))

        with suppress(Unavailable):  # too many are under way; this one is tried again when it is due
            self._host.lookup(key_of(tree, cell), found, REQUEST_TIMEOUT_S)

    def _told(self, placement: Placement, number: int, report: InstallReport) -> None:
        host, took_s = self._host, self._host.now() - placement.begun_at
        match report.news:
            case News.RECEIVED:
                placement.not_received.discard(number)
                is_said = not placement.not_received
                if is_said:
                    host.observe("peerd_pubsub_install_seconds", took_s)
                    self.on_received(took_s)
            case News.REPLICATED:
                placement.not_replicated.discard(number)
                is_said = not placement.not_replicated
                if is_said:
                    host.observe("peerd_pubsub_replicate_seconds", took_s)
                    self.on_replicated(took_s)
            case News.REFUSED:
                is_said = True
                placement.not_over.discard(number)
            case News.FOUND_AGAIN:
                is_said = True
                host.observe("peerd_pubsub_gap_seconds", report.gap_s)
            case News.ENDED:
                placement.not_over.discard(number)
                is_said = not placement.not_over
        if is_said:
            placement.on_news(report)

    def _schedule(self, due_at: float, place: Place) -> None:
        heappush(self._due, (due_at, place))
        if len(self._due) > 4 * len(self._pieces) + PIECES_AT_ONCE:
            self._due = [(piece.due_at, place) for place, piece in self._pieces.items() if piece.due_at < NEVER]
            heapify(self._due)
        self._arm()

    def _arm(self) -> None:
        if not self._due or self._armed_for <= self._due[0][0]:
            return
        now = self._host.now()
        if self._armed_for < NEVER:
            self._host.cancel_timer("pieces_due")
        delay_s = self._due[0][0] - now
        self._host.set_timer("pieces_due", delay_s if delay_s > 0 else PAUSE_S)
        self._armed_for = max(self._due[0][0], now)
