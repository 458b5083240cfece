"""The `Host` of one plugin on one node: the plugin's name bound to the node's services."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import partial as bind
from itertools import count
from typing import Any, Final

from peerd import limits
from peerd.api import (
    Coordinate,
    LookupResult,
    MissingMember,
    Plugin,
    PreparedSwap,
    Priority,
    Records,
    Rng,
    Store,
    SwapCallbacks,
    SwapHandle,
    Value,
    WorkHandle,
    WorkLimits,
)
from peerd.api.parts import TimerHandler
from peerd.driver import TimerHandle
from peerd.errors import Bug, PeerMisbehaved
from peerd.ids import NodeId
from peerd.messages import Message, PeerRef
from peerd.node.ports import HostNode
from peerd.node.store import BoundStore
from peerd.services.records.plugin import BoundRecords, RecordStore
from peerd.telemetry.schema import CORE_EVENTS, Event

_CORE_EVENTS: Final = frozenset(CORE_EVENTS)


class _Work:
    """The handle of a job that a plugin gave away."""

    def __init__(self, running: dict[int, WorkHandle], number: int) -> None:
        self._running = running
        self._number = number

    def cancel(self) -> None:
        handle = self._running.pop(self._number, None)
        if handle is not None:
            handle.cancel()


class PluginHost:
    """Implements `peerd.api.Host`, and the overlay's extension of it, for one plugin."""

    def __init__(self, node: HostNode, plugin: Plugin) -> None:
        self._node = node
        self._plugin = plugin
        self._name = plugin.name
        self._driver = node.driver
        self._timers: dict[tuple[str, Hashable], TimerHandle] = {}
        self._work: dict[int, WorkHandle] = {}
        self._work_numbers = count()
        self._when_over: list[Callable[[str], None]] = []
        self._rng: Rng | None = None
        self._store: Store | None = None
        self.is_disabled = False
        self._records = BoundRecords(lambda: node.service(RecordStore), plugin.name)
        # What is called with every message is the node's own method, not one here that calls it.
        self.now = node.driver.now
        self.wall_time = node.driver.wall_time
        self.send = node.send
        self.is_linked = node.driver.is_linked
        self.leaf_set = node.overlay.leaf_set
        self.rtt = node.overlay.rtt
        self.upcalls = node
        self.record_upcalls = node.record_upcalls
        self.peer: PeerRef = node.peer
        self.id: NodeId = node.peer.id

    @property
    def rng(self) -> Rng:
        if self._rng is None:  # made on demand: it takes 2.5 KiB, and not every plugin uses it
            self._rng = self._driver.rng(self._name)
        return self._rng

    @property
    def boot_epoch(self) -> int:
        return self._node.settings.boot_epoch

    @property
    def store(self) -> Store:
        if self._store is None:
            self._store = BoundStore(self._driver, self._name, self._call_back)
        return self._store

    def _call_back(self, callback: Callable[..., None], *arguments: Any, cause: int | None = None) -> None:
        """Run a callback later, as the plugin's code, unless the plugin is out of service or replaced by then."""
        if not self.is_disabled:
            self._node.run_as(self._name, callback, *arguments, cause=cause)

    @property
    def records(self) -> Records:
        return self._records

    def request(
        self,
        peer: PeerRef,
        message: Message,
        timeout_s: float,
        on_reply: Callable[[Message, PeerRef], None],
        on_timeout: Callable[[], None],
        priority: Priority = Priority.NORMAL,
    ) -> None:
        if peer.id == self.id:
            raise Bug(f"{self._name} sends a request to its own node")
        node = self._node
        node.requests.start(self._name, peer, message, timeout_s, on_reply, on_timeout, priority, node.cause)

    def queued_bytes(self, peer: PeerRef) -> int:
        return 0 if peer.id == self.id else self._driver.queued_bytes(peer)

    def tags(self) -> dict[str, str]:
        return {key: value for plugin in self._node.plugins.values() for key, value in plugin.tags().items()}

    def peer_version(self, peer: PeerRef) -> int | None:
        plugin = self._plugin
        if peer.id == self.id:
            return plugin.version
        spoken = self._driver.introduced(peer)
        if spoken is None:
            return None
        version_min, version_max = spoken.get(self._name, (0, 0)) if spoken else (1, 1)
        version = min(version_max, plugin.version)
        return version if version >= max(version_min, plugin.version_min) else None

    def route(self, key: NodeId, message: Message) -> None:
        self._node.overlay.route(key, message)

    def multicast(self, keys: Iterable[NodeId], message: Message) -> None:
        self._node.overlay.multicast(keys, message)

    def broadcast(self, message: Message) -> None:
        self._node.overlay.broadcast(message)

    def lookup(self, key: NodeId, on_result: Callable[[LookupResult], None], timeout_s: float = 10.0) -> None:
        self._node.overlay.lookup(key, lambda result: self._call_back(on_result, result), timeout_s)

    def prefix_row(self, bits: int) -> tuple[PeerRef, ...]:
        return self._node.overlay.prefix_row(bits)

    def replica_set(self, key: NodeId, count: int) -> tuple[PeerRef, ...]:
        return self._node.overlay.replica_set(key, count)

    def estimated_ring_size(self) -> float:
        return self._node.overlay.estimated_ring_size()

    def expected_members(self) -> tuple[PeerRef, ...]:
        return self._node.overlay.expected_members()

    def missing_members(self) -> tuple[MissingMember, ...]:
        return self._node.overlay.missing_members()

    def outside_reason(self) -> str | None:
        return self._node.overlay.outside_reason()

    def next_hop(self, key: NodeId) -> PeerRef | None:
        return self._node.overlay.next_hop(key)

    def next_hops(self, keys: Sequence[NodeId]) -> dict[NodeId, PeerRef | None]:
        return self._node.overlay.next_hops(keys)

    def estimated_rtt(self, peer: PeerRef) -> float | None:
        return self._node.overlay.estimated_rtt(peer)

    @property
    def coordinate(self) -> Coordinate:
        return self._node.overlay.coordinate

    def sign(self, statement: bytes) -> bytes:
        return self._driver.sign(self._name, statement)

    def verify(self, signer: NodeId, statement: bytes, proof: bytes) -> bool:
        return self._driver.verify(signer, self._name, statement, proof)

    @property
    def public_key(self) -> bytes:
        return self._driver.public_key()

    def verify_by_key(self, signer: NodeId, statement: bytes, proof: bytes, key: bytes) -> bool:
        return self._driver.verify_by_key(signer, self._name, statement, proof, key)

    def swap(
        self,
        peer: PeerRef,
        tag: bytes,
        value: Value,
        callbacks: SwapCallbacks,
        deadline_s: float | None = None,
        silence_s: float | None = None,
    ) -> SwapHandle:
        return self._node.swaps.swap(self._name, peer, tag, value, callbacks, deadline_s, silence_s)

    def prepare_swap(
        self,
        peer: PeerRef,
        tag: bytes,
        callbacks: SwapCallbacks,
        deadline_s: float | None = None,
        silence_s: float | None = None,
    ) -> PreparedSwap:
        return self._node.swaps.prepare(self._name, peer, tag, callbacks, deadline_s, silence_s)

    def fetch(
        self,
        peer: PeerRef,
        tag: bytes,
        callbacks: SwapCallbacks,
        deadline_s: float | None = None,
        silence_s: float | None = None,
    ) -> SwapHandle:
        return self._node.swaps.fetch(self._name, peer, tag, callbacks, deadline_s, silence_s)

    def offload(
        self,
        function: Callable[..., Any],
        *arguments: Any,
        done: Callable[[Any], None],
        failed: Callable[[BaseException], None],
        cost_s: float = 0.0,
        within: WorkLimits | None = None,
    ) -> WorkHandle:
        cause, speaker, number = self._node.cause, self._node.speaker, next(self._work_numbers)

        def ended(callback: Callable[[Any], None], outcome: Any) -> None:
            self._work.pop(number, None)
            if not self.is_disabled:
                self._node.run_later(speaker, self._name, callback, outcome, cause=cause)

        handle = self._driver.offload(function, arguments, bind(ended, done), bind(ended, failed), cost_s, within)
        self._work[number] = handle
        return _Work(self._work, number)

    def set_timer(self, name: str, delay_s: float, payload: Hashable = None) -> None:
        key = (name, payload)
        method = self._plugin.handlers.timers.get(name)
        if method is None:
            raise Bug(f"{self._name} arms the timer {name!r}, which no @on_timer method handles")
        if key in self._timers:
            raise Bug(f"{self._name} arms the timer {name!r} ({payload!r}) twice")
        if len(self._timers) >= limits.TIMERS_PER_PLUGIN_MAX:
            raise Bug(f"{self._name} holds {len(self._timers)} timers")
        node = self._node
        self._timers[key] = self._driver.call_later(delay_s, bind(self._fire, key, method, node.cause, node.speaker))

    def _fire(
        self, key: tuple[str, Hashable], method: TimerHandler, cause: int | None, speaker: PeerRef | None
    ) -> None:
        del self._timers[key]
        self._node.run_later(speaker, self._name, method, key[1], cause=cause)

    def cancel_timer(self, name: str, payload: Hashable = None) -> None:
        handle = self._timers.pop((name, payload), None)
        if handle is not None:
            handle.cancel()

    def disable(self) -> None:
        """Take the plugin out of service: its timers do not fire any more, and nothing calls it back."""
        self.is_disabled = True
        self.cancel_timers()
        for handle in self._work.values():
            handle.cancel()
        self._work.clear()

    def cancel_timers(self) -> None:
        """Disarm everything; the node stops, or the plugin is out of service."""
        for handle in self._timers.values():
            handle.cancel()
        self._timers.clear()

    def when_over(self, callback: Callable[[str], None]) -> None:
        self._when_over.append(callback)

    def new_epoch(self) -> str:
        return self._node.new_epoch()

    def over(self, reason: str) -> None:
        """Call the callbacks of `when_over`, once."""
        callbacks, self._when_over = self._when_over, []
        for callback in callbacks:
            self._node.run_as(self._name, callback, reason)

    def misbehaved(self, peer: PeerRef, error: PeerMisbehaved) -> None:
        self._node.misbehaved(self._name, peer, error)

    def emit(self, event: Event) -> int:
        if type(event) not in _CORE_EVENTS and type(event) not in self._plugin.events:
            raise Bug(f"{self._name} records {type(event).__name__}, which is not among its `events`")
        return self._node.emit(event)

    def count(self, name: str, amount: float = 1.0, **labels: str) -> None:
        self._driver.count(name, amount, labels)

    def gauge(self, name: str, value: float, **labels: str) -> None:
        self._driver.gauge(name, value, labels)

    def observe(self, name: str, value: float, **labels: str) -> None:
        self._driver.observe(name, value, labels)

    def may_pass(self, peer: PeerRef) -> bool:
        return self._node.overlay.may_pass(peer)

    # The overlay's extension (peerd.overlay.ports.OverlayHost)

    def dial(self, host: str, port: int, done: Callable[[PeerRef | None], None]) -> None:
        self._driver.dial(host, port, lambda peer: self._node.run_as(self._name, done, peer))

    def disconnect(self, peer: PeerRef, reason: str) -> None:
        self._driver.disconnect(peer, reason)

    def linked_at(self, peer: PeerRef) -> float | None:
        return self._driver.linked_at(peer)

    def boot_epoch_of(self, peer: PeerRef) -> int | None:
        return self._driver.boot_epoch_of(peer)

    def charge(self, peer: PeerRef, messages: int) -> None:
        self._driver.charge(peer, messages)

    # The record store's extension (peerd.services.records.ports.RecordsHost)

    @property
    def is_ready(self) -> bool:
        return not self._node.is_stopped and self._node.overlay.may_serve
