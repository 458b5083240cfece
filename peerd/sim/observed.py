"""The real node, which also shows watchers what it does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from peerd.api import Handler, Plugin, Priority
from peerd.driver import Driver
from peerd.ids import NodeId
from peerd.messages import Message, PeerRef
from peerd.node.node import Node, NodeSettings
from peerd.sim.world import SimNode
from peerd.telemetry.schema import Event


@dataclass(frozen=True, slots=True)
class Delivery:
    """A routed or broadcast message that reached a plugin of ``node``."""

    node: PeerRef
    key: NodeId
    type_id: int
    source: PeerRef
    body: bytes = b""


class Observer(Protocol):
    """Hears what observed nodes do; ``index`` is the node's."""

    def watches(self, kind: type[Message]) -> bool: ...
    def on_delivered(self, delivery: Delivery) -> None: ...
    def on_passed(self, index: int, type_id: int, body: bytes, hops: int) -> None: ...
    def on_ready_changed(self, index: int, is_ready: bool) -> None: ...
    def on_handled(self, index: int, message: Message, source: PeerRef) -> None: ...
    def on_sent(self, index: int, message: Message) -> None: ...
    def on_emitted(self, index: int, event: Event) -> None: ...


class ObservedNode(Node):
    """Shows deliveries, routed messages on their way, and readiness: nothing that every message pays for."""

    def __init__(
        self, driver: Driver, settings: NodeSettings, plugins: Sequence[Plugin], observer: Observer, index: int
    ) -> None:
        self._observer = observer
        self._index = index
        super().__init__(driver, settings, plugins)

    def deliver(self, key: NodeId, type_id: int, body: bytes, source: PeerRef) -> None:
        """Tell the observer, then do what a node does."""
        self._observer.on_delivered(Delivery(self.peer, key, type_id, source, body))
        super().deliver(key, type_id, body, source)

    def forward(
        self,
        key: NodeId,
        type_id: int,
        body: bytes,
        source: PeerRef,
        next_hop: PeerRef,
        hops: int,
        previous_hop: PeerRef,
    ) -> PeerRef | None:
        """Tell the observer, then do what a node does."""
        self._observer.on_passed(self._index, type_id, body, hops)
        return super().forward(key, type_id, body, source, next_hop, hops, previous_hop)

    def ready_changed(self, is_ready: bool) -> None:
        """Do what a node does, then tell the observer."""
        super().ready_changed(is_ready)
        self._observer.on_ready_changed(self._index, is_ready)

    def stop(self, reason: str) -> None:
        """Tell the observer: a node that leaves is not ready any more, as it answers for no key."""
        super().stop(reason)
        self._observer.on_ready_changed(self._index, False)


class WatchedNode(ObservedNode):
    """Also shows every message and event, which costs time for each."""

    def send(self, peer: PeerRef, message: Message, priority: Priority = Priority.NORMAL) -> None:
        """Tell the observer, then do what a node does."""
        self._observer.on_sent(self._index, message)
        super().send(peer, message, priority)

    def _send_request(self, peer: PeerRef, message: Message, correlation: int, priority: Priority) -> None:
        self._observer.on_sent(self._index, message)
        super()._send_request(peer, message, correlation, priority)

    def emit(self, event: Event) -> int:
        """Tell the observer, then do what a node does."""
        self._observer.on_emitted(self._index, event)
        return super().emit(event)

    def _start_plugin(self, name: str) -> None:
        super()._start_plugin(name)
        for kind, handler in self.plugins[name].handlers.messages.items():
            self._handlers[kind] = (name, self._watched(handler, self._observer.watches(kind)))

    def _watched(self, handler: Handler, is_told: bool) -> Handler:
        observer, index = self._observer, self._index

        def handle(message: Any, source: PeerRef) -> Message | None:
            if is_told:
                observer.on_handled(index, message, source)
            answer = handler(message, source)
            if isinstance(answer, Message):
                observer.on_sent(index, answer)
            return answer

        return handle


Place = SimNode[ObservedNode]
"""A node of a simulation through all of its incarnations."""
