"""What goes on with streams in the swarm besides plain use: hand-overs, slow readers and links, rivals, documents."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from random import Random
from typing import Final

from peerd.errors import Unavailable
from peerd.limits import KIB
from peerd.sim.simulation import Place, Simulation, Watcher
from peerd.telemetry.schema import Event
from protocols.dissemination.events import StreamLoss, StreamProducerReplaced, StreamTakenOver
from protocols.dissemination.front.attached import DocumentJudge
from protocols.dissemination.front.judging import StreamJudge, WatchedStream, node_of, plugin_of, producing
from protocols.dissemination.models import StreamView
from protocols.dissemination.names import position_of, stream_key
from protocols.dissemination.service import StreamRefused

UNREAD_MAX_S: Final = 30.0
"""A client that is slow reads nothing for up to this time."""
SLOW_S: Final = 15.0
SLOW_BYTES_PER_S: Final = 40_000.0
"""What a slow link takes; more than the overlay needs, and much less than the burst of items."""
BURST_ITEMS: Final = 10
BURST_PARTS: Final = 12
BURST_S: Final = 6.0
BURST_BYTES: Final = 6 * KIB
"""The burst: more items than nodes remember in the swarm, and than its feeds hold, and more bytes than the kernels at
both ends of a link hold, and `slow_bytes`."""
ANSWERED_S: Final = 150.0
"""Whoever asks for a hand-over is answered within this: 60 s to prepare, 10 s of pause, 20 s to take, and a lease."""


class StreamNews(Watcher):
    """Tells the judge of every node that takes a stream over, or loses a part of one."""

    name = "stream news"

    def __init__(self, judge: StreamJudge) -> None:
        self._judge = judge

    def emitted(self, simulation: Simulation, place: Place, event: Event) -> None:
        """A node records an event."""
        if isinstance(event, StreamTakenOver | StreamProducerReplaced):
            is_whole = isinstance(event, StreamTakenOver)
            self._judge.taken_over(place, str(event.stream), is_whole=is_whole)
        elif isinstance(event, StreamLoss):
            self._judge.node_lost(place, str(event.stream), position_of(event.since), position_of(event.until))


class Troubles:
    """Each method does one thing, if it can be done now."""

    def __init__(self, simulation: Simulation, rng: Random, judge: StreamJudge) -> None:
        self._simulation, self._rng, self._judge = simulation, rng, judge
        self.documents = DocumentJudge(judge, rng)
        self._asked: list[tuple[Place, int, float, list[StreamView | Exception]]] = []
        self.slow_until = 0.0
        """Until then a link may hold up what has nothing to do with it: what waits for it has come by then."""
        simulation.watch(StreamNews(judge))

    def strike(self, place: Place, classes: str) -> None:
        """One of them. Raises what the plugin raises."""
        acts: list[Callable[[], None]] = [
            self._hand_one_over,
            self._read_slowly,
            lambda: self._attach_one(classes),
            lambda: self._attach_one(classes),
        ]
        if not (self._simulation.network.is_faulty and self._take_name(place)):
            self._rng.choice(acts)()

    # Another producer

    def _hand_one_over(self) -> None:
        labels = [label for label, stream in self._judge.streams.items() if not self._judge.rivals(stream)]
        if labels:
            self.hand_over(self._rng.choice(labels))

    def hand_over(self, label: str) -> list[StreamView | Exception] | None:
        """Hand a stream over to some member of its tree; ``None``: nobody produces it now, or there is nobody else."""
        stream = self._judge.streams[label]
        producers = producing(self._simulation, stream)
        members = [
            each
            for each in self._simulation.honest_nodes()
            if each not in producers and node_of(each, stream.name) is not None
        ]
        if not producers or not members:
            return None
        told: list[StreamView | Exception] = []
        plugin_of(producers[-1]).changes.hand_over(stream.name, self._rng.choice(members).peer.address, told.append)
        self._asked.append((producers[-1], producers[-1].boot_epoch, self._simulation.now, told))
        return told

    def _take_name(self, place: Place) -> bool:
        """Create a stream of a name that is taken in another part of the divided ring; whether there is such a name."""
        for label, stream in list(self._judge.streams.items()):
            if not stream.is_created or self._judge.rivals(stream) or place.id in stream.producers:
                continue
            producers = producing(self._simulation, stream)
            is_apart = producers and all(self._is_cut(each, place) for each in producers)
            if is_apart and plugin_of(place).nodes.get(stream_key(stream.name)) is None:
                self._judge.create(place, stream.spec, lambda answer: None, f"{label} at {place.index}")
                return True
        return False

    def _is_cut(self, one: Place, other: Place) -> bool:
        network = self._simulation.network
        return network.is_cut(one.port, other.port) and network.is_cut(other.port, one.port)

    # Slow ones

    def _live(self) -> list[WatchedStream]:
        return [each for each in self._judge.watched if each.is_live and not each.is_over]

    def _read_slowly(self) -> None:
        """A client reads nothing for a while."""
        if live := self._live():
            self._stop_reading(self._rng.choice(live), self._rng.uniform(1.0, UNREAD_MAX_S))

    def _stop_reading(self, watched: WatchedStream, duration_s: float) -> None:
        watched.unread_until = self._simulation.now + duration_s
        watched.was_slow = True

    def slow_down(self) -> bool:
        """A subscriber's link takes little for a while, its client nothing, and much is published that it wants.

        Returns whether there was somebody to do it to.
        """
        found = [each for each in self._live() if each.stream.writing.takes_padding]
        if not found:
            return False
        slow = self._rng.choice(found)
        producers = producing(self._simulation, slow.stream)
        if not producers or slow.place in producers:
            return False
        self._limit(slow.place)
        self._stop_reading(slow, SLOW_S)
        for part in range(BURST_PARTS):
            self._simulation.after(part * BURST_S / BURST_PARTS, partial(self._publish_some, slow))
        return True

    def _publish_some(self, slow: WatchedStream) -> None:
        self._judge.read()  # those who read all the time do not fall behind
        label = self._judge.label(slow.stream)
        for place in producing(self._simulation, slow.stream)[-1:]:
            with suppress(StreamRefused, Unavailable):  # it is being handed over, or outside the ring
                for _ in range(BURST_ITEMS):
                    self._judge.publish(place, label, self._rng.choice(sorted(slow.wants) or ["a"]), BURST_BYTES)

    def _limit(self, place: Place) -> None:
        simulation = self._simulation
        place.port.down_s_per_byte = 1.0 / SLOW_BYTES_PER_S
        simulation.network.changed()
        self.slow_until = simulation.now + 2 * SLOW_S
        simulation.truth.disturb(self.slow_until)

        def restore() -> None:
            place.port.down_s_per_byte = 0.0
            simulation.network.changed()

        simulation.after(SLOW_S, restore)

    # Documents

    def _attach_one(self, classes: str) -> None:
        streams = self._judge.streams.items()
        labels = [label for label, stream in streams if stream.is_created and not stream.writing.is_current]
        if labels:
            self.attach(self._rng.choice(labels), self._rng.choice(classes), lambda answer: None)

    def attach(self, label: str, name: str, on_done: Callable[[Exception | None], None]) -> None:
        """Publish an item with a document, if anybody produces the stream now, and not only newest values count."""
        stream = self._judge.streams[label]
        producers = producing(self._simulation, stream)
        if producers and not stream.writing.is_current:
            self.documents.publish(self._rng.choice(producers), label, name, on_done)

    # The calm ring

    def verdict(self) -> list[str]:
        """What was wrong with hand-overs and documents."""
        now = self._simulation.now
        wrong = [*self.documents.wrong, *self.documents.verdict(self._simulation)]
        return wrong + [
            f"{place} has not said for {now - at:.0f} s what has become of the hand-over of a stream"
            for place, boot, at, told in self._asked
            if not told and place.is_live and place.boot_epoch == boot and now - at >= ANSWERED_S
        ]
