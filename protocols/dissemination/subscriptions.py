"""Subscriptions of this node's clients: each with what it wants of one stream, and a feed that clients read."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Literal

from peerd.api import Host
from peerd.lib.feed import Feed
from peerd.lib.subscriptions import ClientSubscriptions
from peerd.limits import KIB
from protocols.dissemination.config import DisseminationConfig
from protocols.dissemination.messages import ITEM_BYTES_MAX
from protocols.dissemination.models import (
    CREATED_ANEW,
    AttachedDocument,
    ReceivedItem,
    StreamSubscriptionRequest,
    StreamSubscriptionView,
)
from protocols.dissemination.names import START, StreamPosition, position_text
from protocols.dissemination.ports import Interest, ParsedItem
from protocols.dissemination.service import StreamRefused
from protocols.dissemination.tree.subscription import Delivered, FreshAgain, Lost, StaleFrom, Unmatchable

MARK_BYTES: Final = 900
"""What a mark, and what belongs to an item besides its payload, counts for in a feed."""
FORGET_S: Final = 300.0
"""What the readers of a subscription without a name have had is held for one to two times as long: they may come back
and ask for it again, where their connection was lost."""
FEED_BYTES_MIN: Final = ITEM_BYTES_MAX + KIB

MarkType = Literal["lost", "stale", "fresh", "ended"]
Told = Callable[[StreamSubscriptionView | Exception], None]


@dataclass(eq=False)
class StreamSubscription:
    """``deliver`` and ``live`` are called by the tree, the rest by clients."""

    number: int
    stream: str
    kind: str
    interest: Interest
    name: str
    after: StreamPosition | None
    feed: Feed[ReceivedItem]
    received: int = 0
    missed_gaps: int = 0
    not_taken: int = 0
    """Items that were not even kept, because a reader blocked."""
    drops_counted: dict[str, int] = field(default_factory=dict)
    """So many are in the metric, by reason."""
    is_live: bool = False
    is_ended: bool = False
    is_kept: bool = False
    """It survives a restart of its daemon."""
    owner: str = ""
    """The client whose it is; what that means, the front says."""
    creator: str = ""
    """Who has created the stream."""
    is_anew: bool = False
    """Before a restart it was of another stream of the name, of which a reader has to be told that it is gone."""
    unread_since: float | None = None
    on_done: Told | None = None
    asked_at: float = 0.0

    @property
    def id(self) -> str:
        """Its name for clients."""
        return format(self.number, "016x")

    @property
    def is_begun(self) -> bool:
        """Whether clients may read what comes, or why nothing does."""
        return self.is_live or self.is_ended

    def deliver(self, what: Delivered) -> None:
        """The next item, a loss, or whether anybody vouches for the values."""
        match what:
            case StaleFrom():
                self._mark("stale", what.at, "no way leads to the producer: what came before may have changed")
            case FreshAgain():
                self._mark("fresh", what.at, "a way leads to the producer again: all values follow anew")
            case Unmatchable():
                self.end(f"this interest could not be matched with an item, which is a defect of peerd: {what.why}")
            case Lost():
                self._lose(what, "nobody remembers it any more")
            case _:
                self.received += 1
                self._push(received_item(self.stream, what), MARK_BYTES + len(what.item.payload))

    def drops(self) -> dict[str, int]:
        """Items that no longer come to a reader, because it was slow, by reason."""
        return {"slow_reader": self.feed.dropped, "blocked": self.not_taken}

    def begin_anew(self, at: StreamPosition) -> None:
        """Say that what comes now, after this mark, is of another stream than what came before."""
        self._lose(Lost(START, at), CREATED_ANEW)

    def _lose(self, what: Lost, reason: str) -> None:
        self.missed_gaps += 1
        self._mark("lost", what.until, reason, None if what.since == START else position_text(what.since))

    def _mark(self, type: MarkType, at: StreamPosition | None, reason: str, since: str | None = None) -> None:
        id = "" if at is None else position_text(at)
        self._push(ReceivedItem(type=type, stream=self.stream, id=id, since=since, reason=reason), MARK_BYTES)

    def taken(self) -> str | None:
        """The place up to which a reader has taken everything; ``None``: nothing was taken, or it is not known."""
        feed = self.feed
        item = feed.held(feed.taken) if feed.taken else None
        return item.id if item is not None and item.id and item.type not in ("stale", "fresh") else None

    def end(self, reason: str) -> None:
        """Nothing comes any more."""
        if not self.is_ended:
            self.is_ended = True
            self._mark("ended", None, reason)
            self.feed.end(reason, is_final=True)

    def _push(self, item: ReceivedItem, size: int) -> None:
        if self.feed.ended is None and self.feed.may_push(size):
            self.feed.push(item, size)
        elif self.feed.ended is None:  # a reader that blocks: what comes meanwhile is lost for all, and they are told
            self.feed.skip(1)
            self.not_taken += 1

    def view(self, watermark: StreamPosition | None) -> StreamSubscriptionView:
        """What clients see of it. ``watermark``: how far this node has come; ``None``: no way leads to the producer."""
        is_orphaned = watermark is None
        state = "ended" if self.is_ended else "joining" if not self.is_live else "orphaned" if is_orphaned else "live"
        own = ("id", "stream", "kind", "name", "owner", "received", "missed_gaps", "is_kept")
        return StreamSubscriptionView.model_validate(
            {
                **{name: getattr(self, name) for name in own},
                "interest": self.interest.text,
                "epoch": self.feed.epoch,
                "state": state,
                "dropped": sum(self.drops().values()),
                "note": self._note(watermark),
            }
        )

    def _note(self, watermark: StreamPosition | None) -> str:
        if watermark is None or self.after is None or not self.is_live or self.after <= watermark:
            return ""
        return (
            f"the stream is at {position_text(watermark)}, before {position_text(self.after)}: "
            "what comes until then is not given to you"
        )


def received_item(stream: str, held: ParsedItem) -> ReceivedItem:
    """An item, as clients get it."""
    body = held.item.body
    text, encoded = None, None
    try:
        text = body.payload.decode()
    except UnicodeDecodeError:
        encoded = b64encode(body.payload).decode()
    attached = body.attachment
    return ReceivedItem(
        document=None
        if attached is None
        else AttachedDocument(
            id=attached.id.hex(), name=attached.name, size=attached.size, content_type=attached.content_type
        ),
        stream=stream,
        id=position_text(held.position),
        published_ms=body.published_ms,
        content_type=body.content_type,
        payload=text,
        payload_base64=encoded,
    )


class StreamSubscriptions(ClientSubscriptions[StreamSubscription]):
    """All subscriptions of this node."""

    def __init__(self, host: Host, config: Callable[[], DisseminationConfig]) -> None:
        super().__init__(StreamRefused)
        self._host, self._config = host, config
        self._next = 1
        self._forget_at = 0.0

    def of(self, stream: str) -> list[StreamSubscription]:
        """Those of one stream."""
        return [each for each in self if each.stream == stream]

    def check(self, request: StreamSubscriptionRequest, *, is_bounded: bool) -> None:
        """Raises `StreamRefused` where the name is one of another stream, or of another client; and where there are too
        many: of one owner (if that ``is_bounded``), or to streams that go on."""
        known = self.known(request.name, request.owner)
        if known is not None and known.stream != request.stream:
            raise StreamRefused("conflict", f"the subscription {request.name} is one of {known.stream}")
        if known is None:
            if is_bounded:
                self.check_share(request.owner, self._config().subscriptions_max)
            self.check_room(self._config().subscriptions_max)

    def make(
        self, stream: str, interest: Interest, kind: str, name: str, after: StreamPosition | None
    ) -> StreamSubscription:
        """Make one."""
        config = self._config()
        feed: Feed[ReceivedItem] = Feed(
            self._host.new_epoch(),
            items_max=config.feed_items,
            bytes_max=max(config.feed_bytes, FEED_BYTES_MIN),
            taken=0 if name else None,
        )
        found = StreamSubscription(self._number(), stream, kind, interest, name, after, feed, asked_at=self._host.now())
        self.add(found)
        return found

    def _number(self) -> int:
        """Not to be guessed from another one, and never used twice in one boot."""
        number = self._host.rng.getrandbits(40) << 24 | self._next
        self._next += 1
        return number

    def count_drops(self) -> None:
        """Count what readers were too slow for since the last call."""
        for each in self:
            self._count_drops(each)

    def _count_drops(self, subscription: StreamSubscription) -> None:
        for reason, count in subscription.drops().items():
            if more := count - subscription.drops_counted.get(reason, 0):
                subscription.drops_counted[reason] = count
                self._host.count("peerd_dissemination_reader_drops_total", more, reason=reason)

    def remove(self, subscription: StreamSubscription) -> None:
        """Forget one."""
        self._count_drops(subscription)
        super().remove(subscription)

    def forget_read(self, now: float) -> None:
        """Let go of what the readers of those without a name have had for long. Called a few times a second."""
        if now >= self._forget_at:
            self._forget_at = now + FORGET_S
            for each in self:
                if not each.name:
                    each.feed.forget_taken()
