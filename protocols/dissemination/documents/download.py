"""Which chunks of one document this node has, and which it asks of whom. Pure: knows no host and no disk.

The chunk that fewest neighbours have is asked for first (as in BitTorrent: Cohen 2003, section 2.4.2), by lot among
equals: so the producer sends different chunks to its children, who give them to each other, and its uplink carries the
document little more than once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from peerd.ids import NodeId
from peerd.messages import PeerRef
from protocols.dissemination.documents.manifest import chunks_of

ASKED_MAX: Final = 8
"""Chunks of one document that are under way to this node at once."""
ASKED_PEER_MAX: Final = 2
"""Of those, from one neighbour: one that comes, and one that follows without a pause."""
FEW_NEIGHBOURS: Final = 4
"""With more neighbours than this one chunk from each is enough: then what others need more is not kept waiting."""
NEIGHBOURS_MAX: Final = 24
"""Nodes with which this one exchanges one document."""
SILENCE_S: Final = 15.0
"""A neighbour of which nothing comes for so long does not send what it was asked for."""
ASK_S_MAX: Final = 300.0
"""Nor does one that has not sent it after this, whatever else it says."""
ASK_AGAIN_S: Final = 5.0
"""What was asked for and does not begin to come is asked for again so often: the question, or a refusal, may be lost.
A neighbour that has it in its queue takes that for the same question."""
REFUSED_S: Final = 1.0
"""A neighbour that has refused a chunk is asked for nothing for so long: else one that promises what it then refuses
would cost a question each time, and a word to all neighbours."""
LAST_S: Final = 2.0
LATE_FACTOR: Final = 2.0
"""When nothing else is left to ask, what is under way for longer than this, and than so many times what chunks have
taken of late, is asked of a second neighbour, too; of a third one after twice that, and so on."""
_USUAL_SHARE: Final = 0.2


@dataclass(eq=False, slots=True)
class Neighbour:
    """Another node with the document, or on its way to it."""

    peer: PeerRef
    have: int
    heard_at: float
    coming_there: int = 0
    """Chunks that it has asked for, as far as it has said: to be left to it, as long as there are others."""
    asked: dict[int, float] = field(default_factory=dict)
    """Chunks that it was asked for, and when."""
    coming: set[int] = field(default_factory=set)
    """Of those, the ones whose swap has begun: swaps have their own limits of time."""
    asked_again_at: float = float("-inf")
    rests_until: float = 0.0
    """It has refused a chunk, and is asked for nothing before then."""


class Download:
    """``draw``: a number from 0 to 1, without 1. A complete document has one, too: it has neighbours, and asks none."""

    def __init__(self, count: int, have: int, draw: Callable[[], float]) -> None:
        self.count, self.have, self._draw = count, have, draw
        self.neighbours: dict[NodeId, Neighbour] = {}
        self._usual_s = 0.0
        """How long chunks take of late, from asking to having them."""
        self._under_way: dict[int, int] = {}
        """How many neighbours were asked for a chunk; 0: it is here, and is being verified and written."""

    @property
    def missing(self) -> int:
        """The chunks that are not here."""
        return ((1 << self.count) - 1) & ~self.have

    @property
    def is_complete(self) -> bool:
        """Whether all chunks are here."""
        return not self.missing

    @property
    def asked(self) -> int:
        """How many chunks are under way."""
        return sum(len(each.asked) for each in self.neighbours.values())

    def is_starved(self) -> bool:
        """Whether no neighbour has anything that is missing here."""
        missing = self.missing
        return bool(missing) and not any(each.have & missing for each in self.neighbours.values())

    # Neighbours

    def met(self, peer: PeerRef, have: int, now: float) -> bool:
        """A neighbour, and what it has; whether there is room for it."""
        known = self.neighbours.get(peer.id)
        if known is None and len(self.neighbours) >= NEIGHBOURS_MAX:
            return False
        if known is None:
            known = self.neighbours[peer.id] = Neighbour(peer, have, now)
        known.peer, known.have, known.heard_at = peer, have | known.have, now
        return True

    def has(self, id: NodeId, chunk: int, now: float, *, is_here: bool = True) -> None:
        """A neighbour has got a chunk, or has asked for it."""
        known = self.neighbours.get(id)
        if known is not None:
            known.heard_at = now
            if is_here:
                known.have |= 1 << chunk
            else:
                known.coming_there |= 1 << chunk

    def gone(self, id: NodeId) -> None:
        """A neighbour is no more: what it was asked for is asked elsewhere."""
        known = self.neighbours.pop(id, None)
        for chunk in known.asked if known is not None else ():
            self._not_coming(chunk)

    def refused(self, id: NodeId, chunk: int, now: float) -> None:
        """A neighbour does not send a chunk (any more)."""
        known = self.neighbours.get(id)
        if known is not None:
            known.rests_until = now + REFUSED_S
            known.have &= ~(1 << chunk)
            self._forget(known, chunk)

    def _forget(self, known: Neighbour, chunk: int) -> None:
        known.coming.discard(chunk)
        if known.asked.pop(chunk, None) is not None:
            self._not_coming(chunk)

    def _not_coming(self, chunk: int) -> None:
        left = self._under_way.get(chunk, 0) - 1
        if left > 0:
            self._under_way[chunk] = left
        elif left == 0:
            del self._under_way[chunk]

    # Chunks

    def expects(self, id: NodeId, chunk: int) -> bool:
        """Whether a neighbour was asked for a chunk that is still missing; if so, it is coming now."""
        known = self.neighbours.get(id)
        if known is None or chunk not in known.asked or not self._under_way.get(chunk):
            return False
        known.coming.add(chunk)
        return True

    def broke_off(self, id: NodeId, chunk: int) -> None:
        """The swap with a chunk has failed: it is asked for again, of whomever."""
        known = self.neighbours.get(id)
        if known is not None:
            self._forget(known, chunk)

    def arrived(self, id: NodeId, chunk: int, now: float) -> bool:
        """A chunk is here, not verified yet. Returns whether it is needed: a second neighbour may have been faster."""
        is_needed = bool(self.missing >> chunk & 1) and self._under_way.get(chunk) != 0
        known = self.neighbours.get(id)
        if known is not None:
            known.heard_at = now
            if chunk in known.asked:
                took_s = now - known.asked[chunk]
                self._usual_s += (took_s - self._usual_s) * (_USUAL_SHARE if self._usual_s else 1.0)
            self._forget(known, chunk)
        if is_needed:
            for other in self.neighbours.values():
                other.asked.pop(chunk, None)
                other.coming.discard(chunk)
            self._under_way[chunk] = 0
        return is_needed

    def kept(self, chunk: int) -> None:
        """It was verified, and is on disk."""
        self._under_way.pop(chunk, None)
        self.have |= 1 << chunk

    def not_kept(self, chunk: int) -> None:
        """It was not what it should be, or the disk refused: it is missing again."""
        self._under_way.pop(chunk, None)

    # Asking

    def late(self, now: float) -> list[Neighbour]:
        """Neighbours that have been asked for something, and are silent."""
        return [
            each
            for each in self.neighbours.values()
            if any(
                now - max(at, each.heard_at) >= SILENCE_S or now - at >= ASK_S_MAX
                for chunk, at in each.asked.items()
                if chunk not in each.coming
            )
        ]

    def asks_again(self, now: float) -> list[tuple[PeerRef, int]]:
        """What does not come, and is to be asked for again of whom."""
        asks: list[tuple[PeerRef, int]] = []
        for each in self.neighbours.values():
            before = now - ASK_AGAIN_S
            late = [chunk for chunk, at in each.asked.items() if at <= before and chunk not in each.coming]
            if late and each.asked_again_at <= before:
                each.asked_again_at = now
                asks += [(each.peer, chunk) for chunk in late]
        return asks

    def next_asks(self, now: float) -> list[tuple[PeerRef, int]]:
        """What to ask for now, of whom."""
        asks: list[tuple[PeerRef, int]] = []
        most = ASKED_PEER_MAX if len(self.neighbours) <= FEW_NEIGHBOURS else 1
        rested = ((id, each) for id, each in self.neighbours.items() if now >= each.rests_until)
        free = {id: each for id, each in rested if len(each.asked) < most}
        while free and self.asked < ASKED_MAX:
            # The least busy first, so that all uplinks are used.
            each = min(free.values(), key=lambda each: (len(each.asked), self._draw()))
            chunk = self._choose(each, now)
            if chunk is None:
                del free[each.peer.id]
                continue
            each.asked[chunk] = now
            self._under_way[chunk] = self._under_way.get(chunk, 0) + 1
            asks.append((each.peer, chunk))
            if len(each.asked) >= most:
                del free[each.peer.id]
        return asks

    def _choose(self, of: Neighbour, now: float) -> int | None:
        """The rarest chunk that this neighbour has, and that nobody was asked for; at the end any that is late."""
        wanted = of.have & self.missing
        free = wanted & ~self._under_way_bits()
        if free:
            return self._one_of(self._rarest(free))
        if self.missing.bit_count() > len(self._under_way):
            return None
        return next((chunk for chunk in chunks_of(wanted) if self._is_late(of, chunk, now)), None)

    def _under_way_bits(self) -> int:
        bits = 0
        for chunk in self._under_way:
            bits |= 1 << chunk
        return bits

    def _rarest(self, chunks: int) -> int:
        """Those of these chunks that fewest neighbours have or get: counted all at once, a plane for each binary digit.

        A document may have a thousand chunks, and this is asked for each of them.
        """
        planes: list[int] = []
        for each in self.neighbours.values():
            carry = (each.have | each.coming_there) & chunks
            for digit, plane in enumerate(planes):
                planes[digit], carry = plane ^ carry, plane & carry
            if carry:
                planes.append(carry)
        for plane in reversed(planes):
            chunks = chunks & ~plane or chunks
        return chunks

    def _one_of(self, chunks: int) -> int:
        """Some of these: the first one from a place that is drawn."""
        behind = chunks >> (start := int(self._draw() * self.count)) << start
        return next(iter(chunks_of(behind or chunks)))

    def _is_late(self, of: Neighbour, chunk: int, now: float) -> bool:
        """Whether all other neighbours that were asked for it were asked long ago: the longer, the more they are."""
        count = self._under_way.get(chunk, 0)
        if not count or chunk in of.asked:
            return False
        late_at = now - max(LAST_S, LATE_FACTOR * self._usual_s) * 2.0 ** (count - 1)
        return all(each.asked.get(chunk, late_at) <= late_at for each in self.neighbours.values())

    def validate(self) -> None:
        """Assert the invariants."""
        for chunk, count in self._under_way.items():
            assert self.missing >> chunk & 1, "a chunk that is here is not asked for"
            assert count == sum(chunk in each.asked for each in self.neighbours.values())
        for each in self.neighbours.values():
            assert each.coming <= set(each.asked), "what comes was asked for"
            assert set(each.asked) <= set(self._under_way)
            assert len(each.asked) <= ASKED_PEER_MAX
        assert len(self.neighbours) <= NEIGHBOURS_MAX
