"""Lies about messages on their way: swallowed, answered in the root's name, sent astray."""

from __future__ import annotations

from dataclasses import replace

from peerd import limits
from peerd.messages import PeerRef
from peerd.overlay.messages import Broadcast, LookupReply, Route, RouteAck
from peerd.sim.hostile.member import Behaviour
from peerd.wire.codec import Decoded
from peerd.wire.frames import Frame

ACCEPTED = RouteAck(True)


class BlackHole(Behaviour):
    """Takes every routed message and its part of every broadcast over, and does nothing with them."""

    name = "black hole"

    def hears(self, peer: PeerRef, frame: Frame, decoded: Decoded | None) -> bool:
        if decoded is None or not isinstance(decoded.message, Route | Broadcast):
            return True
        self.node.answer(peer, ACCEPTED, decoded.correlation)
        return False


class FalseRoot(Behaviour):
    """Answers every lookup that comes by as if it were the root of the key."""

    name = "false root"

    def hears(self, peer: PeerRef, frame: Frame, decoded: Decoded | None) -> bool:
        if decoded is None or not isinstance(decoded.message, Route) or decoded.message.trace is None:
            return True
        route = decoded.message
        self.node.answer(peer, ACCEPTED, decoded.correlation)
        if route.source.id != self.node.peer.id:
            self.node.say(route.source, LookupReply(route.sequence, decoded.message.trace))
        return False


class Astray(Behaviour):
    """Sends every routed message on to some node or other, wherever its keys are."""

    name = "astray"

    def hears(self, peer: PeerRef, frame: Frame, decoded: Decoded | None) -> bool:
        if decoded is None or not isinstance(decoded.message, Route):
            return True
        route = decoded.message
        self.node.answer(peer, ACCEPTED, decoded.correlation)
        others = [other for other in self.node.others() if other.id != peer.id]
        if others and route.hops < limits.HOPS_MAX:
            self.node.ask(self.rng.choice(others), replace(route, hops=route.hops + 1))
        return False
