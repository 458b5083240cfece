"""What the dearest valid request of each HTTP route costs the daemon: the second half of `tests.fuzz.dearest`.

A node of a simulated ring has the daemon's real routes, and a client as the kernel names it. Each request is as large
as its route takes, with what is dear to read: filters, patterns, queries, schemas, documents. What is counted is the
processor time of the longest turn of the event loop, from the request to its answer or until that waits for others:
for so long nobody else is served. What goes to a worker is not in it. Every measurement is made in a child process,
like those of messages.

Whatever costs more than `CHEAP_MS` stands in `PAYS`, with who pays for it; tests/sim/test_dearest.py asks for that, and
for a request here for every route that takes a body or a query.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import time
from collections.abc import Iterator, Mapping, MutableMapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, Final
from urllib.parse import quote

from peerd.daemon.admin.api import admin_api
from peerd.daemon.http.caller import STATE_KEY, Caller
from peerd.daemon.tasks import spawn
from peerd.errors import Bug
from peerd.front import Front
from peerd.lib.admission import Admission
from peerd.limits import KIB
from peerd.plugins import usable_fronts
from peerd.sim.simulation import Simulation
from peerd.testing.simulation import ring
from protocols.aggregation.messages import RECIPIENTS_BYTES_MAX
from protocols.aggregation.patterns import PATTERN_CHARACTERS_MAX
from protocols.aggregation.plugin import Aggregation
from protocols.aggregation.query import CONDITIONS_MAX, GLOB_CHARACTERS_MAX
from protocols.dissemination.config import DisseminationConfig
from protocols.dissemination.front.judging import plugin_of as streams_of
from protocols.dissemination.messages import INTEREST_BYTES_MAX, ITEM_BYTES_MAX
from protocols.dissemination.models import StreamSpec
from protocols.dissemination.plugin import Dissemination
from protocols.pubsub.front.batches import BATCH_EVENTS_MAX
from protocols.pubsub.front.judging import plugin_of as pubsub_of
from protocols.pubsub.models import SubscriptionRequest
from protocols.pubsub.plugin import PubSub
from protocols.pubsub.schema.document import ATTRIBUTES_MAX
from tests.fuzz.dearest import CROSSED_FILTER, DEAR_FILTER, Dearest, reference_milliseconds
from tests.support.amplification_pubsub import DOCUMENT
from tests.support.branch import in_a_branch
from tests.support.sim_daemon import SimDaemon

NODES: Final = 3
TURNS: Final = 100
"""Of the event loop: a request whose answer has not come by then waits for others."""
PIECE_BYTES: Final = 64 * KIB
"""Of a body, in which the daemon gets it."""
BODY_BYTES: Final = 64 * KIB - 64
JSON: Final = "application/json"
LINES: Final = "application/x-ndjson"
BATCH: Final = "application/cloudevents-batch+json"
XML: Final = "application/xml"
SUBSCRIPTION: Final = "{subscription}"
"""In a path: the id of a subscription that the ring has."""
METHODS: Final = ("get", "put", "post", "patch", "delete")
STREAMS: Final = {"log": "attributes", "news": "xpath", "prices": "coherency"}
_TEXT: Final = "the client, for the length and the marks of the body (price_of_text)"
_FILTER: Final = "the client, for the length of the filter (filter_work)"
_INTEREST: Final = "the client, for the length of the interest"
_ODD: Final = (
    "POST /v1/access",
    "POST /v1/aggregate",
    "POST /v1/ca/rotation",
    "POST /v1/certificate",
    "POST /v1/denials",
    "POST /v1/drain",
    "POST /v1/members/forgotten",
    "POST /v1/notices",
    "POST /v1/reach",
    "POST /v1/ring/check",
    "POST /v1/streams",
    "POST /v1/streams/{stream}/hand-over",
    "POST /v1/tokens",
    "PUT /v1/links/cut",
    "PUT /v1/pubsub/schemas/{name}",
)
"""Their dearest body is one of names that they do not know."""
PAYS: Final[dict[str, str]] = {
    **dict.fromkeys(_ODD, _TEXT),
    "POST /v1/streams/{stream}/items": f"{_TEXT}; after some lines others have their turn (Turns)",
    "POST /v1/pubsub/{schema}/events": f"{_TEXT}; after some events others have their turn (Turns)",
    "POST /v1/pubsub/subscriptions": _FILTER,
    "PATCH /v1/pubsub/subscriptions/{id}": _FILTER,
    "GET /v1/pubsub/{schema}/events": _FILTER,
    "POST /v1/streams/{stream}/subscriptions": _INTEREST,
    "GET /v1/streams/{stream}/items": _INTEREST,
    "GET /v1/events": "the client, for each pattern",
}
"""Who pays, by route, for what costs more than `CHEAP_MS`: before it is done."""


@dataclass(frozen=True, slots=True)
class Asked:
    """One request. ``path``: the route's, with its names filled in."""

    method: str
    path: str
    query: str = ""
    body: bytes = b""
    type: str = JSON

    @property
    def size_bytes(self) -> int:
        """What the client sends of it."""
        return len(self.path) + len(self.query) + len(self.body)


