"""One node: overlay, swap layer and plugins on a driver.

`Node` dispatches what comes in (frames, timers, streams) and is what the plugins' hosts act through. It is the same
object in the daemon and in the simulator, and sans-IO like everything below it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from peerd import limits
from peerd.api import (
    Envelope,
    Handler,
    HistorySize,
    NeighbourChange,
    Plugin,
    PluginConfig,
    Priority,
    RefuseSwap,
    SendRefusal,
    SwapDecision,
    SwapRequest,
    Verdict,
)
from peerd.driver import Driver, StreamHandler
from peerd.errors import Bug, PeerMisbehaved
from peerd.ids import NodeId, format_id
from peerd.limits import FRAME_HEADER_BYTES
from peerd.messages import Message, PeerRef, decode_body, message_type
from peerd.node.drain import Drain
from peerd.node.host import PluginHost
from peerd.node.ports import S
from peerd.node.requests import Requests
from peerd.node.sends import RefusedSends, UnknownTold
from peerd.node.services import make_services
from peerd.node.settings import NodeSettings as NodeSettings
from peerd.overlay.config import OverlayConfig
from peerd.overlay.overlay import Overlay
from peerd.services.records.plugin import RecordStore
from peerd.services.records.upcalls import RecordUpcalls
from peerd.services.service import Service
from peerd.swap.config import SwapConfig
from peerd.swap.layer import SwapLayer
from peerd.telemetry.schema import (
    SCHEMA_VERSION,
    Event,
    NodeReady,
    NodeStarted,
    NodeStopped,
    PeerMisbehaviour,
    TrafficSnapshot,
)
from peerd.wire.codec import decode, encode, encode_reply, encode_request
from peerd.wire.frames import CORRELATION, FLAG_REPLY, FLAG_REQUEST, Frame
from peerd.wire.unknown import UnknownMessage

SENT, SENT_BYTES, RECEIVED, RECEIVED_BYTES = range(4)


class Traffic(dict[int, list[int]]):
    """Messages and bytes by type id: columns `SENT`, `SENT_BYTES`, `RECEIVED`, `RECEIVED_BYTES`. On the hot path."""

    def __missing__(self, type_id: int) -> list[int]:
        counts = self[type_id] = [0, 0, 0, 0]
        return counts


class Node:
    """One node: builds its parts, and dispatches events to them.

    The driver calls `start`, `frame_received`, `peer_down`, `stream_accepted` and `stop`; everything else is for the
    plugins' hosts and for reading state.
    """

    def __init__(self, driver: Driver, settings: NodeSettings, plugins: Sequence[Plugin]) -> None:
        self.driver = driver
        self.settings = settings
        self.peer = settings.peer
        self._id_text = format_id(settings.peer.id)
        self.overlay = Overlay(settings.overlay)
        self.swaps = SwapLayer(settings.swap, self)
        self.plugins: dict[str, Plugin] = {}
        self.hosts: dict[str, PluginHost] = {}
        self.traffic = Traffic()
        self.unknown_messages = 0
        self.cause: int | None = None
        self._sender: PeerRef | None = None
        """The peer whose frame is being handled, or has led to what is being handled."""
        self.speaker: PeerRef | None = None
        """The same peer, where it is to blame for all that is being handled: not for what others had it pass on."""
        self._handlers: dict[type[Message], tuple[str, Handler]] = {}
        self._owners: dict[type[Message], str] = {}
        self.requests = Requests(driver, self._run, self._send_request)
        self._refused = RefusedSends(driver, self.requests, self._hears_refusals, self._tell_refused)
        self._unknown_told = UnknownTold()
        self.record_upcalls = RecordUpcalls(driver.call_soon, self.plugins, self._is_disabled, self.run_as, self._guard)
        self._event_id = 0
        self._started_at = driver.now()
        self._ready_once = False
        self.is_stopped = False
        self._epochs = 0
        self._drain = Drain(driver, self._run, self.plugins, self.overlay.name, self.stop)
        for plugin in (self.overlay, *make_services(settings.services), *plugins):
            if plugin.name in self.plugins:
                raise Bug(f"two plugins are called {plugin.name}")
            self._adopt(plugin)
        self._handlers[UnknownMessage] = (self.overlay.name, self._unknown_told_by)
        if len(self.plugins) > limits.HELLO_PLUGINS_MAX:
            raise Bug(f"{len(self.plugins)} plugins, limit {limits.HELLO_PLUGINS_MAX}")
        driver.introduce({name: (each.version_min, each.version) for name, each in self.plugins.items()})

    # Life

    def start(self, bootstrap: Iterable[tuple[str, int]] = (), known: Iterable[PeerRef] = ()) -> None:
        """Start every plugin and join the ring. With neither addresses nor known peers, found a ring."""
        settings = self.settings
        self.emit(NodeStarted(address=self.peer.address, version=settings.version, profile=settings.profile))
        for name in self.plugins:
            self._run(name, self._start_plugin, name)
        self.overlay.join(bootstrap, known)

    def stop(self, reason: str) -> None:
        """Leave the ring and stop every plugin; the driver then closes links after a short flush."""
        if self.is_stopped:
            return
        self.let_clients_go(f"node stopping: {reason}")
        for name, plugin in reversed(self.plugins.items()):
            self._run(name, plugin.stop)
        self.overlay.leave()
        self.swaps.stop()
        self.is_stopped = True
        self._drain.over()
        for host in self.hosts.values():
            host.cancel_timers()
        self.requests.clear()
        self.snapshot_traffic()
        self.emit(NodeStopped(reason=reason, uptime_s=self.driver.now() - self._started_at))

    def reconfigure(self, overlay: OverlayConfig, swap: SwapConfig, plugins: Mapping[str, PluginConfig]) -> None:
        """Work with other values of the settings that reload. ``plugins``: the tables of those that are to be told."""
        self.settings = replace(self.settings, overlay=overlay, swap=swap)
        self.swaps.reconfigure(swap)
        for name, config in {self.overlay.name: overlay, **plugins}.items():
            plugin = self.plugins.get(name)
            if plugin is not None and plugin.config != config and not self.is_stopped:
                plugin.config = config
                self._run(name, plugin.reconfigured)

    def new_epoch(self) -> str:
        """See `peerd.api.Host.new_epoch`. A counter, not a random number: generators restart with a replaced plugin."""
        self._epochs += 1
        return f"{format_id(self.peer.id)[:8]}.{self.settings.boot_epoch}.{self._epochs}"

    def let_clients_go(self, reason: str) -> None:
        """Have every plugin end the streams that its clients read. `stop` does the same for any that are left."""
        for host in self.hosts.values():
            host.over(reason)

    def drain(self, timeout_s: float, done: Callable[[tuple[str, ...]], None], reason: str = "drained") -> None:
        """Have each plugin hand over what it holds, then `stop`, so that the node leaves the ring in order.

        One plugin after the other, the last one first, so that services go after the plugins that use them. ``done`` is
        called once, never before this returns, with the plugins that had not finished after ``timeout_s`` seconds. A
        second call waits for the same end.
        """
        self._drain.begin(timeout_s, done, reason)

    @property
    def draining(self) -> tuple[str, ...] | None:
        """Plugins that have yet to hand over, the next one first; ``None`` while no drain has begun."""
        return self._drain.remaining

    def restart_plugin(self, name: str) -> None:
        """Replace a plugin that failed by a fresh instance (the overlay cannot be: it *is* the node)."""
        if name == self.overlay.name:
            raise Bug("the overlay cannot be restarted by itself")
        self.disable_plugin(name)
        failed = self.plugins[name]
        fresh = type(failed)(failed.config)
        fresh.inherit(failed)
        self._adopt(fresh)
        self._start_plugin(name)

    def disable_plugin(self, name: str) -> None:
        """Take a plugin out of service: no timer, reply or message reaches it any more."""
        for plugin in self.plugins.values():
            if isinstance(plugin, Service):
                plugin.plugin_disabled(name)
        self.hosts[name].over("plugin restarted")
        self.hosts[name].disable()
        self.swaps.disable_plugin(name)
        self.requests.forget(name)
        self._handlers = {kind: entry for kind, entry in self._handlers.items() if entry[0] != name}
        self._owners = {kind: owner for kind, owner in self._owners.items() if owner != name}

    def service(self, kind: type[S]) -> S:
        """The built-in service of a class. It always exists, and is another object after a failure and restart."""
        return cast(S, self.plugins[kind.name])

    @property
    def is_ready(self) -> bool:
        """Joined, with a complete leaf set, and neither draining nor stopping."""
        return not self.is_stopped and self._drain.remaining is None and self.overlay.is_ready

    @property
    def records(self) -> RecordStore:
        """The record store."""
        return self.service(RecordStore)

    def validate(self) -> None:
        """Assert the invariants of everything on this node."""
        for plugin in self.plugins.values():
            plugin.validate()
        self.swaps.validate()
        self.requests.validate()

    def histories(self) -> list[tuple[str, HistorySize]]:
        """All that is remembered of the past on this node, by whose it is."""
        return [(name, each) for name, plugin in self.plugins.items() for each in plugin.histories()]

    # From the driver

    def frame_received(self, peer: PeerRef, frame: Frame) -> None:
        """Decode, validate, count and dispatch one control frame. Never raises for what a peer sent."""
        if self.is_stopped:
            return
        self._sender = self.speaker = peer
        try:
            decoded = decode(frame)
            type_id, _, body = frame
            counts = self.traffic[type_id]
            counts[RECEIVED] += 1
            counts[RECEIVED_BYTES] += FRAME_HEADER_BYTES + len(body)
            self.overlay.peer_heard(peer)
            if decoded is None:
                self._unknown_received(peer, frame)
                return
            message, correlation, is_reply = decoded
            if is_reply:
                self.requests.replied(peer, correlation or 0, message)
            else:
                self._dispatch(message, peer, correlation)
        except PeerMisbehaved as error:  # raised by the decoder, or by a handler
            self.driver.misbehaved(peer, error)
        finally:
            self._sender = self.speaker = None

    def peer_down(self, peer: PeerRef, reason: str) -> None:
        """No link to this peer, and no way to get one: its outstanding requests end now."""
        if self.is_stopped:
            return
        self.requests.peer_down(peer.id)
        self._run(self.overlay.name, self.overlay.peer_down, peer, reason)
        for name, plugin in list(self.plugins.items()):
            is_told = plugin is not self.overlay and type(plugin).peer_down is not Plugin.peer_down
            if is_told and not self.is_stopped:
                self._run(name, plugin.peer_down, peer, reason)

    def frame_refused(self, peer: PeerRef, frame: Frame, reason: SendRefusal) -> None:
        """Note that the driver will not send a frame. The driver may call this within a call of the node's own."""
        if not self.is_stopped:
            self._refused.frame_refused(peer, frame, reason)

    def writable(self, peer: PeerRef) -> None:
        """The queue of a slow peer has shrunk; told from the loop, never within a call of the node's own."""
        for name, plugin in list(self.plugins.items()):
            if type(plugin).writable is not Plugin.writable and not self.is_stopped:
                self._run(name, plugin.writable, peer)

    def stream_accepted(self, peer: PeerRef) -> StreamHandler:
        """A peer opened a bulk connection; the swap layer reads it."""
        return self.swaps.accept(peer)

    # For the plugins' hosts

    def send(self, peer: PeerRef, message: Message, priority: Priority = Priority.NORMAL) -> None:
        """Send a message over one hop."""
        if peer.id == self.peer.id:
            self.driver.call_soon(lambda: self._dispatch(message, peer, None))
            return
        self._send_counted(peer, encode(message), priority)

    def _send_request(self, peer: PeerRef, message: Message, correlation: int, priority: Priority) -> None:
        self._send_counted(peer, encode_request(message, correlation), priority)

    def deliver(self, key: NodeId, type_id: int, body: bytes, source: PeerRef) -> None:
        """A routed or broadcast message arrived here; its plugin gets it after the current handler."""
        sender = self._sender

        def run() -> None:
            self._sender = sender
            try:
                hand_over()
            except PeerMisbehaved as error:
                self._refuse_routed(source, error)
            finally:
                self._sender = None

        def hand_over() -> None:
            kind = message_type(type_id)
            owner = self._owners.get(kind) if kind is not None else None
            if kind is None or owner is None or self.is_stopped:
                self.unknown_messages += 1
                return
            message = decode_body(kind, body)
            self._guard(owner, self.plugins[owner].deliver, key, message, source)

        self.driver.call_soon(run)

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
        """Ask the owning plugin about a message passing through. Plugins that do not care cost nothing."""
        kind = message_type(type_id)
        owner = self._owners.get(kind) if kind is not None else None
        if kind is None or owner is None or type(self.plugins[owner]).forward is Plugin.forward:
            return next_hop
        try:
            message = decode_body(kind, body)
            envelope = Envelope(key, source, message, next_hop, hops, previous_hop)
            verdict = self._guard(owner, self.plugins[owner].forward, envelope)
        except PeerMisbehaved as error:
            self._refuse_routed(source, error)
            return None
        if isinstance(verdict, PeerRef):
            return verdict
        return None if verdict is Verdict.STOP else next_hop

    def _refuse_routed(self, source: PeerRef, error: PeerMisbehaved) -> None:
        """Record a bad routed message. No link is cut: any hop may have damaged the body, or made up its source."""
        self._record_misbehaviour(source.address, f"routed: {error}", error)

    def _record_misbehaviour(self, address: str, detail: str, error: PeerMisbehaved) -> None:
        reason = getattr(error, "reason", "misbehaved")
        detail = detail[: limits.EVENT_TEXT_LENGTH_MAX]
        self.emit(PeerMisbehaviour(peer=None, address=address, reason=reason, detail=detail))

    def misbehaved(self, plugin: str, peer: PeerRef, error: PeerMisbehaved) -> None:
        """See `peerd.api.Host.misbehaved`."""
        if peer.id == self.peer.id:
            raise Bug(f"{plugin} blames its own node: {error}")
        self.driver.misbehaved(peer, error)

    def neighbours_changed(self, change: NeighbourChange) -> None:
        """Tell every plugin but the overlay, after the current handler."""

        def run() -> None:
            for name, plugin in list(self.plugins.items()):
                cares = type(plugin).neighbours_changed is not Plugin.neighbours_changed
                if cares and name != self.overlay.name and not self.is_stopped:
                    self._run(name, plugin.neighbours_changed, change)

        self.driver.call_soon(run)

    def ready_changed(self, is_ready: bool) -> None:
        """When the node is ready for the first time, record how long that took."""
        if is_ready and not self._ready_once:
            self._ready_once = True
            duration_s = self.driver.now() - self._started_at
            self.emit(NodeReady(duration_s=duration_s, ring_size=self.overlay.estimated_ring_size()))

    def swap_requested(self, plugin: str, request: SwapRequest) -> SwapDecision:
        """Ask the plugin that a swap's tag names."""
        if plugin not in self.plugins or self.is_stopped:
            return RefuseSwap("no_such_plugin")
        answer: SwapDecision | None = self._guard(plugin, self.plugins[plugin].swap_requested, request)
        return RefuseSwap("failed") if answer is None else answer

    def run_as(self, plugin: str, callback: Callable[..., Any], *arguments: Any, cause: int | None = None) -> None:
        """Call back into a plugin (timer, reply, finished swap or offload); ``cause`` is the event that led to it."""
        if not self.is_stopped:
            self._run(plugin, callback, *arguments, cause=cause)

    def run_from(self, peer: PeerRef, plugin: str, callback: Callable[..., Any], *arguments: Any) -> None:
        """As `run_as`, with what this peer has sent: what is wrong with it costs the peer its link."""
        before = self._sender, self.speaker
        self._sender = self.speaker = peer
        try:
            self.run_as(plugin, callback, *arguments)
        finally:
            self._sender, self.speaker = before

    def run_later(
        self, speaker: PeerRef | None, plugin: str, callback: Callable[..., Any], *arguments: Any, cause: int | None
    ) -> None:
        """As `run_as`, for what was begun while a message of this peer was handled, if any was.

        It is to blame for what is wrong now, but not for what is begun now: else a timer that is armed again and again
        would be its fault for ever.
        """
        before, self._sender = self._sender, speaker
        try:
            if not self.is_stopped:
                self._run(plugin, callback, *arguments, cause=cause, speaker=speaker)
        finally:
            self._sender = before

    # Telling

    def emit(self, event: Event) -> int:
        """Number one event, stamp it and hand it to the sinks."""
        self._event_id += 1
        self.driver.record(
            {
                "schema_version": SCHEMA_VERSION,
                "ts": self.driver.wall_time(),
                "mono_s": self.driver.now(),
                "node": self._id_text,
                "boot": self.settings.boot_epoch,
                "id": self._event_id,
                "cause": self.cause,
                "event": event.KIND,
                **event.columns(),
            }
        )
        self.cause = self._event_id
        return self._event_id

    def snapshot_traffic(self) -> None:
        """Record what was sent and received so far, a line a message type."""
        for type_id, counts in sorted(self.traffic.items()):
            kind = message_type(type_id)
            name = kind.__name__ if kind is not None else f"{type_id:#06x}"
            self.emit(
                TrafficSnapshot(
                    message=name,
                    sent=counts[SENT],
                    received=counts[RECEIVED],
                    sent_bytes=counts[SENT_BYTES],
                    received_bytes=counts[RECEIVED_BYTES],
                )
            )

    # Inside

    def _adopt(self, plugin: Plugin) -> None:
        name = plugin.name
        self.plugins[name] = plugin
        self.hosts[name] = PluginHost(self, plugin)
        for kind in plugin.messages:
            if self._owners.setdefault(kind, name) != name:
                raise Bug(f"{kind.__name__} belongs to {self._owners[kind]}, not to {name}")

    def _is_disabled(self, name: str) -> bool:
        return self.hosts[name].is_disabled

    def _start_plugin(self, name: str) -> None:
        plugin = self.plugins[name]
        self.driver.declare_metrics(plugin.metrics)
        plugin.start(self.hosts[name])
        for kind, handler in plugin.handlers.messages.items():
            self._handlers[kind] = (name, handler)

    def _dispatch(self, message: Message, source: PeerRef, correlation: int | None) -> None:
        entry = self._handlers.get(type(message))
        if entry is None or self.is_stopped:
            self._tell_unknown(source, message.TYPE_ID, correlation)
            return
        plugin, handler = entry
        self.cause, reply = None, None
        try:  # does what `_guard` does; inlined, because this runs for every message
            answer = handler(message, source)
            if correlation is not None and isinstance(answer, Message):
                reply = encode_reply(answer, correlation)
        except PeerMisbehaved as error:
            if source.id != self.peer.id:
                raise
            self.driver.handler_failed(plugin, error)  # a message from this node itself blames nobody else
            return
        except Exception as error:  # the boundary between plugins, see `_guard`
            self.driver.handler_failed(plugin, error, self._sender)
            return
        finally:
            self.cause = None
        if reply is not None:
            self._send_counted(source, reply, Priority.URGENT)

    # Messages of unknown types

    def _unknown_received(self, peer: PeerRef, frame: Frame) -> None:
        """A message came whose type nothing here declares. A reply is never answered."""
        is_request = frame[1] == FLAG_REQUEST and len(frame[2]) >= CORRELATION.size
        if frame[1] == FLAG_REPLY:
            self.unknown_messages += 1
        else:
            self._tell_unknown(peer, frame[0], CORRELATION.unpack_from(frame[2])[0] if is_request else None)

    def _tell_unknown(self, peer: PeerRef, type_id: int, correlation: int | None) -> None:
        """Tell the sender that no plugin here handles its message: always for a request, now and then for others."""
        self.unknown_messages += 1
        if self.is_stopped or peer.id == self.peer.id:
            return
        if correlation is not None:
            self._send_counted(peer, encode_reply(UnknownMessage(type_id), correlation), Priority.URGENT)
        elif self._unknown_told.is_due(peer.id, type_id, self.driver.now()):
            self._send_counted(peer, encode(UnknownMessage(type_id)), Priority.BACKGROUND)

    def _unknown_told_by(self, message: UnknownMessage, peer: PeerRef) -> None:
        """A peer does not know what this node sent it."""
        self._refused.note(peer, message.type_id, SendRefusal.UNKNOWN_MESSAGE)

    def _hears_refusals(self, kind: type[Message]) -> bool:
        owner = self._owners.get(kind)
        return owner is not None and type(self.plugins[owner]).send_refused is not Plugin.send_refused

    def _tell_refused(self, peer: PeerRef, kind: type[Message], reason: SendRefusal, count: int) -> None:
        owner = self._owners.get(kind)
        if owner is not None:
            self.run_as(owner, self.plugins[owner].send_refused, peer, kind, reason, count)

    def _guard(self, plugin: str, function: Callable[..., Any], *arguments: Any, cause: int | None = None) -> Any:
        """Run plugin code. What it raises is the driver's to deal with, unless it says that a peer misbehaved."""
        before, self.cause = self.cause, cause
        try:
            return function(*arguments)
        except PeerMisbehaved:
            raise
        except Exception as error:  # the boundary between plugins: the driver raises it or restarts the plugin
            self.driver.handler_failed(plugin, error, self._sender)
            return None
        finally:
            self.cause = before

    def _run(
        self,
        plugin: str,
        function: Callable[..., Any],
        *arguments: Any,
        cause: int | None = None,
        speaker: PeerRef | None = None,
    ) -> Any:
        """As `_guard`, where no caller could say who misbehaved: it is whose message led here, if one did."""
        try:
            return self._guard(plugin, function, *arguments, cause=cause)
        except PeerMisbehaved as error:
            speaker = speaker or self.speaker
            if speaker is not None and speaker.id != self.peer.id:
                self.driver.misbehaved(speaker, error)
            else:
                self._record_misbehaviour("", f"{plugin}: {error}", error)
            return None

    def _send_counted(self, peer: PeerRef, frame: Frame, priority: Priority) -> None:
        type_id, _, body = frame
        counts = self.traffic[type_id]
        counts[SENT] += 1
        counts[SENT_BYTES] += FRAME_HEADER_BYTES + len(body)
        self.driver.send(peer, frame, priority)
