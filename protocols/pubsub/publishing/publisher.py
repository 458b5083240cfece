"""The publisher's side: events set out, are tried again, and are done when all that they may match has been visited.

What is promised to the client is in `PublishResult`. An event goes straight to the leaves that this node remembers, so
that one hop is enough, and elsewhere by guesses (`probing`). `coverage` says what is still outstanding, `lanes` in
which order events go to a leaf: batches form by themselves, of what is published while an earlier batch is on its way.

Any member can send an `EventAck`. It counts only if its sender may be the root of the leaf's key (`nearness`), where
nobody can put himself on purpose. What the true root of a leaf says is believed. The nearer node because of which it
does not count may be dead without anybody having noticed: so the root of that key is looked up, and then the answer is
weighed once more.
"""

from __future__ import annotations

import math
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from msgspec.structs import replace

from peerd.api import HistorySize, Host, LookupResult, Metric, Part, SendRefusal, handles, on_timer
from peerd.errors import Unavailable
from peerd.ids import NodeId
from peerd.messages import Message, PeerRef
from protocols.pubsub.bodies import event_bytes, event_statement
from protocols.pubsub.config import PubSubConfig
from protocols.pubsub.delivering.ledger import LedgerBook
from protocols.pubsub.messages import EVENTS_BYTES_MAX, EVENTS_MAX, EventAck, EventBody, ProbePub
from protocols.pubsub.models import AckWord
from protocols.pubsub.names import EventId, Tree, key_of
from protocols.pubsub.ports import SchemaView, targets_of
from protocols.pubsub.publishing.answering import check_ack
from protocols.pubsub.publishing.coverage import Coverage
from protocols.pubsub.publishing.event import EventDraft
from protocols.pubsub.publishing.forwarding import Forwarding
from protocols.pubsub.publishing.handing_over import DIRECT_MIN
from protocols.pubsub.publishing.lanes import LaneBook, Patience, Spot
from protocols.pubsub.publishing.leaf_cache import LeafCache
from protocols.pubsub.publishing.outcomes import (
    LeafAnswer,
    OnResult,
    PendingPublish,
    PublishResult,
    PublishStatus,
    QueueFull,
)
from protocols.pubsub.publishing.probing import LevelGuide, probe_region
from protocols.pubsub.publishing.spread import AttributeCell, Batch, places_of
from protocols.pubsub.publishing.stragglers import Stragglers
from protocols.pubsub.publishing.tree_maps import TreeMaps
from protocols.pubsub.tree.cell_map import CellMap
from protocols.pubsub.tree.cells import WHOLE, level
from protocols.pubsub.tree.messages import LeafHelper
from protocols.pubsub.tree.nearness import is_near, may_be_root
from protocols.pubsub.tree.rendezvous import Rendezvous

UNDER_WAY_MAX: Final = 1024
"""Events of this node that are on their way or wait for their turn at a leaf; later ones wait in the queue."""
QUEUED_MAX: Final = 1024
"""Events that wait in the queue, besides what ``publish_queue`` says in bytes. Further ones wait at their clients, who
see so that the ring is slow; one that has been taken comes to its turn soon."""
RETRY_MAX_S: Final = 30.0
"""The pause before the next try doubles up to this."""
ATTEMPT_MAX: Final = 255
"""Tries are counted up to this in messages."""
CLOCK_GRAIN_S: Final = 1e-6
"""What is due within so little is due now: a timer may fire so much early by rounding."""
OUTCOMES_MAX: Final = 1024
"""Events that are over and still remembered, so that people can ask what became of them."""
OUTCOME_BYTES: Final = 1500
"""What one takes, with four answers, measured."""
WAITERS_MAX: Final = 1024
"""Clients that wait for room in the queue."""
ROOM_SHARE: Final = 0.75
"""There is room again once the queue has fallen to this share of what it may hold."""
DOUBTS_MAX: Final = 16
"""Keys that are looked up at a time because their root may be another node than the one that answered."""
DOUBT_TIMEOUT_S: Final = 5.0

