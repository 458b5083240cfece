"""Adding and removing caches (section 4.2.4): SPLICE_IN goes over T to the first node that can provide.

The provider takes the new cache as its holder, and tells those of its holders whose way leads through the new cache to
ask that one instead; they go on to hold what they have until it vouches. Who goes away sends its holders to its own
provider in the same manner. The paper locks what is being spliced. Here nothing is locked: each splice takes effect at
one node, the provider, in one step; what two of them together leave out of order (a cache that was not there yet when
another passed) the provider sees by the recorded ways, or the next renewal of the place mends it. Values stay right
throughout, since they count by their ages alone.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Final

from msgspec.structs import replace

from peerd.api import Host, Part, handles, on_timer
from peerd.errors import ProtocolError
from peerd.ids import NodeId
from peerd.messages import Message, PeerRef, encode_body
from protocols.measurement.guarantee.caching import Caching
from protocols.measurement.guarantee.effects import Effect, SendTo
from protocols.measurement.guarantee.messages import PATH_MAX, CacheAsk, CacheUpdate, Path
from protocols.measurement.guarantee.words import Measurement, Want
from protocols.measurement.messages import READ_MAX
from protocols.measurement.placing.along import WayProofs
from protocols.measurement.placing.messages import AlongWant, MoveCaches, MovedCache, SpliceIn
from protocols.measurement.placing.statistics import SeenCache, Statistics
from protocols.measurement.placing.tree import TreeRoutes

ANSWER_S: Final = 3.0
"""A SPLICE_IN that nobody has answered by then is sent again, and after `TRIES` the owner is asked to provide."""
TRIES: Final = 2
RENEWED: Final = 8
"""Every so many decisions it is looked which caches are to seek their providers anew: those from which T leads
elsewhere now, and now and then all, since T may have changed further on, or a nearer provider come unheard of."""
RENEWED_LEAST: Final = 8
"""Now and then: at one of so many times, counted since the way last changed. A question takes as many messages as the
way has nodes, and hardly ever finds anything: providers tell of nearer ones."""
AGAIN_S: Final = 0.5
"""A provider that is lost is replaced after this time, several of them together."""
PARKED_S: Final = 1.0
"""A question for what this node is about to have itself waits so long for that, and goes on then."""
PARKED_LOOK_S: Final = 0.25
"""So often it is looked what has come meanwhile: it is provided in as few words as may be."""
PARKED_MAX: Final = 256
"""Questions that wait at a time; others go on."""
LEAVING_S: Final = 30.0
"""A cache that goes away waits so long for its holders to find another provider."""
TIDY_S: Final = 10.0
"""So long the way of a node may be remembered to which nothing is promised any more."""
_SEEK: Final = "splice"
_AGAIN: Final = "splice_again"
_RENEW: Final = "splice_renew"
_PARKED: Final = "splice_parked"


def statement(question: SpliceIn) -> bytes:
    """What a holder signs: all that stays the same on the way. Else who passes it on could end its other promises."""
    return b"splice in " + encode_body(replace(question, wants=(), path=(), proof=b""))


class Splicing(Part):
    """``send`` counts and sends. ``know`` remembers a node, and ``peer_of`` finds it, or what is known otherwise."""

    def __init__(
        self,
        host: Host,
        caching: Caching,
        routes: TreeRoutes,
        statistics: Statistics,
        proofs: WayProofs,
        carry_out: Callable[[Iterable[Effect]], None],
        send: Callable[[PeerRef, Message], None],
        know: Callable[[PeerRef], None],
        peer_of: Callable[[NodeId], PeerRef | None],
        renew_s: float,
    ) -> None:
        self._host, self._caching, self._routes, self._peer_of = host, caching, routes, peer_of
        self._statistics, self._proofs, self._carry_out = statistics, proofs, carry_out
        self._send, self._know, self._renew_s = send, know, renew_s
        self._open: dict[int, tuple[dict[Measurement, Want], float, int]] = {}
        """Questions without an answer: what is sought, how often it is to be vouched for, and which try this is; 0: of
        a provider that was named, before it is sought over T."""
        self._sought: dict[Measurement, tuple[Want, float]] = {}
        """All that this node holds over T, as it wants it."""
        self._ways: dict[Measurement, tuple[NodeId, ...]] = {}
        """From this node to its provider, both included."""
        self._same: dict[Measurement, int] = {}
        """How often its place would have been renewed since its way last changed."""
        self._holders: dict[Measurement, dict[NodeId, tuple[NodeId, ...]]] = {}
        """The ways of the nodes that this one provides for, each from the holder on, without this node."""
        self._parked: list[tuple[SpliceIn, NodeId, float]] = []
        """Questions that wait, whom each has come from, and since when."""
        self._leaving: dict[Measurement, float] = {}
        self._lost: dict[Measurement, None] = {}
        self._orphans: dict[Measurement, NodeId] = {}
        """The provider that is lost, until another one answers."""
        self._tidied_at = float("-inf")
        self._is_renewing = False

    # As a holder

    def seek(self, wants: Iterable[Want], update_s: float) -> None:
        """Hold these from whoever can provide them first."""
        some = list(wants)
        for want in some:
            self._sought[want.measurement] = want, update_s
            self._leaving.pop(want.measurement, None)
        self._seek(some, update_s, 1)
        if not self._is_renewing:
            self._is_renewing = True
            self._host.set_timer(_RENEW, self._renew_s * self._host.rng.uniform(0.8, 1.0))

    def _seek(
        self, wants: Sequence[Want], update_s: float, attempt: int, to: PeerRef | None = None, way: Path = ()
    ) -> None:
        """``to``: a provider that is named, and the ``way`` to it; else over T."""
        me, now = self._host.peer, self._host.now()
        for first in range(0, len(wants), READ_MAX):
            some = wants[first : first + READ_MAX]
            ask = self._caching.seek(some, now, update_s)
            self._open[ask.number] = {want.measurement: want for want in some}, update_s, attempt
            self._host.set_timer(_SEEK, ANSWER_S, ask.number)
            along = tuple(
                AlongWant(want.measurement, want.half_width, 0.0, self._statistics.updates_s(want.measurement))
                for want in some
            )
            path = (me.id,) if to is None else way[:-1]
            terms = (ask.boot, ask.number, ask.max_age_s, ask.update_s)
            question = SpliceIn(me, *terms, along, path, b"", to is not None)
            if to is not None:
                self._send(to, question)
                continue
            question = self._proofs.signed(question, statement(question))
            if attempt == 1 and any(want.measurement in self._ways for want in some):
                question = self._proofs.on_known_way(question)
            self._go_on(question, along, None)

    def _go_on(self, question: SpliceIn, wants: Iterable[AlongWant], came_from: NodeId | None) -> None:
        """Over T, or where T has no way, to the owner itself."""
        branches: dict[PeerRef, list[AlongWant]] = {}
        for want in wants:
            owner = want.measurement.owner
            peer = self._routes.branch(owner, question.path) or self._peer_of(owner)
            if peer is not None and peer.id not in question.path:
                branches.setdefault(peer, []).append(want)
        for peer, some in branches.items():
            if came_from is None or self._host.may_pass(peer):
                self._send(peer, replace(question, wants=tuple(some)))

    @on_timer(_SEEK)
    def _is_late(self, number: int) -> None:
        wants, update_s, attempt = self._open.pop(number)
        left = [want for measurement, want in wants.items() if self._sought.get(measurement) == (want, update_s)]
        if left and attempt < TRIES:
            self._seek(left, update_s, attempt + 1)
            return
        of_owner: dict[NodeId, list[Want]] = {}
        for want in left:
            self._ways.pop(want.measurement, None)
            of_owner.setdefault(want.measurement.owner, []).append(want)
        for owner, some in of_owner.items():
            self._carry_out(self._caching.want(some, owner, self._host.now(), update_s))

    def heard(self, provider: NodeId, update: CacheUpdate) -> None:
        """A provider says something; perhaps it answers a SPLICE_IN."""
        if not update.path or update.asked not in self._open:
            return
        if not _is_way(update.path, self._host.id, provider):
            raise ProtocolError("malformed", "the way to a provider begins at its holder, ends there, and has no loop")
        wants, _, _ = self._open[update.asked]
        for entry in update.entries:
            measurement = entry.measurement
            if measurement is not None and wants.pop(measurement, None) is not None:
                if self._ways.get(measurement) != update.path:
                    self._same[measurement] = 0
                self._ways[measurement] = update.path
                self._orphans.pop(measurement, None)
        if not wants:
            self._host.cancel_timer(_SEEK, update.asked)
            del self._open[update.asked]

    def lost(self, measurement: Measurement, provider: NodeId) -> None:
        """A provider does not provide, or is silent: find another one. An owner is asked again anyway."""
        if measurement in self._sought and provider != measurement.owner:
            if not self._lost:
                self._host.set_timer(_AGAIN, AGAIN_S)
            self._lost[measurement] = None
            self._orphans[measurement] = provider

    @on_timer(_AGAIN)
    def _replace_lost(self, payload: None) -> None:
        lost, self._lost = self._lost, {}
        self._seek_again(measurement for measurement in lost if measurement in self._sought)

    @on_timer(_RENEW)
    def _renew(self, payload: None) -> None:
        self._is_renewing = bool(self._sought)
        if self._is_renewing:
            self._host.set_timer(_RENEW, self._renew_s * self._host.rng.uniform(0.8, 1.0))
            self._seek_again([each for each in self._sought if self._is_renewed(each)])

    def _is_renewed(self, measurement: Measurement) -> bool:
        """Whether it is worth it to seek a provider anew: where T leads elsewhere now, and now and then else, but not
        where the owner provides and is the next node."""
        self._same[measurement] = times = self._same.get(measurement, 0) + 1
        way, owner = self._ways.get(measurement, ()), measurement.owner
        follows = self._routes.branch(owner, way[:1])
        if follows is not None and follows.id not in way[1:2]:
            return True
        return way[1:] != (owner,) and times % RENEWED_LEAST == 0

    def _seek_again(self, measurements: Iterable[Measurement]) -> None:
        alike: dict[float, list[Want]] = {}
        for measurement in measurements:
            if measurement not in self._leaving:
                want, update_s = self._sought[measurement]
                alike.setdefault(update_s, []).append(want)
        for update_s, wants in alike.items():
            self._seek(wants, update_s, 1)

    def forget(self, measurements: Iterable[Measurement]) -> None:
        """They are not held any more."""
        for measurement in measurements:
            for known in (self._sought, self._ways, self._same, self._leaving, self._orphans):
                known.pop(measurement, None)

    @handles(MoveCaches)
    def _moved(self, word: MoveCaches, source: PeerRef) -> None:
        """A provider names another one."""
        me = self._host.id
        alike: dict[tuple[Path, float], list[Want]] = {}
        for moved in word.moved:
            sought, held = self._sought.get(moved.measurement), self._caching.holder.held.get(moved.measurement)
            if sought is None or held is None or held.provider != source.id or word.provider.id == me:
                continue
            if not _is_way(moved.path, me, word.provider.id):
                raise ProtocolError("malformed", "the way to a provider begins at its holder, ends there, has no loop")
            if any(moved.measurement in wants for wants, _, _ in self._open.values()):
                continue  # it is being looked for anyway
            alike.setdefault((moved.path, sought[1]), []).append(sought[0])
        for (way, update_s), wants in alike.items():
            self._seek(wants, update_s, 0, word.provider, way)

    # As a provider, and on the way

    @handles(SpliceIn)
    def _on_splice_in(self, question: SpliceIn, source: PeerRef) -> None:
        me, holder, path = self._host.id, question.holder, question.path
        if self._proofs.came_back(question, source):
            return
        is_way = 0 < len(path) < PATH_MAX and path[0] == holder.id and len(set(path)) == len(path)
        if not is_way or source.id != (holder.id if question.is_move else path[-1]):
            raise ProtocolError("malformed", "the way of a question begins at who asks, ends here, and has no loop")
        if me in path:
            return  # T has changed meanwhile: it is sent again
        # A holder asks a named provider over their own link, which shows who it is.
        if not question.is_move and not self._proofs.is_genuine(question, holder.id, statement(question), source):
            return
        now = self._host.now()
        for want in question.wants:
            cache = SeenCache(Want(want.measurement, want.half_width), question.update_s, want.updates, now)
            self._statistics.cache_below(holder.id, cache)
        mine = [want for want in question.wants if self._may_provide(want, question, now)]
        if mine:
            self._provide(question, mine, now)
        rest = [want for want in question.wants if want not in mine and want.measurement.owner != me]
        later = [want for want in rest if self._is_awaited(want.measurement, now)]
        if later and len(self._parked) < PARKED_MAX:
            if not self._parked:
                self._host.set_timer(_PARKED, PARKED_LOOK_S)
            self._parked.append((replace(question, wants=tuple(later)), source.id, now))
            rest = [want for want in rest if want not in later]
        self._pass_on(question, rest, source.id)

    def _pass_on(self, question: SpliceIn, wants: Sequence[AlongWant], came_from: NodeId) -> None:
        """What a named provider does not provide, its holder seeks over T when no answer has come."""
        if wants and not question.is_move and len(question.path) < PATH_MAX - 1:
            self._go_on(replace(question, path=(*question.path, self._host.id)), wants, came_from)

    def _is_awaited(self, measurement: Measurement, now: float) -> bool:
        """Whether this node has asked for it itself. When many begin to watch at once, each passes here before the node
        can provide anything; owners would provide for all of them first, and move them one by one."""
        is_known = self._caching.fresh(measurement, now) is not None and not self._is_orphan(measurement)
        return measurement in self._sought and not is_known

    def _is_orphan(self, measurement: Measurement) -> bool:
        """Whether the node from which this one has it is lost. Nodes that lose one provider together would else find
        each other, tell each other what is old by now, and find another provider again."""
        wanted = self._caching.holder.wanted.get(measurement)
        return wanted is not None and self._orphans.get(measurement) == wanted.provider

    @on_timer(_PARKED)
    def _look_at_parked(self, payload: None) -> None:
        now = self._host.now()
        parked, self._parked = self._parked, []
        for question, source, since in parked:
            mine = [want for want in question.wants if self._may_provide(want, question, now)]
            rest = [want for want in question.wants if want not in mine]
            if mine:
                self._provide(question, mine, now)
            if rest and now - since < PARKED_S:
                self._parked.append((replace(question, wants=tuple(rest)), source, since))
            else:
                self._pass_on(question, rest, source)
        if self._parked:
            self._host.set_timer(_PARKED, PARKED_LOOK_S)

    def _may_provide(self, want: AlongWant, question: SpliceIn, now: float) -> bool:
        """Whether this node can, and is not about to leave, nor has lost its provider, nor has it from who asks."""
        measurement = want.measurement
        if measurement.owner == self._host.id:
            return self._caching.fresh(measurement, now) is not None
        wanted, known = self._caching.holder.wanted.get(measurement), self._caching.fresh(measurement, now)
        return (
            wanted is not None
            and known is not None
            and measurement not in self._leaving
            and not self._is_orphan(measurement)
            and wanted.provider != question.holder.id
            and self._caching.holder.update_s(measurement) <= question.update_s
            and known.claim.interval.is_within(want.half_width)
        )

    def _provide(self, question: SpliceIn, wants: Sequence[AlongWant], now: float) -> None:
        holder = question.holder
        self._know(holder)
        asked = tuple(Want(want.measurement, want.half_width) for want in wants)
        ask = CacheAsk(question.boot, question.number, question.max_age_s, question.update_s, asked)
        way = (*question.path, self._host.id)
        for effect in self._caching.asked(holder.id, ask, now):
            if isinstance(effect, SendTo) and isinstance(effect.message, CacheUpdate):
                self._carry_out((SendTo(effect.to, replace(effect.message, path=way)),))
        moves: dict[tuple[NodeId, PeerRef], list[MovedCache]] = {}
        for want in wants:
            ways = self._holders.setdefault(want.measurement, {})
            if not question.is_move:
                self._sort_out(want, question, ways, moves)
            ways[holder.id] = question.path
        self._tell(moves)

    def _sort_out(
        self,
        want: AlongWant,
        question: SpliceIn,
        ways: dict[NodeId, tuple[NodeId, ...]],
        moves: dict[tuple[NodeId, PeerRef], list[MovedCache]],
    ) -> None:
        """Who of the holders has another one on its way, which is to provide for it."""
        holder, widths = question.holder, self._widths(want.measurement)
        for other in [node for node in ways if node not in widths]:
            del ways[other]
        for node in question.path[1:]:  # a cache that had no value yet when the question passed
            if node in ways and widths[node] <= want.half_width and (peer := self._peer_of(node)) is not None:
                way = question.path[: question.path.index(node) + 1]
                moves.setdefault((holder.id, peer), []).append(MovedCache(want.measurement, way))
                return
        for node, way in ways.items():
            if node != holder.id and holder.id in way and want.half_width <= widths[node]:
                way = way[: way.index(holder.id) + 1]
                moves.setdefault((node, holder), []).append(MovedCache(want.measurement, way))

    def _widths(self, measurement: Measurement) -> dict[NodeId, float]:
        """The half-widths of all promises of this node about a measurement, by holder."""
        edges = self._caching.provider.edges
        return {
            node: promise.half_width
            for node, edge in edges.items()
            if (promise := edge.guarantees.get(measurement)) is not None
        }

    def _tell(self, moves: dict[tuple[NodeId, PeerRef], list[MovedCache]]) -> None:
        for (node, provider), moved in moves.items():
            peer = self._peer_of(node)
            for first in range(0, len(moved), READ_MAX):
                if peer is not None:
                    self._send(peer, MoveCaches(provider, tuple(moved[first : first + READ_MAX])))

    # Going away

    def decided(self, leave: Collection[Measurement]) -> None:
        """These, and no others, are to be held no more, as soon as who is below has another provider (SPLICE_OUT)."""
        moves: dict[tuple[NodeId, PeerRef], list[MovedCache]] = {}
        now, me = self._host.now(), self._host.id
        self._leaving = {measurement: self._leaving.get(measurement, now + LEAVING_S) for measurement in leave}
        for measurement in leave:
            wanted = self._caching.holder.wanted.get(measurement)
            peer = None if wanted is None else self._peer_of(wanted.provider)
            if peer is None:
                continue
            own = self._ways.get(measurement, ())
            own = own if _is_way(own, me, peer.id) else (me, peer.id)
            for node in self._widths(measurement):
                way = (*self._holders.get(measurement, {}).get(node, (node,)), *own)
                if len(way) <= PATH_MAX and len(set(way)) == len(way):
                    moves.setdefault((node, peer), []).append(MovedCache(measurement, way))
        self._tell(moves)

    def tidy(self, now: float) -> None:
        """Now and then, forget the ways of nodes to which nothing is promised any more."""
        if now - self._tidied_at < TIDY_S:
            return
        self._tidied_at = now
        for measurement in list(self._holders):
            widths = self._widths(measurement)
            ways = {node: way for node, way in self._holders[measurement].items() if node in widths}
            self._holders[measurement] = ways
            if not ways:
                del self._holders[measurement]

    def provides(self, measurement: Measurement) -> bool:
        """Whether anybody holds this from here."""
        return bool(self._widths(measurement))

    def left(self, now: float) -> list[Measurement]:
        """Those that nobody holds from here any more, or that were waited for long enough."""
        return [each for each, until in self._leaving.items() if now >= until or not self.provides(each)]


def _is_way(path: Sequence[NodeId], first: NodeId, last: NodeId) -> bool:
    """Whether a path may be one from a node to another."""
    return len(path) > 1 and (path[0], path[-1]) == (first, last) and len(set(path)) == len(path)
