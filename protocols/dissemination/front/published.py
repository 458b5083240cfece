"""What was published in a simulated stream, by whom, and what of it may be lost: what `judging` compares with."""

from __future__ import annotations

import json
from bisect import bisect_left, bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Final

from peerd.ids import NodeId
from peerd.sim.simulation import Place
from protocols.dissemination.config import DisseminationConfig
from protocols.dissemination.models import StreamSpec
from protocols.dissemination.names import START, TERM_SHIFT, StreamPosition


class ClassWriting:
    """How items of a class, and wants for classes, are written for the kind ``classes``."""

    is_current: ClassVar[bool] = False
    """Each class is an object, of which only the current value counts, within `TOLERANCE`."""
    takes_padding: ClassVar[bool] = False

    def item(self, name: str, number: int, padding: int = 0) -> bytes:
        """The payload of an item of a class. ``number``: how many there were before it. ``padding``: bytes besides,
        where the kind has room for them."""
        return name.encode()

    def class_of(self, payload: str) -> str:
        """The class of an item, by its payload alone; empty when that cannot be read."""
        return payload

    def interest(self, wants: str) -> str:
        """The interest in classes, which stand with commas between them; none: in everything."""
        return wants


class AttributeWriting(ClassWriting):
    """The same for the kind ``attributes``."""

    takes_padding: ClassVar[bool] = True

    def item(self, name: str, number: int, padding: int = 0) -> bytes:
        return json.dumps({"class": name, "padding": "." * padding} if padding else {"class": name}).encode()

    def class_of(self, payload: str) -> str:
        return _member(payload, "class")

    def interest(self, wants: str) -> str:
        names = ", ".join(f"'{name}'" for name in wants.split(","))
        return f"class IN ({names})" if wants else "TRUE"


class ObjectWriting(ClassWriting):
    """The same for the kind ``coherency``: a class is an object, and its value goes up and down."""

    is_current: ClassVar[bool] = True

    def item(self, name: str, number: int, padding: int = 0) -> bytes:
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


