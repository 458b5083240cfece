"""What a checker is, and what it can see."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from peerd.ids import NodeId
from peerd.messages import Message, PeerRef
from peerd.node.node import Node
from peerd.telemetry.schema import Event

if TYPE_CHECKING:
    from peerd.sim.simulation import Place, Simulation


@dataclass(frozen=True, slots=True)
class Delivery:
    """A routed or broadcast message that reached a plugin of ``node``."""

    node: PeerRef
    key: NodeId
    type_id: int
    source: PeerRef
    body: bytes = b""


class Watcher:
    """Sees what nodes do. Whatever is not overridden costs nothing.

    A method that returns a text ends the run with it.
    """

    name: ClassVar[str] = "watcher"
    watched_messages: ClassVar[tuple[type[Message], ...]] = ()
    """What `handled` is told of."""

    def booted(self, simulation: Simulation, place: Place, node: Node) -> str | None:
        """A new incarnation is about to start."""

    def delivered(self, simulation: Simulation, delivery: Delivery) -> str | None:
        """A message is delivered."""

    def passed(self, simulation: Simulation, place: Place, type_id: int, body: bytes, hops: int) -> str | None:
        """A routed message is at this node, ``hops`` after its source; it is delivered or forwarded next."""

    def handled(self, simulation: Simulation, place: Place, message: Any, source: PeerRef) -> str | None:
        """One of the ``watched_messages`` arrived, and is handled next."""

    def sent(self, simulation: Simulation, place: Place, message: Message) -> str | None:
        """A node sends a message, a request or an answer."""

    def emitted(self, simulation: Simulation, place: Place, event: Event) -> str | None:
        """A node has something for its event log."""

    def ready_changed(self, simulation: Simulation, place: Place, is_ready: bool) -> str | None:
        """A node has joined, or has lost its place."""


class Checker(Watcher):
    """Base of all invariants.

    `check` and `check_node` return what does not hold, one sentence each. With ``holds_always`` set, sweeps ask
    `check`, and check mode asks `check_node` about the node that an event touched; else `check` is for a ring that has
    had time to repair itself.
    """

    number: ClassVar[int] = 0
    """Of the invariant, in docs/simulator.md; 0 for what has none."""
    holds_always: ClassVar[bool] = False

    def check(self, simulation: Simulation) -> list[str]:
        """What does not hold now. By default: ask about every running node."""
        return [text for place in simulation.live_nodes() for text in self.check_node(simulation, place)]

    def check_node(self, simulation: Simulation, place: Place) -> list[str]:
        """What does not hold at this node."""
        return []
