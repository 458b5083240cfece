"""The reading half of Prometheus' HTTP API, so that Grafana, promtool and others of its clients work unmodified.

Its base URL is ``/v1/measurement/prometheus``. Answers and errors have Prometheus' own form.
"""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import parse_qs

from fastapi import APIRouter, Request, Response

from peerd.daemon.http.paying import pay
from peerd.daemon.http.routes import serve
from peerd.errors import ClientRefusal, Unavailable
from peerd.lib.filter.values import parse_timestamp
from peerd.models.routes import HttpRoute
from protocols.measurement.front import prometheus_series as seen, routes
from protocols.measurement.front.prometheus_series import PrometheusData, read_series
from protocols.measurement.promql.evaluate import TIME_S_MAX, WORK_MAX, check_range, evaluate_instant, evaluate_range
from protocols.measurement.promql.parse import parse, read_number
from protocols.measurement.promql.refusals import PromqlRefused
from protocols.measurement.promql.tree import NAME, Expression, QueryResult, Selector, Series, ValueKind, selectors
from protocols.measurement.readings import NodeEntry

API_VERSION: Final = "2.54.0"
"""The version of Prometheus that this API says it has: Grafana decides by it how it browses labels."""
PARAMETERS_MAX: Final = 100
"""Most parameters of a request, ``match[]`` among them."""
SAMPLE_S: Final = 1e-6
"""Seconds of processor for each sample that an evaluation touches, charged to whoever asks."""

Parameters = Mapping[str, Sequence[str]]
Told = tuple[object, Sequence[str]]
"""An answer: its data, and warnings, which Grafana shows on the panel."""
Answer = Callable[[Request, Parameters], Awaitable[Told]]


def prometheus_router(data: PrometheusData, clock: Callable[[], float] = time.time) -> APIRouter:
    """The routes, over ``data``; ``clock`` says the time since 1970."""
    router, api = APIRouter(), _Api(data, clock)
    for answer, *served in (
        (api.query, routes.PROMETHEUS_QUERY, routes.PROMETHEUS_QUERY_FORM),
        (api.range, routes.PROMETHEUS_RANGE, routes.PROMETHEUS_RANGE_FORM),
        (api.series, routes.PROMETHEUS_SERIES, routes.PROMETHEUS_SERIES_FORM),
        (api.names, routes.PROMETHEUS_LABELS, routes.PROMETHEUS_LABELS_FORM),
        (api.values, routes.PROMETHEUS_VALUES),
        (api.metadata, routes.PROMETHEUS_METADATA),
        (api.build, routes.PROMETHEUS_BUILD),
    ):
        for route in served:
            _add(router, route, answer)
    return router


def _add(router: APIRouter, route: HttpRoute[dict[str, Any]], answer: Answer) -> None:
    async def handle(request: Request) -> Response:
        """The answer in its envelope; errors with Prometheus' words and status."""
        try:
            told, warnings = await answer(request, await _parameters(request))
        except PromqlRefused as error:
            status = HTTPStatus.BAD_REQUEST if error.reason == "bad_data" else HTTPStatus.UNPROCESSABLE_ENTITY
            return _error(status, error.reason, error.line)
        except ClientRefusal as error:
            return _error(HTTPStatus.UNPROCESSABLE_ENTITY, "execution", str(error))
        except (Unavailable, TimeoutError) as error:
            return _error(HTTPStatus.SERVICE_UNAVAILABLE, "timeout", str(error) or "there was no answer in time")
        body = {"status": "success", "data": told} | ({"warnings": warnings} if warnings else {})
        return Response(await asyncio.to_thread(json.dumps, body), media_type="application/json")

    serve(router, route, description=answer.__doc__)(handle)


def _error(status: HTTPStatus, kind: str, text: str) -> Response:
    body = {"status": "error", "errorType": kind, "error": text}
    return Response(json.dumps(body), status, media_type="application/json")


