"""The real node, with what it does shown to watchers."""

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
    """Whom an observed node tells; ``index`` is the node's."""

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
        """Tell, then as ever."""
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
        """Tell, then as ever."""
        self._observer.on_passed(self._index, type_id, body, hops)
        return super().forward(key, type_id, body, source, next_hop, hops, previous_hop)

    def ready_changed(self, is_ready: bool) -> None:
        """As ever, then tell."""
        super().ready_changed(is_ready)
        self._observer.on_ready_changed(self._index, is_ready)

    def stop(self, reason: str) -> None:
        """Who leaves answers for no key any more."""
        super().stop(reason)
        self._observer.on_ready_changed(self._index, False)


class WatchedNode(ObservedNode):
    """Shows every message and event too."""

    def send(self, peer: PeerRef, message: Message, priority: Priority = Priority.NORMAL) -> None:
        """Tell, then as ever."""
        self._observer.on_sent(self._index, message)
        super().send(peer, message, priority)

    def _send_request(self, peer: PeerRef, message: Message, correlation: int, priority: Priority) -> None:
        self._observer.on_sent(self._index, message)
        super()._send_request(peer, message, correlation, priority)

    def emit(self, event: Event) -> int:
        """Tell, then as ever."""
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
"""Where a node of a simulation is, whichever of its incarnations runs."""
