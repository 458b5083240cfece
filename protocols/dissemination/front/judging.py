"""What must hold of streams, judged from outside: by what producers published and what subscriptions got.

Precision (invariant 14): what a subscription gets, its interest matches, by the reference. No silent loss (19): what it
got, and the losses that it was told of, are together all that matches. First in, first out (20): numbers grow strictly.
What is judged from inside the nodes is in `protocols.dissemination.front.checkers`.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from peerd.ids import NodeId, format_id
from peerd.lib.feed import FeedDropped, FeedEnd, FeedItem, Reader
from peerd.sim.simulation import Place, Simulation
from protocols.dissemination.front.published import TOLERANCE, WRITINGS, PublishedStream
from protocols.dissemination.models import (
    ItemPublished,
    ReceivedItem,
    StreamSpec,
    StreamSubscriptionRequest,
    StreamSubscriptionView,
    StreamView,
)
from protocols.dissemination.names import START, StreamPosition, position_of, stream_key
from protocols.dissemination.plugin import Dissemination
from protocols.dissemination.stream_node import StreamNode

OFFENCES_MAX: Final = 20
RIVAL: Final = "another producer has the name"
"""What the subscriptions to one of two streams of a name are told."""
STALE_S: Final = 15.0
"""So long after the producer has ended, every subscription with values knows that nobody vouches for them. The nodes
below the producer notice after 3.5 s (`SILENT_S`), and tell those below them; the rest is for marks that are lost."""


def plugin_of(place: Place) -> Dissemination:
    """The plugin of a simulated node. Raises ``KeyError`` when the node runs without it."""
    plugin = place.node.plugins[Dissemination.name]
    assert isinstance(plugin, Dissemination)
    return plugin


def node_of(place: Place, name: str) -> StreamNode | None:
    """What a simulated node knows of a stream that it takes part in."""
    return plugin_of(place).nodes.get(stream_key(name)) if place.is_live else None


@dataclass
class WatchedStream:
    """A subscription on a simulated node, and what came to it. ``wants``: its classes; none: everything."""

    place: Place
    boot: int
    stream: PublishedStream
    wants: frozenset[str]
    id: str = ""
    reader: Reader[ReceivedItem] | None = None
    watermark: StreamPosition | None = None
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
    unread_until: float = 0.0
    """Its client does not read before then."""
    was_slow: bool = False
    """Its client has not read for a while, and has not caught up yet."""
    dropped: int = 0
    """Entries that its feed has let go of since the newest item that was read."""
    gaps: list[int] = field(default_factory=list)
    """How many items that it wanted each loss has cost it."""
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
        """By label: their names, and something else for a second stream of one name."""
        self.watched: list[WatchedStream] = []
        self.offences: list[str] = []
        self.certain: list[str] = []
        """Those of them that no hostile member can bring about: disorder, and what was not wanted."""
        self.calm_since: dict[str, StreamPosition] = {}
        """By label: what came behind this mark was published in a calm ring. No loss of it may be told."""
        self._node_losses: defaultdict[tuple[NodeId, str], list[tuple[StreamPosition, StreamPosition]]] = defaultdict(
            list
        )
        """What nodes have lost of a stream, and have told all their subscriptions."""
        self.on_document: Callable[[WatchedStream, ReceivedItem, StreamPosition], None] = lambda watched, item, at: None
        """Is told of each item that comes with a document."""

    def create(
        self, place: Place, spec: StreamSpec, on_done: Callable[[StreamView | Exception], None], label: str = ""
    ) -> None:
        """Create a stream. Raises what the plugin raises. ``label``: its name among several streams of one name."""
        made = PublishedStream(spec, WRITINGS[spec.kind], place, {place.id: place}, format_id(place.id))
        stream = self.streams.setdefault(label or spec.name, made)

        def done(answer: StreamView | Exception) -> None:
            stream.is_refused = isinstance(answer, Exception)
            stream.is_created = not stream.is_refused
            on_done(answer)

        plugin_of(place).changes.create(spec, done)

    def publish(self, place: Place, stream: str, name: str, padding: int = 0) -> None:
        """Publish an item of a class. Raises what the plugin raises.

        A producer that has lost the name may have taken over the other stream of that name since.
        """
        of = self.streams[self.label_of(place, self.streams[stream].name)]
        payload = of.writing.item(name, len(of.positions), padding)
        self.published(place, of, name, payload, plugin_of(place).publishers.publish(of.name, payload))

    @staticmethod
    def published(
        place: Place, of: PublishedStream, name: str, payload: bytes, answer: ItemPublished
    ) -> StreamPosition:
        """A node has published an item of a class. Returns its place."""
        position = position_of(answer.id)
        of.add(position, name, payload, place.driver.engine.now)
        of.doubtful.add(position)

        def kept(answer: bool | Exception) -> None:
            if not isinstance(answer, Exception):
                of.doubtful.discard(position)

        plugin_of(place).publishers.when_kept(of.name, kept)
        return position

    def label_of(self, place: Place, name: str) -> str:
        """Which stream of a name a node takes part in."""
        labels = [label for label, stream in self.streams.items() if stream.name == name]
        node = node_of(place, name) if len(labels) > 1 else None
        if node is None:
            return labels[0]
        return next((label for label in labels if self.streams[label].creator == node.record.creator), labels[0])

    def rivals(self, stream: PublishedStream) -> list[PublishedStream]:
        """The other streams of its name."""
        others = (each for each in self.streams.values() if each is not stream and each.is_created)
        return [each for each in others if each.name == stream.name]

    def untold(self, simulation: Simulation) -> list[str]:
        """Which subscriptions to a stream that has given way to another one of its name were not told so."""
        return [
            f"{each.place} was not told that another producer has the name {each.stream.name}"
            for each in self.watched
            if each.is_live and not each.is_over and self._has_rival(each.stream, simulation)
            if any(producer.is_live for producer in each.stream.producers.values())
            if any(producing(simulation, rival) for rival in self.rivals(each.stream))  # else the ring knows neither
        ]

    def taken_over(self, place: Place, name: str, *, is_whole: bool) -> None:
        """A node has become a stream's producer. ``is_whole``: it had everything of the one before."""
        node = node_of(place, name)
        for stream in self.streams.values():
            if node is not None and stream.name == name and stream.creator == node.record.creator:
                stream.producer = stream.producers[place.id] = place
                stream.begins(node.epoch, is_whole=is_whole)

    def node_lost(self, place: Place, name: str, since: StreamPosition, until: StreamPosition) -> None:
        """A node has lost a part of a stream, which it tells its subscriptions."""
        self._node_losses[place.id, name].append((since, until))

    def subscribe(self, place: Place, stream: str, wants: str, after: str | None = None) -> WatchedStream:
        """Subscribe on a node. Raises what the plugin raises."""
        published = self.streams[self.label_of(place, stream)]
        wanted = frozenset(wants.split(",") if wants else ())
        watched = WatchedStream(place, place.boot_epoch, published, wanted, name=f"w{len(self.watched)}")
        plugin = plugin_of(place)

        def done(answer: StreamSubscriptionView | Exception) -> None:
            if isinstance(answer, Exception):
                watched.why_not, watched.is_over = str(answer), True
                return
            watched.id = answer.id
            watched.stream = published = self.streams[self.label_of(place, stream)]
            watched.reader = plugin.subscribing.reading(answer.id)[1].reader("start")
            watched.watermark = published.last if after is None else position_of(after)
            watched.begun_s = place.driver.engine.now

        request = StreamSubscriptionRequest(
            stream=stream, interest=published.writing.interest(wants), after=after, name=watched.name
        )
        plugin.subscribing.subscribe(request, done)
        self.watched.append(watched)
        return watched

    def end(self, watched: WatchedStream) -> None:
        """End a subscription whose node lives."""
        self._read(watched)
        watched.is_over = True
        plugin_of(watched.place).subscribing.unsubscribe(watched.id)

    def read(self) -> None:
        """Take what has come to every subscription, and compare it."""
        for stream in self.streams.values():
            stream.epochs |= {node.epoch for _, node in _producers(stream)}
        for watched in self.watched:
            if not watched.is_over:
                self._go_on(watched)
            if watched.is_live and not watched.is_over and watched.place.driver.engine.now >= watched.unread_until:
                self._read(watched)

    def _go_on(self, watched: WatchedStream) -> None:
        """A restarted node makes its named subscriptions again: read on there, as a client does.

        What was read lately may come twice then; nothing may be missing that is not told.
        """
        place = watched.place
        if watched.reader is None or place.boot_epoch == watched.boot or not (place.is_live and place.node.is_ready):
            return
        plugin = plugin_of(place)
        again = next((each for each in plugin.subscribing.subscriptions() if each.name == watched.name), None)
        if again is None or again.state not in ("live", "orphaned"):
            return
        watched.boot, watched.id = place.boot_epoch, again.id
        if self.streams[self.label_of(place, watched.stream.name)] is not watched.stream:
            watched.is_over = True  # its mark is one of another stream of the name, and says nothing in this one
            return
        watched.reader = plugin.subscribing.reading(again.id)[1].reader("start")
        watched.is_counted = watched.is_stale = False
        watched.newest = START
        watched.was_slow, watched.dropped = False, 0
        watched.begun_s = place.driver.engine.now
        watched.resumed += 1

    def _read(self, watched: WatchedStream) -> None:
        while watched.reader is not None and (entry := watched.reader.take()) is not None:
            if isinstance(entry, FeedEnd):  # the node stops: clients come back to another one
                watched.is_over = True
            elif isinstance(entry, FeedDropped) and watched.was_slow:
                watched.dropped += entry.count
            elif not isinstance(entry, FeedItem):
                self._offend(watched, f"its feed says {entry} although it is read all the time")
            elif entry.value.type == "item":
                self._took(watched, entry.value)
            elif entry.value.type == "lost":
                self._told_of_loss(watched, entry.value)
            elif entry.value.type == "ended":
                watched.is_over = True
                if watched.stream.is_created:  # else it was not, and is perhaps with another attempt
                    watched.why_ended = entry.value.reason or "ended"
                return
            else:
                watched.is_stale = entry.value.type == "stale"
        watched.was_slow = False

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
        if item.document is not None:
            self.on_document(watched, item, position)
        if watched.stream.writing.is_current:
            watched.current[name] = payload  # whether that is the current value is judged in the end
            return
        watermark = watched.watermark
        if watermark is None or position <= watermark:
            # What came between its beginning and the answer about it was not awaited yet.
            if watermark is not None and watched.is_counted:
                self._offend(watched, f"order: got {item.id} after {watermark}")
            return
        missing = [
            at for at, each in watched.stream.due(watermark, position) if watched.matches(each) and at != position
        ]
        if self._is_silent(watched, missing):
            self._offend(watched, f"silent loss: got {item.id} after {watermark}, and not {missing[0]}")
        watched.watermark = position
        watched.is_counted = True

    def _is_silent(self, watched: WatchedStream, missing: Sequence[StreamPosition]) -> bool:
        """Whether more is missing than its feed has let go of; with that, perhaps, the news of a loss of many items."""
        dropped, watched.dropped = watched.dropped, 0
        if dropped:
            lost = self._node_losses[watched.place.id, watched.stream.name]
            missing = [at for at in missing if not any(since < at <= until for since, until in lost)]
        return len(missing) > dropped

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
        watermark = START if watched.watermark is None else watched.watermark
        if until <= watermark:
            return
        missing = [at for at, each in watched.stream.due(watermark, since) if watched.matches(each)]
        # Of values, those within the tolerance were left out.
        if self._is_silent(watched, missing) and not watched.stream.writing.is_current:
            self._offend(watched, f"silent loss: told of a loss after {since}, and did not get {missing[0]}")
        lost = [at for at, each in watched.stream.due(max(watermark, since), until) if watched.matches(each)]
        watched.lost += len(lost)
        watched.gaps.append(len(lost))
        self._judge_gap(watched, since, until, lost)
        calm_since = self.calm_since.get(self.label(watched.stream))
        if lost and calm_since is not None and lost[-1] > calm_since:
            self._offend(watched, f"told in a calm ring that {lost[-1]} is lost, which was published in it")
        watched.watermark = until

    def _judge_gap(
        self, watched: WatchedStream, since: StreamPosition, until: StreamPosition, lost: list[StreamPosition]
    ) -> None:
        """Nothing may be called lost that somebody is bound to remember."""
        config, now = plugin_of(watched.place).config, watched.place.driver.engine.now
        kept = [at for at in lost if not watched.stream.may_lack(at, since, until, config, now)]
        if kept:
            told = f"a gap of {len(lost)} items after {since}, up to {until}, of which {len(kept)} are remembered"
            self._offend(watched, f"{told}: {kept[0]}")

    def label(self, stream: PublishedStream) -> str:
        """What a stream is called here."""
        return next(label for label, each in self.streams.items() if each is stream)

    def _offend(self, watched: WatchedStream, what: str, *, is_certain: bool = False) -> None:
        told = f"{watched.stream.name} at {watched.place}: {what}"
        for offences in (self.offences, self.certain) if is_certain else (self.offences,):
            if len(offences) < OFFENCES_MAX:
                offences.append(told)

    def ended(self, simulation: Simulation) -> list[str]:
        """Which subscriptions were told that a stream is over, of those that were created and have no rival that lives.

        Of two streams of a name one is over, and those who have its items are told so.
        """
        over = (each for each in self.watched if each.why_ended and not each.stream.is_refused)
        return [
            f"{each.stream.name} is over, says {each.place}: {each.why_ended}"
            for each in over
            if not (each.why_ended == RIVAL and self._has_rival(each.stream, simulation))
        ]

    def _has_rival(self, stream: PublishedStream, simulation: Simulation) -> bool:
        """Whether there is, or was, another stream of the name, and this one has no producer any more."""
        return bool(self.rivals(stream)) and not producing(simulation, stream)

    def outdated(self, behind: int) -> list[str]:
        """Which values are out of tolerance of all that were current while the last so many items were published.

        Nothing is asked of subscriptions that know that nobody vouches for their values, and of streams whose producer
        is behind.
        """
        known = (each for each in self.watched if each.is_live and not each.is_over and not each.is_stale)
        readable = (each for each in known if not each.was_slow)
        begun = (each for each in readable if each.watermark is not None and each.stream.writing.is_current)
        begun = (each for each in begun if not _is_behind(each.stream))
        return [told for watched in begun for told in _outdated(watched, behind)]

    def unmarked(self, simulation: Simulation) -> list[str]:
        """Which subscriptions with values were not told that their producer is gone, though it has long ended."""
        found, now, truth = [], simulation.now, simulation.truth
        self._note_producers(simulation)
        for watched in self.watched:
            producer, since_s = watched.stream.producer, watched.stream.without_producer_since
            if producer is None or not watched.is_live or watched.is_over or not watched.stream.writing.is_current:
                continue
            if since_s is None or watched.was_slow:
                continue
            ended_s, runs_since_s = truth.ended.get(producer.id), truth.since.get(watched.place.id)
            if ended_s is None or runs_since_s is None or watched.place.index in truth.paused:
                continue
            if now - max(ended_s, since_s, runs_since_s, watched.begun_s) >= STALE_S and not watched.is_stale:
                told = f"{watched.place} was not told that the values of {watched.stream.name} are stale"
                found.append(f"coherency: {told}, {now - ended_s:.1f} s after its producer ended")
        return found

    def _note_producers(self, simulation: Simulation) -> None:
        ended = simulation.truth.ended
        for stream in self.streams.values():
            if now := producing(simulation, stream):
                stream.producer, stream.without_producer_since = now[-1], None
                if node := node_of(now[-1], stream.name):
                    stream.begins(node.epoch)  # it may have begun anew, and has published nothing since
            elif stream.without_producer_since is None:
                all_ended = not any(each.is_live for each in stream.producers.values())
                ends = [ended.get(id, 0.0) for id in stream.producers]
                stream.without_producer_since = max(ends) if all_ended else simulation.now

    def stale(self, labels: Collection[str]) -> list[str]:
        """Which subscriptions to these streams, whose producers live in a calm ring, hold values as stale."""
        readable = [each for each in self.watched if each.is_live and not each.is_over and each.is_stale]
        return [
            f"coherency: {each.place} takes {each.stream.name} for stale"
            for each in readable
            if self.label(each.stream) in labels
        ]

    def missing(self, watermark: dict[str, StreamPosition]) -> list[str]:
        """Which subscriptions have not had, up to a mark of each stream, what they want (or were told of a loss)."""
        found = []
        for watched in self.watched:
            until = watermark.get(self.label(watched.stream))
            if until is None or not watched.is_live or watched.is_over or watched.watermark is None:
                continue
            if watched.stream.writing.is_current:
                found += _outdated(watched)
                continue
            due = [at for at, each in watched.stream.due(watched.watermark, until) if watched.matches(each)]
            if due:
                found.append(
                    f"recall: {len(due)} items from {due[0]} on of {watched.stream.name} are not at {watched.place}"
                )
        return found


def producing(simulation: Simulation, stream: PublishedStream) -> list[Place]:
    """The nodes that take themselves for a stream's producer now, the one of the latest term last.

    In a divided ring there may be two.
    """
    honest = [(place, node) for place, node in _producers(stream) if not simulation.is_hostile(place.id)]
    return [place for place, node in sorted(honest, key=lambda each: (each[1].epoch, each[0].index))]


def _producers(stream: PublishedStream) -> Iterator[tuple[Place, StreamNode]]:
    for place in stream.producers.values():
        node = node_of(place, stream.name)
        if node is not None and node.is_producer and node.record.creator == stream.creator:
            yield place, node


def _is_behind(stream: PublishedStream) -> bool:
    """Whether its producer goes on after it has handed the stream over to another one that is gone: it does not know
    yet what that has published, and nor do those below it until it takes the stream back, after a lease at most."""
    epochs = [node.epoch for _, node in _producers(stream)]
    return bool(epochs) and max(epochs) < stream.newest_epoch


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
