"""HTTP routes, below ``/v1``. They run in the daemon's event loop, beside the plugin."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from fastapi import APIRouter

from peerd.daemon.http.routes import serve
from peerd.daemon.http.streaming import Source, add_feed
from peerd.errors import Unavailable
from rollcall.front import routes
from rollcall.front.answers import Label, NodeAnswer, RollAnswer
from rollcall.roll import Answer, Roll

if TYPE_CHECKING:
    from rollcall.plugin import RollCall

GRACE_S: Final = 5.0
"""Beyond the plugin's patience; then it was restarted, and its calls are lost."""


def router(service: RollCall) -> APIRouter:
    """For data clients; ``service`` is the running plugin."""
    router = APIRouter()

    @serve(router, routes.CALL)
    async def call() -> RollAnswer:
        """Ask every node who is there. Answers once the plugin's patience is over."""
        finished: asyncio.Future[Roll] = asyncio.get_running_loop().create_future()
        service.call(lambda roll: None if finished.done() else finished.set_result(roll))
        try:
            async with asyncio.timeout(service.config.patience + GRACE_S):
                return RollAnswer.of(await finished)
        except TimeoutError as error:
            raise Unavailable("the plugin was restarted meanwhile; ask again") from error

    def heard() -> Source[Answer]:
        """The answers that this node hears, as they come in."""
        return Source(service.heard, lambda answer: NodeAnswer.of(answer).model_dump_json().encode())

    add_feed(router, routes.HEARD.path, heard)
    return router


def operator_router(service: RollCall) -> APIRouter:
    """For operators only: it changes what the node says of itself."""
    router = APIRouter()

    @serve(router, routes.LABEL)
    async def label() -> Label:
        """What this node is called."""
        return Label(label=service.label)

    @serve(router, routes.SET_LABEL)
    async def set_label(body: Label) -> Label:
        """Call it something else, until the daemon is restarted."""
        service.rename(body.label)
        return body

    return router
