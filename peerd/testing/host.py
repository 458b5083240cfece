"""A host for one plugin without a node: it notes what the plugin does, and the test plays the rest of the world::

    host = FakeHost(1, RollCall())
    host.deliver(Call(7), peer(2))
    assert host.take_sent() == [(peer(2), Present(7, 0.0, ""))]

Every message has been through the wire format, so one that does not fit its declaration fails here.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, TypeVar

from peerd.api import (
    IN_MEMORY,
    Coordinate,
    Files,
    LeafSet,
    LocalRecord,
    Log,
    LookupResult,
    MissingMember,
    Plugin,
    Priority,
    RecordResult,
    Scratch,
    SwapCallbacks,
    Value,
    WorkLimits,
)
from peerd.errors import Bug, PeerMisbehaved, Unavailable
from peerd.ids import NodeId, closeness
from peerd.messages import Message, PeerRef, decode_body, encode_body
from peerd.sim.driver import SimStore
from peerd.sim.files import SimFiles
from peerd.sim.identity import SimulatedKeys, public_key_of
from peerd.sim.logs import LogDisk, open_log
from peerd.telemetry.schema import Event

T = TypeVar("T")
_KEYS = SimulatedKeys(0)


def peer(node_id: int) -> PeerRef:
    """A node by its id, with an address of its own."""
    return PeerRef(NodeId(node_id), "10.1.0.1", 1 + node_id % 65535)


def through_the_wire(message: Message) -> Message:
    """Return what the receiver of a message gets. Raises as the codec does for one that breaks its declaration."""
    return decode_body(type(message), encode_body(message))


@dataclass(frozen=True, slots=True)
class Request:
    """A request that waits for its answer."""

    peer: PeerRef
    message: Message
    timeout_s: float
    on_reply: Callable[[Message, PeerRef], None]
    on_timeout: Callable[[], None]


@dataclass(frozen=True, slots=True)
class Asked:
    """Something that the plugin asked its host for, under the name that `peerd.api.Host` has for it.

    A test answers by calling one of the callbacks: ``host.asked[-1].arguments["on_result"](result)``.
    """

    what: str
    arguments: dict[str, Any]

    def __str__(self) -> str:
        """The call, without callbacks: a line of a transcript."""
        shown = [f"{name}={value}" for name, value in self.arguments.items() if not _is_callback(value)]
        return f"{self.what}({', '.join(shown)})"


class FakeHost:
    """Implements `peerd.api.Host`. With a ``plugin`` that plugin is started; its clock stands at ``time_s``.

    ``asked`` has everything that the plugin did, in order; ``sent``, ``routed``, ``requests``, ``timers``, ``events``
    and ``counted`` have parts of it in a handier form. The test may set ``time_s``, ``neighbours`` and ``rtts``.
    """

    def __init__(self, node_id: int, plugin: Plugin | None = None, seed: int = 0) -> None:
        self.peer = peer(node_id)
        self.id = self.peer.id
        self.boot_epoch = 1
        self.rng = Random(f"{seed} {node_id}")
        self.time_s = 0.0
        self.neighbours: tuple[PeerRef, ...] = ()
        self.missing: tuple[MissingMember, ...] = ()
        self.is_complete = True
        self.rtts: dict[NodeId, float] = {}
        self.asked: list[Asked] = []
        self.sent: list[tuple[PeerRef, Message]] = []
        self.routed: list[tuple[NodeId, Message]] = []
        self.requests: list[Request] = []
        self.timers: dict[tuple[str, Hashable], float] = {}
        self.later: list[Callable[[], None]] = []
        self.work: list[FakeWork] = []
        self.counted: Counter[tuple[str, str]] = Counter()
        self.events: list[Event] = []
        self.blamed: list[tuple[PeerRef, PeerMisbehaved]] = []
        self.over: list[Callable[[str], None]] = []
        self.epochs = 0
        self.store = FakeStore(self)
        self.records = FakeRecords(self)
        self.plugin = plugin
        if plugin is not None:
            plugin.start(self)

    # What the test does

    def deliver(self, message: Message, source: PeerRef) -> Message | None:
        """Have the plugin handle a message from ``source``; what its handler answered."""
        assert self.plugin is not None
        handler = self.plugin.handlers.messages[type(message)]
        answer = handler(through_the_wire(message), source)
        self.run_later()
        return None if answer is None else through_the_wire(answer)

    def fire(self, name: str, payload: Hashable = None) -> None:
        """Have a timer go off, when it is due."""
        assert self.plugin is not None
        self.time_s = max(self.time_s, self.timers.pop((name, payload)))
        self.plugin.handlers.timers[name](payload)
        self.run_later()

    def run_later(self) -> None:
        """Run what has to wait until the end of the handler."""
        while self.later:
            self.later.pop(0)()

    def take_sent(self) -> list[tuple[PeerRef, Message]]:
        """Return what was sent since the last call, and forget it."""
        sent, self.sent = self.sent, []
        return sent

    def transcript(self) -> list[str]:
        """Return everything that the plugin did, one line for each action."""
        return [str(each) for each in self.asked]

    def note(self, what: str, **arguments: Any) -> None:
        """Add a line to the transcript."""
        self.asked.append(Asked(what, arguments))

    # Messages

    def now(self) -> float:
        """Return the time of the test's clock."""
        return self.time_s

    def wall_time(self) -> float:
        """Return the time of the test's clock as Unix time."""
        return self.time_s

    def send(self, peer: PeerRef, message: Message, priority: Priority = Priority.NORMAL) -> None:
        """Note the call in the transcript."""
        self.sent.append((peer, through_the_wire(message)))
        self.note("send", peer=peer, message=message)

    def route(self, key: NodeId, message: Message) -> None:
        """Note the call in the transcript."""
        self.routed.append((key, through_the_wire(message)))
        self.note("route", key=key, message=message)

    def request(
        self,
        peer: PeerRef,
        message: Message,
        timeout_s: float,
        on_reply: Callable[[Message, PeerRef], None],
        on_timeout: Callable[[], None],
        priority: Priority = Priority.NORMAL,
    ) -> None:
        """Note the call in the transcript."""
        if peer.id == self.id:
            raise Bug("a request to its own node")
        self.requests.append(Request(peer, through_the_wire(message), timeout_s, on_reply, on_timeout))
        self.note("request", peer=peer, message=message, timeout_s=timeout_s)

    def multicast(self, keys: Iterable[NodeId], message: Message) -> None:
        """Note the call in the transcript."""
        self.note("multicast", keys=tuple(keys), message=through_the_wire(message))

    def broadcast(self, message: Message) -> None:
        """Note the call in the transcript."""
        self.note("broadcast", message=through_the_wire(message))

    def lookup(self, key: NodeId, on_result: Callable[[LookupResult], None], timeout_s: float = 10.0) -> None:
        """Note the call in the transcript."""
        self.note("lookup", key=key, timeout_s=timeout_s, on_result=on_result)

    # Neighbourhood

    def may_pass(self, peer: PeerRef) -> bool:
        """Return that everything may go on."""
        return True

    def leaf_set(self) -> LeafSet:
        """Return the neighbours that the test has given it."""
        return LeafSet(self.neighbours, (), self.is_complete, covers_ring=True)

    def prefix_row(self, bits: int) -> tuple[PeerRef, ...]:
        """Return the neighbours that share exactly this many bits with the node."""
        return tuple(other for other in self.neighbours if 128 - (other.id ^ self.id).bit_length() == bits)

    def replica_set(self, key: NodeId, count: int) -> tuple[PeerRef, ...]:
        """Return the closest of the neighbours and this node."""
        known = sorted((*self.neighbours, self.peer), key=lambda other: closeness(key, other.id))
        return tuple(known[:count])

    def estimated_ring_size(self) -> float:
        """Return the number of the neighbours and this node."""
        return len(self.neighbours) + 1.0

    def next_hop(self, key: NodeId) -> PeerRef | None:
        """The closest of the neighbours, unless this node is closer."""
        [closest] = self.replica_set(key, 1)
        return None if closest.id == self.id else closest

    def next_hops(self, keys: Sequence[NodeId]) -> dict[NodeId, PeerRef | None]:
        """The `next_hop` of each key that has one now."""
        found: dict[NodeId, PeerRef | None] = {}
        for key in keys:
            with contextlib.suppress(Unavailable):
                found[key] = self.next_hop(key)
        return found

    def rtt(self, peer: PeerRef) -> float | None:
        """Return what the test has put into ``rtts``."""
        return self.rtts.get(peer.id)

    def estimated_rtt(self, peer: PeerRef) -> float | None:
        """Return the same as `rtt`."""
        return self.rtts.get(peer.id)

    @property
    def coordinate(self) -> Coordinate:
        """Return the origin of the space: in this host all nodes are there."""
        return Coordinate(0.0, 0.0, 0.0, 1.0, 1.0)

    def queued_bytes(self, peer: PeerRef) -> int:
        """Return 0: nothing ever waits in this host."""
        return 0

    def tags(self) -> dict[str, str]:
        """Return those of the plugin; there is no other."""
        return {} if self.plugin is None else dict(self.plugin.tags())

    def peer_version(self, peer: PeerRef) -> int | None:
        """Return the plugin's newest version, which everybody speaks here."""
        return None if self.plugin is None else self.plugin.version

    # Who belongs to the ring

    def expected_members(self) -> tuple[PeerRef, ...]:
        """This node, its neighbours, and those that the test has put into ``missing``."""
        peers = {peer.id: peer for peer in (self.peer, *self.neighbours, *(member.peer for member in self.missing))}
        return tuple(peers[node_id] for node_id in sorted(peers))

    def missing_members(self) -> tuple[MissingMember, ...]:
        """Return what the test has put into ``missing``."""
        return self.missing

    def outside_reason(self) -> str | None:
        """Return no reason: the node is in the ring."""
        return None

    # Statements

    def sign(self, statement: bytes) -> bytes:
        """Return a proof that every host of a test accepts for this node, if it has a plugin of the same name."""
        return _KEYS.sign(self.id, self._purpose, statement)

    def verify(self, signer: NodeId, statement: bytes, proof: bytes) -> bool:
        """Return whether ``FakeHost(signer, ...).sign(statement)`` gives this proof."""
        return _KEYS.verify(signer, self._purpose, statement, proof)

    @property
    def public_key(self) -> bytes:
        """Return what `verify_by_key` accepts for this node."""
        return public_key_of(self.id)

    def verify_by_key(self, signer: NodeId, statement: bytes, proof: bytes, key: bytes) -> bool:
        """Return whether ``FakeHost(signer, ...).sign(statement)[:64]`` gives this proof, and this is its key."""
        return _KEYS.verify_by_key(signer, self._purpose, statement, proof, key)

    @property
    def _purpose(self) -> str:
        return "" if self.plugin is None else self.plugin.name

    # Bulk, work, time

    def swap(
        self,
        peer: PeerRef,
        tag: bytes,
        value: Value,
        callbacks: SwapCallbacks,
        deadline_s: float | None = None,
        silence_s: float | None = None,
    ) -> FakeSwap:
        """Note the call in the transcript."""
        self.note(
            "swap", peer=peer, tag=tag, value=value, callbacks=callbacks, deadline_s=deadline_s, silence_s=silence_s
        )
        return FakeSwap(callbacks)

    def prepare_swap(
        self,
        peer: PeerRef,
        tag: bytes,
        callbacks: SwapCallbacks,
        deadline_s: float | None = None,
        silence_s: float | None = None,
    ) -> FakeSwap:
        """Note the call in the transcript, and later the offer."""
        self.note("prepare_swap", peer=peer, tag=tag, callbacks=callbacks, deadline_s=deadline_s, silence_s=silence_s)
        return FakeSwap(callbacks, lambda what, **arguments: self.note(what, peer=peer, tag=tag, **arguments))

    def fetch(
        self,
        peer: PeerRef,
        tag: bytes,
        callbacks: SwapCallbacks,
        deadline_s: float | None = None,
        silence_s: float | None = None,
    ) -> FakeSwap:
        """Note the call in the transcript."""
        self.note("fetch", peer=peer, tag=tag, callbacks=callbacks, deadline_s=deadline_s, silence_s=silence_s)
        return FakeSwap(callbacks)

    def offload(
        self,
        function: Callable[..., T],
        *arguments: Any,
        done: Callable[[T], None],
        failed: Callable[[BaseException], None],
        cost_s: float = 0.0,
        within: WorkLimits | None = None,
    ) -> FakeWork:
        """Run it after the current handler; an exception goes to ``failed``, as a worker's does."""

        def run() -> None:
            if work.is_cancelled:
                return
            try:
                result = function(*arguments)
            except Exception as error:  # whatever the function raises is given to the caller, who decides what to do
                failed(error)
            else:
                done(result)

        work = FakeWork(within)
        self.work.append(work)
        self.later.append(run)
        return work

    def set_timer(self, name: str, delay_s: float, payload: Hashable = None) -> None:
        """Note when the timer is due."""
        if (name, payload) in self.timers:
            raise Bug(f"the timer {name} ({payload}) is armed twice")
        if self.plugin is not None and name not in self.plugin.handlers.timers:
            raise Bug(f"nothing handles the timer {name}")
        self.timers[name, payload] = self.time_s + delay_s
        self.note("set_timer", name=name, delay_s=delay_s, payload=payload)

    def cancel_timer(self, name: str, payload: Hashable = None) -> None:
        """Forget the timer."""
        if self.timers.pop((name, payload), None) is not None:
            self.note("cancel_timer", name=name, payload=payload)

    def when_over(self, callback: Callable[[str], None]) -> None:
        """Keep the function in ``over``, for the test to call."""
        self.over.append(callback)

    def new_epoch(self) -> str:
        """Return the next number of a counter, as text."""
        self.epochs += 1
        return f"{self.boot_epoch}.{self.epochs}"

    # Telling

    def misbehaved(self, peer: PeerRef, error: PeerMisbehaved) -> None:
        """Note who is to lose its link, and why."""
        self.blamed.append((peer, error))

    def emit(self, event: Event) -> int:
        """Note the call in the transcript."""
        self.events.append(event)
        self.note("emit", event=event)
        return len(self.events)

    def count(self, name: str, amount: float = 1.0, **labels: str) -> None:
        """Add the amount to a counter, which has the metric's name and the values of the labels."""
        self.counted[name, ",".join(labels.values())] += int(amount)

    def gauge(self, name: str, value: float, **labels: str) -> None:
        """Do nothing: no test looks at metrics here."""

    def observe(self, name: str, value: float, **labels: str) -> None:
        """Do nothing: no test looks at metrics here."""


