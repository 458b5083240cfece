"""The requests of one node that have no reply yet: each ends once, with its reply or with its time-out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from peerd import limits
from peerd.api import Priority
from peerd.driver import Clock, TimerHandle
from peerd.errors import Bug
from peerd.ids import NodeId
from peerd.messages import Message, PeerRef
from peerd.wire.unknown import UnknownMessage

_CORRELATIONS: Final = 1 << 32
TIMER_LATE_S: Final = 0.2
"""A time-out that fires so much too late says that this node was not running, not that the peer is silent."""

Guard = Callable[..., Any]
"""Runs plugin code: ``guard(plugin, function, *arguments, cause=event)``."""
Send = Callable[[PeerRef, Message, int, Priority], None]
"""Sends a message as a request with this correlation."""


@dataclass(slots=True)
class PendingRequest:
    """A request whose reply has not come yet."""

    peer: PeerRef
    plugin: str
    on_reply: Callable[[Message, PeerRef], None]
    on_timeout: Callable[[], None]
    timer: TimerHandle
    cause: int | None
    due_at: float
    timeout_s: float
    was_extended: bool = False


class Requests:
    """Sends requests with a number each, their correlation, and ends them. Callbacks run through ``guard``."""

    def __init__(self, clock: Clock, guard: Guard, send: Send) -> None:
        self._clock = clock
        self._guard = guard
        self._send = send
        self._pending: dict[int, PendingRequest] = {}
        self._correlation = 0

    def __len__(self) -> int:
        return len(self._pending)

    def start(
        self,
        plugin: str,
        peer: PeerRef,
        message: Message,
        timeout_s: float,
        on_reply: Callable[[Message, PeerRef], None],
        on_timeout: Callable[[], None],
        priority: Priority,
        cause: int | None,
    ) -> None:
        """See `peerd.api.Host.request`; ``cause`` is the event that led to it. Above
        `limits.REQUESTS_OUTSTANDING_MAX` it is not sent, and times out at once.
        """
        if len(self._pending) >= limits.REQUESTS_OUTSTANDING_MAX:
            self._clock.call_soon(lambda: self._guard(plugin, on_timeout))
            return
        self._correlation = correlation = (self._correlation + 1) % _CORRELATIONS
        timer = self._clock.call_later(timeout_s, lambda: self._due(correlation))
        due_at = self._clock.now() + timeout_s
        self._pending[correlation] = PendingRequest(peer, plugin, on_reply, on_timeout, timer, cause, due_at, timeout_s)
        self._send(peer, message, correlation, priority)

    def replied(self, peer: PeerRef, correlation: int, reply: Message) -> None:
        """A reply came; one that is late, or from somebody else, is ignored."""
        pending = self._pending.get(correlation)
        if pending is None or pending.peer.id != peer.id:
            return  # late, after its time-out: the caller has been told
        if isinstance(reply, UnknownMessage):
            self._expire(correlation)
            return
        del self._pending[correlation]
        pending.timer.cancel()
        self._guard(pending.plugin, pending.on_reply, reply, peer, cause=pending.cause)

    def fail(self, peer_id: NodeId, correlation: int) -> None:
        """No reply will come to this request to this peer: it ends now. Harmless when it has ended."""
        pending = self._pending.get(correlation)
        if pending is not None and pending.peer.id == peer_id:
            self._expire(correlation)

    def peer_down(self, peer_id: NodeId) -> None:
        """Everything that this peer was asked ends now."""
        for correlation in [key for key, pending in self._pending.items() if pending.peer.id == peer_id]:
            self._expire(correlation)

    def forget(self, plugin: str) -> None:
        """The plugin is out of service: nobody is called back."""
        for correlation in [key for key, pending in self._pending.items() if pending.plugin == plugin]:
            self._pending.pop(correlation).timer.cancel()

    def clear(self) -> None:
        """The node stops: nobody is called back."""
        for pending in self._pending.values():
            pending.timer.cancel()
        self._pending.clear()

    def validate(self) -> None:
        """Assert the limit."""
        if len(self._pending) > limits.REQUESTS_OUTSTANDING_MAX:
            raise Bug(f"{len(self._pending)} requests outstanding")

    def _due(self, correlation: int) -> None:
        """The time for a reply is over. A starved node waits once more: the reply may lie unread in its buffers."""
        pending = self._pending[correlation]
        if not pending.was_extended and self._clock.now() - pending.due_at > TIMER_LATE_S:
            pending.was_extended = True
            pending.timer = self._clock.call_later(pending.timeout_s, lambda: self._due(correlation))
            return
        self._expire(correlation)

    def _expire(self, correlation: int) -> None:
        pending = self._pending.pop(correlation, None)
        if pending is not None:
            pending.timer.cancel()
            self._guard(pending.plugin, pending.on_timeout, cause=pending.cause)
