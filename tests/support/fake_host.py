"""A host for one service without a node: it notes what the service does, and the test plays the rest of the world."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from random import Random
from typing import Any

from peerd.api import Coordinate, LeafSet, Plugin, Priority
from peerd.errors import Bug
from peerd.ids import NodeId
from peerd.messages import Message, PeerRef, decode_body, encode_body
from peerd.telemetry.schema import Event


def peer(node_id: int) -> PeerRef:
    """A node by its id, with an address of its own."""
    return PeerRef(NodeId(node_id), "10.1.0.1", 1 + node_id % 65535)


@dataclass(frozen=True, slots=True)
class Request:
    """A question that waits for its answer."""

    peer: PeerRef
    message: Message
    timeout_s: float
    on_reply: Callable[[Message, PeerRef], None]
    on_timeout: Callable[[], None]


class FakeHost:
    """The part of `peerd.api.Host` that services use. Everything sent has been through the wire format."""

    def __init__(self, node_id: int, seed: int = 0) -> None:
        self.peer = peer(node_id)
        self.id = self.peer.id
        self.boot_epoch = 1
        self.rng = Random(f"{seed} {node_id}")
        self.time_s = 0.0
        self.plugin: Plugin | None = None
        self.neighbours: tuple[PeerRef, ...] = ()
        self.is_complete = True
        self.sent: list[tuple[PeerRef, Message]] = []
        self.routed: list[tuple[NodeId, Message]] = []
        self.requests: list[Request] = []
        self.timers: dict[tuple[str, Hashable], float] = {}
        self.later: list[Callable[[], None]] = []
        self.counted: Counter[tuple[str, str]] = Counter()
        self.events: list[Event] = []

    def now(self) -> float:
        """The test's clock."""
        return self.time_s

    def send(self, peer: PeerRef, message: Message, priority: Priority = Priority.NORMAL) -> None:
        """Note it."""
        self.sent.append((peer, decode_body(type(message), encode_body(message))))

    def route(self, key: NodeId, message: Message) -> None:
        """Note it."""
        self.routed.append((key, decode_body(type(message), encode_body(message))))

    def request(
        self,
        peer: PeerRef,
        message: Message,
        timeout_s: float,
        on_reply: Callable[[Message, PeerRef], None],
        on_timeout: Callable[[], None],
        priority: Priority = Priority.NORMAL,
    ) -> None:
        """Note it."""
        if peer.id == self.id:
            raise Bug("a request to its own node")
        decoded = decode_body(type(message), encode_body(message))
        self.requests.append(Request(peer, decoded, timeout_s, on_reply, on_timeout))

    def leaf_set(self) -> LeafSet:
        """The neighbours that the test has given it."""
        return LeafSet(self.neighbours, (), self.is_complete, covers_ring=True)

    @property
    def coordinate(self) -> Coordinate:
        """At the origin, like everybody."""
        return Coordinate(0.0, 0.0, 0.0, 1.0, 1.0)

    def rtt(self, peer: PeerRef) -> float | None:
        """Nobody has been measured."""
        return None

    def estimated_rtt(self, peer: PeerRef) -> float | None:
        """Nobody has been measured."""
        return None

    def set_timer(self, name: str, delay_s: float, payload: Hashable = None) -> None:
        """Note when it is due."""
        if (name, payload) in self.timers:
            raise Bug(f"the timer {name} ({payload}) is armed twice")
        self.timers[name, payload] = self.time_s + delay_s

    def cancel_timer(self, name: str, payload: Hashable = None) -> None:
        """Forget it."""
        self.timers.pop((name, payload), None)

    def fire(self, name: str, payload: Hashable = None) -> None:
        """Have a timer go off, when it is due."""
        assert self.plugin is not None
        self.time_s = max(self.time_s, self.timers.pop((name, payload)))
        getattr(self.plugin, self.plugin.timer_handlers[name])(payload)
        self.run_later()

    def call_plugin(
        self, plugin: str, function: Callable[..., Any], *arguments: Any, then: Callable[[Any], None] | None = None
    ) -> None:
        """Run it after the current handler."""

        def run() -> None:
            answer = function(*arguments)
            if then is not None:
                then(answer)

        self.later.append(run)

    def run_later(self) -> None:
        """What was put off until after the handler."""
        while self.later:
            self.later.pop(0)()

    def emit(self, event: Event) -> int:
        """Note it."""
        self.events.append(event)
        return len(self.events)

    def count(self, name: str, amount: float = 1.0, **labels: str) -> None:
        """Add it up by name and the values of the labels."""
        self.counted[name, ",".join(labels.values())] += int(amount)

    def gauge(self, name: str, value: float, **labels: str) -> None:
        """Nobody looks."""

    def take_sent(self) -> list[tuple[PeerRef, Message]]:
        """What was sent since the last time."""
        sent, self.sent = self.sent, []
        return sent
