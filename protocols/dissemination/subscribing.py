"""What clients subscribe to, from their wish to its end; and what has a name again after a restart."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import Any, Final

from peerd.api import Part, on_timer
from peerd.errors import Unavailable
from peerd.lib.feed import Feed
from protocols.dissemination.interests.errors import InterestError
from protocols.dissemination.models import ReceivedItem, StreamSubscriptionRequest, StreamSubscriptionView
from protocols.dissemination.named import NamedSubscriptions
from protocols.dissemination.names import START, position_of, position_text, stream_key
from protocols.dissemination.service import StreamRefused
from protocols.dissemination.stream import StreamRecord
from protocols.dissemination.stream_node import StreamNode
from protocols.dissemination.streams import LEAVING, Streams, then
from protocols.dissemination.subscriptions import StreamSubscription, Told

JOIN_S: Final = 20.0
"""A subscription that has not begun after this is given up, and the client is told."""
RESUME_S: Final = 1.0
"""After a restart a named subscription is made again after this; where that fails, after twice as long, and so on."""
_RESUME: Final = "stream_resume"


class Subscribing(Part):
    """Methods may raise `StreamRefused` and `Unavailable` at once; ``on_done`` gets the answer, or one of these."""

    def __init__(self, streams: Streams) -> None:
        self._streams, self._host = streams, streams.host
        self._nodes, self._clients = streams.nodes, streams.clients
        self._named = NamedSubscriptions(streams.host)
        self._resuming: dict[str, float] = {}

    def begin(self) -> None:
        """Make those with a name again, in a moment."""
        self._resuming = dict.fromkeys(self._named.load(), RESUME_S)
        for name in self._resuming:
            self._host.set_timer(_RESUME, RESUME_S * self._host.rng.uniform(0.5, 1.0), name)

    def stop(self) -> None:
        """Note how far readers have come."""
        self._named.save(list(self._clients), self._host.now(), is_last=True)

    def tick(self) -> None:
        """End what has not begun in time, or is read by nobody. Called a few times a second."""
        now = self._host.now()
        for each in self._clients:
            if each.on_done is not None and now - each.asked_at >= JOIN_S:
                self._forget(each)
                self._tell(each, Unavailable(f"no parent was found for {each.stream} within {JOIN_S:.0f} s"))
        for each in self._clients.unread(now, self._streams.config().unread_for):
            self._forget(each)
        self._clients.forget_read(now)
        self._clients.count_drops()
        self._named.save(list(self._clients), now)

    def stream_gone(self, node: StreamNode, reason: str) -> None:
        """This node takes part in a stream no more. Where it leaves the ring, clients go on when it is back."""
        for each in self._clients.of(node.name):
            if self._streams.is_leaving and reason == "left":
                self._clients.remove(each)
                each.feed.end(LEAVING)
                self._tell(each, Unavailable(LEAVING))
            else:
                self._named.forget(each.name)
                each.end(reason)
                self._tell(each, Unavailable(f"the stream {node.name} is over: {reason}"))

    def subscribe(self, request: StreamSubscriptionRequest, on_done: Told, *, is_bounded: bool = False) -> None:
        """Subscribe; ``on_done`` is called when this node is in the tree, and items come from then on.

        ``is_bounded``: the owner may have its share of what there is room for, and no more.
        """
        self._streams.check_stays()
        on_done = self._streams.later(on_done)
        try:
            after = None if request.after is None else position_of(request.after)
        except ValueError as error:
            raise StreamRefused("invalid", str(error)) from error
        self._clients.check(request, is_bounded=is_bounded)
        found = then(lambda record: self._subscribe(request, after, record, on_done), on_done)
        self._streams.find(request.stream, found)

    def _subscribe(
        self,
        request: StreamSubscriptionRequest,
        after: Any,
        record: StreamRecord,
        on_done: Told,
    ) -> None:
        self._streams.produced.check_back(record.key)
        if self._nodes.get(record.key) is None and self._nodes.is_own(record):
            raise StreamRefused("unknown", f"this node has produced {record.name}, and does so no more")
        node = self._nodes.make(record)
        try:
            interest = node.kind.parse(request.interest)
        except InterestError as error:
            raise StreamRefused("invalid", str(error)) from error
        known = self._clients.named(request.name)
        if known is not None and not known.is_ended:
            if known.interest.id != interest.id:
                raise StreamRefused("conflict", f"the subscription {request.name} wants {known.interest.text:.200}")
            on_done(self.view(known))
            return
        self._clients.check_room(self._streams.config().subscriptions_max)
        if after is None and request.name:
            at = self._named.after(request.name, request.stream, interest.text)
            after = None if at is None else position_of(at)
        is_anew = after not in (None, START) and self._named.is_of_other(request.name, node.record)
        after = START if is_anew else after
        made = self._clients.make(record.name, interest, record.kind, request.name, after)
        made.owner = request.owner
        made.on_done, made.creator, made.is_anew = on_done, node.record.creator, is_anew
        deliver = node.with_documents(made.deliver)
        node.subscribe(made.number, interest, after, deliver, partial(self._live, made))
        if node.member.up.is_new and node.member.up.is_orphan and not node.is_producer:
            node.seeking.join()

    @on_timer(_RESUME)
    def on_resume(self, name: str) -> None:
        """Make a named subscription again that this node had before it was restarted."""
        saved = self._named.saved(name)
        if saved is None or self._clients.named(name) is not None:
            self._resuming.pop(name, None)
            return

        def done(answer: StreamSubscriptionView | Exception) -> None:
            if not isinstance(answer, Exception):
                self._resuming.pop(name, None)
            elif isinstance(answer, StreamRefused) and self._named.is_hopeless(answer):
                self._resuming.pop(name, None)
                self._named.forget(name)
            elif name in self._resuming and not self._streams.is_leaving:
                pause_s = self._resuming[name] = min(self._streams.config().retry_max, 2 * self._resuming[name])
                self._host.set_timer(_RESUME, pause_s * self._host.rng.uniform(0.8, 1.2), name)

        wish = {"interest": saved.interest, "after": saved.after, "name": name, "owner": saved.owner}
        request = StreamSubscriptionRequest(stream=saved.stream, **wish)
        try:
            self.subscribe(request, done)
        except (StreamRefused, Unavailable) as error:
            done(error)

    def _live(self, subscription: StreamSubscription) -> None:
        subscription.is_live = True
        node = self._nodes.get(stream_key(subscription.stream))
        if subscription.name and node is not None:
            watermark = node.member.subscriptions[subscription.number].watermark or START
            with suppress(Unavailable):  # then it ends with this daemon, which its view says
                self._named.keep(subscription, position_text(watermark))
                subscription.is_kept = True
            if subscription.is_anew:
                subscription.begin_anew(watermark)
        self._tell(subscription, self.view(subscription))

    def view(self, subscription: StreamSubscription) -> StreamSubscriptionView:
        """A subscription, as its client sees it."""
        node = self._nodes.get(stream_key(subscription.stream))
        return subscription.view(None if node is None or node.depth is None else node.member.state.watermark)

    @staticmethod
    def _tell(subscription: StreamSubscription, answer: StreamSubscriptionView | Exception) -> None:
        on_done, subscription.on_done = subscription.on_done, None
        if on_done is not None:
            on_done(answer)

    def subscriptions(self) -> list[StreamSubscriptionView]:
        """The subscriptions of this node's clients, oldest first."""
        return [self.view(each) for each in self._clients]

    def reading(self, id: str) -> tuple[StreamSubscriptionView, Feed[ReceivedItem]]:
        """A subscription and its feed."""
        found = self._clients.get(id)
        return self.view(found), found.feed

    def unsubscribe(self, id: str) -> StreamSubscriptionView:
        """End a subscription."""
        found = self._clients.get(id)
        self._named.forget(found.name)
        self._forget(found)
        self._tell(found, StreamRefused("unknown", "the subscription was ended"))
        return self.view(found)

    def _forget(self, subscription: StreamSubscription) -> None:
        self._clients.remove(subscription)
        subscription.end("unsubscribed")
        if (node := self._nodes.get(stream_key(subscription.stream))) is not None:
            node.unsubscribe(subscription.number)
