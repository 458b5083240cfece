"""HTTP routes of aggregation, below ``/v1`` of the daemon's admin API.

``POST /aggregate`` answers with JSON lines: ``{"type": "progress", ...}`` as the round goes on, then one
``{"type": "answer", ...}``. Whoever hangs up ends the round.
``GET /aggregate/answers`` has the answers of others that this node was given.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Final

from fastapi import APIRouter, HTTPException, Request
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, BeforeValidator, ConfigDict, FailFast, Field
from starlette.types import Receive, Scope, Send

from peerd.daemon.http.paying import pay
from peerd.daemon.http.routes import serve
from peerd.daemon.http.streaming import Reports, Source, add_feed
from peerd.errors import Unavailable
from peerd.lib.feed import Feed
from peerd.models.admin import STREAM_TYPE
from peerd.quantities import parse_duration
from protocols.aggregation.answer import LINE, Answer, Failed, RoundProgress
from protocols.aggregation.answers import recipients
from protocols.aggregation.calls import Call, plain_number
from protocols.aggregation.front.routes import AGGREGATE, ANSWERS
from protocols.aggregation.groups import GROUPS_HARD_MAX, GROUPS_MAX, GROUPS_MAX_DEFAULT
from protocols.aggregation.listings import EDGES_MAX
from protocols.aggregation.messages import RECIPIENTS_BYTES_MAX
from protocols.aggregation.patterns import PATTERN_CHARACTERS_MAX, QueryError
from protocols.aggregation.query import (
    CONDITIONS_MAX,
    GLOB_CHARACTERS_MAX,
    KEYS_MAX,
    QUERY_CHARACTERS_MAX,
    Format,
    Operator,
    Query,
    conditions,
    parse_query,
)
from protocols.aggregation.requester import RoundListener

if TYPE_CHECKING:
    from protocols.aggregation.plugin import Aggregation

STREAMS_MAX: Final = 16
"""How many rounds may be watched over HTTP at a time."""
PROGRESS_PENDING_MAX: Final = 64
"""How many progress lines wait for a slow client; older ones are dropped, as each line is complete in itself."""
ANSWER_GRACE_S: Final = 15.0
"""How long after its deadline a round may still ask why nodes are missing."""
DEADLINE_MAX_S: Final = 86_400.0
QUERY_S: Final = 0.02
"""Seconds of processor to read a query and to compile its pattern (`python -m tests.fuzz.dearest`)."""
TOP_MAX: Final = GROUPS_HARD_MAX


def parse_deadline(value: object) -> object:
    """Seconds of "30s" or "1.5m"; a number is left to the type. Raises ``ValueError``."""
    return parse_duration(value) if isinstance(value, str) else value


def _listed(value: object) -> object:
    """A text as a list of one, and nothing as an empty one."""
    return () if value is None else (value,) if isinstance(value, str) else value


class _Body(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ConditionBody(_Body):
    """``field operator value``."""

    field: str
    operator: Operator
    value: int | float | str


class QueryBody(_Body):
    """A query by its parts, with one function; several are for the text form."""

    function: str
    field: str | None = None
    arguments: Annotated[tuple[int | float, ...], Field(max_length=EDGES_MAX), FailFast()] = Field(
        (), description="The numbers behind the field, as in quantile(x, 0.9)."
    )
    by: Annotated[tuple[str, ...], Field(max_length=KEYS_MAX), FailFast(), BeforeValidator(_listed)] = Field(
        (), description="The fields of the groups; the text of one is taken, too."
    )
    where: Annotated[tuple[ConditionBody, ...], Field(max_length=CONDITIONS_MAX), FailFast()] = ()


class AggregateBody(_Body):
    """What to aggregate, over which files of each node, and how long to wait."""

    query: Annotated[str, Field(max_length=QUERY_CHARACTERS_MAX)] | QueryBody = Field(
        description="Text such as 'count by status where method = GET', or its parts."
    )
    files: Annotated[str, Field(max_length=GLOB_CHARACTERS_MAX)] = Field(
        "**/*", description="Glob below each node's data root."
    )
    format: Format | None = Field(None, description="Default: text with a pattern, csv for *.csv, else ndjson.")
    pattern: Annotated[str, Field(max_length=PATTERN_CHARACTERS_MAX)] | None = Field(
        None, description="Regular expression with named groups, for format text."
    )
    groups_max: int = Field(
        GROUPS_MAX_DEFAULT, ge=1, le=GROUPS_MAX, description=f"Groups kept; above {GROUPS_HARD_MAX} with `top` only."
    )
    deadline: Annotated[float, Field(ge=0.1, le=DEADLINE_MAX_S), BeforeValidator(parse_deadline)] | None = Field(
        None, description='Seconds, or text such as "30s". Default: the deadline of the daemon\'s configuration.'
    )
    top: Annotated[int, Field(ge=1, le=TOP_MAX)] | None = Field(None, description="Groups listed; default all.")
    to: Annotated[str, Field(max_length=RECIPIENTS_BYTES_MAX)] = Field(
        "requester", description="Who is given the answer: requester, all, or a filter on the tags of nodes."
    )

    def to_query(self) -> Query:
        """The query that every node will run. Raises `QueryError`."""
        text = self.query if isinstance(self.query, str) else "count"
        query = parse_query(
            text, files=self.files, format=self.format, pattern=self.pattern, groups_max=self.groups_max
        )
        if isinstance(self.query, str):
            return query
        parts = self.query
        where = conditions((each.field, each.operator, each.value) for each in parts.where)
        call = Call(parts.function, parts.field, tuple(map(plain_number, parts.arguments)))
        return replace(query, calls=(call,), by=parts.by, where=where)


def open_feed(top: int | None = None, to: str = "") -> tuple[Reports[RoundProgress | Answer], RoundListener]:
    """Connect the plugin, which must not wait, with the stream, which may have to: returns a reader and a listener.

    The feed is the round's own and never resumed, so that its epoch says nothing.
    """
    feed: Feed[RoundProgress | Answer] = Feed("round", items_max=PROGRESS_PENDING_MAX + 1)

    def progress(progress: RoundProgress) -> None:
        feed.push(progress)

    def finished(answer: Answer) -> None:
        feed.push(answer)
        feed.end("finished", is_final=True)

    return Reports(feed), RoundListener(finished, progress, top, to)


def router(service: Aggregation) -> APIRouter:
    """The routes; ``service`` is the running plugin of the daemon."""
    router = APIRouter()
    streams: set[bytes] = set()

    @serve(router, AGGREGATE, response_class=StreamingResponse)
    async def aggregate(request: Request, body: AggregateBody) -> StreamingResponse:
        """Aggregate over all nodes' files. Answers with JSON lines: progress, then one answer."""
        await pay(request, QUERY_S)
        if len(streams) >= STREAMS_MAX:
            raise Unavailable(f"{len(streams)} aggregates run through this API already; try again when one has ended")
        deadline_s = service.config.deadline if body.deadline is None else body.deadline
        try:
            reports, listener = open_feed(body.top, recipients(body.to))
            query = body.to_query()
            if query.is_sliced and body.top is None:
                raise QueryError(f"of more than {GROUPS_HARD_MAX} groups `top` says how many to list")
            round_id = service.requesting.aggregate(query, listener, deadline_s)
        except QueryError as error:
            raise HTTPException(422, str(error)) from error
        streams.add(round_id)

        def ended() -> None:
            streams.discard(round_id)
            service.requesting.cancel(round_id)

        return RoundResponse(_lines(reports, deadline_s), ended)

    async def answers() -> Source[bytes]:
        """The answers that this node was given (`to` of a round): the newest 64, and those to come."""
        return Source(service.answers.feed, bytes, begin="start")

    add_feed(router, ANSWERS.path, answers)
    return router


class RoundResponse(StreamingResponse):
    """JSON lines. ``ended`` is called in any case: after the answer, or when the client hangs up at any time."""

    def __init__(self, lines: AsyncIterator[bytes], ended: Callable[[], None]) -> None:
        super().__init__(lines, media_type=STREAM_TYPE, headers={"Cache-Control": "no-store"})
        self._ended = ended

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._ended()


async def _lines(reports: Reports[RoundProgress | Answer], deadline_s: float) -> AsyncIterator[bytes]:
    try:
        async for item in reports.items(deadline_s + ANSWER_GRACE_S):
            yield _line(item.shortened() if isinstance(item, Answer) else item)
    except TimeoutError:
        yield _line(Failed("the round ended without an answer; the daemon's log says why"))


def _line(item: RoundProgress | Answer | Failed) -> bytes:
    return LINE.dump_json(item) + b"\n"
