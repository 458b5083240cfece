"""The way of a READ in the latency space (section 3.4): to a candidate cache near the reader, and on to the owner.

It is asked for and answered as over T (`placing.along`), and only goes another way: one question for the owners of one
candidate, which answers what it caches, and has the owners answer the reader directly what it does not. Whether it
caches, it decides itself (section 4.2.5); the owner provides, as in chapter 2.
"""

from __future__ import annotations

from typing import Final

from peerd.api import Host
from peerd.ids import NodeId
from peerd.messages import PeerRef
from protocols.measurement.directory import Directory
from protocols.measurement.placing.locator import SquareMap

LOST_S: Final = 60.0
"""So long is a node that was not to be reached asked for nothing by way of others, and no candidate."""


class SquareRoutes:
    """What one node knows of them: from what nodes say of themselves, so that it costs no message."""

    def __init__(self, host: Host, directory: Directory) -> None:
        self._host, self._directory = host, directory
        self._map = SquareMap({})
        self._lost: dict[NodeId, float] = {}

    @property
    def map(self) -> SquareMap:
        """Where nodes are now."""
        if self._map.spots is not self._directory.spots:
            self._map = SquareMap(self._directory.spots)
        return self._map

    def branch(self, owner: NodeId, came_from: NodeId | None) -> PeerRef | None:
        """Where a question about an owner goes on; ``None``: the reader is to ask the owner itself."""
        if came_from is None:
            candidate = self._candidate(owner)
            return None if candidate is None else self._directory.peer(candidate)
        peer = self._directory.peer(owner)
        if peer is None:  # a node without clients of its own does not know the others, and learns who they are
            self._directory.refreshed(lambda: None)
        return peer

    def _candidate(self, owner: NodeId) -> NodeId | None:
        candidate, now = self.map.closest_candidate(self._host.id, owner), self._host.now()
        is_lost = any(self._lost.get(node, now) > now for node in (owner, candidate) if node is not None)
        return None if is_lost or candidate == self._host.id else candidate

    def may_answer(self, node: NodeId, owner: NodeId) -> bool:
        """Whether a node was asked about that owner, or is it."""
        return node in (owner, self._candidate(owner))

    def lost(self, node: NodeId) -> None:
        """It was not to be reached."""
        now = self._host.now()
        self._lost = {each: until for each, until in self._lost.items() if until > now} | {node: now + LOST_S}
