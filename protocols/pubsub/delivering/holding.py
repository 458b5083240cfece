"""Events that this node holds for roots of leaves, in case they die before all is delivered.

When this node becomes the root of such a leaf itself, it delivers what it holds of it. When another node does, which
may hold nothing, it is sent the events. Some of that may have been delivered before; subscribers' nodes drop repeats.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from peerd.api import Host, Part, handles, on_timer
from peerd.ids import NodeId
from peerd.limits import LEAF_SET_SIZE
from peerd.messages import PeerRef
from protocols.pubsub.cells import are_related
from protocols.pubsub.config import PubSubConfig
from protocols.pubsub.delivering.copies import as_trees
from protocols.pubsub.delivering.items import event_bytes, id_of
from protocols.pubsub.messages import EventBody, Held, HoldEvents, ProbePub, ReleaseEvents
from protocols.pubsub.names import EventId, Tree, key_of
from protocols.pubsub.ports import Elsewhere, Here, Leaves, Schemas, SchemaView

ROOT_SHARE: Final = 4
"""One root may use at most this part (a quarter) of ``held_bytes``."""
KEEP_TIMES: Final = 2
"""What nobody releases is held for so many times ``delivery_keep``: a root may die just before it would give up."""
LOOK_S: Final = 5.0
"""How often this node looks what it holds, besides when it is told that a cell has changed."""
SENDS_MAX: Final = 3
"""So often an event is sent to the root that follows a dead one; that root takes it once."""
CELL_BYTES: Final = 64
"""What each leaf of a held event takes."""
REPROBE_ATTEMPT: Final = 200
"""No publisher tries so often: a probe with this number is not taken for one that was seen before."""

Deliver = Callable[[SchemaView, EventBody, Sequence[tuple[int, int]]], None]
"""Match and deliver an event in leaves of this node, without acknowledgement."""


@dataclass(slots=True)
class _Held:
    schema: str
    event: EventBody
    root: NodeId
    cells: dict[tuple[int, int], None]
    until: float
    size: int
    sends: int = 0


class Holding(Part):
    """What this node holds for others. The plugin sets ``deliver``."""

    def __init__(self, host: Host, config: PubSubConfig, schemas: Schemas, leaves: Leaves) -> None:
        self._host = host
        self.config = config
        self._schemas = schemas
        self._leaves = leaves
        self.deliver: Deliver = lambda schema, event, cells: None
        self.bytes = 0
        self._bytes_of: Counter[NodeId] = Counter()
        self._held: dict[tuple[NodeId, EventId], _Held] = {}
        self._is_looking = False

    def __len__(self) -> int:
        return len(self._held)

    @handles(HoldEvents)
    def _on_hold(self, message: HoldEvents, source: PeerRef) -> Held:
        cells = [(tree.attribute, cell) for tree in message.places for cell in tree.cells]
        near = [place for place in cells if self._is_near(message.schema, place, source.id)]
        if len(near) < len(cells):  # that root cannot be one, as far as this node sees
            return Held(0)
        return Held(sum(self._hold(message.schema, event, source, near) for event in message.events))

    def _is_near(self, schema: str, place: tuple[int, int], root: NodeId) -> bool:
        attribute, cell = place
        closest = self._host.replica_set(key_of(Tree(schema, attribute), cell), LEAF_SET_SIZE)
        return root in {peer.id for peer in closest}

    def _hold(self, schema: str, event: EventBody, root: PeerRef, cells: Sequence[tuple[int, int]]) -> bool:
        place = root.id, id_of(event)
        held = self._held.get(place)
        added = CELL_BYTES * len(cells) + (event_bytes(event) if held is None else 0)
        is_too_much = self._bytes_of[root.id] + added > self.config.held_bytes // ROOT_SHARE
        if is_too_much or self.bytes + added > self.config.held_bytes:
            self._host.count("peerd_pubsub_hold_refused_total")
            return False
        until = self._host.now() + KEEP_TIMES * self.config.delivery_keep
        if held is None:
            held = self._held[place] = _Held(schema, event, root.id, {}, until, 0)
        held.cells.update(dict.fromkeys(cells))
        held.size += added
        held.until = until
        self._count(root.id, added)
        self._look_later()
        return True

    @handles(ReleaseEvents)
    def _on_release(self, message: ReleaseEvents, source: PeerRef) -> None:
        for name in message.events:
            self._forget((source.id, id_of(name)))

    def _forget(self, place: tuple[NodeId, EventId]) -> None:
        held = self._held.pop(place, None)
        if held is not None:
            self._count(held.root, -held.size)

    def _count(self, root: NodeId, added: int) -> None:
        self.bytes += added
        self._bytes_of[root] += added
        if not self._bytes_of[root]:
            del self._bytes_of[root]

    # When this node becomes the root

    def tree_changed(self, tree: Tree, cell: int) -> None:
        """What the tree says of a cell has changed: deliver what is held of it, if that is here now."""
        if self._held:
            self._look_at(
                (place, held)
                for place, held in self._held.items()
                if held.schema == tree.schema
                and any(attribute == tree.attribute and are_related(each, cell) for attribute, each in held.cells)
            )

    def _look_at(self, found: Iterable[tuple[tuple[NodeId, EventId], _Held]]) -> None:
        for place, held in list(found):
            schema = self._schemas.get(held.schema)
            if schema is None:
                continue
            here: list[tuple[int, int]] = []
            for attribute, cell in list(held.cells):
                decision = self._leaves.decide(Tree(held.schema, attribute), cell, None, vouched=False)
                if isinstance(decision, Here):
                    here.append((attribute, cell))
                elif isinstance(decision, Elsewhere) and decision.vouched:
                    # The leaf was split: its halves have the subscriptions, and get the event like any other.
                    self._send_on(held, [(attribute, each) for each in decision.cells], vouched=True)
                else:
                    continue
                del held.cells[attribute, cell]
            if here:
                self.deliver(schema, held.event, here)
            if not held.cells:
                self._forget(place)

    def _send_to_heirs(self) -> None:
        """Send what a root that is gone has not released to whoever is root now."""
        for place, held in list(self._held.items()):
            orphans = [each for each in held.cells if not self._is_near(held.schema, each, held.root)]
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
        self._look_at(self._held.items())
        self._send_to_heirs()
        if self._held:
            self._look_later()

    def validate(self) -> None:
        """Assert that what is counted is there, and within its bounds."""
        sizes: Counter[NodeId] = Counter()
        for held in self._held.values():
            sizes[held.root] += held.size
        assert sizes == self._bytes_of
        assert self.bytes == sizes.total() <= self.config.held_bytes
