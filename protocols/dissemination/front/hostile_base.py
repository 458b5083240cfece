"""What all ways to misbehave in streams have in common."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, Final

from msgspec.structs import replace

from peerd.errors import ProtocolError
from peerd.messages import Message, PeerRef, decode_struct, encode_struct
from peerd.sim.hostile.member import Behaviour, HostileNode
from protocols.dissemination.messages import ItemBody
from protocols.dissemination.plugin import Dissemination
from protocols.dissemination.stream_node import StreamNode

SOME: Final = 12
"""Victims at a time."""


def plugin_at(node: object) -> Dissemination | None:
    """The plugin of a node, unless it runs without it."""
    plugin = getattr(node, "plugins", {}).get(Dissemination.name)
    return plugin if isinstance(plugin, Dissemination) else None


def altered(packed: bytes, **changes: Any) -> bytes:
    """An item that says something else. What is only the end of a large one gets other bytes."""
    try:
        return encode_struct(replace(decode_struct(ItemBody, packed), **changes))
    except ProtocolError:
        return packed[::-1]


class StreamBehaviour(Behaviour):
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

    def tells(self, peer: PeerRef, message: Message) -> Message | None:
        told = self.twists(peer, message)
        self.said += told is not message
        return told

    def twists(self, peer: PeerRef, message: Message) -> Message | None:
        """What is sent instead of a message; ``None``: nothing is."""
        return message

    def victims(self) -> list[StreamNode]:
        """Some of the streams' members at other nodes."""
        found = list(self._others())
        return self.rng.sample(found, min(SOME, len(found)))

    def _others(self) -> Iterator[StreamNode]:
        for place in self.node.party.simulation.live_nodes():
            plugin = plugin_at(place.node)
            if plugin is not None and place.id != self.node.peer.id and place.node.is_ready:
                yield from plugin.nodes

    def say(self, victim: StreamNode, *messages: Message) -> int:
        """Send them to it; how many they are."""
        for message in messages:
            self.node.say(victim.host.peer, message)
        return len(messages)
