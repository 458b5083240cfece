"""Whether a node may be the root of a key: what others claim about a cell counts only if its root says it.

Where a node is on the ring follows from its certificate, so nobody can put himself next to a key on purpose.
"""

from __future__ import annotations

from typing import Final

from peerd.api import Host
from peerd.errors import Unavailable
from peerd.ids import RING, NodeId, ring_distance

ROOT_SPACINGS: Final = 16
"""The root of a key is within so many mean distances between nodes: the next one is farther with chance e^-32."""


def may_be_root(host: Host, node: NodeId, key: NodeId) -> bool:
    """Whether a node is near enough to a key, and this node knows of nobody who is nearer.

    It may know of a newcomer, or of a node that has just died, which the root itself has not heard of. So whoever is
    told no has to be asked again later.
    """
    if not is_near(host, node, key):
        return False
    try:
        hop = host.next_hop(key)
    except Unavailable:
        return True
    nearest = host.id if hop is None else hop.id
    return ring_distance(key, node) <= ring_distance(key, nearest)


def is_near(host: Host, node: NodeId, key: NodeId) -> bool:
    """Whether a node is as near to a key as its root has to be, whoever else is there."""
    return ring_distance(key, node) * host.estimated_ring_size() <= ROOT_SPACINGS * RING
