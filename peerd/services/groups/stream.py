"""What a node remembers of the multicasts of its groups: which it has seen, and the latest ones to replay. Pure."""

from __future__ import annotations

from collections import deque

from peerd.frozen import Frozen
from peerd.ids import NodeId
from peerd.services.groups.messages import GroupMulticast, MulticastPosition, Publication

PublicationIdentity = tuple[NodeId, int, int]
"""(origin, boot epoch of the origin, its number)."""


def identity(publication: Publication) -> PublicationIdentity:
    """Return what identifies a multicast, however often it arrives: (origin, boot epoch, number)."""
    return publication.origin.id, publication.epoch, publication.number


class Seen:
    """The latest identities; the oldest is forgotten when the window is full."""

    __slots__ = ("_identities", "_size")

    def __init__(self, size: int) -> None:
        self._size = size
        self._identities: dict[PublicationIdentity, None] = {}

    def __len__(self) -> int:
        return len(self._identities)

    def is_new(self, identity: PublicationIdentity) -> bool:
        """Whether a multicast was not seen before. From now on it counts as seen."""
        if identity in self._identities:
            return False
        if len(self._identities) >= self._size:
            del self._identities[next(iter(self._identities))]
        self._identities[identity] = None
        return True


def before(position: MulticastPosition) -> MulticastPosition:
    """The place just before a multicast."""
    return MulticastPosition(position.generation, position.root, position.sequence - 1)


def is_same_reign(a: MulticastPosition, b: MulticastPosition) -> bool:
    """Whether the same root numbered both, without a break between."""
    return (a.generation, a.root) == (b.generation, b.root)


def missed(last: MulticastPosition | None, start: MulticastPosition) -> int:
    """Multicasts after ``last`` and up to ``start``, as far as one can tell.

    How many of an earlier reign there were is unknown. Generation 0 comes before every reign, so all are missed.
    """
    if last is None or not last.generation or last.generation > start.generation:
        return 0
    return max(0, start.sequence - last.sequence) if is_same_reign(last, start) else start.sequence


def covers(last: MulticastPosition | None, other: MulticastPosition) -> bool:
    """Whether a node whose last multicast is ``last`` has all that the root of ``other`` numbered up to ``other``."""
    return last is not None and is_same_reign(last, other) and last.sequence >= other.sequence


def later(last: MulticastPosition | None, other: MulticastPosition) -> MulticastPosition:
    """The later one in one reign; of two reigns that of ``other``, which is where the stream goes on."""
    if last is not None and is_same_reign(last, other) and last.sequence > other.sequence:
        return last
    return other


def _is_owed(position: MulticastPosition, child: MulticastPosition) -> bool:
    if is_same_reign(position, child):
        return position.sequence > child.sequence
    return position.generation >= child.generation  # if equal there were two roots, and the child was below the other


class StreamReplay(Frozen):
    """What a newly attached child gets: everything after ``start``."""

    start: MulticastPosition | None
    multicasts: tuple[GroupMulticast, ...]


class ReplayLog:
    """The latest multicasts of all groups of a node, bounded by number in a group and by bytes in all."""

    def __init__(self, messages_max: int, bytes_max: int) -> None:
        self._messages_max = messages_max
        self._bytes_max = bytes_max
        self._entries: dict[int, GroupMulticast] = {}
        """By number of arrival, so that the oldest comes first."""
        self._by_group: dict[NodeId, deque[int]] = {}
        self._arrivals = 0
        self.size_bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, multicast: GroupMulticast) -> None:
        """Keep a multicast; the oldest ones are dropped for it."""
        if not self._messages_max:
            return
        self._arrivals += 1
        self._entries[self._arrivals] = multicast
        numbers = self._by_group.setdefault(multicast.group, deque())
        numbers.append(self._arrivals)
        self.size_bytes += len(multicast.publication.body)
        if len(numbers) > self._messages_max:
            self._drop_first(multicast.group)
        while self.size_bytes > self._bytes_max:
            self._drop_first(next(iter(self._entries.values())).group)

    def forget(self, group: NodeId) -> None:
        """Drop all of a group."""
        while group in self._by_group:
            self._drop_first(group)

    def replay(self, group: NodeId, child: MulticastPosition | None, own: MulticastPosition | None) -> StreamReplay:
        """What a child whose last multicast is ``child`` misses, at a node whose last one is ``own``.

        Later ones of the same reign, and those of other reigns that are not of an earlier generation. A child without
        a position is new: it gets only what comes from now on.
        """
        if child is None:
            return StreamReplay(own, ())
        multicasts = tuple(
            multicast
            for number in self._by_group.get(group, ())
            if _is_owed((multicast := self._entries[number]).position, child)
        )
        return StreamReplay(before(multicasts[0].position) if multicasts else own, multicasts)

    def _drop_first(self, group: NodeId) -> None:
        numbers = self._by_group[group]
        multicast = self._entries.pop(numbers.popleft())
        self.size_bytes -= len(multicast.publication.body)
        if not numbers:
            del self._by_group[group]
