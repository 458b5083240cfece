"""Notes which messages of this node will not arrive, and which messages of peers it has called unknown.

Drivers say which frames they refuse; peers say which messages they do not know. Both are noted here and told to the
plugins after the current handler, once for each peer, message type and reason, with a count.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from peerd import limits
from peerd.api import SendRefusal
from peerd.driver import Clock
from peerd.ids import NodeId
from peerd.messages import Message, PeerRef, message_type
from peerd.node.requests import Requests
from peerd.wire.frames import CORRELATION, FLAG_REPLY, FLAG_REQUEST, Frame

UNKNOWN_TOLD_INTERVAL_S: Final = 60.0
"""A peer is told at most once in this time that a type of its one-way messages is unknown here."""
UNKNOWN_TOLD_MAX: Final = 1024
"""For how many pairs of peer and type the time of the last telling is remembered."""

TellRefused = Callable[[PeerRef, type[Message], SendRefusal, int], None]


class RefusedSends:
    """Notes refusals at once, which a driver may do from within `Transport.send`, and tells them later.

    ``told`` reaches the plugin that a message type belongs to; ``cares`` says whether it wants to know.
    """

    def __init__(
        self, clock: Clock, requests: Requests, cares: Callable[[type[Message]], bool], told: TellRefused
    ) -> None:
        self._clock = clock
        self._requests = requests
        self._cares = cares
        self._told = told
        self._counts: dict[tuple[NodeId, type[Message], SendRefusal], tuple[PeerRef, int]] = {}
        self._failed: list[tuple[NodeId, int]] = []
        """Requests that were not sent: the peer's id and the correlation of each."""
        self._is_due = False

    def frame_refused(self, peer: PeerRef, frame: Frame, reason: SendRefusal) -> None:
        """The driver will not send this frame. A reply is not reported to the plugin: the peer's request times out."""
        if frame[1] == FLAG_REQUEST:
            self._failed.append((peer.id, CORRELATION.unpack_from(frame[2])[0]))
            self._tell_soon()
        elif frame[1] != FLAG_REPLY:
            self.note(peer, frame[0], reason)

    def note(self, peer: PeerRef, type_id: int, reason: SendRefusal) -> None:
        """Note one more message of this type that will not arrive."""
        kind = message_type(type_id)
        if kind is None or not self._cares(kind):
            return
        key = peer.id, kind, reason
        if key in self._counts or len(self._counts) < limits.REFUSALS_TOLD_MAX:
            self._counts[key] = peer, self._counts.get(key, (peer, 0))[1] + 1
            self._tell_soon()

    def _tell_soon(self) -> None:
        if not self._is_due:
            self._is_due = True
            self._clock.call_soon(self._tell)

    def _tell(self) -> None:
        self._is_due = False
        failed, self._failed = self._failed, []
        counts, self._counts = self._counts, {}
        for peer_id, correlation in failed:
            self._requests.fail(peer_id, correlation)
        for (_, kind, reason), (peer, count) in counts.items():
            self._told(peer, kind, reason, count)


class UnknownTold:
    """Remembers when each peer was last told that a type of its messages is unknown here."""

    def __init__(self) -> None:
        self._told: dict[tuple[NodeId, int], float] = {}

    def is_due(self, peer_id: NodeId, type_id: int, now: float) -> bool:
        """Whether to tell the peer now. If so, this counts as told."""
        key = peer_id, type_id
        if now - self._told.get(key, -UNKNOWN_TOLD_INTERVAL_S) < UNKNOWN_TOLD_INTERVAL_S:
            return False
        self._told.pop(key, None)
        if len(self._told) >= UNKNOWN_TOLD_MAX:
            del self._told[next(iter(self._told))]
        self._told[key] = now
        return True
