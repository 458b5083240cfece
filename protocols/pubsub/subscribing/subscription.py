"""One subscription of a client of this node: what it wants, its filters, its feed, and what has become of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Final, Protocol

from peerd.ids import NodeId, format_id
from peerd.lib.feed import Feed, FeedLoss, Policy
from peerd.lib.filter import Node
from protocols.pubsub.delivering.losses import LossReason
from protocols.pubsub.models import MissedEvents, ReceivedEvent, SubscriptionView
from protocols.pubsub.ports import PiecePoint, SchemaView
from protocols.pubsub.subscribing.inlets import DurableInlet, MemoryInlet, TakenEvent
from protocols.pubsub.subscribing.installer import Placement
from protocols.pubsub.subscribing.local import Entry
from protocols.pubsub.subscribing.writes import Writes

Told = SubscriptionView | Exception
"""How a subscription, or a change of one, ended: what it is now, or why not."""
DOUBTFUL_MAX: Final = 100
"""So many events a subscription takes for lost because a node says so that has no piece of it: one that had it, and
has dropped events, or one that makes them up."""
MISSED_KEPT_MAX: Final = 16
"""By so many nodes and reasons it is counted what a subscription has missed."""
NEVER: Final = "no event can match this filter"
"""What clients are told of a filter that contradicts itself."""


class InstallProgress(IntEnum):
    """How far a filter has come."""

    WANTED = 0
    RECEIVED = 1
    REPLICATED = 2


@dataclass(eq=False, slots=True)
class Form:
    """One filter of a subscription. It has a place in the ring of its own, or another filter covers it.

    While a subscription is changed it has two, each with a number (``sid``) of its own for leaves.
    """

    subscription: Subscription
    schema: SchemaView
    node: Node
    text: str
    sid: int
    points: Sequence[PiecePoint] = ()
    """Where its pieces are to be; before it is placed: where they were before a restart, if anywhere."""
    entry: Entry | None = None
    progress: InstallProgress = InstallProgress.WANTED
    placement: Placement | None = None
    cover: Form | None = None
    covered: dict[Form, None] = field(default_factory=dict)
    """The filters that this one covers: their events come because of it."""
    is_leaving: bool = False
    awaited: dict[Form, None] = field(default_factory=dict)
    """Filters that it has covered, and that have to be installed before it goes."""
    held_up: dict[Form, None] = field(default_factory=dict)
    """Filters that go when this one is installed."""

    @property
    def may_cover(self) -> bool:
        """Whether other filters may rely on it."""
        return self.placement is not None and not self.is_leaving and not self.subscription.group


class SubscriptionKeeper(Protocol):
    """All subscriptions of this node, as one of them sees them."""

    def is_leaf(self, subscription: Subscription, node: NodeId) -> bool:
        """Whether a node has a piece of it, as far as is known."""

    def end_failed(self, subscription: Subscription, why: str) -> None:
        """Its filter cannot be tried on an event: it is to end."""


class Subscription:
    """Implements `protocols.pubsub.subscribing.local.LocalReceiver`."""

    def __init__(
        self,
        keeper: SubscriptionKeeper,
        number: int,
        schema: str,
        document: Any,
        *,
        name: str,
        group: str,
        policy: Policy,
        since_ms: int,
        owner: str = "",
    ) -> None:
        self._keeper = keeper
        self.number, self.schema, self.name, self.group = number, schema, name, group
        self.document = document
        """Its filter, as the client gave it, until the schema is known; then its text."""
        self.policy, self.since_ms = policy, since_ms
        self.owner = owner
        """Whose it is; what that means, the front says."""
        self.keep_s = self.keep_bytes = 0
        """Durable: for how long, and how much, events are kept for it, here and at leaves while this node is away."""
        self.current: Form | None = None
        self.coming: Form | None = None
        """The filter that replaces the current one as soon as all its pieces are installed."""
        self.is_ending = False
        self.was_received = False
        """Whether its client was told that events come."""
        self.detail = ""
        self.failures = 0
        """How often in a row it was refused, or could not begin."""
        self.gap_s = 0.0
        """For how long at most some piece of it was nowhere: seconds in which several were count once."""
        self._gap_end = 0.0
        self.delivered = self.duplicates = 0
        self.missed: Counter[tuple[str, str]] = Counter()
        """Events that were lost on their way, by who says so, and why."""
        self.unread_since: float | None = None
        self.waiting: list[Callable[[Told], None]] = []
        """Who waits for its events to come."""
        self.waiting_change: Callable[[Told], None] | None = None
        self.inlet: MemoryInlet | DurableInlet
        """The way into its feed, opened by who makes it."""

    @property
    def id(self) -> str:
        """Its name for clients."""
        return format(self.number, "016x")

    @property
    def is_begun(self) -> bool:
        """Whether it has its filter."""
        return self.current is not None

    @property
    def feed(self) -> Feed[ReceivedEvent]:
        """What its clients read."""
        return self.inlet.feed

    @property
    def may_block(self) -> bool:
        """See `LocalReceiver.may_block`."""
        return self.policy is Policy.BLOCK

    @property
    def is_blocked(self) -> bool:
        """See `LocalReceiver.is_blocked`."""
        return self.inlet.is_blocked and not self.is_ending

    def give(self, item: TakenEvent, writes: Writes) -> None:
        """See `LocalReceiver.give`."""
        self.delivered += 1
        self.inlet.put(item, writes)

    def note_lost(self, loss: FeedLoss, writes: Writes) -> None:
        """See `LocalReceiver.note_lost`."""
        self.count_lost(loss)
        self.inlet.note_lost(loss, writes)

    def count_lost(self, loss: FeedLoss) -> None:
        """Count what a mark stands for, by who says so and why."""
        self.missed[loss.by, loss.reason] += loss.count
        if len(self.missed) > MISSED_KEPT_MAX:  # the two smallest become one
            least = sorted(self.missed, key=lambda each: self.missed[each])[:2]
            self.missed["", LossReason.OTHER.name.lower()] += sum(self.missed.pop(each) for each in least)

    def believes(self, leaf: NodeId, count: int) -> int:
        """See `LocalReceiver.believes`. Any node may say that events were lost; it takes a leaf of this subscription to
        be believed, as far as is known at this moment, and of others a few."""
        if self._keeper.is_leaf(self, leaf):
            return count
        said = sum(number for (by, _), number in self.missed.items() if by == format_id(leaf))
        return max(0, min(count, DOUBTFUL_MAX - said))

    def fail(self, why: str) -> None:
        """See `LocalReceiver.fail`."""
        self._keeper.end_failed(self, why)

    def note_duplicate(self) -> None:
        """See `LocalReceiver.note_duplicate`."""
        self.duplicates += 1

    def note_gap(self, gap_s: float, now: float) -> None:
        """A piece of it may have been nowhere for so long before now."""
        self.gap_s += max(0.0, min(gap_s, now - self._gap_end))
        self._gap_end = now

    def view(self, pieces: int) -> SubscriptionView:
        """What clients see of it."""
        form = self.current
        cover = None if form is None else form.cover
        return SubscriptionView(
            id=self.id,
            name=self.name,
            schema_name=self.schema,
            filter=self.document if isinstance(self.document, str) else str(self.document),
            owner=self.owner,
            group=self.group,
            policy=self.policy.value,
            state=self._state(),
            covered_by=None if cover is None else cover.subscription.id,
            pieces=pieces,
            readers=self.feed.readers,
            delivered=self.delivered,
            dropped=self.feed.dropped + self.inlet.lost,
            duplicates=self.duplicates,
            keep_s=self.keep_s,
            keep_bytes=self.keep_bytes,
            missed=self.missed.total(),
            missed_because=[
                MissedEvents(count=count, reason=reason, by=by) for (by, reason), count in self.missed.items()
            ],
            gap_s=self.gap_s,
            detail=self.detail or (NEVER if self._matches_nothing(pieces) else ""),
        )

    def _matches_nothing(self, pieces: int) -> bool:
        """Whether its filter contradicts itself, so that it has no place in the ring."""
        form = self.current
        if form is None or form.cover is not None or self.is_ending:
            return False
        return form.progress is InstallProgress.REPLICATED and not pieces

    def _state(self) -> str:
        if self.is_ending:
            return "ending"
        form = self.current
        if form is None:
            return "refused" if self.detail else "installing"
        if form.cover is not None:
            return "covered"
        return ("refused" if self.detail else "installing", "received", "replicated")[form.progress]
