"""Delivery by multicast: one message for many subscribers' nodes, split by next hop on its way (section 3.4.3).

Nobody confirms a `GroupDelivery`; each subscriber's node sends the leaf a `DeliveryNote`, and who sends none in time
gets the event directly.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from peerd.api import Host, Part, handles, on_timer
from peerd.errors import ProtocolError
from peerd.ids import NodeId
from peerd.limits import KIB
from peerd.messages import PeerRef
from protocols.pubsub.bodies import event_bytes
from protocols.pubsub.delivering.items import CHOSEN_BYTES
from protocols.pubsub.messages import CELLS_MAX, HOPS_MAX, EventBody, GroupDelivery, NodeDelivery

MULTICAST_EVENT_BYTES_MAX: Final = 16 * KIB
"""A larger event is sent directly: each node on the way would carry it for others."""
GROUP_BYTES_MAX: Final = 40 * KIB
"""Event and subscribers in one message; its cap has room for the envelope, too."""
NODE_BYTES: Final = 24
"""What one subscriber's node takes in it, without chosen subscriptions."""
COPIES_PER_S_MAX: Final = 4096
"""So many nodes a second may one neighbour have this node send to: a message of 40 KiB must not become thousands."""

Received = Callable[[str, EventBody, Sequence[int], PeerRef], None]
"""Takes an event that has come by multicast for this node: schema, event, chosen subscriptions, leaf's root."""


class Multicast(Part):
    """Sends events on to many nodes. ``received`` is the subscriber's side."""

    def __init__(self, host: Host, received: Received) -> None:
        self._host, self._received = host, received
        self._copies: Counter[NodeId] = Counter()
        self._is_counting = False

    def send(self, schema: str, event: EventBody, to: Iterable[NodeDelivery]) -> None:
        """Begin a delivery, as the root of the leaf."""
        self._spread(GroupDelivery(schema, self._host.peer, event, ()), to)

    @handles(GroupDelivery)
    def _on_delivery(self, message: GroupDelivery, source: PeerRef) -> None:
        if len({each.subscriber for each in message.to}) < len(message.to):
            raise ProtocolError("same_subscriber", "an event for the same node twice")
        others = [each for each in message.to if each.subscriber != self._host.id]
        for own in message.to:
            if own.subscriber == self._host.id:
                self._received(message.schema, message.event, own.chosen, message.leaf)
        if message.hops < HOPS_MAX and others and self._may_send(source, len(others)):
            self._spread(message, others)

    def _spread(self, message: GroupDelivery, to: Iterable[NodeDelivery]) -> None:
        """Program 3.4: group by next hop. Whoever has no next hop now gets the event directly, a little later."""
        by_hop: dict[PeerRef, list[NodeDelivery]] = {}
        nodes = list(to)
        hops = self._host.next_hops([each.subscriber for each in nodes])
        for each in nodes:
            hop = hops.get(each.subscriber)
            if hop is not None:
                by_hop.setdefault(hop, []).append(each)
        for hop, group in by_hop.items():
            for part in _parts(event_bytes(message.event), group):
                self._host.send(
                    hop, GroupDelivery(message.schema, message.leaf, message.event, tuple(part), message.hops + 1)
                )

    def _may_send(self, source: PeerRef, count: int) -> bool:
        if self._copies[source.id] + count > COPIES_PER_S_MAX:
            return False
        self._copies[source.id] += count
        if not self._is_counting:
            self._is_counting = True
            self._host.set_timer("multicast_second", 1.0)
        return True

    @on_timer("multicast_second")
    def _next_second(self, payload: object) -> None:
        self._copies.clear()
        self._is_counting = False


def _parts(event_size: int, nodes: Sequence[NodeDelivery]) -> Iterator[list[NodeDelivery]]:
    """Cut the nodes into parts that each fit into a message."""
    part: list[NodeDelivery] = []
    size = event_size
    for each in nodes:
        added = NODE_BYTES + CHOSEN_BYTES * len(each.chosen)
        if part and (len(part) == CELLS_MAX or size + added > GROUP_BYTES_MAX):
            yield part
            part, size = [], event_size
        part.append(each)
        size += added
    if part:
        yield part
