"""What must hold of streams, judged from outside: by what producers published and what subscriptions got.

Precision (invariant 14): what a subscription gets, its interest matches, by the reference. No silent loss (19): what it
got, and the losses that it was told of, are together all that matches. First in, first out (20): numbers grow strictly.
What is judged from inside the nodes is in `protocols.dissemination.front.checkers`.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Final

from peerd.lib.feed import FeedEnd, FeedItem, Reader
from peerd.sim.simulation import Place, Simulation
from protocols.dissemination.models import (
    ReceivedItem,
    StreamSpec,
    StreamSubscriptionRequest,
    StreamSubscriptionView,
    StreamView,
)
from protocols.dissemination.names import START, StreamPosition, stream_key
from protocols.dissemination.plugin import Dissemination
from protocols.dissemination.stream_node import position_of

OFFENCES_MAX = 20
STALE_S: Final = 15.0
"""So long after the producer has ended, every subscription with values knows that nobody vouches for them. The nodes
below the producer notice after 3.5 s (`SILENT_S`), and tell those below them; the rest is for marks that are lost."""


class ClassWriting:
    """How items of a class, and wants for classes, are written for the kind ``classes``."""

    is_current: ClassVar[bool] = False
    """Each class is an object, of which only the current value counts, within `TOLERANCE`."""

    def item(self, name: str, number: int) -> bytes:
        """The payload of an item of a class. ``number``: how many there were before it."""
        return name.encode()

    def class_of(self, payload: str) -> str:
        """The class of an item, by its payload alone; empty when that cannot be read."""
        return payload

    def interest(self, wants: str) -> str:
        """The interest in classes, which stand with commas between them; none: in everything."""
        return wants


class AttributeWriting(ClassWriting):
    """The same for the kind ``attributes``."""

    def item(self, name: str, number: int) -> bytes:
        return json.dumps({"class": name}).encode()

    def class_of(self, payload: str) -> str:
        return _member(payload, "class")

    def interest(self, wants: str) -> str:
        names = ", ".join(f"'{name}'" for name in wants.split(","))
        return f"class IN ({names})" if wants else "TRUE"


class ObjectWriting(ClassWriting):
    """The same for the kind ``coherency``: a class is an object, and its value goes up and down."""

    is_current: ClassVar[bool] = True

    def item(self, name: str, number: int) -> bytes:
        return json.dumps({"object": name, "value": number * STEP % VALUES}).encode()

    def class_of(self, payload: str) -> str:
        return _member(payload, "object")

    def interest(self, wants: str) -> str:
        return ",".join(f"{name} WITHIN {TOLERANCE}" for name in (wants or "*").split(","))


def _member(payload: str, name: str) -> str:
    try:
        found = json.loads(payload)
    except ValueError:
        return ""
    return str(found.get(name, "")) if isinstance(found, dict) else ""


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


def producer_now(simulation: Simulation, stream: str) -> Place | None:
    """The live node that produces a stream; of two in two parts of a divided ring, that of the later term."""
    found = [
        (node.record.term, -place.index, place)
        for place in simulation.live_nodes()
        if Dissemination.name in place.node.plugins
        and (node := plugin_of(place).nodes.get(stream_key(stream))) is not None
        and node.is_producer
    ]
    return max(found)[2] if found else None


@dataclass
class PublishedStream:
    """What was published in one stream, in order."""

    name: str
    writing: ClassWriting = field(default_factory=ClassWriting)
    producer: Place | None = None
    positions: list[StreamPosition] = field(default_factory=list)
    classes: list[str] = field(default_factory=list)
    payloads: dict[StreamPosition, str] = field(default_factory=dict)
    is_refused: bool = False
    """Its creation has failed in the end."""
    has_standbys: bool = False
    """Another node goes on with it when the producer has ended."""
    doubtful: set[StreamPosition] = field(default_factory=set)
    """Items that wait for the producer's disk: if it loses its power now, they are in the stream or not."""

    def in_force(self, name: str, behind: int = 0) -> list[str]:
        """The newest item of a class since the producer has last started, first; none: there is none.

        Then those that were the newest at some time while the last so many items of the stream were published.
        """
        found: list[str] = []
        newest = zip(reversed(self.positions), reversed(self.classes), strict=True)
        for number, (position, each) in enumerate(newest):
            if position.epoch != self.last.epoch:
                break
            if each == name:
                found.append(self.payloads[position])
                if number >= behind:
                    break
        return found

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
    newest: StreamPosition = START
    """The newest item that it got since it is read on this boot."""
    is_stale: bool = False
    """It was told that nobody vouches for its values."""
    begun_s: float = 0.0
    """When it began on this boot."""
    current: dict[str, str] = field(default_factory=dict)
    """The newest item of each object."""
    lost: int = 0
    """Items that it wanted, and was told to be lost."""
    resumed: int = 0
    """How often it was read on after a restart of its node."""
    is_counted: bool = False
    """An item that was awaited has come: from then on numbers must grow."""
    name: str = ""
    why_not: str = ""
    why_ended: str = ""
    """It was told that the stream is over."""
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
        self.certain: list[str] = []
        """Those of them that no hostile member can bring about: disorder, and what was not wanted."""
        self.calm_since: dict[str, StreamPosition] = {}
        """By stream: what came behind this mark was published in a calm ring. No loss of it may be told."""

    def create(self, place: Place, spec: StreamSpec, on_done: Callable[[StreamView | Exception], None]) -> None:
        """Create a stream. Raises what the plugin raises."""
        stream = self.streams.setdefault(spec.name, PublishedStream(spec.name, WRITINGS[spec.kind], place))
        stream.has_standbys = spec.producer_gone == "hand-over"

        def done(answer: StreamView | Exception) -> None:
            stream.is_refused = isinstance(answer, Exception)
            on_done(answer)

        plugin_of(place).create(spec, done)

    def publish(self, place: Place, stream: str, name: str) -> None:
        """Publish an item of a class. Raises what the plugin raises."""
        of = self.streams[stream]
        payload = of.writing.item(name, len(of.positions))
        published = plugin_of(place).publish(stream, payload)
        position = position_of(published.id)
        at = bisect_right(of.positions, position)  # at the end, but where two parts of a ring have a producer each
        of.positions.insert(at, position)
        of.classes.insert(at, name)
        of.payloads[position] = payload.decode()
        of.doubtful.add(position)

        def kept(answer: bool | Exception) -> None:
            if not isinstance(answer, Exception):
                of.doubtful.discard(position)

        plugin_of(place).when_kept(stream, kept)

    def subscribe(self, place: Place, stream: str, wants: str, after: str | None = None) -> WatchedStream:
        """Subscribe on a node. Raises what the plugin raises."""
        published = self.streams[stream]
        wanted = frozenset(wants.split(",") if wants else ())
        watched = WatchedStream(place, place.boot_epoch, published, wanted, name=f"w{len(self.watched)}")
        plugin = plugin_of(place)

        def done(answer: StreamSubscriptionView | Exception) -> None:
            if isinstance(answer, Exception):
                watched.why_not, watched.is_over = str(answer), True
                return
            watched.id = answer.id
            watched.reader = plugin.reading(answer.id)[1].reader("start")
            watched.through = published.last if after is None else position_of(after)
            watched.begun_s = place.driver.engine.now

        request = StreamSubscriptionRequest(
            stream=stream, interest=published.writing.interest(wants), after=after, name=watched.name
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
            if not watched.is_over:
                self._go_on(watched)
            if watched.is_live and not watched.is_over:
                self._read(watched)

    @staticmethod
    def _go_on(watched: WatchedStream) -> None:
        """A restarted node makes its named subscriptions again: read on there, as a client does.

        What was read lately may come twice then; nothing may be missing that is not told.
        """
        place = watched.place
        if watched.reader is None or place.boot_epoch == watched.boot or not (place.is_live and place.node.is_ready):
            return
        plugin = plugin_of(place)
        again = next((each for each in plugin.subscriptions() if each.name == watched.name), None)
        if again is None or again.state not in ("live", "orphaned"):
            return
        watched.boot, watched.id = place.boot_epoch, again.id
        watched.reader = plugin.reading(again.id)[1].reader("start")
        watched.is_counted = watched.is_stale = False
        watched.newest = START
        watched.begun_s = place.driver.engine.now
        watched.resumed += 1

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
                watched.why_ended = entry.value.reason or "ended"
                return
            else:
                watched.is_stale = entry.value.type == "stale"

    def _took(self, watched: WatchedStream, item: ReceivedItem) -> None:
        position, payload = position_of(item.id), (item.payload or "")
        published = watched.stream.between(StreamPosition(position.epoch, position.sequence - 1), position)
        watched.received += 1
        self._judge_by_itself(watched, item.id, position, payload)
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

    def _judge_by_itself(self, watched: WatchedStream, id: str, position: StreamPosition, payload: str) -> None:
        """What holds of an item whoever is hostile: it is wanted, and has a larger number than the one before."""
        writing = watched.stream.writing
        name = writing.class_of(payload)
        if not watched.matches(name):
            self._offend(watched, f"precision: got {id} of {name}, and wants {sorted(watched.wants)}", is_certain=True)
        # A value may go back where a node moves: its new parent can promise tolerances only for what that has itself.
        if not writing.is_current and position <= watched.newest:
            self._offend(watched, f"order: got {id} after {watched.newest}", is_certain=True)
        watched.newest = position

    def _told_of_loss(self, watched: WatchedStream, item: ReceivedItem) -> None:
        since, until = position_of(item.since or "0-0"), position_of(item.id)
        through = START if watched.through is None else watched.through
        if until <= through:
            return
        missing = [at for at, each in watched.stream.due(through, since) if watched.matches(each)]
        if missing and not watched.stream.writing.is_current:  # of values, those within the tolerance are left out
            self._offend(watched, f"silent loss: told of a loss after {since}, and did not get {missing[0]}")
        lost = [at for at, each in watched.stream.between(max(through, since), until) if watched.matches(each)]
        watched.lost += len(lost)
        calm_since = self.calm_since.get(watched.stream.name)
        if lost and calm_since is not None and lost[-1] > calm_since:
            self._offend(watched, f"told in a calm ring that {lost[-1]} is lost, which was published in it")
        watched.through = until

    def _offend(self, watched: WatchedStream, what: str, *, is_certain: bool = False) -> None:
        told = f"{watched.stream.name} at {watched.place}: {what}"
        for offences in (self.offences, self.certain) if is_certain else (self.offences,):
            if len(offences) < OFFENCES_MAX:
                offences.append(told)

    def ended(self) -> list[str]:
        """Which subscriptions were told that a stream is over, of those that were created."""
        over = (each for each in self.watched if each.why_ended and not each.stream.is_refused)
        return [f"{each.stream.name} is over, says {each.place}: {each.why_ended}" for each in over]

    def outdated(self, behind: int) -> list[str]:
        """Which values are out of tolerance of all that were current while the last so many items were published.

        Nothing is asked of subscriptions that know that nobody vouches for their values.
        """
        readable = (each for each in self.watched if each.is_live and not each.is_over and not each.is_stale)
        begun = (each for each in readable if each.through is not None and each.stream.writing.is_current)
        return [told for watched in begun for told in _outdated(watched, behind)]

    def unmarked(self, simulation: Simulation) -> list[str]:
        """Which subscriptions with values were not told that their producer is gone, though it has long ended."""
        found, now, truth = [], simulation.now, simulation.truth
        for watched in self.watched:
            producer = watched.stream.producer
            if (
                producer is None
                or watched.stream.has_standbys
                or not watched.is_live
                or watched.is_over
                or not watched.stream.writing.is_current
            ):
                continue
            ended_s, runs_since_s = truth.ended.get(producer.id), truth.since.get(watched.place.id)
            if ended_s is None or runs_since_s is None or watched.place.index in truth.paused:
                continue
            if now - max(ended_s, runs_since_s, watched.begun_s) >= STALE_S and not watched.is_stale:
                told = f"{watched.place} was not told that the values of {watched.stream.name} are stale"
                found.append(f"coherency: {told}, {now - ended_s:.1f} s after its producer ended")
        return found

    def stale(self, names: Collection[str]) -> list[str]:
        """Which subscriptions to these streams, whose producers live in a calm ring, hold values as stale."""
        readable = [each for each in self.watched if each.is_live and not each.is_over and each.is_stale]
        return [
            f"coherency: {each.place} takes {each.stream.name} for stale"
            for each in readable
            if each.stream.name in names
        ]

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


def _outdated(watched: WatchedStream, behind: int = 0) -> list[str]:
    """Which objects a subscription has not within its tolerance."""
    found = []
    for name in sorted(set(watched.stream.classes)):
        in_force, had = watched.stream.in_force(name, behind), watched.current.get(name)
        if not in_force or not watched.matches(name):
            continue
        values = [json.loads(payload)["value"] for payload in in_force]
        if had is None or all(abs(json.loads(had)["value"] - value) > TOLERANCE for value in values):
            found.append(f"coherency: {watched.place} has {had} of {watched.stream.name}, and {in_force[0]} is current")
    return found
