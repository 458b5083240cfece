"""Routes of the admin API that ask other nodes, or take this one out of the ring; docs/operating.md shows their use.

Long ones answer with JSON lines: ``{"type": "progress", ...}`` as they go on, then one ``{"type": "answer", ...}``.
Whoever hangs up ends a walk or a test, but not a drain.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import TYPE_CHECKING, Annotated, Any, Final, Generic, TypeVar

from fastapi import APIRouter, HTTPException, Path as PathParameter, Query
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, ConfigDict, Field

from peerd.daemon.admin import survey_view, view as admin_view
from peerd.daemon.admin.survey_rtt import PINGS, around, call, find_node, measure_known, measure_rtt
from peerd.daemon.http.routes import serve
from peerd.daemon.http.streaming import Reports
from peerd.errors import Bug, Unavailable
from peerd.ids import format_id, parse_id
from peerd.lib.feed import Feed
from peerd.messages import PeerRef
from peerd.models import routes
from peerd.models.admin import STREAM_TYPE, AdminModel, DrainAnswer, DrainProgress, HistoryView, Rtt, Rtts
from peerd.overlay.messages import PINGS_MAX, REACH_TARGETS_MAX, HistoryReply
from peerd.overlay.survey.reach import Reachability, ReachProgress, ReachTest
from peerd.overlay.survey.walk import Survey, WalkProgress

if TYPE_CHECKING:
    from peerd.daemon.admin.subject import Subject

WALK_LIMIT_S: Final = 300.0
REACH_LIMIT_S: Final = 3600.0
RTT_LIMIT_S: Final = 25.0
"""The time limit for measuring; it is shorter than the time that the client waits."""
NODE_LENGTH_MAX: Final = 300
"""An id, or an address with a long host name."""
REPORTS_HELD_MAX: Final = 2
"""How many reports a stream holds: the latest progress and the result."""
DRAIN_PROGRESS_S: Final = 0.5
DRAIN_TIMEOUT_MAX_S: Final = 86_400.0

Progress = TypeVar("Progress")
Result = TypeVar("Result")
NodeText = Annotated[str, Query(min_length=1, max_length=NODE_LENGTH_MAX)]


class StrictBody(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class WalkBody(StrictBody):
    """A walk has no options."""


class ReachBody(StrictBody):
    """How many others each node pings."""

    targets: int = Field(REACH_TARGETS_MAX, ge=1, le=REACH_TARGETS_MAX)


class DrainBody(StrictBody):
    """How long plugins may hand over, and whether the process ends afterwards."""

    timeout_s: float = Field(ge=0, le=DRAIN_TIMEOUT_MAX_S)
    stop: bool = False


class Told(Generic[Progress, Result]):
    """Turns callbacks into a stream: the latest progress (each report is complete in itself), then the result."""

    def __init__(self) -> None:
        self._feed: Feed[Progress | Result] = Feed("told", items_max=REPORTS_HELD_MAX)  # never resumed
        self.reports = Reports(self._feed)

    def progress(self, progress: Progress) -> None:
        """Report progress; it replaces progress that was not sent yet."""
        self._feed.push(progress)

    def finished(self, result: Result) -> None:
        """Report the result, and end the stream after it."""
        self._feed.push(result)
        self._feed.end("finished", is_final=True)


def require_ring(daemon: Subject) -> None:
    """Raises `Unavailable` on a node that cannot ask others."""
    if daemon.node.is_stopped:
        raise Unavailable("this node has left the ring; ask another one, or start it again")


def _start_walk(daemon: Subject) -> AsyncGenerator[WalkProgress | Survey, None]:
    """Start a walk before the stream begins, so that a refusal has its own HTTP status. Raises `Unavailable`."""
    require_ring(daemon)
    surveyor, told = daemon.node.overlay.survey, Told[WalkProgress, Survey]()
    walk = surveyor.walk(told.finished, told.progress)

    async def items() -> AsyncGenerator[WalkProgress | Survey, None]:
        is_over = False
        try:
            async for item in told.reports.items(WALK_LIMIT_S):
                is_over = isinstance(item, Survey)
                yield item
        finally:
            if not is_over and not walk.is_over:
                walk.cancel()
                surveyor.walk_over()

    return items()


class ReachTests:
    """Reachability tests of one daemon: one at a time."""

    def __init__(self, daemon: Subject) -> None:
        self._daemon = daemon
        self._is_running = False

    def start(self, targets: int) -> AsyncGenerator[ReachProgress | Reachability, None]:
        """Walk, then test. Raises `Unavailable` while another test is under way."""
        if self._is_running:
            raise Unavailable("a reachability test is under way; try again when it has ended")
        return self._items(_start_walk(self._daemon), targets)

    async def _items(
        self, walk: AsyncGenerator[WalkProgress | Survey, None], targets: int
    ) -> AsyncGenerator[ReachProgress | Reachability, None]:
        self._is_running = True
        try:
            async with aclosing(walk):
                async for item in walk:
                    if isinstance(item, Survey):
                        break
                    yield ReachProgress(0, item.found)
            async with aclosing(self._test(item, targets)) as test:
                async for line in test:
                    yield line
        finally:
            self._is_running = False

    async def _test(
        self, survey: WalkProgress | Survey, targets: int
    ) -> AsyncGenerator[ReachProgress | Reachability, None]:
        if not isinstance(survey, Survey):
            raise Bug("a walk ended without its survey")
        overlay, told = self._daemon.node.overlay, Told[ReachProgress, Reachability]()
        host = overlay.state.host
        test = ReachTest(overlay.survey.measure, host.now, host.rng, survey, targets, told.finished, told.progress)
        if not test.begin():
            yield test.result
            return
        try:
            async for item in told.reports.items(REACH_LIMIT_S):
                yield item
        finally:
            test.cancel()


async def _drain(daemon: Subject, body: DrainBody) -> AsyncGenerator[DrainProgress | DrainAnswer, None]:
    begun_at = time.monotonic()
    task = daemon.drain(body.timeout_s)
    while not task.done():
        waiting = list(daemon.node.draining or ())
        yield DrainProgress(waiting_for=waiting, elapsed_s=time.monotonic() - begun_at)
        await asyncio.wait({task}, timeout=DRAIN_PROGRESS_S)
    yield DrainAnswer(unfinished=list(task.result()), duration_s=time.monotonic() - begun_at)
    if body.stop:
        daemon.request_stop("drained")


async def history_around(daemon: Subject, own: HistoryView) -> HistoryView:
    """Add what the neighbours of a peer concluded about it. Raises `Unavailable` when they cannot be found."""
    require_ring(daemon)
    node_id, survey = parse_id(own.id), daemon.node.overlay.survey

    async def ask(peer: PeerRef) -> tuple[PeerRef, HistoryReply | None]:
        return peer, await call(lambda done: survey.ask_history(peer, node_id, done))

    try:
        async with asyncio.timeout(RTT_LIMIT_S):
            near = await around(daemon.node, node_id)
            others = [peer for _, peer in sorted(near.items()) if peer.id not in (node_id, daemon.node.peer.id)]
            replies = await asyncio.gather(*map(ask, others))
    except TimeoutError as error:
        raise Unavailable(f"the nodes round it did not answer within {RTT_LIMIT_S:g} s; try again") from error
    found = list(own.verdicts)
    for peer, reply in replies:
        found += [] if reply is None else admin_view.verdicts(peer, reply)
    return own.model_copy(
        update={
            "verdicts": sorted(found, key=lambda verdict: verdict.at),
            "asked": [format_id(peer.id) for peer, reply in replies if reply is not None],
            "silent": [format_id(peer.id) for peer, reply in replies if reply is None],
        }
    )


def _lines(items: AsyncGenerator[Any, None], shown: Callable[[Any], AdminModel]) -> StreamingResponse:
    async def lines() -> AsyncGenerator[bytes, None]:
        async with aclosing(items):  # when the client hangs up, this ends now, and not at the next garbage collection
            async for item in items:
                yield shown(item).model_dump_json().encode() + b"\n"

    return StreamingResponse(lines(), media_type=STREAM_TYPE)


def survey_router(daemon: Subject) -> APIRouter:
    """The routes that ask the whole ring, for one daemon."""
    router, tests = APIRouter(tags=["survey"]), ReachTests(daemon)

    @serve(router, routes.CHECK_RING, response_class=StreamingResponse)
    async def check(body: WalkBody) -> StreamingResponse:
        """Walk over the ring and judge it: JSON lines of `WalkProgress`, then one `RingCheck`."""
        return _lines(_start_walk(daemon), survey_view.walk_line)

    @serve(router, routes.REACH, response_class=StreamingResponse)
    async def reach(body: ReachBody) -> StreamingResponse:
        """Have every node ping others: JSON lines of `ReachProgress`, then one `ReachAnswer`."""
        return _lines(tests.start(body.targets), survey_view.reach_line)

    @serve(router, routes.RTT)
    async def rtt(
        target: NodeText, source: NodeText | None = None, pings: Annotated[int, Query(ge=1, le=PINGS_MAX)] = PINGS
    ) -> Rtt:
        """The round trip from ``source`` (default: this node) to ``target``: ids, unique prefixes, or addresses."""
        require_ring(daemon)
        try:
            async with asyncio.timeout(RTT_LIMIT_S):
                first = daemon.node.peer if source is None else await find_node(daemon.node, source)
                return await measure_rtt(daemon.node, first, await find_node(daemon.node, target), pings)
        except TimeoutError as error:
            raise Unavailable(f"the nodes did not answer within {RTT_LIMIT_S:g} s; try again") from error
        except admin_view.UnknownNode as error:
            raise HTTPException(404, str(error)) from error

    @serve(router, routes.RTT_KNOWN)
    async def rtt_known(pings: Annotated[int, Query(ge=1, le=PINGS_MAX)] = PINGS) -> Rtts:
        """The round trips from this node to every node that it knows, measured now."""
        require_ring(daemon)
        try:
            async with asyncio.timeout(RTT_LIMIT_S):
                return Rtts(rtts=await measure_known(daemon, pings))
        except TimeoutError as error:
            raise Unavailable(f"the nodes did not answer within {RTT_LIMIT_S:g} s; try again") from error

    @serve(router, routes.HISTORY)
    async def history(
        node: Annotated[str, PathParameter(max_length=NODE_LENGTH_MAX)], around: bool = False
    ) -> HistoryView:
        """What this node thought of a peer, and when, and why; ``around``: and what the peer's neighbours did."""
        try:
            own = admin_view.history(daemon, node)
            return await history_around(daemon, own) if around else own
        except admin_view.UnknownNode as error:
            raise HTTPException(404, str(error)) from error

    @serve(router, routes.DRAIN, response_class=StreamingResponse)
    async def drain(body: DrainBody) -> StreamingResponse:
        """Hand over, leave the ring, stay (or stop): JSON lines of `DrainProgress`, then one `DrainAnswer`."""
        return _lines(_drain(daemon, body), lambda item: item)

    return router
