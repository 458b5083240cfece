"""Handing a stream over, on the pure parts: the order of terms, which record is right, and wants that change sides."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, strategies as st

from peerd.ids import NodeId, format_id
from peerd.messages import PeerRef
from protocols.dissemination.asking import node_in_tree
from protocols.dissemination.interests.classes import ClassesKind
from protocols.dissemination.messages import WANTS_MAX
from protocols.dissemination.models import StreamSpec, StreamTreeNode, StreamTreeView
from protocols.dissemination.names import TERM_MAX, TERM_SHIFT, StreamPosition, epoch_of, position_of, position_text
from protocols.dissemination.service import StreamRefused
from protocols.dissemination.stream import StreamRecord
from protocols.dissemination.stream_node import StreamNode
from protocols.dissemination.tree.wants import SENT_MAX, Wants

BOOTS = st.integers(1, (1 << TERM_SHIFT) - 1)
ONE, OTHER = (PeerRef(NodeId(number << 120), f"10.0.0.{number}", 7420) for number in (1, 2))
RECORD = StreamRecord.of(StreamSpec(name="news", kind="classes", policy="first_fit"), ONE)
KIND = ClassesKind()


@given(st.integers(0, TERM_MAX - 1), BOOTS, BOOTS, st.integers(0, 1 << 62), st.integers(1, 1 << 62))
def test_items_of_a_later_term_come_later_whatever_the_clocks_of_the_machines_say(
    term: int, boot: int, other_boot: int, sequence: int, other: int
) -> None:
    before, after = (
        StreamPosition(epoch_of(term, boot), sequence),
        StreamPosition(epoch_of(term + 1, other_boot), other),
    )
    assert before < after
    assert position_of(position_text(after)) == after


@given(BOOTS)
def test_ids_of_a_stream_that_was_never_handed_over_are_what_they_were(boot: int) -> None:
    assert epoch_of(0, boot) == boot


def test_a_record_is_followed_if_it_is_the_same_stream_and_its_term_is_larger() -> None:
    handed = RECORD.handed_to(OTHER)
    assert handed.succeeds(RECORD) and handed.producer.peer == OTHER and handed.term == 1
    assert handed.handed_to(ONE).succeeds(RECORD)
    assert not RECORD.succeeds(handed) and not RECORD.succeeds(RECORD)
    assert not handed.model_copy(update={"kind": "xpath"}).succeeds(RECORD)
    rival = StreamRecord.of(StreamSpec(name="news", kind="classes", policy="first_fit"), OTHER)
    assert not rival.succeeds(RECORD), "another stream of the same name"
    third = RECORD.handed_to(PeerRef(NodeId(3 << 120), "10.0.0.3", 7420))
    assert third.succeeds(handed), "the other one has given it back: seed 150 of the swarm"


def test_streams_of_one_name_that_two_nodes_have_created_have_nothing_to_do_with_each_other_whatever_their_terms() -> (
    None
):
    """Seed 114 of the swarm: the members of one went on in the other, which had been handed over, and were not told."""
    rival = StreamRecord.of(StreamSpec(name="news", kind="classes", policy="first_fit"), OTHER).handed_to(ONE)
    assert not rival.succeeds(RECORD) and not RECORD.is_earlier_than(rival)
    handed = RECORD.handed_to(OTHER)
    assert RECORD.is_earlier_than(handed) and not handed.is_earlier_than(RECORD)


@pytest.mark.parametrize("count", [SENT_MAX, SENT_MAX + 1, 3 * WANTS_MAX])
def test_who_was_the_producer_tells_its_parent_of_what_one_message_has_room_for(count: int) -> None:
    wants, floor = Wants(KIND), StreamPosition(1, 7)
    interests = [KIND.parse(f"c{number}") for number in range(count)]
    for number, interest in enumerate(interests):
        wants.hold(("own", number), [interest], floor)
    wants.at_member()
    sent = wants.sent()
    assert len(sent) == (count if count <= SENT_MAX else 1)
    assert all(any(KIND.covers(wide, each) for wide in sent.values()) for each in interests)
    assert wants.is_answered([each.id for each in interests]) and not wants.has_pending()
    assert {wants.since(each.id) for each in interests} == {floor}
    wants.at_producer(StreamPosition(1, 9))
    assert set(wants.sent()) >= {each.id for each in interests}
    assert {wants.since(each.id) for each in interests} == {StreamPosition(1, 9)}
    gone, asks = wants.give_up(StreamPosition(1, 9), is_late=True)
    assert not asks and not gone.keys() & {each.id for each in interests}
    assert len(wants) == count


def tree(*peers: PeerRef) -> StreamTreeView:
    shape: dict[str, object] = {"parent": None, "depth": 0, "interests": [], "children": 0, "fan_out": 6, "figures": {}}
    nodes = [
        StreamTreeNode.model_validate({"node": format_id(each.id), "address": each.address, **shape}) for each in peers
    ]
    return StreamTreeView(stream="news", policy="overlap", nodes=nodes, missing=[])


def test_a_node_is_meant_by_its_address_or_the_beginning_of_its_id() -> None:
    far = PeerRef(NodeId(3 << 120), "2001:db8::7", 7420)
    view = tree(ONE, OTHER, far)
    assert node_in_tree(view, "10.0.0.2:7420") == OTHER
    assert node_in_tree(view, "01") == ONE
    assert node_in_tree(view, "[2001:db8::7]:7420") == far
    with pytest.raises(StreamRefused, match="3 nodes of the tree"):
        node_in_tree(view, "0")
    for wanted in ("", "10.0.0.2", "7"):
        with pytest.raises(StreamRefused, match="subscribe there first"):
            node_in_tree(view, wanted)


@pytest.mark.parametrize("trouble", ["none", "it leaves", "it has no room to send"])
def test_a_node_that_goes_on_in_the_place_of_its_predecessor_has_one_child_above_its_limit_at_most(
    trouble: str,
) -> None:
    children: dict[NodeId, None] = {}
    node: Any = object.__new__(StreamNode)
    node._config = lambda: SimpleNamespace(fan_out=2)
    node._owner = SimpleNamespace(has_uplink=lambda: trouble != "it has no room to send")
    node.member = SimpleNamespace(down=SimpleNamespace(children=children))
    node.predecessor, node.leaving_since = OTHER, 1.0 if trouble == "it leaves" else None
    admitted = []
    for number in range(4):
        admitted.append((node.admit(ONE, [], None), node.admit(OTHER, [], None)))
        children[NodeId(100 + number)] = None
    is_calm = trouble == "none"
    assert admitted == [(is_calm, True), (is_calm, True), (False, True), (False, False)]
