"""Broadcast to every live node, by delegating arcs of the ring.

A node that is responsible for the arc ``(after, until)`` splits it among the nodes that it knows in there: each gets
the stretch from itself to the next one. Leaf sets make the split exact near a node, routing tables make it logarithmic
far away, and a hole in a table costs a hop, never a node (unlike prefix trees). El-Ansary et al. (2003) do so on Chord.

When a delegate is silent or not in the ring, its stretch goes to the live node nearest before it, which knows who is
next: nobody behind a dead delegate is lost. That node tries the delegate itself, when it is a member of its leaf set:
who sent before may have had a link to an earlier life of it, or lost a message. Those behind it do not wait for that:
if it lives, one of them hears it twice.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from msgspec.structs import replace

from peerd import limits
from peerd.api import Part, Priority, handles, on_timer
from peerd.ids import RING, NodeId, clockwise_distance
from peerd.messages import Message, PeerRef
from peerd.overlay.dedupe import BROADCAST_KEY, MessageIdentity, Window
from peerd.overlay.forwarding import ACCEPTED, REFUSED, encoded
from peerd.overlay.membership import Membership
from peerd.overlay.messages import Broadcast, RouteAck
from peerd.overlay.state import OverlayState

HELD_MAX: Final = 256


@dataclass(slots=True)
class HeldStretch:
    """A stretch that is kept because no node could take it over yet."""

    broadcast: Broadcast
    deadline: float


class Broadcaster(Part):
    """Broadcasts of one node: its own, and the arcs that others delegate to it."""

    def __init__(self, state: OverlayState, membership: Membership, window: Window) -> None:
        self.state = state
        self._host = state.host
        self._membership = membership
        self._window = window
        self._held: dict[int, HeldStretch] = {}
        self._holds = 0

    def originate(self, message: Message) -> None:
        """Deliver here and cover the whole ring; held until this node is ready."""
        host, own = self._host, self.state.own
        body, sequence = encoded(message), self.state.next_sequence()
        broadcast = Broadcast(message.TYPE_ID, body, host.peer, host.boot_epoch, sequence, own, own, 0)
        deadline = host.now() + self.state.config.route_deadline
        if self.state.is_ready:
            self._take(broadcast, deadline)
        else:
            self._hold(broadcast, deadline)

    @handles(Broadcast)
    def received(self, broadcast: Broadcast, source: PeerRef) -> RouteAck:
        """Take over an arc, or refuse when not in the ring."""
        if not self.state.is_ready or self.state.is_leaving:
            return REFUSED
        self._take(broadcast, self._host.now() + self.state.config.route_deadline)
        return ACCEPTED

    @on_timer("broadcast_hold")
    def _resume(self, number: int) -> None:
        """The pause of a held stretch is over."""
        held = self._held.pop(number)
        if self._host.now() > held.deadline:
            self._drop("broadcast_deadline")
        elif self.state.is_ready:
            self._take(held.broadcast, held.deadline)
        else:
            self._hold(held.broadcast, held.deadline)

    def _take(self, broadcast: Broadcast, deadline: float) -> None:
        own = self.state.own
        identity: MessageIdentity = (broadcast.source.id, broadcast.epoch, broadcast.sequence, BROADCAST_KEY)
        covered = self._window.get(identity)
        if covered is None:
            self._window.put(identity)
            self._host.upcalls.deliver(own, broadcast.type_id, broadcast.body, broadcast.source)
        if broadcast.hops >= limits.HOPS_MAX:
            self._drop("hops")
        elif broadcast.after != own:
            self._recover(broadcast, deadline, frozenset())
        else:
            reach = clockwise_distance(own, broadcast.until) or RING
            if covered is None or reach > covered:
                self._window.put(identity, reach)
                self._split(broadcast, deadline, frozenset())

    def _known_between(self, after: NodeId, until: NodeId, excluded: frozenset[NodeId]) -> list[PeerRef]:
        """Usable known peers strictly inside an arc, clockwise.

        A suspected entry of the table is left out, since whoever is before it covers for it; a suspected member of the
        leaf set is not, since it may live, and nobody else would tell it.
        """
        suspects = self.state.suspects
        width = clockwise_distance(after, until) or RING
        found: dict[int, PeerRef] = {}
        for peer in self.state.leaves:
            found[clockwise_distance(after, peer.id)] = peer
        for peer in self.state.table:
            if peer.id not in suspects:
                found[clockwise_distance(after, peer.id)] = peer
        usable = (distance for distance, peer in found.items() if distance < width and peer.id not in excluded)
        return [found[distance] for distance in sorted(usable) if distance]

    def _split(self, broadcast: Broadcast, deadline: float, excluded: frozenset[NodeId]) -> None:
        """Give every known node in the arc the stretch up to the next one.

        Nobody lives before the first of them: it is the next live node after the arc's start, as leaf sets say.
        """
        delegates = self._known_between(broadcast.after, broadcast.until, excluded)
        for index, peer in enumerate(delegates):
            until = delegates[index + 1].id if index + 1 < len(delegates) else broadcast.until
            self._delegate(peer, replace(broadcast, after=peer.id, until=until), deadline, excluded)

    def _recover(self, broadcast: Broadcast, deadline: float, excluded: frozenset[NodeId]) -> None:
        """Cover the arc of a silent delegate: exactly, when it is in our leaf set; else through who is nearer to it."""
        leaves, own = self.state.leaves, self.state.own
        if leaves.reaches_clockwise(broadcast.after):
            head = leaves.get(broadcast.after)
            is_exact = leaves.is_complete and not self.state.candidates
            is_tried = head is not None and head.id not in excluded
            if head is not None and is_tried:
                self._delegate(head, broadcast, deadline, excluded, is_alone=is_exact)
                excluded |= {head.id}
            if is_exact:
                self._split(broadcast, deadline, excluded)
            elif not is_tried:
                self._hold(broadcast, deadline)  # under repair: the next one that it knows may not be the next one
            return
        before = self._known_between(own, broadcast.after, excluded.union(self.state.suspects))
        if before:
            self._delegate(before[-1], broadcast, deadline, excluded)
        else:
            self._hold(broadcast, deadline)

    def _delegate(
        self,
        peer: PeerRef,
        broadcast: Broadcast,
        deadline: float,
        excluded: frozenset[NodeId],
        *,
        is_alone: bool = False,
    ) -> None:
        """``is_alone``: others care for those behind the delegate, if it is silent."""
        host, state = self._host, self.state
        if broadcast.source.id != state.own and not state.transit.may_pass(peer.id, 1, host.now()):
            self._drop("rate")
            return
        sent_at = host.now()

        def lost() -> None:
            if is_alone:
                return
            host.count("peerd_overlay_reroutes_total")
            if host.now() > deadline:
                self._drop("broadcast_deadline")
            elif state.is_ready:
                self._recover(broadcast, deadline, excluded | {peer.id})
            else:
                self._hold(broadcast, deadline)

        def silent() -> None:
            self._membership.suspect(peer, "ack")
            if not is_alone and peer.id in state.leaves and state.is_ready:
                # It may live, and nobody else would tell it.
                self._delegate(peer, broadcast, deadline, excluded, is_alone=True)
            lost()

        def answered(reply: Message, source: PeerRef) -> None:
            if isinstance(reply, RouteAck) and reply.accepted:
                state.answered(source, sent_at)
            else:
                lost()

        if not is_alone and peer.id in state.suspects and peer.id in state.leaves:
            self._delegate(peer, broadcast, deadline, excluded, is_alone=True)
            lost()
            return
        message = replace(broadcast, hops=broadcast.hops + 1)
        host.request(peer, message, state.timeout_s(peer), answered, silent, Priority.NORMAL)

    def _hold(self, broadcast: Broadcast, deadline: float) -> None:
        if len(self._held) >= HELD_MAX:
            self._drop("held")
            return
        self._holds += 1
        self._held[self._holds] = HeldStretch(broadcast, deadline)
        self._host.set_timer("broadcast_hold", self.state.config.hold_retry, self._holds)

    def _drop(self, reason: str) -> None:
        self._host.count("peerd_overlay_routes_dropped_total", 1.0, reason=reason)
