"""Connections of swaps that are over, for the next ones with the same peers.

Who swaps with a peer again and again, as in rounds that are asked every ten seconds, need not open a connection each
time: that takes four one-way latencies, and some milliseconds of processor. Whoever began a swap keeps its
connection if it had begun another one with the peer shortly before, and says so in its offer; only its side begins
swaps on it. Sans-IO.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final
from weakref import WeakKeyDictionary

from peerd.driver import Clock, Stream, StreamHandler, TimerHandle
from peerd.errors import Bug, ProtocolError
from peerd.ids import NodeId
from peerd.limits import FRAME_HEADER_BYTES, SWAP_SESSIONS_MAX
from peerd.messages import PeerRef
from peerd.swap.messages import CONTROL_BYTES_MAX, SwapCancelled
from peerd.wire.frames import parse_header

REPEATED_S: Final = 60.0
"""Swaps with one peer that follow each other within that time are worth a connection that stays so long."""
SLACK_S: Final = 15.0
"""So much longer who has accepted keeps a connection, so that it is closed by who may use it at any moment."""
AGE_S_MAX: Final = 600.0
"""A connection that was kept first so long ago is closed after its swap: who the peer is was checked when it opened,
and its certificate may end. A swap may take as long."""
KEPT_MAX: Final = SWAP_SESSIONS_MAX
"""Connections that a node keeps of those that it has opened, and as many of those that it has accepted; with TLS each
takes some 256 KiB. Beyond that the one goes that was not used for longest."""
TOGETHER_MAX: Final = 3 * SWAP_SESSIONS_MAX
"""With more sessions and kept connections than that, the latter go: a quarter of a node's places for connections stays
free for others."""
PARTNERS_MAX: Final = 256
"""Peers of which a node knows when it began a swap with them."""


class KeptStream:
    """Handles a connection between two swaps."""

    def __init__(self, owner: KeptStreams, stream: Stream, *, is_dialled: bool) -> None:
        self.stream = stream
        self.is_dialled = is_dialled
        self._owner = owner
        self._header = memoryview(bytearray(FRAME_HEADER_BYTES))
        self._filled = 0

    def opened(self, stream: Stream) -> None:
        """Never called, as the stream is open."""
        raise Bug(f"a kept stream to {stream.peer} was opened")

    def get_buffer(self, size_hint: int) -> memoryview:
        """Return room for the header of a frame, of which perhaps nothing comes: a loop asks before it looks."""
        return self._header[self._filled :]

    def buffer_updated(self, size_bytes: int) -> None:
        """At who has accepted it, an offer begins, for which there is a session as soon as its header is here.

        Either side may hear that the other one has given the last swap up: it did not know yet that this side was done.
        """
        self._filled += size_bytes
        if self._filled < FRAME_HEADER_BYTES:
            return
        self._owner.drop(self)
        type_id, _, _ = parse_header(self._header, 0, CONTROL_BYTES_MAX)
        if self.is_dialled or type_id == SwapCancelled.TYPE_ID:
            self.stream.abort()
            return
        session = self._owner.accept(self.stream)
        session.get_buffer(FRAME_HEADER_BYTES)[:FRAME_HEADER_BYTES] = self._header
        session.buffer_updated(FRAME_HEADER_BYTES)

    def padding_received(self, size_bytes: int) -> None:
        """Nothing begins with padding. Raises `ProtocolError`."""
        self._owner.drop(self)
        raise ProtocolError("unexpected_message", "padding on a kept connection")

    def writable(self) -> None:
        """There is nothing to write."""

    def closed(self, reason: str | None) -> None:
        """The peer has closed it, or the network has."""
        self._owner.drop(self)


class KeptStreams:
    """The connections that one node keeps. ``accepted`` gives the session for an offer that comes on one of them."""

    def __init__(self, clock: Clock, accepted: Callable[[PeerRef], StreamHandler]) -> None:
        self._clock = clock
        self._accepted = accepted
        self._streams: dict[KeptStream, float] = {}
        """Each with when it is closed, the one first that was not used for longest."""
        self._since: WeakKeyDictionary[Stream, float] = WeakKeyDictionary()
        """When each connection was kept first, also of those that are in use."""
        self._begun_at: dict[NodeId, float] = {}
        self._timer: TimerHandle | None = None
        self._is_stopped = False

    def __len__(self) -> int:
        return len(self._streams)

    def begun(self, peer: PeerRef) -> bool:
        """A swap with this peer begins here. Returns whether its connection is worth keeping."""
        now, before = self._clock.now(), self._begun_at.pop(peer.id, None)
        self._begun_at[peer.id] = now
        if len(self._begun_at) > PARTNERS_MAX:
            del self._begun_at[next(iter(self._begun_at))]
        return before is not None and now - before <= REPEATED_S

    def keep(self, stream: Stream, *, is_dialled: bool) -> None:
        """Both sides are done with a swap on this connection."""
        kept, now = KeptStream(self, stream, is_dialled=is_dialled), self._clock.now()
        stream.hand_over(kept)
        if self._is_stopped or now - self._since.setdefault(stream, now) > AGE_S_MAX:
            self._close(kept)
            return
        self._streams[kept] = now + REPEATED_S + (0.0 if is_dialled else SLACK_S)
        same = [each for each in self._streams if each.is_dialled == is_dialled]
        if len(same) > KEPT_MAX:
            self._close(same[0])
        self._arm()

    def make_room(self, sessions: int) -> None:
        """There are so many sessions now."""
        for kept in list(self._streams)[: max(0, len(self._streams) + sessions - TOGETHER_MAX)]:
            self._close(kept)

    def take(self, peer: PeerRef) -> Stream | None:
        """A connection to this peer, for a swap that begins here."""
        for kept in reversed(self._streams):
            if kept.is_dialled and kept.stream.peer.id == peer.id:
                self.drop(kept)
                return kept.stream
        return None

    def accept(self, stream: Stream) -> StreamHandler:
        """An offer comes on a connection that was kept."""
        session = self._accepted(stream.peer)
        stream.hand_over(session)
        session.opened(stream)
        return session

    def drop(self, kept: KeptStream) -> None:
        """It is used again, or gone."""
        self._streams.pop(kept, None)

    def stop(self) -> None:
        """Close all, and keep none from now on."""
        self._is_stopped = True
        for kept in list(self._streams):
            self._close(kept)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def validate(self) -> None:
        """Assert the limits."""
        for is_dialled in (True, False):
            assert sum(each.is_dialled == is_dialled for each in self._streams) <= KEPT_MAX
        assert len(self._begun_at) <= PARTNERS_MAX

    def _arm(self) -> None:
        if self._timer is None and self._streams:
            due = min(self._streams.values())
            self._timer = self._clock.call_later(max(0.0, due - self._clock.now()), self._expire)

    def _expire(self) -> None:
        """Close those that were kept for long enough, and look again when the next one may be."""
        self._timer, now = None, self._clock.now()
        for kept, due in list(self._streams.items()):
            if due <= now:
                self._close(kept)
        self._arm()

    def _close(self, kept: KeptStream) -> None:
        self.drop(kept)
        kept.stream.close()  # not at once: the last word of the swap may be on its way
