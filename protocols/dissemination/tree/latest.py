"""Streams of which only the newest item of each object counts: what a node has, and who has to get it. Pure.

Such a node promises to those below it that what they have is within their tolerance. What it can promise depends on
what its own parent promises, so four things make it look again at what everybody has: an item, another parent, a child
that wants more, and a parent that is asked for less. What an edge carries is the past then, as far as marks go: so it
goes as `ReplayItems`, which may be of any age.

A parent knows only of what it has sent itself. So while a node moves, what its new parent sends waits until that one
is the parent; then it counts, even where the old one has sent something newer.

docs/protocols/coherency-trees.md has the proof.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from protocols.dissemination.ports import ParsedItem
from protocols.dissemination.tree import effects as do
from protocols.dissemination.tree.downstream import Downstream
from protocols.dissemination.tree.state import MemberState, give
from protocols.dissemination.tree.subscription import FreshAgain, OwnSubscription, StaleFrom


class LatestItems:
    """One member's newest items. For kinds of interests in which each item stands by itself it does nothing but say
    whether a way leads to the producer."""

    def __init__(self, state: MemberState, down: Downstream, subscriptions: Mapping[int, OwnSubscription]) -> None:
        self._state = state
        self._down = down
        self._subscriptions = subscriptions

    def have(self, parsed: ParsedItem) -> None:
        """This node has an item. Raises `ItemError` at the source, `ProtocolError` elsewhere: too many objects."""
        if self._state.last_sent is None:
            return
        if self._state.is_source:
            self._state.last_sent.give(parsed)
        else:
            give(self._state.last_sent, parsed)
        self._state.watermark = max(self._state.watermark, parsed.position)  # what a newcomer is given lies before that

    def arrived(self, parsed: ParsedItem, now: float) -> None:
        """What this node has of an object from now on."""
        if self._state.last_sent is not None and not self._state.last_sent.has(parsed):
            self.have(parsed)
            self._offer([parsed], now)

    def offer_all(self, now: float) -> None:
        """See whether somebody has to get what this node has."""
        if self._state.last_sent is not None:
            self._offer(self._state.last_sent.newest(), now)

    def _offer(self, some: Sequence[ParsedItem], now: float) -> None:
        self._down.offer(some, now)
        for subscription in self._subscriptions.values():
            self._give(subscription, some)

    def _give(self, subscription: OwnSubscription, some: Sequence[ParsedItem]) -> None:
        if subscription.last_sent is None or subscription.watermark is None:
            return
        for parsed in some:
            if self._state.is_for(subscription.last_sent, parsed):
                subscription.watermark = max(subscription.watermark, parsed.position)
                subscription.deliver(parsed)

    def begin(self, subscription: OwnSubscription) -> None:
        """A subscription begins: with what this node has of each object."""
        last_sent = subscription.last_sent = self._state.make_last_sent()
        if last_sent is not None and self._state.last_sent is not None:
            last_sent.want([subscription.interest])
            self._give(subscription, self._state.last_sent.newest())
            if self._state.is_stale:
                self._tell_stale(subscription)

    def unsettled(self) -> None:
        """From now on this node's items come from another parent."""
        self._down.unsettle()
        for subscription in self._subscriptions.values():
            if subscription.last_sent is not None:
                subscription.last_sent.unsettle()

    def freshened(self, now: float, *, is_stale: bool) -> do.Effects:
        """Whether somebody vouches for what this node has.

        Children are told in streams of every kind: who is below a node that has lost its parent looks up the stream's
        record meanwhile, and not only when that node has given up (swarm, seed 133).
        """
        state = self._state
        if is_stale == state.is_stale:
            return []
        state.is_stale = is_stale
        effects = self._down.tell_all(now)
        for subscription in self._subscriptions.values():
            if subscription.last_sent is None or state.last_sent is None:
                continue
            if is_stale:
                self._tell_stale(subscription)
            else:
                if subscription.is_stale:
                    subscription.is_stale = False
                    subscription.deliver(FreshAgain(state.watermark))
                subscription.last_sent.clear()
                self._give(subscription, state.last_sent.newest())
        return effects

    def _tell_stale(self, subscription: OwnSubscription) -> None:
        subscription.is_stale = True
        subscription.deliver(StaleFrom(self._state.watermark))
