"""A board of notes: what clients write comes out of a stream. A plugin with a feed, used by docs/http-api.md."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, Field

from peerd.api import Host, Plugin
from peerd.daemon.http.ingest import LINES_BODY, LineRefused, ingest
from peerd.daemon.http.streaming import Source, add_feed, json_bytes
from peerd.front import Front
from peerd.lib.feed import Feed, Policy


class Board(Plugin):
    """The kernel part: it owns the feed, and ends it when clients have to go."""

    name = "board"

    def start(self, host: Host) -> None:
        super().start(host)
        self.feed: Feed[str] = Feed(host.new_epoch(), items_max=1000, bytes_max=1 << 20)
        host.when_over(self.feed.end)

    def write(self, text: str) -> int:
        """Put up a note; returns its number."""
        return self.feed.push(text, len(text.encode()))


class BoardFront(Front):
    """What data clients meet: GET and WebSocket /v1/board, POST /v1/board."""

    name = "board"

    def router(self, service: Board) -> APIRouter:
        """The routes of one daemon's board."""
        routes = APIRouter()

        def board() -> Source[str]:
            """Notes as they are written; those that are held come first."""
            return Source(service.feed, json_bytes, policy=Policy.DROP_OLDEST, begin="start")

        add_feed(routes, "/board", board)

        async def accept(note: Note) -> None:
            if "spam" in note.text:
                raise LineRefused("we want no spam")
            service.write(note.text)

        @routes.post("/board", openapi_extra=LINES_BODY)
        async def write(request: Request) -> Response:
            return await ingest(request, Note, accept)

        return routes


class Note(BaseModel):
    """One line of what a client sends."""

    text: str = Field(max_length=1000)
