"""Which of this node's own subscriptions an event is for: the exact check at the subscriber, and each event once."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from peerd.api import History, Host
from protocols.pubsub.bodies import id_of
from protocols.pubsub.cells import WHOLE
from protocols.pubsub.config import PubSubConfig
from protocols.pubsub.messages import SINCE_RETAINED, EventBody, SubObject
from protocols.pubsub.names import EVERY, EventId, SubscriptionKey
from protocols.pubsub.ports import SchemaView, Values
from protocols.pubsub.subscribing.inlets import TakenEvent, taken
from protocols.pubsub.subscribing.writes import Writes

TAKEN_BYTES: Final = 260
"""What remembering an event takes that was taken, measured."""
PAUSE_MS: Final = 200
"""How long senders wait when a reader that blocks is slow."""
HERE: Final = (EVERY, WHOLE)
"""Where all local filters are, for an index that asks for a tree and a cell."""


class SubscriptionIndex(Protocol):
    """The shared index of one schema's subscriptions: the one that leaves use."""

    def add(self, key: SubscriptionKey, cell: int, sub: SubObject, /) -> None: ...
    def remove(self, key: SubscriptionKey, attribute: int, cell: int, /) -> object: ...
    def match(self, values: Values, cells: Sequence[tuple[int, int]], /) -> list[SubObject]: ...


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
    def note_lost(self, count: int) -> None:
        """At most so many events that it would have got were dropped on their way."""


@dataclass(eq=False, slots=True)
class Entry:
    """One filter of a subscription, which leaves may know under the number ``sub.sid``.

    Only events of the ``is_current`` one are given to the subscription, but for groups.
    """

    receiver: LocalReceiver
    sub: SubObject
    is_current: bool

    @property
    def key(self) -> SubscriptionKey:
        """Its key in the index of this node."""
        return _key(self.sub)


def _key(sub: SubObject) -> SubscriptionKey:
    return SubscriptionKey(sub.subscriber.id, sub.sid, sub.piece)


@dataclass(slots=True)
class _Side:
    """The filters of one schema."""

    schema: SchemaView
    index: SubscriptionIndex
    entries: dict[SubscriptionKey, Entry] = field(default_factory=dict)


class TakenWindow:
    """The last events that this node has taken, each with the subscriptions that got it."""

    def __init__(self, count_max: int) -> None:
        self._count_max = count_max
        self._given: OrderedDict[EventId, tuple[int, ...]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._given)

    def history(self) -> History:
        """What is remembered of them."""
        count = len(self._given)
        return History("events taken", count, count * TAKEN_BYTES, self._count_max * TAKEN_BYTES)

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
    """Implements `protocols.pubsub.ports.Subscribers`."""

    def __init__(self, host: Host, config: PubSubConfig, index_of: Callable[[SchemaView], SubscriptionIndex]) -> None:
        self._host, self._index_of = host, index_of
        self.window = TakenWindow(config.dedupe_window)
        self._writes = Writes()
        self.on_taken: Callable[[EventId, str, Sequence[int], float], None] | None = None
        """Told of each event that some subscriptions were given: its id, schema, subscriptions, and the seconds since
        it was published, by the two clocks. Set by who makes the parts."""
        self._sides: dict[str, _Side] = {}
        self._blocking: dict[Entry, None] = {}

    # The filters

    def add(
        self, receiver: LocalReceiver, schema: SchemaView, sid: int, filter_text: str, *, is_current: bool
    ) -> Entry:
        """Add a filter, whose number leaves know or will know. ``is_current`` may be changed later."""
        sub = SubObject(self._host.peer, sid, 0, 0, EVERY, 0, 0, filter_text, receiver.group)
        entry = Entry(receiver, sub, is_current)
        side = self._side(schema)
        side.index.add(entry.key, WHOLE, sub)
        side.entries[entry.key] = entry
        if receiver.may_block:
            self._blocking[entry] = None
        return entry

    def remove(self, schema: str, entry: Entry) -> None:
        """Forget a filter; harmless when it is forgotten already."""
        side = self._sides.get(schema)
        if side is None or side.entries.pop(entry.key, None) is None:
            return
        side.index.remove(entry.key, *HERE)
        self._blocking.pop(entry, None)
        if not side.entries:
            del self._sides[schema]

    def has(self, schema: str) -> bool:
        """Whether there is any filter for events of this schema."""
        return schema in self._sides

    def _side(self, schema: SchemaView) -> _Side:
        side = self._sides.get(schema.name)
        if side is None:
            side = self._sides[schema.name] = _Side(schema, self._index_of(schema))
        elif side.schema.version < schema.version:  # it has attributes now that the index does not know
            side.schema, side.index = schema, self._index_of(schema)
            for key, entry in side.entries.items():
                side.index.add(key, WHOLE, entry.sub)
        return side

    # Events

    def take(self, schema: SchemaView, event: EventBody, values: Values, chosen: Sequence[int], replay: bool) -> bool:
        """See `protocols.pubsub.ports.Subscribers.take`."""
        name = id_of(event)
        given = self.window.given(name)
        entries = list(self._matching(schema, values))
        if not entries:
            return given is not None
        wanting = (entry.receiver for entry in entries if self._is_for(entry, event, chosen, replay))
        receivers = {receiver.number: receiver for receiver in wanting}
        before = given or ()
        new = sorted(receivers.keys() - set(before))
        for number in sorted(receivers.keys() - set(new)):
            receivers[number].note_duplicate()
            self._host.count("peerd_pubsub_received_total", outcome="duplicate")
        if new:
            self.window.note(name, (*before, *new))
            self._give(schema, event, values, replay, [receivers[number] for number in new])
        return True

    def _give(
        self, schema: SchemaView, event: EventBody, values: Values, replay: bool, receivers: Sequence[LocalReceiver]
    ) -> None:
        now_s = self._host.wall_time()
        item = taken(event, schema.visible(values), replay, round(now_s * 1000))
        for receiver in receivers:
            receiver.give(item, self._writes)
        self._host.count("peerd_pubsub_received_total", len(receivers), outcome="taken")
        if self.on_taken is not None:
            numbers = [receiver.number for receiver in receivers]
            self.on_taken(item.id, schema.name, numbers, max(0.0, now_s - event.published_ms / 1000))

    def new_writes(self) -> Writes:
        """What is taken from now on is written as part of what is returned: for who has to wait for the disk."""
        self._writes = Writes()
        return self._writes

    def note_lost(self, schema: str, count: int) -> None:
        """See `protocols.pubsub.ports.Subscribers.note_lost`."""
        if not count or schema not in self._sides:
            return
        self._host.count("peerd_pubsub_received_total", count, outcome="lost_before")
        for entry in self._sides[schema].entries.values():
            if entry.is_current and not entry.receiver.group:
                entry.receiver.note_lost(count)

    def must_pause(self) -> int:
        """See `protocols.pubsub.ports.Subscribers.must_pause`."""
        return PAUSE_MS if any(entry.receiver.is_blocked for entry in self._blocking) else 0

    def _matching(self, schema: SchemaView, values: Values) -> Iterator[Entry]:
        if schema.name not in self._sides:
            return
        side = self._side(schema)
        for sub in side.index.match(values, (HERE,)):
            yield side.entries[_key(sub)]

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
