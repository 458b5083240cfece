"""Who waits until something is had, and is forgotten with what he waits for."""

from __future__ import annotations

import random

import pytest

from peerd.ids import NodeId
from peerd.messages import Message, PeerRef
from protocols.dissemination.messages import Attach, Dismiss, Narrow, Ready, Widen, Widened
from protocols.dissemination.names import START
from protocols.dissemination.tree.downstream import UNANSWERED_MAX
from protocols.dissemination.tree.member import StreamMember
from protocols.dissemination.tree.upstream import Upstream
from tests.support.member_owner import hook
from tests.unit.test_dissemination_tree import KIND, STREAM, Net


def _orphan_with_a_child() -> tuple[Net, StreamMember, list[Message]]:
    """The second node of three has lost the first one, and the third is its child."""
    net = Net(3, random.Random(0))
    for number in (1, 2):
        net.subscribe(number, "a")
        net.move(number, number - 1)
        net.settle(1.0)
    net.kill(0)
    member, sent = net.members[net.peers[1].id], list[Message]()
    hook(member.owner, send=lambda peer, message: sent.append(message))
    return net, member, sent


def test_subscriptions_that_come_and_go_before_there_is_an_answer_leave_nothing() -> None:
    net = Net(2, random.Random(0))
    member = net.members[net.peers[1].id]
    for number in range(50):
        net.subscribe(1, f"c{number}", sub=number)
        member.unsubscribe(number, net.now)
        assert not member._waits_for(("own", number))
        net.tick()
    net.subscribe(1, "a", sub=50)
    assert member._waits_for(("own", 50)) == 1
    net.move(1, 0)
    net.settle(1.0)
    net.publish("a")
    net.settle(1.0)
    assert net.delivered(1, 50) == [1] and not member._waits_for(("own", 50))


def test_a_child_is_answered_what_it_still_wants_of_what_it_has_asked_for() -> None:
    net = Net(2, random.Random(0))
    net.subscribe(1, "a")
    net.move(1, 0)
    net.settle(1.0)
    member, child, sent = net.members[net.peers[1].id], PeerRef(NodeId(99), "127.0.0.1", 99), list[Message]()
    send = member.owner.send
    hook(member.owner, send=lambda peer, message: sent.append(message) if peer == child else send(peer, message))
    member.received(child, Attach(STREAM, 1, ("a",), START, is_new=True, is_orphan=True), net.now)
    assert any(isinstance(each, Ready) for each in sent)
    member.received(child, Widen(STREAM, ("b", "c"), START, is_new=True, attempt=1, number=1), net.now)
    member.received(child, Narrow(STREAM, (KIND.parse("b").id,), 1, 2), net.now)
    assert member._waits_for(child.id) == 1
    net.run()
    assert any(isinstance(each, Widened) for each in sent) and not member._waits_for(child.id)
    assert set(member.down.children[child.id].wants) == {KIND.parse(text).id for text in "ac"}
    member.received(child, Widen(STREAM, ("d",), START, is_new=True, attempt=1, number=3), net.now)
    member.received(child, Narrow(STREAM, (KIND.parse("d").id,), 1, 4), net.now)
    assert not member._waits_for(child.id)


def test_a_child_that_attaches_anew_waits_for_that_only(monkeypatch: pytest.MonkeyPatch) -> None:
    net, member, sent = _orphan_with_a_child()
    child = net.peers[2]
    attempt = member.down.children[child.id].attempt
    asked = member.down.children[child.id].asked_number
    for number in range(1, 6):
        wish = Widen(STREAM, ("b",), START, is_new=True, attempt=attempt, number=asked + number)
        member.received(child, wish, net.now)
    assert member._waits_for(child.id) == 5
    monkeypatch.setattr(Upstream, "is_member", True)
    member.received(child, Attach(STREAM, attempt + 1, ("a", "b"), START, False, True), net.now)
    assert member._waits_for(child.id) == 1
    member.gone(child.id, net.now)
    assert not member._waits_for(child.id) and not any(isinstance(each, Ready) for each in sent)


def test_a_child_that_asks_and_asks_while_there_is_no_answer_has_to_attach_anew() -> None:
    net, member, sent = _orphan_with_a_child()
    child = net.peers[2]
    attempt = member.down.children[child.id].attempt
    asked = member.down.children[child.id].asked_number
    for number in range(1, UNANSWERED_MAX + 2):
        wish = Widen(STREAM, ("b",), START, is_new=True, attempt=attempt, number=asked + number)
        member.received(child, wish, net.now)
        assert (child.id in member.down.children) == (number <= UNANSWERED_MAX)
    assert any(isinstance(each, Dismiss) for each in sent) and not member._waits_for(child.id)
