"""Many events in one request, each with its outcome in the answer: JSON arrays of events, and batches of CloudEvents.

The events are published in their order, those behind one that is refused as well. Whatever the status of the answer is,
``outcomes`` has one for each event, in the same order: who gets 503 sends only those again that are ``unknown``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from http import HTTPStatus
from typing import Final

from fastapi import HTTPException, Response
from fastapi.responses import JSONResponse

from peerd.errors import Unavailable
from peerd.models.admin import PROBLEM_TYPE
from protocols.pubsub.models import EventOutcome, Published, PublishedBatch

BATCH_EVENTS_MAX: Final = 1000
"""Most events of one request that is not sent line by line."""
OnPublished = Callable[[Published | Exception], None]
Begin = Callable[[OnPublished], Awaitable[None]]
"""Begins to publish one event, once there is room. Raises ``HTTPException`` for one that is refused."""


async def publish_batch(events: Sequence[Begin]) -> Response:
    """Publish each event; answers when every one of them has its outcome."""
    outcomes = [EventOutcome(outcome="unknown") for _ in events]
    left, ended = len(events), asyncio.Event()

    def over(at: int, outcome: EventOutcome) -> None:
        nonlocal left
        outcomes[at] = outcome
        left -= 1
        if not left:
            ended.set()

    for at, begin in enumerate(events):
        try:
            await begin(_told(at, over))
        except HTTPException as error:
            over(at, EventOutcome(outcome="refused", detail=str(error.detail)))
        except Unavailable as error:  # it has not been sent, and may be sent again
            over(at, EventOutcome(outcome="unknown", detail=str(error)))
    if left:
        await ended.wait()  # the deadline of an event runs from its setting out, so each of them ends
    return _answer(outcomes)


def _told(at: int, over: Callable[[int, EventOutcome], None]) -> OnPublished:
    def done(answer: Published | Exception) -> None:
        if isinstance(answer, Published):
            over(at, EventOutcome(event=answer.event, outcome=answer.outcome, detail=answer.detail))
        else:
            over(at, EventOutcome(outcome="unknown", detail=str(answer)))

    return done


def _answer(outcomes: list[EventOutcome]) -> Response:
    body = PublishedBatch(outcomes=outcomes).model_dump(exclude_defaults=True)
    unknown = sum(each.outcome == "unknown" for each in outcomes)
    refused = sum(each.outcome == "refused" for each in outcomes)
    if not unknown and not refused:
        return JSONResponse(body)
    status = HTTPStatus.SERVICE_UNAVAILABLE if unknown else HTTPStatus.UNPROCESSABLE_ENTITY
    first = next(each.detail for each in outcomes if each.outcome in ("unknown", "refused"))
    detail = f"of {len(outcomes)} events {refused} were refused, and of {unknown} the outcome is not known: {first}"
    fields = {"type": "about:blank", "title": status.phrase, "status": int(status), "detail": detail}
    return JSONResponse({**fields, **body}, status, media_type=PROBLEM_TYPE)
