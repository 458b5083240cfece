"""Events that this node holds for roots of leaves, in case they die before all is delivered.

When this node becomes the root of such a leaf itself, it delivers what it holds of it. When another node does, which
may hold nothing, it is sent the events. Some of that may have been delivered before; subscribers' nodes drop repeats.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final, TypeAlias

from peerd.api import Host, Part, handles, on_timer
from peerd.errors import ProtocolError
from peerd.ids import NodeId
from peerd.lib.admission import Admission
from peerd.limits import LEAF_SET_SIZE
from peerd.messages import PeerRef
from protocols.pubsub.bodies import event_bytes, id_of
from protocols.pubsub.config import PubSubConfig
from protocols.pubsub.delivering.copies import as_trees
from protocols.pubsub.delivering.messages import Held, HoldEvents, ReleaseEvents
from protocols.pubsub.messages import CELLS_MAX, EventBody, ProbePub
from protocols.pubsub.names import EventId, Tree, key_of
from protocols.pubsub.ports import Elsewhere, Here, LeafCells, Schemas, SchemaView
from protocols.pubsub.tree.cells import are_related

LOOKS_PER_S: Final = 10_000.0
LOOKS_BURST: Final = 40_000.0
"""Leaves of which one member may have it looked up whether it is near them, at some 15 microseconds each."""
ROOT_SHARE: Final = 4
"""One root may use at most this part (a quarter) of ``held_bytes``."""
KEEP_TIMES: Final = 2
"""What nobody releases is held for so many times ``delivery_keep``: a root may die just before it would give up."""
LOOK_S: Final = 5.0
"""How often this node looks what it holds, besides when it is told that a cell has changed."""
LOOKED_MAX: Final = 2048
"""Leaves that it looks at in one turn, some 50 us each; with more of them it takes several turns."""
SENDS_MAX: Final = 3
"""So often an event is sent to the root that follows a dead one; that root takes it once."""
LEAF_BYTES: Final = 512
"""What each leaf of a held event takes, if the event is the only one of that leaf."""
REPROBE_ATTEMPT: Final = 200
"""No publisher tries so often: a probe with this number is not taken for one that was seen before."""

Deliver = Callable[[SchemaView, EventBody, Sequence[tuple[int, int]]], None]
"""Match and deliver an event in leaves of this node, without acknowledgement."""


_Leaf: TypeAlias = tuple[Tree, int]
_Place: TypeAlias = tuple[NodeId, EventId]
"""Who asked to hold an event, and which one."""


@dataclass(slots=True)
class _Held:
    schema: str
    event: EventBody
    root: NodeId
    leaves: dict[_Leaf, None]
    until: float
    size: int
    sends: int = 0
    is_orphan: bool = False
    """Its root was out of reach since it asked: it may have been restarted, and know nothing of the event."""


class Holding(Part):
    """What this node holds for others."""

    def __init__(self, host: Host, config: PubSubConfig, schemas: Schemas, leaves: LeafCells, deliver: Deliver) -> None:
        self._host = host
        self._looks: Admission[NodeId] = Admission(LOOKS_PER_S, LOOKS_BURST)
        self.config, self._schemas, self._leaves, self._deliver = config, schemas, leaves, deliver
        self.bytes = 0
        self._bytes_of: Counter[NodeId] = Counter()
        self._held: dict[_Place, _Held] = {}
        self._by_leaf: dict[_Leaf, dict[_Place, None]] = {}
        self._is_looking = False

    def __len__(self) -> int:
        return len(self._held)

    @handles(HoldEvents)
    def _on_hold(self, message: HoldEvents, source: PeerRef) -> Held:
        leaves = [(Tree(message.schema, tree.attribute), cell) for tree in message.places for cell in tree.cells]
        if len(leaves) > CELLS_MAX:
            raise ProtocolError("hold_cells", f"events for {len(leaves)} leaves")
        leaves = list(dict.fromkeys(leaves))
        if not self._looks.take(source.id, self._host.now(), len(leaves)):
            self._host.count("peerd_pubsub_hold_refused_total")
            return Held(0)
        if not all(self._is_near(leaf, source.id) for leaf in leaves):
            return Held(0)  # that node cannot be their root, as far as this node sees
        return Held(sum(self._hold(event, source.id, leaves) for event in message.events))

    def _is_near(self, leaf: _Leaf, root: NodeId) -> bool:
        closest = self._host.replica_set(key_of(*leaf), LEAF_SET_SIZE)
        return root in {peer.id for peer in closest}

    def _hold(self, event: EventBody, root: NodeId, leaves: Sequence[_Leaf]) -> bool:
        place = root, id_of(event)
        held = self._held.get(place)
        known = held.leaves if held is not None else {}
        added = LEAF_BYTES * sum(leaf not in known for leaf in leaves) + (event_bytes(event) if held is None else 0)
        is_too_much = self._bytes_of[root] + added > self.config.held_bytes // ROOT_SHARE
        if not leaves or is_too_much or self.bytes + added > self.config.held_bytes:
            self._host.count("peerd_pubsub_hold_refused_total")
            return False
        until = self._host.now() + KEEP_TIMES * self.config.delivery_keep
        if held is None:
            held = self._held[place] = _Held(leaves[0][0].schema, event, root, {}, until, 0)
        for leaf in leaves:
            held.leaves[leaf] = None
            self._by_leaf.setdefault(leaf, {})[place] = None
        held.size += added
        held.until = until
        held.is_orphan = False
        self._count(root, added)
        self._look_later()
        return True

    @handles(ReleaseEvents)
    def _on_release(self, message: ReleaseEvents, source: PeerRef) -> None:
        for name in message.events:
            self._forget((source.id, id_of(name)))

    def _forget(self, place: _Place) -> None:
        held = self._held.get(place)
        for leaf in list(held.leaves) if held is not None else ():
            self._forget_leaf(place, leaf)

    def _forget_leaf(self, place: _Place, leaf: _Leaf) -> None:
        """Hold an event no longer for a leaf; without the last one, no longer at all."""
        held = self._held[place]
        del held.leaves[leaf], self._by_leaf[leaf][place]
        if not self._by_leaf[leaf]:
            del self._by_leaf[leaf]
        if not held.leaves:
            del self._held[place]
            self._count(held.root, -held.size)

    def _count(self, root: NodeId, added: int) -> None:
        self.bytes += added
        self._bytes_of[root] += added
        if not self._bytes_of[root]:
            del self._bytes_of[root]

    # When this node becomes the root

    def tree_changed(self, tree: Tree, cell: int) -> None:
        """What the tree says of a cell has changed: deliver what is held of it, if that is here now."""
        self._look_at([leaf for leaf in self._by_leaf if leaf[0] == tree and are_related(leaf[1], cell)])

    def _look_at(self, leaves: Iterable[_Leaf]) -> None:
        for leaf in leaves:
            (tree, cell), schema = leaf, self._schemas.get(leaf[0].schema)
            decision = self._leaves.decide(tree, cell, None, vouched=False)
            is_split = isinstance(decision, Elsewhere) and decision.vouched
            if schema is None or not (is_split or isinstance(decision, Here)):
                continue
            for place in list(self._by_leaf.get(leaf, ())):
                held = self._held[place]
                if self._leaves.is_helper(tree, cell, held.root) and not held.is_orphan:
                    continue  # it delivers what it has asked this node to hold
                self._forget_leaf(place, leaf)
                if isinstance(decision, Elsewhere):
                    # The leaf was split: its halves have the subscriptions, and get the event like any other.
                    self._send_on(held, [(tree.attribute, each) for each in decision.cells], vouched=True)
                else:
                    self._deliver(schema, held.event, [(tree.attribute, cell)])

    def _send_to_heirs(self, leaves: Iterable[_Leaf]) -> None:
        """Send what a root that is gone, or was, has not released of these leaves to whoever is root now."""
        roots_of = {leaf: {root for root, _ in self._by_leaf.get(leaf, ())} for leaf in leaves}
        gone = {(leaf, root) for leaf, roots in roots_of.items() for root in roots if not self._is_near(leaf, root)}
        if not gone and not any(held.is_orphan for held in self._held.values()):
            return
        for place, held in list(self._held.items()):
            orphans = [
                (tree.attribute, cell)
                for tree, cell in held.leaves
                if held.is_orphan or ((tree, cell), held.root) in gone
            ]
            if orphans:
                held.sends += 1
                self._send_on(held, orphans, vouched=False)
            if held.sends == SENDS_MAX:
                self._forget(place)

    def _send_on(self, held: _Held, cells: Sequence[tuple[int, int]], *, vouched: bool) -> None:
        attempt = REPROBE_ATTEMPT + held.sends
        probe = ProbePub(
            held.schema, held.event.publisher, (held.event,), as_trees(cells), 0, attempt, vouched=vouched, hops=1
        )
        self._host.send(self._host.peer, probe)

    def peer_down(self, peer: PeerRef) -> None:
        """A root cannot be reached. When it is back it may have been restarted, and what it had in memory is gone."""
        for (root, _), held in self._held.items():
            held.is_orphan |= root == peer.id

    # Time

    def _look_later(self) -> None:
        if not self._is_looking:
            self._is_looking = True
            self._host.set_timer("held_due", LOOK_S)

    @on_timer("held_due")
    def _look(self, payload: object) -> None:
        self._is_looking = False
        now = self._host.now()
        for place in [place for place, held in self._held.items() if held.until <= now]:
            self._forget(place)
        leaves = list(islice(self._by_leaf, LOOKED_MAX))
        for leaf in leaves:
            self._by_leaf[leaf] = self._by_leaf.pop(leaf)  # to the end: it is the turn of others then
        self._look_at(leaves)
        self._send_to_heirs(leaves)
        if self._held:
            self._look_later()

    def validate(self) -> None:
        """Assert that what is counted is there, and within its bounds."""
        sizes: Counter[NodeId] = Counter()
        for held in self._held.values():
            sizes[held.root] += held.size
        assert sizes == self._bytes_of
        assert {(leaf, place) for place, held in self._held.items() for leaf in held.leaves} == {
            (leaf, place) for leaf, places in self._by_leaf.items() for place in places
        }
        assert self.bytes == sizes.total() <= self.config.held_bytes
