"""Simulated rings whose nodes chat in groups, and what must hold of their trees."""

from __future__ import annotations

from collections import Counter
from typing import Any, ClassVar

from peerd.api import GroupOutcome, Plugin
from peerd.ids import NodeId
from peerd.messages import U32, Message, PeerRef, message
from peerd.services.groups.members import group_key
from peerd.services.groups.service import GroupService
from peerd.services.groups.state import Group
from peerd.sim.simulation import Place, Simulation
from peerd.testing.simulation import ring


@message(0x7F50)
class Saying(Message):
    """A numbered message to a group, with some weight."""

    number: U32
    padding: bytes = b""


class Chatter(Plugin):
    """Notes what its groups say, in the order in which it comes."""

    name: ClassVar[str] = "chatter"
    messages = (Saying,)

    def __init__(self, config: Any = None) -> None:
        super().__init__(config)
        self.heard: dict[str, list[tuple[NodeId, int]]] = {}
        self.asked: list[int] = []
        self.outcomes: list[tuple[GroupOutcome, PeerRef | None]] = []
        self.accepts = False

    def join(self, group: str) -> None:
        """Become a member."""
        heard = self.heard.setdefault(group, [])

        def on_message(message: Message, origin: PeerRef) -> None:
            assert isinstance(message, Saying)
            heard.append((origin.id, message.number))

        self.host.groups.join(group, on_message, self._asked)

    def _asked(self, message: Message, origin: PeerRef) -> bool:
        assert isinstance(message, Saying)
        self.asked.append(message.number)
        return self.accepts

    def say(self, group: str, number: int, padding: bytes = b"") -> None:
        """Multicast."""
        self.host.groups.multicast(
            group, Saying(number, padding), lambda outcome: self.outcomes.append((outcome, None))
        )

    def find(self, group: str, number: int) -> None:
        """Anycast."""
        self.host.groups.anycast(group, Saying(number), lambda outcome, peer: self.outcomes.append((outcome, peer)))

    def numbers(self, group: str) -> list[int]:
        """What it heard in a group."""
        return [number for _, number in self.heard.get(group, [])]


def chat_ring(count: int, seed: int = 0, **arguments: Any) -> Simulation:
    """A ring with a `Chatter` on each node."""
    return ring(count, seed, plugins=lambda index: (Chatter(),), **arguments)


def chatter(place: Place) -> Chatter:
    """The chatter of a node."""
    plugin = place.node.plugins[Chatter.name]
    assert isinstance(plugin, Chatter)
    return plugin


def service(place: Place) -> GroupService:
    """The groups service of a node."""
    return place.node.groups


def trees(simulation: Simulation, group: str) -> dict[NodeId, Group]:
    """The part of each live node in a group's tree."""
    key = group_key(Chatter.name, group)
    parts = {place.id: service(place).trees.groups.get(key) for place in simulation.live_nodes()}
    return {node_id: part for node_id, part in parts.items() if part is not None}


def tree_offences(simulation: Simulation, group: str, members: list[Place]) -> list[str]:
    """Return why a group's parts are not one tree below the right root, with all members and no unneeded node."""
    parts = trees(simulation, group)
    key = group_key(Chatter.name, group)
    offences = [f"{place} is in no tree" for place in members if place.id not in parts]
    roots = [node_id for node_id, part in parts.items() if part.is_root]
    if parts and roots != [simulation.oracle().root(key)]:
        offences.append(f"the roots are {roots}")
    for node_id, part in parts.items():
        if part.parent is None and not part.is_root:
            offences.append(f"{node_id:032x} has no parent")
        path: list[NodeId] = [node_id]
        above = part
        while above.parent is not None and len(path) <= len(parts):
            path.append(above.parent.id)
            if above.parent.id not in parts:
                offences.append(f"{node_id:032x} hangs below a node that is not in the tree")
                break
            if path[-2] not in parts[above.parent.id].children:
                offences.append(f"{path[-2]:032x} is not a child of its parent")
            above = parts[above.parent.id]
        if tuple(reversed(path)) != part.path:
            offences.append(f"{node_id:032x} has a wrong path")
    edges = Counter(child for part in parts.values() for child in part.children)
    offences += [f"{child:032x} has {count} parents" for child, count in edges.items() if count > 1]
    return offences


def is_settled(simulation: Simulation, membership: dict[str, list[Place]]) -> bool:
    """Every group is one tree with its live members."""
    return all(
        not tree_offences(simulation, group, [place for place in members if place.is_live])
        for group, members in membership.items()
    )
