"""The way of a READ in the latency space (section 3.4): to a candidate cache near the reader, and on to the owner.

It is asked for and answered as over T (`placing.along`), and only goes another way: one question for the owners of one
candidate, which answers what it caches, and has the owners answer the reader directly what it does not. Whether it
caches, it decides itself (section 4.2.5); the owner provides, as in chapter 2.
"""

from __future__ import annotations

from collections.abc import Sequence

from peerd.api import Host
from peerd.ids import NodeId
from peerd.messages import PeerRef
from protocols.measurement.directory import Directory
from protocols.measurement.placing.locator import SquareMap


class SquareRoutes:
    """What one node knows of them: from what nodes say of themselves, so that it costs no message."""

    def __init__(self, host: Host, directory: Directory) -> None:
        self._host, self._directory = host, directory
        self._map = SquareMap({})

    @property
    def map(self) -> SquareMap:
        """Where nodes are now."""
        spots, regions = self._directory.spots, self._directory.regions
        if self._map.spots is not spots or self._map.regions is not regions:
            self._map = SquareMap(spots, regions)
        return self._map

    def branch(self, owner: NodeId, path: Sequence[NodeId]) -> PeerRef | None:
        """Where a question about an owner goes on, by the nodes that had it, this one the last; ``None``: the reader is
        to ask the owner itself."""
        if len(path) == 1:
            candidate = self._candidate(owner)
            return None if candidate is None else self._directory.peer(candidate)
        peer = self._directory.peer(owner)
        if peer is None:  # a node without clients of its own does not know the others, and learns who they are
            self._directory.refreshed(lambda: None)
        return peer

    def _candidate(self, owner: NodeId) -> NodeId | None:
        candidate = self.map.closest_candidate(self._host.id, owner)
        is_lost = any(self._directory.is_lost(node) for node in (owner, candidate) if node is not None)
        return None if is_lost or candidate == self._host.id else candidate

    def may_answer(self, node: NodeId, owner: NodeId) -> bool:
        """Whether a node was asked about that owner, or is it."""
        return node in (owner, self._candidate(owner))
