"""Aggregates that somebody wants, on their way through the tree T: asked down from its root, told up to it.

Who wants one asks the root, and hears from it alone: words stop where they change nothing. What is asked is soft state:
it is asked anew, and a node that is not asked any more forgets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Final, Protocol

from peerd.api import Host, LookupResult, Part, handles, on_timer
from peerd.errors import ClientRefusal, ProtocolError, Unavailable
from peerd.frozen import Frozen
from peerd.ids import NodeId, format_id
from peerd.lib.filter.errors import FilterError
from peerd.messages import Message, PeerRef
from protocols.measurement.aggregates.messages import AggregateAsk, AggregateSpec, AggregateWord
from protocols.measurement.aggregates.partial import PartialAggregate, shown
from protocols.measurement.aggregates.subtree import HeldPartial, SubtreeAggregate, TellNode, ask_s
from protocols.measurement.guarantee.caching import Caching
from protocols.measurement.guarantee.interval import Interval
from protocols.measurement.guarantee.words import Measurement

if TYPE_CHECKING:  # a daemon of a ring that wants no aggregates loads none of it
    from protocols.measurement.aggregates.own import OwnPart

TICK_S: Final = 0.25
"""How often it is looked whom to ask and whom to tell, while there are any aggregates."""
AGGREGATES_MAX: Final = 128
"""Aggregates that one node takes part in."""
EACH_MAX: Final = 16
"""Those that the root takes on for one node."""
LOOK_S: Final = 1.0
"""How often it is looked what this node adds, between two readings of a source."""
LOOKUP_S: Final = 3.0
_TICK: Final = "aggregates"


class PlaceInTree(Protocol):
    """Where this node is in T."""

    def parent(self) -> PeerRef | None:
        """The next node towards the root; ``None``: this is the root."""

    def children(self) -> Mapping[NodeId, PeerRef]:
        """The nodes whose parent this one is."""


class AggregateAnswer(Frozen):
    """What the root has told last. ``interval``: ``None`` where there is no value at all."""

    interval: Interval | None
    counted: int
    expected: int
    age_s: float
    is_stale: bool


@dataclass(eq=False)
class WantedAggregate:
    """One that this node's clients want, so many of them."""

    spec: AggregateSpec
    users: int = 0
    held: HeldPartial = field(default_factory=HeldPartial)
    root: PeerRef | None = None
    asked_at: float = float("-inf")
    is_told: bool = False


