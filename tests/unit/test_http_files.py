"""Files as answers over HTTP: pieces as they come, and a connection that is cut off where one does not come."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from fastapi import HTTPException, Request
from starlette.types import Message

from peerd.daemon.http.caller import STATE_KEY, Caller
from peerd.daemon.http.files import file_answer
from peerd.errors import Unavailable

CONTENT = bytes(range(100))
PIECE_BYTES = 30


class Client:
    """What one request sees. ``leaves``: it hangs up by itself, once the answer has begun."""

    def __init__(self, *, leaves: bool = False) -> None:
        self.events: list[Message] = []
        self.was_cut = False
        self._leaves = leaves
        self._gone = asyncio.Event()

    async def get(self, failing: dict[int, Exception] | None = None, header: str = "") -> None:
        """Ask for the file; pieces of these numbers fail."""
        scope: dict[str, Any] = {
            "type": "http",
            "headers": [(b"range", header.encode())] if header else [],
            "state": {STATE_KEY: Caller("data_socket", hang_up=self._cut)},
        }

        async def read(number: int) -> bytes:
            if failing and number in failing:
                raise failing[number]
            if self._leaves:
                await asyncio.Event().wait()
            return CONTENT[number * PIECE_BYTES : (number + 1) * PIECE_BYTES]

        answer = file_answer(Request(scope), len(CONTENT), PIECE_BYTES, read, {"etag": '"x"'}, "text/plain")
        async with asyncio.timeout(20.0):
            await answer(scope, self._receive, self._send)

    @property
    def body(self) -> bytes:
        return b"".join(event.get("body", b"") for event in self.events)

    @property
    def is_whole(self) -> bool:
        return self.events[-1].get("more_body") is False

    def _cut(self) -> None:
        self.was_cut = True
        self._gone.set()

    async def _receive(self) -> Message:
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, event: Message) -> None:
        self.events.append(event)
        if self._leaves or event.get("more_body") is False:  # as the server does after the last byte
            self._gone.set()


@pytest.mark.parametrize(
    ("header", "begin", "end", "status"), [("", 0, 100, 200), ("bytes=25-64", 25, 65, 206), ("bytes=-7", 93, 100, 206)]
)
async def test_a_file_or_a_part_of_it_is_sent_whole(header: str, begin: int, end: int, status: int) -> None:
    client = Client()
    await client.get(header=header)
    assert client.events[0]["status"] == status and client.body == CONTENT[begin:end]
    headers = dict(client.events[0]["headers"])
    assert headers[b"content-length"] == b"%d" % (end - begin) and headers[b"etag"] == b'"x"'
    assert client.is_whole and not client.was_cut


@pytest.mark.parametrize("error", [Unavailable("the disk"), HTTPException(404)])
async def test_a_piece_that_fails_cuts_the_connection_and_nothing_is_raised(error: Exception) -> None:
    client = Client()
    await client.get({2: error})
    assert client.body == CONTENT[: 2 * PIECE_BYTES]
    assert client.was_cut and not client.is_whole, "an end would say that this was all"


async def test_a_defect_is_raised() -> None:
    with pytest.raises(ExceptionGroup) as caught:
        await Client().get({1: KeyError("a defect")})
    assert caught.group_contains(KeyError)


async def test_nobody_waits_for_a_piece_after_the_client_has_left() -> None:
    client = Client(leaves=True)
    await client.get()
    assert client.body == b"" and not client.was_cut