@dataclass
class PublishedStream:
    """What was published in one stream, in order of positions."""

    spec: StreamSpec
    writing: ClassWriting = field(default_factory=ClassWriting)
    producer: Place | None = None
    """Who has created it, or taken it over last."""
    producers: dict[NodeId, Place] = field(default_factory=dict)
    """All who ever were its producer."""
    creator: str = ""
    """As its record names it: what tells it from another stream of the name, made in another part of a divided ring."""
    positions: list[StreamPosition] = field(default_factory=list)
    classes: list[str] = field(default_factory=list)
    payloads: dict[StreamPosition, str] = field(default_factory=dict)
    published_s: dict[StreamPosition, float] = field(default_factory=dict)
    documents: dict[StreamPosition, list[bytes]] = field(default_factory=dict)
    """What the chunks of the documents begin with that are attached to items."""
    is_refused: bool = False
    """Its creation has failed in the end."""
    is_created: bool = False
    doubtful: set[StreamPosition] = field(default_factory=set)
    """Items that wait for the producer's disk: if it loses its power now, they are in the stream or not."""
    disputed: set[StreamPosition] = field(default_factory=set)
    """Items of a producer that did not know yet of another one of a later term: members there do not get them."""
    newest_epoch: int = 0
    whole_epochs: set[int] = field(default_factory=set)
    """Those that begin where the one before has ended: with nothing lost in between."""
    epochs: set[int] = field(default_factory=set)
    """All in which it had a producer, as far as that was seen; some have no items."""
    without_producer_since: float | None = None
    """Nobody has been its producer since then."""

    @property
    def name(self) -> str:
        """The name that clients use."""
        return self.spec.name

    def begins(self, epoch: int, *, is_whole: bool = False) -> None:
        """A producer numbers its items so from now on."""
        self.newest_epoch = max(self.newest_epoch, epoch)
        self.epochs.add(epoch)
        if is_whole:
            self.whole_epochs.add(epoch)

    def add(self, position: StreamPosition, name: str, payload: bytes, now: float) -> None:
        """An item was published."""
        self.begins(position.epoch)
        at = bisect_left(self.positions, position)
        self.positions.insert(at, position)
        self.classes.insert(at, name)
        self.payloads[position] = payload.decode()
        self.published_s[position] = now
        if position.epoch < self.newest_epoch:
            self.disputed.add(position)

    def in_force(self, name: str, behind: int = 0) -> list[str]:
        """The newest item of a class since a producer has last begun anew, first; nothing: there is none.

        Then those that were the newest at some time while the last so many items of the stream were published; nothing
        where at the beginning of that time there was none yet: the first one may still be on its way.
        """
        found: list[str] = []
        epoch, anew = max(self.epochs, default=0), self.epochs - self.whole_epochs
        newest = zip(reversed(self.positions), reversed(self.classes), strict=True)
        for number, (position, each) in enumerate(newest):
            if any(position.epoch < begun <= epoch for begun in anew):
                break
            epoch = position.epoch
            if each == name:
                found.append(self.payloads[position])
                if number >= behind:
                    return found
        return []

    @property
    def last(self) -> StreamPosition:
        """The newest item's place."""
        return self.positions[-1] if self.positions else START

    def between(self, since: StreamPosition, until: StreamPosition) -> list[tuple[StreamPosition, str]]:
        """What was published behind one mark and before another."""
        first, last = bisect_right(self.positions, since), bisect_right(self.positions, until)
        return list(zip(self.positions[first:last], self.classes[first:last], strict=True))

    def due(self, since: StreamPosition, until: StreamPosition) -> list[tuple[StreamPosition, str]]:
        """The same, without what the producer may have lost before anybody had it, and what is disputed."""
        between = self.between(since, until)
        return [each for each in between if each[0] not in self.doubtful and each[0] not in self.disputed]

    # What may be lost

    def may_lack(
        self, at: StreamPosition, since: StreamPosition, until: StreamPosition, config: DisseminationConfig, now: float
    ) -> bool:
        """Whether a subscription may be told, with a loss between two marks, that it does not get the item at a place.

        It may where the producer had forgotten all that was before, and where more has come than nodes remember: since
        the item, or in this one loss, as a queue for a slow child lets go of all that it holds at once.
        """
        if now - self.published_s[at] >= config.replay_for or self._has_forgotten(at.epoch, until.epoch):
            return True
        if self._is_on_old_disk(at, until):
            return True
        count = len(self.positions)
        behind = count - bisect_right(self.positions, at)
        at_once = bisect_right(self.positions, until) - bisect_right(self.positions, since)
        return max(behind, at_once) >= config.replay_items

    def _has_forgotten(self, before: int, after: int) -> bool:
        """Whether a producer between these epochs began without what was before it."""
        epochs = sorted({after, *self.epochs})
        begun = [each for each in epochs if before < each <= after]
        for earlier, epoch in zip([before, *begun], begun, strict=False):
            is_same_term = earlier >> TERM_SHIFT == epoch >> TERM_SHIFT
            if epoch not in self.whole_epochs and not (self.spec.durable and is_same_term):
                return True
        return False

    def _is_on_old_disk(self, at: StreamPosition, until: StreamPosition) -> bool:
        """Whether it is from before a hand-over, and the producer since then was restarted: what the old producer's
        disk has of a durable stream does not move with it. The loss goes up to the hand-over at least."""
        for term in {epoch >> TERM_SHIFT for epoch in self.whole_epochs}:
            is_restarted = sum(epoch >> TERM_SHIFT == term for epoch in self.epochs) > 1
            begin = StreamPosition(term << TERM_SHIFT, 0)
            if self.spec.durable and is_restarted and at < begin and not self.due(until, begin):
                return True
        return False
