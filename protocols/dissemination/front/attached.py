"""Documents in the swarm: attached to items, read by who gets the items, and judged.

Whoever reads a document gets the bytes that were published, or is told that they do not come; in the calm ring nobody
waits for ever for what the producer has.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Final

from peerd.api import SizedBlob, Value
from peerd.errors import Unavailable
from peerd.limits import KIB
from peerd.sim.simulation import Place, Simulation
from protocols.dissemination.front.judging import StreamJudge, WatchedStream, plugin_of, producing
from protocols.dissemination.models import ReceivedItem
from protocols.dissemination.names import START, StreamPosition
from protocols.dissemination.service import StreamRefused

SIZE_BYTES_MIN: Final = 100 * KIB
SIZE_BYTES_MAX: Final = 1024 * KIB
"""Small ones, so that a seed stays cheap: one to four chunks."""
LATE_S: Final = 150.0
"""So long after the calm ring was to be judged, nobody waits any more for what the producer has: a node that finds
nobody asks its parent, then the next node above it, and so on, with pauses of up to 36 s."""
POLL_S: Final = 5.0


@dataclass(eq=False)
class DocumentReading:
    """A client that reads a document as soon as the item with it is there."""

    watched: WatchedStream
    boot: int
    id: str
    position: StreamPosition
    missing: set[int]
    """The chunks about which nothing is known yet."""
    told: list[str] = field(default_factory=list)
    """Why some do not come."""

    @property
    def is_waiting(self) -> bool:
        """Whether the client has heard nothing yet of a chunk; nobody waits at a node that has ended since."""
        place = self.watched.place
        is_there = place.is_live and place.boot_epoch == self.boot and not self.watched.is_over
        return is_there and bool(self.missing)


class DocumentJudge:
    """Publishes documents, reads those that come, and compares."""

    def __init__(self, judge: StreamJudge, rng: Random) -> None:
        self._judge, self._rng = judge, rng
        self._number = 0
        self.readings: list[DocumentReading] = []
        self.wrong: list[str] = []
        """What no hostile node can bring about: other bytes than those that were published."""
        judge.on_document = self._came

    def publish(self, place: Place, label: str, name: str, on_done: Callable[[Exception | None], None]) -> None:
        """Publish an item of a class with a document. Raises what the plugin raises."""
        self._number += 1
        size, stream = self._rng.randint(SIZE_BYTES_MIN, SIZE_BYTES_MAX), self._judge.streams[label]
        payload = stream.writing.item(name, len(stream.positions))
        draft = plugin_of(place).documents.draft(stream.name, size, f"{self._number}.bin", "", payload)
        begins: list[bytes] = []

        def go_on(answer: bool | Exception) -> None:
            try:
                if isinstance(answer, Exception):
                    raise answer
                if draft.piece_bytes:
                    begin = b"chunk %d of document %d" % (len(begins), self._number)
                    begins.append(begin[: draft.piece_bytes])  # the last one may be shorter
                    draft.add(SizedBlob(begins[-1], draft.piece_bytes - len(begins[-1])), go_on)
                    return
                position = self._judge.published(place, stream, name, payload, draft.publish())
                stream.documents[position] = begins
            except (StreamRefused, Unavailable) as error:
                draft.drop()
                on_done(error)
                return
            on_done(None)

        go_on(True)

    def _came(self, watched: WatchedStream, item: ReceivedItem, position: StreamPosition) -> None:
        begins = watched.stream.documents.get(position)
        if item.document is not None and begins is not None:
            chunks = set(range(len(begins)))
            reading = DocumentReading(watched, watched.place.boot_epoch, item.document.id, position, chunks)
            self.readings.append(reading)
            for chunk, begin in enumerate(begins):
                self._read(reading, chunk, begin)

    def _read(self, reading: DocumentReading, chunk: int, begin: bytes) -> None:
        place = reading.watched.place

        def done(piece: Value | Exception) -> None:
            reading.missing.discard(chunk)
            if isinstance(piece, Exception):
                reading.told.append(str(piece))
            elif (piece.payload if isinstance(piece, SizedBlob) else piece) != begin:
                self.wrong.append(f"{place} reads other bytes than those of document {reading.id}")

        try:
            plugin_of(place).documents.read(reading.id, chunk, done)
        except (StreamRefused, Unavailable) as error:
            done(error)

    # The calm ring

    def verdict(self, simulation: Simulation) -> list[str]:
        """Who waits for what does not come, though the producer has it; and who did not get what is new."""
        calm_since = {id(self._judge.streams[label]): at for label, at in self._judge.calm_since.items()}
        until = simulation.now + LATE_S
        while simulation.now < until and any(self._is_due(simulation, each) for each in self.readings):
            simulation.run_for(POLL_S)
        found = [
            f"{each.watched.place} waits for document {each.id}, which the producer of {each.watched.stream.name} has"
            for each in self.readings
            if self._is_due(simulation, each)
        ]
        return found + [
            f"in a calm ring {each.watched.place} is told of document {each.id}: {each.told[0]}"
            for each in self.readings
            if each.told and _is_calm(each, calm_since)
        ]

    @staticmethod
    def _is_due(simulation: Simulation, reading: DocumentReading) -> bool:
        if not reading.is_waiting:
            return False
        stores = (plugin_of(place).exchange.store for place in producing(simulation, reading.watched.stream))
        kept = (store.get(bytes.fromhex(reading.id)) for store in stores)
        return any(each is not None and each.is_complete for each in kept)


def _is_calm(reading: DocumentReading, calm_since: Mapping[int, StreamPosition]) -> bool:
    since = calm_since.get(id(reading.watched.stream))
    return since is not None and reading.position > max(since, START)
