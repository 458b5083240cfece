"""The comparison of publish/subscribe with brokers: its work is the same for all, and wrong results are failures."""

from __future__ import annotations

import json
import lzma
import os
import resource
import shutil
import socket
import statistics
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from bench.measure import BenchFailure
from bench.processes import Conversation
from bench.pubsub.trades import DATA, DOCUMENT, SELECTIVITY, Interest, TradeWork, draw, work_of
from bench.rivals import systems
from bench.rivals.clients import tcp_received_bytes
from bench.rivals.systems import System, many_descriptors, why_not
from protocols.pubsub.schema.event_schema import EventSchema

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the benchmark reads /proc")


@pytest.fixture
def made_up(monkeypatch: pytest.MonkeyPatch) -> TradeWork:
    monkeypatch.delenv(DATA, raising=False)
    return draw(trades=400, subscribers=120)


def test_a_filter_and_the_function_for_brokers_want_the_same(made_up: TradeWork) -> None:
    schema = EventSchema.read(DOCUMENT)
    for interest in made_up.interests:
        matches = schema.matcher(schema.parse_filter(interest.text()))
        wants = interest.function()
        assert [matches(trade) for trade in made_up.trades] == [wants(trade) for trade in made_up.trades]


def test_about_one_trade_in_a_hundred_is_wanted(made_up: TradeWork) -> None:
    due = made_up.due(len(made_up.interests), 0, len(made_up.trades))
    assert 0.5 * SELECTIVITY < statistics.mean(due) / len(made_up.trades) < 2 * SELECTIVITY
    assert not made_up.is_real


def test_work_is_the_same_in_every_run_and_after_a_way_through_json(made_up: TradeWork) -> None:
    assert draw(trades=400, subscribers=120) == made_up
    assert work_of(json.loads(json.dumps(made_up.to_json()))) == made_up


def test_trades_begin_again_where_there_are_no_more() -> None:
    work = TradeWork([{"symbol": "A"}, {"symbol": "B"}], [Interest(symbol="A"), Interest(symbol="B")], False)
    assert work.due(2, first=1, count=4) == [2, 2]
    assert work.due(1, first=0, count=1) == [1]


def test_recorded_trades_are_taken_where_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [f"IBM,1990-01-{day:02},1,2,0.5,{day}.25,{100 * day}" for day in range(1, 29)] * 10
    file = tmp_path / "stocks" / "some.csv.xz"
    file.parent.mkdir()
    file.write_bytes(lzma.compress("\n".join(["symbol,date,open,high,low,close,volume", *rows]).encode()))
    monkeypatch.setenv(DATA, str(tmp_path))
    work = draw(trades=5, subscribers=2)
    assert work.is_real
    assert all(trade["symbol"] == "IBM" and trade["volume"] == 100 * (trade["price"] - 0.25) for trade in work.trades)


def test_bytes_of_connections_are_counted_as_the_kernel_counts_them() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as sender:
        receiver, _ = server.accept()
        with receiver:
            before = tcp_received_bytes()
            sender.sendall(bytes(12_345))
            received = 0
            while received < 12_345:
                received += len(receiver.recv(65_536))
            assert tcp_received_bytes() - before == 12_345


def test_what_is_missing_for_a_broker_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name, path: None)
    assert "apt-get install nats-server" in why_not("NATS")
    assert "apt-get install mosquitto" in why_not("Mosquitto")
    monkeypatch.setattr(shutil, "which", lambda name, path: f"/usr/sbin/{name}")
    monkeypatch.setattr(systems, "find_spec", lambda name: None)
    assert "peerd[bench]" in why_not("NATS")


def test_descriptors_are_raised_for_the_comparison_only() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    with many_descriptors():
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] >= before[0]
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == before


# Measuring


class FakeClient:
    """A process of clients that answers what the test says."""

    def __init__(self, **answers: Any) -> None:
        self.process = SimpleNamespace(pid=os.getpid())
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self._answers = answers

    def ask(self, command: str, timeout_s: float = 1.0, **arguments: Any) -> dict[str, Any]:
        self.asked.append((command, arguments))
        answer: dict[str, Any] = self._answers.get(command, {})
        return answer


def a_system(found: dict[int, int], *, is_filtering: bool) -> tuple[System, FakeClient]:
    """Two subscribers in one process that found so many trades of those published: A, B, A."""
    work = TradeWork([{"symbol": symbol} for symbol in "ABA"], [Interest(symbol="A"), Interest(symbol="B")], False)
    finish = {"found": list(found.items()), "received_bytes": 900, "last_at": 7.0, "latencies_ms": [1.0, 3.0, 2.0]}
    client = FakeClient(begin={"received_bytes": 600}, finish=finish)
    publisher = FakeClient(publish={"began_at": 5.0, "ended_at": 6.0})
    pretended = [cast(Conversation, client)], cast(Conversation, publisher)
    system = System("fake", work, "here", ["here"], [], is_filtering, *pretended)
    system.join(2)
    return system, client


@pytest.mark.parametrize(("is_filtering", "messages"), [(True, 3), (False, 6)])
def test_a_broker_has_to_bring_everything_to_everybody(is_filtering: bool, messages: int) -> None:
    system, client = a_system({0: 2, 1: 1}, is_filtering=is_filtering)
    sample = system.measure(0, 3)
    assert ("finish", {"received": messages}) in client.asked
    assert (sample.events, sample.useful, sample.duration_s, sample.received_bytes) == (3, 3, 2.0, 300)


@pytest.mark.parametrize("found", [{0: 2}, {0: 2, 1: 2}, {0: 1, 1: 1}])
def test_a_subscriber_with_too_few_or_too_many_is_a_failure(found: dict[int, int]) -> None:
    system, _ = a_system(found, is_filtering=True)
    with pytest.raises(BenchFailure, match="exactly what it wanted"):
        system.measure(0, 3)


def test_only_new_subscribers_join() -> None:
    system, client = a_system({}, is_filtering=True)
    system.work = TradeWork([{"symbol": "A"}], [Interest(symbol="A")] * 5, False)
    system.join(4)
    joins = [arguments["members"] for command, arguments in client.asked if command == "join"]
    assert joins == [[(0, "here"), (1, "here")], [(2, "here"), (3, "here")]]
