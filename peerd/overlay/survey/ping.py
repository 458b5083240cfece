"""Pings that one node makes for another: whom it reaches, and the round trips. One batch at a time."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from peerd.api import Priority
from peerd.ids import NodeId
from peerd.messages import Message, PeerRef
from peerd.overlay.messages import Ping, Pong, Reached
from peerd.overlay.ports import OverlayHost

IN_FLIGHT_MAX: Final = 16
PING_TIMEOUT_S: Final = 3.0
SILENCES_MAX: Final = 2
"""Pings without an answer after which a peer counts as out of reach; the first one may lose a race of two dials."""


def batch_limit_s(targets: int, pings: int) -> float:
    """How long a batch takes at most."""
    return math.ceil(targets / IN_FLIGHT_MAX) * (pings + SILENCES_MAX) * PING_TIMEOUT_S


@dataclass(slots=True)
class _Target:
    peer: PeerRef
    sent: int = 0
    silences: int = 0
    is_reached: bool = False
    timed: int = 0
    rtt_s: float | None = None


class Pinger:
    """Does one batch at a time."""

    def __init__(self, host: OverlayHost) -> None:
        self._host = host
        self._waiting: deque[PeerRef] = deque()
        self._in_flight = 0
        self._found: dict[NodeId, Reached] = {}
        self._pings = 1
        self._done: Callable[[dict[NodeId, Reached]], None] | None = None

    def start(self, targets: Sequence[PeerRef], pings: int, done: Callable[[dict[NodeId, Reached]], None]) -> bool:
        """Ping each of these until ``pings`` answers came over a link that was up. Returns False when busy."""
        others = {peer.id: peer for peer in targets if peer.id != self._host.id}
        if self._done is not None or not others:
            return False
        self._done, self._pings, self._found = done, pings, {}
        self._waiting = deque(others.values())
        self._go_on()
        return True

    def _go_on(self) -> None:
        while self._waiting and self._in_flight < IN_FLIGHT_MAX:
            self._in_flight += 1
            self._ping(_Target(self._waiting.popleft()))
        if not self._in_flight and self._done is not None:
            done, self._done = self._done, None
            done(self._found)

    def _ping(self, target: _Target) -> None:
        sent_at, is_timed = self._host.now(), self._host.is_linked(target.peer)
        target.sent += 1

        def answered(reply: Message, source: PeerRef) -> None:
            if not isinstance(reply, Pong):
                self._silent(target)
                return
            target.is_reached = True
            if is_timed:
                elapsed_s = self._host.now() - sent_at
                target.timed += 1
                target.rtt_s = elapsed_s if target.rtt_s is None else min(target.rtt_s, elapsed_s)
            if target.timed < self._pings and target.sent < self._pings + SILENCES_MAX:
                self._ping(target)
            else:
                self._over(target)

        self._host.request(target.peer, Ping(), PING_TIMEOUT_S, answered, lambda: self._silent(target), Priority.URGENT)

    def _silent(self, target: _Target) -> None:
        target.silences += 1
        if target.silences < SILENCES_MAX:
            self._ping(target)
        else:
            self._over(target)

    def _over(self, target: _Target) -> None:
        self._in_flight -= 1
        node_id = target.peer.id
        self._found[node_id] = Reached(node_id, target.is_reached, target.rtt_s)
        self._go_on()
