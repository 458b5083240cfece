"""Changes of what a child wants of values: all that it wants is put together anew, so they count against it."""

from __future__ import annotations

import random
from collections.abc import Iterable

import pytest

from peerd.ids import NodeId
from peerd.messages import PeerRef
from protocols.dissemination.interests.coherency.last_sent import SentValues
from protocols.dissemination.messages import Attach, Narrow, Widen
from protocols.dissemination.names import StreamPosition
from protocols.dissemination.ports import Interest
from protocols.dissemination.tree.wants import SENT_BYTES_MAX
from tests.support.coherency_net import KIND, STREAM, ValueNet

CHILD = PeerRef(NodeId(77), "127.0.0.1", 7)


@pytest.fixture
def widest() -> tuple[ValueNet, int]:
    """A child of node 0 that wants as much of the values as it can tell in many messages; its last number."""
    net = ValueNet(1, random.Random(1))
    source = net.members[net.peers[0].id]
    source.received(CHILD, Attach(STREAM, 1, (wide(0),), StreamPosition(0, 0), is_new=True, is_orphan=True), 1.0)
    for number in range(1, 40):
        source.received(CHILD, Widen(STREAM, (wide(number),), StreamPosition(0, 0), True, 1, number), float(number))
    assert len(source.down.children[CHILD.id].wants) == 40
    return net, 39


def wide(number: int) -> str:
    return ", ".join(f"'{number * 256 + each}' WITHIN 1" for each in range(256))


def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many interests are put together, each time that this is done."""
    found: list[int] = []
    want = SentValues.want

    def wanted(given: SentValues, interests: Iterable[Interest]) -> None:
        found.append(len(some := list(interests)))
        want(given, some)

    monkeypatch.setattr(SentValues, "want", wanted)
    return found


def test_to_give_up_what_was_not_wanted_costs_nothing(
    widest: tuple[ValueNet, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    net, number = widest
    looked = counted(monkeypatch)
    source = net.members[net.peers[0].id]
    for more, ids in enumerate([(), (bytes(16),), (), (KIND.parse("a").id,)], start=1):
        source.received(CHILD, Narrow(STREAM, ids, 1, number + more), 100.0)
    assert looked == [] and CHILD.id in source.down.children
    source.received(CHILD, Narrow(STREAM, (KIND.parse(wide(3)).id, bytes(16), KIND.parse(wide(4)).id), 1, 44), 100.0)
    assert looked == [38] and len(source.down.children[CHILD.id].wants) == 38


def test_who_goes_on_changing_what_it_wants_of_very_many_values_has_to_attach_anew(
    widest: tuple[ValueNet, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    net, number = widest
    looked = counted(monkeypatch)
    source = net.members[net.peers[0].id]
    for each in range(number + 1, number + 41, 2):
        source.received(CHILD, Narrow(STREAM, (KIND.parse(wide(3)).id,), 1, each), 50.0)
        source.received(CHILD, Widen(STREAM, (wide(3),), StreamPosition(0, 0), True, 1, each + 1), 50.0)
    assert CHILD.id not in source.down.children and 5 < len(looked) < 35


def test_who_wants_as_much_as_a_node_asks_its_parent_for_may_change_that_often(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    net = ValueNet(1, random.Random(1))
    source = net.members[net.peers[0].id]
    texts = tuple(", ".join(f"{name}{number} WITHIN 0.5" for name in "abcdefghi") for number in range(255))
    assert 0.9 * SENT_BYTES_MAX < sum(len(text) + 8 for text in texts) < SENT_BYTES_MAX
    source.received(CHILD, Attach(STREAM, 1, texts, StreamPosition(0, 0), is_new=True, is_orphan=True), 1.0)
    looked = counted(monkeypatch)
    for number in range(200):
        now = 10.0 + number / 5
        source.received(CHILD, Narrow(STREAM, (KIND.parse(texts[number]).id,), 1, 2 * number + 1), now)
        source.received(CHILD, Widen(STREAM, (f"z{number}",), StreamPosition(0, 0), True, 1, 2 * number + 2), now)
    assert CHILD.id in source.down.children and len(looked) == 400