class _Api:
    """A method for each path."""

    def __init__(self, data: PrometheusData, clock: Callable[[], float]) -> None:
        self._data = data
        self._clock = clock

    async def query(self, request: Request, parameters: Parameters) -> Told:
        """The value of a query at one moment, now unless ``time`` is given."""
        now, expression = self._clock(), _expression(_first(parameters, "query"), "query")
        at = _time(parameters, "time") if _first(parameters, "time") else now
        wanted = selectors(expression)
        series, warnings = await read_series(self._data, await self._nodes(request, wanted), wanted, at, at, now)
        await _pay(request, series.values(), 1)
        return await asyncio.to_thread(lambda: _plain(evaluate_instant(expression, at, series))), warnings

    async def range(self, request: Request, parameters: Parameters) -> Told:
        """The values of a query from ``start`` to ``end``, each ``step``."""
        start, end, step = _time(parameters, "start"), _time(parameters, "end"), read_number(_first(parameters, "step"))
        check_range(start, end, step)
        expression = _expression(_first(parameters, "query"), "query")
        wanted, now = selectors(expression), self._clock()
        series, warnings = await read_series(self._data, await self._nodes(request, wanted), wanted, start, end, now)
        await _pay(request, series.values(), (end - start) / step + 1)
        return await asyncio.to_thread(lambda: _plain(evaluate_range(expression, start, end, step, series))), warnings

    async def series(self, request: Request, parameters: Parameters) -> Told:
        """The labels of all series that any ``match[]`` selects."""
        if "match[]" not in parameters:
            raise PromqlRefused("no match[] parameter provided")
        found = seen.at_most(await self._metrics(request, parameters))
        return _limited(parameters, [metric.labels for metric in found])

    async def names(self, request: Request, parameters: Parameters) -> Told:
        """The names of all labels."""
        found = await self._metrics(request, parameters)
        return _limited(parameters, sorted({name for metric in found for name in metric.labels}))

    async def values(self, request: Request, parameters: Parameters) -> Told:
        """The values of one label."""
        name, found = request.path_params["name"], await self._metrics(request, parameters)
        return _limited(parameters, sorted({metric.labels.get(name, "") for metric in found} - {""}))

    async def metadata(self, request: Request, parameters: Parameters) -> Told:
        """The kind of each metric: all are gauges."""
        names = sorted({metric.labels[NAME] for metric in await self._metrics(request, {})})
        wanted = _first(parameters, "metric")
        told = {name: [{"type": "gauge", "help": "", "unit": ""}] for name in names if wanted in ("", name)}
        found, _ = _limited(parameters, told.items())
        return dict(found), ()

    async def build(self, request: Request, parameters: Parameters) -> Told:
        """What Grafana asks to know whom it talks with. Mimir would list features."""
        blank = dict.fromkeys(("revision", "branch", "buildUser", "buildDate", "goVersion"), "")
        return {"version": API_VERSION, **blank, "features": {}}, ()

    async def _metrics(self, request: Request, parameters: Parameters) -> list[seen.FoundMetric]:
        """The series of any ``match[]``, or all."""
        matched = [_expression(text, "match[]") for text in parameters.get("match[]", ())]
        wanted = [each for each in matched if isinstance(each, Selector) and not each.range_s and not each.offset_s]
        if len(wanted) < len(matched):
            raise PromqlRefused('invalid parameter "match[]": a selector without a range or offset is expected')
        return await asyncio.to_thread(seen.find_metrics, await self._nodes(request, wanted or [Selector(())]), wanted)

    async def _nodes(self, request: Request, wanted: Sequence[Selector]) -> list[NodeEntry]:
        """The nodes among which to look for series, which is paid for; none if nothing is wanted."""
        nodes = await self._data.nodes() if wanted else []
        await pay(request, seen.price_of_finding(nodes, wanted))
        return nodes


async def _pay(request: Request, found: Iterable[Sequence[Series]], steps: float) -> None:
    """Evaluation is paid for before it is done."""
    samples = sum(steps + len(series.samples) for each in found for series in each)
    await pay(request, SAMPLE_S * min(WORK_MAX, samples))


# Reading requests


async def _parameters(request: Request) -> Parameters:
    """Those of the URL and of a form."""
    texts = [request.url.query, (await request.body()).decode(errors="replace") if request.method == "POST" else ""]
    try:
        return parse_qs("&".join(filter(None, texts)), keep_blank_values=True, max_num_fields=PARAMETERS_MAX)
    except ValueError:
        raise PromqlRefused(f"a request has at most {PARAMETERS_MAX} parameters") from None


def _first(parameters: Parameters, name: str) -> str:
    return parameters.get(name, [""])[0]


def _time(parameters: Parameters, name: str) -> float:
    """Seconds since 1970, from such a number or a time as RFC 3339 has it."""
    text = _first(parameters, name)
    try:
        seconds = float(text)
    except ValueError:
        nanoseconds = parse_timestamp(text)
        seconds = math.nan if nanoseconds is None else nanoseconds / 1e9
    if not abs(seconds) <= TIME_S_MAX:
        raise PromqlRefused(f'invalid parameter "{name}": cannot parse {text[:40]!r} to a valid timestamp')
    return seconds


def _expression(text: str, name: str) -> Expression:
    try:
        return parse(text)
    except PromqlRefused as error:
        raise PromqlRefused(f'invalid parameter "{name}": {error.line}') from None


# Writing answers


def _limited(parameters: Parameters, items: Iterable[Any]) -> tuple[list[Any], Sequence[str]]:
    """A list, of which ``limit`` may ask for the first part only."""
    listed, text = list(items), _first(parameters, "limit") or "0"
    if not (text.isascii() and text.isdecimal()):
        raise PromqlRefused('invalid parameter "limit": a whole number is expected')
    limit = int(text[:9]) or len(listed)
    return listed[:limit], ["results truncated due to limit"] if limit < len(listed) else []


def _plain(result: QueryResult) -> object:
    """A result as Prometheus has it in JSON."""
    series = [(each.labels, [[at, _number(value)] for at, value in each.samples]) for each in result.series]
    told: Any
    if result.kind is ValueKind.MATRIX:
        kind, told = "matrix", [{"metric": labels, "values": samples} for labels, samples in series]
    elif result.kind is ValueKind.VECTOR:
        kind, told = "vector", [{"metric": labels, "value": samples[0]} for labels, samples in series]
    else:
        (_, ((at, value),)), kind = series[0], str(result.kind)
        told = [at, result.text if result.kind is ValueKind.STRING else value]
    return {"resultType": kind, "result": told}


def _number(value: float) -> str:
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return "NaN" if value != value else repr(float(value)).removesuffix(".0")
