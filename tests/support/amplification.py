"""What one message of a member makes the others send, in a ring that says nothing of its own accord.

All periodic work is half an hour apart or more, so whatever goes over the links in the window after the message, and
not in that window of a run without it, is because of it. ``python -m tests.support.amplification`` prints the table of
docs/amplification.md.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, Final

from msgspec.structs import replace

from peerd.api import Priority
from peerd.driver import StreamHandler
from peerd.ids import NodeId, key_of
from peerd.messages import Message, PeerRef, Struct, encode_body, message_type
from peerd.overlay.config import OverlayConfig
from peerd.overlay.messages import Broadcast, ForgetOrder, LookupProbe, Route
from peerd.services.records.config import RecordsConfig
from peerd.sim.driver import SimDriver
from peerd.sim.simulation import Place, Simulation
from peerd.testing.simulation import ring
from peerd.wire.codec import encode_request
from peerd.wire.frames import Frame, frame_size
from protocols.aggregation.messages import Enrolled, StartRound, StopRound, WhyMissing
from protocols.aggregation.plugin import Aggregation
from protocols.aggregation.query import parse_query
from protocols.aggregation.statements import (
    NONCE_BYTES,
    enrolled_statement,
    round_id_of,
    start_statement,
    stop_statement,
)
from protocols.pubsub.names import EventId
from tests.support import amplification_pubsub as pubsub, amplification_streams as streams
from tests.support.aggregation import Round, aggregation_plugins
from tests.support.branch import in_a_branch
from tests.support.golden import all_messages

NODES: Final = 12
ASKER, MEMBER = 1, 11
"""Who has asked a round that is still open, and the member that sends the message."""
SETTLE_S: Final = 560.0
WINDOW_S: Final = 20.0
TOPIC: Final = "topic"
TOPIC_KEY: Final = key_of(TOPIC)
SMALL_RATIO: Final = 5.0
"""Answers that are larger than so many times the question are in the table."""
_HOUR: Final = 3600.0
"""The longest pause that can be set."""
_QUIET: Final = {
    **dict.fromkeys(("table_interval", "departed_interval", "reunion_interval", "failure_timeout", "lease"), _HOUR),
    **dict.fromkeys(("table_probe_min", "table_probe_max"), _HOUR),
    **dict.fromkeys(("heartbeat_interval", "exchange_interval"), _HOUR / 2),
}
_OF_LINKS: Final = frozenset({"Hello", "HelloAck", "HelloRefused", "Goodbye", "LinkHeartbeat"})
"""The driver answers these; a node never gets them."""
_ROUTED_OF_THE_OVERLAY: Final = (LookupProbe, ForgetOrder)
_PLUGINS_FROM: Final = 0x60
"""Type ids from here on are those of services and protocols, whose messages others may route and broadcast."""


@dataclasses.dataclass(frozen=True, slots=True)
class Caused:
    """What one message of a member made honest nodes send, and what it cost the member."""

    request_bytes: int
    back: tuple[Frame, ...]
    """To the member."""
    others: tuple[Frame, ...]
    """From honest nodes to honest nodes."""
    streams: int
    """Connections for values, opened by honest nodes."""

    @property
    def back_bytes(self) -> int:
        """Bytes that come back to the member."""
        return sum(frame_size(frame) for frame in self.back)

    @property
    def others_bytes(self) -> int:
        """Bytes that go to others."""
        return sum(frame_size(frame) for frame in self.others)

    @property
    def ratio(self) -> float:
        """Bytes that come back for each byte that was sent."""
        return self.back_bytes / self.request_bytes


@dataclasses.dataclass(slots=True)
class Overheard:
    """What nodes gave to their links: sender, receiver and frame; and who opened streams."""

    frames: list[tuple[PeerRef, PeerRef, Frame]] = dataclasses.field(default_factory=list)
    streams: list[PeerRef] = dataclasses.field(default_factory=list)


_Sent = tuple[Simulation, Message, Place, Place]
"""The ring, the message, who sends it, and whom to."""


def verbs() -> list[tuple[type[Message] | None, type[Message]]]:
    """Every message of the kernel and the protocols that a node can get, alone (``None``) or inside another."""
    kinds = [
        kind
        for kind in all_messages()
        if kind.__module__.startswith(("peerd.", "protocols.")) and kind.__name__ not in _OF_LINKS
    ]
    inner = [kind for kind in kinds if kind.TYPE_ID >= _PLUGINS_FROM or kind in _ROUTED_OF_THE_OVERLAY]
    return [(None, kind) for kind in kinds] + [(outer, kind) for outer in (Route, Broadcast) for kind in inner]


def quiet_ring(seed: int = 7) -> tuple[Simulation, Round]:
    """A settled ring with a record and an open round, in which nobody says anything any more."""
    services = {"records": RecordsConfig(sync_interval=_HOUR)}
    overlay = OverlayConfig.model_validate(_QUIET)
    simulation = ring(NODES, seed, plugins=aggregation_plugins, overlay=overlay, services=services)
    simulation.misbehaviour_is_failure = False
    for place in simulation.nodes[:MEMBER]:
        host = place.node.hosts["aggregation"]
        host.records.put(TOPIC_KEY, b"value", 3000.0, _whatever)
    asked = Round(simulation, ASKER, _HOUR)
    requester = asked.plugin.requesting.requesters[asked.round_id]
    requester.offered = _whatever  # type: ignore[method-assign, assignment]  # it wants no result: the round stays open
    simulation.run_for(SETTLE_S)
    return simulation, asked


def _whatever(*_: object) -> None:
    """Honest users hear something, or nothing."""


@contextmanager
def overheard() -> Iterator[Overheard]:
    """Everything that any node of any simulation sends meanwhile."""
    heard = Overheard()
    send, open_stream = SimDriver.send, SimDriver.open_stream

    def spy_send(self: SimDriver, peer: PeerRef, frame: Frame, priority: Priority) -> None:
        heard.frames.append((self.peer, peer, frame))
        send(self, peer, frame, priority)

    def spy_stream(self: SimDriver, peer: PeerRef, handler: StreamHandler) -> None:
        heard.streams.append(self.peer)
        open_stream(self, peer, handler)

    SimDriver.send, SimDriver.open_stream = spy_send, spy_stream  # type: ignore[method-assign]  # for every driver
    try:
        yield heard
    finally:
        SimDriver.send, SimDriver.open_stream = send, open_stream  # type: ignore[method-assign]  # as before


def victim_of(simulation: Simulation, kind: type[Message]) -> Place:
    """Who has something to say about such a message: the root of the record, or the requester."""
    if kind.TYPE_ID >= Aggregation.messages[0].TYPE_ID or kind in (Route, Broadcast):
        return simulation.nodes[ASKER]
    return simulation.find(simulation.oracle().root(TOPIC_KEY))


def caused_by(kind: type[Message], outer: type[Message] | None = None) -> Caused:
    """Send the smallest valid message of a kind to the node that it concerns, alone or in a `Route` or `Broadcast`."""
    background(ring_of(kind))  # makes the ring
    return in_a_branch(lambda: _measured(kind, outer))


def _without_beats(frames: list[tuple[PeerRef, PeerRef, Frame]]) -> list[tuple[PeerRef, PeerRef, Frame]]:
    """Leave out what an edge of a stream's tree says each second, as long as it lasts; not more than that."""
    left: Counter[tuple[NodeId, NodeId]] = Counter()
    found = []
    for source, to, frame in frames:
        edge = source.id, to.id
        if frame[0] == streams.BEAT_ID and left[edge] <= WINDOW_S:
            left[edge] += 1
        else:
            found.append((source, to, frame))
    return found


