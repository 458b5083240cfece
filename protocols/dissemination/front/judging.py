"""What must hold of streams, judged from outside: by what producers published and what subscriptions got.

Precision (invariant 14): what a subscription gets, its interest matches, by the reference. No silent loss (19): what it
got, and the losses that it was told of, are together all that matches. First in, first out (20): numbers grow strictly.
What is judged from inside the nodes is in `protocols.dissemination.front.checkers`.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Final

from peerd.lib.feed import FeedEnd, FeedItem, Reader
from peerd.sim.simulation import Place
from protocols.dissemination.models import (
    ReceivedItem,
    StreamSpec,
    StreamSubscriptionRequest,
    StreamSubscriptionView,
    StreamView,
)
from protocols.dissemination.names import START, StreamPosition
from protocols.dissemination.plugin import Dissemination
from protocols.dissemination.stream_node import position_of

OFFENCES_MAX = 20


class ClassWriting:
    """How items of a class, and wants for classes, are written for the kind ``classes``."""

    is_current: ClassVar[bool] = False
    """Each class is an object, of which only the current value counts, within `TOLERANCE`."""

    def item(self, name: str, number: int) -> bytes:
        """The payload of an item of a class. ``number``: how many there were before it."""
        return name.encode()

    def interest(self, wants: str) -> str:
        """The interest in classes, which stand with commas between them; none: in everything."""
        return wants


class AttributeWriting(ClassWriting):
    """The same for the kind ``attributes``."""

    def item(self, name: str, number: int) -> bytes:
        return json.dumps({"class": name}).encode()

    def interest(self, wants: str) -> str:
        names = ", ".join(f"'{name}'" for name in wants.split(","))
        return f"class IN ({names})" if wants else "TRUE"


class ObjectWriting(ClassWriting):
    """The same for the kind ``coherency``: a class is an object, and its value goes up and down."""

    is_current: ClassVar[bool] = True

    def item(self, name: str, number: int) -> bytes:
        return json.dumps({"object": name, "value": number * STEP % VALUES}).encode()

    def interest(self, wants: str) -> str:
        return ",".join(f"{name} WITHIN {TOLERANCE}" for name in (wants or "*").split(","))


TOLERANCE: Final = 2
STEP, VALUES = 5, 13
WRITINGS: Final[Mapping[str, ClassWriting]] = {
    "classes": ClassWriting(),
    "attributes": AttributeWriting(),
    "coherency": ObjectWriting(),
}
"""By kind of interests."""


def plugin_of(place: Place) -> Dissemination:
    """The plugin of a simulated node. Raises ``KeyError`` when the node runs without it."""
    plugin = place.node.plugins[Dissemination.name]
    assert isinstance(plugin, Dissemination)
    return plugin


@dataclass
class PublishedStream:
    """What was published in one stream, in order."""

    name: str
    writing: ClassWriting = field(default_factory=ClassWriting)
    positions: list[StreamPosition] = field(default_factory=list)
    classes: list[str] = field(default_factory=list)
    payloads: dict[StreamPosition, str] = field(default_factory=dict)
    doubtful: set[StreamPosition] = field(default_factory=set)
    """Items that wait for the producer's disk: if it loses its power now, they are in the stream or not."""

    def current(self, name: str) -> str | None:
        """The newest item of a class since the producer has last started; ``None``: there is none."""
        for position, each in zip(reversed(self.positions), reversed(self.classes), strict=True):
            if position.epoch != self.last.epoch:
                return None
            if each == name:
                return self.payloads[position]
        return None

    @property
    def last(self) -> StreamPosition:
        """The newest item's place."""
        return self.positions[-1] if self.positions else START

    def between(self, since: StreamPosition, until: StreamPosition) -> list[tuple[StreamPosition, str]]:
        """What was published behind one mark and before another."""
        first, last = bisect_right(self.positions, since), bisect_right(self.positions, until)
        return list(zip(self.positions[first:last], self.classes[first:last], strict=True))

    def due(self, since: StreamPosition, until: StreamPosition) -> list[tuple[StreamPosition, str]]:
        """The same, without what the producer may have lost before anybody had it."""
        return [each for each in self.between(since, until) if each[0] not in self.doubtful]


@dataclass
class WatchedStream:
    """A subscription on a simulated node, and what came to it. ``wants``: its classes; none: everything."""

    place: Place
    boot: int
    stream: PublishedStream
    wants: frozenset[str]
    id: str = ""
    reader: Reader[ReceivedItem] | None = None
    through: StreamPosition | None = None
    """It has everything up to here, or knows that it has not; ``None``: it has not begun."""
    received: int = 0
    current: dict[str, str] = field(default_factory=dict)
    """The newest item of each object."""
    lost: int = 0
    """Items that it wanted, and was told to be lost."""
    is_counted: bool = False
    """An item that was awaited has come: from then on numbers must grow."""
    why_not: str = ""
    is_over: bool = False

    @property
    def is_live(self) -> bool:
        """Whether its node still runs since it subscribed, and it has begun."""
        return self.place.is_live and self.place.boot_epoch == self.boot and self.reader is not None

    def matches(self, name: str) -> bool:
        """The reference."""
        return not self.wants or name in self.wants


