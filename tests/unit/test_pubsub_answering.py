"""Answers to publishers: over a link, and back along the way of the events where a link is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import msgpack
import pytest
from msgspec.structs import replace

from peerd.api import Host, Plugin, PluginConfig, SendRefusal
from peerd.errors import ProtocolError
from peerd.messages import Message, PeerRef
from peerd.testing.host import FakeHost, peer
from protocols.pubsub.config import PubSubConfig
from protocols.pubsub.messages import CARRIED_HOPS_MAX, MESSAGES, CarriedAck, EventAck, EventBody, TreeCells
from protocols.pubsub.publishing.answering import CHECKS_PER_S, KEPT_MAX, KEPT_S, METRICS, WAYS_MAX, Answering
from protocols.pubsub.publishing.spread import Batch
from protocols.pubsub.tree.cells import WHOLE

PUBLISHER, LEAF, HOP, OTHER = peer(1), peer(2), peer(3), peer(4)
EPOCH = 1
"""That of every `FakeHost`."""
ACK = EventAck("s", EPOCH, (7,), (TreeCells(1, (WHOLE,)),), (3,), 0)


class Answers(Plugin):
    """Only the part that is tested."""

    name: ClassVar[str] = "answers"
    messages = MESSAGES
    metrics = METRICS
    Config: ClassVar[type[PluginConfig]] = PubSubConfig

    def start(self, host: Host) -> None:
        super().start(host)
        self.answering = Answering(host)
        self.taken: list[tuple[EventAck, PeerRef]] = []
        self.answering.take = lambda ack, leaf: self.taken.append((ack, leaf))
        self.answering.awaits = lambda ack: True
        self.add_parts(self.answering)


def node(at: PeerRef, *linked: PeerRef) -> tuple[FakeHost, Answers]:
    """A node with links to these."""
    plugin = Answers(PubSubConfig())
    host = FakeHost(at.id, plugin)
    ids = {each.id for each in linked}
    host.peer_version = lambda peer: 1 if peer.id in ids else None  # type: ignore[method-assign]  # only these have links
    return host, plugin


def batch(*numbers: int, attempt: int = 0, epoch: int = EPOCH) -> Batch:
    """Events of the publisher."""
    events = tuple(EventBody(PUBLISHER, epoch, number, 1000, msgpack.packb({})) for number in numbers)
    return Batch("s", PUBLISHER, events, 0, attempt)


def carried(ack: EventAck = ACK) -> CarriedAck:
    """What a leaf's root sends the way back, once its link is refused."""
    host, plugin = node(LEAF)
    plugin.answering.came(batch(*ack.sequences, epoch=ack.epoch), HOP)
    refuse(plugin, lambda: plugin.answering.answer(PUBLISHER, ack))
    [(to, message)] = [(to, message) for to, message in host.take_sent() if isinstance(message, CarriedAck)]
    assert to == HOP
    return message


def refuse(plugin: Answers, act: Callable[[], Any], count: int = 1, kind: type[Message] = EventAck) -> None:
    """Have what is sent meanwhile refused by the publisher."""
    act()
    plugin.answering.send_refused(PUBLISHER, kind, SendRefusal.PEER_DOWN, count)
    plugin.answering.validate()


def counted(host: FakeHost) -> dict[str, int]:
    """What was counted, by its label."""
    return {what: count for (_, what), count in host.counted.items()}


# At the leaf


def test_an_answer_goes_over_the_link_that_there_is_and_nowhere_else() -> None:
    host, plugin = node(LEAF, PUBLISHER)
    plugin.answering.came(batch(7), HOP)
    refuse(plugin, lambda: plugin.answering.answer(PUBLISHER, ACK))
    assert host.take_sent() == [(PUBLISHER, ACK)], "a link that was up has been lost: the publisher tries again"


def test_without_a_link_one_is_opened_and_only_what_it_refuses_goes_the_way_back() -> None:
    host, plugin = node(LEAF)
    plugin.answering.came(batch(7), HOP)
    plugin.answering.answer(PUBLISHER, ACK)
    assert host.take_sent() == [(PUBLISHER, ACK)]
    plugin.answering.send_refused(OTHER, EventAck, SendRefusal.PEER_DOWN, 1)
    plugin.answering.send_refused(PUBLISHER, EventAck, SendRefusal.UNKNOWN_MESSAGE, 1)
    plugin.answering.send_refused(PUBLISHER, CarriedAck, SendRefusal.PEER_DOWN, 1)
    assert host.take_sent() == []
    plugin.answering.send_refused(PUBLISHER, EventAck, SendRefusal.PEER_DOWN, 1)
    [(to, message)] = host.take_sent()
    assert to == HOP and isinstance(message, CarriedAck)
    assert (message.publisher, message.leaf, message.hops) == (PUBLISHER.id, LEAF, 0)
    plugin.answering.send_refused(PUBLISHER, EventAck, SendRefusal.PEER_DOWN, 1)
    assert host.take_sent() == [], "once"