def ring_of(kind: type[Message]) -> str:
    """The name of the ring in which a message means something."""
    if kind in streams.MESSAGES:
        return streams.policy_for(kind)
    return "pubsub" if kind in pubsub.MESSAGES else "general"


def placed(kind: type[Message], outer: type[Message] | None = None) -> _Sent:
    """The ring in which a message means something, its smallest form, who sends it, and whom to. Use it in a branch."""
    makers = {"general": _in_general, "pubsub": _in_pubsub}
    return makers.get(ring_of(kind), _in_stream)(kind, outer)


def _measured(kind: type[Message], outer: type[Message] | None) -> Caused:
    name = ring_of(kind)
    simulation, message, member, victim = placed(kind, outer)
    frame = encode_request(message, 1 << 20)
    with overheard() as heard:
        member.driver.send(victim.peer, frame, Priority.NORMAL)
        simulation.run_for(WINDOW_S)
    expected = Counter(background(name))
    frames = []
    for said in heard.frames:
        if expected[_key(said)] > 0:
            expected[_key(said)] -= 1
        else:
            frames.append(said)
    frames = _without_beats(frames)
    back = tuple(each for _, to, each in frames if to.id == member.id)
    others = tuple(each for source, to, each in frames if member.id not in (source.id, to.id))
    return Caused(frame_size(frame), back, others, sum(peer.id != member.id for peer in heard.streams))


