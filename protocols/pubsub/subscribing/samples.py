"""What the newest events of a schema looked like: how large a share of them concerns a range of an attribute.

A subscription is kept where few events come by. Which attribute that is cannot be seen in the filter: `class = 'STOCK'`
is one value of very many, and every event may have it. The leaf of the tree `EVERY` sees all events, so its root can
say where the last ones lay, each attribute for itself. What it says is a hint: a false one costs work, and no event.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping
from typing import Annotated, Final

from msgspec import Meta

from peerd.errors import ProtocolError
from peerd.limits import KIB
from peerd.messages import U16, Message, Name, Struct, message
from protocols.pubsub.delivering.history import EventHistory
from protocols.pubsub.messages import Attribute
from protocols.pubsub.names import EVERY
from protocols.pubsub.ports import SchemaView
from protocols.pubsub.subscribing.pieces import Span
from protocols.pubsub.tree.cells import Coordinate

SAMPLE_MAX: Final = 100
"""Events of one sample."""
SAMPLE_MIN: Final = 32
"""Of fewer nothing is concluded."""
LOOKED_AT_MAX: Final = 1000
"""So far back among the events of all schemas those of one are looked for."""
ATTRIBUTES_MAX: Final = 64
"""Attributes that a sample tells of: the first ones of the schema."""


@message(0x021D, bytes_max=128)
class SampleQuestion(Message):
    """A request of the root of a leaf of the tree `EVERY`: where did the newest events of the schema lie? Answered by
    `EventSample`."""

    schema: Name


class AttributeSample(Struct):
    """Of one attribute: the coordinates of the events that have it, sorted, and how many have none but concern all of
    its tree."""

    attribute: Attribute
    points: Annotated[tuple[Coordinate, ...], Meta(max_length=SAMPLE_MAX)]
    everywhere: U16 = 0


@message(0x0220, bytes_max=40 * KIB)
class EventSample(Message):
    """Answer to `SampleQuestion`. ``events``: how many were looked at. No attributes: this node does not see all."""

    schema: Name
    events: U16
    attributes: Annotated[tuple[AttributeSample, ...], Meta(max_length=ATTRIBUTES_MAX)] = ()


def sample_of(schema: SchemaView, history: EventHistory) -> EventSample:
    """Look at the newest events of a schema that this node remembers."""
    first, end = history.bounds
    points: dict[int, list[int]] = {}
    everywhere: dict[int, int] = {}
    events = 0
    for number in range(end - 1, max(first, end - LOOKED_AT_MAX) - 1, -1):
        past = history.get(number)
        if past is None or past.schema != schema.name:
            continue
        try:
            targets = schema.targets(schema.decode_values(past.event.values))
        except ProtocolError:  # no subscription matches it
            continue
        for attribute, target in targets.items():
            if target.value is not None:
                points.setdefault(attribute, []).append(target.value)
            elif attribute != EVERY:
                everywhere[attribute] = everywhere.get(attribute, 0) + 1
        events += 1
        if events == SAMPLE_MAX:
            break
    numbers = sorted({*points, *everywhere})[:ATTRIBUTES_MAX] or [EVERY]  # it sees all, and there was none yet
    found = (AttributeSample(each, tuple(sorted(points.get(each, ()))), everywhere.get(each, 0)) for each in numbers)
    return EventSample(schema.name, events, tuple(found))


class EventShares:
    """Which share of the events concerns ranges of an attribute, by a sample that somebody has told."""

    def __init__(self, sample: EventSample) -> None:
        self.events = sample.events
        self._points: dict[int, list[int]] = {each.attribute: sorted(each.points) for each in sample.attributes}
        self._everywhere = {each.attribute: each.everywhere for each in sample.attributes}

    def of(self, attribute: int, spans: Iterable[Span]) -> float:
        """For ranges that do not overlap, between 0 and 1; never exactly these, because it is a sample."""
        if attribute == EVERY:
            return 1.0
        points = self._points.get(attribute, [])
        met = sum(bisect_right(points, high) - bisect_left(points, low) for low, high in spans)
        return min(1.0, (met + self._everywhere.get(attribute, 0) + 1) / (self.events + 2))

    def cost(self, ranges: Mapping[int, Iterable[Span]]) -> float:
        """How many times an event comes by, in the mean, where these ranges are kept in these attributes' trees."""
        return sum(self.of(attribute, spans) for attribute, spans in ranges.items())
