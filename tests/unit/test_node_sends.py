"""What is noted of refused sends and of unknown messages is bounded, and told once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest

from peerd import limits
from peerd.api import SendRefusal
from peerd.driver import Driver
from peerd.ids import NodeId
from peerd.messages import Message, PeerRef
from peerd.node import sends as node_sends
from peerd.node.requests import Requests
from peerd.node.sends import UNKNOWN_TOLD_INTERVAL_S, RefusedSends, UnknownTold
from peerd.wire.codec import encode, encode_reply, encode_request
from tests.support.talker import Ask, Say


class LaterDriver:
    """A driver that only puts calls off until later."""

    def __init__(self) -> None:
        self.later: list[Callable[[], None]] = []

    def call_soon(self, callback: Callable[[], None]) -> None:
        self.later.append(callback)


class NotedRequests:
    """Requests that note which of them fail."""

    def __init__(self) -> None:
        self.failed: list[tuple[NodeId, int]] = []

    def fail(self, peer_id: NodeId, correlation: int) -> None:
        self.failed.append((peer_id, correlation))


def peer(number: int) -> PeerRef:
    return PeerRef(NodeId(number), "10.0.0.1", 7420)


@pytest.fixture
def rig() -> tuple[RefusedSends, LaterDriver, NotedRequests, list[tuple[Any, ...]]]:
    driver, requests, told = LaterDriver(), NotedRequests(), list[tuple[Any, ...]]()

    def cares(kind: type[Message]) -> bool:
        return kind is Say

    refused = RefusedSends(
        cast(Driver, driver), cast(Requests, requests), cares, lambda *arguments: told.append(arguments)
    )
    return refused, driver, requests, told


Rig = tuple[RefusedSends, LaterDriver, NotedRequests, list[tuple[Any, ...]]]


def test_refusals_are_told_once_with_their_number(rig: Rig) -> None:
    refused, driver, requests, told = rig
    for _ in range(1000):
        refused.frame_refused(peer(1), encode(Say(1)), SendRefusal.QUEUE_FULL)
    refused.frame_refused(peer(1), encode(Ask(1)), SendRefusal.QUEUE_FULL)
    refused.frame_refused(peer(1), encode_reply(Say(1), 5), SendRefusal.QUEUE_FULL)
    refused.frame_refused(peer(2), encode_request(Say(1), 7), SendRefusal.PEER_DOWN)
    assert told == [] and requests.failed == [] and len(driver.later) == 1
    driver.later.pop()()
    assert told == [(peer(1), Say, SendRefusal.QUEUE_FULL, 1000)]
    assert requests.failed == [(NodeId(2), 7)]
    refused.frame_refused(peer(1), encode(Say(1)), SendRefusal.PEER_DOWN)
    driver.later.pop()()
    assert told[1:] == [(peer(1), Say, SendRefusal.PEER_DOWN, 1)]


def test_so_many_refusals_are_told_at_once_and_no_more(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "REFUSALS_TOLD_MAX", 3)
    refused, driver, _, told = rig
    for number in (1, 2, 3, 4, 1):
        refused.note(peer(number), Say.TYPE_ID, SendRefusal.UNKNOWN_MESSAGE)
    driver.later.pop()()
    assert [(each[0].id, each[3]) for each in told] == [(1, 2), (2, 1), (3, 1)]


def test_a_peer_is_told_of_a_type_once_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_sends, "UNKNOWN_TOLD_MAX", 2)
    told = UnknownTold()
    assert told.is_due(NodeId(1), 9, 0.0) and not told.is_due(NodeId(1), 9, UNKNOWN_TOLD_INTERVAL_S - 1)
    assert told.is_due(NodeId(1), 9, UNKNOWN_TOLD_INTERVAL_S)
    assert told.is_due(NodeId(1), 8, 100.0) and told.is_due(NodeId(2), 9, 100.0), "other types, other peers"
    assert told.is_due(NodeId(1), 9, 100.0), "forgotten: so many are remembered"
    assert not told.is_due(NodeId(2), 9, 101.0)
