"""Events that this node keeps on disk for durable subscriptions of nodes that are away.

A leaf's root keeps what it would else drop, within what the subscriptions state and the operator of this node allows,
and has neighbours on the ring keep it, too. From the first such event on all that is for that node goes through the
disk, so that it stays in order. When the node takes events again they go back into its stream, some at a time; what had
to be let go meanwhile is told to it before them. A neighbour delivers what it keeps for a root that is gone, if it is
the one that follows that root on the ring; subscribers drop repeats.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from peerd.api import Host, Part, handles, on_timer
from peerd.errors import Unavailable
from peerd.ids import NodeId, format_id, parse_id
from peerd.lib.saved import LoggedRow, LoggedRows
from peerd.limits import KIB, LEAF_SET_SIZE
from peerd.messages import Message, PeerRef
from protocols.pubsub.bodies import event_bytes, id_of
from protocols.pubsub.config import PubSubConfig
from protocols.pubsub.delivering.items import Member, PendingDelivery, Pick
from protocols.pubsub.delivering.kept_log import KeptEntry, KeptLog, StoredEvent
from protocols.pubsub.delivering.ledger import LedgerBook
from protocols.pubsub.delivering.losses import LossCount, LossReason
from protocols.pubsub.delivering.messages import ForgetKept, Held, KeepEvents, KeptEvent
from protocols.pubsub.messages import EVENTS_BYTES_MAX, EVENTS_MAX
from protocols.pubsub.names import EventId
from protocols.pubsub.ports import Schemas
from protocols.pubsub.tree.forest import KEEP_S_MAX

KEPT_NODES_MAX: Final = 128
"""So many other nodes this one keeps events for; each has a log."""
KEPT_BYTES_MIN: Final = 64 * KIB
"""What is kept for a node whatever its subscriptions state: one event fits in."""
ROOT_SHARE: Final = 4
"""One neighbour may use at most this part (a quarter) of ``kept_total`` here."""
DROP_SHARE: Final = 8
"""What is too much goes an eighth at a time: each time is a write."""
LOOK_S: Final = 5.0
"""Between two looks at what is too old, and at who is gone."""
COPY_S: Final = 0.2
"""What is kept goes to neighbours together, after so long."""
COPY_TIMEOUT_S: Final = 5.0
LOADED_BYTES: Final = EVENTS_BYTES_MAX
"""So much goes from the disk into a stream at a time."""


class _SavedKept(LoggedRow):
    """What the disk has of it, under the node's id."""

    host: str
    port: int
    bytes_max: int
    losses: list[tuple[str, int, int]]


@dataclass(slots=True)
class _Kept:
    """What is kept for one node. ``stated``: bytes by subscription; ``after``: what is up to here was put into its
    stream; ``loaded``: those of it that it has not taken yet; ``heirs_of``: roots that are gone, for which this node
    delivers; ``copied``: how far neighbours have it; ``unsafe``: events that no neighbour has yet."""

    peer: PeerRef
    slot: int
    base: int
    log: KeptLog
    bytes_max: int
    stated: dict[int, int] = field(default_factory=dict)
    losses: LossCount = field(default_factory=LossCount)
    after: int = 0
    loaded: dict[int, None] = field(default_factory=dict)
    heirs_of: dict[NodeId, None] = field(default_factory=dict)
    copied: dict[NodeId, int] = field(default_factory=dict)
    copying: dict[NodeId, None] = field(default_factory=dict)
    unsafe: dict[int, EventId] = field(default_factory=dict)


