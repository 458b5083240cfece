"""The swap layer of one node: all swaps under way, and the limits that they share. Sans-IO."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from peerd import limits
from peerd.api import PreparedSwap, SizedBlob, SwapCallbacks, SwapDecision, SwapHandle, SwapRequest, Value
from peerd.driver import Stream, StreamHandler
from peerd.errors import Bug, PeerMisbehaved, ProtocolError
from peerd.messages import PeerRef
from peerd.swap.config import SwapConfig
from peerd.swap.kept import KeptStreams
from peerd.swap.ports import Intent, SwapDriver, SwapNode, SwapState
from peerd.swap.session import SwapSession
from peerd.swap.transfer import payload_of
from peerd.telemetry.schema import SwapFinished


class ReceiveBudget:
    """Counts what is reserved. Reserve before allocating, release once; sizes up to ``spill_bytes`` are memory."""

    def __init__(self, config: SwapConfig) -> None:
        self._config = config
        self.memory_bytes = 0
        self.spilled_bytes = 0

    def reconfigure(self, config: SwapConfig) -> None:
        """Other limits for what is reserved from now on. ``spill_bytes`` must stay: it says what counts as memory."""
        self._config = config

    def reserve(self, size_bytes: int) -> bool:
        """Take room for one value; ``False``, with nothing taken, when there is not enough."""
        if size_bytes > self._config.spill_bytes:
            if self.spilled_bytes + size_bytes > self._config.spilled_bytes_max:
                return False
            self.spilled_bytes += size_bytes
            return True
        if self.memory_bytes + size_bytes > self._config.memory_bytes_max:
            return False
        self.memory_bytes += size_bytes
        return True

    def release(self, size_bytes: int) -> None:
        """Give back what `reserve` took. Raises `Bug` when that was never taken."""
        if size_bytes > self._config.spill_bytes:
            self.spilled_bytes -= size_bytes
        else:
            self.memory_bytes -= size_bytes
        if self.memory_bytes < 0 or self.spilled_bytes < 0:
            raise Bug(f"swap budget released twice: {self.memory_bytes} memory, {self.spilled_bytes} spilled")


class SwapLayer:
    """Starts, accepts and limits swaps. Callbacks reach plugins through the node, never before a call has returned."""

    def __init__(self, config: SwapConfig, node: SwapNode) -> None:
        self.config = config
        self.budget = ReceiveBudget(config)
        self._node = node
        self._sessions: dict[int, SwapSession] = {}  # the key is id(session); the order is that of creation
        self._kept: KeptStreams | None = None
        self._is_stopped = False

    @property
    def kept(self) -> KeptStreams:
        """Return the connections that stay for the next swaps."""
        if self._kept is None:  # the node has its driver only after it has made this
            self._kept = KeptStreams(self.driver, self.accept)
        return self._kept

    @property
    def driver(self) -> SwapDriver:
        """Return the node's driver."""
        return self._node.driver

    @property
    def sessions(self) -> tuple[SwapSession, ...]:
        """List every swap that is not over, the oldest first."""
        return tuple(self._sessions.values())

    # From the plugins' hosts

    def swap(
        self,
        plugin: str,
        peer: PeerRef,
        tag: bytes,
        value: Value,
        callbacks: SwapCallbacks,
        deadline_s: float | None = None,
        silence_s: float | None = None,
    ) -> SwapHandle:
        """Exchange ``value`` for the peer's. Raises `Bug` for an overlong tag or a swap with this node itself."""
        intent = Intent(plugin, tag, callbacks, self._limited(deadline_s), value, silence_s=silence_s)
        return self._initiate(peer, intent)

    def prepare(
        self,
        plugin: str,
        peer: PeerRef,
        tag: bytes,
        callbacks: SwapCallbacks,
        deadline_s: float | None = None,
        silence_s: float | None = None,
    ) -> PreparedSwap:
        """Open the connection for a swap whose value is given later, or never. Raises `Bug` as `swap` does.

        It takes one of the places for swaps until a swap needs that.
        """
        return self._initiate(peer, Intent(plugin, tag, callbacks, self._limited(deadline_s), silence_s=silence_s))

    def fetch(
        self,
        plugin: str,
        peer: PeerRef,
        tag: bytes,
        callbacks: SwapCallbacks,
        deadline_s: float | None = None,
        silence_s: float | None = None,
    ) -> SwapHandle:
        """A swap that gives nothing: the acceptor's `SwapCallbacks.done` gets an empty value."""
        intent = Intent(plugin, tag, callbacks, self._limited(deadline_s), b"", is_fetch=True, silence_s=silence_s)
        return self._initiate(peer, intent)

    # From the node

    def reconfigure(self, config: SwapConfig) -> None:
        """Other limits and time-outs, for what begins from now on."""
        self.config = config
        self.budget.reconfigure(config)

    def accept(self, peer: PeerRef) -> StreamHandler:
        """A peer opened a bulk connection. It is cut off if too many others are still without an offer.

        A peer with more of them than are left for all others gets no further one, so that no peer has them all.
        """
        session = SwapSession(self, peer)
        pending = [other.peer.id for other in self._sessions.values() if other.state is SwapState.AWAITING_OFFER]
        left = self.config.pending_offers_max - len(pending)
        if self._is_stopped or left <= 0 or pending.count(peer.id) > left:
            session.fail("stopped" if self._is_stopped else "busy")
        else:
            self._add(session)
        return session

    def disable_plugin(self, plugin: str) -> None:
        """End every swap of a plugin that was taken out of service; its callbacks are not called any more."""
        for session in self.sessions:
            if session.plugin == plugin:
                session.forget("plugin_stopped")

    def stop(self) -> None:
        """End every swap and tell the peers; new ones fail at once."""
        self._is_stopped = True
        self.kept.stop()
        for session in self.sessions:
            session.fail("stopped")

    def validate(self) -> None:
        """Assert the invariants: limits hold, and every reserved byte belongs to a swap under way."""
        self.kept.validate()
        for session in self.sessions:
            session.validate()
            if session.is_over:
                raise Bug("a swap that is over is still listed")
        if self._outbound() > self.config.outbound_sessions_max or self._inbound() > self.config.inbound_sessions_max:
            raise Bug(f"{self._outbound()} swaps out, {self._inbound()} in")
        reserved = sum(session.reserved_bytes or 0 for session in self.sessions)
        if reserved != self.budget.memory_bytes + self.budget.spilled_bytes:
            raise Bug(f"swaps hold {reserved} bytes, {self.budget.memory_bytes}+{self.budget.spilled_bytes} counted")

    # From the sessions (`peerd.swap.session.SessionOwner`)

    def keeps(self, session: SwapSession) -> bool:
        """Whether a session that begins here is with a peer of another one shortly before."""
        return self.kept.begun(session.peer)

    def reopen(self, session: SwapSession) -> None:
        """Open another connection for a session whose connection was kept for too long."""
        self.driver.open_stream(session.peer, session)

    def keep(self, session: SwapSession, stream: Stream) -> None:
        """Keep the connection of a session that is over."""
        self.kept.keep(stream, is_dialled=session.is_initiator)

    def admit(self, session: SwapSession, payload_bytes: int, padding_bytes: int) -> str | None:
        """Reserve room for what the peer will send; otherwise the reason why not."""
        if not session.is_initiator:
            of_peer = sum(other.is_active and other.peer.id == session.peer.id for other in self._inbound_sessions())
            if self._inbound() >= self.config.inbound_sessions_max or of_peer >= self.config.inbound_peer_sessions_max:
                return "busy"
        if payload_bytes + padding_bytes > self.config.value_bytes_max:
            return "too_large"
        if not self.budget.reserve(payload_bytes):
            return "busy"
        session.reserved_bytes = payload_bytes
        return None

    def decide(self, session: SwapSession, request: SwapRequest) -> SwapDecision:
        """Ask the plugin. Raises `ProtocolError` when the plugin blames the peer."""
        try:
            return self._node.swap_requested(session.plugin, request)
        except PeerMisbehaved as error:
            raise ProtocolError("blamed", str(error)) from error

    def unsendable(self, value: Value) -> str | None:
        """Why this node may not send a value; ``None`` when it may."""
        padding_bytes = value.padding_bytes if isinstance(value, SizedBlob) else 0
        if padding_bytes and not self.driver.carries_padding:
            return "padding"
        try:
            payload = payload_of(value)
        except TypeError:
            return "not_contiguous"
        return "too_large" if len(payload) + padding_bytes > self.config.value_bytes_max else None

    def ended(self, session: SwapSession, event: SwapFinished | None) -> None:
        """Give back the slot and the bytes of a session, and record it, if anything was offered."""
        self._sessions.pop(id(session), None)
        if session.reserved_bytes is not None:
            self.budget.release(session.reserved_bytes)
            session.reserved_bytes = None
        if event is not None:
            self._node.emit(event)

    def report(self, session: SwapSession, callback: Callable[..., Any], *arguments: Any) -> None:
        """Call a plugin's callback. A plugin that blames the peer for the value costs the peer its link."""
        self._node.run_from(session.peer, session.plugin, callback, *arguments)

    # Inside

    def _limited(self, deadline_s: float | None) -> float:
        return self.config.deadline if deadline_s is None else deadline_s

    def _initiate(self, peer: PeerRef, intent: Intent) -> SwapSession:
        plugin, tag = intent.plugin, intent.tag
        if peer.id == self._node.peer.id:
            raise Bug(f"{plugin} swaps with its own node")
        if len(tag) > limits.SWAP_TAG_BYTES_MAX:
            raise Bug(f"{plugin} swaps with a tag of {len(tag)} bytes, at most {limits.SWAP_TAG_BYTES_MAX}")
        session = SwapSession(self, peer, intent)
        reason = self._unstartable(intent.value)
        if reason is not None:
            session.fail(reason)
            return session
        stream = self.kept.take(peer)
        self._add(session)
        if stream is None:
            self.driver.open_stream(peer, session)
        else:
            session.take_over(stream)
        return session

    def _add(self, session: SwapSession) -> None:
        self._sessions[id(session)] = session
        self.kept.make_room(len(self._sessions))
        session.start()

    def _unstartable(self, value: Value | None) -> str | None:
        if self._is_stopped:
            return "stopped"
        if self._outbound() >= self.config.outbound_sessions_max:
            spare = next((session for session in self.sessions if session.is_spare), None)
            if value is None or spare is None:
                return "busy"
            spare.fail("busy")  # what is only prepared keeps no swap from its place
        return None if value is None else self.unsendable(value)

    def _outbound(self) -> int:
        return sum(session.is_initiator for session in self._sessions.values())

    def _inbound_sessions(self) -> list[SwapSession]:
        return [session for session in self._sessions.values() if not session.is_initiator]

    def _inbound(self) -> int:
        return sum(session.is_active for session in self._inbound_sessions())
