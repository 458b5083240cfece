"""WATCH: clients that are told of a value when it leaves the bounds that they were told before (section 2.2).

A watch holds what it wants: the owners provide it, and only broken bounds cost messages. Several watches of one value
share it, at the tightest bounds that any of them wants.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from peerd.api import Host, Part, on_timer
from peerd.errors import ClientRefusal
from peerd.ids import NodeId
from peerd.lib.feed import Feed
from peerd.lib.subscriptions import ClientSubscriptions
from protocols.measurement.directory import Directory
from protocols.measurement.guarantee.caching import CacheAnswer, Caching
from protocols.measurement.guarantee.interval import Interval, around
from protocols.measurement.guarantee.words import Measurement, Want
from protocols.measurement.names import full_name
from protocols.measurement.placing.wants import UPDATES, HeldWants
from protocols.measurement.readings import NodeEntry, Reading

WATCHES_MAX: Final = 256
"""Watches of one node's clients."""
WATCHED_MAX: Final = 4096
"""Values of one watch."""
UNREAD_S: Final = 60.0
"""A watch that nobody reads ends after this time."""
LINE_BYTES: Final = 300
"""What a value counts for in a feed."""
LOOK_S: Final = 2.0
"""How often it is looked for nodes that are new, and for values that have become stale."""
_LOOK: Final = "watches"


@dataclass(eq=False)
class Watch:
    """One client's. ``wants``: half-widths by name; ``of``: which nodes it is about."""

    number: int
    feed: Feed[Reading]
    wants: Mapping[str, float]
    of: Callable[[NodeEntry], bool]
    stale_s: float
    about: frozenset[NodeId] | None = None
    """The nodes that ``of`` means, where it is these."""
    is_read: bool = True
    """Whether a client reads what is told; a watch that only holds values has none."""
    name: str = ""
    owner: str = ""
    unread_since: float | None = None
    told: dict[Measurement, Interval | None] = field(default_factory=dict)
    """The bounds that the client has for each value; ``None``: it knows that they are stale, or nothing."""

    @property
    def id(self) -> str:
        """Its name for clients."""
        return format(self.number, "016x")

    def half_width(self, measurement: Measurement) -> float:
        """How exactly this one is wanted."""
        return self.wants[measurement.name.partition("@")[0]]

    @property
    def is_begun(self) -> bool:
        """It may be read at once."""
        return True


