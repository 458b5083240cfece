"""A member hears a multicast once, whatever becomes of its membership, its place in the tree and the service."""

from __future__ import annotations

from typing import cast

import pytest

from peerd.api import Host
from peerd.ids import NodeId
from peerd.messages import Message, PeerRef, encode_body
from peerd.services.groups.members import LEFT_MAX, Entrusted, GroupMembership
from peerd.services.groups.messages import Attached, GroupMulticast, Join, MulticastPosition, Publication, Publish
from peerd.services.groups.service import BoundGroups, GroupService
from peerd.services.groups.stream import Seen
from peerd.testing.host import FakeHost, peer
from tests.support.group_world import KEY, Speaker
from tests.support.groups import Saying

OWN, PARENT, OTHER, ORIGIN, CHILD = peer(50), peer(40), peer(41), peer(103), peer(101)
AT_3 = MulticastPosition(1, NodeId(30), 3)
FOURTH = Publication(ORIGIN, 7, 4, Saying.TYPE_ID, encode_body(Saying(4)))
SENT = GroupMulticast(KEY, MulticastPosition(1, NodeId(30), 4), FOURTH)


class Member:
    """A member far from the key, below ``PARENT``; or the root itself."""

    def __init__(self, *, is_root: bool = False) -> None:
        self.host = FakeHost(OWN.id)
        self.host.neighbours = () if is_root else (PeerRef(KEY, "10.1.0.2", 1),)
        self.heard: list[int] = []
        self.groups = BoundGroups(lambda: self.service, Speaker())
        self.start(GroupService())
        self.join()

    def start(self, service: GroupService) -> None:
        """The first instance of the service, or the next one."""
        self.service = service
        self.host.timers.clear()
        service.start(cast(Host, self.host))

    def join(self) -> None:
        """Become a member."""
        self.groups.join("g", lambda message, origin: self.heard.append(cast(Saying, message).number))

    def rejoin(self) -> None:
        """Leave, and become a member again."""
        self.groups.leave("g")
        self.join()

    def get(self, message: Message, source: PeerRef) -> list[tuple[PeerRef, Message]]:
        """A message arrives; what is sent in answer."""
        self.host.take_sent()
        self.service.handlers.messages[type(message)](message, source)
        self.host.run_later()
        self.service.validate()
        return self.host.take_sent()

    def attach(self, parent: PeerRef = PARENT) -> None:
        """Be taken by a node that has three multicasts so far."""
        self.get(Attached(KEY, (NodeId(30), parent.id), AT_3), parent)

    def publish(self) -> None:
        """The multicast arrives here as at its root."""
        self.service.deliver(KEY, Publish(KEY, FOURTH), ORIGIN)
        self.host.run_later()


def test_who_rejoins_below_a_parent_that_is_behind_hears_nothing_again() -> None:
    member = Member()
    member.attach()
    member.get(SENT, PARENT)
    member.rejoin()
    member.attach(OTHER)
    member.get(SENT, OTHER)
    assert member.heard == [4]


def test_who_rejoins_hears_nothing_again_of_what_is_sent_for_a_child() -> None:
    """What the member knows is not what the node has: its child still gets it."""
    member = Member()
    member.attach()
    member.get(SENT, PARENT)
    member.groups.leave("g")
    assert member.service.trees.intercept(Join(KEY, CHILD, AT_3, False), CHILD)
    member.join()
    member.attach()
    assert member.get(SENT, PARENT) == [(CHILD, SENT)]
    assert member.heard == [4]


def test_a_root_that_rejoins_hears_nothing_again_that_its_origin_repeats() -> None:
    member = Member(is_root=True)
    member.publish()
    member.service.deliver(KEY, Join(KEY, OWN, None, False), OWN)
    member.host.run_later()
    member.rejoin()
    member.service.deliver(KEY, Join(KEY, OWN, None, False), OWN)
    member.publish()
    assert member.heard == [4]


def test_a_member_hears_nothing_again_after_a_failure_of_the_service() -> None:
    member = Member()
    member.attach()
    member.get(SENT, PARENT)
    fresh = GroupService()
    fresh.inherit(member.service)
    member.start(fresh)
    member.attach(OTHER)
    member.get(SENT, OTHER)
    assert member.heard == [4]


@pytest.mark.parametrize("others", [LEFT_MAX - 1, LEFT_MAX])
def test_what_was_heard_in_a_group_that_was_left_is_remembered_for_a_while(others: int) -> None:
    entrusted = Entrusted()
    for key in (NodeId(number) for number in range(others + 2)):  # one of them stays
        entrusted.memberships[key] = GroupMembership("chatter", (Saying,), None, None)
        entrusted.heard[key] = Seen(1)
    for number in range(1, others + 2):
        assert entrusted.end(NodeId(number)) and not entrusted.end(NodeId(number))
    assert (NodeId(1) in entrusted.heard) == (others < LEFT_MAX)
    assert NodeId(0) in entrusted.heard and len(entrusted.heard) == LEFT_MAX + 1
