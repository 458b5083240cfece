"""A lab's `DisseminationNet` in tests: members that go, and what no run may have."""

from __future__ import annotations

from protocols.dissemination.front.lab.net import DeliveryFaults, DisseminationNet


def leave(net: DisseminationNet, number: int) -> None:
    """A member goes, as it should."""
    peer = net.peers[number]
    node = net.nodes[peer.id]
    successor = node.policy.successor()
    for child in node.children():
        to = net.nodes[node.producer.id if node.parent is None else node.parent.id]
        if child.peer.id != successor and successor is not None:
            to = net.nodes[successor]
        net.nodes[child.peer.id].member.move_to(to.me, net.now)
    net.run(net.now)
    node.member.leave(net.now)
    del net.nodes[peer.id]
    net.run(net.now)


def kill(net: DisseminationNet, number: int) -> None:
    """A member dies, and those that it had links with notice."""
    peer = net.peers[number]
    del net.nodes[peer.id]
    for node in net.nodes.values():
        node.member.gone(peer.id, net.now)
        node.look_at_children()
    net.run(net.now)


def depth(net: DisseminationNet) -> float:
    """The mean depth of members, weighted with what they had."""
    return sum(node.depths for node in net.members()) / max(1, sum(node.had for node in net.members()))


def check(net: DisseminationNet, fan_out: int = 6) -> None:
    """Assert that every member has had what it wanted, each item once and in order; and the tree is one."""
    found = net.faults()
    assert found == DeliveryFaults(pairs=found.pairs)
    for node in net.nodes.values():
        assert not node.losses, f"{node.me}"
        assert len(node.member.down.children) <= fan_out
        node.member.validate()
