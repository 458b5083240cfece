"""Soft state: children ask their parents to be kept, and so learn whether the parent lives.

One question carries all groups under one parent. A multicast from the parent is as good as an answer.
"""

from __future__ import annotations

from typing import Final

from peerd.api import Part, handles
from peerd.ids import NodeId
from peerd.messages import Message, PeerRef
from peerd.services.groups.config import GroupsConfig
from peerd.services.groups.messages import STATES_MAX, Refresh, Refreshed, TreeState
from peerd.services.groups.ports import ServiceHost
from peerd.services.groups.state import Group
from peerd.services.groups.stream import missed
from peerd.services.groups.tree import Trees

TICK_JITTER: Final = 0.2
EARLY: Final = 0.5
"""A parent is asked when it has been silent for this part of the interval: the next chance is an interval away."""


class Refresher(Part):
    """Periodic care of the trees of one node."""

    def __init__(self, host: ServiceHost, config: GroupsConfig, trees: Trees) -> None:
        self._host = host
        self._config = config
        self._trees = trees
        self._is_ticking = False

    def wake(self) -> None:
        """Start the timer, as there is a tree to care for."""
        if not self._is_ticking:
            self._is_ticking = True
            self._host.set_timer("tick", self._host.rng.uniform(0.0, self._config.refresh_interval))

    def tick(self) -> None:
        """Drop what has lapsed, ask silent parents, look for other parents where one has lost its way."""
        trees = self._trees
        self._is_ticking = bool(trees.groups)
        if not self._is_ticking:
            return
        jitter = self._host.rng.uniform(1.0 - TICK_JITTER, 1.0 + TICK_JITTER)
        self._host.set_timer("tick", self._config.refresh_interval * jitter)
        now = self._host.now()
        for group in list(trees.groups.values()):
            for node_id in [key for key, child in group.children.items() if child.expires_at < now]:
                trees.drop_child(group, node_id)
        for group in [each for each in trees.groups.values() if each.heir_until is not None and each.heir_until < now]:
            group.heir_until = None
            trees.prune(group)
        for group in list(trees.groups.values()):  # groups that had only lapsed children are gone by now
            if group.parent is not None and not group.path and now - group.lost_at > self._config.orphan_timeout:
                trees.seek(group)
        trees.check_roots()
        self._ask_parents(now)

    def _ask_parents(self, now: float) -> None:
        config = self._config
        due: dict[NodeId, tuple[PeerRef, list[NodeId]]] = {}
        for group in self._trees.groups.values():
            if group.parent is None:
                continue
            is_silent = now - group.heard_at > EARLY * config.refresh_interval
            if is_silent or now - group.refreshed_at > config.lease / 3:
                due.setdefault(group.parent.id, (group.parent, []))[1].append(group.id)
        for parent, group_ids in due.values():
            for first in range(0, len(group_ids), STATES_MAX):
                self._ask(parent, tuple(group_ids[first : first + STATES_MAX]), 1)

    def _ask(self, parent: PeerRef, group_ids: tuple[NodeId, ...], attempt: int) -> None:
        sent_at = self._host.now()

        def answered(reply: Message, source: PeerRef) -> None:
            if isinstance(reply, Refreshed):
                for state in reply.states:
                    self._refreshed(state, source)

        def silent() -> None:
            unheard = [group for group in self._under(parent, group_ids) if group.heard_at <= sent_at]
            if attempt < self._config.refresh_attempts and unheard:
                self._ask(parent, tuple(group.id for group in unheard), attempt + 1)
                return
            for group in unheard:
                self._trees.lose_parent(group, "silent")

        question = Refresh(group_ids, self._host.rtt(parent), self._host.coordinate)
        self._host.request(parent, question, self._config.refresh_timeout, answered, silent)

    def _under(self, parent: PeerRef, group_ids: tuple[NodeId, ...]) -> list[Group]:
        groups = (self._trees.groups.get(group_id) for group_id in group_ids)
        return [group for group in groups if group is not None and group.is_child_of(parent)]

    def _refreshed(self, state: TreeState, parent: PeerRef) -> None:
        for group in self._under(parent, (state.group,)):
            if not state.is_child:
                self._trees.lose_parent(group, "forgotten")
            elif not state.path or state.path[-1] == parent.id:
                group.refreshed_at = self._host.now()
                self._trees.follow(group, parent, state.path)
                if group.promised is not None and missed(group.position, group.promised):
                    self._trees.catch_up(group)
                group.promised = state.position

    @handles(Refresh)
    def asked(self, message: Refresh, source: PeerRef) -> Refreshed:
        """Answer a child that wants to be kept."""
        rtt_s = self._distance_s(message, source)
        return Refreshed(tuple(self._state(group_id, source, rtt_s) for group_id in message.groups))

    def _distance_s(self, message: Refresh, child: PeerRef) -> float | None:
        """Return the round trip that either side has measured, else what the coordinates predict, seconds."""
        if message.rtt_s is not None:
            return message.rtt_s
        rtt_s = self._host.estimated_rtt(child)
        if rtt_s is None and message.coordinate is not None:
            rtt_s = self._host.coordinate.rtt_s(message.coordinate)
        return rtt_s

    def _state(self, group_id: NodeId, source: PeerRef, rtt_s: float | None) -> TreeState:
        group = self._trees.groups.get(group_id)
        child = group.children.get(source.id) if group is not None else None
        if group is None or child is None:
            return TreeState(group_id, False, (), None)
        child.expires_at = self._host.now() + self._config.lease
        child.rtt_s = rtt_s
        return TreeState(group_id, True, group.path, group.position)