def _in_general(kind: type[Message], outer: type[Message] | None) -> _Sent:
    """The ring, the message, who sends it, and whom to."""
    simulation, asked = _quiet_general_ring()
    member, victim = simulation.nodes[MEMBER], victim_of(simulation, kind)
    words = _Words(member, victim.peer, asked.round_id)
    message = words.smallest(kind)
    return simulation, message if outer is None else words.around(outer, message), member, victim


def _in_stream(kind: type[Message], outer: type[Message] | None) -> _Sent:
    """The same for a stream: a node in the middle of its tree to the one above it, or below it."""
    world = _quiet_stream_ring(streams.policy_for(kind))
    victim, message = world.victim(kind), world.smallest(kind)
    if outer is not None:
        message = _Words(world.member, victim.peer, b"").around(outer, message)
    return world.simulation, message, world.member, victim


def _in_pubsub(kind: type[Message], outer: type[Message] | None) -> _Sent:
    """The same for publish/subscribe: the victim is the root of the leaf."""
    simulation, past = _quiet_pubsub_ring()
    member, victim = simulation.nodes[MEMBER], pubsub.owner_of(simulation)
    message = pubsub.smallest(kind, member, victim.peer, past)
    if outer is not None:
        message = _Words(member, victim.peer, b"").around(outer, message)
    return simulation, message, member, victim


@cache
def _quiet_general_ring() -> tuple[Simulation, Round]:
    """Made once, and used in branches only."""
    return quiet_ring()


@cache
def _quiet_pubsub_ring() -> tuple[Simulation, EventId]:
    return pubsub.quiet_pubsub_ring(NODES, OverlayConfig.model_validate(_QUIET), SETTLE_S)


@cache
def _quiet_stream_ring(policy: str) -> streams.StreamWorld:
    return streams.quiet_stream_ring(policy, NODES, OverlayConfig.model_validate(_QUIET), SETTLE_S)


def _simulation_of(name: str) -> Simulation:
    if name == "general":
        return _quiet_general_ring()[0]
    return _quiet_pubsub_ring()[0] if name == "pubsub" else _quiet_stream_ring(name).simulation


@cache
def background(name: str = "general") -> Counter[tuple[NodeId, NodeId, int, int]]:
    """What is said in the window without any message: seldom more than nothing, but for a stream's heartbeats."""
    simulation = _simulation_of(name)

    def listen() -> Counter[tuple[NodeId, NodeId, int, int]]:
        with overheard() as heard:
            simulation.run_for(WINDOW_S)
        assert not heard.streams
        return Counter(_key(said) for said in heard.frames)

    return in_a_branch(listen)


def _key(said: tuple[PeerRef, PeerRef, Frame]) -> tuple[NodeId, NodeId, int, int]:
    source, to, frame = said
    return source.id, to.id, frame[0], frame_size(frame)


def names(frames: tuple[Frame, ...]) -> dict[str, int]:
    """How many of each kind, by name."""
    return dict(Counter(_name(frame[0]) for frame in frames))


