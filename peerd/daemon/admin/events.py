"""``/v1/events``: the daemon's events while they happen; docs/http-api.md shows how clients follow them."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Annotated, Final

from fastapi import APIRouter, Query
from starlette.requests import HTTPConnection

from peerd.daemon.admin.event_feed import Record, encode_event
from peerd.daemon.http.paying import pay
from peerd.daemon.http.streaming import Source, add_feed
from peerd.models.routes import EVENTS

if TYPE_CHECKING:
    from peerd.daemon.admin.subject import Subject

KINDS_MAX: Final = 16
KIND_LENGTH_MAX: Final = 64
KIND_S: Final = 0.001
"""Seconds of processor to look for one of them in all events that are held."""

Kind = Annotated[str, Query(max_length=KIND_LENGTH_MAX)]


def events_router(daemon: Subject) -> APIRouter:
    """The route on which clients follow the events of one daemon."""
    router = APIRouter(tags=["state"])

    async def events(
        connection: HTTPConnection,
        kind: Annotated[
            list[Kind],
            Query(max_length=KINDS_MAX, description="Only these, such as `overlay.*`; repeat it for several."),
        ] = [],  # noqa: B006  # FastAPI copies a default
    ) -> Source[Record]:
        """The daemon's events as they happen; the newest thousand are held for clients that come back."""
        await pay(connection, KIND_S * len(kind))

        def wants(record: Record) -> bool:
            return any(fnmatchcase(str(record["event"]), pattern) for pattern in kind)

        return Source(daemon.events, encode_event, wants if kind else None)

    add_feed(router, EVENTS.path, events)
    return router
