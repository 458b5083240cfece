"""Which of this node's own subscriptions an event is for: the exact check at the subscriber, and each event once."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from peerd.api import HistorySize, Host
from peerd.ids import NodeId
from peerd.lib.feed import FeedLoss
from protocols.pubsub.bodies import id_of
from protocols.pubsub.config import PubSubConfig
from protocols.pubsub.delivering.losses import LossReason, LostEvents, shown_loss
from protocols.pubsub.matching.index import LeafIndex, index_of
from protocols.pubsub.messages import SINCE_RETAINED, EventBody, SubObject
from protocols.pubsub.names import EVERY, EventId, SubscriptionKey
from protocols.pubsub.ports import SchemaView, Values
from protocols.pubsub.subscribing.inlets import TakenEvent, taken
from protocols.pubsub.subscribing.writes import Writes
from protocols.pubsub.tree.cells import WHOLE

TAKEN_BYTES: Final = 260
"""What remembering an event takes that was taken, measured."""
PAUSE_MS: Final = 200
"""How long senders wait when a reader that blocks is slow."""
SCHEMA_PAUSE_MS: Final = 500
"""How long a sender waits whose schema this node has to look up first."""
EXPECTED_S: Final = 120.0
"""So long senders are told to wait for a subscription that was brought back and does not know its schema. After that
its events are counted as missed, so that those of others can go on."""
HERE: Final = (EVERY, WHOLE)
"""Where all local filters are, for an index that asks for a tree and a cell."""


class LocalReceiver(Protocol):
    """A local subscription, as far as events are concerned."""

    @property
    def number(self) -> int:
        """Which one it is on this node."""

    @property
    def group(self) -> str: ...
    @property
    def since_ms(self) -> int:
        """It also wants what was published since then; 0: nothing of before."""

    @property
    def may_block(self) -> bool:
        """Whether senders are to wait for its readers."""

    @property
    def is_blocked(self) -> bool:
        """Whether they are to wait now."""

    def give(self, item: TakenEvent, writes: Writes) -> None: ...
    def note_duplicate(self) -> None: ...
    def note_lost(self, loss: FeedLoss, writes: Writes) -> None:
        """At most so many events that it would have got were dropped on their way."""

    def fail(self, why: str) -> None:
        """Its filter cannot be tried on an event, and why not."""

    def believes(self, leaf: NodeId, count: int) -> int:
        """How many of these events it takes for lost because this node says so."""


@dataclass(eq=False, slots=True)
class Entry:
    """One filter of a subscription, which leaves may know under the number ``sub.sid``.

    Only events of the ``is_current`` one are given to the subscription, but for groups.
    """

    receiver: LocalReceiver
    sub: SubObject
    is_current: bool
    is_past_told: bool = False
    """Its readers know that leaves do not remember all that it asked for of the past."""

    @property
    def key(self) -> SubscriptionKey:
        """Its key in the index of this node."""
        return self.sub.key


@dataclass(slots=True)
class _Side:
    """The filters of one schema."""

    schema: SchemaView
    index: LeafIndex
    entries: dict[SubscriptionKey, Entry] = field(default_factory=dict)


class TakenWindow:
    """The last events that this node has taken, each with the subscriptions that got it."""

    def __init__(self, count_max: int) -> None:
        self._count_max = count_max
        self._given: OrderedDict[EventId, tuple[int, ...]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._given)

    def history(self) -> HistorySize:
        """What is remembered of them."""
        count = len(self._given)
        return HistorySize("events taken", count, count * TAKEN_BYTES, self._count_max * TAKEN_BYTES)

    def given(self, event: EventId) -> tuple[int, ...] | None:
        """The numbers of those who got it; ``None`` for an event that is not known (any more)."""
        return self._given.get(event)

    def note(self, event: EventId, numbers: tuple[int, ...]) -> None:
        """Remember who got it."""
        self._given[event] = numbers
        if len(self._given) > self._count_max:
            self._given.popitem(last=False)

    def forget(self, event: EventId, number: int) -> None:
        """One did not get it after all: it is given it when the event comes again."""
        if (numbers := self._given.get(event)) is not None:
            self._given[event] = tuple(each for each in numbers if each != number)


class LocalSubscriptions:
    """The subscriptions of this node's own clients, as delivery sees them."""

    def __init__(self, host: Host, config: PubSubConfig, make: Callable[[SchemaView], LeafIndex] = index_of) -> None:
        self._host, self._make_index = host, make
        self.window = TakenWindow(config.dedupe_window)
        self._writes = Writes()
        self._sides: dict[str, _Side] = {}
        self._blocking: dict[Entry, None] = {}
        self._expected: dict[LocalReceiver, tuple[str, float]] = {}
        """Subscriptions that were brought back and whose filter cannot be read yet: their schema, and until when
        senders wait for them."""

    # The filters

    def expect(self, receiver: LocalReceiver, schema: str) -> None:
        """A subscription was brought back, and has no filter before its schema is known: see `must_pause`."""
        self._expected[receiver] = schema, self._host.now() + EXPECTED_S

    def expect_no_more(self, receiver: LocalReceiver) -> None:
        """It has its filter now, or is over."""
        self._expected.pop(receiver, None)

    def note_unread(self, schema: str) -> bool:
        """An event has come. Subscriptions to its schema whose filter cannot be read hear that they may miss it;
        whether there are any."""
        unread = [receiver for receiver, (name, _) in self._expected.items() if name == schema]
        for receiver in unread:
            receiver.note_lost(shown_loss(LostEvents(LossReason.NO_SCHEMA, 1), self._host.id), self._writes)
        return bool(unread)

    def add(
        self, receiver: LocalReceiver, schema: SchemaView, sid: int, filter_text: str, *, is_current: bool
    ) -> Entry:
        """Add a filter, whose number leaves know or will know. ``is_current`` may be changed later."""
        sub = SubObject(self._host.peer, sid, 0, 0, EVERY, 0, 0, filter_text, receiver.group)
        entry = Entry(receiver, sub, is_current)
        side = self._side(schema)
        side.index.add(entry.key, HERE, sub)
        side.entries[entry.key] = entry
        if receiver.may_block:
            self._blocking[entry] = None
        return entry

    def remove(self, schema: str, entry: Entry) -> None:
        """Forget a filter; harmless when it is forgotten already."""
        side = self._sides.get(schema)
        if side is None or side.entries.pop(entry.key, None) is None:
            return
        side.index.remove(entry.key, HERE)
        self._blocking.pop(entry, None)
        if not side.entries:
            del self._sides[schema]

    def has(self, schema: str) -> bool:
        """Whether there is any filter for events of this schema."""
        return schema in self._sides

    def _side(self, schema: SchemaView) -> _Side:
        side = self._sides.get(schema.name)
        if side is None:
            side = self._sides[schema.name] = _Side(schema, self._make_index(schema))
        elif side.schema.version < schema.version:  # it has attributes now that the index does not know
            side.schema, side.index = schema, self._make_index(schema)
            for key, entry in side.entries.items():
                side.index.add(key, HERE, entry.sub)
        return side

    # Events

    def take(self, schema: SchemaView, event: EventBody, values: Values, chosen: Sequence[int], replay: bool) -> bool:
        """Give an event to the local subscriptions that it matches, each once; whether there was any that did.

        An event that was taken before is dropped, and counts as wanted.
        """
        is_unread = bool(self._expected) and self.note_unread(schema.name)
        name = id_of(event)
        given = self.window.given(name)
        entries = self._matching(schema, values)
        if not entries:
            return given is not None or is_unread
        wanting = (entry.receiver for entry in entries if self._is_for(entry, event, chosen, replay))
        receivers = {receiver.number: receiver for receiver in wanting}
        before = given or ()
        new = sorted(number for number in receivers if number not in before)
        for number in before:
            if number in receivers:
                receivers[number].note_duplicate()
                self._host.count("peerd_pubsub_received_total", outcome="duplicate")
        if new:
            self.window.note(name, (*before, *new))
            self._give(name, schema, event, values, replay, [receivers[number] for number in new])
        return True

    def _give(
        self,
        name: EventId,
        schema: SchemaView,
        event: EventBody,
        values: Values,
        replay: bool,
        receivers: Sequence[LocalReceiver],
    ) -> None:
        item = taken(name, event, schema.visible(values), replay, round(self._host.wall_time() * 1000))
        for receiver in receivers:
            receiver.give(item, self._writes)
        self._host.count("peerd_pubsub_received_total", len(receivers), outcome="taken")

    def new_writes(self) -> Writes:
        """What is taken from now on is written as part of what is returned: for who has to wait for the disk."""
        self._writes = Writes()
        return self._writes

    def note_lost(self, schema: str, losses: Sequence[LostEvents], leaf: NodeId) -> None:
        """A leaf has dropped so many events of a schema for this node: its readers are told that some are missing.

        Which subscriptions they were for is not known.
        """
        if not losses or schema not in self._sides:
            return
        for lost in losses:
            believed = 0
            for entry in self._sides[schema].entries.values():
                if entry.is_current and not entry.receiver.group:
                    count = entry.receiver.believes(leaf, lost.count)
                    believed = max(believed, count)
                    if count:
                        loss = shown_loss(LostEvents(lost.reason, count), leaf)
                        entry.receiver.note_lost(loss, self._writes)
            self._host.count("peerd_pubsub_received_total", believed, outcome="lost_before")
            self._host.count("peerd_pubsub_received_total", lost.count - believed, outcome="lost_doubtful")

    def note_past(self, schema: str, sid: int, leaf: NodeId) -> None:
        """A leaf does not remember all that one subscription asks for of the past: its readers are told, once."""
        side = self._sides.get(schema)
        entry = None if side is None else side.entries.get(SubscriptionKey(self._host.id, sid, 0))
        if entry is not None and entry.receiver.since_ms and not entry.is_past_told:
            entry.is_past_told = True
            entry.receiver.note_lost(shown_loss(LostEvents(LossReason.PAST, 0), leaf), self._writes)

    def must_pause(self, schema: str) -> int:
        """0, or for how many milliseconds senders should keep what they have, because a reader that blocks is slow, or
        a subscription to this schema that was brought back does not know it yet."""
        if self._expected:
            now = self._host.now()
            if any(name == schema and now < until for name, until in self._expected.values()):
                return SCHEMA_PAUSE_MS
        return PAUSE_MS if any(entry.receiver.is_blocked for entry in self._blocking) else 0

    def _matching(self, schema: SchemaView, values: Values) -> list[Entry]:
        if schema.name not in self._sides:
            return []
        side = self._side(schema)
        found = [side.entries[sub.key] for sub in side.index.match(values, (HERE,))]
        failed = side.index.failed
        if failed:
            for entry in [entry for entry in found if entry.sub.filter in failed]:
                self._host.count("peerd_pubsub_failed_filters_total")
                entry.receiver.fail(failed[entry.sub.filter])
            found = [entry for entry in found if entry.sub.filter not in failed]
        return found

    @staticmethod
    def _is_for(entry: Entry, event: EventBody, chosen: Sequence[int], replay: bool) -> bool:
        """Whether a subscription is to get an event that this filter of it matches."""
        receiver = entry.receiver
        if replay and not (0 < receiver.since_ms <= event.published_ms or receiver.since_ms == SINCE_RETAINED):
            return False
        if receiver.group:
            # While a member changes its filter, leaves choose it by either; nobody else gets what it was chosen for.
            return entry.sub.sid in chosen
        return entry.is_current
