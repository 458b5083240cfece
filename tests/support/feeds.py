"""A plugin with a feed and an ingest route, behind the real HTTP server, and raw clients of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Any

from fastapi import APIRouter, HTTPException, Request, Response
from pydantic import BaseModel

from peerd.api import Plugin
from peerd.client import Client
from peerd.config import load_config
from peerd.daemon.admin.server import AdminServer, start_admin
from peerd.daemon.http.ingest import LINES_BODY, LineFate, LineRefused, ingest
from peerd.daemon.http.streaming import Source, add_feed, json_bytes
from peerd.errors import Unavailable
from peerd.lib.feed import Feed, Policy
from tests.support.fake_daemon import FakeDaemon


class Note(BaseModel):
    """A line of a request body."""

    text: str


class Notes(Plugin):
    """What is written comes out of the feed; under the test's control."""

    name = "notes"

    def __init__(self) -> None:
        super().__init__()
        self.feed: Feed[object] = Feed("e1", items_max=100)
        self.policy = Policy.DROP_OLDEST
        self.taken: list[str] = []
        self.room = asyncio.Event()
        self.room.set()
        self.waiting = asyncio.Event()
        self.later: list[LineFate] = []

    async def accept(self, note: Note) -> LineFate | None:
        """Waits for `room`. What becomes of a text that begins with "later" is known when the test says so."""
        if not self.room.is_set():
            self.waiting.set()
            await self.room.wait()
        if note.text == "unwanted":
            raise LineRefused("this text is not wanted")
        if note.text == "full":
            raise Unavailable("there is no room")
        if note.text == "elsewhere":
            self.waiting.set()
            raise HTTPException(HTTPStatus.NOT_FOUND, "notes are taken elsewhere")
        self.taken.append(note.text)
        if not note.text.startswith("later"):
            return None
        fate: LineFate = asyncio.get_running_loop().create_future()
        self.later.append(fate)
        return fate

    @staticmethod
    def router(service: Notes) -> APIRouter:
        """One feed, and the way in."""
        routes = APIRouter()

        def notes() -> Source[object]:
            """Notes."""
            return Source(service.feed, json_bytes, policy=service.policy, begin="start")

        add_feed(routes, "/notes", notes)

        @routes.post("/notes", openapi_extra=LINES_BODY)
        async def write(request: Request) -> Response:
            return await ingest(request, Note, service.accept)

        return routes


class Rig:
    """The plugin, its server, and how to reach it."""

    def __init__(self, notes: Notes, daemon: FakeDaemon, server: AdminServer) -> None:
        self.notes = notes
        self.daemon = daemon
        self.server = server
        self.url = f"http://127.0.0.1:{server.data_http_port}"
        """Of data clients."""
        self.operators_url = f"http://127.0.0.1:{server.http_port}"

    def client(self) -> Client:
        """The real client, over TCP."""
        return Client(self.url)

    async def connect(self, *lines: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection on which a request head was sent; the first line and more headers are given."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.server.data_http_port)
        writer.write("\r\n".join([*lines, "Host: localhost", "", ""]).encode())
        await writer.drain()
        return reader, writer

    async def head(self, reader: asyncio.StreamReader) -> str:
        """The head of an answer."""
        return (await reader.readuntil(b"\r\n\r\n")).decode()


@asynccontextmanager
async def serving(path: Path, http: str = "127.0.0.1:0", **sets: Any) -> AsyncIterator[Rig]:
    """The plugin behind the operators' unix socket in ``path``, and for data clients on loopback."""
    notes = Notes()
    loaded = load_config(
        environment={},
        sets=[f"admin.socket={path / 'admin.sock'}", f"data.http={http}", "data.socket=", "admin.http=127.0.0.1:0"],
    )
    daemon = FakeDaemon({"notes": notes}, loaded=loaded)
    server = await start_admin(daemon)
    try:
        yield Rig(notes, daemon, server)
    finally:
        await server.stop()


async def until(condition: Any) -> None:
    """Give the loop turns until something has come about; the test's time-out is the limit."""
    while not condition():  # noqa: ASYNC110  # what is waited for has no event of its own
        await asyncio.sleep(0)
