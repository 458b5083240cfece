"""The subscriptions of a node's clients, whatever they are to: by id and by name, whose they are, how many there may
be, and which of them nobody reads. Pure.

One with a name stays while nobody reads it, and belongs to whom made it. One without ends when it has not been read for
a while; until then a reader whose connection was lost finds it by the epoch of its feed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Generic, Protocol, TypeVar

from peerd.errors import ClientRefusal
from peerd.lib.admission import OWNER_SHARE, over_share
from peerd.lib.feed import Feed


class ClientSubscription(Protocol):
    """One of them."""

    name: str
    owner: str
    """The client whose it is; what that means, the front says."""
    unread_since: float | None

    @property
    def id(self) -> str:
        """Its name for clients, not to be guessed."""

    @property
    def feed(self) -> Feed[Any]:
        """What clients read. When it has ended for good, so has the subscription."""

    @property
    def is_begun(self) -> bool:
        """Whether clients know of it, and may read."""


S = TypeVar("S", bound=ClientSubscription)


class ClientSubscriptions(Generic[S]):
    """All of one kind, oldest first. ``refuse`` makes what is raised, of a kind and a text (`ClientRefusal`)."""

    def __init__(self, refuse: Callable[[str, str], ClientRefusal]) -> None:
        self._refuse = refuse
        self.by_id: dict[str, S] = {}
        self._named: dict[str, S] = {}
        """The newest of each name: an ended one may still be read to its end."""

    def __len__(self) -> int:
        return len(self.by_id)

    def __iter__(self) -> Iterator[S]:
        return iter(list(self.by_id.values()))

    def add(self, subscription: S) -> None:
        """From now on it is one of them."""
        self.by_id[subscription.id] = subscription
        if subscription.name:
            self._named[subscription.name] = subscription

    def remove(self, subscription: S) -> None:
        """Forget one."""
        self.by_id.pop(subscription.id, None)
        if self._named.get(subscription.name) is subscription:
            del self._named[subscription.name]

    def named(self, name: str) -> S | None:
        """The newest of this name."""
        return self._named.get(name)

    def get(self, id: str) -> S:
        """By its id, or its name. Raises what `refuse` makes."""
        found = self.by_id.get(id) or self._named.get(id)
        if found is None:
            raise self._refuse("unknown", f"there is no subscription {id!r:.80} on this node")
        return found

    def of_feed(self, epoch: str) -> S | None:
        """The one whose feed has this epoch, which only those know who have read it."""
        return next((each for each in self.by_id.values() if each.feed.epoch == epoch), None)

    def known(self, name: str, owner: str) -> S | None:
        """The newest of this name. Raises what `refuse` makes where it is another owner's."""
        found = self._named.get(name)
        if found is not None and found.owner != owner:
            raise self._refuse("conflict", f"the subscription {name} belongs to another token or user")
        return found

    def check_room(self, room: int) -> None:
        """Make room for one more: an ended one that nobody reads goes. Raises what `refuse` makes."""
        if len(self.by_id) >= room:
            over = next((each for each in self if each.feed.ended is not None and not each.feed.readers), None)
            if over is None:
                raise self._refuse("quota", f"this node's clients have {len(self)} subscriptions, which is the limit")
            self.remove(over)

    def check_share(self, owner: str, room: int, share: float = OWNER_SHARE, setting: str = "") -> None:
        """Raise what `refuse` makes where one owner has its share of the room, so that nobody uses up all of it."""
        owners = (each.owner for each in self.by_id.values() if each.feed.ended is None)
        if too_many := over_share(owner, owners, room, share):
            raise self._refuse("quota", f"{too_many} subscriptions here, the limit for one{setting}")

    def unread(self, now: float, limit_s: float) -> list[S]:
        """Those without a name that nobody has read for so long. To be asked now and then."""
        found = []
        for each in self.by_id.values():
            if each.name or each.feed.readers or not each.is_begun:
                each.unread_since = None
            elif each.unread_since is None:
                each.unread_since = now
            elif now - each.unread_since >= limit_s:
                found.append(each)
        return found

    def let_go(self, reason: str) -> None:
        """The plugin ends or is replaced, and its readers with it; they come back and resume."""
        for each in self.by_id.values():
            each.feed.end(reason)
