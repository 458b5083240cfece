"""HTTP routes of measurement queries, below ``/v1/measurement``."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Annotated, Final

from fastapi import APIRouter, Depends, Query, Request
from msgspec.structs import replace
from starlette.requests import HTTPConnection

from peerd.daemon.http.answers import answer_of, refusals
from peerd.daemon.http.asker import asker_of
from peerd.daemon.http.paying import pay
from peerd.daemon.http.routes import serve
from peerd.daemon.http.streaming import Source, Wish, add_feed, json_line, wish
from peerd.errors import ClientRefusal
from peerd.lib.feed import Position
from protocols.measurement import models
from protocols.measurement.asking import ReadTold, selection
from protocols.measurement.bounds import STALE_S, usual_half_width
from protocols.measurement.front import routes
from protocols.measurement.front.prometheus import prometheus_router
from protocols.measurement.guarantee.words import Measurement, Want
from protocols.measurement.names import full_name
from protocols.measurement.querying.answer import QueryAnswer
from protocols.measurement.readings import NodeEntry, NoReading, Reading
from protocols.measurement.standing import AnsweredQuery, StandingQuery

if TYPE_CHECKING:
    from protocols.measurement.directory import Directory
    from protocols.measurement.plugin import MeasurementQueries
    from protocols.measurement.watching import Watch

QUERY_S: Final = 0.01
QUERY_NODE_S: Final = 0.1e-3
"""Seconds of processor for a statement, and for each node that it may be about."""
VALUE_S: Final = 20e-6
"""Seconds of processor for a value that a client asks for."""

Where = Annotated[str, Query(max_length=models.WHERE_LENGTH_MAX, description="A filter on tags, node and address.")]
Nodes = Annotated[
    list[models.NodeText], Query(default_factory=list, max_length=models.NAMES_MAX, description="Ids or addresses.")
]
Names = Annotated[list[models.SimpleName], Query(min_length=1, max_length=models.NAMES_MAX)]
Within = Annotated[
    list[str],
    Query(default_factory=list, max_length=models.NAMES_MAX, description="Half the width of bounds, such as cpu:0.05."),
]


def router(service: MeasurementQueries) -> APIRouter:
    """The routes; ``service`` is the running plugin of the daemon."""
    router = APIRouter()
    _add_nodes(router, service)
    _add_own(router, service)
    _add_watch(router, service)
    _add_query(router, service)
    router.include_router(prometheus_router(_Shown(service)))
    return router


class _Shown:
    """The ring as Prometheus' clients see it."""

    def __init__(self, service: MeasurementQueries) -> None:
        self._service = service

    async def nodes(self) -> list[NodeEntry]:
        await answer_of(partial(_refreshed, self._service.directory))
        return [_with_pairs(entry) for entry in self._service.directory.known()]

    async def read(self, measurements: list[Measurement]) -> list[Reading | NoReading]:
        wants = [Want(each, usual_half_width(each.name)) for each in measurements]

        def ask(told: ReadTold) -> None:
            self._service.readings.read(wants, STALE_S, told)

        return await answer_of(ask)

    def past(self, measurement: Measurement, start: float, end: float) -> list[tuple[float, float]]:
        if measurement.owner != self._service.host.id:
            return []
        return self._service.past.range(measurement.name, start, end)


def _with_pairs(entry: NodeEntry) -> NodeEntry:
    names = [name for name in entry.measurements if not name.endswith("@")]
    names += [full_name(name, peer) for name, peers in entry.pairs.items() for peer in peers]
    return replace(entry, measurements=tuple(names))


def _add_nodes(router: APIRouter, service: MeasurementQueries) -> None:
    @serve(router, routes.NODES)
    async def nodes(node: Nodes, where: Where = "") -> models.MeasuredNodes:
        """The nodes of the ring, with their tags and what they measure."""
        with refusals():
            is_meant = selection(where, node)
        directory = service.directory
        await answer_of(partial(_refreshed, directory))
        found = sorted(filter(is_meant, directory.known()), key=lambda entry: entry.id)
        return models.MeasuredNodes(
            nodes=[models.MeasuredNode.of(entry) for entry in found], problems=directory.problems()
        )

    @serve(router, routes.READ)
    async def read(request: Request, body: models.ReadRequest) -> models.ValueViews:
        """Values of nodes, each with its bounds, its age, and what it has cost. Nothing is asked twice."""
        with refusals():
            is_meant = selection(body.where, body.nodes)
        await pay(request, VALUE_S * len(body.names) * max(1, sum(1 for _ in service.directory.known())))

        def ask(told: ReadTold) -> None:
            service.asking.read(body.names, is_meant, body.within, body.stale, told)

        found = await answer_of(ask)
        return models.ValueViews.of(found, service.directory.problems())


