"""What a Host must provide below: the driver.

There are two drivers, the asyncio one (`peerd.daemon`) and the simulator (`peerd.sim`). `peerd.node.node.Node` turns a
driver into the `peerd.api.Host` that the overlay, the swap layer and the plugins see, so that everything above this
line is the same code in both. No method here may call back into the node before it has returned.

What is promised here is tested, sentence by sentence, against both of them: `tests/contract`. A driver is the union of
the protocols below; code that needs one of them asks for that one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from peerd.api import Files, KeyValues, Log, Metric, Priority, Rng, Scratch, WorkHandle, WorkLimits
from peerd.errors import PeerMisbehaved
from peerd.ids import NodeId
from peerd.messages import PeerRef
from peerd.wire.frames import Frame


class TimerHandle(Protocol):
    """One armed timer."""

    def cancel(self) -> None:
        """Disarm it; harmless after it fired."""


class Stream(Protocol):
    """A bulk connection of its own to one peer, already authenticated and past the handshake."""

    @property
    def peer(self) -> PeerRef: ...

    @property
    def is_writable(self) -> bool:
        """False above the high-water mark: stop writing until `StreamHandler.writable` is called."""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Queue bytes, in order. The caller must not change them until the stream has closed.

        Dropped silently once the stream is closing, by whichever end: `StreamHandler.closed` tells.
        """

    def write_padding(self, size_bytes: int) -> None:
        """Queue bytes without content. Simulator only: stands for a payload that nobody needs to hold."""

    def close(self) -> None:
        """Flush what was written, then close both directions: what the peer still sends is thrown away."""

    def abort(self) -> None:
        """Close at once and drop what was not sent."""

    def hand_over(self, handler: StreamHandler) -> None:
        """Another handler gets what comes from now on, and hears of the end; ``opened`` is not called again."""


class StreamHandler(Protocol):
    """Who reads a stream. The driver fills buffers that the handler hands out, so bytes are copied once."""

    def opened(self, stream: Stream) -> None:
        """The stream may be written to from now on: who dials may do so two latencies before the answer is there, as
        soon as it knows whom it has reached."""

    def get_buffer(self, size_hint: int) -> memoryview:
        """Where the next received bytes go; never empty."""

    def buffer_updated(self, size_bytes: int) -> None:
        """That many bytes were put into the last buffer. Raises `ProtocolError` to have the stream aborted."""

    def padding_received(self, size_bytes: int) -> None:
        """Simulator only: the peer wrote that much padding."""

    def writable(self) -> None:
        """The write queue fell below the low-water mark."""

    def closed(self, reason: str | None) -> None:
        """The stream ended; ``None`` is a clean end of stream. Called once, last; also when opening it failed."""


class Clock(Protocol):
    """Time, timers and randomness of one node."""

    def now(self) -> float:
        """Seconds, monotonic."""

    def wall_time(self) -> float:
        """Seconds since the Unix epoch; for people and certificates only."""

    def rng(self, purpose: str) -> Rng:
        """A generator forked for (seed, node, purpose)."""

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> TimerHandle:
        """One-shot timer. Timers fire in the order in which they are due."""

    def call_soon(self, callback: Callable[[], None]) -> None:
        """Run after the current handler has returned, before later events. Callbacks run in the order of the calls."""


