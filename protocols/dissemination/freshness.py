"""For how long values that subscriptions of a node hold were out of date: what fidelity is reckoned from. Pure.

A subscription gets a value when the one that it holds is no longer good enough for it. That one was good until the new
one was published, at least: from then on it was out of date, by the clocks of the producer and of this node. While
nobody vouches for what a subscription holds, that counts as out of date, too. So the share of the time in which values
were good is at least what this tells; equation 1 of Zhou, Ooi and Tan (2008) calls it fidelity.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable

from protocols.dissemination.ports import ParsedItem, RememberingKind
from protocols.dissemination.tree.subscription import Delivered, StaleFrom


class Freshness:
    """All subscriptions of a node to one stream. Times are milliseconds since 1970."""

    def __init__(self, now_ms: int) -> None:
        self.held_ms = 0
        """How long values were held, all together."""
        self.outdated_ms = 0
        """For how much of that time they were out of date."""
        self._now_ms = now_ms
        self._since_ms: dict[int, dict[Hashable, int]] = {}
        """By subscription, when the value of each object came that it holds."""
        self._unvouched: set[int] = set()
        """Subscriptions for whose values nobody vouches."""
        self._held = self._stale = 0

    def _go_on(self, now_ms: int) -> None:
        passed_ms = max(0, now_ms - self._now_ms)
        self.held_ms += self._held * passed_ms
        self.outdated_ms += self._stale * passed_ms
        self._now_ms = max(self._now_ms, now_ms)

    def came(self, subscription: int, name: Hashable, published_ms: int, now_ms: int) -> None:
        """A subscription has got a value of an object."""
        self._go_on(now_ms)
        values = self._since_ms.setdefault(subscription, {})
        if subscription in self._unvouched:
            self._unvouched.discard(subscription)
            self._stale -= len(values)
            values.update(dict.fromkeys(values, self._now_ms))  # until now it was counted
        before_ms = values.get(name)
        if before_ms is None:
            self._held += 1
        else:
            self.outdated_ms += max(0, self._now_ms - max(published_ms, before_ms))
        values[name] = self._now_ms

    def went_stale(self, subscription: int, now_ms: int) -> None:
        """Nobody vouches any more for what a subscription holds."""
        self._go_on(now_ms)
        if subscription not in self._unvouched:
            self._unvouched.add(subscription)
            self._stale += len(self._since_ms.get(subscription, ()))

    def noting(
        self, kind: RememberingKind, number: int, deliver: Callable[[Delivered], None], now_ms: Callable[[], int]
    ) -> Callable[[Delivered], None]:
        """A subscription's ``deliver``, which notes what it is given."""

        def delivered(what: Delivered) -> None:
            if isinstance(what, ParsedItem):
                self.came(number, kind.object_of(what.content), what.item.published_ms, now_ms())
            elif isinstance(what, StaleFrom):
                self.went_stale(number, now_ms())
            deliver(what)

        return delivered

    def ended(self, subscription: int, now_ms: int) -> None:
        """A subscription is over."""
        self._go_on(now_ms)
        values = self._since_ms.pop(subscription, {})
        self._held -= len(values)
        if subscription in self._unvouched:
            self._unvouched.discard(subscription)
            self._stale -= len(values)

    def until(self, now_ms: int) -> tuple[int, int]:
        """How long values were held, and for how much of that out of date, by now."""
        self._go_on(now_ms)
        return self.held_ms, self.outdated_ms