def _name(type_id: int) -> str:
    kind = message_type(type_id)
    assert kind is not None
    return kind.__name__


@dataclasses.dataclass(frozen=True, slots=True)
class _Words:
    """Names that mean something in the ring: whatever else is needed is as small as its field allows."""

    member: Place
    victim: PeerRef
    round_id: bytes

    def smallest(self, kind: type[Struct]) -> Any:
        """The smallest valid instance of a message or struct, signed by the member where it may sign it."""
        if kind is StartRound:
            return self._start()
        hints = typing.get_type_hints(kind, include_extras=True)
        found = kind(**{name: self._value(name, hints[name]) for name in kind.__struct_fields__})
        if kind in (Enrolled, StopRound):
            peer = self.member.peer
            is_stop = kind is StopRound
            said = stop_statement(self.round_id) if is_stop else enrolled_statement(self.round_id, peer, "")
            found = replace(found, proof=self._signed(said))
        return found

    def around(self, outer: type[Message], inner: Message) -> Message:
        """A routed or broadcast message: to the record's key, or that of the victim itself."""
        type_id, body, source = inner.TYPE_ID, encode_body(inner), self.member.peer
        if outer is Broadcast:
            return Broadcast(type_id, body, source, 1, 1, self.victim.id, self.victim.id, 0)
        key = TOPIC_KEY if "key" in inner.__struct_fields__ else self.victim.id
        key = pubsub.key_for(inner) or key
        return Route((key,), type_id, body, source, 1, 1, 0)

    def _start(self) -> StartRound:
        """A round of its own, which nobody enrols in: everybody reads its data and swaps."""
        peer, nonce, query = self.member.peer, bytes(NONCE_BYTES), parse_query("count", files="*").to_wire()
        begins_at_ms, lasts_ms = round(self.member.driver.wall_time() * 1000), 60_000
        round_id = round_id_of(nonce, peer, query, begins_at_ms, lasts_ms, False, False)
        proof = self._signed(start_statement(round_id))
        return StartRound(round_id, peer, query, 0, lasts_ms, False, False, begins_at_ms, lasts_ms, nonce, proof)

    def _signed(self, statement: bytes) -> bytes:
        return self.member.driver.sign("aggregation", statement)

    def _value(self, name: str, annotation: Any) -> Any:
        inner = WhyMissing(self.round_id)
        known = {"round_id": self.round_id, "key": TOPIC_KEY}
        known |= {"type_id": inner.TYPE_ID, "body": encode_body(inner), "namespace": "aggregation"}
        if name in known:
            return known[name]
        least, length = 0, 0
        if typing.get_origin(annotation) is typing.Annotated:
            annotation, *rules = typing.get_args(annotation)
            least = max((getattr(rule, "ge", 0) or 0 for rule in rules), default=0)
            length = max((getattr(rule, "min_length", 0) or 0 for rule in rules), default=0)
        if typing.get_origin(annotation) in (types.UnionType, typing.Union):
            return None
        if typing.get_origin(annotation) is tuple:
            return tuple(self._value("", typing.get_args(annotation)[0]) for _ in range(length))
        if annotation in (PeerRef, NodeId):
            return self.member.peer if annotation is PeerRef else self.member.id
        plain = {int: least, float: float(least), bool: False, str: "x" * length, bytes: bytes(length)}
        return plain[annotation] if annotation in plain else self.smallest(annotation)


def main() -> None:
    """Print the table: what each message makes others send, but for those that cause nothing but a small answer."""
    for outer, kind in verbs():
        found = caused_by(kind, outer)
        if not found.others and found.ratio <= SMALL_RATIO:
            continue
        name = f"`{kind.__name__}`" if outer is None else f"`{kind.__name__}` in a `{outer.__name__}`"
        sent = f"{len(found.others)} messages, {found.others_bytes} bytes" if found.others else "nothing"
        print(f"| {name} | {found.request_bytes} | {found.back_bytes} ({found.ratio:.1f}) | {sent} |")


if __name__ == "__main__":
    main()