def test_what_is_too_old_to_have_waited_for_the_link_is_not_carried() -> None:
    host, plugin = node(LEAF)
    plugin.answering.came(batch(7, 8), HOP)
    plugin.answering.answer(PUBLISHER, ACK)
    host.time_s = KEPT_S + 1
    refuse(plugin, lambda: plugin.answering.answer(PUBLISHER, replace(ACK, sequences=(8,))), count=2)
    found = [message for _, message in host.take_sent() if isinstance(message, CarriedAck)]
    assert len(found) == 1


def test_an_answer_without_a_way_is_lost() -> None:
    host, plugin = node(LEAF)
    refuse(plugin, lambda: plugin.answering.answer(PUBLISHER, ACK))
    assert [type(message) for _, message in host.take_sent()] == [EventAck]
    assert counted(host) == {"begun": 1, "lost": 1}


def test_what_a_node_remembers_is_bounded() -> None:
    _, plugin = node(LEAF)
    for number in range(WAYS_MAX + 10):
        plugin.answering.came(batch(number), HOP)
    for _ in range(KEPT_MAX + 10):
        plugin.answering.answer(PUBLISHER, ACK)
    plugin.answering.validate()


# On the way


def test_a_node_on_the_way_passes_it_to_whom_the_event_came_from_first() -> None:
    host, plugin = node(HOP)
    plugin.answering.came(batch(7), OTHER)
    plugin.answering.came(batch(7), LEAF)
    host.deliver(carried(), LEAF)
    [(to, message)] = host.take_sent()
    assert to == OTHER
    assert message == replace(carried(), hops=1)


def test_answers_to_a_later_try_go_the_way_of_that_try() -> None:
    host, plugin = node(HOP)
    plugin.answering.came(batch(7), OTHER)
    plugin.answering.came(batch(7, attempt=1), peer(9))
    host.deliver(carried(), LEAF)
    assert [to for to, _ in host.take_sent()] == [peer(9)]


def test_a_node_with_a_link_to_the_publisher_takes_that() -> None:
    host, plugin = node(HOP, PUBLISHER)
    plugin.answering.came(batch(7), OTHER)
    host.deliver(carried(), LEAF)
    assert [to for to, _ in host.take_sent()] == [PUBLISHER]


def test_nothing_goes_in_circles() -> None:
    host, plugin = node(HOP)
    host.deliver(carried(), LEAF)
    plugin.answering.came(batch(7), OTHER)
    host.deliver(carried(), OTHER)
    host.deliver(replace(carried(), hops=CARRIED_HOPS_MAX), LEAF)
    assert host.take_sent() == []
    assert counted(host) == {"lost": 3}


@pytest.mark.parametrize(
    "ack",
    [replace(ACK, matched=()), replace(ACK, covered=tuple(TreeCells(at, tuple(range(1, 600))) for at in (1, 2)))],
    ids=["no counts", "too many cells"],
)
def test_an_answer_that_no_leaf_gives_costs_its_bearer_the_link(ack: EventAck) -> None:
    host, plugin = node(HOP)
    plugin.answering.came(batch(7), OTHER)
    with pytest.raises(ProtocolError, match="bad_ack"):
        host.deliver(carried(ack), LEAF)
    with pytest.raises(ProtocolError):
        host.deliver(replace(carried(), ack=b"\xc1"), LEAF)


# At the publisher


def test_the_publisher_takes_it_as_if_it_had_come_over_a_link() -> None:
    host, plugin = node(PUBLISHER)
    host.deliver(carried(), HOP)
    assert plugin.taken == [(ACK, LEAF)]


@pytest.mark.parametrize(
    "fields",
    [{"leaf": OTHER}, {"leaf": PeerRef(LEAF.id, LEAF.host, 1)}, {"proof": b""}, {"ack": None}],
    ids=["another leaf", "another address", "no proof", "other events"],
)
def test_who_carries_it_can_change_nothing(fields: dict[str, Any]) -> None:
    host, plugin = node(PUBLISHER)
    if "ack" in fields:
        fields = {"ack": carried(replace(ACK, sequences=(8,))).ack}
    host.deliver(replace(carried(), **fields), HOP)
    assert plugin.taken == []
    assert counted(host) == {"forged": 1}


def test_proofs_are_looked_at_only_for_events_that_wait_and_so_many_a_second() -> None:
    host, plugin = node(PUBLISHER)
    plugin.answering.awaits = lambda ack: False
    host.deliver(carried(), HOP)
    host.deliver(carried(replace(ACK, epoch=EPOCH + 1)), HOP)
    assert not counted(host)
    plugin.answering.awaits = lambda ack: True
    for _ in range(CHECKS_PER_S + 1):
        host.deliver(replace(carried(), proof=b"made up"), HOP)
    host.deliver(carried(), HOP)
    assert plugin.taken == [] and counted(host) == {"forged": CHECKS_PER_S, "unchecked": 2}
    host.time_s = 1.0
    host.deliver(carried(), HOP)
    assert plugin.taken == [(ACK, LEAF)]
