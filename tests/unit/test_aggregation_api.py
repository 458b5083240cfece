"""``POST /v1/aggregate``: bodies, streams, limits, and clients that hang up."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import asdict, dataclass, replace
from typing import Any

import httpx
import pytest
from hypothesis import given, strategies as st

from peerd.client import Client, DaemonBusy, RequestRefused
from peerd.errors import Unavailable
from protocols.aggregation.answer import LINE, Answer, RoundProgress
from protocols.aggregation.figures import GroupedAnswer
from protocols.aggregation.front import http as api
from protocols.aggregation.front.client import AggregationClient, RoundSchedule, Skipped
from tests.support.fake_aggregation import ANSWER, PROGRESS, Call, FakeAggregation, FakeRequesting, answer_at_once
from tests.support.fake_daemon import FakeDaemon


@dataclass
class Rig:
    """The plugin behind the admin API, and two clients of it."""

    service: FakeRequesting
    http: httpx.AsyncClient
    client: Client

    async def post(self, **body: Any) -> httpx.Response:
        """The whole answer."""
        return await self.http.post("/v1/aggregate", json=body)


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    plugin = FakeAggregation()
    daemon = FakeDaemon({"aggregation": plugin})
    async with daemon.http() as http, daemon.client() as client:
        yield Rig(plugin.fake, http, client)


async def test_progress_then_the_answer_and_the_round_is_over(rig: Rig) -> None:
    rig.service.on_call = answer_at_once
    response = await rig.post(query="count by word where word != x", pattern=r"(?P<word>\w+)", deadline="1.5m")
    assert response.headers["content-type"] == "application/x-ndjson"
    assert response.headers["cache-control"] == "no-store"
    lines = [json.loads(line) for line in response.text.splitlines()]
    assert lines == [asdict(PROGRESS), ANSWER.to_json()]
    (call,) = rig.service.calls
    assert str(call.query) == "count by word where word != x"
    assert (call.query.format, call.deadline_s) == ("text", 90.0)
    assert rig.service.cancelled == [b"1"]


async def test_the_client_reads_it_typed(rig: Rig) -> None:
    rig.service.on_call = answer_at_once
    async with aclosing(
        AggregationClient(rig.client).aggregate("count by word", pattern=r"(?P<word>\w+)", top=2)
    ) as lines:
        progress, answer = [line async for line in lines]
    assert isinstance(progress, RoundProgress) and progress.stage == "enrolled"
    assert isinstance(answer, Answer) and isinstance(answer.value, GroupedAnswer)
    assert list(answer.value.groups.items()) == [("a", 3), ("b", 2)] and answer.value.groups_total == 3
    assert (answer.outcome, answer.contributors, answer.missing[0].reason) == ("partial", 2, "no answer")
    assert answer.report.notes == ("x.csv: odd",)


def test_an_answer_is_the_same_after_the_way_through_json() -> None:
    assert LINE.validate_json(LINE.dump_json(ANSWER)) == ANSWER
    assert LINE.validate_json(LINE.dump_json(PROGRESS)) == PROGRESS
    plain = ANSWER.to_json()
    assert (plain["outcome"], plain["value"]["exact"], plain["expected_basis"]) == ("partial", True, "leaf set")
    assert plain["completeness"] == pytest.approx(2 / 3)
    assert plain["missing"][0]["node"] == plain["contributor_ids"][0].replace("01", "03", 1)


@given(st.one_of(st.none(), st.integers(-(2**1023), 2**1023), st.floats(allow_nan=False, allow_infinity=False)))
def test_numbers_are_exact_after_the_way_through_json(value: float | None) -> None:
    back = LINE.validate_json(LINE.dump_json(replace(ANSWER, value=value)))
    assert isinstance(back, Answer) and back.value == value and type(back.value) is type(value)


def test_what_a_newer_daemon_adds_is_ignored() -> None:
    assert LINE.validate_python({**ANSWER.to_json(), "mood": "good"}) == ANSWER


async def test_a_query_may_come_in_parts(rig: Rig) -> None:
    rig.service.on_call = answer_at_once
    where = [{"field": "method", "operator": "=", "value": "GET"}]
    response = await rig.post(
        query={"function": "sum", "field": "bytes", "by": "user", "where": where}, files="a/*.csv"
    )
    assert response.status_code == 200
    (call,) = rig.service.calls
    assert str(call.query) == "sum(bytes) by user where method = GET"
    assert (call.query.files, call.query.format, call.deadline_s) == ("a/*.csv", "csv", 60.0)


async def test_parts_may_have_numbers_and_several_keys(rig: Rig) -> None:
    rig.service.on_call = answer_at_once
    parts = {"function": "quantile", "field": "ms", "arguments": [0.5], "by": ["host", "a b"]}
    assert (await rig.post(query=parts)).status_code == 200
    assert (await rig.post(query={"function": "count", "by": None})).status_code == 200
    assert [str(call.query) for call in rig.service.calls] == ['quantile(ms, 0.5) by host, "a b"', "count"]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"query": "count bye word"}, "count bye word\n        ^"),
        ({"query": "count", "pattern": "a(?=b)"}, "look-around"),
        ({"query": "count", "format": "text"}, "needs a pattern"),
        ({"query": {"function": "sum"}}, "needs a field"),
        ({"query": "count", "format": "xml"}, "format"),
        ({"query": "count", "deadline": "soon"}, "expected a duration"),
        ({"query": "count", "deadline": 0}, "at least 0.1"),
        ({"query": "count", "deadline": "2d"}, "at most 86400"),
        ({"query": "count", "top": 0}, "at least 1"),
        ({"query": "count by k", "groups_max": 200_001}, "`top` says how many to list"),
        ({"query": "count by k", "groups_max": 10_000_001, "top": 3}, "at most 10000000"),
        ({"query": "count", "fiels": "x"}, "fiels"),
        ({"query": "c" * 5000}, "at most"),
        ({}, "query"),
    ],
)
async def test_what_cannot_be_run_is_refused_with_a_reason(rig: Rig, body: dict[str, Any], words: str) -> None:
    response = await rig.post(**body)
    assert response.status_code == 422
    assert response.headers["content-type"] == "application/problem+json"
    assert words in response.json()["detail"]
    assert rig.service.calls == []


async def test_the_client_gets_the_reason(rig: Rig) -> None:
    with pytest.raises(RequestRefused, match="expected one of count"):
        await anext(AggregationClient(rig.client).aggregate("total"))


def test_late_rounds_are_skipped_and_not_made_up_for() -> None:
    schedule = RoundSchedule(100.0, 10.0)
    assert schedule.next(100.5) == (110.0, 0)
    assert schedule.next(110.0) == (120.0, 0)
    assert schedule.next(120.0) == (130.0, 0), "a round of no time"
    assert schedule.next(144.0) == (150.0, 1), "due at 140"
    assert schedule.next(150.0) == (160.0, 0)
    assert schedule.next(191.0) == (200.0, 3)


async def test_rounds_that_cannot_be_asked_for_are_skipped_but_the_first(rig: Rig) -> None:
    def reply(call: Call) -> None:
        rig.service.refusal = "busy" if len(rig.service.calls) == 1 else None
        call.listener.finished(ANSWER)

    rig.service.on_call = reply
    lines = []
    async with aclosing(AggregationClient(rig.client).every(0.1, "count by word", files="*.csv")) as found:
        async for line in found:
            lines.append(line)
            if isinstance(line, Skipped) and "busy" in line.reason:
                rig.service.refusal = None
            if sum(isinstance(each, Answer) for each in lines) == 2:
                break
    assert isinstance(lines[0], Answer) and isinstance(lines[-1], Answer)
    skipped = [line for line in lines if isinstance(line, Skipped)]  # a busy machine may be late for others as well
    assert [line.rounds for line in skipped if "busy" in line.reason] == [1]
    rig.service.refusal = "busy"
    with pytest.raises(DaemonBusy, match="busy"):
        await anext(AggregationClient(rig.client).every(0.1, "count"))


async def test_a_daemon_that_is_busy_says_so(rig: Rig) -> None:
    rig.service.refusal = "16 rounds are open here already"
    response = await rig.post(query="count")
    assert response.status_code == 503 and "16 rounds" in response.json()["detail"]


async def test_streams_are_bounded(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "STREAMS_MAX", 1)
    asked = asyncio.Event()
    rig.service.on_call = lambda call: asked.set()
    async with asyncio.TaskGroup() as group:
        first = group.create_task(rig.post(query="count"))
        await asked.wait()
        assert (await rig.post(query="count")).status_code == 503
        answer_at_once(rig.service.calls[0])
        assert (await first).status_code == 200
    rig.service.on_call = answer_at_once
    assert (await rig.post(query="count")).status_code == 200


async def test_a_round_that_never_answers_ends_with_an_error(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "ANSWER_GRACE_S", 0.0)
    response = await rig.post(query="count", deadline=0.1)
    (line,) = response.text.splitlines()
    assert json.loads(line)["type"] == "error"
    with pytest.raises(Unavailable, match="ended without an answer"):
        await anext(AggregationClient(rig.client).aggregate("count", deadline=0.1))
    assert rig.service.cancelled == [b"1", b"2"]


@pytest.mark.parametrize("when", ["before the first byte", "in the middle"])
async def test_hanging_up_ends_the_round(rig: Rig, when: str) -> None:
    """Plain ASGI, because httpx' transport cannot hang up."""
    app = rig.http._transport.app  # type: ignore[attr-defined]  # the application inside httpx' test transport
    body = json.dumps({"query": "count"}).encode()
    requests = iter([{"type": "http.request", "body": body, "more_body": False}])
    gone = asyncio.Event()
    if when == "before the first byte":
        gone.set()

    async def receive() -> dict[str, Any]:
        for request in requests:
            return request
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(event: dict[str, Any]) -> None:
        if event["type"] == "http.response.body" and event.get("body"):
            gone.set()

    def report(call: Call) -> None:
        assert call.listener.progress is not None
        call.listener.progress(PROGRESS)

    rig.service.on_call = report
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    scope: dict[str, Any] = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": "/v1/aggregate",
        "raw_path": b"/v1/aggregate",
        "query_string": b"",
        "headers": headers,
        "server": None,
        "client": None,
    }
    await asyncio.wait_for(app(scope, receive, send), 30)
    assert rig.service.cancelled == [b"1"]
    rig.service.calls[0].listener.finished(ANSWER)  # late: nobody listens, nothing happens


async def test_a_slow_reader_loses_progress_and_never_the_answer() -> None:
    reports, listener = api.open_feed()
    assert listener.progress is not None
    for number in range(1000):
        listener.progress(RoundProgress("aa", "enrolled", number, 1000, 1, None, 0.0))
    listener.finished(ANSWER)
    items = [item async for item in reports.items(1.0)]
    assert len(items) == api.PROGRESS_PENDING_MAX + 1
    assert items[-1] is ANSWER and isinstance(items[-2], RoundProgress) and items[-2].enrolled == 999


@given(st.floats(min_value=0.001, max_value=86_400).map(lambda value: round(value, 3)))
def test_deadlines_read_alike_as_text_and_as_number(deadline_s: float) -> None:
    as_text = api.parse_deadline(f"{deadline_s:.3f}s")
    assert as_text == pytest.approx(deadline_s) and api.parse_deadline(deadline_s) == deadline_s
