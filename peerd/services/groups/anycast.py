"""Anycasts: a walk through the tree until a member accepts.

As in "Scalable application-level anycast for highly dynamic groups" (Castro, Druschel, Kermarrec and Rowstron 2003):
the message is routed towards the root until it meets the tree, and goes through it depth first, near children before
far ones and what is below a node before what is above it. So it finds somebody close to its origin first.
"""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from peerd.api import GroupOutcome, Part, Plugin, handles, on_timer
from peerd.ids import NodeId
from peerd.limits import ANYCAST_BODY_BYTES_MAX
from peerd.messages import Message, PeerRef
from peerd.services.groups.config import GroupsConfig
from peerd.services.groups.members import Members, OnOutcome, encoded, group_key
from peerd.services.groups.messages import HOPS_MAX, OUTCOMES, VISITED_MAX, Anycast, AnycastResult, AnycastTaken
from peerd.services.groups.ports import ServiceHost
from peerd.services.groups.state import Group
from peerd.services.groups.tree import Trees

TAKEN: Final = AnycastTaken()
PASS_MESSAGES: Final = 2
"""Messages of others that a step of an anycast counts as: the other node may pass it back, which is answered."""


class Anycaster(Part):
    """The anycasts of one node: those that it started, and those that walk through it."""

    def __init__(self, host: ServiceHost, config: GroupsConfig, trees: Trees, members: Members) -> None:
        self._host = host
        self._config = config
        self._trees = trees
        self._members = members
        self._nonces: dict[int, int] = {}
        """What an answer has to bring back, by the number of the anycast."""

    # Origin

    def start(self, plugin: Plugin, group: str, message: Message, on_outcome: OnOutcome) -> None:
        """Look for a member that accepts. Raises `Bug` or `Unavailable`; see `peerd.api.Groups`."""
        host, key = self._host, group_key(plugin.name, group)
        body = encoded(plugin, message, ANYCAST_BODY_BYTES_MAX)
        number = self._members.await_outcome(plugin.name, on_outcome)
        host.set_timer("anycast", self._config.anycast_timeout, number)
        nonce = self._nonces[number] = host.rng.getrandbits(64)
        anycast = Anycast(key, host.peer, number, message.TYPE_ID, body, (), 0, nonce)
        if key in self._trees.groups:
            self.walk(anycast)
        else:
            host.route(key, anycast)

    @on_timer("anycast")
    def _expired(self, number: int) -> None:
        """No outcome has come in time."""
        del self._nonces[number]
        self._members.settle(number, GroupOutcome.UNKNOWN)

    @handles(AnycastResult)
    def _answered(self, message: AnycastResult, source: PeerRef) -> None:
        """The result has come: a member has accepted, or none has."""
        nonce = self._nonces.get(message.number)
        if nonce is None:
            return
        if nonce != message.nonce:
            self._host.count("peerd_groups_dropped_total", reason="unasked")
            return
        outcome = GroupOutcome(OUTCOMES[message.outcome]) if message.outcome < len(OUTCOMES) else GroupOutcome.UNKNOWN
        peer = source if outcome is GroupOutcome.ACCEPTED else None
        del self._nonces[message.number]
        self._host.cancel_timer("anycast", message.number)
        self._members.settle(message.number, outcome, peer)

    # The walk

    def refuse(self, anycast: Anycast) -> None:
        """Tell the origin that there is no such group."""
        self._end(anycast, GroupOutcome.NO_SUCH_GROUP)

    def intercept(self, anycast: Anycast) -> bool:
        """Whether this node takes over an anycast that passes through on its way to the root.

        If it has been in the tree before, it comes from a part that is cut off. Then a node without a path passes it
        on, since it may be in the same part.
        """
        group = self._trees.groups.get(anycast.group)
        if group is None or (anycast.hops and not group.is_attached):
            return False
        self.walk(anycast)
        return True

    @handles(Anycast)
    def received(self, anycast: Anycast, source: PeerRef) -> AnycastTaken:
        """A node of the tree passes it on to this one."""
        self.walk(anycast)
        return TAKEN

    def walk(self, anycast: Anycast) -> None:
        """Ask the member here, unless it has been asked; then go on."""
        own = self._host.id
        if own in anycast.visited:
            self._go_on(anycast)
            return
        if len(anycast.visited) >= VISITED_MAX:
            self._end(anycast, GroupOutcome.UNKNOWN)
            return
        visiting = replace(anycast, visited=(*anycast.visited, own))

        def answered(accepts: bool) -> None:
            if accepts:
                self._end(visiting, GroupOutcome.ACCEPTED)
            else:
                self._go_on(visiting)

        if not self._members.ask(anycast.group, anycast.type_id, anycast.body, anycast.origin, answered):
            self._go_on(visiting)

    def _go_on(self, anycast: Anycast) -> None:
        """Pass it to the nearest child that was not visited, else to the parent; at the root it ends."""
        group = self._trees.groups.get(anycast.group)
        if anycast.hops >= HOPS_MAX:
            self._end(anycast, GroupOutcome.UNKNOWN)
            return
        anycast = replace(anycast, hops=anycast.hops + 1)
        peer = _next(group, anycast.visited) if group is not None else None
        if peer is not None:
            self._pass(anycast, peer)
        elif group is not None and group.is_root:
            self._end(anycast, GroupOutcome.NOBODY)
        else:
            self._host.route(anycast.group, anycast)  # this node is cut off from the tree, or no longer in it

    def _pass(self, anycast: Anycast, peer: PeerRef) -> None:
        if not self._host.may_pass(peer, PASS_MESSAGES):
            self._host.count("peerd_groups_dropped_total", reason="rate")
            return

        def silent() -> None:
            group = self._trees.groups.get(anycast.group)
            if peer.id in anycast.visited or len(anycast.visited) >= VISITED_MAX:
                # the parent, on the way back: the root will go on
                if group is not None and group.is_root:
                    self._go_on(anycast)
                else:
                    self._host.route(anycast.group, anycast)
            else:
                self._go_on(replace(anycast, visited=(*anycast.visited, peer.id)))

        self._host.request(peer, anycast, self._config.refresh_timeout, lambda reply, source: None, silent)

    def _end(self, anycast: Anycast, outcome: GroupOutcome) -> None:
        if not self._host.may_pass(anycast.origin):  # others say who that is: they must not have it flooded
            self._host.count("peerd_groups_dropped_total", reason="rate")
            return
        self._host.send(anycast.origin, AnycastResult(anycast.number, OUTCOMES.index(outcome.value), anycast.nonce))


def _next(group: Group, visited: tuple[NodeId, ...]) -> PeerRef | None:
    been = set(visited)
    for peer in group.nearest_children():
        if peer.id not in been:
            return peer
    return group.parent
