"""The one module that a plugin author reads.

A plugin is a subclass of `Plugin`. It reacts to events (a message, a timer, a change of neighbours, a finished
transfer) in plain synchronous methods, and acts only through the `Host` that `Plugin.start` hands it. A handler runs
to completion before anything else happens on the node, so a plugin needs no locks and is never seen half-done.
``docs/writing-a-plugin.md`` walks through a whole one.

The words are those of the common API for structured overlays (Dabek et al. 2003): ``route``, ``deliver``, ``forward``,
root, leaf set, replica set.

Rules: no asyncio, time, random, os, socket, threading; `Host.now` and `Host.rng` instead. `Host.send` never calls a
handler before it returns. Long work goes through `Host.offload`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from enum import Enum
from typing import Any, ClassVar, Protocol, Self, TypeVar

from peerd.api.bulk import (
    AcceptSwap as AcceptSwap,
    HoldSwap as HoldSwap,
    PreparedSwap as PreparedSwap,
    RefuseSwap as RefuseSwap,
    SizedBlob as SizedBlob,
    SwapCallbacks as SwapCallbacks,
    SwapDecision as SwapDecision,
    SwapHandle as SwapHandle,
    SwapProgress as SwapProgress,
    SwapRequest as SwapRequest,
    Value as Value,
    value_size_bytes as value_size_bytes,
)
from peerd.api.network import (
    POSITION_MAX_MS as POSITION_MAX_MS,
    Coordinate as Coordinate,
    LeafSet as LeafSet,
    LookupResult as LookupResult,
    MissingMember as MissingMember,
    NeighbourChange as NeighbourChange,
    Priority as Priority,
    RoutedHop as RoutedHop,
    SendRefusal as SendRefusal,
)
from peerd.api.parts import (
    Handler as Handler,
    HandlerTable as HandlerTable,
    HistorySize as HistorySize,
    Part as Part,
    handles as handles,
    on_timer as on_timer,
)
from peerd.api.services import (
    IN_MEMORY as IN_MEMORY,
    NO_VERSION as NO_VERSION,
    Files as Files,
    KeyValues as KeyValues,
    LocalRecord as LocalRecord,
    Log as Log,
    RecordAck as RecordAck,
    RecordOutcome as RecordOutcome,
    RecordResult as RecordResult,
    RecordRole as RecordRole,
    Records as Records,
    RecordVersion as RecordVersion,
    Scratch as Scratch,
    ScratchWriter as ScratchWriter,
    Store as Store,
)
from peerd.api.work import Rng as Rng, WorkHandle as WorkHandle, WorkLimits as WorkLimits
from peerd.errors import Bug, PeerMisbehaved
from peerd.frozen import Frozen
from peerd.ids import NodeId
from peerd.messages import Message, PeerRef
from peerd.quantities import ConfigSection
from peerd.telemetry.schema import Event

T = TypeVar("T")


class Metric(Frozen):
    """A metric that a plugin declares: Prometheus naming, base units."""

    name: str
    kind: str
    """"counter", "gauge" or "histogram"."""
    help: str
    labels: tuple[str, ...] = ()


class Envelope(Frozen):
    """A routed message on its way, as `Plugin.forward` sees it at each hop.

    ``source`` started it, as far as the hops before say; ``previous_hop`` is the node that handed it to this one, which
    its link proves. Where the message starts, both are this node. ``hops``: how many links it has crossed.
    """

    key: NodeId
    source: PeerRef
    message: Message
    next_hop: PeerRef
    hops: int
    previous_hop: PeerRef


class Verdict(Enum):
    """What `Plugin.forward` decides; to redirect, return a `PeerRef` instead."""

    PASS = "pass"
    STOP = "stop"


class Host(Protocol):
    """All that a plugin can act through. No method calls the plugin before it returns: callbacks follow the handler.

    Only `Store` waits for the disk; nothing else blocks. Each docstring says what its method raises: `Bug` for a
    mistake of the plugin's own, `Unavailable` for what may work later. When the plugin is taken out of service, or is
    replaced after a failure, callbacks of what it had begun are not called any more.
    """

    @property
    def id(self) -> NodeId:
        """This node's place on the ring."""

    @property
    def peer(self) -> PeerRef:
        """This node, as others may reach it."""

    @property
    def rng(self) -> Rng:
        """This plugin's own generator: in the simulator forked per (seed, node, boot, plugin), else unpredictable."""

    @property
    def boot_epoch(self) -> int:
        """The number of this start of the node; it is strictly larger after every restart."""

    @property
    def store(self) -> Store:
        """What this plugin keeps on disk: values by key, and logs."""

    @property
    def records(self) -> Records:
        """This plugin's records in the replicated store of the ring."""

    def now(self) -> float:
        """Seconds, monotonic; only differences mean anything."""

    def wall_time(self) -> float:
        """Seconds since the Unix epoch; for people, never for protocol decisions."""

    # Messages

    def send(self, peer: PeerRef, message: Message, priority: Priority = Priority.NORMAL) -> None:
        """Send a message over one hop, at most once. To this node itself it is delivered later, like any other.

        A message that will not be sent, or that the peer does not know, is told to `Plugin.send_refused`. One that was
        lost with its link on the way is told to nobody. Raises `Bug` for a message over its own size cap.
        """

    def request(
        self,
        peer: PeerRef,
        message: Message,
        timeout_s: float,
        on_reply: Callable[[Message, PeerRef], None],
        on_timeout: Callable[[], None],
        priority: Priority = Priority.NORMAL,
    ) -> None:
        """Send a request; the peer's handler returns the reply. Exactly one callback is called, unless the node ends.

        ``on_timeout`` comes after ``timeout_s`` seconds (a node that stood still meanwhile waits once more), and before
        when the message cannot be sent, the peer is down, it says that it does not know the message, or
        `limits.REQUESTS_OUTSTANDING_MAX` are outstanding. A handler that returns nothing answers nothing. Raises `Bug`
        for a request to this node itself, or a message over its own size cap.
        """

    def queued_bytes(self, peer: PeerRef) -> int:
        """How many bytes, headers included, wait in this node for this peer; 0 for this node itself.

        What the kernel or the network has taken does not count. Above `limits.SEND_HIGH_WATER_BYTES` (or half of the
        queue, if that is less) the peer is slow, and `Plugin.writable` tells when it has caught up.
        """

    def tags(self) -> dict[str, str]:
        """What the operator has said that this node is, now: `Plugin.tags` of all plugins of this node together."""

    def peer_version(self, peer: PeerRef) -> int | None:
        """The highest version of this plugin that both nodes speak, as their handshake said.

        ``None``: there is no link to the peer now, it does not run the plugin, or the two have no version in common.
        A peer whose handshake says nothing about plugins (an older peerd) counts as speaking version 1 of each. Of this
        node itself: `Plugin.version`.
        """

    def route(self, key: NodeId, message: Message) -> None:
        """Send a message to the root of ``key``, at most once; there `Plugin.deliver` gets it.

        It is routed around hops that do not answer. Where there is no way on, it is held, at each hop for
        ``[overlay] route_deadline`` at most, and then given up. Nobody is told of that, nor when the root does not know
        the message. Raises `Bug` for a message over its own size cap or `limits.ROUTED_BODY_BYTES_MAX`.
        """

    def multicast(self, keys: Iterable[NodeId], message: Message) -> None:
        """Send to the roots of many keys, grouped by next hop: one copy a link at each hop (Li 2008, section 3).

        A root of several of the keys gets it once for each. Otherwise as `route`.
        """

    def broadcast(self, message: Message) -> None:
        """Send a message to every live node, this one included, at most once each; there `Plugin.deliver` gets it.

        Nodes that join, leave or fail meanwhile may miss it, and nobody is told. Raises what `route` raises.
        """

    def lookup(self, key: NodeId, on_result: Callable[[LookupResult], None], timeout_s: float = 10.0) -> None:
        """Find the root of a key, with the hops on the way; asked again every ``[overlay] lookup_retry``.

        ``on_result`` is called once, within ``timeout_s`` seconds. Raises `Unavailable` when too many are under way.
        """

    def may_pass(self, peer: PeerRef) -> bool:
        """Whether one more message of somebody else may go on to this peer now, by `send`; if so, it is counted.

        For a plugin that passes messages on itself: so that nobody has an honest node flood others. What is routed is
        counted in the same budget (docs/overlay.md). One that may not go is dropped; who sent it asks again.
        """

    # Neighbourhood

    def leaf_set(self) -> LeafSet:
        """This node's neighbours now; the same object until they change."""

    def prefix_row(self, bits: int) -> tuple[PeerRef, ...]:
        """Known nodes that share exactly ``bits`` leading bits with this one, from leaf set and routing table.

        In id order. Where there are many such nodes, only a few of them are known.
        """

    def replica_set(self, key: NodeId, count: int) -> tuple[PeerRef, ...]:
        """The ``count`` known nodes closest to ``key``, closest first, possibly this one; fewer where fewer are known.

        Exact for keys near this node, as far as the leaf set reaches; for other keys the closest of those it knows.
        """

    def estimated_ring_size(self) -> float:
        """How many nodes there are, estimated from the density of the leaf set; exact when it covers the ring."""

    def expected_members(self) -> tuple[PeerRef, ...]:
        """This node, its leaf set and the `missing_members`, in id order: all whose answers a complete answer needs.

        It is the whole ring if ``leaf_set().covers_ring``, else this node's neighbourhood. Silence never makes it
        smaller: a node is no longer expected after a goodbye, a denial, ``peerd forget``, or ``overlay.expect_for``.
        """

    def missing_members(self) -> tuple[MissingMember, ...]:
        """Expected members that are gone without goodbye, in id order, with their ages in seconds.

        A member that has just died is in the leaf set until its silence has been noticed, and here afterwards.
        """

    def outside_reason(self) -> str | None:
        """Why this node is in no ring of its cluster (never joined, denied, left), for people; ``None`` in the ring.

        A node that has lost everybody is in the ring: everybody else is missing.
        """

    def next_hop(self, key: NodeId) -> PeerRef | None:
        """Whom a message to ``key`` would be given to if it were routed now; ``None``: this node would deliver it.

        A moment later the answer may be another one. Raises `Unavailable` while routing would hold the message: the
        node is not in the ring, or whether its root lives is being found out.
        """

    def next_hops(self, keys: Sequence[NodeId]) -> dict[NodeId, PeerRef | None]:
        """Whom one message to all these keys would be given to: as `next_hop` of each, but keys share peers.

        Keys that begin alike go by the same peer, the quickest for all of them, which need not be the quickest for
        each. A key for which the message would be held is left out.
        """

    # Distance

    def rtt(self, peer: PeerRef) -> float | None:
        """Round trip to a peer as the overlay measured it, seconds, smoothed; ``None`` when it never did.

        The overlay measures members of the leaf set, entries of the routing table, and whoever it routes through.
        """

    def estimated_rtt(self, peer: PeerRef) -> float | None:
        """The measured round trip, else what the coordinates predict, seconds; ``None`` when neither is known.

        For a peer that the overlay does not know, let it send its `coordinate`: ``host.coordinate.rtt_s(theirs)``.
        """

    @property
    def coordinate(self) -> Coordinate:
        """This node's own place in the latency space; it moves a little with every measurement."""

    # What this node says through others

    def sign(self, statement: bytes) -> bytes:
        """A proof that this node said ``statement``, for whoever gets both, from whomever; opaque.

        Bound to the cluster and to this plugin: a proof of one plugin is none for another. Let a statement begin with
        what it is (the message type, say) where a plugin signs several kinds, and contain what makes it fresh (an
        epoch, a version, an end): whoever has a proof can show it again, as often and as late as he likes. At most
        `limits.PROOF_BYTES_MAX` bytes, empty where TLS is off. Raises `Bug` over `limits.STATEMENT_BYTES_MAX`.
        """

    def verify(self, signer: NodeId, statement: bytes, proof: bytes) -> bool:
        """Whether this plugin of ``signer``, a member that is not denied, said exactly this. Raises nothing.

        About 0.15 ms, and 0.25 ms more for a signer that was not heard of lately. Where TLS is off, everybody is
        believed.
        """

    @property
    def public_key(self) -> bytes:
        """From which this node's id follows (48 bytes), for `verify_by_key`; empty where TLS is off."""

    def verify_by_key(self, signer: NodeId, statement: bytes, proof: bytes, key: bytes) -> bool:
        """The same with the first 64 bytes of a proof and the signer's `public_key`, in place of a certificate.

        So nothing shows that the signer is a member: only that it, whom this plugin knows, said this. Raises nothing.
        """

    # Bulk

    def swap(
        self,
        peer: PeerRef,
        tag: bytes,
        value: Value,
        callbacks: SwapCallbacks,
        deadline_s: float | None = None,
        silence_s: float | None = None,
    ) -> SwapHandle:
        """Exchange large values, both directions at once; the peer's `Plugin.swap_requested` decides.

        Ends after ``deadline_s`` seconds at the latest (default: ``[swap] deadline``), and when the peer has said
        nothing for ``silence_s`` while the connection or its value is due (by default, and at most, ``[swap]
        stall_timeout``). ``tag`` is the plugin's own, at most `limits.SWAP_TAG_BYTES_MAX` bytes. Whatever is wrong,
        limits too, ends in ``callbacks.failed``; raises `Bug` for a swap with this node itself, or a longer tag.
        """

    def prepare_swap(
        self,
        peer: PeerRef,
        tag: bytes,
        callbacks: SwapCallbacks,
        deadline_s: float | None = None,
        silence_s: float | None = None,
    ) -> PreparedSwap:
        """Open the connection of a swap that may follow soon: `PreparedSwap.offer`. Cancelled, it is not recorded."""

    def fetch(
        self,
        peer: PeerRef,
        tag: bytes,
        callbacks: SwapCallbacks,
        deadline_s: float | None = None,
        silence_s: float | None = None,
    ) -> SwapHandle:
        """Get the peer's value in a swap, and give none. Raises what `swap` raises."""

    # Work, time, state

    def offload(
        self,
        function: Callable[..., T],
        *arguments: Any,
        done: Callable[[T], None],
        failed: Callable[[BaseException], None],
        cost_s: float = 0.0,
        within: WorkLimits | None = None,
    ) -> WorkHandle:
        """Run a pure function off the loop. In the simulator it costs ``cost_s`` of virtual time.

        Exactly one of ``done`` (with what it returned) and ``failed`` (with what it raised, or `Unavailable` when too
        many are waiting) is called, once, unless the node ends or it is cancelled first. It runs in a thread; with
        ``within`` in another process, under those limits. Then the function and its arguments can be pickled, it
        returns bytes, which are decoded as if they came from a stranger, and ``failed`` gets an `Unavailable`.
        """

    def set_timer(self, name: str, delay_s: float, payload: Hashable = None) -> None:
        """Arm the timer (``name``, ``payload``): in ``delay_s`` seconds or a little later, once, ``@on_timer`` runs.

        Raises `Bug` when it is armed already, nothing handles it, or `limits.TIMERS_PER_PLUGIN_MAX` are armed.
        """

    def cancel_timer(self, name: str, payload: Hashable = None) -> None:
        """Disarm it; harmless when it is not armed."""

    def when_over(self, callback: Callable[[str], None]) -> None:
        """Call back once, with a reason for people, when clients of this instance of the plugin have to be let go.

        That is when the instance failed and will be replaced, and when the node stops; `Plugin.stop` may follow, and
        after a failure does not. ``host.when_over(feed.end)`` ends a feed that clients read. Errors of the callback
        are those of a handler.
        """

    def new_epoch(self) -> str:
        """Return a short text that is never used twice, not even after a restart: for a feed that clients resume."""

    # Telling

    def misbehaved(self, peer: PeerRef, error: PeerMisbehaved) -> None:
        """Report a peer that sent what no correct peer sends, when that was found after the handler had returned.

        An example is a value that a worker could not decode. It costs the peer its link, and is counted. The handler of
        the offending message raises the error instead.
        """

    def emit(self, event: Event) -> int:
        """Record a telemetry event; returns its id, unique on this node in this boot. What sinks drop is counted.

        Raises `Bug` for an event that the plugin does not declare in `Plugin.events`.
        """

    def count(self, name: str, amount: float = 1.0, **labels: str) -> None:
        """Add to a counter. Raises `Bug` when `Plugin.metrics` does not declare it so, with these labels."""

    def gauge(self, name: str, value: float, **labels: str) -> None:
        """Set a gauge. Raises `Bug` as `count`."""

    def observe(self, name: str, value: float, **labels: str) -> None:
        """Add to a histogram. Raises `Bug` as `count`."""