class Transport(Protocol):
    """Links and streams to peers. What is decided about links, `peerd.linking.policy.LinkPolicy` decides in both."""

    @property
    def carries_padding(self) -> bool:
        """Whether streams take `Stream.write_padding`: only a simulated network does."""

    def send(self, peer: PeerRef, frame: Frame, priority: Priority) -> None:
        """Queue a control frame; dials first where there is no link. Raises nothing.

        It arrives at most once, and in order among frames of its priority. A link that is lost is dialled again before
        anybody is told; a peer that cannot be reached costs what is queued for it, and ends in one ``peer_down``. What
        is sent to it while its back-off is longer than a second fails at once, in another one.

        What will not be sent is told frame by frame to the node's ``frame_refused``, which only notes it and may
        therefore be called before this returns: the queue is full, or there is no link and none to be had. A frame that
        was lost with a link on its way is told to nobody.
        """

    def queued_bytes(self, peer: PeerRef) -> int:
        """What waits in this process for the peer. After it was above the high-water mark (`peerd.limits`) and has
        fallen to the low one, or was dropped, the node's ``writable`` is called, once.
        """

    def dial(self, host: str, port: int, done: Callable[[PeerRef | None], None]) -> None:
        """Connect to an address whose node is not known yet, and keep the link.

        ``done`` is called once, later: with who answered, with this node itself for an address of its own, and with
        ``None`` when nobody of this cluster answers.
        """

    def disconnect(self, peer: PeerRef, reason: str) -> None:
        """Close the control link, if any, at both ends. Neither node is told; the next frame dials again."""

    def is_linked(self, peer: PeerRef) -> bool:
        """Whether a control link to this peer is up, so that what is sent now does not wait for a dial."""

    def linked_at(self, peer: PeerRef) -> float | None:
        """Since when (`Clock.now`) there has been a link to this peer without a break; ``None`` when none is up.

        What was sent before waited until then.
        """

    def boot_epoch_of(self, peer: PeerRef) -> int | None:
        """The boot epoch that the peer gave in the handshake of the link that is up; ``None``: there is none."""

    def charge(self, peer: PeerRef, messages: int) -> None:
        """The message that is being handled stands for so many more than one: they count for the peer's message rate.

        Raises `ProtocolError` when that is above its limit.
        """

    def misbehaved(self, peer: PeerRef, error: PeerMisbehaved) -> None:
        """A peer broke the protocol: count it, score it, close its link. At a score of 100 it is banned for a while."""

    def introduce(self, plugins: Mapping[str, tuple[int, int]]) -> None:
        """What this node says in its handshakes: the lowest and highest version of each plugin. Before any link."""

    def introduced(self, peer: PeerRef) -> Mapping[str, tuple[int, int]] | None:
        """The same of a peer, as it said in the handshake of the link; empty when it did not; ``None``: no link."""

    def open_stream(self, peer: PeerRef, handler: StreamHandler) -> None:
        """Open a bulk connection; `StreamHandler.opened` tells that it may be written to, `StreamHandler.closed` that
        there is none, or none any more."""


class Workers(Protocol):
    """Work that takes too long for a handler."""

    def offload(
        self,
        function: Callable[..., Any],
        arguments: tuple[Any, ...],
        done: Callable[[Any], None],
        failed: Callable[[BaseException], None],
        cost_s: float,
        within: WorkLimits | None = None,
    ) -> WorkHandle:
        """Run a pure function off the loop; ``cost_s`` is what the simulator charges for it.

        One of ``done`` and ``failed`` is called, once, later, unless the handle's ``cancel`` is called before. With
        ``within`` it runs in another process, returns bytes, and fails with `Unavailable`.
        """


class Storage(Protocol):
    """Memory and disk."""

    def allocate(self, size_bytes: int) -> memoryview:
        """A writable buffer for a received value: memory, or above the spill threshold a mapped temporary file."""

    def scratch(self) -> Scratch:
        """See `peerd.api.Store.scratch`."""

    def store(self, plugin: str) -> KeyValues:
        """The small durable key-value store of one plugin; what is in it survives a restart of the node."""

    def log(self, plugin: str, name: str) -> Log:
        """A log of one plugin, always the same object for a name; errors as of `peerd.api.Store.log`."""

    def files(self, plugin: str) -> Files:
        """The large files of one plugin; what is in them survives a restart of the node."""


class Telemetry(Protocol):
    """Telling the outside."""

    def record(self, record: dict[str, object]) -> None:
        """Write one event record to the sinks; never blocks, drops are counted."""

    def declare_metrics(self, metrics: tuple[Metric, ...]) -> None:
        """Register metrics once, before they are used."""

    def count(self, name: str, amount: float, labels: Mapping[str, str]) -> None:
        """Add to a counter."""

    def gauge(self, name: str, value: float, labels: Mapping[str, str]) -> None:
        """Set a gauge."""

    def observe(self, name: str, value: float, labels: Mapping[str, str]) -> None:
        """Add to a histogram."""

    def handler_failed(self, plugin: str, error: Exception, peer: PeerRef | None = None) -> None:
        """An exception escaped a plugin's handler: the simulator raises it, the daemon logs and restarts the plugin.

        ``peer`` sent what was being handled; such a failure never counts towards switching the plugin off.
        """


class Identity(Protocol):
    """Saying something in this node's name, and checking what others said in theirs."""

    def sign(self, purpose: str, statement: bytes) -> bytes:
        """What proves to every node of the cluster that this node said it, for this purpose.

        At most `limits.PROOF_BYTES_MAX` bytes. Raises `Bug` for more than `limits.STATEMENT_BYTES_MAX`.
        """

    def verify(self, signer: NodeId, purpose: str, statement: bytes, proof: bytes) -> bool:
        """Whether ``signer``, a member that is not denied, said exactly this for this purpose. Raises nothing."""

    def public_key(self) -> bytes:
        """See `peerd.api.Host.public_key`."""

    def verify_by_key(self, signer: NodeId, purpose: str, statement: bytes, proof: bytes, key: bytes) -> bool:
        """See `peerd.api.Host.verify_by_key`."""


class Driver(Clock, Transport, Workers, Storage, Telemetry, Identity, Protocol):
    """Everything that one node needs below it."""