class Watching(Part):
    """All watches of a node. ``wants`` has what they need held."""

    def __init__(self, host: Host, caching: Caching, directory: Directory, wants: HeldWants) -> None:
        self._host, self._caching, self._directory, self._wants = host, caching, directory, wants
        self.watches: ClientSubscriptions[Watch] = ClientSubscriptions(ClientRefusal)
        self._watchers: dict[Measurement, list[Watch]] = {}
        host.when_over(self.watches.let_go)

    def watch(
        self, wants: Mapping[str, float], of: Callable[[NodeEntry], bool], stale_s: float, owner: str = ""
    ) -> Watch:
        """Begin one. Raises `ClientRefusal` where there are too many."""
        self.watches.check_room(WATCHES_MAX)
        self.watches.check_share(owner, WATCHES_MAX)
        feed: Feed[Reading] = Feed(self._host.new_epoch())
        watch = Watch(self._host.rng.getrandbits(64), feed, wants, of, stale_s, owner=owner)
        self._add(watch)
        return watch

    def _add(self, watch: Watch) -> None:
        self.watches.add(watch)
        if len(self.watches) == 1:
            self._host.cancel_timer(_LOOK)  # of a watch that has just ended
            self._host.set_timer(_LOOK, LOOK_S)
        self._directory.refreshed(lambda: self._select(watch))

    def hold(self, wants: Mapping[str, float], owners: Collection[NodeId], stale_s: float) -> Watch:
        """Hold values of these nodes until the watch is ended. Raises `ClientRefusal` where there are too many."""
        self.watches.check_room(WATCHES_MAX)
        about = frozenset(owners)
        feed: Feed[Reading] = Feed(self._host.new_epoch())
        watch = Watch(
            self._host.rng.getrandbits(64), feed, wants, lambda entry: entry.id in about, stale_s, about, False
        )
        self._add(watch)
        return watch

    def end(self, watch: Watch, reason: str) -> None:
        """Nobody reads it any more."""
        watch.feed.end(reason, is_final=True)
        self.watches.remove(watch)
        self._unwatch(watch, list(watch.told))

    # Which values

    def _select(self, watch: Watch) -> None:
        """Find what a watch is about, among the nodes that are known now."""
        if watch.feed.ended is not None:
            return
        wanted: dict[Measurement, None] = {}
        for entry in self._directory.known():
            if not watch.of(entry):
                continue
            for name in watch.wants:
                full = [full_name(name, peer) for peer in entry.pairs.get(name, ())]
                names = [name, *full] if name in entry.measurements else full
                wanted.update(dict.fromkeys(Measurement(entry.id, each) for each in names[: WATCHED_MAX - len(wanted)]))
        self._unwatch(watch, [each for each in watch.told if each not in wanted])
        new = [each for each in wanted if each not in watch.told]
        for measurement in new:
            watch.told[measurement] = None
            self._watchers.setdefault(measurement, []).append(watch)
        self._hold(new)
        for measurement in new:
            self.moved(measurement)

    def _unwatch(self, watch: Watch, measurements: Iterable[Measurement]) -> None:
        changed = []
        for measurement in measurements:
            del watch.told[measurement]
            watchers = self._watchers[measurement]
            watchers.remove(watch)
            changed.append(measurement)
            if not watchers:
                del self._watchers[measurement]
        self._hold(changed)

    def _hold(self, measurements: Iterable[Measurement]) -> None:
        """Want these as tight, and as often vouched for, as the watches of them do; or no more."""
        wants, gone = [], []
        for measurement in measurements:
            watchers = self._watchers.get(measurement, ())
            if measurement.owner == self._host.id:
                continue
            if not watchers:
                gone.append(measurement)
                continue
            half_width = min(each.half_width(measurement) for each in watchers)
            update_s = min(each.stale_s for each in watchers) / UPDATES
            wants.append((Want(measurement, half_width), update_s))
        self._wants.hold("watched", wants)
        self._wants.let_go("watched", gone)

    # Telling

    def moved(self, measurement: Measurement) -> None:
        """What this node knows of a value has changed."""
        watchers = self._watchers.get(measurement)
        if not watchers:
            return
        answer = self._caching.read(measurement, self._host.now())
        for watch in watchers:
            told = watch.told[measurement]
            if answer is None or answer.age_s > watch.stale_s or answer.is_stale:
                if answer is not None and told is not None:
                    watch.told[measurement] = None
                    self._tell(watch, measurement, answer, answer.claim.interval, is_stale=True)
                continue
            claim = answer.claim
            if told is not None and told.contains(claim.interval):
                continue
            bounds = around(claim.interval, claim.level, watch.half_width(measurement))
            watch.told[measurement] = bounds
            self._tell(watch, measurement, answer, bounds, is_stale=False)

    @staticmethod
    def _tell(watch: Watch, measurement: Measurement, answer: CacheAnswer, bounds: Interval, *, is_stale: bool) -> None:
        if watch.is_read and watch.feed.ended is None and watch.feed.may_push(LINE_BYTES):
            claim = answer.claim
            reading = Reading(measurement, claim.value, bounds, answer.age_s, is_stale, answer.provider, claim.hops)
            watch.feed.push(reading, LINE_BYTES)

    @on_timer(_LOOK)
    def _look(self, payload: None) -> None:
        now = self._host.now()
        for watch in self.watches.unread(now, UNREAD_S):
            if watch.is_read:
                self.end(watch, "nobody reads it")
        for measurement in list(self._watchers):
            self.moved(measurement)
        if len(self.watches):
            self._host.set_timer(_LOOK, LOOK_S)
            self._directory.refreshed(self._select_all)

    def _select_all(self) -> None:
        for watch in self.watches:
            self._select(watch)
