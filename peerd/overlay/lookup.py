"""Finding the root of a key, with the way there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from peerd.api import LookupResult, Part, RoutedHop, handles, on_timer
from peerd.errors import Unavailable
from peerd.ids import NodeId, format_id
from peerd.messages import PeerRef
from peerd.overlay.messages import LookupReply, Trace
from peerd.overlay.state import OverlayState
from peerd.telemetry.schema import LookupFinished

LOOKUPS_MAX: Final = 1024


@dataclass(slots=True)
class Pending:
    """A lookup that has no answer yet."""

    key: NodeId
    on_result: Callable[[LookupResult], None]
    started_at: float
    deadline: float


class Lookups(Part):
    """Lookups that this node started, and answers to those of others."""

    def __init__(self, state: OverlayState, send: Callable[[NodeId, int], None]) -> None:
        self._state = state
        self._host = state.host
        self._send = send
        self._pending: dict[int, Pending] = {}

    def start(self, key: NodeId, on_result: Callable[[LookupResult], None], timeout_s: float) -> None:
        """Ask; ``on_result`` is called once, later, also when nobody answers in time.

        Raises `Unavailable` when `LOOKUPS_MAX` are under way.
        """
        if len(self._pending) >= LOOKUPS_MAX:
            raise Unavailable(f"{LOOKUPS_MAX} lookups are under way already")
        now, sequence = self._host.now(), self._state.next_sequence()
        self._pending[sequence] = Pending(key, on_result, now, now + timeout_s)
        self._host.set_timer("lookup", min(timeout_s, self._state.config.lookup_retry), sequence)
        self._send(key, sequence)

    @on_timer("lookup")
    def _retry(self, sequence: int) -> None:
        """No answer yet: ask again, or give up."""
        pending = self._pending[sequence]
        left_s = pending.deadline - self._host.now()
        if left_s <= 0:
            self._finish(sequence, None, ())
            return
        self._host.set_timer("lookup", min(left_s, self._state.config.lookup_retry), sequence)
        self._send(pending.key, sequence)

    def answer(self, source: PeerRef, sequence: int, trace: Trace) -> None:
        """This node is the root that a lookup of ``source`` was for."""
        self._host.send(source, LookupReply(sequence, trace))

    @handles(LookupReply)
    def _answered(self, reply: LookupReply, root: PeerRef) -> None:
        """The root of one of our lookups answered; a late or repeated answer is ignored."""
        if reply.sequence in self._pending:
            self._host.cancel_timer("lookup", reply.sequence)
            self._finish(reply.sequence, root, tuple(RoutedHop(hop.peer, hop.rtt_s) for hop in reply.hops))

    def _finish(self, sequence: int, root: PeerRef | None, hops: tuple[RoutedHop, ...]) -> None:
        pending = self._pending.pop(sequence)
        duration_s = self._host.now() - pending.started_at
        self._host.emit(
            LookupFinished(
                key=format_id(pending.key),
                root=None if root is None else format_id(root.id),
                hops=len(hops),
                duration_s=duration_s,
            )
        )
        pending.on_result(LookupResult(pending.key, root, hops, duration_s))
