"""Following a stream across lost connections: transcripts with a scripted daemon, then the real server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from peerd.client import Client, DaemonUnreachable, RequestRefused
from peerd.client.streams import Backoff, Dropped, End, Gap, Item, StreamEntry, follow
from peerd.errors import Unavailable
from peerd.lib.feed import Feed
from peerd.models.admin import Problem
from tests.support.feeds import Rig, serving, until

AT_ONCE = Backoff(first_s=0.0)


class Script:
    """A daemon that answers each connection with the next list of lines; an exception in it is raised there."""

    def __init__(self, *connections: list[bytes | Exception]) -> None:
        self._connections = iter(connections)
        self.asked: list[str | None] = []

    async def connect(self, after: str | None) -> AsyncGenerator[bytes, None]:
        """See `peerd.client.streams.Connect`."""
        self.asked.append(after)
        for line in next(self._connections):
            if isinstance(line, Exception):
                raise line
            yield line


def item(number: int) -> bytes:
    return b'{"type":"item","id":"e-%d","data":%d}' % (number, number)


def end(number: int, is_final: bool) -> bytes:
    return b'{"type":"end","id":"e-%d","reason":"r","is_final":%s}' % (number, b"true" if is_final else b"false")


HEARTBEAT = b'{"type":"heartbeat","id":"e-7"}'


async def followed(script: Script, after: str | None = None, backoff: Backoff = AT_ONCE) -> list[StreamEntry]:
    return [entry async for entry in follow(script.connect, after, backoff)]


async def test_a_cut_connection_is_resumed_after_the_last_entry() -> None:
    script = Script([item(1), item(2), Unavailable("cut")], [], [item(3), end(3, True)])
    found = await followed(script)
    assert [entry.id for entry in found] == ["e-1", "e-2", "e-3", "e-3"]
    assert script.asked == [None, "e-2", "e-2"]


async def test_a_lost_connection_is_told_at_once_and_once() -> None:
    told: list[str] = []
    script = Script(
        [item(1), Unavailable("cut")], [Unavailable("refused")], [], [item(2)], [end(2, False)], [end(3, True)]
    )
    await followed(script, backoff=Backoff(first_s=0.0, tell=told.append))
    lost = "connection lost, trying again"
    assert told == [f"{lost} (cut)", "connected again", f"{lost} (it ended without a word)", "connected again"]


async def test_a_daemon_that_is_back_and_has_forgotten_what_is_followed_is_there_again() -> None:
    told: list[str] = []
    gone = RequestRefused(Problem(title="Not Found", status=404, detail="no such subscription"))
    with pytest.raises(RequestRefused):
        await followed(Script([item(1), Unavailable("cut")], [gone]), backoff=Backoff(first_s=0.0, tell=told.append))
    assert told == ["connection lost, trying again (cut)", "connected again"]


async def test_who_says_nothing_else_is_told_on_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    await followed(Script([item(1), Unavailable("cut")], [end(1, True)]))
    assert capsys.readouterr().err == "-- connection lost, trying again (cut)\n-- connected again\n"


async def test_a_heartbeat_moves_the_place_and_is_not_shown() -> None:
    script = Script([HEARTBEAT], [end(7, True)])
    assert await followed(script, "e-1") == [End(id="e-7", reason="r", is_final=True)]
    assert script.asked == ["e-1", "e-7"]


async def test_marks_come_typed_and_an_end_that_is_not_final_is_no_end() -> None:
    gap = b'{"type":"gap","id":"e-4","reason":"expired","first":2,"last":4,"count":3}'
    restarted = b'{"type":"gap","id":"f-0","reason":"restarted","first":null,"last":null,"count":null}'
    dropped = b'{"type":"dropped","id":"e-9","first":5,"last":9,"count":5,"a new field":1}'
    script = Script([gap, dropped, end(9, False)], [restarted, end(0, True)])
    found = await followed(script)
    assert found == [
        Gap(id="e-4", reason="expired", first=2, last=4, count=3),
        Dropped(id="e-9", first=5, last=9, count=5),
        End(id="e-9", reason="r", is_final=False),
        Gap(id="f-0", reason="restarted", first=None, last=None, count=None),
        End(id="e-0", reason="r", is_final=True),
    ]


async def test_without_a_first_connection_it_raises_at_once() -> None:
    with pytest.raises(Unavailable, match="nobody"):
        await followed(Script([Unavailable("nobody")]))


async def test_it_gives_up_when_it_was_told_to() -> None:
    script = Script([item(1)], [Unavailable("gone")], [Unavailable("gone for good")])
    seen = []
    with pytest.raises(Unavailable, match="gone"):
        async for entry in follow(script.connect, None, Backoff(first_s=0.0, give_up_s=0.0)):
            seen.append(entry)  # noqa: PERF401  # what came before the error is asserted
    assert [entry.id for entry in seen] == ["e-1"]


async def test_what_is_not_a_matter_of_time_is_raised() -> None:
    with pytest.raises(PermissionError):
        await followed(Script([item(1)], [PermissionError()]))


@given(st.integers(0, 10_000), st.floats(0.01, 1.0), st.floats(1.0, 60.0))
def test_pauses_are_bounded(failures: int, first_s: float, most_s: float) -> None:
    assert 0 <= Backoff(first_s, most_s).pause_s(failures) <= min(most_s, first_s * 2.0 ** min(failures, 16))


def test_pauses_differ_between_clients() -> None:
    assert len({Backoff().pause_s(5) for _ in range(20)}) > 10


# --- with the real server -------------------------------------------------------------------------------------------


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    async with serving(tmp_path) as running:
        yield running


async def test_the_client_follows_the_events_that_it_wants(rig: Rig) -> None:
    events = rig.daemon.events
    async with Client(rig.operators_url) as client, aclosing(client.events("overlay.*", after="start")) as entries:
        for kind in ("overlay.a", "node.b", "overlay.c"):
            events.push({"event": kind})
        events.end("over", is_final=True)
        found = [entry async for entry in entries]
    assert [entry.data["event"] for entry in found if isinstance(entry, Item)] == ["overlay.a", "overlay.c"]
    assert isinstance(found[-1], End) and len(found) == 3


async def test_a_server_that_comes_back_is_found_again(tmp_path: Path) -> None:
    """The server goes down in order, another one takes its socket, and its feed has begun anew."""
    socket = tmp_path / "admin.sock"
    async with Client(socket) as client:
        async with serving(tmp_path, http="") as first:
            entries = client.follow("/v1/notes", backoff=AT_ONCE)
            first.notes.feed.push("a")
            assert await anext(entries) == Item(id="e1-1", data="a")
            first.notes.feed.end("daemon stopping")
        assert await anext(entries) == End(id="e1-1", reason="daemon stopping", is_final=False)
        async with serving(tmp_path, http="") as second:
            second.notes.feed = Feed("e2")
            second.notes.feed.push("b")
            gap = await anext(entries)
            assert isinstance(gap, Gap) and (gap.reason, gap.count) == ("restarted", None)
            assert await anext(entries) == Item(id="e2-1", data="b")
            await entries.aclose()
            await until(lambda: second.notes.feed.readers == 0)


class Cutter:
    """Passes bytes between clients and a server, and cuts every connection when told."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._writers: list[asyncio.StreamWriter] = []
        self.connections = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One client."""
        self.connections += 1
        onward_reader, onward = await asyncio.open_connection("127.0.0.1", self._port)
        self._writers += [writer, onward]
        async with asyncio.TaskGroup() as group:
            group.create_task(self._pass(reader, onward))
            group.create_task(self._pass(onward_reader, writer))

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(1000):
                writer.write(data)
        except ConnectionError:
            pass
        finally:
            writer.close()

    def cut(self) -> None:
        """Now, and whatever is under way is lost."""
        for writer in self._writers:
            transport: Any = writer.transport
            transport.abort()
        self._writers.clear()


async def test_nothing_is_lost_or_doubled_over_connections_that_are_cut(rig: Rig) -> None:
    assert rig.server.data_http_port is not None
    cutter = Cutter(rig.server.data_http_port)
    relay = await asyncio.start_server(cutter.serve, "127.0.0.1", 0)
    port = relay.sockets[0].getsockname()[1]
    found = []
    async with (
        Client(f"http://127.0.0.1:{port}") as client,
        aclosing(client.follow("/v1/notes", backoff=AT_ONCE)) as entries,
    ):
        for number in range(1, 301):
            rig.notes.feed.push(number)
            if number % 50 == 0:
                cutter.cut()
            entry = await anext(entries)
            assert isinstance(entry, Item)
            found.append(entry.data)
    assert found == list(range(1, 301))
    assert cutter.connections >= 6
    relay.close()
    cutter.cut()
    await relay.wait_closed()


async def test_a_refusal_is_an_error_and_no_reason_to_come_back(rig: Rig) -> None:
    async with rig.client() as client:
        with pytest.raises(RequestRefused, match="id of an item"):
            await anext(client.follow("/v1/notes", after="wrong"))
        with pytest.raises(RequestRefused, match="no peerd"):
            await anext(client.follow("/v1/openapi.json"))


async def test_nobody_there_is_an_error(tmp_path: Path) -> None:
    async with Client(tmp_path / "none.sock") as client:
        with pytest.raises(DaemonUnreachable):
            await anext(client.events())
