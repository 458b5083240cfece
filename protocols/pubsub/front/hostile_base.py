"""What hostile nodes of the simulator know of publish/subscribe: everything that others keep."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Final

from msgspec.structs import replace

from peerd.messages import Message, PeerRef
from peerd.sim.hostile.member import Behaviour, HostileNode
from protocols.pubsub.messages import EventBody, SubObject
from protocols.pubsub.plugin import PubSub
from protocols.pubsub.publishing.outcomes import PendingPublish
from protocols.pubsub.tree.cell_node import CellNode
from protocols.pubsub.tree.piece import Piece
from protocols.pubsub.tree.storage import CellAddress

NOTHING: Final = "attr1 < -1"
"""A filter that no event matches, in the place of somebody's own."""
SOME: Final = 12


def plugin_at(node: object) -> PubSub | None:
    """The plugin of a node, unless it runs without it."""
    plugins = getattr(node, "plugins", {})
    plugin = plugins.get(PubSub.name)
    return plugin if isinstance(plugin, PubSub) else None


class PubSubBehaviour(Behaviour):
    """Base: knows what all nodes know."""

    gap_s: ClassVar[float] = 1.0

    def __init__(self, node: HostileNode) -> None:
        super().__init__(node)
        self.said = 0
        """How often it has struck: a test of a behaviour that never does would show nothing."""

    def act(self) -> None:
        self.said += self.strike()

    def strike(self) -> int:
        """Do harm; how much was said."""
        return 0

    def plugins(self) -> Iterator[PubSub]:
        """Those of all other nodes that run."""
        for place in self.node.party.simulation.live_nodes():
            plugin = plugin_at(place.node)
            if plugin is not None and place.id != self.node.peer.id:
                yield plugin

    def cells(self) -> list[CellNode]:
        """All cells of all trees that other nodes are the root of."""
        return [cell for plugin in self.plugins() for cell in plugin.rendezvous.forest.nodes()]

    def some_cells(self, most: int = SOME) -> list[CellNode]:
        """Some of them."""
        found = self.cells()
        return self.rng.sample(found, min(most, len(found)))

    def pieces(self) -> list[tuple[CellNode, Piece]]:
        """Some pieces of others, and where they are kept."""
        mine = self.node.peer.id
        found = [
            (cell, piece)
            for cell in self.cells()
            for piece in cell.pieces.values()
            if piece.is_kept and piece.sub.subscriber.id != mine
        ]
        return self.rng.sample(found, min(SOME, len(found)))

    def under_way(self) -> list[PendingPublish]:
        """Events of others that are not acknowledged yet."""
        return [event for plugin in self.plugins() for event in plugin.publishing._under_way.values()]

    def past_events(self, most: int = SOME) -> list[tuple[str, EventBody]]:
        """Some events that others remember, and their schema."""
        found = [
            (past.schema, past.event)
            for plugin in self.plugins()
            for number in range(*plugin.delivering.history.bounds)
            if (past := plugin.delivering.history.get(number)) is not None
        ]
        return self.rng.sample(found, min(most, len(found)))

    def root_of(self, place: CellAddress) -> PeerRef:
        simulation = self.node.party.simulation
        return simulation.find(simulation.oracle().root(place.key)).peer

    def everybody_in_turn(self, message: Message) -> int:
        """Say it to all, on their own links."""
        others = self.node.others()
        for peer in others:
            self.node.say(peer, message)
        return len(others)

    def route(self, place: CellAddress, message: Message) -> None:
        """Have it routed to the root of a cell."""
        self.node.overlay.route(place.key, message)


def spoilt(sub: SubObject) -> SubObject:
    """Somebody's piece, newer than his own, and with a filter that nothing matches."""
    return replace(sub, version=sub.version + 1, filter=NOTHING)