class PluginConfig(ConfigSection):
    """Base of a plugin's configuration: its ``[protocols.<name>]`` table. `peerd.quantities` has the field types."""


class Plugin(Part):
    """Base class of every protocol. Override what you need; each instance lives on one node.

    After `start` you may use ``self.host``; in `stop` you may still send, but no timer will fire any more. What a
    handler or an upcall raises ends the simulation; the daemon logs it and replaces the instance (see `inherit`).
    """

    name: ClassVar[str]
    """Lower-case; names the config table, the metrics and the logs."""
    version: ClassVar[int] = 1
    """The highest version of the protocol that this plugin speaks, from 1 on; see `Host.peer_version`."""
    version_min: ClassVar[int] = 1
    """The lowest version that it still speaks."""
    messages: ClassVar[tuple[type[Message], ...]] = ()
    metrics: ClassVar[tuple[Metric, ...]] = ()
    events: ClassVar[tuple[type[Event], ...]] = ()
    """The events that it records in the event log. Their kinds begin with the plugin's name and a dot."""
    Config: ClassVar[type[PluginConfig]] = PluginConfig
    takes_owned_records: ClassVar[bool] = True
    """Whether nodes may keep records of their own in `Host.records`; ``False``: shared ones only (`record_allowed`)."""

    host: Host
    handlers: HandlerTable
    """The handlers of messages and timers, the plugin's own and those of its parts; `start` makes it."""

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        _check_declared(cls.__name__, cls.message_handlers, cls.messages)
        if not 1 <= cls.version_min <= cls.version < 1 << 16:
            raise Bug(f"{cls.__name__} speaks versions {cls.version_min} to {cls.version}")

    def __init__(self, config: PluginConfig | None = None) -> None:
        self.config = config if config is not None else self.Config()

    def start(self, host: Host) -> None:
        """The node is up (not necessarily joined). Call ``super().start(host)`` first."""
        self.host = host
        self.handlers = HandlerTable()
        self.handlers.add(self)

    def add_parts(self, *parts: Part) -> None:
        """Have the handlers and timers of these parts work as this plugin's own. Called in `start`, before any timer.

        Raises `Bug` when two handle the same message or timer, or one handles a message that is not in `messages`.
        """
        for part in parts:
            _check_declared(type(part).__name__, part.message_handlers, self.messages)
            self.handlers.add(part)

    def stop(self) -> None:
        """The node is going down in order. After a crash this is not called."""

    def inherit(self, failed: Self) -> None:
        """Take over, before `start`, what others entrusted to the failed instance that this one replaces."""

    def reconfigured(self) -> None:
        """``self.config`` was replaced: an operator had the configuration read again.

        Only fields marked with ``setting(..., reloads=True)`` differ from before; a change of any other field waits for
        the next start of the node. A plugin that reads its fields where it uses them has nothing to do here; one that
        made something of a field in `start` makes it anew.
        """

    def tags(self) -> Mapping[str, str]:
        """What this plugin's configuration says that the node is, for all plugins (`Host.tags`): role = web."""
        return {}

    def drain(self, done: Callable[[], None]) -> None:
        """The node will leave: hand over what others need (keys, children), then call ``done``, once.

        The node is still in the ring, and a time limit runs; `stop` follows in any case. Take on nothing new. The
        default has nothing to hand over.
        """
        done()

    def deliver(self, key: NodeId, message: Message, source: PeerRef) -> None:
        """A routed or broadcast message arrived at its root; ``source`` is who started it.

        The default hands it to the `@handles` method of its type.
        """
        handler = self.handlers.messages.get(type(message))
        if handler is not None:
            handler(message, source)

    def forward(self, envelope: Envelope) -> Verdict | PeerRef:
        """A routed message of this plugin is about to go on: let it pass, stop it here, or name another next hop.

        Called once for each key at each node on the way, also where the message starts and at the root; at the root
        ``envelope.next_hop`` is this node.
        """
        return Verdict.PASS

    def neighbours_changed(self, change: NeighbourChange) -> None:
        """The leaf set changed; called after the current handler. ``host.leaf_set()`` may be newer than ``change``."""

    def record_changed(self, key: NodeId, role: RecordRole, item: bytes) -> None:
        """A record of this plugin came to this node, changed, or this node's role for it did.

        ``host.records.local(key, item)`` has it; ``item`` is empty where the writer named none. With `RecordRole.NONE`
        and no local record it is gone: deleted, lapsed or handed over. Called after the current handler, at least once
        after the last change.
        """

    def record_allowed(self, key: NodeId, item: bytes, value: bytes | None, writer: NodeId) -> bool:
        """Whether this plugin lets ``writer`` make its shared record this; ``None``: deleted, or lapsed.

        Every node asks its own plugin before it takes in a write that it does not hold yet: as the root, as a replica,
        in repair, and as the reader of a `Records.get`. That ``writer`` has signed the write is known by then. Answer
        from what this node knows, and change nothing: it is called within the record store's handler. A refusal costs
        nobody a link, and is not remembered: what is refused may be offered again, and be judged anew. A
        `PeerMisbehaved` that it raises is a refusal.
        """
        return True

    def records_settled(self) -> None:
        """This node has compared its records with its neighbours: `Records.is_settled` is true where it is the root.

        Called after the current handler, once for each time that the node has caught up after a change of neighbours,
        and again when the answer of `Records.is_settled` was no for any other reason than that the root is another one.
        An instance that replaces a failed one asks in its `start`.
        """

    def writable(self, peer: PeerRef) -> None:
        """What is queued for a peer fell to the low-water mark, a quarter of the high one that it had been above.

        Called once each time, after the current handler; also when the queue was emptied because the peer is gone. Any
        plugin that overrides it is told, whoever filled the queue.
        """

    def peer_down(self, peer: PeerRef, reason: str) -> None:
        """A link to this peer was lost or could not be made, and dialling again has failed, too.

        Any plugin that overrides it is told, of all peers, once for each time that they are dialled in vain. A peer
        whose machine has stopped without closing its connections is noticed only when the link's own time limits end.
        """

    def send_refused(self, peer: PeerRef, message_type: type[Message], reason: SendRefusal, count: int) -> None:
        """``count`` one-way messages of one type, sent to this peer since the last call, will not be handled there.

        Called after the current handler, once for each peer, type and reason; beyond `limits.REFUSALS_TOLD_MAX` of
        these at a time the rest is only counted. A request that is refused ends with its ``on_timeout`` instead. Of
        `SendRefusal.UNKNOWN_MESSAGE` a peer tells at most once a minute and type. Messages that are routed or
        broadcast are the overlay's to send again, and are not told.
        """

    def swap_requested(self, request: SwapRequest) -> SwapDecision:
        """A peer wants to swap. To accept it, the value must be ready. Raise `PeerMisbehaved` to cut the peer off."""
        return RefuseSwap("not_supported")

    def histories(self) -> Sequence[HistorySize]:
        """What this plugin remembers of the past, and how much it may at most: all that grows with time."""
        return ()

    def validate(self) -> None:
        """Assert every invariant of this plugin's state; the simulator calls it in check mode."""


def _check_declared(owner: str, handled: Iterable[type[Message]], declared: tuple[type[Message], ...]) -> None:
    undeclared = [kind.__name__ for kind in handled if kind not in declared]
    if undeclared:
        raise Bug(f"{owner} handles {', '.join(undeclared)} but does not list them in `messages`")
