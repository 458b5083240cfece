"""One side of one swap: a state machine on a bulk stream. docs/swap.md has its table and what it promises."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, Protocol

from peerd.api import AcceptSwap, RefuseSwap, SwapDecision, SwapProgress, SwapRequest, Value
from peerd.driver import Stream, TimerHandle
from peerd.errors import Bug, ProtocolError, Unavailable
from peerd.ids import format_id
from peerd.limits import MIB
from peerd.messages import Message, PeerRef, decode_body, message_type
from peerd.swap.config import SwapConfig
from peerd.swap.messages import (
    SwapAnswer,
    SwapCancelled,
    SwapDigest,
    SwapOffer,
    SwapPadding,
    SwapVerified,
    reason_label,
)
from peerd.swap.ports import Intent, SwapDriver, SwapState
from peerd.swap.reader import BulkReader
from peerd.swap.transfer import Incoming, Outgoing
from peerd.telemetry.schema import SwapFinished
from peerd.wire.codec import encode
from peerd.wire.frames import frame_bytes

STALL_DEADLINE_SHARE: Final = 0.5
"""A silent peer costs at most this share of a swap's deadline: the rest is left to try somebody else."""
FIRST_WINDOW_BYTES: Final = MIB
"""So much an initiator sends before it knows whether its offer is accepted."""
UNUSED_S_MAX: Final = 4.0
"""A connection that was prepared is closed after this, before the peer would lose patience (its ``offer_timeout``)."""
_CLOCK_SLACK_S: Final = 1e-6
"""A timer that fires this much early counts as due: rounding of now + delay must not arm it again for nothing."""


class SessionOwner(Protocol):
    """`peerd.swap.layer.SwapLayer`, as one session of it uses it."""

    @property
    def config(self) -> SwapConfig: ...

    @property
    def driver(self) -> SwapDriver: ...

    def admit(self, session: SwapSession, payload_bytes: int, padding_bytes: int) -> str | None:
        """Reserve room for what the peer will send; otherwise the reason why not."""

    def decide(self, session: SwapSession, request: SwapRequest) -> SwapDecision:
        """Check the limits, then ask the plugin. Raises `ProtocolError` when the plugin blames the peer."""

    def keeps(self, session: SwapSession) -> bool:
        """A session begins. Whether its connection is worth keeping for the next one with the same peer."""

    def reopen(self, session: SwapSession) -> None:
        """The connection on which it began was closed before the offer had come there: open another one."""

    def keep(self, session: SwapSession, stream: Stream) -> None:
        """Both sides are done with the connection, which stays for the next session with the same peer."""

    def unsendable(self, value: Value) -> str | None:
        """Why this node may not send a value; ``None`` when it may."""

    def ended(self, session: SwapSession, event: SwapFinished | None) -> None:
        """The session is over: give back its slot and its bytes, and record it, if anything was offered."""

    def report(self, session: SwapSession, callback: Callable[..., Any], *arguments: Any) -> None:
        """Call a plugin's callback now."""


