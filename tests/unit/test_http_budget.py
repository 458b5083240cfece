"""Which request gives way when as many are under way as a listener takes."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import pytest

from peerd.daemon.http.budget import RequestBudget
from peerd.daemon.http.caller import STATE_KEY, Caller, ListenerName


class Requests:
    """Requests under way, and which of them were ended."""

    def __init__(self, stack: ExitStack) -> None:
        self.budget = RequestBudget()
        self.ended: list[str] = []
        self._stack = stack

    def scope(self, name: str, user: int = 1, process: int = 1, address: str = "") -> dict[str, Any]:
        """The scope of a request of a process, or of one that came over TCP."""
        listener: ListenerName = "data_http" if address else "admin_socket"
        user_id = None if address else user
        caller = Caller(listener, address, user_id, process, hang_up=lambda: self.ended.append(name))
        return {"state": {STATE_KEY: caller}}

    def begin(self, count: int, name: str, **whose: Any) -> None:
        """So many requests of one process."""
        for number in range(count):
            self._stack.enter_context(self.budget.counted(self.scope(f"{name}{number}", **whose)))


@pytest.fixture
def requests() -> Any:
    with ExitStack() as stack:
        yield Requests(stack)


def test_the_oldest_request_of_the_process_with_most_gives_way(requests: Requests) -> None:
    requests.begin(2, "a", process=1)
    requests.begin(5, "b", process=2)
    assert requests.budget.make_room(requests.scope("new", process=3))
    assert requests.budget.make_room(requests.scope("new", process=3))
    assert requests.ended == ["b0", "b1"] and len(requests.budget) == 5


def test_whoever_has_most_gets_no_more(requests: Requests) -> None:
    requests.begin(5, "b", process=2)
    assert not requests.budget.make_room(requests.scope("new", process=2))
    requests.begin(4, "a", process=1)
    assert not requests.budget.make_room(requests.scope("new", process=1)), "they would only take turns"
    assert not requests.ended


def test_users_are_compared_before_their_processes(requests: Requests) -> None:
    for process in range(6):
        requests.begin(1, f"p{process}.", user=7, process=process)
    requests.begin(2, "q", user=8, process=100)
    assert requests.budget.make_room(requests.scope("new", user=8, process=100))
    assert requests.ended == ["p0.0"]
    assert not requests.budget.make_room(requests.scope("new", user=7, process=99))


def test_over_tcp_addresses_are_compared(requests: Requests) -> None:
    requests.begin(3, "a", address="10.0.0.1:5000")
    requests.begin(1, "b", address="10.0.0.2:5000")
    assert not requests.budget.make_room(requests.scope("new", address="10.0.0.1:6000"))
    assert requests.budget.make_room(requests.scope("new", address="10.0.0.3:6000"))
    assert requests.ended == ["a0"]


def test_a_request_that_has_ended_is_not_counted(requests: Requests) -> None:
    with requests.budget.counted(requests.scope("a")):
        assert len(requests.budget) == 1
    assert len(requests.budget) == 0 and not requests.budget.make_room(requests.scope("new"))