def _refreshed(directory: Directory, done: Callable[[bool | Exception], None]) -> None:
    directory.refreshed(lambda: done(True))


def _add_own(router: APIRouter, service: MeasurementQueries) -> None:
    @serve(router, routes.OWN)
    async def own() -> models.OwnViews:
        """What this node measures, and which of its sources do not answer."""
        problems = [f"{source}: {why}" for source, why in service.sampling.problems().items()]
        return models.OwnViews.model_validate({"measurements": service.own(), "problems": problems})

    @serve(router, routes.PUT)
    async def put(request: Request, name: models.SimpleName, body: models.PutValue) -> models.OwnView:
        """Have this node measure what an application knows, until it is put again or its ``ttl`` is over."""
        asker_of(request).check_write("to put a value", "measurement")
        with refusals():
            return models.OwnView.model_validate(service.put(name, body.value, body.ttl))


def _add_watch(router: APIRouter, service: MeasurementQueries) -> None:
    async def watch(
        request: HTTPConnection,
        name: Names,
        node: Nodes,
        within: Within,
        place: Annotated[Wish, Depends(wish)],
        where: Where = "",
        stale: models.Stale = STALE_S,
    ) -> Source[Reading]:
        """The values of these names, and then each that has left the bounds that were told before, or became stale.

        Who comes back soon with `after` or `Last-Event-ID` goes on where the connection was lost.
        """
        if isinstance(place.place, Position):
            known = service.watching.watches.of_feed(place.place.epoch)
            if known is not None and known.owner == asker_of(request).owner:
                return _source(known)
        with refusals():
            half_widths = _half_widths(name, within)
            is_meant = selection(where, node)
            watched = service.watching.watch(half_widths, is_meant, stale, asker_of(request).owner)
        return _source(watched)

    add_feed(router, routes.WATCH.path, watch)


def _add_query(router: APIRouter, service: MeasurementQueries) -> None:
    @serve(router, routes.QUERY)
    async def query(request: Request, body: models.QueryRequest) -> models.QueryView:
        """The answer to a statement, with what it has cost. EXPLAIN says what it would cost."""
        nodes = max(1, sum(1 for _ in service.directory.known()))
        await pay(request, QUERY_S + QUERY_NODE_S * nodes)
        found: AnsweredQuery = await answer_of(partial(service.queries.ask, body.query))
        return models.QueryView.of(found.answer, service.directory.problems(), found.lines)

    async def watch_query(
        request: HTTPConnection,
        query: Annotated[str, Query(max_length=models.QUERY_LENGTH_MAX)],
        place: Annotated[Wish, Depends(wish)],
    ) -> Source[QueryAnswer]:
        """The answer to a statement, and then each that says something else than the one before."""
        if isinstance(place.place, Position):
            known = service.queries.standing.of_feed(place.place.epoch)
            if known is not None and known.owner == asker_of(request).owner:
                return _query_source(known)
        await pay(request, QUERY_S)
        with refusals():
            return _query_source(service.queries.watch(query, asker_of(request).owner))

    add_feed(router, routes.WATCH_QUERY.path, watch_query)


def _query_source(query: StandingQuery) -> Source[QueryAnswer]:
    return Source(query.feed, lambda answer: json_line(models.QueryView.of(answer)), begin="start")


def _source(watch: Watch) -> Source[Reading]:
    return Source(watch.feed, lambda reading: json_line(models.ValueView.of(reading)), begin="start")


def _half_widths(names: list[str], within: list[str]) -> dict[str, float]:
    """Raises `ClientRefusal`."""
    found = {name: usual_half_width(name) for name in names}
    for text in within:
        name, _, width = text.partition(":")
        try:
            half_width = float(width)
        except ValueError:
            half_width = -1.0
        if name not in found or not 0.0 <= half_width < float("inf"):
            raise ClientRefusal(
                "invalid", f"within: expected NAME:NUMBER with a name that is asked for, not {text!r:.90}"
            )
        found[name] = half_width
    return found
