"""A hostile node: the real node, with behaviours between it and the network.

A behaviour may change or swallow what the node sends, swallow what it hears, and say things of its own accord. What no
behaviour touches goes its usual way, so that a hostile node is a member of the ring like any other until it strikes.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from random import Random
from typing import ClassVar, Final

from peerd.api import Plugin, Priority, SendRefusal
from peerd.driver import Driver
from peerd.errors import PeerMisbehaved
from peerd.ids import RING, NodeId, clockwise_distance
from peerd.messages import Message, PeerRef, decode_body, message_type
from peerd.node.node import Node, NodeSettings
from peerd.overlay.messages import Broadcast, Route
from peerd.sim.observed import ObservedNode, Observer
from peerd.sim.rng import fork
from peerd.sim.simulation import Place, Simulation
from peerd.wire.codec import (
    Decoded as Decoded,  # also for the behaviours of plugins, which import nothing of `wire`
    decode,
    encode,
    encode_reply,
    encode_request,
)
from peerd.wire.frames import Frame as Frame

ASK_TIMEOUT_S: Final = 3.0
STRANGERS_HOST: Final = "192.0.2.1"
"""Invented nodes are said to be here, where nobody is (RFC 5737)."""


class Behaviour:
    """Base of all ways to misbehave. One object for each incarnation of a hostile node; by itself it does nothing."""

    name: ClassVar[str] = "honest"
    gap_s: ClassVar[float] = 0.0
    """Mean time between two `act`, virtual seconds; 0: never."""

    def __init__(self, node: HostileNode) -> None:
        self.node = node
        self.rng = node.rng

    def act(self) -> None:
        """Say something of its own accord."""

    def tells(self, peer: PeerRef, message: Message) -> Message | None:
        """What is sent instead of this message of the node underneath; ``None``: nothing is."""
        return message

    def hears(self, peer: PeerRef, frame: Frame, decoded: Decoded | None) -> bool:
        """Whether the node underneath gets what arrived; ``decoded`` is ``None`` for what it would not understand."""
        return True

    def delivered(self, message: Message, source: PeerRef) -> None:
        """A routed or broadcast message of a plugin has arrived here; the plugin gets it, too."""


class HostileNode(ObservedNode):
    """A real node whose behaviours see and change what goes in and out, while its party is active."""

    def __init__(
        self,
        party: Party,
        driver: Driver,
        settings: NodeSettings,
        plugins: Sequence[Plugin],
        observer: Observer,
        index: int,
    ) -> None:
        super().__init__(driver, settings, plugins, observer, index)
        self.party = party
        self.rng: Random = fork(party.simulation.seed, "hostile", index, settings.boot_epoch)
        self.behaviours = [kind(self) for kind in party.behaviours[index]]

    # What behaviours use

    def others(self) -> list[PeerRef]:
        """All other running nodes: attackers are assumed to know everybody."""
        return [place.peer for place in self.party.simulation.live_nodes() if place.id != self.peer.id]

    def colluders(self) -> list[PeerRef]:
        """All running hostile nodes, this one among them."""
        simulation = self.party.simulation
        return [place.peer for place in simulation.live_nodes() if place.index in simulation.hostile]

    def sample(self, peers: Sequence[PeerRef], most: int) -> list[PeerRef]:
        """Some of them, at random."""
        return self.rng.sample(peers, min(most, len(peers)))

    def stranger(self, near: NodeId, bits: int) -> PeerRef:
        """Somebody who does not exist, less than ``2**bits`` away from a node on either side."""
        distance = self.rng.choice((-1, 1)) * self.rng.randrange(1, 1 << bits)
        return PeerRef(NodeId((near + distance) % RING), STRANGERS_HOST, self.rng.randrange(1, 60_000))

    def say(self, peer: PeerRef, message: Message) -> None:
        """Send a message that no behaviour changes any more."""
        self.throw(peer, encode(message))

    def throw(self, peer: PeerRef, frame: Frame) -> None:
        """Send any frame."""
        self.driver.send(peer, frame, Priority.NORMAL)

    def answer(self, peer: PeerRef, message: Message, correlation: int | None) -> None:
        """Reply to a request that the node underneath does not get."""
        if correlation is not None:
            self.throw(peer, encode_reply(message, correlation))

    def ask(self, peer: PeerRef, message: Message) -> None:
        """Send a request, whatever becomes of it. Whoever asks the root of a key may be it: then nobody is asked."""
        if not self.is_stopped and peer.id != self.peer.id:
            host = self.hosts[self.overlay.name]
            host.request(peer, message, ASK_TIMEOUT_S, lambda *_: None, lambda: None, Priority.URGENT)

    # Between the node and its driver

    def frame_received(self, peer: PeerRef, frame: Frame) -> None:
        """Show it to the behaviours, and hand it on unless one of them swallows it."""
        if self.party.is_active and not self.is_stopped:
            try:
                decoded = decode(frame)
            except PeerMisbehaved:
                decoded = None
            if decoded is not None:
                self.party.witness(decoded[0])
            heard = [behaviour.hears(peer, frame, decoded) for behaviour in self.behaviours]  # each hears everything
            if not all(heard):
                return
        super().frame_received(peer, frame)

    def frame_refused(self, peer: PeerRef, frame: Frame, reason: SendRefusal) -> None:
        """As ever; but what a behaviour made up, and the node underneath cannot read, is nobody's loss."""
        try:
            decode(frame)
        except PeerMisbehaved:
            return
        super().frame_refused(peer, frame, reason)

    def send(self, peer: PeerRef, message: Message, priority: Priority = Priority.NORMAL) -> None:
        """As the behaviours want it."""
        told = self._twisted(peer, message)
        if told is not None:
            super().send(peer, told, priority)

    def _send_counted(self, peer: PeerRef, frame: Frame, priority: Priority) -> None:
        """Requests and replies, the same way."""
        decoded = decode(frame)
        if decoded is None or decoded[1] is None:
            super()._send_counted(peer, frame, priority)
            return
        told = self._twisted(peer, decoded[0])
        if told is not None:
            again = encode_reply if decoded[2] else encode_request
            super()._send_counted(peer, again(told, decoded[1]), priority)

    def _twisted(self, peer: PeerRef, message: Message) -> Message | None:
        told: Message | None = message
        if self.party.is_active and peer.id != self.peer.id:
            for behaviour in self.behaviours:
                told = None if told is None else behaviour.tells(peer, told)
        return told

    def deliver(self, key: NodeId, type_id: int, body: bytes, source: PeerRef) -> None:
        """As ever, and the behaviours see it."""
        super().deliver(key, type_id, body, source)
        kind = message_type(type_id)
        if kind is None or not self.party.is_active or self.is_stopped:
            return
        try:
            message = decode_body(kind, body)
        except PeerMisbehaved:
            return
        for behaviour in self.behaviours:
            behaviour.delivered(message, source)


