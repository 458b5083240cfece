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

from peerd.daemon.http.paying import Turns
from peerd.errors import Unavailable
from peerd.models.admin import PROBLEM_TYPE
from protocols.pubsub.models import EventOutcome, Published, PublishedBatch
from protocols.pubsub.service import NotDone

BATCH_EVENTS_MAX: Final = 1000
"""Most events of one request that is not sent line by line."""
Begin = Callable[[], Awaitable["asyncio.Future[Published | Exception]"]]
"""Begins to publish one event, once there is room; what it returns is done when the event has its outcome."""


async def publish_batch(events: Sequence[Begin]) -> Response:
    """Publish each event; answers when every one of them has its outcome."""
    begun: list[EventOutcome | asyncio.Future[Published | Exception]] = []
    turns = Turns()
    for begin in events:
        await turns.next()
        try:
            begun.append(await begin())
        except HTTPException as error:
            begun.append(EventOutcome(outcome="refused", detail=str(error.detail)))
        except NotDone as error:
            begun.append(EventOutcome(outcome="refused", detail=str(error)))
        except Unavailable as error:  # it has not been sent, and may be sent again
            begun.append(EventOutcome(outcome="unknown", detail=str(error)))
    return _answer([each if isinstance(each, EventOutcome) else _outcome(await each) for each in begun])


def _outcome(answer: Published | Exception) -> EventOutcome:
    if isinstance(answer, Published):
        return EventOutcome(event=answer.event, outcome=answer.outcome, detail=answer.detail)
    return EventOutcome(outcome="refused" if isinstance(answer, NotDone) else "unknown", detail=str(answer))


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