class AggregateTree(Part):
    """``root_key``: of T. ``measured``: names of what this node measures; ``tags``: what it is."""

    def __init__(
        self,
        host: Host,
        place: PlaceInTree,
        root_key: NodeId,
        caching: Caching,
        measured: Mapping[str, None],
        tags: Callable[[], Mapping[str, str]],
        send: Callable[[PeerRef, Message], None],
    ) -> None:
        self._host, self._place, self._root_key, self._boot = host, place, root_key, caching.boot
        self._owner, self._measured, self._tags, self._say = caching.owner, measured, tags, send
        self._started_at = host.now()
        self._numbers = count(1)
        self._peers: dict[NodeId, PeerRef] = {}
        self.aggregates: dict[bytes, tuple[SubtreeAggregate, OwnPart]] = {}
        self.wanted: dict[bytes, WantedAggregate] = {}
        self._looked_at = float("-inf")
        self._is_ticking = False

    # For clients

    def want(self, spec: AggregateSpec) -> WantedAggregate:
        """Ask for one from now on. Raises `ClientRefusal` where there are too many."""
        wanted = self.wanted.get(spec.key)
        if wanted is None:
            if len(self.wanted) >= EACH_MAX:
                raise ClientRefusal("quota", f"at most {EACH_MAX} aggregates are watched here at a time")
            wanted = self.wanted[spec.key] = WantedAggregate(spec)
        wanted.users += 1
        self._keep_ticking()
        return wanted

    def unwant(self, wanted: WantedAggregate) -> None:
        """One client fewer wants it."""
        wanted.users -= 1
        if not wanted.users:
            self.wanted.pop(wanted.spec.key, None)

    def answer(self, wanted: WantedAggregate) -> AggregateAnswer | None:
        """What is known of it now; ``None``: the root has not told anything yet."""
        known = wanted.held.partial
        if not wanted.is_told:
            return None
        age_s = max(0.0, self._host.now() - known.basis) if known.expected else 0.0
        interval = shown(wanted.spec.word, known)
        return AggregateAnswer(interval, known.counted, known.expected, age_s, age_s > wanted.spec.stale_s)

    def _ask_root(self, wanted: WantedAggregate) -> None:
        wanted.asked_at = self._host.now()
        try:
            self._host.lookup(self._root_key, partial(self._found_root, wanted), LOOKUP_S)
        except Unavailable:
            wanted.root = None

    def _found_root(self, wanted: WantedAggregate, result: LookupResult) -> None:
        if result.root is None or not wanted.users:
            return
        if wanted.root is None or wanted.root.id != result.root.id:
            wanted.held = HeldPartial(partial=wanted.held.partial)  # it numbers its words anew
        wanted.root = result.root
        number = next(self._numbers)
        wanted.held.asks.note(number, self._host.now())
        ask = AggregateAsk(self._boot, number, wanted.spec, wanted.spec.half_width)
        if result.root.id == self._host.id:
            self._on_ask(ask, self._host.peer)
        else:
            self._say(result.root, ask)

    # In the tree

    @handles(AggregateAsk)
    def _on_ask(self, ask: AggregateAsk, source: PeerRef) -> None:
        parent = self._place.parent()
        if ask.is_from_parent != (parent is not None) or (parent is not None and parent.id != source.id):
            return  # it takes this node for its child, or for the root, and will know better
        aggregate = self._of(ask.spec, source, is_root=parent is None)
        if aggregate is not None:
            now = self._host.now()
            self._peers[source.id] = source
            self._send(aggregate.asked(source.id, ask, now, is_root=parent is None))
            self._send(aggregate.spread(self._children(), now))

    def _of(self, spec: AggregateSpec, source: PeerRef, *, is_root: bool) -> SubtreeAggregate | None:
        key = spec.key
        if key not in self.aggregates:
            theirs = sum(source.id in aggregate.askers for aggregate, _ in self.aggregates.values())
            if len(self.aggregates) >= AGGREGATES_MAX or (is_root and theirs >= EACH_MAX):
                return None
            from protocols.measurement.aggregates.own import OwnPart

            try:
                own = OwnPart(spec)
            except FilterError as error:
                raise ProtocolError("invalid", str(error)) from error
            aggregate = SubtreeAggregate(spec, self._boot, self._numbers, self._started_at)
            self.aggregates[key] = aggregate, own
            aggregate.own = self._own(own)
            self._keep_ticking()
        return self.aggregates[key][0]

    @handles(AggregateWord)
    def _on_word(self, word: AggregateWord, source: PeerRef) -> None:
        now = self._host.now()
        wanted = self.wanted.get(word.key)
        if wanted is not None and wanted.root is not None and wanted.root.id == source.id:
            wanted.is_told |= word.asker_boot == self._boot and wanted.held.take(word, now)
        if word.key in self.aggregates:
            self._send(self.aggregates[word.key][0].heard(source.id, word, now))

    def sampled(self) -> None:
        """This node has measured something anew, or does not any more."""
        now = self._looked_at = self._host.now()
        for aggregate, own in self.aggregates.values():
            self._send(aggregate.sampled(self._own(own), now))

    def _own(self, own: OwnPart) -> PartialAggregate:
        """What this node adds to an aggregate."""
        me = self._host.id
        texts = {**self._tags(), "node": format_id(me), "address": self._host.peer.address}
        return own.of(texts, self._measured, lambda name: self._owner.known(Measurement(me, name)), self._host.now())

    # Time

    @on_timer(_TICK)
    def _tick(self, payload: None) -> None:
        self._is_ticking = False
        now = self._host.now()
        if now - self._looked_at >= LOOK_S:
            self.sampled()
        for key, (aggregate, _) in list(self.aggregates.items()):
            self._send(aggregate.tick(self._children(), now))
            if aggregate.is_over(now):
                del self.aggregates[key]
        for wanted in list(self.wanted.values()):
            if now - wanted.asked_at >= ask_s(wanted.spec):
                self._ask_root(wanted)
        live = {node for aggregate, _ in self.aggregates.values() for node in (*aggregate.askers, *aggregate.children)}
        self._peers = {node: peer for node, peer in self._peers.items() if node in live}
        if self.aggregates or self.wanted:
            self._keep_ticking()

    def _keep_ticking(self) -> None:
        if not self._is_ticking:
            self._is_ticking = True
            self._host.set_timer(_TICK, TICK_S * self._host.rng.uniform(0.8, 1.0))

    def _children(self) -> list[NodeId]:
        found = self._place.children()
        self._peers.update(found)
        return [child for child in found if child != self._host.id]

    def _send(self, told: Iterable[TellNode]) -> None:
        for to, message in told:
            if to != self._host.id:
                self._say(self._peers[to], message)
            elif isinstance(message, AggregateWord):
                self._on_word(message, self._host.peer)
