"""Brings matched events to the nodes that subscribed: one stream for each node, this one included.

A node that does not answer is tried for ``delivery_keep``. What was meant for a member of a group goes to the next
member as soon as the node has been silent for twice ``delivery_retry``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from math import inf
from typing import Final

from msgspec.structs import replace

from peerd.api import Host, Part, handles, on_timer
from peerd.errors import PeerMisbehaved, ProtocolError
from peerd.ids import NodeId
from peerd.messages import Message, PeerRef
from protocols.pubsub.bodies import id_of
from protocols.pubsub.config import PubSubConfig
from protocols.pubsub.delivering import ledger as reasons
from protocols.pubsub.delivering.items import Member, PendingDelivery, Pick
from protocols.pubsub.delivering.keeping import Safekeeping
from protocols.pubsub.delivering.ledger import LedgerBook
from protocols.pubsub.delivering.losses import LossCount, LossReason
from protocols.pubsub.delivering.multicast import MULTICAST_EVENT_BYTES_MAX, Multicast
from protocols.pubsub.delivering.outbox import DeliveryAttempt, Outbox, OutboxLimits
from protocols.pubsub.messages import DeliveryAnswer, DeliveryNote, EventDelivery, NodeDelivery
from protocols.pubsub.names import EventId
from protocols.pubsub.ports import LeafCells, Schemas
from protocols.pubsub.subscribing.local import LocalSubscriptions

TICK_S_MAX: Final = 0.25
"""While a node does not answer, this is the longest time between two looks at what is due."""
SILENT_RETRIES: Final = 2
"""A node is passed over, where another will do, when it has not answered for so many times ``delivery_retry``."""
PASSES_MAX: Final = 8
"""An event for a group goes so often to members that were tried before, or are silent, until it is given up."""
LOSS_OF: Final = {
    reasons.QUEUE_FULL: LossReason.QUEUE_FULL,
    reasons.MEMORY_FULL: LossReason.MEMORY_FULL,
    reasons.SILENT: LossReason.SILENT,
}
"""What the subscriber is told of reasons in the ledger."""
KEEP_AFTER_SHARE: Final = 6
"""What durable subscriptions want goes to the disk when their node has not answered for this part (a sixth) of
``delivery_keep``: until then others hold it in memory."""
IDLE_S: Final = 60.0
"""The stream of a node for which nothing has been pending for so long is forgotten."""

LOST_KEPT_S: Final = 1800.0
"""And so long where the node has yet to hear that events were dropped for it."""


@dataclass(slots=True)
class _Line:
    """A node, where it was last known to listen, and what is pending for it."""

    peer: PeerRef
    outbox: Outbox
    used_at: float
    heard_at: float = -inf
    """When it last answered."""
    move_at: float = -inf
    """Members of groups are looked for from then on that get what this one does not take."""

    def is_heard(self, now: float) -> None:
        """It has answered."""
        self.used_at = self.heard_at = now


class Deliverer(Part):
    """All streams to subscribers' nodes. ``pending_changed(event, change)`` is told of each item that comes or goes;
    who makes the items sets it (`protocols.pubsub.matching.leaf_events`), and is made after this."""

    def __init__(
        self,
        host: Host,
        config: PubSubConfig,
        schemas: Schemas,
        leaves: LeafCells,
        subscribers: LocalSubscriptions,
        ledger: LedgerBook,
        multicast: Multicast,
    ) -> None:
        self._host, self.config, self._leaves, self._subscribers = host, config, leaves, subscribers
        self.ledger, self._multicast = ledger, multicast
        self.keeping = Safekeeping(host, config, schemas, ledger, self._is_safe, self._wake, self._reset)
        self.pending_changed: Callable[[EventId, int], None]
        self.bytes = 0
        self._lines: dict[NodeId, _Line] = {}
        self._to_send: dict[NodeId, None] = {}
        """Nodes with something new to be sent, in order."""
        self._tick_at: float | None = None
        self._on_empty: Callable[[], None] | None = None

    def _is_safe(self, event_id: EventId) -> None:
        """Neighbours have an event as well that is on disk here."""
        self.pending_changed(event_id, -1)

    def pending(self) -> int:
        """How many items are pending."""
        return sum(line.outbox.count for line in self._lines.values())

    def pending_bytes(self) -> int:
        """How much of it there is."""
        return sum(line.outbox.size for line in self._lines.values())

    def is_pending(self, event_id: EventId, subscriber: NodeId) -> bool:
        """Whether an event is pending for a node."""
        line = self._lines.get(subscriber)
        return line is not None and any(item.event_id == event_id for item in line.outbox.items())

    def drain(self, done: Callable[[], None]) -> None:
        """Call ``done`` once, when nothing is pending: the node is about to leave. What nodes that do not answer are to
        get goes to the disk, as far as durable subscriptions want it."""
        self._on_empty = done
        for line in self._lines.values():
            if line.outbox.stalled_since is not None and self._may_keep(line):
                self._keep(line)
        self._tell_if_empty()

    def _tell_if_empty(self) -> None:
        if self._on_empty is not None and not self.bytes:
            done, self._on_empty = self._on_empty, None
            done()

    def has_room(self, subscriber: NodeId) -> bool:
        """Whether a stream is at most half full, so that events of the past may be added to it."""
        line = self._lines.get(subscriber)
        is_calm = line is None or line.outbox.size * 2 <= self.config.delivery_queue
        return is_calm and self.bytes * 2 <= self.config.deliveries_bytes

    def is_silent(self, subscriber: NodeId) -> bool:
        """Whether a node has not answered for so long that another should get what either may get."""
        line = self._lines.get(subscriber)
        if line is None or line.outbox.stalled_since is None:
            return False
        return self._host.now() - line.outbox.stalled_since >= SILENT_RETRIES * self.config.delivery_retry

    # Taking in

    def deliver(self, items: Sequence[tuple[PeerRef, PendingDelivery]]) -> None:
        """Take in all that is due of one event. `flush` sends it."""
        if items and self._uses_multicast(items):
            items = self._send_by_multicast(items)
        for peer, item in items:
            self._add(peer, item)

    def flush(self) -> None:
        """Send what was taken in, as far as the nodes' windows let it."""
        while self._to_send:
            subscriber = next(iter(self._to_send))
            del self._to_send[subscriber]
            self._send(subscriber)

    def _line(self, peer: PeerRef) -> _Line:
        line, now = self._lines.get(peer.id), self._host.now()
        if line is None:
            config = self.config
            limits = OutboxLimits(
                config.delivery_window, config.delivery_retry, config.delivery_keep, config.delivery_queue
            )
            if peer.id == self._host.id:  # one batch after the other: each is over when durable subscriptions have it
                limits = replace(limits, window=1)
            outbox = Outbox(limits, lambda: self._host.rng.getrandbits(63))
            line = self._lines[peer.id] = _Line(peer, outbox, now)
        line.peer, line.used_at = peer, now
        return line

    def _add(self, peer: PeerRef, item: PendingDelivery) -> None:
        line = self._line(peer)
        self._begin(item)
        if self.keeping.is_active(peer.id):
            self._keep_item(line, item)
        else:
            self._note_losses(line, self.keeping.take_losses(peer.id))
            is_full = line.outbox.size + item.size > self.config.delivery_queue
            if is_full and (item.keeps or self._may_keep(line)):
                self._keep(line)
            for dropped in line.outbox.add(item):
                self._give_up(peer, dropped, reasons.QUEUE_FULL)
        while self.bytes > self.config.deliveries_bytes and (freed := self._drop_somewhere()):
            self._give_up(*freed, reasons.MEMORY_FULL)
        self._to_send[peer.id] = None
        self._tick_within(IDLE_S)

    # On disk

    @staticmethod
    def _may_keep(line: _Line) -> bool:
        """Whether anything in memory is for durable subscriptions."""
        return any(item.keeps for item in line.outbox.items())

    def _keep(self, line: _Line) -> None:
        """Put all that is pending for a node on the disk, in order."""
        for item in line.outbox.take_all(self._host.now()):
            self._keep_item(line, item)

    def _keep_item(self, line: _Line, item: PendingDelivery) -> None:
        peer = line.peer
        if item.kept is not None:
            self.keeping.returned(peer.id, item.kept)
            self.ledger.kept(item.event_id, peer.id)
            self._end(item)
        elif self.keeping.put(peer, item):
            self.ledger.kept(item.event_id, peer.id)
            self.bytes -= item.size  # who holds it in memory may let go once neighbours have it: see ``is_safe``
            self._tell_if_empty()
        else:
            self.ledger.dropped(item.event_id, peer.id, reasons.LEAF_FULL)
            line.outbox.note_lost(item.schema.name, LossReason.LEAF_FULL)
            self._end(item)

    def _wake(self, peer: PeerRef) -> None:
        """There are events on disk for a node, which may be back."""
        self._line(peer)
        self._to_send[peer.id] = None
        self.flush()

    def _reset(self, node: NodeId) -> None:
        """Return to the disk what came from there."""
        line = self._lines.get(node)
        if line is not None and self.keeping.is_active(node):
            self._keep(line)

    @staticmethod
    def _note_losses(line: _Line, losses: LossCount | None) -> None:
        for schema, reason, count in () if losses is None else losses.rows():
            line.outbox.note_lost(schema, reason, count)

    def _refill(self, line: _Line) -> None:
        """Put some of what is on disk into a node's stream, when it has taken what was there before."""
        outbox = line.outbox
        while not outbox.count or (outbox.stalled_since is None and outbox.size * 2 <= self.config.delivery_queue):
            if outbox.count and self.keeping.has_losses(line.peer.id):
                return  # they are told with the next batch, which must not begin before their place
            items, losses = self.keeping.load(line.peer.id)
            self._note_losses(line, losses)
            for item in items:
                self.ledger.matched(item.event_id, 0, 1)
                self._begin(item)
                outbox.add(item)
            if not items:
                return

    def _drop_somewhere(self) -> tuple[PeerRef, PendingDelivery] | None:
        """Drop the oldest of the node for which most is pending, where that is not kept on the disk."""
        for line in sorted(self._lines.values(), key=lambda line: line.outbox.size, reverse=True):
            if self._may_keep(line):
                self._keep(line)
                if self.bytes <= self.config.deliveries_bytes:
                    return None
            elif item := line.outbox.drop_oldest():
                return line.peer, item
        return None

    # Sending

    def _send(self, subscriber: NodeId) -> None:
        line = self._lines.get(subscriber)
        if line is None:
            return
        if self.keeping.is_active(subscriber):
            self._refill(line)
        if subscriber == self._host.id:
            self._take_here(line)
            return
        for attempt in line.outbox.sends(self._host.now()):
            deliveries = tuple(item.delivery() for item in attempt.items)
            message = EventDelivery(attempt.schema, attempt.stream, attempt.number, deliveries, attempt.lost)

            def on_reply(reply: Message, source: PeerRef, attempt: DeliveryAttempt = attempt) -> None:
                self._replied(line, attempt, reply, source)

            def on_timeout(attempt: DeliveryAttempt = attempt) -> None:
                line.outbox.failed(attempt, self._host.now())
                self._tick_soon()

            self._host.request(line.peer, message, attempt.timeout_s, on_reply, on_timeout)

    def _replied(self, line: _Line, attempt: DeliveryAttempt, reply: Message, source: PeerRef) -> None:
        try:
            if not isinstance(reply, DeliveryAnswer):
                raise ProtocolError("delivery_answer", "another message than a DeliveryAnswer")
            unwanted = self._unwanted_items(attempt, reply)
            self._answered(line, attempt, reply.taken, reply.pause_ms, unwanted)
        except PeerMisbehaved as error:
            self._host.misbehaved(source, error)
            line.outbox.failed(attempt, self._host.now())
            self._tick_soon()
        self.flush()

    @staticmethod
    def _unwanted_items(attempt: DeliveryAttempt, reply: DeliveryAnswer) -> list[PendingDelivery]:
        if any(index >= len(attempt.items) for index in reply.unwanted):
            raise ProtocolError("delivery_answer", "a delivery is unwanted that was not sent")
        return [attempt.items[index] for index in reply.unwanted]

    def _answered(
        self, line: _Line, attempt: DeliveryAttempt, taken: int, pause_ms: int, unwanted: Sequence[PendingDelivery]
    ) -> None:
        now = self._host.now()
        line.is_heard(now)
        settled = line.outbox.answered(attempt, taken, pause_ms / 1000, now)
        way_s = (now - attempt.sent_at) / 2
        refused = set(unwanted)  # an answer may name one twice, and each ends once
        self._are_delivered(line.peer, [item for item in settled if item not in refused], way_s)
        for item in settled:
            if item in refused:
                self._is_unwanted(line.peer, item)
        self._to_send[line.peer.id] = None
        if line.outbox.needs_care():
            self._tick_soon()

    @handles(DeliveryAnswer)
    def _on_late_answer(self, message: DeliveryAnswer, source: PeerRef) -> None:
        """A batch for durable subscriptions is on disk there."""
        line = self._lines.get(source.id)
        if line is None:
            return
        way_s = (self._host.estimated_rtt(line.peer) or 0.0) / 2
        line.is_heard(self._host.now())
        confirmed = line.outbox.confirmed(message.stream, message.taken, self._host.now())
        self._are_delivered(line.peer, confirmed, way_s)
        self._to_send[source.id] = None
        self.flush()

    def _take_here(self, line: _Line) -> None:
        """Deliver to this node's own subscriptions, without the network but in the same order."""
        while attempts := line.outbox.sends(self._host.now()):
            for attempt in attempts:
                pause_ms = self._subscribers.must_pause(attempt.schema)
                if pause_ms:
                    self._answered(line, attempt, attempt.number - 1, pause_ms, ())
                    break
                writes = self._subscribers.new_writes()
                self._subscribers.note_lost(attempt.schema, attempt.lost, self._host.id)
                unwanted = [item for item in attempt.items if not self._take(item)]
                if writes.is_durable:
                    self._answered(line, attempt, attempt.number, 0, unwanted)
                else:
                    writes.when_done(partial(self._written_here, line, attempt, unwanted))
        self._to_send.pop(line.peer.id, None)

    def _written_here(
        self, line: _Line, attempt: DeliveryAttempt, unwanted: Sequence[PendingDelivery], is_durable: bool
    ) -> None:
        """A batch for this node's durable subscriptions is on disk, or was refused by it: then it is tried again."""
        if is_durable:
            self._answered(line, attempt, attempt.number, 0, unwanted)
            self.flush()
        else:
            line.outbox.failed(attempt, self._host.now())
            self._tick_soon()

    def _take(self, item: PendingDelivery) -> bool:
        values = item.schema.decode_values(item.event.values)  # it was decoded before, when it was matched
        return self._subscribers.take(item.schema, item.event, values, item.chosen, item.replay_sid is not None)

    # What becomes of items

    def _begin(self, item: PendingDelivery) -> None:
        self.bytes += item.size
        self.pending_changed(item.event_id, 1)

    def _end(self, item: PendingDelivery) -> None:
        self.bytes -= item.size
        self.pending_changed(item.event_id, -1)
        self._tell_if_empty()

    def _are_delivered(self, peer: PeerRef, items: Sequence[PendingDelivery], way_s: float) -> None:
        at_s = self._host.wall_time() - way_s
        self.ledger.delivered([(item.event_id, at_s - item.event.published_ms / 1000) for item in items], peer.id)
        for item in items:
            if item.kept is not None:
                self.keeping.ended(peer.id, item.kept)
            self._end(item)

    def _is_unwanted(self, peer: PeerRef, item: PendingDelivery) -> None:
        """The node says that no filter of its matches the event. So it has none of the pieces that did."""
        for key in item.keys:
            self._leaves.unwanted(key, item.schema.name)
        if item.kept is not None:
            self.keeping.ended(peer.id, item.kept)
        self._give_up(peer, item, reasons.FILTERED)

    def _give_up(self, peer: PeerRef, item: PendingDelivery, reason: str) -> None:
        """It cannot be brought to this node. What is meant for a group is brought to other members of it."""
        is_refused = reason == reasons.FILTERED
        moved = [pick for pick in item.picks if self._pass_on(item, pick, self.is_silent, is_refused=is_refused)]
        if len(moved) == len(item.picks) and moved and not item.is_for_all:
            extra = len(moved) - 1
        else:
            extra = len(moved)
            self.ledger.dropped(item.event_id, peer.id, reason)
            line = self._lines.get(peer.id)
            if line is not None and reason != reasons.FILTERED:
                line.outbox.note_lost(item.schema.name, LOSS_OF.get(reason, LossReason.OTHER))
                self._to_send[peer.id] = None
        if extra:
            self.ledger.matched(item.event_id, 0, extra)
        self._end(item)

    def _pass_on(
        self,
        item: PendingDelivery,
        pick: Pick,
        is_silent: Callable[[NodeId], bool],
        silent_since: float | None = None,
        *,
        is_refused: bool = False,
    ) -> bool:
        """Give an event to the next member of its group that answers and has room, if there is one.

        Because it has room, nothing is dropped there for it, which would have to be passed on in turn. Where no member
        is left that was not tried, one gets it again that has answered after ``silent_since``, when the present one
        fell silent: a node drops what it has already. Without ``silent_since`` the event is lost otherwise, so that
        even a member is tried that does not answer at this moment.
        """

        def awake(members: Sequence[Member]) -> Iterator[Member]:
            return (each for each in members if not is_silent(each.peer.id) and self.has_room(each.peer.id))

        to = next(awake(pick.others), None)
        is_again = to is None
        if is_again and pick.again < PASSES_MAX:
            since = -inf if silent_since is None else silent_since
            heard = (member for member in awake(pick.tried) if self._heard_at(member) >= since)
            to = max(heard, key=self._heard_at, default=None)
            if to is None and silent_since is None:
                to = next((member for member in pick.others if self.has_room(member.peer.id)), None)
        if to is None:
            return False
        next_pick = pick.passed_on(to, is_again=is_again, is_refused=is_refused)
        keeps = ((to.sid, to.keep_s, to.keep_bytes),) if to.keep_s else ()
        self._add(to.peer, PendingDelivery(item.event, item.event_id, item.schema, False, (next_pick,), keeps=keeps))
        return True

    def _heard_at(self, member: Member) -> float:
        line = self._lines.get(member.peer.id)
        return -inf if line is None else line.heard_at

    def _move_groups(self, line: _Line) -> None:
        """The node is silent: what it was to get as a member of groups goes to other members."""
        is_silent, since = cache(self.is_silent), line.outbox.stalled_since
        line.move_at = self._host.now() + self.config.delivery_retry
        for item in [item for item in line.outbox.items() if item.picks]:
            moved = [pick for pick in item.picks if self._pass_on(item, pick, is_silent, since)]
            if not moved:
                continue
            item.picks = tuple(pick for pick in item.picks if pick not in moved)
            is_over = not item.picks and not item.is_for_all
            if is_over:
                line.outbox.discard(item)
                self._end(item)
            if len(moved) > is_over:
                self.ledger.matched(item.event_id, 0, len(moved) - is_over)

    # Multicast

    def _uses_multicast(self, items: Sequence[tuple[PeerRef, PendingDelivery]]) -> bool:
        kind, first = self.config.delivery, items[0][1]
        if kind == "direct" or first.size > MULTICAST_EVENT_BYTES_MAX:
            return False
        if first.replay_sid is not None:  # a `GroupDelivery` cannot say that others do not want it
            return False
        return kind == "multicast" or len(items) >= self.config.multicast_min

    def _send_by_multicast(
        self, items: Sequence[tuple[PeerRef, PendingDelivery]]
    ) -> list[tuple[PeerRef, PendingDelivery]]:
        """Send one event to all for whom nothing else is pending; returns the others."""
        now, rest, to = self._host.now(), [], []
        first = items[0][1]
        due_at = now + SILENT_RETRIES * self.config.delivery_retry
        for peer, item in items:
            line = self._line(peer)
            is_kept = self.keeping.is_active(peer.id)
            if peer.id == self._host.id or is_kept or not line.outbox.is_idle():
                rest.append((peer, item))
                continue
            self._begin(item)
            line.outbox.await_note(item, now, due_at)
            to.append(NodeDelivery(peer.id, item.chosen))
        self._tick_soon()
        self._multicast.send(first.schema.name, first.event, to)
        return rest

    @handles(DeliveryNote)
    def _on_note(self, message: DeliveryNote, source: PeerRef) -> None:
        line = self._lines.get(source.id)
        if line is None:
            return
        for name in message.events:
            item = line.outbox.noted(id_of(name))
            if item is not None:
                line.is_heard(self._host.now())
                self._are_delivered(line.peer, [item], (self._host.estimated_rtt(line.peer) or 0.0) / 2)
        self._to_send[source.id] = None
        self.flush()

    # Time

    def _tick_soon(self) -> None:
        self._tick_within(min(TICK_S_MAX, self.config.delivery_retry / 4))

    def _tick_within(self, delay_s: float) -> None:
        tick_at = self._host.now() + delay_s
        if self._tick_at is not None:
            if self._tick_at <= tick_at:
                return
            self._host.cancel_timer("delivery_due")
        self._tick_at = tick_at
        self._host.set_timer("delivery_due", delay_s)

    @on_timer("delivery_due")
    def _tick(self, payload: object) -> None:
        self._tick_at = None
        now = self._host.now()
        for line in list(self._lines.values()):
            if line.outbox.needs_care():
                self._look_after(line, now)
            elif not line.outbox.count and now - line.used_at >= (LOST_KEPT_S if line.outbox.has_lost else IDLE_S):
                del self._lines[line.peer.id]
        self.flush()
        if any(line.outbox.needs_care() for line in self._lines.values()):
            self._tick_soon()
        elif self._lines:
            self._tick_within(IDLE_S)

    def _look_after(self, line: _Line, now: float) -> None:
        stalled_since = line.outbox.stalled_since
        is_away = stalled_since is not None and now - stalled_since >= self.config.delivery_keep / KEEP_AFTER_SHARE
        if is_away and self._may_keep(line):
            self._keep(line)
        if not self.keeping.is_active(line.peer.id):
            for item in line.outbox.expire(now):
                self._give_up(line.peer, item, reasons.SILENT)
        line.outbox.repair(now)
        if now >= line.move_at and self.is_silent(line.peer.id):
            self._move_groups(line)
        self._to_send[line.peer.id] = None
