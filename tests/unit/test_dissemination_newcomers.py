"""Newcomers that ask for a place without end, or with interests that take long to try: others are answered still."""

from __future__ import annotations

from collections import Counter

from peerd.ids import NodeId
from protocols.dissemination.interests.xpath.kind import XPathKind
from protocols.dissemination.messages import StreamItem
from protocols.dissemination.policies.overlap.joining import ADDS_A_SECOND_MAX
from protocols.dissemination.policies.overlap.messages import AddRequest, AddResult
from protocols.dissemination.ports import ParsedItem
from tests.unit.test_dissemination_overlap import ROOT, FakeTree, Y, Z, policy_at, request_of


def test_a_newcomer_that_asks_without_end_leaves_room_for_others() -> None:
    tree = FakeTree(room=True)
    policy = policy_at(tree)
    answered: Counter[NodeId] = Counter()
    for turn in range(60 * 20):
        tree.at_s += 0.05
        for _ in range(5):
            policy.received(Z, request_of(Z))
        if turn % 20 == 19:
            policy.received(Y, request_of(Y))
        answered.update(peer.id for peer, _ in tree.take(AddResult))
    assert answered[Y.id] == 60 and answered[Z.id] < 60 * ADDS_A_SECOND_MAX / 8


def test_interests_that_take_long_to_try_count_against_who_asks() -> None:
    xpath, tree = XPathKind(), FakeTree(me=ROOT, parent=None, room=True)
    tree.kind = xpath
    policy = policy_at(tree)
    for number in range(1, 129):
        item = StreamItem.of(1, number, 0, b"<a><b/></a>")
        policy.passed(ParsedItem(item, xpath.content(item)), False, [])
    for attempt in range(1, 20):
        wants = tuple(f"//a[count(b) > {attempt * 256 + each}]" for each in range(256))
        policy.received(Z, AddRequest(tree.stream, Z, attempt, ROOT.id, wants))
    assert 1 <= len(tree.take(AddResult)) <= 5
    policy.received(Y, AddRequest(tree.stream, Y, 1, ROOT.id, ("/a/b",)))
    assert len(tree.take(AddResult)) == 1, "and against nobody else"