class StreamJudge:
    """Creates, subscribes, publishes and compares."""

    def __init__(self) -> None:
        self.streams: dict[str, PublishedStream] = {}
        self.watched: list[WatchedStream] = []
        self.offences: list[str] = []

    def create(self, place: Place, spec: StreamSpec, on_done: Callable[[StreamView | Exception], None]) -> None:
        """Create a stream. Raises what the plugin raises."""
        self.streams.setdefault(spec.name, PublishedStream(spec.name, WRITINGS[spec.kind]))
        plugin_of(place).create(spec, on_done)

    def publish(self, place: Place, stream: str, name: str) -> None:
        """Publish an item of a class. Raises what the plugin raises."""
        of = self.streams[stream]
        payload = of.writing.item(name, len(of.positions))
        published = plugin_of(place).publish(stream, payload)
        position = position_of(published.id)
        of.positions.append(position)
        of.classes.append(name)
        of.payloads[position] = payload.decode()
        of.doubtful.add(position)

        def kept(answer: bool | Exception) -> None:
            if not isinstance(answer, Exception):
                of.doubtful.discard(position)

        plugin_of(place).when_kept(stream, kept)

    def subscribe(self, place: Place, stream: str, wants: str, after: str | None = None) -> WatchedStream:
        """Subscribe on a node. Raises what the plugin raises."""
        published = self.streams[stream]
        watched = WatchedStream(place, place.boot_epoch, published, frozenset(wants.split(",") if wants else ()))
        plugin = plugin_of(place)

        def done(answer: StreamSubscriptionView | Exception) -> None:
            if isinstance(answer, Exception):
                watched.why_not, watched.is_over = str(answer), True
                return
            watched.id = answer.id
            watched.reader = plugin.reading(answer.id)[1].reader("start")
            watched.through = published.last if after is None else position_of(after)

        request = StreamSubscriptionRequest(
            stream=stream, interest=published.writing.interest(wants), after=after, name=f"w{len(self.watched)}"
        )
        plugin.subscribe(request, done)
        self.watched.append(watched)
        return watched

    def end(self, watched: WatchedStream) -> None:
        """End a subscription whose node lives."""
        self._read(watched)
        watched.is_over = True
        plugin_of(watched.place).unsubscribe(watched.id)

    def read(self) -> None:
        """Take what has come to every subscription, and compare it."""
        for watched in self.watched:
            if watched.is_live and not watched.is_over:
                self._read(watched)

    def _read(self, watched: WatchedStream) -> None:
        while watched.reader is not None and (entry := watched.reader.take()) is not None:
            if isinstance(entry, FeedEnd):  # the node stops: clients come back to another one
                watched.is_over = True
            elif not isinstance(entry, FeedItem):
                self._offend(watched, f"its feed says {entry} although it is read all the time")
            elif entry.value.type == "item":
                self._took(watched, entry.value)
            elif entry.value.type == "lost":
                self._told_of_loss(watched, entry.value)
            elif entry.value.type == "ended":
                watched.is_over = True
                return

    def _took(self, watched: WatchedStream, item: ReceivedItem) -> None:
        position, payload = position_of(item.id), (item.payload or "")
        published = watched.stream.between(StreamPosition(position.epoch, position.sequence - 1), position)
        watched.received += 1
        name = published[0][1] if published else ""
        if watched.stream.payloads.get(position) != payload:
            self._offend(watched, f"got {item.id} {payload!r}, which was not published so")
        elif not watched.matches(name):
            self._offend(watched, f"precision: got {item.id} of class {name}, and wants {sorted(watched.wants)}")
        if watched.stream.writing.is_current:
            watched.current[name] = payload  # whether that is the current value is judged in the end
            return
        through = watched.through
        if through is None or position <= through:
            # What came between its beginning and the answer about it was not awaited yet.
            if through is not None and watched.is_counted:
                self._offend(watched, f"order: got {item.id} after {through}")
            return
        missing = [at for at, each in watched.stream.due(through, position) if watched.matches(each) and at != position]
        if missing:
            self._offend(watched, f"silent loss: got {item.id} after {through}, and not {missing[0]}")
        watched.through = position
        watched.is_counted = True

    def _told_of_loss(self, watched: WatchedStream, item: ReceivedItem) -> None:
        since, until = position_of(item.since or "0-0"), position_of(item.id)
        through = START if watched.through is None else watched.through
        if until <= through:
            return
        missing = [at for at, each in watched.stream.due(through, since) if watched.matches(each)]
        if missing:
            self._offend(watched, f"silent loss: told of a loss after {since}, and did not get {missing[0]}")
        watched.lost += sum(watched.matches(each) for _, each in watched.stream.between(max(through, since), until))
        watched.through = until

    def _offend(self, watched: WatchedStream, what: str) -> None:
        if len(self.offences) < OFFENCES_MAX:
            self.offences.append(f"{watched.stream.name} at {watched.place}: {what}")

    def missing(self, through: dict[str, StreamPosition]) -> list[str]:
        """Which subscriptions have not had, up to a mark of each stream, what they want (or were told of a loss)."""
        found = []
        for watched in self.watched:
            until = through.get(watched.stream.name)
            if until is None or not watched.is_live or watched.is_over or watched.through is None:
                continue
            if watched.stream.writing.is_current:
                found += _outdated(watched)
                continue
            due = [at for at, each in watched.stream.due(watched.through, until) if watched.matches(each)]
            if due:
                found.append(
                    f"recall: {len(due)} items from {due[0]} on of {watched.stream.name} are not at {watched.place}"
                )
        return found


def _outdated(watched: WatchedStream) -> list[str]:
    """Which objects a subscription has not within its tolerance."""
    found = []
    for name in sorted(set(watched.stream.classes)):
        current, had = watched.stream.current(name), watched.current.get(name)
        if current is None or not watched.matches(name):
            continue
        value = json.loads(current)["value"]
        if had is None or abs(json.loads(had)["value"] - value) > TOLERANCE:
            found.append(f"coherency: {watched.place} has {had} of {watched.stream.name}, and {current} is current")
    return found
