"""A plugin with one route of every kind that data clients meet, and one for operators."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from fastapi import APIRouter, Response, WebSocket
from fastapi.responses import StreamingResponse

from peerd.api import Plugin
from peerd.daemon.http.streaming import Source, add_feed, json_bytes
from peerd.lib.feed import Feed

LONG_BYTES = 8_000_000
"""More than the system buffers of a connection."""


class Numbers(Plugin):
    """Keeps a list of numbers."""

    name = "numbers"

    def __init__(self) -> None:
        super().__init__()
        self.kept: list[int] = []
        self.counted: Feed[int] = Feed("numbers.1")
        self.ended = asyncio.Event()

    @staticmethod
    def router(service: Numbers) -> APIRouter:
        """For data clients."""
        routes = APIRouter()

        @routes.get("/numbers")
        async def read() -> list[int]:
            return service.kept

        @routes.post("/numbers")
        async def write(number: int) -> int:
            service.kept.append(number)
            return number

        @routes.post("/numbers/sum", openapi_extra={"x-peerd-scope": "read"})
        async def total(numbers: list[int]) -> int:
            return sum(numbers)

        @routes.get("/numbers/stream")
        async def stream() -> StreamingResponse:
            async def lines() -> AsyncIterator[bytes]:
                try:
                    yield b"0\n"
                    await asyncio.Event().wait()
                finally:
                    service.ended.set()

            return StreamingResponse(lines())

        def counted() -> Source[int]:
            return Source(service.counted, json_bytes, begin="start")

        add_feed(routes, "/numbers/counted", counted, include_in_schema=False)

        @routes.get("/numbers/long", include_in_schema=False)
        async def long() -> Response:
            return Response(b"1" * LONG_BYTES)

        @routes.websocket("/numbers/live")
        async def live(websocket: WebSocket) -> None:
            await websocket.accept()
            try:
                async for text in websocket.iter_text():
                    await websocket.send_text(str(int(text) + 1))
            finally:
                service.ended.set()

        return routes

    @staticmethod
    def operator_router(service: Numbers) -> APIRouter:
        """For operators."""
        routes = APIRouter()

        @routes.delete("/numbers")
        async def forget() -> None:
            service.kept.clear()

        return routes