class Party:
    """All hostile nodes of one simulation, and what went through their hands.

    ``behaviours``: what each of them does, by index. Make it before the nodes start; nobody misbehaves before `begin`.
    """

    def __init__(self, simulation: Simulation, behaviours: dict[int, list[type[Behaviour]]]) -> None:
        self.simulation = simulation
        self.behaviours = behaviours
        self.is_active = False
        self._seen: set[tuple[int, bytes]] = set()
        """Type and body of the routed messages that reached a hostile node; only asked for membership."""
        self._arcs: list[tuple[bytes, NodeId, NodeId]] = []
        """Body and bounds of the parts of broadcasts that hostile nodes were to cover."""
        simulation.was_in_hostile_hands = self.has_touched
        for index in behaviours:
            simulation.hostile[index] = partial(HostileNode, self)

    @property
    def ids(self) -> set[NodeId]:
        """Who is hostile; for membership only."""
        nodes = self.simulation.nodes
        return {nodes[index].id for index in self.behaviours if index < len(nodes)}

    def begin(self) -> None:
        """From now on they misbehave."""
        self.is_active = True
        for index, kinds in self.behaviours.items():
            for number, kind in enumerate(kinds):
                if kind.gap_s:
                    self._act_later(index, number, fork(self.simulation.seed, "hostile", index, "act", number))

    def _act_later(self, index: int, number: int, rng: Random) -> None:
        behaviour = self.behaviours[index][number]

        def due() -> None:
            place = self.simulation.nodes[index]
            if place.is_live and not place.node.is_stopped and isinstance(place.node, HostileNode):
                place.node.behaviours[number].act()
            self._act_later(index, number, rng)

        self.simulation.after(rng.expovariate(1.0 / behaviour.gap_s), due)

    # What cannot be asked of the others any more

    @property
    def has_had_any(self) -> bool:
        """Whether any routed message reached a hostile node."""
        return bool(self._seen)

    def witness(self, message: Message) -> None:
        """A hostile node has got this: what becomes of it is in its hands."""
        if isinstance(message, Route):
            self._seen.add((message.type_id, message.body))
        elif isinstance(message, Broadcast):
            self._arcs.append((message.body, message.after, message.until))

    def has_had(self, type_id: int, body: bytes) -> bool:
        """Whether this routed message reached a hostile node, which may have done anything with it."""
        return (type_id, body) in self._seen

    def has_touched(self, type_id: int, body: bytes) -> bool:
        """Whether this message, routed or broadcast, reached a hostile node."""
        return self.has_had(type_id, body) or any(told == body for told, _, _ in self._arcs)

    def was_to_tell(self, body: bytes, node_id: NodeId) -> bool:
        """Whether a hostile node was to cover this node's part of the ring with that broadcast."""
        return any(
            after == until or 0 < clockwise_distance(after, node_id) < clockwise_distance(after, until)
            for told, after, until in self._arcs
            if told == body
        )


def behaviours_of(place: Place) -> list[Behaviour]:
    """Those of a hostile node that has started; none of an honest one."""
    node: Node = place.node
    return list(node.behaviours) if isinstance(node, HostileNode) else []
