"""How often nodes move: no more in a minute than the documentation states, whatever faults strike.

docs/protocols/codd.md and docs/protocols/coherency-trees.md have the numbers ("Limits on moves", "No storms").
"""

from __future__ import annotations

from collections import Counter, deque
from typing import Final

from peerd.messages import Message
from peerd.sim.simulation import Place, Simulation, Watcher
from peerd.telemetry.schema import Event
from protocols.dissemination.events import StreamMoved
from protocols.dissemination.front.judging import node_of, plugin_of
from protocols.dissemination.policies.cost.messages import OrderToMove
from protocols.dissemination.policies.cost.policy import (
    DECISIONS_A_ROUND,
    DECISIONS_AT_ONCE,
    ORDERS_A_ROUND,
    ORDERS_AT_ONCE,
)
from protocols.dissemination.policies.cost.settings import read_settings
from protocols.dissemination.policies.overlap.lifting import OFFER_EVERY_S
from protocols.dissemination.policies.overlap.messages import MoveOrder, MoveToGrandparent
from protocols.dissemination.policies.overlap.settings import OverlapSettings
from protocols.dissemination.ports import TreePolicy
from protocols.dissemination.seeking import NO_PARENT
from protocols.dissemination.stream_node import StreamNode
from protocols.dissemination.tree.state import MOVE_S

MINUTE_S: Final = 60.0
MOVES_A_DECISION: Final = 2


def stated(node: StreamNode, kind: type) -> int:
    """How many messages of a kind one node sends for one stream in a minute; `StreamMoved`: how often it moves."""
    if node.record.policy == "overlap":
        settings = OverlapSettings.model_validate(node.record.settings)
        return settings.moves_per_minute if kind is MoveOrder else int(1 + MINUTE_S / OFFER_EVERY_S)
    cost = read_settings(node.record.settings)
    if kind is StreamMoved:
        return int(ORDERS_AT_ONCE + ORDERS_A_ROUND * (MINUTE_S + MOVE_S) / cost.round)
    decided_s = MINUTE_S + cost.order_timeout  # the second move of a decision is ordered when the first is over
    return MOVES_A_DECISION * int(DECISIONS_AT_ONCE + DECISIONS_A_ROUND * decided_s / cost.round)


class MovesAMinute(Watcher):
    """Counts what makes nodes move. A policy that begins anew (another boot, another producer) is counted anew."""

    name = "moves a minute"

    def __init__(self) -> None:
        self._at_s: dict[tuple[TreePolicy, type], deque[float]] = {}
        self.most: Counter[str] = Counter()
        """The most of a kind that was seen in a minute, by the name of the kind."""
        self.offences: list[str] = []

    def sent(self, simulation: Simulation, place: Place, message: Message) -> None:
        """A node sends a message."""
        if isinstance(message, MoveOrder | MoveToGrandparent | OrderToMove):
            node = plugin_of(place).nodes.get(message.stream)
            if node is not None:
                self._count(simulation, place, node, type(message))

    def emitted(self, simulation: Simulation, place: Place, event: Event) -> None:
        """A node records an event: of the cost-based policy, each node limits how often it moves."""
        if isinstance(event, StreamMoved) and event.why == "policy" and event.from_parent != NO_PARENT:
            node = node_of(place, str(event.stream))
            if node is not None and node.record.policy == "cost":
                self._count(simulation, place, node, StreamMoved)

    def _count(self, simulation: Simulation, place: Place, node: StreamNode, kind: type) -> None:
        now, at_s = simulation.now, self._at_s.setdefault((node.policy, kind), deque())
        at_s.append(now)
        while now - at_s[0] >= MINUTE_S:
            at_s.popleft()
        self.most[kind.__name__] = max(self.most[kind.__name__], len(at_s))
        if len(at_s) > stated(node, kind) and not simulation.is_hostile(place.id):
            self.offences.append(f"a storm: {len(at_s)} {kind.__name__} of {node.name} at {place} within a minute")
