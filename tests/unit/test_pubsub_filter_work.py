"""Filters are charged before they are read: to the link that brings them, or to all that comes over others together."""

from __future__ import annotations

import pytest

from protocols.pubsub.matching.filter_work import UNPROVEN_BURST_S, WORK_BURST_S, price_s
from protocols.pubsub.messages import InsertAnswer, InsertSub, Kept, PieceStatus, SubObject
from protocols.pubsub.names import SubscriptionKey
from protocols.pubsub.tree.cells import WHOLE
from tests.support.pubsub_rendezvous import MEMBER, STRANGER, SUBSCRIBER, node, probe, refusals, sub
from tests.support.pubsub_tree import SCHEMA, FakeIndex


def test_probes_in_anybodys_name_have_little_read_and_what_is_brought_is_charged_to_its_link(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """250 probes a second with filters of 250 equalities took all of a root's time, and nobody was blamed."""
    host, _ = node()
    read: list[str] = []
    add = FakeIndex.add

    def count(index: FakeIndex, key: SubscriptionKey, cell: tuple[int, int], sub: SubObject) -> None:
        read.append(sub.filter)
        add(index, key, cell, sub)

    monkeypatch.setattr(FakeIndex, "add", count)
    dear = " OR ".join(f"price = {number}" for number in range(250))
    for number in range(250):
        host.deliver(probe(sub(number, text=f"{dear} OR volume = {number}")), STRANGER)
    assert 0 < sum(map(price_s, read)) <= UNPROVEN_BURST_S
    brought = [(to, message.status) for to, message in host.sent if isinstance(message, Kept)]
    assert brought == [(SUBSCRIBER, PieceStatus.ELSEWHERE)] * (250 - len(read))
    read.clear()
    answers = []
    for number in range(300, 550):
        mine = sub(number, text=f"{dear} OR volume = {number}")
        answers.append(host.deliver(InsertSub(SCHEMA, mine, WHOLE, 600), SUBSCRIBER))
    assert 0 < sum(map(price_s, read)) <= WORK_BURST_S
    statuses = [each.status for each in answers if isinstance(each, InsertAnswer)]
    assert statuses == [PieceStatus.KEPT] * len(read) + [PieceStatus.QUOTA] * (250 - len(read))
    assert refusals(host) == {f"{MEMBER},filter_work,link": 250 - len(read)}
