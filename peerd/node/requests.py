"""The requests of one node that have no reply yet: each ends once, with its reply or with its time-out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
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
"""A time-out that fires this late shows that this node was not running, and says nothing about the peer."""
TIMER_EARLY_S: Final = 0.001
"""What is due within this time counts as due: timers are not more exact."""
ANSWERED_KEPT_MIN: Final = 64
"""Time-outs of answered requests stay in the queue until they come up, if they are at most as many as this plus the
requests that still wait."""

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
    cause: int | None
    due_at: float
    timeout_s: float
    was_extended: bool = False


class Requests:
    """Sends requests with a number each, their correlation, and ends them. Callbacks run through ``guard``.

    Nearly all requests are answered, so there is one timer for all of them, for the first that is due.
    """

    def __init__(self, clock: Clock, guard: Guard, send: Send) -> None:
        self._clock = clock
        self._guard = guard
        self._send = send
        self._pending: dict[int, PendingRequest] = {}
        self._correlation = 0
        self._dues: list[tuple[float, int]] = []
        """A heap of (due time, correlation); those answered meanwhile stay in it for a while."""
        self._timer: TimerHandle | None = None
        self._timer_due_at = 0.0

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
        due_at = self._clock.now() + timeout_s
        self._pending[correlation] = PendingRequest(peer, plugin, on_reply, on_timeout, cause, due_at, timeout_s)
        self._await(due_at, correlation)
        try:
            self._send(peer, message, correlation, priority)
        except Exception:  # it was never asked: its time-out would tell against the peer
            self._pending.pop(correlation, None)
            raise

    def replied(self, peer: PeerRef, correlation: int, reply: Message) -> None:
        """A reply came. It is ignored if it is late, or from another peer than was asked."""
        pending = self._pending.get(correlation)
        if pending is None or pending.peer.id != peer.id:
            return  # late, after its time-out: the caller has been told
        if isinstance(reply, UnknownMessage):
            self._expire(correlation)
            return
        del self._pending[correlation]
        self._guard(pending.plugin, pending.on_reply, reply, peer, cause=pending.cause)

    def fail(self, peer_id: NodeId, correlation: int) -> None:
        """End a request to which no reply will come. Harmless when it has ended."""
        pending = self._pending.get(correlation)
        if pending is not None and pending.peer.id == peer_id:
            self._expire(correlation)

    def peer_down(self, peer_id: NodeId) -> None:
        """End all requests to this peer."""
        for correlation in [key for key, pending in self._pending.items() if pending.peer.id == peer_id]:
            self._expire(correlation)

    def forget(self, plugin: str) -> None:
        """Drop the requests of a plugin that is out of service, without callbacks."""
        for correlation in [key for key, pending in self._pending.items() if pending.plugin == plugin]:
            del self._pending[correlation]

    def clear(self) -> None:
        """Drop all requests, without callbacks, because the node stops."""
        self._pending.clear()
        self._dues.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def validate(self) -> None:
        """Assert the limit."""
        if len(self._pending) > limits.REQUESTS_OUTSTANDING_MAX:
            raise Bug(f"{len(self._pending)} requests outstanding")
        if self._pending and (self._timer is None or self._dues[0][0] < self._timer_due_at):
            raise Bug("a request has no timer")
        if len(self._dues) > 2 * limits.REQUESTS_OUTSTANDING_MAX + ANSWERED_KEPT_MIN:
            raise Bug(f"{len(self._dues)} time-outs are kept")

    # The timer

    def _await(self, due_at: float, correlation: int) -> None:
        """Make sure that the timer fires at that time."""
        if len(self._dues) >= 2 * len(self._pending) + ANSWERED_KEPT_MIN:
            self._dues = [(pending.due_at, number) for number, pending in self._pending.items()]
            heapify(self._dues)
        else:
            heappush(self._dues, (due_at, correlation))
        if self._timer is None or due_at < self._timer_due_at:
            self._arm(due_at)

    def _arm(self, due_at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_due_at = due_at
        self._timer = self._clock.call_later(due_at - self._clock.now(), self._fired)

    def _fired(self) -> None:
        """End what is due; wait for the next."""
        self._timer = None
        now = self._clock.now()
        try:
            while self._dues and (self._dues[0][0] <= now + TIMER_EARLY_S or self._dues[0][1] not in self._pending):
                correlation = heappop(self._dues)[1]
                if correlation in self._pending:
                    self._due(correlation)
        finally:  # even if a callback raises, the timer must be armed for the others
            if self._dues:
                self._arm(self._dues[0][0])

    def _due(self, correlation: int) -> None:
        """A request is due. A node that was not running waits once more: the reply may be unread in its buffers."""
        pending = self._pending[correlation]
        if not pending.was_extended and self._clock.now() - pending.due_at > TIMER_LATE_S:
            pending.was_extended = True
            pending.due_at = self._clock.now() + pending.timeout_s
            self._await(pending.due_at, correlation)
            return
        self._expire(correlation)

    def _expire(self, correlation: int) -> None:
        pending = self._pending.pop(correlation, None)
        if pending is not None:
            self._guard(pending.plugin, pending.on_timeout, cause=pending.cause)