class Safekeeping(Part):
    """What this node keeps. ``is_safe`` is told of events that neighbours have as well; ``wake`` of nodes for which
    there is something to send; ``reset`` of those whose stream is to be filled anew. Call `start` once."""

    def __init__(
        self,
        host: Host,
        config: PubSubConfig,
        schemas: Schemas,
        ledger: LedgerBook,
        is_safe: Callable[[EventId], None],
        wake: Callable[[PeerRef], None],
        reset: Callable[[NodeId], None],
    ) -> None:
        self._host, self.config, self._schemas, self._ledger = host, config, schemas, ledger
        self._is_safe, self._wake, self._reset = is_safe, wake, reset
        self._saved = LoggedRows(host.store, "kept.", _SavedKept, "kept-{:03}", KEPT_NODES_MAX)
        self._kept: dict[NodeId, _Kept] = {}
        self._told: dict[tuple[NodeId, NodeId], int] = {}
        """Subscriber's node and root: up to which number neighbours may forget."""
        self._is_looking = self._is_copying = False

    def start(self) -> None:
        """Read what was kept before a restart."""
        self._saved.load()
        for name, row in self._saved.items():
            with suppress(Unavailable, ValueError):  # it is not touched, and may be read after the next start
                self._load(PeerRef(parse_id(name), row.host, row.port), row)
        self._look_later()

    def _load(self, peer: PeerRef, row: _SavedKept) -> None:
        log, base = self._saved.log_of(row)
        kept = self._kept[peer.id] = _Kept(peer, row.slot, base, KeptLog(log, base), row.bytes_max, after=base)
        for schema, reason, count in row.losses:
            kept.losses.note(schema, reason, count)

    def _save(self, kept: _Kept) -> None:
        row = _SavedKept(
            slot=kept.slot,
            base=kept.base,
            host=kept.peer.host,
            port=kept.peer.port,
            bytes_max=kept.bytes_max,
            losses=kept.losses.rows(),
        )
        self._saved.save(format_id(kept.peer.id), row)

    @property
    def bytes(self) -> int:
        """How much is on disk for others."""
        return sum(kept.log.bytes for kept in self._kept.values())

    def __len__(self) -> int:
        return sum(len(kept.log.entries) for kept in self._kept.values())

    def is_active(self, node: NodeId) -> bool:
        """Whether events for a node go through the disk: there are some that it has not got."""
        kept = self._kept.get(node)
        return kept is not None and any(kept.log.counts[root] for root in (self._host.id, *kept.heirs_of))

    def _is_mine(self, kept: _Kept, entry: KeptEntry) -> bool:
        return entry.root == self._host.id or entry.root in kept.heirs_of

    # Taking in

    def put(self, peer: PeerRef, item: PendingDelivery) -> bool:
        """Keep an event for a node; whether it is kept, else its reader is told that it is lost."""
        kept = self._room_for(peer)
        if kept is None:
            return False
        now_ms = self._now_ms()
        # What only others than durable ones want of it is of use for as long as it would have been in memory.
        keep_s = max([self.config.delivery_keep, *(seconds for _, seconds, _ in item.keeps)])
        for sid, _, size in item.keeps:
            kept.stated[sid] = size
        kept.bytes_max = max(kept.bytes_max, min(sum(kept.stated.values()), self.config.kept_per_node))
        stored = StoredEvent(item.event, tuple(pick.member.sid for pick in item.picks))
        until_ms = now_ms + round(min(keep_s, KEEP_S_MAX) * 1000)
        entry = self._append(kept, self._host.id, kept.log.next, until_ms, item.schema.name, stored)
        if entry is None:
            kept.losses.note(item.schema.name, LossReason.LEAF_FULL)
            return False
        kept.unsafe[entry.at] = item.event_id
        self._copy_later()
        return True

    def _append(
        self, kept: _Kept, root: NodeId, number: int, until_ms: int, schema: str, stored: StoredEvent
    ) -> KeptEntry | None:
        def failed(entry: KeptEntry) -> None:
            self._lose(kept, [entry], LossReason.LEAF_FULL)

        self._make_room(kept, event_bytes(stored.event))
        try:
            return kept.log.append(root, number, until_ms, schema, stored, failed)
        except Unavailable:
            return None

    def _room_for(self, peer: PeerRef) -> _Kept | None:
        """What is kept for a node; made where nothing is yet, if that is possible."""
        kept = self._kept.get(peer.id)
        if kept is not None:
            kept.peer = peer
            return kept
        try:
            if (free := self._saved.free()) is None:
                return None
            slot, log = free
            base = log.next - 1
            kept = _Kept(peer, slot, base, KeptLog(log, base), KEPT_BYTES_MIN, after=base)
            self._save(kept)
        except Unavailable:
            return None
        self._kept[peer.id] = kept
        self._look_later()
        return kept

    def _make_room(self, kept: _Kept, size: int) -> None:
        """Let the oldest go where there would be more than the subscriptions state, or than this node keeps."""
        bound = min(kept.bytes_max, self.config.kept_per_node)
        reason = LossReason.KEEP_BYTES if kept.bytes_max < self.config.kept_per_node else LossReason.LEAF_FULL
        while kept.log.bytes + size > bound and self._drop_oldest(kept, reason):
            pass
        while self.bytes + size > self.config.kept_total:
            largest = max(self._kept.values(), key=lambda each: each.log.bytes)
            if not self._drop_oldest(largest, LossReason.LEAF_FULL):
                return

    def _drop_oldest(self, kept: _Kept, reason: LossReason) -> bool:
        oldest = [entry for entry in kept.log.entries.values() if entry.at not in kept.loaded]
        dropped = oldest[: max(1, len(oldest) // DROP_SHARE)]
        self._lose(kept, dropped, reason)
        return bool(dropped)

    def _lose(self, kept: _Kept, entries: list[KeptEntry], reason: LossReason) -> None:
        """These will not be delivered; the subscriber's node is told of those that it was to get from here."""
        count = 0
        for entry in entries:
            kept.log.remove(entry.at)
            self._free(kept, entry.at)
            if self._is_mine(kept, entry):
                kept.losses.note(entry.schema, reason)
                count += 1
        if count:
            self._ledger.lost_from_disk(reason.name.lower(), count)
        with suppress(Unavailable):
            kept.log.trim()
            if count:
                self._save(kept)

    # Giving back

    def load(self, node: NodeId) -> tuple[list[PendingDelivery], LossCount]:
        """The next events for a node's stream, and what it is to hear before them. The order is that of `put`."""
        kept = self._kept.get(node)
        items: list[PendingDelivery] = []
        if kept is None:
            return items, LossCount()
        size = 0
        with suppress(Unavailable):
            for entry, stored in kept.log.read(kept.after):
                schema = self._schemas.get(entry.schema)
                if schema is None and self._is_mine(kept, entry):
                    self._schemas.fetch(entry.schema, lambda found, why: self._wake(kept.peer) if found else None)
                    break
                size += entry.size
                if items and size > LOADED_BYTES:
                    break
                kept.after = entry.at
                if schema is None or not self._is_mine(kept, entry) or entry.at in kept.loaded:
                    continue
                picks = tuple(Pick(Member(kept.peer, sid)) for sid in stored.chosen)
                item = PendingDelivery(stored.event, id_of(stored.event), schema, not picks, picks, kept=entry.at)
                kept.loaded[entry.at] = None
                items.append(item)
        told, kept.losses = kept.losses if items else LossCount(), LossCount() if items else kept.losses
        return items, told

    def has_losses(self, node: NodeId) -> bool:
        """Whether a node is to hear of lost events before the next that is loaded."""
        kept = self._kept.get(node)
        return kept is not None and bool(kept.losses.schemas())

    def take_losses(self, node: NodeId) -> LossCount | None:
        """What a node is to hear of although nothing is kept for it (any more)."""
        kept = self._kept.get(node)
        if kept is None or not kept.losses.schemas():
            return None
        told, kept.losses = kept.losses, LossCount()
        self._look_later()
        return told

    def ended(self, node: NodeId, at: int) -> None:
        """The node has an event, or does not want it."""
        kept = self._kept.get(node)
        if kept is None:
            return
        kept.loaded.pop(at, None)
        entry = kept.log.remove(at)
        self._free(kept, at)
        if entry is not None:
            self._told[node, entry.root] = max(entry.number, self._told.get((node, entry.root), 0))
            self._copy_later()

    def returned(self, node: NodeId, at: int) -> None:
        """The node has not taken an event: it is put into its stream once more."""
        kept = self._kept.get(node)
        if kept is not None:
            kept.loaded.pop(at, None)
            kept.after = min(kept.after, at - 1)

    def _free(self, kept: _Kept, at: int) -> None:
        event_id = kept.unsafe.pop(at, None)
        if event_id is not None:
            self._is_safe(event_id)

    # Copies on neighbours

    def _neighbours(self, kept: _Kept) -> list[PeerRef]:
        closest = self._host.replica_set(self._host.id, self.config.event_copies + 2)
        others = [peer for peer in closest if peer.id not in (self._host.id, kept.peer.id)]
        return others[: self.config.event_copies]

    def _copy_later(self) -> None:
        if not self._is_copying:
            self._is_copying = True
            self._host.set_timer("kept_copy", COPY_S)

    @on_timer("kept_copy")
    def _copy_all(self, payload: object) -> None:
        self._is_copying = False
        for kept in list(self._kept.values()):
            neighbours = self._neighbours(kept)
            for gone in kept.copied.keys() - {peer.id for peer in neighbours}:
                del kept.copied[gone]
            for peer in neighbours:
                self._copy(kept, peer)
            self._note_safe(kept, neighbours)
        told, self._told = self._told, {}
        for (node, root), up_to in told.items():
            kept_there = self._kept.get(node)
            for peer in self._neighbours(kept_there) if kept_there is not None else ():
                self._host.send(peer, ForgetKept(node, root, up_to))
            if kept_there is not None:
                self._close_if_empty(kept_there)

    def _copy(self, kept: _Kept, peer: PeerRef) -> None:
        """Have a neighbour keep what it has not got yet, one message at a time."""
        after = kept.copied.setdefault(peer.id, kept.base)
        if peer.id in kept.copying or not any(at > after for at in reversed(kept.log.entries)):
            return
        events: list[KeptEvent] = []
        schema, size, up_to = "", 0, after
        with suppress(Unavailable):
            for entry, stored in kept.log.read(after, EVENTS_MAX):
                size += event_bytes(stored.event)
                if (events and entry.schema != schema) or size > EVENTS_BYTES_MAX:
                    break
                up_to = entry.at
                if entry.root == self._host.id:  # what a root has left was given to its neighbours by itself
                    schema = entry.schema
                    events.append(KeptEvent(entry.number, entry.until_ms, stored.event, stored.chosen))
        kept.copied[peer.id] = up_to if not events else after
        if not events:
            return

        def on_reply(reply: Message, source: PeerRef) -> None:
            kept.copying.pop(peer.id, None)
            kept.copied[peer.id] = max(up_to, kept.copied.get(peer.id, 0))
            self._copy_later()

        kept.copying[peer.id] = None
        message = KeepEvents(schema, kept.peer, kept.bytes_max, tuple(events))
        self._host.request(peer, message, COPY_TIMEOUT_S, on_reply, lambda: kept.copying.pop(peer.id, None))

    def _note_safe(self, kept: _Kept, neighbours: list[PeerRef]) -> None:
        """What is on this disk and on those of all neighbours that are asked need not be held in memory by others."""
        up_to = min([kept.log.durable, *(kept.copied.get(peer.id, 0) for peer in neighbours)])
        for at in [at for at in kept.unsafe if at <= up_to]:
            self._free(kept, at)
        if kept.unsafe and up_to < max(kept.unsafe) and not kept.copying:
            self._copy_later()

    @handles(KeepEvents)
    def _on_keep(self, message: KeepEvents, source: PeerRef) -> Held:
        if message.subscriber.id == self._host.id or not self._is_near(source.id):
            return Held(0)
        kept = self._room_for(message.subscriber)
        if kept is None:
            return Held(0)
        kept.bytes_max = max(kept.bytes_max, min(message.bytes_max, self.config.kept_per_node))
        latest_ms, held = self._now_ms() + round(KEEP_S_MAX * 1000), 0
        share = self.config.kept_total // ROOT_SHARE - self._bytes_of(source.id)
        for each in message.events:
            if each.number <= kept.log.newest.get(source.id, 0):
                held += 1  # it came before
                continue
            share -= event_bytes(each.event)
            stored = StoredEvent(each.event, each.chosen)
            until_ms = min(each.until_ms, latest_ms)
            if share < 0 or not self._append(kept, source.id, each.number, until_ms, message.schema, stored):
                self._host.count("peerd_pubsub_hold_refused_total")
                break
            held += 1
        return Held(held)

    def _bytes_of(self, root: NodeId) -> int:
        return sum(kept.log.bytes_of[root] for kept in self._kept.values())

    def _is_near(self, node: NodeId) -> bool:
        return any(peer.id == node for peer in self._host.replica_set(self._host.id, LEAF_SET_SIZE))

    @handles(ForgetKept)
    def _on_forget(self, message: ForgetKept, source: PeerRef) -> None:
        kept = self._kept.get(message.subscriber)
        if kept is None or not self._is_near(source.id) or message.root == self._host.id:
            return
        for entry in list(kept.log.entries.values()):
            if entry.root == message.root and entry.number <= message.up_to and entry.at not in kept.loaded:
                kept.log.remove(entry.at)
        self._close_if_empty(kept)

    # Time

    def _look_later(self) -> None:
        if not self._is_looking and self._kept:
            self._is_looking = True
            self._host.set_timer("kept_look", LOOK_S)

    @on_timer("kept_look")
    def _look(self, payload: object) -> None:
        self._is_looking = False
        now_ms = self._now_ms()
        for kept in list(self._kept.values()):
            if old := [entry for entry in kept.log.entries.values() if entry.until_ms <= now_ms]:
                self._reset(kept.peer.id)
                self._lose(kept, old, LossReason.KEEP_TIME)
            self._follow(kept)
            self._close_if_empty(kept)
            if self.is_active(kept.peer.id):
                self._wake(kept.peer)
        self._host.gauge("peerd_pubsub_kept_bytes", self.bytes)
        if any(kept.unsafe or kept.log.entries for kept in self._kept.values()):
            self._copy_later()
        self._look_later()

    def _follow(self, kept: _Kept) -> None:
        """Deliver for roots that are gone, where this node follows them on the ring; not for those that are back."""
        for root in list(kept.log.newest):
            if root == self._host.id:
                continue
            if self._is_near(root):
                kept.heirs_of.pop(root, None)
            elif root not in kept.heirs_of and self._host.replica_set(root, 1)[0].id == self._host.id:
                kept.heirs_of[root] = None
                self._reset(kept.peer.id)  # what that root has left comes before what came since
                kept.after = kept.base

    def _close_if_empty(self, kept: _Kept) -> None:
        with suppress(Unavailable):
            kept.log.trim()
            if not kept.log.entries and not kept.losses.schemas() and not kept.loaded:
                self._saved.remove(format_id(kept.peer.id))
                del self._kept[kept.peer.id]

    def _now_ms(self) -> int:
        return round(self._host.wall_time() * 1000)

    def validate(self) -> None:
        """Assert that what is counted is there."""
        for kept in self._kept.values():
            assert kept.log.bytes == sum(entry.size for entry in kept.log.entries.values())
            assert all(at in kept.log.entries for at in kept.unsafe)
