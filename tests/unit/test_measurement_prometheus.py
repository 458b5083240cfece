"""Prometheus' HTTP API over measurements: what Grafana and promtool ask, word by word, and what they are told."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from fastapi.routing import APIRoute

from peerd.errors import Unavailable
from peerd.front import scope_of
from peerd.ids import NodeId
from protocols.measurement.front.prometheus import PARAMETERS_MAX, prometheus_router
from protocols.measurement.front.prometheus_series import WARNINGS_MAX, node_labels
from protocols.measurement.guarantee.interval import Interval
from protocols.measurement.guarantee.words import Measurement
from protocols.measurement.promql.evaluate import SERIES_MAX
from protocols.measurement.readings import NodeEntry, NoReading, Reading

NOW = 1_700_000_000.0
A, B = NodeId(0xA), NodeId(0xB)
HEX_A, HEX_B = f"{A:032x}", f"{B:032x}"
FORM = {"content-type": "application/x-www-form-urlencoded"}


class FakeData:
    """Two nodes that measure their processors and the distance to each other; the test changes what they say."""

    def __init__(self) -> None:
        self.entries = [
            NodeEntry(A, "10.0.0.1:7000", {"role": "web", "rack-no": "1"}, ("cpu", f"rtt@{HEX_B}")),
            NodeEntry(B, "10.0.0.2:7000", {"role": "db"}, ("cpu", f"rtt@{HEX_A}")),
        ]
        self.values = {Measurement(A, "cpu"): 0.25, Measurement(B, "cpu"): 0.75}
        self.silent: dict[NodeId, str] = {}
        self.stale_s: dict[NodeId, float] = {}
        self.remembered: dict[Measurement, list[tuple[float, float]]] = {}
        self.asked: list[list[Measurement]] = []
        self.error: Exception | None = None

    async def nodes(self) -> list[NodeEntry]:
        return self.entries

    async def read(self, measurements: list[Measurement]) -> list[Reading | NoReading]:
        self.asked.append(measurements)
        if self.error is not None:
            raise self.error
        return [self.reading(each) for each in measurements]

    def reading(self, each: Measurement) -> Reading | NoReading:
        if each.owner in self.silent:
            return NoReading(each, self.silent[each.owner])
        value, age_s = self.values.get(each, 0.5), self.stale_s.get(each.owner, 1.0)
        return Reading(each, value, Interval(value - 0.125, value + 0.125), age_s, each.owner in self.stale_s, A)

    def past(self, measurement: Measurement, start: float, end: float) -> list[tuple[float, float]]:
        return [sample for sample in self.remembered.get(measurement, []) if start <= sample[0] <= end]


@pytest.fixture
def data() -> FakeData:
    return FakeData()


@pytest.fixture
async def http(data: FakeData) -> AsyncIterator[httpx.AsyncClient]:
    app = FastAPI()
    app.include_router(prometheus_router(data, lambda: NOW), prefix="/v1")
    base = "http://peerd/v1/measurement/prometheus/api/v1/"
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url=base) as client:
        yield client


async def told(http: httpx.AsyncClient, path: str, **parameters: Any) -> Any:
    answer = await http.get(path, params=parameters)
    assert answer.status_code == 200, answer.text
    assert answer.json()["status"] == "success"
    return answer.json()["data"]


async def vector(http: httpx.AsyncClient, query: str, **parameters: Any) -> dict[str, str]:
    """The values of a vector, by the addresses of their nodes."""
    data = await told(http, "query", query=query, **parameters)
    assert data["resultType"] == "vector"
    return {sample["metric"].get("instance", ""): sample["value"][1] for sample in data["result"]}


# What Grafana does


async def test_save_and_test_works_without_any_node(http: httpx.AsyncClient, data: FakeData) -> None:
    data.error = Unavailable("no ring")
    answer = await http.post("query", content="query=1%2B1&time=4", headers=FORM)
    expected = {"status": "success", "data": {"resultType": "scalar", "result": [4, "2"]}}
    assert answer.status_code == 200 and answer.json() == expected
    build = await told(http, "status/buildinfo")
    assert build["features"] == {} and build["version"].startswith("2.")
    assert data.asked == []


async def test_labels_are_browsed(http: httpx.AsyncClient) -> None:
    times = {"start": NOW - 3600, "end": NOW}
    names = ["__name__", "instance", "node", "peer", "rack_no", "role"]
    assert await told(http, "labels", **times, **{"match[]": '{__name__!=""}'}) == names
    assert await told(http, "labels", **{"match[]": "cpu"}) == ["__name__", "instance", "node", "rack_no", "role"]
    metrics = ["cpu", "cpu_high", "cpu_low", "rtt", "rtt_high", "rtt_low"]
    assert await told(http, "label/__name__/values", **times) == metrics
    assert await told(http, "label/role/values", **{"match[]": ['cpu{role="db"}', 'cpu{role="mail"}']}) == ["db"]
    assert await told(http, "label/nothing/values") == []
    assert sorted(await told(http, "metadata")) == metrics
    assert await told(http, "metadata", metric="cpu") == {"cpu": [{"type": "gauge", "help": "", "unit": ""}]}
    answer = await http.post("labels", content="match%5B%5D=rtt_low&start=1&end=2", headers=FORM)
    assert "peer" in answer.json()["data"]


async def test_series_are_listed_once_however_many_selectors_mean_them(http: httpx.AsyncClient) -> None:
    found = await told(http, "series", **{"match[]": ["cpu", '{__name__=~"cpu.*",role="web"}']})
    assert len(found) == 4
    own = {"__name__": "cpu", "node": HEX_A, "instance": "10.0.0.1:7000", "role": "web", "rack_no": "1"}
    assert own in found
    answer = await http.get("series", params={"match[]": "cpu", "limit": "1"})
    assert len(answer.json()["data"]) == 1 and answer.json()["warnings"] == ["results truncated due to limit"]
    assert (await http.get("series")).json()["error"] == "no match[] parameter provided"


async def test_a_panel_asks_for_a_range_in_a_form(http: httpx.AsyncClient, data: FakeData) -> None:
    data.remembered[Measurement(A, "cpu")] = [(NOW - 60, 0.5), (NOW - 30, 0.375)]
    form = f"query=cpu%7Brole%3D%22web%22%7D&start={NOW - 60}&end={NOW}&step=15"
    answer = await http.post("query_range", content=form, headers=FORM)
    (series,) = answer.json()["data"]["result"]
    assert series["metric"]["node"] == HEX_A
    assert [value for _, value in series["values"]] == ["0.5", "0.5", "0.375", "0.375", "0.25"]
    assert [at for at, _ in series["values"]] == [NOW - 60 + 15 * k for k in range(5)]
    assert data.asked == [[Measurement(A, "cpu")]], "the last value is the one of now"


# What a query is told


async def test_a_query_of_now_reads_and_one_of_before_remembers(http: httpx.AsyncClient, data: FakeData) -> None:
    data.remembered[Measurement(B, "cpu")] = [(NOW - 100, 0.5)]
    assert await vector(http, "cpu") == {"10.0.0.1:7000": "0.25", "10.0.0.2:7000": "0.75"}
    assert await vector(http, "cpu", time=NOW - 4.9) == {"10.0.0.1:7000": "0.25", "10.0.0.2:7000": "0.75"}
    assert len(data.asked) == 2
    assert await vector(http, "cpu", time=NOW - 10) == {"10.0.0.2:7000": "0.5"}
    assert await vector(http, "cpu", time="2023-11-14T22:12:00Z") == {"10.0.0.2:7000": "0.5"}
    assert await vector(http, "cpu offset 1m") == {"10.0.0.2:7000": "0.5"}
    assert len(data.asked) == 2, "nobody was asked what only the past can tell"


async def test_a_range_ends_in_what_is_read(http: httpx.AsyncClient, data: FakeData) -> None:
    data.remembered[Measurement(A, "cpu")] = [(NOW - 60, 1.0), (NOW, 99.0)]
    assert await vector(http, 'max_over_time(cpu{role="web"}[2m])') == {"10.0.0.1:7000": "1"}
    assert await vector(http, 'last_over_time(cpu{role="web"}[2m])') == {"10.0.0.1:7000": "0.25"}
    assert await vector(http, "count_over_time(cpu[2m])") == {"10.0.0.1:7000": "2", "10.0.0.2:7000": "1"}


async def test_bounds_are_metrics_of_their_own_and_not_summed_up_with_the_value(http: httpx.AsyncClient) -> None:
    assert await vector(http, "sum(cpu)") == {"": "1"}
    assert await vector(http, 'cpu_low{role="db"}') == {"10.0.0.2:7000": "0.625"}
    assert await vector(http, 'cpu_high{role="db"}') == {"10.0.0.2:7000": "0.875"}
    assert await vector(http, "cpu_high - cpu_low") == {"10.0.0.1:7000": "0.25", "10.0.0.2:7000": "0.25"}
    assert await vector(http, "cpu < 0.5") == {"10.0.0.1:7000": "0.25"}


async def test_each_measurement_is_read_once(http: httpx.AsyncClient, data: FakeData) -> None:
    await vector(http, f'(cpu_high - cpu_low) / cpu and on(node) rtt{{peer="{HEX_B}"}}')
    (asked,) = data.asked
    assert sorted(asked, key=lambda each: (each.owner, each.name)) == [
        Measurement(A, "cpu"),
        Measurement(A, f"rtt@{HEX_B}"),
        Measurement(B, "cpu"),
    ]


async def test_a_measurement_with_the_name_of_a_bound_goes_before_it(http: httpx.AsyncClient, data: FakeData) -> None:
    data.entries = [NodeEntry(A, "10.0.0.1:7000", {}, ("cpu", "cpu_low"))]
    data.values[Measurement(A, "cpu_low")] = 42.0
    assert await vector(http, "cpu_low") == {"10.0.0.1:7000": "42"}
    assert len(await told(http, "series", **{"match[]": '{__name__!=""}'})) == 5


def test_tags_become_labels_that_are_legal_and_take_no_others_place() -> None:
    tags = {"node": "x", "peer": "y", "a.b": "1", "a-b": "2", "7th": "z", "__name__": "n", "": "e", "Ü": "u"}
    labels = node_labels(NodeEntry(A, "here:1", tags))
    assert labels == {
        "node": HEX_A,
        "instance": "here:1",
        "tag_node": "x",
        "tag_peer": "y",
        "a_b": "2",
        "tag_a_b": "1",
        "tag_7th": "z",
        "tag___name__": "n",
        "tag_": "e",
        "_": "u",
    }


async def test_silent_nodes_and_old_values_are_told(http: httpx.AsyncClient, data: FakeData) -> None:
    data.silent[B] = "no answer"
    data.stale_s[A] = 42.0
    answer = (await http.get("query", params={"query": "cpu + cpu_low"})).json()
    assert answer["warnings"] == [
        f"node {HEX_B} (10.0.0.2:7000): no answer",
        "1 value is older than asked: cpu of 10.0.0.1:7000 (42 s)",
    ]
    assert len(answer["data"]["result"]) == 1


async def test_warnings_are_few_however_many_nodes_are_silent(http: httpx.AsyncClient, data: FakeData) -> None:
    data.entries = [NodeEntry(NodeId(k), f"10.0.0.{k}:7000", {}, ("cpu", "load1")) for k in range(100)]
    data.silent = {NodeId(k): "no answer" for k in range(50)}
    data.stale_s = {NodeId(k): 9.0 for k in range(50, 100)}
    answer = (await http.get("query", params={"query": '{__name__=~"cpu|load1"}'})).json()
    assert len(answer["data"]["result"]) == 100
    *_, more, stale = answer["warnings"]
    assert len(answer["warnings"]) == WARNINGS_MAX + 2 and more == "40 more gave no answer"
    assert stale.startswith("100 values are older than asked: cpu of 10.0.0.50:7000 (9 s), ") and stale.endswith(
        ", ..."
    )


async def test_numbers_that_json_has_not_are_texts(http: httpx.AsyncClient, data: FakeData) -> None:
    data.values[Measurement(A, "cpu")] = 0.0
    assert await vector(http, "-cpu / 0") == {"10.0.0.1:7000": "NaN", "10.0.0.2:7000": "-Inf"}
    assert (await told(http, "query", query="1/0"))["result"][1] == "+Inf"
    text = await told(http, "query", query='"so"', time="7")
    assert text == {"resultType": "string", "result": [7, "so"]}
    window = await told(http, "query", query="cpu[1m]", time=NOW)
    assert window["resultType"] == "matrix" and len(window["result"]) == 2


# What is refused


@pytest.mark.parametrize(
    ("path", "parameters", "status", "kind", "words"),
    [
        ("query", {"query": "cpu @ 5"}, 400, "bad_data", 'invalid parameter "query": 1:5: parse error: the modifier @'),
        ("query", {"query": "deriv(cpu[5m])"}, 400, "bad_data", "1:1: parse error: deriv is not in peerd's subset"),
        ("query", {"query": "cpu +"}, 400, "bad_data", "1:6: parse error: the query ends too early"),
        ("query", {}, 400, "bad_data", "the query ends too early"),
        ("query", {"query": "cpu", "time": "noon"}, 400, "bad_data", 'invalid parameter "time"'),
        ("query", {"query": "cpu", "time": "1e99"}, 400, "bad_data", 'invalid parameter "time"'),
        ("query", {"query": "cpu", "time": "nan"}, 400, "bad_data", 'invalid parameter "time"'),
        ("query", {"query": "sum(" * 5_000}, 400, "bad_data", "bytes"),
        ("query", {"query": "-{__name__=~'cpu|cpu_low'}"}, 422, "execution", "same labels"),
        ("query", {"query": "cpu + on() cpu"}, 422, "execution", "one to one"),
        ("query_range", {"query": "1", "start": "1"}, 400, "bad_data", 'invalid parameter "end"'),
        ("query_range", {"query": "1", "start": "1", "end": "2", "step": "0"}, 400, "bad_data", "step"),
        ("query_range", {"query": "1", "start": "1", "end": "2", "step": "x"}, 400, "bad_data", "duration"),
        ("query_range", {"query": "1", "start": "2", "end": "1", "step": "1"}, 400, "bad_data", "ends"),
        ("query_range", {"query": "1", "start": "0", "end": "11001", "step": "1"}, 400, "bad_data", "11000 points"),
        ("query_range", {"query": "cpu[5m]", "start": "0", "end": "1", "step": "1s"}, 400, "bad_data", "range vector"),
        ("series", {"match[]": "sum(cpu)"}, 400, "bad_data", "match[]"),
        ("labels", {"match[]": "cpu[5m]"}, 400, "bad_data", "match[]"),
        ("labels", {"limit": "few"}, 400, "bad_data", "limit"),
        ("labels", {f"p{k}": "" for k in range(PARAMETERS_MAX + 1)}, 400, "bad_data", "parameters"),
    ],
)
async def test_what_is_wrong_is_told_in_the_words_of_prometheus(
    http: httpx.AsyncClient, path: str, parameters: dict[str, str], status: int, kind: str, words: str
) -> None:
    answer = await http.get(path, params=parameters)
    assert answer.status_code == status
    body = answer.json()
    assert (body["status"], body["errorType"]) == ("error", kind) and words in body["error"]


@pytest.mark.parametrize("error", [Unavailable("not in the ring yet"), TimeoutError()])
async def test_what_does_not_come_in_time_is_a_timeout(
    http: httpx.AsyncClient, data: FakeData, error: Exception
) -> None:
    data.error = error
    answer = await http.get("query", params={"query": "cpu"})
    assert answer.status_code == 503 and answer.json()["errorType"] == "timeout" and answer.json()["error"]


async def test_too_many_series_are_refused_before_anybody_is_asked(http: httpx.AsyncClient, data: FakeData) -> None:
    names = tuple(f"m{k}" for k in range(SERIES_MAX // 3 + 1))
    data.entries = [NodeEntry(A, "10.0.0.1:7000", {}, names)]
    for path, parameters in (("query", {"query": '{__name__!=""}'}), ("series", {"match[]": '{__name__!=""}'})):
        answer = await http.get(path, params=parameters)
        assert answer.status_code == 422 and f"{SERIES_MAX} are the most" in answer.json()["error"]
    assert data.asked == []
    assert len(await told(http, "label/__name__/values")) == 3 * len(names), "whoever browses is told all names"


async def test_finding_and_evaluating_are_paid_for(data: FakeData, monkeypatch: pytest.MonkeyPatch) -> None:
    paid: list[float] = []

    async def pay(request: object, price_s: float) -> None:
        paid.append(price_s)

    monkeypatch.setattr("protocols.measurement.front.prometheus.pay", pay)
    app = FastAPI()
    app.include_router(prometheus_router(data, lambda: NOW))
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app), base_url="http://peerd/measurement/prometheus/api/v1/"
    ) as client:
        for query in (
            "cpu",
            'cpu{role=~"web|db"}',
            'cpu{role=~"(.*x?){500}"}',
            'cpu{role=~"(.*x?){500}",node!~".{900}"}',
        ):
            assert (await client.get("query", params={"query": query})).status_code == 200
        plain, listed, dear, dearest = paid[::2]
        assert plain < listed < 1.1 * plain < 5 * plain < dear < dearest < 0.01, "for two nodes"
        evaluated = paid[1]
        await client.get("query_range", params={"query": "cpu", "start": NOW - 1000, "end": NOW, "step": 1})
        assert paid[-1] > 300 * evaluated
        await client.get("labels")
        assert 0 < paid[-1] <= plain


def test_posted_queries_only_read() -> None:
    routes = [route for route in prometheus_router(FakeData()).routes if isinstance(route, APIRoute)]
    assert {scope_of(route) for route in routes} == {"read"}
    assert len(routes) == 11 and all(route.description for route in routes)
