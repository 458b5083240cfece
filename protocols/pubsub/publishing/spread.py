"""Events with the same way travel as one message, and part where their ways part (Li 2008, section 3.4.2). Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final, TypeAlias

from peerd.errors import ProtocolError
from peerd.ids import NodeId
from peerd.limits import KIB
from peerd.messages import PeerRef
from protocols.pubsub.bodies import event_bytes
from protocols.pubsub.messages import CELLS_MAX, EVENTS_BYTES_MAX, EventBody, ProbePub, TreeCells
from protocols.pubsub.names import Tree, key_of

AttributeCell: TypeAlias = tuple[int, int]
"""A cell of an attribute's tree: (attribute, cell)."""
PROBE_ENVELOPE_BYTES: Final = 1 * KIB
"""What a probe has besides its events and cells, at most: names, addresses, and a header for each tree."""
CELL_BYTES_MAX: Final = 9
PLACES_MAX: Final = (48 * KIB - EVENTS_BYTES_MAX - PROBE_ENVELOPE_BYTES) // CELL_BYTES_MAX
"""Cells that fit into a message beside any events."""
TREES_MAX: Final = 64
"""Trees in one message."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Events of one publisher that travel together, in its order. ``attempt``: which try of the publisher it is.

    ``after``: the number of an event that a leaf must have had before these; 0: of none.
    """

    schema: str
    publisher: PeerRef
    events: tuple[EventBody, ...]
    copies: int
    attempt: int
    after: int = 0
    bytes: int = field(init=False, compare=False)
    """How much the events take in a message, at most. Each node on the way asks for it several times."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "bytes", sum(event_bytes(event) for event in self.events))

    @classmethod
    def of(cls, probe: ProbePub) -> Batch:
        """What a message carries. Raises `ProtocolError` for what no publisher sends."""
        events = probe.events
        if not events:
            raise ProtocolError("bad_probe", "a probe without events")
        for event in events:
            if event.publisher != probe.publisher or event.epoch != events[0].epoch:
                raise ProtocolError("bad_probe", "events of several publishers in one probe")
        if any(later.sequence <= event.sequence for event, later in pairwise(events)):
            raise ProtocolError("bad_probe", "events out of order")
        if sum(len(each.cells) for each in probe.places) > CELLS_MAX:
            raise ProtocolError("bad_probe", f"more than {CELLS_MAX} cells")
        found = cls(probe.schema, probe.publisher, events, probe.copies, probe.attempt, probe.after)
        if found.bytes > EVENTS_BYTES_MAX:
            raise ProtocolError("bad_probe", f"more than {EVENTS_BYTES_MAX} bytes of events")
        return found

    def probes(
        self,
        places: Sequence[AttributeCell],
        hops: int,
        vouched: bool,
        remembered: bool,
        multicast: bool = True,
        is_lent: bool = False,
    ) -> Iterator[ProbePub]:
        """The messages that take the batch to these cells by one way: one, unless there are very many cells.

        Without multicast there is one for each cell, as a comparison (figure 4.5).
        """
        for some in _portions(places, PLACES_MAX if multicast else 1):
            events, trees = self.events, trees_of(some)
            how = self.copies, self.attempt, vouched, hops, remembered, self.after, is_lent
            yield ProbePub(self.schema, self.publisher, events, trees, *how)


def _portions(places: Sequence[AttributeCell], most: int) -> Iterator[Sequence[AttributeCell]]:
    """Cut a list of cells so that each part fits into a message."""
    portion: list[AttributeCell] = []
    trees: set[int] = set()
    for place in places:
        if len(portion) == most or len({*trees, place[0]}) > TREES_MAX:
            yield portion
            portion, trees = [], set()
        portion.append(place)
        trees.add(place[0])
    if portion:
        yield portion


def trees_of(places: Iterable[AttributeCell]) -> tuple[TreeCells, ...]:
    """The cells by tree, as messages have them."""
    by_tree: dict[int, list[int]] = {}
    for attribute, cell in places:
        by_tree.setdefault(attribute, []).append(cell)
    return tuple(TreeCells(attribute, tuple(cells)) for attribute, cells in by_tree.items())


def places_of(trees: Iterable[TreeCells]) -> list[AttributeCell]:
    """The cells of a message, each once."""
    return list(dict.fromkeys((each.attribute, cell) for each in trees for cell in each.cells))


NextHops: TypeAlias = Callable[[Sequence[NodeId]], Mapping[NodeId, PeerRef | None]]
"""By key its next hop, ``None`` for this node; without the keys of which nobody can say."""


@dataclass(slots=True)
class Ways:
    """Where cells are, seen from this node."""

    here: list[AttributeCell] = field(default_factory=list)
    """This node is the root of their keys."""
    onward: dict[PeerRef, list[AttributeCell]] = field(default_factory=dict)
    unclear: list[AttributeCell] = field(default_factory=list)
    """Just now nobody can say."""


def ways_to(schema: str, places: Iterable[AttributeCell], next_hops: NextHops) -> Ways:
    """Group cells by their next hop (Program 3.4).

    The thesis groups by the first digit that differs. Asking routing itself for all cells gives the same groups, and
    the right ones also near the end of the way, where the leaf set decides.
    """
    keys = {place: key_of(Tree(schema, place[0]), place[1]) for place in places}
    hops = next_hops(list(keys.values()))
    ways = Ways()
    for place, key in keys.items():
        if key not in hops:
            ways.unclear.append(place)
        elif (hop := hops[key]) is None:
            ways.here.append(place)
        else:
            ways.onward.setdefault(hop, []).append(place)
    return ways