METRICS: Final = (
    Metric("peerd_pubsub_published_total", "counter", "Events of this node's clients, ended.", ("status",)),
    Metric("peerd_pubsub_publish_duration_seconds", "histogram", "From publish to the last leaf's acknowledgement."),
    Metric("peerd_pubsub_publish_batches_total", "counter", "Batches of events that set out.", ("way",)),
    Metric("peerd_pubsub_publish_waiting_bytes", "gauge", "Events that wait or are on their way, bytes."),
    Metric(
        "peerd_pubsub_publish_given_up_total",
        "counter",
        "Events with an unknown outcome that were tried later, too, and in the end not any more.",
    ),
    Metric("peerd_pubsub_acks_ignored_total", "counter", "Acknowledgements from nodes that cannot be the leaf's root."),
)


@dataclass(frozen=True, slots=True)
class _Known:
    """What a publisher knows of a tree: leaves that it remembers, and those that it was told of."""

    tree: Tree
    leaves: CellMap[PeerRef] | None
    mapped: CellMap[bool] | None
    root: int | None
    """The leaf that is all of the tree, where one is remembered."""
    numbers: list[int] = field(default_factory=list)
    """The events that are planned now and go there."""


class Publishing(Part):
    """Publishes the events of this node's clients."""

    def __init__(
        self,
        host: Host,
        config: PubSubConfig,
        forwarding: Forwarding,
        guide: LevelGuide,
        rendezvous: Rendezvous,
        ledger: LedgerBook,
    ) -> None:
        self._host, self.config = host, config
        self._forwarding, self._guide, self._rendezvous, self._ledger = forwarding, guide, rendezvous, ledger
        self.cache = LeafCache(config.leaf_cache_max, config.leaf_cache_age)
        self.maps = TreeMaps()
        self.outcomes: OrderedDict[EventId, PublishResult] = OrderedDict()
        """What became of this node's last events."""
        self._next = 1
        self._queue: deque[PendingPublish] = deque()
        self._under_way: dict[int, PendingPublish] = {}
        self._bytes = 0
        self._lanes = LaneBook()
        self._patience = Patience()
        self._stragglers = Stragglers(
            lambda batch, places: forwarding.begin(batch, places, remembered=False),
            lambda count: host.count("peerd_pubsub_publish_given_up_total", count),
        )
        self._over: list[tuple[PublishResult, OnResult]] = []
        self._timer_at = math.inf
        self._waiting_for_room: deque[Callable[[], None]] = deque()
        self._doubts: set[NodeId] = set()
        """Keys that are being looked up, because it is not clear who their root is."""

    # Clients

    def enqueue(self, schema: SchemaView, draft: EventDraft, ack: AckWord | None, on_result: OnResult) -> EventId:
        """Publish an event, which sets out with others at the next `set_out`; that has to follow at once.

        ``on_result`` is called once, later. Raises `Unavailable` outside the ring, `QueueFull` (see `when_room`), and
        ``ValueError`` for an event that is too large.
        """
        if (outside := self._host.outside_reason()) is not None:
            raise Unavailable(f"{outside}, so it cannot publish")
        if not self.may_publish():
            waiting = f"{len(self._queue)} events wait to be published, of {self._bytes} bytes with those on their way"
            raise QueueFull(f"{waiting}; try again when some have gone")
        host = self._host
        wall_ms = round(1000 * host.wall_time())
        values = schema.pack(draft.values)
        what = values, draft.payload, draft.content_type, draft.retain, b"", draft.headers
        body = EventBody(host.peer, host.boot_epoch, self._next, wall_ms, *what)
        if schema.is_signed:
            body = replace(body, proof=host.sign(event_statement(schema.name, body)))
        size = event_bytes(body)
        if size > EVENTS_BYTES_MAX:
            raise ValueError(f"an event of {size} bytes, envelope included, is too large: at most {EVENTS_BYTES_MAX}")
        self._next += 1
        coverage = Coverage(targets_of(schema, body, draft.values))
        copies = self.config.event_copies if (ack or self.config.ack) == "replicated" else 0
        now = host.now()
        self._bytes += size
        self._queue.append(PendingPublish(body.sequence, body, schema, coverage, copies, now, size, on_result))
        return EventId(host.id, host.boot_epoch, body.sequence)

    def set_out(self) -> None:
        """Send what was entered with `enqueue`, as far as it may go now."""
        self._advance()
        self._arm()

    def may_publish(self) -> bool:
        """Whether the queue has room for another event."""
        return self._bytes < self.config.publish_queue and len(self._queue) < QUEUED_MAX

    def when_room(self, callback: Callable[[], None]) -> None:
        """Call back once when clients may publish again, later than now. Raises `Unavailable` when too many wait."""
        if len(self._waiting_for_room) >= WAITERS_MAX:
            raise Unavailable("too many clients wait to publish; try again later")
        self._waiting_for_room.append(callback)
        self._arm()

    def end(self, why: str) -> None:
        """This instance publishes no more, perhaps because it has failed: tell every client what is known."""
        over, now = [*self._under_way.values(), *self._queue], self._host.now()
        self._under_way.clear()
        self._lanes, self._bytes = LaneBook(), 0
        self._queue.clear()
        for event in over:
            event.reason = why
            event.on_result(event.outcome(PublishStatus.UNKNOWN if event.tries else PublishStatus.FAILED, now, ()))
        while self._waiting_for_room:
            self._waiting_for_room.popleft()()

    def pending(self, event: EventId) -> PendingPublish | None:
        """An event of this node that is not done yet; `outcomes` has those that are."""
        if (event.publisher, event.epoch) != (self._host.id, self._host.boot_epoch):
            return None
        found = self._under_way.get(event.sequence)
        return found or next((each for each in self._queue if each.number == event.sequence), None)

    # Setting out

    def _advance(self, spots: Iterable[Spot] = ()) -> None:
        """Take events from the queue, and send what may go now because of that or of what happened to these spots."""
        added: dict[Spot, None] = {}
        trees: dict[tuple[str, int], _Known] = {}
        while self._queue and len(self._under_way) < UNDER_WAY_MAX:
            self._plan(self._queue.popleft(), trees, added)
        for known in trees.values():
            if known.root is not None:
                added[self._lanes.add(known.tree, known.root, *known.numbers, is_leaf=True)] = None
        self._set_out(spots, added)
        self._host.gauge("peerd_pubsub_publish_waiting_bytes", self._bytes)

    def _plan(self, event: PendingPublish, trees: dict[tuple[str, int], _Known], added: dict[Spot, None]) -> None:
        """Choose the cells that an event goes to first: remembered leaves, and guesses where none is remembered.

        ``trees``: what is known of them, for all events that are planned now.
        """
        self._under_way[event.number] = event
        event.planned_s = self._host.now()
        schema = event.schema.name
        for attribute in sorted(event.coverage.trees):
            known = trees.get((schema, attribute))
            if known is None:
                known = trees[schema, attribute] = self._known(Tree(schema, attribute))
            if known.root is not None:  # it is one leaf, whatever the event's target
                event.coverage.expect(attribute, (known.root,))
                known.numbers.append(event.number)
            else:
                self._probe(event, known, added)
        if event.coverage.is_complete:  # there is no tree in which a subscription could match it
            self._finish(event, PublishStatus.RECEIVED)

    def _known(self, tree: Tree) -> _Known:
        leaves = self.cache.known(tree, self._host.now())
        root = None if leaves is None else leaves.at(WHOLE)
        return _Known(tree, leaves, self.maps.of(tree) if self.config.tree_maps else None, root)

    def _probe(self, event: PendingPublish, known: _Known, added: dict[Spot, None]) -> None:
        host, tree, mapped = self._host, known.tree, known.mapped
        target = event.coverage.target(tree.attribute)
        assert target is not None
        how = self.config.probe_probability, *self._guide.range_of(tree)
        leaves, guesses = probe_region(target, host.rng, *how, known.leaves, mapped)
        is_asked_for = mapped is not None and any(cell not in mapped for cell in guesses)
        if is_asked_for and self.maps.may_ask(tree, host.now()):
            self._rendezvous.ask_leaves(tree, partial(self.maps.told, tree))
        event.coverage.expect(tree.attribute, (*leaves, *guesses))
        for cell in leaves:
            added[self._lanes.add(tree, cell, event.number, is_leaf=True)] = None
        for cell in guesses:
            is_leaf = mapped is not None and bool(mapped.get(cell))
            added[self._lanes.add(tree, cell, event.number, is_leaf=is_leaf)] = None

    def _set_out(self, spots: Iterable[Spot], added: Iterable[Spot]) -> None:
        """Send a batch down every lane that has become free, lanes with the same events together."""
        # Where events are handed over, helpers are drawn anew for each batch, and one would overtake the other.
        flights_max = 1 if self._forwarding.handing_over.is_on else self._patience.flights_max(self._host.now())
        groups: dict[tuple[str, tuple[int, ...], int, bool, int], list[AttributeCell]] = {}
        for tree, cell, ready in self._lanes.free(spots, added, flights_max):
            while ready:
                numbers = self._fitting(ready)
                attempt = self._lanes.attempt(tree, cell, numbers)
                now, first_s = self._host.now(), self._patience.pause_s(self.config.publish_retry, len(numbers))
                pause = min(first_s * 2 ** min(attempt, 16), RETRY_MAX_S)
                after = self._lanes.last_flying(tree, cell)
                self._lanes.set_out(tree, cell, numbers, now + pause, now)
                key = tree.schema, tuple(numbers), attempt, self._lanes.is_leaf(tree, cell), after
                groups.setdefault(key, []).append((tree.attribute, cell))
                is_over = len(numbers) == len(ready)
                ready = [] if is_over else self._lanes.ready(tree, cell, flights_max)
        for (schema, events, attempt, is_leaf, after), places in groups.items():
            self._send(self._batch(schema, events, attempt, after), places, is_leaf)

    def _fitting(self, numbers: list[int]) -> list[int]:
        """As many of these events, from the first on, as fit into one message."""
        size, fitting = 0, []
        for number in numbers[:EVENTS_MAX]:
            size += self._under_way[number].bytes
            if size > EVENTS_BYTES_MAX:
                break
            fitting.append(number)
        return fitting

    def _batch(self, schema: str, numbers: tuple[int, ...], attempt: int, after: int) -> Batch:
        events = [self._under_way[number] for number in numbers]
        for event in events:
            event.tries = max(event.tries, attempt + 1)
        copies = max(event.copies for event in events)
        bodies = tuple(event.body for event in events)
        return Batch(schema, self._host.peer, bodies, copies, min(attempt, ATTEMPT_MAX), after)

    def _send(self, batch: Batch, places: list[AttributeCell], is_leaf: bool) -> None:
        """Send to cells that are all remembered leaves, or all guesses.

        What replaces a value of its key goes to the roots, and not to their helpers: it may be another publisher's.
        """
        by_owner: dict[PeerRef, list[AttributeCell]] = {}
        rest: list[AttributeCell] = []
        if is_leaf and not batch.attempt and not any(event.retain for event in batch.events):
            places = self._send_to_helpers(batch, places)
        for place in places:
            owner = self.cache.owner(Tree(batch.schema, place[0]), place[1]) if is_leaf else None
            if owner is None or owner.id == self._host.id:
                rest.append(place)
            else:
                by_owner.setdefault(owner, []).append(place)
        # Those with a link come first, so that events for more leaves than these do not open other links each time.
        most_first = sorted(by_owner, key=lambda to: (self._host.peer_version(to) is None, -len(by_owner[to])))
        is_heavy = len(by_owner) >= DIRECT_MIN and self._forwarding.hands_over(batch)
        direct_max = 0 if is_heavy else self.config.direct_max
        for owner in most_first[:direct_max]:
            self._host.count("peerd_pubsub_publish_batches_total", way="direct")
            self._forwarding.send_direct(owner, batch, by_owner[owner])
        for owner in most_first[direct_max:]:
            rest += by_owner[owner]
        if rest:
            self._host.count("peerd_pubsub_publish_batches_total", way="overlay")
            self._forwarding.begin(batch, rest, remembered=is_leaf)

    def _send_to_helpers(self, batch: Batch, places: list[AttributeCell]) -> list[AttributeCell]:
        """Send to those who help the roots of some of these leaves; returns the others."""
        by_helper: dict[PeerRef, list[AttributeCell]] = {}
        others: list[AttributeCell] = []
        for place in places:
            helper = self.cache.helper(Tree(batch.schema, place[0]), place[1])
            (others if helper is None else by_helper.setdefault(helper, [])).append(place)
        for helper, found in by_helper.items():
            self._host.count("peerd_pubsub_publish_batches_total", way="helper")
            self._forwarding.send_direct(helper, batch, found, is_lent=True)
        return others

    # Answers

    @handles(LeafHelper)
    def on_helper(self, message: LeafHelper, source: PeerRef) -> None:
        """The root of a leaf wants this node's events to go to another one."""
        tree = Tree(message.schema, message.attribute)
        self.cache.helped(tree, message.cell, message.helper, source.id, self._host.now())

    @handles(EventAck)
    def on_ack(self, ack: EventAck, source: PeerRef) -> None:
        """A leaf has these events, or some node does not take them."""
        check_ack(ack)
        if ack.epoch != self._host.boot_epoch:
            return
        matched = dict(zip(ack.sequences, ack.matched, strict=True)) if not ack.failed else {}
        events = [self._under_way[number] for number in sorted(set(ack.sequences)) if number in self._under_way]
        events = [event for event in events if event.schema.name == ack.schema]
        spots: list[Spot] = []
        is_of_interest = events or any(number in self._stragglers for number in ack.sequences)
        for attribute, cell in places_of(ack.covered) if is_of_interest else ():
            tree = Tree(ack.schema, attribute)
            if ack.failed and ack.retry_ms:
                self._put_off(tree, cell, events, ack)
            elif level(cell) > self.config.level_max:  # no leaf is so deep
                self._host.count("peerd_pubsub_acks_ignored_total")
            elif not self._may_answer(tree, cell, source.id, key := key_of(tree, cell)):
                self._host.count("peerd_pubsub_acks_ignored_total")
                self._doubt(key, ack, source)
            elif ack.failed:
                spots += self._refused(events, ack.failed)
            else:
                self._stragglers.covered(ack.schema, attribute, cell, ack.sequences, self._host.now())
                spots += self._covered(tree, cell, events, source, matched, ack.copies)
        self._advance(spots)
        self._tell()

    def _may_answer(self, tree: Tree, cell: int, node: NodeId, key: NodeId) -> bool:
        """Whether a node may be the root of a leaf, or is a helper that the root has named."""
        return self.cache.is_helper(tree, cell, node) or may_be_root(self._host, node, key)

    def awaits(self, ack: EventAck) -> bool:
        """Whether an answer is about an event of this node that is not over."""
        return any(number in self._under_way or number in self._stragglers for number in ack.sequences)

    def _doubt(self, key: NodeId, ack: EventAck, source: PeerRef) -> None:
        """Someone nearer to a leaf's key is known than the node that answers for it. Find out whether that one lives.

        Events come to a deep leaf by way of its parents, so nothing else that this node sends need go to its key. A
        lookup does, and is acknowledged hop by hop: it shows the overlay who on the way is dead.
        """
        if key in self._doubts or len(self._doubts) >= DOUBTS_MAX or not is_near(self._host, source.id, key):
            return

        def done(result: LookupResult) -> None:
            self._doubts.discard(key)
            if may_be_root(self._host, source.id, key):
                self.on_ack(ack, source)

        self._doubts.add(key)
        try:
            self._host.lookup(key, done, DOUBT_TIMEOUT_S)
        except Unavailable:
            self._doubts.discard(key)

    def _covered(
        self,
        tree: Tree,
        leaf: int,
        events: list[PendingPublish],
        owner: PeerRef,
        matched: dict[int, int],
        copies: int,
    ) -> list[Spot]:
        """A leaf of the tree has these events. ``matched`` is of all leaves of an answer: the first one takes it."""
        now = self._host.now()
        is_helper = self.cache.is_helper(tree, leaf, owner.id)
        is_helper = is_helper and not may_be_root(self._host, owner.id, key_of(tree, leaf))  # it may be root by now
        if is_helper:
            self.cache.helper_answered(tree, leaf, now)
        else:
            self.cache.answered(tree, leaf, owner, now)
        self.maps.answered(tree, leaf)
        self._guide.saw(tree, level(leaf))
        if events and (since_s := self._lanes.since_s(tree, leaf, events[0].number)) is not None:
            self._patience.answered(now - since_s)
            if not is_helper and not events[0].body.retain:
                self.cache.root_answered(tree, leaf, since_s)
        spots: list[Spot] = [(tree, leaf)]
        answer, visited = LeafAnswer(tree.attribute, leaf, owner), []
        for event in events:
            if event.number not in self._under_way:
                continue
            if event.coverage.visit(tree.attribute, leaf):
                visited.append(event.number)
            elif (change := event.coverage.cover(tree.attribute, leaf)).gone:
                spots += self._lanes.change(tree, event.number, change, leaf)
            else:
                continue
            event.answered(answer, matched.pop(event.number, 0), copies)
            if event.coverage.is_complete:
                is_replicated = event.copies > 0 and event.copies_held > 0
                self._finish(event, PublishStatus.REPLICATED if is_replicated else PublishStatus.RECEIVED)
        self._lanes.remove(tree, leaf, *visited)
        return [*spots, *self._refine(tree, leaf)]

    def _refine(self, tree: Tree, leaf: int) -> list[Spot]:
        """Later events that were to go to a leaf, or to cells above or below it, go to the leaf, and are no guesses."""
        self._lanes.is_a_leaf(tree, leaf)
        spots: list[Spot] = []
        for number in self._lanes.near(tree, leaf):
            change = self._under_way[number].coverage.refine(tree.attribute, leaf)
            spots += self._lanes.change(tree, number, change, leaf)
        return spots

    def _put_off(self, tree: Tree, cell: int, events: list[PendingPublish], ack: EventAck) -> None:
        """Somebody on the way takes no more for a while: the next try is due then."""
        for event in events:
            event.reason = ack.failed
        if events:
            self._patience.refused(self._host.now())
        due_s = self._host.now() + ack.retry_ms / 1000
        self._lanes.put_off(tree, cell, {event.number for event in events}, due_s)

    def _refused(self, events: list[PendingPublish], why: str) -> list[Spot]:
        spots = []
        for event in events:
            if event.number in self._under_way:
                event.reason = why
                spots += self._finish(event, PublishStatus.FAILED)
        return spots

    def send_refused(self, peer: PeerRef, message_type: type[Message], reason: SendRefusal) -> None:
        """A node cannot be reached: its leaves will have other roots."""
        if message_type is ProbePub and reason is SendRefusal.PEER_DOWN:
            self.cache.forget_owner(peer.id)

    # Time

    def _arm(self) -> None:
        """Have `look` called when something is due."""
        given_up_s = self._lanes.oldest_s + self.config.publish_timeout
        due_s = min(self._lanes.due_s, given_up_s, self._stragglers.due_s)
        if self._over or (self._waiting_for_room and self._has_room):
            due_s = self._host.now()
        if self._timer_at <= due_s:
            return  # at the latest then, it is looked at what is due next
        if self._timer_at < math.inf:
            self._host.cancel_timer("publish_due")
        self._host.set_timer("publish_due", max(0.0, due_s - self._host.now()))
        self._timer_at = due_s

    @on_timer("publish_due")
    def look(self, payload: None) -> None:
        """Try again what has not been acknowledged in time, and give up what has been tried for long enough."""
        self._timer_at = math.inf
        now = self._host.now() + CLOCK_GRAIN_S
        spots = self._lanes.overdue(now)
        for tree, cell in spots:
            self.cache.forget(tree, cell)
            self.maps.not_answered(tree, cell)
        spots += self._expire(now)
        self._stragglers.look(now, self._host.peer)
        self._advance(spots)
        self._tell()

    def _expire(self, now: float) -> list[Spot]:
        """Give up what set out so long ago that there should have been an answer.

        And what could not even set out for as long, because it waits for the same leaf: else a leaf that never answers
        would hold back what comes behind, batch by batch.
        """
        begun_s = now - self.config.publish_timeout
        late, waiting = self._lanes.late(begun_s)
        waiting = [number for number in waiting if self._under_way[number].planned_s <= begun_s]
        return [spot for number in (*late, *waiting) for spot in self._give_up(self._under_way[number], now)]

    def _give_up(self, event: PendingPublish, now: float) -> list[Spot]:
        if event.tries:
            event.reason = event.reason or "not all leaves have answered"
            self._stragglers.add(event, now)
            return self._finish(event, PublishStatus.UNKNOWN)
        event.reason = event.reason or "it has not been sent: earlier events to the same leaves have not been answered"
        return self._finish(event, PublishStatus.FAILED)

    # The end

    def _finish(self, event: PendingPublish, status: PublishStatus) -> list[Spot]:
        """An event is over; returns the spots that it has left."""
        del self._under_way[event.number]
        self._bytes -= event.bytes
        schema = event.schema.name
        outstanding = event.coverage.outstanding
        missing = [(attribute, cell) for attribute in sorted(outstanding) for cell in sorted(outstanding[attribute])]
        spots = [self._lanes.remove(Tree(schema, attribute), cell, event.number) for attribute, cell in missing]
        self._over.append((event.outcome(status, self._host.now(), missing), event.on_result))
        return spots

    def _tell(self) -> None:
        """Tell clients what is over. They may publish again at once, so nothing is done after this."""
        over, self._over = self._over, []
        for status, count in Counter(outcome.status for outcome, _ in over).items():
            self._host.count("peerd_pubsub_published_total", count, status=status.value)
        for outcome, on_result in over:
            self.outcomes[outcome.event] = outcome
            while len(self.outcomes) > OUTCOMES_MAX:
                self.outcomes.popitem(last=False)
            self._host.observe("peerd_pubsub_publish_duration_seconds", outcome.duration_s)
            self._ledger.published(outcome.event)
            self._host.emit(outcome.told())
            on_result(outcome)
        while self._waiting_for_room and self._has_room:
            self._waiting_for_room.popleft()()
        self._arm()

    def history(self) -> HistorySize:
        """What is remembered of events that are over."""
        count = len(self.outcomes)
        return HistorySize("outcomes of own events", count, count * OUTCOME_BYTES, OUTCOMES_MAX * OUTCOME_BYTES)

    @property
    def _has_room(self) -> bool:
        return self._bytes <= ROOM_SHARE * self.config.publish_queue and len(self._queue) <= ROOM_SHARE * QUEUED_MAX

    def validate(self) -> None:
        """Assert the invariants."""
        self._lanes.validate()
        self.cache.validate()
        self.maps.validate()
        self._stragglers.validate()
        assert len(self._under_way) <= UNDER_WAY_MAX
        assert len(self._queue) <= QUEUED_MAX
        assert self._bytes == sum(event.bytes for event in (*self._under_way.values(), *self._queue))
        assert len(self._doubts) <= DOUBTS_MAX
        assert self._timer_at < math.inf or not (self._under_way or self._queue or self._over)
