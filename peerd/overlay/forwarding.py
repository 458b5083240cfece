"""Routed messages, hop by hop.

Each hop acknowledges to the one before it; silence means suspicion and another way. One message may carry several keys
(multicast): at each hop they are grouped by next hop, one copy a link.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from msgspec.structs import replace

from peerd import limits
from peerd.api import Part, Priority, handles, on_timer
from peerd.errors import Bug, Unavailable
from peerd.ids import NodeId
from peerd.messages import Message, PeerRef, encode_body
from peerd.overlay.dedupe import Window
from peerd.overlay.membership import Membership
from peerd.overlay.messages import KEYS_MAX, LookupProbe, Route, RouteAck, Trace, TraceHop
from peerd.overlay.routing import Decision, Step, next_step, next_steps
from peerd.overlay.state import OverlayState
from peerd.overlay.vouching import Vouch

HELD_MAX: Final = 1024
VOUCH_DOUBT_S: Final = 1.0
"""While a message waits because of a vouch older than this, the neighbour that gave the vouch is asked again."""
DETOURS_MAX: Final = 2
"""A message is sent at most so often through a neighbour that vouches for a closer peer; then it waits instead."""
ACCEPTED: Final = RouteAck(True)
REFUSED: Final = RouteAck(False)
NOT_ROOT: Final = RouteAck(False, not_root=True)


@dataclass(slots=True)
class Transit:
    """A routed message at this node, until the next hop has taken it over."""

    route: Route
    deadline: float
    previous: PeerRef
    """The node that sent it here; this node itself where the message starts."""
    excluded: set[NodeId] = field(default_factory=set)
    """Nodes that did not take it. Never iterated over: the order of a set must not decide anything."""
    is_upcalled: bool = False
    """The plugin that it belongs to has been asked about its keys here."""
    is_tried: bool = False
    """This node has tried to pass it on before."""


def encoded(message: Message) -> bytes:
    """The body that travels inside an envelope. Raises `Bug` when it is over `limits.ROUTED_BODY_BYTES_MAX`."""
    body = encode_body(message)
    if len(body) > limits.ROUTED_BODY_BYTES_MAX:
        name, size = type(message).__name__, len(body)
        raise Bug(f"a routed {name} of {size} bytes is over the cap of {limits.ROUTED_BODY_BYTES_MAX}")
    return body


def _may_be_traced(route: Route) -> bool:
    """Whether it is a lookup, and nothing else is ever traced: a trace grows, and the message must stay within its cap.

    Whoever passed it on may not have looked, so it is dropped and its sender is not blamed.
    """
    is_lookup = route.type_id == LookupProbe.TYPE_ID and len(route.keys) == 1
    return is_lookup and len(route.body) <= LookupProbe.BYTES_MAX


class Forwarder(Part):
    """Originates, forwards, holds and delivers routed messages of one node."""

    def __init__(
        self,
        state: OverlayState,
        membership: Membership,
        window: Window,
        answer_lookup: Callable[[PeerRef, int, Trace], None],
    ) -> None:
        self.state = state
        self._host = state.host
        self._membership = membership
        self.window = window
        self._answer_lookup = answer_lookup
        self._held: dict[int, Transit] = {}
        self._holds = 0

    @property
    def held(self) -> int:
        """How many messages wait for a next hop."""
        return len(self._held)

    def originate(self, keys: Iterable[NodeId], message: Message) -> None:
        """Send a plugin's message towards the roots of ``keys``."""
        body = encoded(message)
        distinct = tuple(dict.fromkeys(keys))
        for first in range(0, len(distinct), KEYS_MAX):
            self._start(distinct[first : first + KEYS_MAX], message.TYPE_ID, body, self.state.next_sequence(), None)

    def originate_lookup(self, key: NodeId, sequence: int) -> None:
        """Send a traced probe; the root answers with `LookupReply`."""
        self._start((key,), LookupProbe.TYPE_ID, encode_body(LookupProbe()), sequence, ())

    def _start(self, keys: tuple[NodeId, ...], type_id: int, body: bytes, sequence: int, trace: Trace | None) -> None:
        host = self._host
        route = Route(keys, type_id, body, host.peer, host.boot_epoch, sequence, 0, trace)
        self._advance(Transit(route, host.now() + self.state.config.route_deadline, host.peer))

    @handles(Route)
    def received(self, route: Route, source: PeerRef) -> RouteAck:
        """Take over a message from the hop before, or refuse it when not in the ring.

        Each key makes as much work as a message of its own, here and on the way to its root, and costs the sender as
        much of its message rate.
        """
        if len(route.keys) > 1:
            self._host.charge(source, len(route.keys) - 1)
        state = self.state
        if not state.is_ready or state.is_leaving:
            return REFUSED
        if not state.may_serve and any(state.is_root(key) for key in route.keys):
            self._host.count("peerd_overlay_not_root_total")
            return NOT_ROOT
        if route.hops >= limits.HOPS_MAX:
            self._drop("hops", len(route.keys))
            return ACCEPTED
        if route.trace is not None and not _may_be_traced(route):
            self._drop("trace", len(route.keys))
            return ACCEPTED
        deadline = self._host.now() + state.config.route_deadline
        self._advance(Transit(route, deadline, source))
        return ACCEPTED

    @on_timer("route_hold")
    def _resume(self, number: int) -> None:
        """The pause of a held message is over: every hop may be tried again."""
        transit = self._held.pop(number)
        transit.excluded.clear()
        self._advance(transit)

    # One node's work on a message

    def _advance(self, transit: Transit) -> None:
        state = self.state
        if state.is_leaving or self._host.now() > transit.deadline:
            self._drop("deadline", len(transit.route.keys))
            return
        excluded = transit.excluded.union(state.suspects) if state.suspects else transit.excluded
        groups: dict[tuple[NodeId, bool], tuple[PeerRef, list[NodeId]]] = {}
        waiting: list[NodeId] = []
        decisions = next_steps(transit.route.keys, state.leaves, state.table, excluded, state.way_s)
        for key, (step, peer) in zip(transit.route.keys, decisions, strict=True):
            is_detour = False
            if step is Step.FORWARD and peer is not None and self._is_sent_back(key, transit, peer):
                excluded_too = {*transit.excluded, *state.suspects, peer.id}
                step, peer = next_step(key, state.leaves, state.table, excluded_too, state.way_s)
            if step is Step.DELIVER:
                step, peer = self._step_at_root(key, transit, excluded)
                is_detour = peer is not None
            if step is Step.WAIT or not state.is_ready:
                waiting.append(key)
                continue
            hop: PeerRef | None = self._host.peer if peer is None else peer
            if not transit.is_upcalled and hop is not None:
                hop = self._upcall(transit, key, hop)
            if hop is None:
                continue
            if hop.id == state.own:
                self._deliver(transit.route, key)
            else:
                groups.setdefault((hop.id, is_detour), (hop, []))[1].append(key)
        for (_, is_detour), (hop, keys) in groups.items():
            self._send(hop, transit, tuple(keys), is_detour=is_detour)
        if waiting:
            self._hold(transit, tuple(waiting))

    def _is_sent_back(self, key: NodeId, transit: Transit, hop: PeerRef) -> bool:
        """Whether the table would return a message to the neighbour that sent it here because of this node's vouch.

        Whom this node vouches for may be the last of its leaf set, with the key beyond: then it does not go by its leaf
        set, and the neighbour is the entry of its table. Whoever is closest of all others is the one that was meant.
        """
        is_from_detour = transit.route.detours > 0 and not transit.is_tried
        return is_from_detour and hop.id == transit.previous.id and not self.state.leaves.covers(key)

    def _step_at_root(self, key: NodeId, transit: Transit, excluded: Container[NodeId]) -> Decision:
        """This node knows nobody closer that it can reach: deliver, when it may; pass on, when others can reach one."""
        vouch = self._vouch_for_closer(key)
        if vouch is None:
            return self._sure_or_wait(key)
        voucher = vouch.voucher
        came_from_voucher = not transit.is_tried and voucher.id == transit.previous.id
        if voucher.id in excluded or came_from_voucher or transit.route.detours >= DETOURS_MAX:
            if self._host.now() - vouch.at > VOUCH_DOUBT_S:
                self._membership.exchange(voucher)  # it may not see that peer itself any more
            return Decision(Step.WAIT)
        return Decision(Step.FORWARD, voucher)

    def _vouch_for_closer(self, key: NodeId) -> Vouch | None:
        """A neighbour's word that it reaches somebody closer to the key, whom this node cannot reach."""
        state = self.state
        return state.vouches.owner_beyond(key, state.own, self._host.now()) if len(state.vouches) else None

    def _sure_or_wait(self, key: NodeId) -> Decision:
        """Closest as far as anybody says: deliver, unless the lease has lapsed or somebody closer is coming back."""
        is_sure = self.state.may_serve and not self._membership.is_returning_beyond(key)
        return Decision(Step.DELIVER if is_sure else Step.WAIT)

    def next_hop(self, key: NodeId) -> PeerRef | None:
        """Where `_advance` would send a new message to ``key`` now; ``None``: it would be delivered here.

        Raises `Unavailable` when it would be held.
        """
        hops = self.next_hops((key,))
        if key not in hops:
            raise Unavailable("not in the ring, or who the root is is being found out")
        return hops[key]

    def next_hops(self, keys: Sequence[NodeId]) -> dict[NodeId, PeerRef | None]:
        """Where `_advance` would send a new message to all these keys; a key that it would hold is left out."""
        state = self.state
        if not keys or not state.is_ready or state.is_leaving:
            return {}
        decisions = next_steps(keys, state.leaves, state.table, state.suspects, state.way_s)
        found = ((key, self._unless_held(key, *decision)) for key, decision in zip(keys, decisions, strict=True))
        return {key: peer for key, (step, peer) in found if step is not Step.WAIT}

    def _unless_held(self, key: NodeId, step: Step, peer: PeerRef | None) -> Decision:
        """What becomes of a decision to deliver here, given what neighbours vouch for."""
        if step is Step.DELIVER:
            vouch = self._vouch_for_closer(key)
            if vouch is None:
                step, peer = self._sure_or_wait(key)
            elif vouch.voucher.id in self.state.suspects:
                step = Step.WAIT
            else:
                step, peer = Step.FORWARD, vouch.voucher
        return Decision(step, peer)

    def _upcall(self, transit: Transit, key: NodeId, hop: PeerRef) -> PeerRef | None:
        route = transit.route
        if route.type_id == LookupProbe.TYPE_ID:
            return hop
        return self._host.upcalls.forward(
            key, route.type_id, route.body, route.source, hop, route.hops, transit.previous
        )

    def _deliver(self, route: Route, key: NodeId) -> None:
        if route.type_id == LookupProbe.TYPE_ID:
            self._answer_lookup(route.source, route.sequence, route.trace or ())
        elif self.window.is_new((route.source.id, route.epoch, route.sequence, key)):
            self._host.upcalls.deliver(key, route.type_id, route.body, route.source)

    def _send(self, hop: PeerRef, transit: Transit, keys: tuple[NodeId, ...], *, is_detour: bool) -> None:
        state, route = self.state, transit.route
        is_foreign = transit.previous.id != state.own
        if is_foreign and not state.transit.may_pass(hop.id, len(keys), self._host.now()):
            self._drop("rate", len(keys))
            return
        trace = route.trace
        if trace is not None:
            trace = (*trace, TraceHop(hop, state.proximity.rtt_s(hop.id)))[-limits.HOPS_MAX :]
        sent_at = self._host.now()
        part = Transit(
            route if keys == route.keys else replace(route, keys=keys),
            transit.deadline,
            transit.previous,
            transit.excluded,
            True,
        )

        def answered(reply: Message, source: PeerRef) -> None:
            if isinstance(reply, RouteAck) and reply.accepted:
                state.answered(source, sent_at)
            else:
                self._reroute(part, hop)

        def silent() -> None:
            self._membership.suspect(hop, "ack")
            self._reroute(part, hop)

        message = Route(
            keys,
            route.type_id,
            route.body,
            route.source,
            route.epoch,
            route.sequence,
            route.hops + 1,
            trace,
            route.detours + is_detour,
        )
        self._host.request(hop, message, state.timeout_s(hop), answered, silent, Priority.NORMAL)

    def _reroute(self, part: Transit, hop: PeerRef) -> None:
        self._host.count("peerd_overlay_reroutes_total")
        self.state.table.drop_spare(hop.id)
        excluded = {*part.excluded, hop.id}
        self._advance(Transit(part.route, part.deadline, part.previous, excluded, part.is_upcalled, True))

    def _hold(self, transit: Transit, keys: tuple[NodeId, ...]) -> None:
        if len(self._held) >= HELD_MAX:
            self._drop("held", len(keys))
            return
        self._holds += 1
        route = transit.route if keys == transit.route.keys else replace(transit.route, keys=keys)
        self._held[self._holds] = Transit(route, transit.deadline, transit.previous, set(), transit.is_upcalled, True)
        self._host.set_timer("route_hold", self.state.config.hold_retry, self._holds)

    def _drop(self, reason: str, keys: int) -> None:
        self._host.count("peerd_overlay_routes_dropped_total", float(keys), reason=reason)
