"""Requests end once each, at their own times, though one timer does for all of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest
from hypothesis import given, strategies as st

from peerd.api import Priority
from peerd.driver import Driver
from peerd.errors import Bug
from peerd.ids import NodeId
from peerd.messages import Message, PeerRef
from peerd.node.requests import ANSWERED_KEPT_MIN, TIMER_EARLY_S, TIMER_LATE_S, Requests
from tests.support.talker import Say

PEER = PeerRef(NodeId(7), "10.0.0.1", 7420)


class Armed:
    """One timer."""

    def __init__(self, due_at: float, callback: Callable[[], None]) -> None:
        self.due_at, self.callback, self.is_armed = due_at, callback, True

    def cancel(self) -> None:
        self.is_armed = False


class Rig:
    """Requests on a clock that the test turns."""

    def __init__(self) -> None:
        self.time, self.timers, self.ended = 0.0, list[Armed](), list[tuple[str, float]]()
        self.sent: list[int] = []
        self.is_too_large = False
        self.requests = Requests(cast(Driver, self), self.guard, self.send)

    def send(self, peer: PeerRef, message: Message, correlation: int, priority: Priority) -> None:
        if self.is_too_large:
            raise Bug("over its cap")
        self.sent.append(correlation)

    def now(self) -> float:
        return self.time

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Armed:
        self.timers.append(Armed(self.time + delay_s, callback))
        return self.timers[-1]

    def guard(self, plugin: str, function: Callable[..., Any], *arguments: Any, cause: int | None = None) -> None:
        function(*arguments)

    def begin(self, name: str, timeout_s: float) -> int:
        self.requests.start(
            "test",
            PEER,
            Say(0),
            timeout_s,
            lambda reply, source: self.ended.append((f"{name} answered", self.time)),
            lambda: self.ended.append((name, self.time)),
            Priority.NORMAL,
            None,
        )
        return self.sent[-1]

    def armed(self) -> list[Armed]:
        return [timer for timer in self.timers if timer.is_armed]

    def turn(self, until: float, late_s: float = 0.0) -> None:
        while due := [timer for timer in self.armed() if timer.due_at <= until]:
            timer = min(due, key=lambda timer: timer.due_at)
            timer.is_armed = False
            self.time = max(self.time, timer.due_at + late_s)
            timer.callback()
            self.requests.validate()
            self.timers = self.armed()
        self.time = max(self.time, until)


@given(timeouts=st.lists(st.floats(0.01, 10.0), min_size=1, max_size=30), data=st.data())
def test_each_ends_at_its_time_or_is_answered(timeouts: list[float], data: st.DataObject) -> None:
    rig = Rig()
    numbers = [rig.begin(str(index), timeout_s) for index, timeout_s in enumerate(timeouts)]
    answered = data.draw(st.sets(st.integers(0, len(timeouts) - 1)))
    for index in answered:
        rig.requests.replied(PEER, numbers[index], Say(1))
    assert len(rig.armed()) == 1
    rig.ended.clear()
    rig.turn(20.0)
    assert {name for name, _ in rig.ended} == {str(index) for index in range(len(timeouts)) if index not in answered}
    for name, at in rig.ended:
        assert at == pytest.approx(timeouts[int(name)], abs=2 * TIMER_EARLY_S)
    assert not len(rig.requests) and not rig.armed()


def test_answered_requests_are_not_kept_for_long() -> None:
    rig = Rig()
    for number in range(10 * ANSWERED_KEPT_MIN):
        rig.requests.replied(PEER, rig.begin(str(number), 1000.0), Say(1))
        assert len(rig.requests._dues) <= ANSWERED_KEPT_MIN + 2


def test_a_node_that_stood_still_waits_once_more() -> None:
    rig = Rig()
    rig.begin("a", 1.0)
    rig.turn(1.0, late_s=2 * TIMER_LATE_S)
    assert not rig.ended and len(rig.armed()) == 1
    rig.turn(5.0)
    assert rig.ended == [("a", 2.0 + 2 * TIMER_LATE_S)]


def test_what_a_callback_raises_keeps_no_other_from_ending() -> None:
    rig = Rig()

    def fails() -> None:
        raise ValueError("a callback")

    rig.requests.start("test", PEER, Say(0), 1.0, lambda reply, source: None, fails, Priority.NORMAL, None)
    rig.begin("b", 2.0)
    with pytest.raises(ValueError, match="a callback"):
        rig.turn(3.0)
    rig.turn(3.0)
    assert rig.ended == [("b", 2.0)]


def test_what_cannot_be_sent_does_not_time_out() -> None:
    rig = Rig()
    rig.is_too_large = True
    with pytest.raises(Bug, match="over its cap"):
        rig.begin("a", 1.0)
    rig.requests.validate()
    assert not len(rig.requests)
    rig.turn(5.0)
    assert not rig.ended


def test_a_node_that_stops_waits_for_nothing() -> None:
    rig = Rig()
    rig.begin("a", 1.0)
    rig.requests.clear()
    rig.turn(5.0)
    assert not rig.ended and not rig.armed()