@dataclass(slots=True)
class FakeWork:
    """A job that was given away."""

    within: WorkLimits | None
    is_cancelled: bool = False

    def cancel(self) -> None:
        """Keep it from being run."""
        self.is_cancelled = True


@dataclass(frozen=True, slots=True)
class FakeSwap:
    """A swap that the test answers through its callbacks."""

    callbacks: SwapCallbacks
    note: Callable[..., None] = lambda what, **arguments: None
    """Of a swap that was prepared what follows is in the transcript."""

    def offer(self, value: Value, *, may_wait: bool = False) -> None:
        """Begin the swap that was prepared."""
        self.note("offer", value=value)

    def cancel(self) -> None:
        """Cancel the swap, as the swap layer does."""
        self.note("cancel")
        self.callbacks.failed("cancelled")


@dataclass
class FakeRecords:
    """Implements `peerd.api.Records`: notes what is asked as ``records.<method>``. The test says what is held here."""

    host: FakeHost
    here: dict[tuple[NodeId, bytes], LocalRecord] = field(default_factory=dict)
    """The records that the test has put here, by key and item."""
    has_caught_up: bool = True
    """Whether this node has compared its records with its neighbours; the test says so."""

    def put(
        self, key: NodeId, value: bytes, ttl_s: float, on_result: Callable[[RecordResult], None], **options: Any
    ) -> None:
        """Note the call in the transcript."""
        self.host.note("records.put", key=key, value=value, ttl_s=ttl_s, on_result=on_result, **options)

    def get(self, key: NodeId, on_result: Callable[[RecordResult], None], **options: Any) -> None:
        """Note the call in the transcript."""
        self.host.note("records.get", key=key, on_result=on_result, **options)

    def delete(self, key: NodeId, on_result: Callable[[RecordResult], None], **options: Any) -> None:
        """Note the call in the transcript."""
        self.host.note("records.delete", key=key, on_result=on_result, **options)

    def local(self, key: NodeId, item: bytes = b"", owner: NodeId | None = None) -> LocalRecord | None:
        """Return the record that the test has put here, if it is the owner's (where one is named)."""
        found = self.here.get((key, item))
        return found if found is not None and owner in (None, found.owner) else None

    def items(self, key: NodeId) -> Iterator[LocalRecord]:
        """Return what the test has put here under one key, in the order of the items' names."""
        return (self.here[place] for place in sorted(self.here) if place[0] == key)

    def is_settled(self, key: NodeId) -> bool:
        """Return whether this node is the root of the key, unless the test has set ``has_caught_up`` to ``False``."""
        return self.has_caught_up and self.host.next_hop(key) is None

    def held(self) -> Iterator[LocalRecord]:
        """Return all that the test has put here, in the order of the keys."""
        return iter([self.here[place] for place in sorted(self.here)])


class FakeStore(SimStore):
    """Implements `peerd.api.Store` in memory; what is appended to a log is durable after the handler."""

    def __init__(self, host: FakeHost) -> None:
        super().__init__()
        self._host = host
        self._open: dict[str, Log] = {}

    def log(self, name: str) -> Log:
        """Return a log, which lives as long as the test's host."""
        if name not in self._open:
            disk = self.logs.setdefault(name, LogDisk())
            self._open[name] = open_log(disk, lambda delay_s, callback: self._host.later.append(callback))
        return self._open[name]

    def scratch(self) -> Scratch:
        """All in memory."""
        return IN_MEMORY

    def files(self) -> Files:
        """Return the files, which live as long as the test's host; what is asked of them is done after the handler."""
        return SimFiles(self.files_on_disk, lambda delay_s, callback: self._host.later.append(callback))


def _is_callback(value: object) -> bool:
    return value is None or callable(value) or isinstance(value, SwapCallbacks)
