"""Lies about messages on their way: swallowed, answered in the root's name, sent astray."""

from __future__ import annotations

from msgspec.structs import replace

from peerd import limits
from peerd.ids import NodeId
from peerd.messages import PeerRef
from peerd.overlay.messages import Broadcast, LookupReply, Route, RouteAck
from peerd.sim.hostile.member import Behaviour, HostileNode
from peerd.wire.codec import Decoded
from peerd.wire.frames import Frame

ACCEPTED = RouteAck(True)


class BlackHole(Behaviour):
    """Takes every routed message and its part of every broadcast over, and does nothing with them."""

    name = "black hole"

    def hears(self, peer: PeerRef, frame: Frame, decoded: Decoded | None) -> bool:
        if decoded is None or not isinstance(decoded[0], Route | Broadcast):
            return True
        self.node.answer(peer, ACCEPTED, decoded[1])
        return False


class FalseRoot(Behaviour):
    """Answers every lookup that comes by as if it were the root of the key."""

    name = "false root"

    def hears(self, peer: PeerRef, frame: Frame, decoded: Decoded | None) -> bool:
        if decoded is None or not isinstance(decoded[0], Route) or decoded[0].trace is None:
            return True
        route = decoded[0]
        self.node.answer(peer, ACCEPTED, decoded[1])
        if route.source.id != self.node.peer.id:
            self.node.say(route.source, LookupReply(route.sequence, decoded[0].trace))
        return False


class Astray(Behaviour):
    """Sends every routed message on to some node or other, wherever its keys are.

    Each only once: where links double what they carry, a message that goes round grows without bound. The links of
    the daemon do not double anything, so that would say nothing about it.
    """

    name = "astray"

    def __init__(self, node: HostileNode) -> None:
        super().__init__(node)
        self._sent: set[tuple[NodeId, int, int]] = set()
        """Only asked for membership."""

    def hears(self, peer: PeerRef, frame: Frame, decoded: Decoded | None) -> bool:
        if decoded is None or not isinstance(decoded[0], Route):
            return True
        route = decoded[0]
        self.node.answer(peer, ACCEPTED, decoded[1])
        identity = (route.source.id, route.epoch, route.sequence)
        others = [other for other in self.node.others() if other.id != peer.id]
        if others and identity not in self._sent and route.hops < limits.HOPS_MAX:
            self._sent.add(identity)
            self.node.ask(self.rng.choice(others), replace(route, hops=route.hops + 1))
        return False