# The dearest requests that are known


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _many(one: str, bytes_max: int = BODY_BYTES, between: str = ",") -> str:
    """As many of it as fit."""
    return between.join([one] * (bytes_max // (len(one) + len(between))))


def _queries() -> list[str]:
    """XPath that is dear to read, to compile or to compare."""
    wide = " | ".join(f"//a{number}[@b{number}='{number}' and c]" for number in range(20))
    long = "//*" + "".join(f"[@a{number} or b{number}[c{number} < {number}]]" for number in range(18))
    nested = "//a[b" * 15 + "]" * 15
    deep = "/" + "/".join(["a"] * 31) + "[text()='x']"
    either = "//a[" + " or ".join(f"@b='{number}'" for number in range(22)) + "]"
    refused = "//a[" + " or ".join(f"@b='{number}'" for number in range(300)) + "]"
    return [wide, long, nested, deep, either, refused]


def _filters() -> list[str]:
    return [DEAR_FILTER, CROSSED_FILTER]


def _documents() -> list[bytes]:
    return [
        b"<a>" + b"<b c='d'>e</b>" * 15_000 + b"</a>",
        b"<a>" + b"x" * (ITEM_BYTES_MAX - 8) + b"</a>",
        b"<a " + b" ".join(b"b%d='c'" % number for number in range(250)) + b"/>",
        b"<!--" + b"x" * (ITEM_BYTES_MAX - 16) + b"--><a/>",
    ]


def _objects() -> list[bytes]:
    return [
        _json({f"a{number}": number for number in range(60_000)}),
        b'{"a":[' + _many("[0]", ITEM_BYTES_MAX - 16).encode() + b"]}",
        _json({"a": "x" * (ITEM_BYTES_MAX - 16)}),
        _json({"a": "\u00e9" * 170_000}),
    ]


def _of_aggregation() -> Iterator[Asked]:
    yield Asked("POST", "/v1/aggregate", body=_json({"query": "count"}))
    some = " or ".join(f"a = {number}" for number in range(1000))[:RECIPIENTS_BYTES_MAX].rpartition(" or ")[0]
    yield Asked("POST", "/v1/aggregate", body=_json({"query": "count", "to": some}))
    yield Asked("GET", "/v1/aggregate/answers", "after=start&follow=0")
    conditions = [{"field": "f" * 200, "operator": "=", "value": "v" * 200}] * CONDITIONS_MAX
    texts = ["count by a where " + " and ".join(["b = 'c'"] * CONDITIONS_MAX), "count by " + "a" * 4000]
    for query in (*texts, {"function": "count", "by": "b", "where": conditions}):
        yield Asked("POST", "/v1/aggregate", body=_json({"query": query}))
    for pattern in (
        "(?P<a>.{1,200})" + "(b|c){20}" * 20,
        "(?P<a>[[:alpha:]]{250})",
        "(?P<a>x)" + "(\\pL|\\pN){30}" * 20,
    ):
        given = {"query": "count by a", "pattern": pattern[:PATTERN_CHARACTERS_MAX]}
        yield Asked("POST", "/v1/aggregate", body=_json(given))
    files = ("**/*a" * 200)[:GLOB_CHARACTERS_MAX]
    yield Asked("POST", "/v1/aggregate", body=_json({"query": "count", "files": files}))
    rows = ",".join(['{"field":"a","operator":"=","value":1}'] * 1500)
    yield Asked("POST", "/v1/aggregate", body=f'{{"query":{{"function":"count","where":[{rows}]}}}}'.encode())


def _of_pubsub() -> Iterator[Asked]:
    events, subscriptions = "/v1/pubsub/s/events", "/v1/pubsub/subscriptions"
    one = '{"a":5}'
    yield Asked("POST", events, "ack=replicated", one.encode())
    yield Asked("POST", events, body=_json({"a": 5, "_payload": "x" * 30_000}))
    yield Asked("POST", events, body=_json({"a": 5, "_headers": {f"h{number}": "v" * 20 for number in range(1000)}}))
    yield Asked("POST", events, body=_json({f"a{number}": number for number in range(5000)}))
    yield Asked("POST", events, body=f"[{_many(one, 1 << 20)}]".encode())
    yield Asked("POST", events, body=f"[{','.join([one] * BATCH_EVENTS_MAX)}]".encode())
    cloud = '{"specversion":"1.0","id":"1","source":"s","type":"t","data":{"a":5}}'
    yield Asked("POST", events, body=f"[{_many(cloud, 1 << 20)}]".encode(), type=BATCH)
    yield Asked("POST", events, body=f"[{','.join([cloud] * 256)}]".encode(), type=BATCH)
    yield Asked("POST", events, body=_many(one, between="\n").encode(), type=LINES)
    for filter in ("a > 2", *_filters()):
        yield Asked("POST", subscriptions, body=_json({"schema": "s", "filter": filter}))
        yield Asked("PATCH", f"{subscriptions}/{SUBSCRIPTION}", body=_json({"filter": filter}))
        yield Asked("GET", events, f"filter={quote(filter)}&follow=0&since_s=10")
    for form in (["a"] * 10_000, {"a": list(range(9000))}, {"a": [{"prefix": "x"}] * 4000}, _nested(5000)):
        yield Asked("POST", subscriptions, body=_json({"schema": "s", "filter": form}))
        yield Asked("PATCH", f"{subscriptions}/{SUBSCRIPTION}", body=_json({"filter": form}))
    yield Asked("GET", f"{subscriptions}/{SUBSCRIPTION}/events", "after=start&follow=0")
    plain = [{"name": f"a{number}", "type": "int", "low": 0, "high": 100} for number in range(ATTRIBUTES_MAX)]
    listed = [f"v{value}" for value in range(40)]
    attributes = [{"name": f"a{number}", "type": "string", "values": listed} for number in range(ATTRIBUTES_MAX)]
    for described in (plain[:1], plain, attributes, [{"name": "a", "type": "int"}] * 2000):
        yield Asked("PUT", "/v1/pubsub/schemas/t", "if_version=0", _json({"name": "t", "attributes": described}))
    yield Asked("PUT", "/v1/pubsub/schemas/t", body=_json({"name": "t", **{f"k{number}": 0 for number in range(5000)}}))
    yield Asked("GET", "/v1/pubsub/explain/" + "0" * 32 + "-1-1", "subscriber=" + "0" * 32)
    yield Asked("GET", "/v1/pubsub/s/tree", "attribute=a")


def _nested(depth: int) -> Any:
    made: Any = {"a": 1}
    for _ in range(min(depth, 40)):
        made = {"all": [made, {"b": 2}]}
    return made


def _of_streams() -> Iterator[Asked]:
    of_objects, of_values = ["a > 2", *_filters(), _long_list()], ["CHANGES 10", _coherent()]
    for stream, wants in (("log", of_objects), ("news", ["/a", *_queries()]), ("prices", of_values)):
        for interest in wants:
            yield Asked("POST", f"/v1/streams/{stream}/subscriptions", body=_json({"interest": interest}))
            yield Asked("GET", f"/v1/streams/{stream}/items", f"interest={quote(interest)}&follow=0&after_item=start")
    yield Asked("POST", "/v1/streams/log/items", body=b'{"a":1}')
    for document in _documents():
        yield Asked("POST", "/v1/streams/news/items", body=document, type=XML)
    for item in _objects():
        yield Asked("POST", "/v1/streams/log/items", body=item)
        yield Asked("POST", "/v1/streams/prices/items", body=item)
    lines = _many('{"a":1}', 1 << 20, "\n").encode()
    yield Asked("POST", "/v1/streams/log/items", body=lines, type=LINES)
    yield Asked("POST", "/v1/streams/log/items", body=b"\n".join([*_objects(), b""]), type=LINES)
    wrapped = _json({"payload": _documents()[0].decode(), "content_type": XML})
    yield Asked("POST", "/v1/streams/news/items", "wrapped=1", wrapped, LINES)
    yield Asked("GET", "/v1/streams/log/subscriptions/{streamed}/items", "after_item=start&follow=0")
    yield Asked("PUT", "/v1/streams/log/documents/file", f"size={ITEM_BYTES_MAX}&payload=%7B%7D", b"x" * ITEM_BYTES_MAX)
    yield Asked("GET", "/v1/streams/log/documents/" + "0" * 32, "begin=0")
    settings = {f"setting{number}": number for number in range(4000)}
    for spec in ({}, {"settings": settings}, {"settings": {"level_gain": 0.1}}, {"successors": ["a:1"] * 9000}):
        yield Asked("POST", "/v1/streams", body=_json({"name": "more", **spec}))
    yield Asked("POST", "/v1/streams/log/hand-over", body=_json({"to": "x" * 300}))


def _long_list() -> str:
    return ("a IN (" + ", ".join(f"'{number:05}'" for number in range(250)) + ")")[:INTEREST_BYTES_MAX]


def _coherent() -> str:
    names = ", ".join(f"'object{number}'" for number in range(200))
    return f"object IN ({names}) WITHIN 0.5"[:INTEREST_BYTES_MAX]


def _of_the_daemon() -> Iterator[Asked]:
    pem = "-----BEGIN CERTIFICATE-----\n" + "A" * 32_000
    yield Asked("POST", "/v1/certificate", body=_json({"pem": pem}))
    yield Asked("POST", "/v1/notices", body=_json({"notice": pem}))
    yield Asked("POST", "/v1/ca/rotation", body=_json({"overlap_s": 3600.0}))
    yield Asked("POST", "/v1/tokens", body=_json({"life_s": 60.0}))
    yield Asked("POST", "/v1/access", body=_json({"name": "n", "scopes": ["aggregation:read"] * 3000, "life_s": 60.0}))
    yield Asked("POST", "/v1/denials", body=_json({"subject": "0" * 32, "reason": "x" * 256}))
    yield Asked("POST", "/v1/ring/check", body=b"{}")
    yield Asked("POST", "/v1/reach", body=b"{}")
    yield Asked("POST", "/v1/drain", body=_json({"timeout_s": 10.0}))
    yield Asked("PUT", "/v1/links/cut", body=_json({"nodes": ["0" * 32] * 256}))
    yield Asked("POST", "/v1/members/forgotten", body=_json({"node": "x" * 300}))
    yield Asked("GET", "/v1/rtt", "target=" + "0" * 32 + "&pings=10")
    yield Asked("GET", "/v1/rtt/known", "pings=10")
    yield Asked("GET", "/v1/peers/" + "0" * 32 + "/history", "around=1")
    kinds = "&".join(f"kind={'*a' * 30}{number}" for number in range(16))
    yield Asked("GET", "/v1/events", f"{kinds}&after=start&follow=0")


def requests() -> list[Asked]:
    """All of them, one of each route that takes nothing but its path, and a body of unknown names for each other."""
    known = [*_of_aggregation(), *_of_pubsub(), *_of_streams(), *_of_the_daemon()]
    odd = _json({f"k{number}": number for number in range(5000)})
    for path, operations in _paths().items():
        for method, operation in operations.items():
            if method in METHODS and not _takes(operation):
                known.append(Asked(method.upper(), _filled(path)))
            elif method in METHODS and "requestBody" in operation:
                known.append(Asked(method.upper(), _filled(path), body=odd))
    return known


def _filled(path: str) -> str:
    names = {"{stream}": "log", "{schema}": "s", "{name}": "s", "{node}": "0" * 32, "{key}": "k", "{id}": SUBSCRIPTION}
    if path.startswith("/v1/streams"):
        names["{id}"] = "{streamed}"
    for name, value in names.items():
        path = path.replace(name, value)
    return path


def _takes(operation: Mapping[str, Any]) -> bool:
    """Whether it takes a body, or something in its query."""
    return "requestBody" in operation or any(each["in"] == "query" for each in operation.get("parameters", ()))


def routes_that_take() -> set[str]:
    """Of the OpenAPI document."""
    return {
        f"{method.upper()} {path}"
        for path, operations in _paths().items()
        for method, operation in operations.items()
        if method in METHODS and _takes(operation)
    }


@cache
def _paths() -> dict[str, Any]:
    paths: dict[str, Any] = _site().app.openapi()["paths"]
    return paths


def route_of(asked: Asked) -> str:
    """The route, as the OpenAPI document has it, with its method."""
    parts = asked.path.split("/")
    found = [path for path in _paths() if _is_met(path.split("/"), parts) and asked.method.lower() in _paths()[path]]
    if not found:
        raise Bug(f"there is no route for {asked.method} {asked.path}")
    return f"{asked.method} {min(found, key=lambda path: path.count('{'))}"


def _is_met(pattern: list[str], parts: list[str]) -> bool:
    return len(pattern) == len(parts) and all(a == b or a.startswith("{") for a, b in zip(pattern, parts, strict=True))


# How they are measured


class _Daemon(SimDaemon):
    """With the protocols' routes."""

    def fronts(self) -> dict[str, Front]:
        """Of all that are installed."""
        return usable_fronts()


@dataclass(frozen=True, slots=True)
class _Site:
    simulation: Simulation
    app: Any
    names: dict[str, str]
    """What stands for a name in braces in a path."""


@cache
def _site() -> _Site:
    """A ring with a schema, streams of each kind and a subscription to each, and the routes of its first node."""
    simulation = ring(NODES, plugins=lambda index: [PubSub(), Dissemination(DisseminationConfig()), Aggregation()])
    first = simulation.nodes[0]
    told: list[Any] = []
    pubsub_of(first).schemas.declare(DOCUMENT, told.append)
    for name, kind in STREAMS.items():
        streams_of(first).changes.create(StreamSpec(name=name, kind=kind), told.append)
    simulation.run_until(lambda: len(told) == 1 + len(STREAMS), limit_s=60.0)
    request = SubscriptionRequest.model_validate({"schema": "s", "filter": "a > 1"})
    view = pubsub_of(first).subscriptions.subscribe(request, told.append)
    simulation.run_for(10.0)
    daemon = _Daemon(simulation, first)
    for _ in range(1000):
        daemon.events.push({"event": "overlay.peer_suspected", "ts": 1.0, "node": "0" * 32})
    return _Site(simulation, admin_api(daemon), {SUBSCRIPTION: view.id, "{streamed}": "0"})


@dataclass(frozen=True, slots=True)
class DearestRequest(Dearest):
    """The dearest request of a route that was found; ``charged_ms``: what its client was charged for."""

    charged_ms: float


AGAIN: Final = 9
"""So often the dearest request is measured once more. One of a MiB works in memory that is shared with what else runs
here, so that of three times on a busy machine all may be half as long again."""


def dearest_request(route: str, *, beyond_charge: bool = False) -> DearestRequest:
    """Measure all requests of a route, and the dearest again: the least of some times counts.

    ``beyond_charge``: that which takes most beyond what its client is charged for.
    """
    asked = [each for each in requests() if route_of(each) == route]
    first = [in_a_branch(partial(_cost_of, each, asked[0])) for each in asked]
    number = max(range(len(asked)), key=lambda each: first[each][0] - beyond_charge * first[each][1])
    again = [first[number], *(in_a_branch(partial(_cost_of, asked[number], asked[0])) for _ in range(AGAIN))]
    cost_ms, charged_ms = min(again)
    return DearestRequest(route, cost_ms, asked[number].size_bytes, charged_ms)


def routes() -> list[str]:
    """All that there are requests for."""
    return sorted({route_of(each) for each in requests()})


def _cost_of(asked: Asked, small: Asked) -> tuple[float, float]:
    """Milliseconds of the longest turn, and how many the client was charged for."""
    site, charged = _site(), _charges()
    gc.disable()
    for place in site.simulation.live_nodes():
        place.driver.offload = _never  # type: ignore[method-assign]  # a worker's time is not this thread's
    with asyncio.Runner() as runner:
        runner.get_loop().set_default_executor(_Awaited())
        for _ in range(2):  # imports what the route needs
            runner.run(_ask(site, small))
        charged.clear()
        return reference_milliseconds(runner.run(_ask(site, asked)).longest_s), 1000.0 * sum(charged)


def _charges() -> list[float]:
    """From now on what clients are charged: their admissions are those whose keys are text."""
    charged: list[float] = []
    take = Admission.take

    def noted(self: Admission[Any], key: Any, now: float, amount: float = 1.0) -> bool:
        if isinstance(key, str):
            charged.append(amount)
        return take(self, key, now, amount)

    Admission.take = noted  # type: ignore[method-assign]  # in a child process
    return charged


class _Awaited(ThreadPoolExecutor):
    """Threads whose work is done when it has been submitted, so that no turn of the event loop waits for it."""

    def submit(self, *arguments: Any, **named: Any) -> Future[Any]:
        """As the base class, and then wait."""
        future = super().submit(*arguments, **named)
        wait([future])
        return future


def _never(*arguments: Any, **named: Any) -> Any:
    class Work:
        def cancel(self) -> None: ...

    return Work()


@dataclass(frozen=True, slots=True)
class _Told:
    status: int
    """0: there was no answer yet."""
    longest_s: float
    """Processor time of the longest turn of the event loop."""


async def _ask(site: _Site, asked: Asked) -> _Told:
    """Send it in pieces as the daemon gets them, and wait for the answer as long as this thread has to do with it."""
    path = asked.path
    for name, value in site.names.items():
        path = path.replace(name, value)
    pieces = [asked.body[begin : begin + PIECE_BYTES] for begin in range(0, len(asked.body), PIECE_BYTES)] or [b""]
    sent: list[MutableMapping[str, Any]] = []

    async def receive() -> MutableMapping[str, Any]:
        if not pieces:
            await asyncio.Event().wait()
        piece = pieces.pop(0)
        return {"type": "http.request", "body": piece, "more_body": bool(pieces)}

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)

    headers = {"host": "localhost", "content-type": asked.type, "content-length": str(len(asked.body))}
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": asked.method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": asked.query.encode(),
        "root_path": "",
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
        "client": None,
        "server": ("localhost", 80),
        "state": {STATE_KEY: Caller("admin_socket", user_id=os.geteuid(), process_id=1)},
    }
    running = spawn(site.app(scope, receive, send), name="request")
    longest_s = 0.0
    for _ in range(TURNS):
        begun = time.thread_time()
        await asyncio.sleep(0)
        longest_s = max(longest_s, time.thread_time() - begun)
        if running.done():
            break
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    return _Told(int(sent[0]["status"]) if sent else 0, longest_s)
