"""What is asked for when something wide is given up on which many others ride."""

from __future__ import annotations

import random

import pytest

from peerd.messages import decode_body, encode_body
from protocols.dissemination.interests.classes import ClassesKind
from protocols.dissemination.messages import WANTS_MAX, Attach
from protocols.dissemination.names import START, StreamPosition
from protocols.dissemination.ports import Interest
from protocols.dissemination.tree.upstream import NARROW_AFTER_S
from protocols.dissemination.tree.wants import SENT_BYTES_MAX, SENT_MAX, Wants
from tests.unit.test_dissemination_tree import Net

KIND = ClassesKind()
NOW = StreamPosition(1, 9)
MANY = [f"c{number}" for number in range(WANTS_MAX + 44)]
LONG = [",".join([f"c{number}", *(f"{part:03}{'y' * 26}" for part in range(20))]) for number in range(SENT_MAX // 2)]


assert sum(map(len, LONG)) > SENT_BYTES_MAX


def _with_riders(wide: Interest, texts: list[str]) -> tuple[Wants, list[Interest]]:
    wants, riders = Wants(KIND), [KIND.parse(text) for text in texts]
    wants.need("child", [wide], None, START)
    wants.widened([wide.id], START)
    for number, rider in enumerate(riders):
        assert not wants.need(number, [rider], START, START), "the wide one brings it"
    return wants, riders


def _wide(texts: list[str]) -> Interest:
    return KIND.parse(",".join(sorted({name for text in texts for name in text.split(",")})))


@pytest.mark.parametrize("texts", [MANY, LONG])
def test_where_too_many_ride_on_what_is_given_up_everything_is_asked_for_first(texts: list[str]) -> None:
    wide = Interest(b"w" * 16, "wide", _wide(texts).meaning)
    wants, riders = _with_riders(wide, texts)
    wants.release("child", is_final=True)
    gone, asks = wants.give_up(NOW, is_late=True)
    everything = KIND.parse("")
    assert not gone, "until everything is answered the riders have nothing else"
    assert [ask.interest for ask in asks] == [everything] and asks[0].after == NOW
    assert wants.give_up(NOW, is_late=True) == ({}, [])
    wants.widened([everything.id], NOW)
    assert wants.give_up(NOW, is_late=True) == ({wide.id: True}, [])
    assert set(wants.sent()) == {everything.id}
    assert all(wants.since(rider.id) == START for rider in riders)
    wants.validate()


@pytest.mark.parametrize("texts", [MANY, LONG])
def test_everything_itself_stays_while_too_many_ride_on_it(texts: list[str]) -> None:
    everything = KIND.parse("")
    wants, riders = _with_riders(everything, texts)
    wants.release("child", is_final=True)
    assert wants.give_up(NOW, is_late=True) == ({}, [])
    assert set(wants.sent()) == {everything.id} and wants.is_answered([rider.id for rider in riders])
    for number in range(8, len(riders)):
        wants.release(number, is_final=True)
    assert wants.has_unwanted()
    gone, asks = wants.give_up(NOW, is_late=True)
    assert everything.id not in gone and len(gone) == len(riders) - 8
    assert [ask.interest for ask in asks] == riders[:8]
    wants.widened([each.id for each in riders[:8]], NOW)
    assert wants.give_up(NOW, is_late=True) == ({everything.id: True}, [])
    assert not wants.has_unwanted()
    wants.validate()


def test_what_covers_a_rider_does_not_count_before_it_is_answered() -> None:
    wide, other, rider = KIND.parse("a,b"), KIND.parse("a,c"), KIND.parse("a")
    wants, _ = _with_riders(wide, ["a"])
    assert wants.need("other", [other], None, START)
    wants.release("child", is_final=True)
    assert wants.give_up(NOW, is_late=True) == ({}, []), "the other one is asked for, and brings nothing yet"
    wants.widened([other.id], NOW)
    assert wants.give_up(NOW, is_late=True) == ({wide.id: True}, [])
    assert set(wants.sent()) == {other.id} and wants.since(rider.id) == START


def test_a_member_whose_widest_subscription_ends_keeps_its_parent_and_gets_all() -> None:
    net = Net(3, random.Random(0))
    wide = ",".join(MANY[:-1])
    net.subscribe(2, wide)
    for number in (1, 2):
        net.move(number, number - 1)
        net.settle(1.0)
    for number, text in enumerate(MANY[:-1]):
        net.subscribe(2, text, sub=number + 1)
    net.settle(1.0)
    member = net.members[net.peers[2].id]
    member.unsubscribe(0, net.now)
    seconds = 0.0
    while seconds < 4 * NARROW_AFTER_S:
        net.tick()
        net.publish(MANY[int(seconds * 4)])
        net.run(1)
        member.validate()
        seconds += 0.25
    net.settle(2 * NARROW_AFTER_S)
    assert set(member.state.wants.sent()) == {KIND.parse("").id}
    assert [net.delivered(2, number + 1) for number in range(80)] == [[number + 1] for number in range(80)]
    net.cut(1, 2)
    net.move(2, 0)
    [attach] = [each for each in net.links[net.peers[2].id, net.peers[0].id] if isinstance(each, Attach)]
    assert decode_body(Attach, encode_body(attach)).wants == ("",)
