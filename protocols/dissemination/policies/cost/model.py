"""The cost model: how much fidelity a tree loses (Zhou, Ooi and Tan 2008, section 3.1). Pure arithmetic.

A value that a node holds is false from its change at the source until the change arrives. So a node loses its rate of
updates times their delay, and the delay is that of the links on the way (``d``), and of the nodes on the way (``g``):
what waits, is filtered, and is sent for other children first.

All times are in seconds, all rates in updates a second.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from peerd.ids import NodeId

LOAD_MAX: Final = 0.95
"""Above this share of its time a node's queue grows without end, and equation 5 with it. From here on the model goes on
in a straight line instead: an overloaded tree is very costly, and of two the less overloaded one costs less."""

Delay = Callable[[NodeId, NodeId], float]
"""The one-way latency between two nodes."""


@dataclass(frozen=True, slots=True)
class Costs:
    """What a node is known to need for a message: ``filter_s`` to look whether a child wants it, ``send_s`` to send it.

    ``collect`` and ``decide`` are for the adaptation itself (equation 7): the time that one report of a child or
    grandchild takes, and one possible transformation, each by the time from one to the next (t^e/T_e and t^d/T_d).
    """

    filter_s: float
    send_s: float
    collect: float = 0.0
    decide: float = 0.0


@dataclass(frozen=True, slots=True)
class Branch:
    """A subtree, as the node above it sees it.

    ``rate_max``: of the node in it that wants most, so of what is sent there (``r^m``). ``rate_sum``: of all in it
    (``r^c``): so much is lost for each second of delay on the way there. ``fan_out``: the node's children.
    """

    node: NodeId
    rate_max: float
    rate_sum: float
    fan_out: int = 0


def processing_s(costs: Costs, rate: float, children: Sequence[Branch]) -> float:
    """How long a message takes in a node on its way to a child, in the mean over its children: ``g``, equation 5.

    ``rate``: of the messages that the node gets, those for its children included.
    """
    if not children:
        return 0.0
    each_s = message_s(costs, rate, children)
    busy = rate * each_s
    sent_s = costs.filter_s + costs.send_s + adaptation_s(costs, children)
    return queueing(busy) * each_s + sent_s - each_s / (2 * len(children))


def adaptation_s(costs: Costs, children: Sequence[Branch]) -> float:
    """What the adaptation adds to a message's time in a node: ``t^a``, equation 7, with the counts as printed there.

    It grows with the square of the fan-out, and so limits it.
    """
    count, below = len(children), sum(child.fan_out for child in children)
    possible = below + count * (count - 1) + sum((child.fan_out + 2) * (below - child.fan_out) for child in children)
    return costs.collect * (count + below) + costs.decide * possible


def message_s(costs: Costs, rate: float, children: Iterable[Branch]) -> float:
    """How long a node works on a message: ``t_k``, equations 2 and 3."""
    return sum(costs.filter_s + (costs.send_s * child.rate_max / rate if rate > 0 else 0.0) for child in children)


def queueing(busy: float) -> float:
    """How many times its own work a message waits, of which half is that of its own message: (1 + rho) / 2(1 - rho)."""
    if busy <= LOAD_MAX:
        return (1 + busy) / (2 * (1 - busy))
    at_most = (1 + LOAD_MAX) / (2 * (1 - LOAD_MAX))
    return at_most + (busy - LOAD_MAX) / (1 - LOAD_MAX) ** 2


def step_loss(node: NodeId, delay_s: float, children: Iterable[Branch], delay: Delay) -> float:
    """What all below a node lose by the step from it to its children, when it takes so long with a message."""
    return sum(child.rate_sum * (delay(node, child.node) + delay_s) for child in children)


@dataclass(slots=True)
class Server:
    """A node of a tree. ``rate``: of the updates that it wants itself."""

    id: NodeId
    costs: Costs
    rate: float
    parent: NodeId | None = None
    children: list[NodeId] = field(default_factory=list)
    rate_max: float = 0.0
    rate_sum: float = 0.0
    processing_s: float = 0.0
    branch: Branch = field(init=False)
    """It and all below it, as the node above sees them."""

    def __post_init__(self) -> None:
        self.branch = Branch(self.id, self.rate_max, self.rate_sum, len(self.children))


class CostTree:
    """A whole tree with full knowledge: for building one from known statistics, and to check local decisions with.

    The source's own rate is the rate of the stream.
    """

    def __init__(self, source: NodeId, servers: Iterable[Server], delay: Delay) -> None:
        self.source = source
        self.servers = {server.id: server for server in servers}
        self.delay = delay

    def attach(self, node: NodeId, parent: NodeId) -> None:
        """Put a node (with all below it) under another one; the figures are old until `refresh`."""
        server = self.servers[node]
        if server.parent is not None:
            self.servers[server.parent].children.remove(node)
        server.parent = parent
        self.servers[parent].children.append(node)

    def refresh(self) -> None:
        """Work out every node's figures."""
        for id in self.bottom_up():
            self.refresh_node(self.servers[id])

    def refresh_node(self, server: Server) -> None:
        """Work out one node's figures from its children's."""
        branches = [self.servers[child].branch for child in server.children]
        server.rate_max = max([server.rate, *(branch.rate_max for branch in branches)])
        server.rate_sum = server.rate + sum(branch.rate_sum for branch in branches)
        if server.id == self.source:
            server.rate_sum -= server.rate  # it has every value at once
        server.processing_s = processing_s(server.costs, server.rate_max, branches)
        server.branch = Branch(server.id, server.rate_max, server.rate_sum, len(branches))

    def bottom_up(self) -> list[NodeId]:
        """All nodes that hang on the source, each after those below it."""
        order = [self.source]
        for id in order:
            order.extend(self.servers[id].children)
        return order[::-1]

    def loss(self) -> float:
        """The loss of fidelity of all nodes together: the sum of equation 6 (of 12 for several objects)."""
        total, delays = 0.0, {self.source: 0.0}
        for id in reversed(self.bottom_up()):
            server = self.servers[id]
            for child in server.children:
                delays[child] = delays[id] + self.delay(id, child) + server.processing_s
                total += self.servers[child].rate * delays[child]
        return total