class SwapSession:
    """One side of one swap. Implements `peerd.driver.StreamHandler`, and is the initiator's `peerd.api.PreparedSwap`.

    With an ``intent`` it is the initiator's side, without one the acceptor's. `start` arms its timers; it ends once,
    in `SwapState.DONE` or `SwapState.FAILED`, and then holds neither value nor buffer.
    """

    def __init__(self, owner: SessionOwner, peer: PeerRef, intent: Intent | None = None) -> None:
        self.peer = peer
        self.is_initiator = intent is not None
        self.state = SwapState.OPENING if intent else SwapState.AWAITING_OFFER
        self.plugin = intent.plugin if intent else ""
        self.tag = intent.tag if intent else b""
        self.reserved_bytes: int | None = None
        """The bytes that `SessionOwner.admit` has reserved for the receive buffer."""
        self._owner = owner
        self._driver = owner.driver
        self._intent = intent
        self._value = intent.value if intent else None
        self._silence_s = intent.silence_s if intent else None
        self._opened_at: float | None = None
        self._callbacks = intent.callbacks if intent else None
        self._stream: Stream | None = None
        self._reader = BulkReader(self)
        self._incoming: Incoming | None = None
        self._outgoing: Outgoing | None = None
        self._may_wait = self._is_verified = self._is_confirmed = False
        self._keeps = self._is_reused = False
        """Whether the connection stays; whether it was there before, and the peer has not answered on it yet."""
        self._is_resume_due = False
        self._progress_at_bytes = owner.config.progress_bytes
        self._timers: dict[str, TimerHandle] = {}
        self._deadline_s: float | None = None
        self._linger: TimerHandle | None = None
        self._started_at = self._last_byte_at = self._driver.now()

    @property
    def is_over(self) -> bool:
        """Whether the session has ended, well or badly."""
        return self.state in (SwapState.DONE, SwapState.FAILED)

    @property
    def is_active(self) -> bool:
        """Whether the offer was made and the session has not ended: then it holds one of the node's slots."""
        return self.state in (SwapState.HELD, SwapState.EXCHANGING, SwapState.VERIFYING)

    @property
    def is_spare(self) -> bool:
        """Whether it only prepares a swap, whose value is not there yet."""
        return self.is_initiator and self._value is None and not self.is_over

    def start(self) -> None:
        """Arm the timers; call it once."""
        if self._intent is not None:
            self._arm_deadline(self._intent.deadline_s)
        else:
            self._arm("stall", self._stall_timeout_s, self._check_stall)
            self._arm("offer", self._owner.config.offer_timeout, lambda: self.fail("offer_timeout"))

    # From the plugin and the layer

    def take_over(self, stream: Stream) -> None:
        """Begin on a connection that was kept."""
        self._is_reused = True
        stream.hand_over(self)
        self.opened(stream)

    def offer(self, value: Value, *, may_wait: bool = False) -> None:
        """See `peerd.api.PreparedSwap.offer`."""
        if self.is_over:
            return
        if self._intent is None or self._value is not None:
            raise Bug("one offer, and only of who has prepared it")
        self._value, self._may_wait = value, may_wait
        self._last_byte_at = self._driver.now()
        reason = self._owner.unsendable(value)
        if reason is not None:
            self.fail(reason)
            return
        self._arm_deadline(self._intent.deadline_s)
        self._offer()

    def cancel(self) -> None:
        """Abort it; ``failed("cancelled")`` follows. Harmless when it has ended."""
        self.fail("cancelled")

    def fail(self, reason: str) -> None:
        """End without a value, and tell the peer why if it is listening. Harmless when it has ended."""
        if self.is_over:
            return
        if self._stream is not None and self.state not in (SwapState.OPENING, SwapState.AWAITING_OFFER):
            self._write(SwapCancelled(reason_label(reason)))
            self._close()
        elif self._stream is not None and self._is_reused:
            self._owner.keep(self, self._stream)
            self._stream = None
        elif self._stream is not None:
            self._stream.abort()
        self._end(reason)

    def forget(self, reason: str) -> None:
        """End it as `fail` does, but call nobody back: the plugin is gone."""
        self._callbacks = None
        self.fail(reason)

    # From the driver

    def opened(self, stream: Stream) -> None:
        """The connection is open: the initiator sends its offer if it is there, the acceptor waits for it."""
        self._stream = stream
        self._last_byte_at = self._opened_at = self._driver.now()
        if self.is_over:
            stream.abort()
        elif self._intent is not None and self._value is None:
            self._arm("unused", UNUSED_S_MAX, lambda: self.fail("unused"))
        else:
            self._offer()

    def get_buffer(self, size_hint: int) -> memoryview:
        """Return the buffer for the next received bytes; it is never empty."""
        return self._reader.get_buffer()

    def buffer_updated(self, size_bytes: int) -> None:
        """Take bytes that came. Fails the session and raises `ProtocolError` for what no correct peer sends."""
        self._last_byte_at = self._driver.now()
        try:
            self._reader.buffer_updated(size_bytes)
        except ProtocolError as error:
            self._end(f"protocol:{error.reason}")
            raise
        self._report_progress()

    def padding_received(self, size_bytes: int) -> None:
        """Take padding that was announced before. Only the simulator sends any."""
        self._last_byte_at = self._driver.now()
        if self._incoming is None:
            return
        if size_bytes > self._incoming.padding_due_bytes:
            self.fail("protocol:padding")
            return
        self._incoming.padding_received(size_bytes)
        self._report_progress()

    def writable(self) -> None:
        """Go on writing, as the stream has room again."""
        self._last_byte_at = self._driver.now()
        self._pump()

    def closed(self, reason: str | None) -> None:
        """The stream is gone, or could not be opened."""
        self._stream = None
        if self._linger is not None:
            self._linger.cancel()
            self._linger = None
        if self._is_reused and self.state in (SwapState.OPENING, SwapState.OFFERED):
            self._is_reused, self._outgoing, self.state = False, None, SwapState.OPENING
            self._reader, self._last_byte_at = BulkReader(self), self._driver.now()
            self._owner.reopen(self)
        elif not self.is_over:
            self._end("peer_down")

    # From the reader

    def control_received(self, type_id: int, body: bytes) -> None:
        """Decode one control frame and do what the table says. Raises `ProtocolError`."""
        kind = message_type(type_id)
        handler = _TABLE.get((self.state, kind)) if kind is not None else None
        if kind is None or handler is None:
            name = kind.__name__ if kind is not None else f"type {type_id:#06x}"
            raise ProtocolError("unexpected_message", f"{name} in state {self.state.value}")
        self._refuse_while_padding_is_due()
        handler(self, decode_body(kind, body))

    def chunk_announced(self, size_bytes: int) -> memoryview:
        """Return the buffer for the next chunk. Raises `ProtocolError`."""
        if self._incoming is None or self.state not in (SwapState.HELD, SwapState.EXCHANGING) or self._is_verified:
            raise ProtocolError("unexpected_message", f"chunk in state {self.state.value}")
        self._refuse_while_padding_is_due()
        return self._incoming.chunk_announced(size_bytes)

    def chunk_received(self, chunk: memoryview) -> None:
        """Count a chunk that has arrived as a whole."""
        if self._incoming is not None:
            self._incoming.chunk_received(chunk)

    # The offer and its answer

    def _offer(self) -> None:
        """Send the initiator's offer, when there are both a connection and a value."""
        intent, value = self._intent, self._value
        if intent is None or value is None or self._stream is None:
            return
        if "unused" in self._timers:
            self._timers.pop("unused").cancel()
        outgoing = self._outgoing = Outgoing(value, self._owner.config.chunk_bytes)
        self.state = SwapState.OFFERED
        self._arm("stall", self._stall_timeout_s, self._check_stall)
        self._keeps = self._owner.keeps(self)
        sizes = outgoing.payload_bytes, outgoing.padding_bytes
        self._write(SwapOffer(intent.plugin, intent.tag, *sizes, intent.is_fetch, self._keeps))
        self._pump()

    def _offer_received(self, offer: SwapOffer) -> None:
        if offer.is_fetch and (offer.payload_bytes or offer.padding_bytes):
            raise ProtocolError("invalid", "a fetch that offers a value")
        self._refuse_padding(offer.padding_bytes)
        self.plugin, self.tag, self._keeps = offer.plugin, offer.tag, offer.keeps
        self._timers.pop("offer").cancel()
        reason = self._owner.admit(self, offer.payload_bytes, offer.padding_bytes)
        if reason is not None:
            self._refuse(reason)
            return
        self._decide(offer)

    def _decide(self, offer: SwapOffer) -> None:
        """Ask the plugin what to do about an offer: for the first time, or again after it was held."""
        size_bytes = offer.payload_bytes + offer.padding_bytes
        ask_again = partial(self._ask_again, offer)
        answer = self._owner.decide(self, SwapRequest(self.peer, offer.tag, size_bytes, offer.is_fetch, ask_again))
        if self.is_over:  # the plugin was taken out of service while it was asked
            return
        if isinstance(answer, RefuseSwap):
            self._refuse(answer.reason)
            return
        reason = None
        if self._incoming is None:
            reason = self._allocate(offer.payload_bytes, offer.padding_bytes)
        if isinstance(answer, AcceptSwap):
            self._callbacks = answer.callbacks
            reason = reason or self._owner.unsendable(answer.value)
        if reason is not None:
            self._refuse(reason)
        elif isinstance(answer, AcceptSwap):
            self._accept(answer)
        elif self.state is not SwapState.HELD:
            self.state = SwapState.HELD
            self._timers.pop("stall").cancel()
            deadline_s = self._owner.config.deadline if answer.deadline_s is None else answer.deadline_s
            self._arm("offer", deadline_s, lambda: self._refuse("late"))

    def _ask_again(self, offer: SwapOffer) -> bool:
        """See `peerd.api.SwapRequest.ask_again`."""

        def ask() -> None:
            if self.state is SwapState.HELD:
                try:
                    self._decide(offer)
                except ProtocolError as error:
                    self.fail(f"protocol:{error.reason}")

        if self.state is SwapState.HELD:
            self._driver.call_soon(ask)
        return self.state is SwapState.HELD

    def _accept(self, answer: AcceptSwap) -> None:
        if "offer" in self._timers:
            self._timers.pop("offer").cancel()
        deadline_s = self._owner.config.deadline if answer.deadline_s is None else answer.deadline_s
        outgoing = self._outgoing = Outgoing(answer.value, self._owner.config.chunk_bytes)
        self.state, self._silence_s = SwapState.EXCHANGING, answer.silence_s
        self._arm_deadline(deadline_s)
        self._write(SwapAnswer(True, "accepted", outgoing.payload_bytes, outgoing.padding_bytes))
        if self._is_verified:
            self._value_is_here()
        self._pump()

    def _refuse(self, reason: str) -> None:
        """Decline. The initiator closes when it has read that; what it sends until then is thrown away, as closing with
        unread bytes would be a reset, which takes the answer with it."""
        label = reason_label(reason)
        self._write(SwapAnswer(False, label, 0, 0))
        self._abort_later()
        self._end(f"refused:{label}")

    def _answer_received(self, answer: SwapAnswer) -> None:
        self._is_reused = False
        if not answer.is_accepted:
            if self._stream is not None:
                self._stream.abort()  # with what of the first window has not gone out yet
            self._end(f"refused:{answer.reason}")
            return
        self._refuse_padding(answer.padding_bytes)
        reason = self._owner.admit(self, answer.payload_bytes, answer.padding_bytes)
        reason = reason or self._allocate(answer.payload_bytes, answer.padding_bytes)
        if reason is not None:
            self.fail(reason)
            return
        self.state = SwapState.EXCHANGING
        if self._callbacks is not None and self._callbacks.accepted is not None:
            self._call_back(self._callbacks.accepted)
        self._pump()

    def _allocate(self, payload_bytes: int, padding_bytes: int) -> str | None:
        try:
            buffer = self._driver.allocate(payload_bytes) if payload_bytes else memoryview(bytearray())
        except (Unavailable, OSError, MemoryError):
            return "no_space"
        if len(buffer) != payload_bytes:
            raise Bug(f"the driver allocated {len(buffer)} bytes instead of {payload_bytes}")
        self._incoming = Incoming(buffer, padding_bytes)
        return None

    # The exchange

    def _pump(self) -> None:
        """Write chunks while the stream takes them, a bounded number at a time; then the digest.

        A first window goes right behind the offer.
        """
        outgoing, stream = self._outgoing, self._stream
        if outgoing is None or stream is None or self.is_over or outgoing.is_digest_sent:
            return
        for _ in range(self._owner.config.chunks_per_turn_max):
            if outgoing.is_complete or not stream.is_writable:
                break
            if self.state is SwapState.OFFERED and outgoing.sent_bytes >= FIRST_WINDOW_BYTES:
                return
            outgoing.write_next(stream)
            self._last_byte_at = self._driver.now()
        if outgoing.is_complete:
            self._write(SwapDigest(outgoing.digest()))
            outgoing.is_digest_sent = True
        elif stream.is_writable and not self._is_resume_due:
            self._is_resume_due = True
            self._driver.call_soon(self._resume)
        self._report_progress()

    def _resume(self) -> None:
        self._is_resume_due = False
        self._pump()

    def _padding_announced(self, padding: SwapPadding) -> None:
        self._refuse_padding(padding.size_bytes)
        self._the_incoming().padding_announced(padding.size_bytes)

    def _digest_received(self, digest: SwapDigest) -> None:
        if self._is_verified:
            raise ProtocolError("unexpected_message", "a second SwapDigest")
        if not self._the_incoming().verify(digest.digest):
            self.fail("digest")
            return
        self._is_verified = True
        if self.state is SwapState.EXCHANGING:
            self._value_is_here()

    def _value_is_here(self) -> None:
        """The swap is agreed to, and the peer's value is verified."""
        self._write(SwapVerified())
        self.state = SwapState.VERIFYING
        if self._callbacks is not None and self._callbacks.received is not None:
            self._call_back(self._callbacks.received, self._the_incoming().value())
        self._end_if_complete()

    def _verified_received(self, verified: SwapVerified) -> None:
        if self._is_confirmed or self._outgoing is None or not self._outgoing.is_digest_sent:
            raise ProtocolError("unexpected_message", "SwapVerified without a digest of ours to confirm")
        self._is_confirmed = True
        self._end_if_complete()

    def _cancel_received(self, cancelled: SwapCancelled) -> None:
        if self._stream is not None:
            self._stream.abort()
        if not self._is_reused:  # else it may be about the swap before, and `closed` begins anew
            self._end(f"peer_cancelled:{cancelled.reason}")

    def _end_if_complete(self) -> None:
        if self.state is SwapState.VERIFYING and self._is_confirmed:
            value = self._the_incoming().value()
            if self._keeps and self._stream is not None:
                self._owner.keep(self, self._stream)
                self._stream = None
            else:
                self._close()
            self._end("done", value)

    # Ending

    def _end(self, outcome: str, value: Value | None = None) -> None:
        """Go to a final state (nothing else does): free everything, record it, and call back later, exactly once."""
        if self.is_over:
            return
        event = self._event(outcome)
        self.state = SwapState.FAILED if value is None else SwapState.DONE
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        callbacks, self._callbacks = self._callbacks, None
        self._incoming = self._outgoing = self._intent = self._value = None
        self._reader.discard()
        self._owner.ended(self, event)
        if callbacks is not None:
            self._call_back(callbacks.failed, outcome) if value is None else self._call_back(callbacks.done, value)

    def _event(self, outcome: str) -> SwapFinished | None:
        """What to record: nothing of a connection on which nothing was offered."""
        if self.state is SwapState.AWAITING_OFFER and outcome == "peer_down":
            return None
        if self.is_initiator and self._value is None:
            return None
        opened_at = self._started_at if self._opened_at is None else self._opened_at
        return SwapFinished(
            peer=format_id(self.peer.id),
            plugin=self.plugin,
            tag=self.tag.hex(),
            outcome=outcome,
            initiated=self.is_initiator,
            sent_bytes=self._sent_bytes,
            received_bytes=self._received_bytes,
            duration_s=self._driver.now() - self._started_at,
            opened_s=opened_at - self._started_at,
        )

    def _call_back(self, callback: Callable[..., Any], *arguments: object) -> None:
        self._driver.call_soon(lambda: self._owner.report(self, callback, *arguments))

    def _close(self) -> None:
        """Flush and close; cut off a peer that does not read."""
        if self._stream is not None:
            self._stream.close()
            self._abort_later()

    def _abort_later(self) -> None:
        if self._stream is not None:
            self._linger = self._driver.call_later(self._owner.config.close_timeout, self._stream.abort)

    # Timers and progress

    def _arm(self, name: str, delay_s: float, callback: Callable[[], None]) -> None:
        if name in self._timers:
            self._timers[name].cancel()
        self._timers[name] = self._driver.call_later(delay_s, callback)

    def _arm_deadline(self, deadline_s: float) -> None:
        """Limit the whole swap, and with it how long the peer may be silent."""
        self._deadline_s = deadline_s
        self._arm("deadline", deadline_s, lambda: self.fail("deadline"))
        self._arm("stall", self._stall_timeout_s, self._check_stall)

    @property
    def _stall_timeout_s(self) -> float:
        timeout_s = self._owner.config.stall_timeout
        # Only while the peer's value is due, or the connection for ours. Behind it we wait for our own bytes, which may
        # be long on their way.
        is_opening = self.state is SwapState.OPENING and self._value is not None
        is_offered = self.state is SwapState.OFFERED and not self._may_wait
        is_due = is_opening or is_offered or self.state is SwapState.EXCHANGING
        if self._silence_s is not None and is_due:
            timeout_s = min(timeout_s, self._silence_s)
        return timeout_s if self._deadline_s is None else min(timeout_s, self._deadline_s * STALL_DEADLINE_SHARE)

    def _check_stall(self) -> None:
        timeout_s = self._stall_timeout_s
        idle_s = self._driver.now() - self._last_byte_at
        if idle_s >= timeout_s - _CLOCK_SLACK_S:
            self.fail("stalled")
        else:
            self._arm("stall", timeout_s - idle_s, self._check_stall)

    def _report_progress(self) -> None:
        callbacks = self._callbacks
        if callbacks is None or callbacks.progress is None or self._outgoing is None:
            return
        moved_bytes = self._sent_bytes + self._received_bytes
        if moved_bytes >= self._progress_at_bytes:
            self._progress_at_bytes = moved_bytes + self._owner.config.progress_bytes
            receive_total = self._incoming.total_bytes if self._incoming is not None else None
            self._owner.report(
                self,
                callbacks.progress,
                SwapProgress(self._sent_bytes, self._outgoing.total_bytes, self._received_bytes, receive_total),
            )

    @property
    def _sent_bytes(self) -> int:
        return self._outgoing.sent_bytes if self._outgoing is not None else 0

    @property
    def _received_bytes(self) -> int:
        return self._incoming.received_bytes if self._incoming is not None else 0

    # Helpers

    def _write(self, message: Message) -> None:
        if self._stream is not None:
            self._stream.write(frame_bytes(encode(message)))

    def _the_incoming(self) -> Incoming:
        if self._incoming is None:
            raise Bug(f"no receive buffer in state {self.state.value}")
        return self._incoming

    def _refuse_padding(self, size_bytes: int) -> None:
        if size_bytes and not self._owner.driver.carries_padding:
            raise ProtocolError("padding", "only a simulator pads")

    def _refuse_while_padding_is_due(self) -> None:
        if self._incoming is not None and self._incoming.padding_due_bytes:
            raise ProtocolError("padding", f"{self._incoming.padding_due_bytes} bytes of padding are missing")

    def validate(self) -> None:
        """Assert the invariants of this session."""
        if self.is_over and (self._timers or self._incoming or self._outgoing or self._callbacks):
            raise Bug(f"a swap that is {self.state.value} still holds on to something")
        if self._incoming is not None and self.reserved_bytes is None:
            raise Bug("a receive buffer that nobody admitted")
        if self.is_active and self._incoming is None:
            raise Bug("an active swap without a receive buffer")
        if self.is_active and (self._outgoing is None) != (self.state is SwapState.HELD):
            raise Bug("an active swap gives a value, unless it is held")


_TABLE: Final[Mapping[tuple[SwapState, type[Message]], Callable[[SwapSession, Any], None]]] = {
    (SwapState.AWAITING_OFFER, SwapOffer): SwapSession._offer_received,
    (SwapState.HELD, SwapPadding): SwapSession._padding_announced,
    (SwapState.HELD, SwapDigest): SwapSession._digest_received,
    (SwapState.HELD, SwapCancelled): SwapSession._cancel_received,
    (SwapState.OFFERED, SwapAnswer): SwapSession._answer_received,
    (SwapState.OFFERED, SwapCancelled): SwapSession._cancel_received,
    (SwapState.EXCHANGING, SwapPadding): SwapSession._padding_announced,
    (SwapState.EXCHANGING, SwapDigest): SwapSession._digest_received,
    (SwapState.EXCHANGING, SwapVerified): SwapSession._verified_received,
    (SwapState.EXCHANGING, SwapCancelled): SwapSession._cancel_received,
    (SwapState.VERIFYING, SwapVerified): SwapSession._verified_received,
    (SwapState.VERIFYING, SwapCancelled): SwapSession._cancel_received,
}
