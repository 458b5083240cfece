"""One simulated ring for all ways to misbehave: it is made once, and each is tried in a branch of it."""

from __future__ import annotations

from peerd.sim.hostile.member import Behaviour, HostileNode, Party


def misbehave(party: Party, index: int, kind: type[Behaviour]) -> None:
    """Have a node misbehave in this way from now on. Nobody in the party has misbehaved yet."""
    assert not party.is_active
    node = party.simulation.nodes[index].node
    assert isinstance(node, HostileNode)
    party.behaviours[index] = [kind]
    node.behaviours = [kind(node)]
    party.begin()
