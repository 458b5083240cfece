"""The comparison of measurement queries with scraping: bytes are counted, and answers are judged."""

from __future__ import annotations

import selectors
import socket
from collections import Counter

import msgspec
import pytest

from bench import raw
from bench.measure import BenchFailure
from bench.measurement.clients import Clients, Connection, Value, read
from bench.measurement.scraping import Exporters
from bench.processes import LOOPBACK

ANSWER = b'{"values":[%s],"missing":[],"messages":2}'
VALUE = b'{"node":"%s","low":0.1,"high":0.2,"age_s":%s,"stale":false}'


def http(body: bytes, status: bytes = b"200 OK") -> bytes:
    return b"HTTP/1.1 %s\r\nContent-Length: %d\r\n\r\n%s" % (status, len(body), body)


@pytest.mark.parametrize("wrong", [{"age_s": 5.01}, {"high": 0.2001}], ids=["too old", "too wide"])
def test_a_value_that_is_worse_than_was_asked_for_is_told_as_stale_or_is_no_value(wrong: dict[str, object]) -> None:
    good = {"node": "a", "low": 0.1, "high": 0.2, "age_s": 5.0, "stale": False}
    assert msgspec.convert(good, Value).node == "a"
    assert msgspec.convert({**good, **wrong, "stale": True}, Value).stale
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({**good, **wrong}, Value)


def test_an_answer_is_taken_when_it_is_whole_and_a_refusal_is_a_failure() -> None:
    whole = http(b"first") + http(b"second")
    data = bytearray()
    for byte in whole[:-1]:
        data.append(byte)
    assert raw.take_answer(data) == b"first"
    assert raw.take_answer(data) is None
    data += whole[-1:]
    assert raw.take_answer(data) == b"second"
    assert not data
    with pytest.raises(BenchFailure, match="too much"):
        raw.take_answer(bytearray(http(b"too much", b"503 Service Unavailable")))


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ([VALUE % (b"a", b"1")], "1 of 2 values"),
        ([VALUE % (b"a", b"1")] * 2, "2 of 2 values"),
        ([VALUE % (b"a", b"1"), VALUE % (b"b", b"6")], "not what was asked for: .* 6.0 s old"),
    ],
    ids=["one is missing", "one twice", "one is too old"],
)
def test_an_answer_that_lacks_something_is_a_failure(values: list[bytes], why: str) -> None:
    with pytest.raises(BenchFailure, match=why):
        asked(values)


def test_an_answer_is_found_with_what_it_has_cost() -> None:
    clients = asked([VALUE % (b"a", b"1"), VALUE.replace(b"false", b"true") % (b"b", b"6")])
    [(took_ms, messages)] = clients.found
    assert took_ms > 0
    assert (messages, clients.stale) == (2, 1)


def asked(values: list[bytes]) -> Clients:
    """What one client finds that asks once for the values of two nodes, and is answered so."""
    ours, theirs = socket.socketpair()
    with ours, theirs, selectors.DefaultSelector() as selector:
        client = Connection(ours)
        selector.register(ours, selectors.EVENT_READ, client)
        clients = Clients(selector, [client], 2)
        theirs.sendall(http(ANSWER % b",".join(values)))
        clients.ask(1.0, lambda client: read())
        assert theirs.recv(1 << 16) == read()
        return clients


def test_exporters_count_all_that_goes_over_their_connections() -> None:
    question = b"GET /7 HTTP/1.1\r\nHost: exporter\r\nAccept: text/plain\r\n\r\n"
    answers = []
    with Exporters() as exporters, socket.create_connection((LOOPBACK, exporters.port)) as sock:
        for _ in range(2):  # over one connection, as Prometheus asks
            data = bytearray()
            sock.sendall(question)
            while b"\ncpu " not in data or not data.endswith(b"\n"):
                data += raw.received(sock)
            answers.append(data)
    assert exporters.counts() == (2 * len(question), sum(map(len, answers)), Counter({b"/7": 2}))
    body = raw.take_answer(answers[0])
    assert body is not None
    assert 0.0 <= float(body.split()[-1]) <= 1.0
