"""Request bodies of JSON lines, with the real server: validation, back-pressure, bounds, clients that stop."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given, strategies as st

from peerd.client import DaemonUnreachable, IngestRefused
from peerd.daemon.http import ingest
from peerd.daemon.tasks import spawn
from tests.support.feeds import Rig, serving, until

LINES = {"content-type": "application/x-ndjson"}


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    async with serving(tmp_path) as running:
        yield running


async def post(rig: Rig, body: bytes | AsyncIterator[bytes], **headers: str) -> httpx.Response:
    async with httpx.AsyncClient(base_url=rig.url) as http:
        return await http.post("/v1/notes", content=body, headers=LINES | headers)


def notes(*texts: str) -> bytes:
    return b"".join(json.dumps({"text": text}).encode() + b"\n" for text in texts)


async def test_every_line_is_taken_and_counted(rig: Rig) -> None:
    response = await post(rig, notes("a", "b") + b"\n \r\n" + notes("c").rstrip())
    assert response.status_code == 200
    assert response.json() == {"accepted": 3, "refused": 0, "errors": [], "is_complete": True, "detail": ""}
    assert rig.notes.taken == ["a", "b", "c"]


async def test_refused_lines_are_named_by_number_and_the_others_are_taken(rig: Rig) -> None:
    body = notes("a") + b'{"text": 5}\n\nnonsense\n' + notes("unwanted", "b") + b"\xff\n"
    response = await post(rig, body)
    told = response.json()
    assert (response.status_code, response.headers["content-type"]) == (422, "application/problem+json")
    assert (told["accepted"], told["refused"], told["is_complete"]) == (2, 4, True)
    assert told["detail"] == "4 lines refused"
    by_line = {error["line"]: error["detail"] for error in told["errors"]}
    assert list(by_line) == [2, 4, 5, 7]
    assert "text: " in by_line[2] and "not JSON" in by_line[4] and by_line[5] == "this text is not wanted"
    assert rig.notes.taken == ["a", "b"]


async def test_too_many_refusals_end_it(rig: Rig) -> None:
    told = (await post(rig, b"{}\n" * (ingest.REFUSED_MAX + 5) + notes("late"))).json()
    assert (told["refused"], len(told["errors"])) == (ingest.REFUSED_MAX, ingest.REFUSED_MAX + 1)
    assert told["errors"][-1]["is_rest"]
    assert not told["is_complete"] and rig.notes.taken == []


async def test_a_line_that_is_too_long_ends_it_with_what_came_before(rig: Rig) -> None:
    response = await post(rig, notes("a", "x" * ingest.LINE_BYTES_MAX, "b"))
    told = response.json()
    assert (response.status_code, told["accepted"], told["is_complete"]) == (413, 1, False)
    assert told["detail"] == f"line 2 has more than {ingest.LINE_BYTES_MAX} bytes; the rest was not read"


async def test_a_line_of_the_greatest_length_is_taken(rig: Rig) -> None:
    text = "x" * (ingest.LINE_BYTES_MAX - len('{"text": ""}'))
    assert (await post(rig, notes(text))).json()["accepted"] == 1


async def test_what_is_left_of_an_unwanted_body_is_read_so_that_the_client_hears_why(rig: Rig) -> None:
    response = await post(rig, b"x" * 4_000_000)
    assert response.status_code == 413 and "connection" not in response.headers


async def test_an_endless_body_is_cut_off_with_the_answer(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ingest, "LINGER_BYTES_MAX", 100_000)
    reader, writer = await rig.connect(
        "POST /v1/notes HTTP/1.1", "Content-Type: application/x-ndjson", "Content-Length: 900000000"
    )
    answer = asyncio.Event()

    async def write() -> None:
        with suppress(ConnectionError):
            while not answer.is_set():
                writer.write(b"x" * 10_000)
                await writer.drain()

    async with asyncio.TaskGroup() as group:
        group.create_task(write())
        head = await rig.head(reader)
        answer.set()
    assert "413" in head.splitlines()[0] and "connection: close" in head.lower()
    writer.close()
    with suppress(ConnectionError):
        await writer.wait_closed()


async def test_the_owner_may_give_up(rig: Rig) -> None:
    response = await post(rig, notes("a", "full", "b"))
    told = response.json()
    assert (response.status_code, told["accepted"], told["detail"]) == (503, 1, "there is no room")
    assert told["errors"] == [{"line": 2, "detail": "there is no room", "outcome": "failed", "is_rest": True}]
    assert rig.notes.taken == ["a"]


async def test_the_answer_waits_for_what_shows_later_and_names_it(rig: Rig) -> None:
    posted = spawn(post(rig, notes("a", *["later"] * 5, "unwanted")), name="post")
    await until(lambda: len(rig.notes.later) == 5)
    silent = ingest.LineFailed("a leaf is silent", "unknown")
    fates = [silent, None, silent, ingest.LineFailed("it was not sent"), silent]
    for fate, failed in [*zip(rig.notes.later, fates, strict=True)][1:]:
        fate.set_result(failed)
    await asyncio.sleep(0)
    assert not posted.done()
    rig.notes.later[0].set_result(fates[0])
    response = await posted
    told = response.json()
    assert (response.status_code, told["accepted"], told["failed"], told["refused"]) == (503, 2, 4, 1)
    assert told["errors"] == [
        {"line": 2, "detail": "a leaf is silent", "outcome": "unknown"},
        {"line": 4, "detail": "a leaf is silent", "outcome": "unknown"},
        {"line": 5, "detail": "it was not sent", "outcome": "failed"},
        {"line": 6, "detail": "a leaf is silent", "outcome": "unknown"},
        {"line": 7, "detail": "this text is not wanted"},
    ]


async def test_reading_ends_when_too_much_has_failed_and_lines_in_a_row_are_told_together(rig: Rig) -> None:
    fails = ingest.REFUSED_MAX

    async def body() -> AsyncIterator[bytes]:
        yield notes(*["later"] * fails)
        await until(lambda: len(rig.notes.later) == fails)
        for fate in rig.notes.later:
            fate.set_result(ingest.LineFailed("no", "unknown"))
        yield notes("a", "b")

    told = (await post(rig, body())).json()
    assert (told["accepted"], told["failed"], told["is_complete"]) == (0, fails, False)
    first, rest = told["errors"]
    assert first == {"line": 1, "last": fails, "detail": "no", "outcome": "unknown"}
    assert (rest["line"], rest["is_rest"], rest["outcome"]) == (fails + 1, True, "failed")


async def test_a_client_that_sends_slowly_hears_that_its_lines_are_not_taken_here_any_more(rig: Rig) -> None:
    """As where a stream is handed over: the answer comes when the rest of the body was read, and is not lost."""

    async def slowly() -> AsyncIterator[dict[str, str]]:
        for text in ("a", "b", "elsewhere"):
            yield {"text": text}
        await rig.notes.waiting.wait()
        for _ in range(100):
            await asyncio.sleep(0)
            yield {"text": "c"}

    async with rig.client() as client:
        with pytest.raises(IngestRefused) as refused:
            await client.send_lines("/v1/notes", slowly())
    told = refused.value
    assert (told.problem.status, told.answer.accepted, told.answer.is_complete) == (404, 2, False)
    assert told.answer.detail == "notes are taken elsewhere" and rig.notes.taken == ["a", "b"]


async def test_where_no_line_was_taken_the_refusal_is_the_answer(rig: Rig) -> None:
    response = await post(rig, notes("elsewhere", "a"))
    assert (response.status_code, response.json()["detail"]) == (404, "notes are taken elsewhere")
    assert "accepted" not in response.json() and rig.notes.taken == []


async def test_another_content_type_is_refused_before_the_body_is_read(rig: Rig) -> None:
    reader, writer = await rig.connect(
        "POST /v1/notes HTTP/1.1", "Content-Type: text/plain", "Content-Length: 500", "Expect: 100-continue"
    )
    assert "415" in (await rig.head(reader)).splitlines()[0], "and no 100 Continue before it"
    writer.close()
    await writer.wait_closed()


async def test_who_asks_first_is_told_to_go_on(rig: Rig) -> None:
    body = notes("a")
    reader, writer = await rig.connect(
        "POST /v1/notes HTTP/1.1",
        "Content-Type: application/x-ndjson; charset=utf-8",
        f"Content-Length: {len(body)}",
        "Expect: 100-continue",
    )
    assert "100 Continue" in await rig.head(reader)
    writer.write(body)
    assert "200 OK" in await rig.head(reader)
    writer.close()
    await writer.wait_closed()


async def test_a_slow_owner_holds_the_sender_back(rig: Rig) -> None:
    rig.notes.room.clear()
    sent = 0

    async def body() -> AsyncIterator[bytes]:
        nonlocal sent
        for _ in range(2000):
            sent += 1
            yield notes("x" * 20_000)

    async with asyncio.TaskGroup() as group:
        posting = group.create_task(post(rig, body()))
        await rig.notes.waiting.wait()
        stable = -1
        while stable != sent:  # until the sender is stuck
            stable = sent
            for _ in range(200):
                await asyncio.sleep(0)
        assert 0 < sent < 1000, "40 MB are offered, and the daemon has taken one line"
        assert rig.notes.taken == []
        rig.notes.room.set()
    assert posting.result().json()["accepted"] == 2000


async def test_what_was_taken_stays_when_the_client_hangs_up(rig: Rig) -> None:
    _, writer = await rig.connect(
        "POST /v1/notes HTTP/1.1", "Content-Type: application/x-ndjson", "Content-Length: 5000"
    )
    writer.write(notes("a"))
    await until(lambda: rig.notes.taken == ["a"])
    writer.close()
    await writer.wait_closed()
    assert (await post(rig, notes("b"))).status_code == 200
    assert rig.notes.taken == ["a", "b"]


async def test_a_client_that_stops_sending_is_told(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ingest, "IDLE_MAX_S", 0.05)
    reader, writer = await rig.connect(
        "POST /v1/notes HTTP/1.1", "Content-Type: application/x-ndjson", "Content-Length: 5000"
    )
    writer.write(notes("a"))
    assert "408" in (await rig.head(reader)).splitlines()[0]
    assert json.loads(await reader.read(10_000))["accepted"] == 1
    writer.close()
    await writer.wait_closed()


async def test_only_routes_that_take_lines_take_long_bodies(rig: Rig) -> None:
    body = b"{}\n" * 100_000
    async with httpx.AsyncClient(base_url=rig.operators_url) as http:
        assert (await http.post("/v1/ring/check", content=body, headers=LINES)).status_code == 413


# --- the client -----------------------------------------------------------------------------------------------------


async def test_the_client_sends_what_it_is_given(rig: Rig) -> None:
    async def several() -> AsyncIterator[Any]:
        for text in "cd":
            yield {"text": text}

    async with rig.client() as client:
        assert (await client.send_lines("/v1/notes", [{"text": "a"}, {"text": "b"}])).accepted == 2
        assert (await client.send_lines("/v1/notes", several())).accepted == 2
        with pytest.raises(IngestRefused, match="1 line refused") as refused:
            await client.send_lines("/v1/notes", [{"text": "e"}, {"text": 1}])
    assert refused.value.answer.errors[0].line == 2 and refused.value.answer.accepted == 1
    assert rig.notes.taken == list("abcde")


async def test_the_client_says_that_nobody_is_there(rig: Rig) -> None:
    await rig.server.stop()
    async with rig.client() as client:
        with pytest.raises(DaemonUnreachable):
            await client.send_lines("/v1/notes", [])


# --- cutting into lines ---------------------------------------------------------------------------------------------


def pieces(body: bytes, cuts: list[int]) -> Iterator[bytes]:
    places = sorted({cut % (len(body) + 1) for cut in cuts})
    yield from (body[first:last] for first, last in zip([0, *places], [*places, len(body)], strict=True))


@given(st.lists(st.text("ab \r", max_size=5)), st.lists(st.integers(0, 1000), max_size=8), st.booleans())
async def test_lines_do_not_depend_on_how_the_body_arrives(texts: list[str], cuts: list[int], is_ended: bool) -> None:
    body = "\n".join(texts).encode() + (b"\n" if is_ended else b"")

    async def arriving() -> AsyncIterator[bytes]:
        for piece in pieces(body, cuts):
            yield piece

    found = [each async for some in ingest._lines(arriving(), 100) for each in some]  # type: ignore[arg-type]  # a generator in all but its name
    expected = [(number, line) for number, line in enumerate(body.split(b"\n"), 1) if line.strip()]
    assert found == expected


async def test_what_was_not_taken_of_some_lines_is_given_again_and_nothing_overtakes_a_refused_line() -> None:
    given: list[list[int]] = []

    async def accept(lines: Sequence[int], told: ingest.ToldLine) -> int:
        given.append(list(lines))
        for index in range(len(lines[:2])):
            told(index, None)
        return len(lines[:2])

    async def pay(price_s: float) -> None:
        raise AssertionError("these lines are not charged")

    taking = ingest._Taking(ingest._reader_of(int), accept, pay)
    await taking.take([(1, b"1"), (2, b"2"), (4, b"3"), (5, b"x"), (6, b"4")])
    assert given == [[1, 2, 3], [3], [4]]
    told = json.loads(bytes(taking.answer().body))
    assert (told["accepted"], [error["line"] for error in told["errors"]]) == (4, [5])
