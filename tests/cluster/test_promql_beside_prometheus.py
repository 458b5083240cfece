"""The cases of PromQL once more, asked of a real Prometheus where one is installed: it answers what we answer."""

from __future__ import annotations

import math
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from protocols.measurement.promql.refusals import PromqlRefused
from protocols.measurement.promql.tree import QueryResult, ValueKind
from tests.support.promql_cases import Case, cases, key, run, same

IS_INSTALLED = shutil.which("prometheus") is not None and shutil.which("promtool") is not None
pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(not IS_INSTALLED, reason="prometheus and promtool are not installed"),
]
FIRST_S = 1_600_000_200.0
APART_S = 12 * 3600.0
"""The cases that share series are so far from the others in time that nobody sees these."""


def moments(found: list[Case]) -> list[float]:
    """For each case, where its series begin."""
    groups: dict[str, float] = {}
    return [groups.setdefault(repr(case.series), FIRST_S + APART_S * len(groups)) for case in found]


def written(found: list[Case]) -> str:
    """All series as OpenMetrics."""
    lines: dict[str, None] = {}
    for case, since in zip(found, moments(found), strict=True):
        for series in case.series:
            labels = dict(series.labels)
            name = labels.pop("__name__")
            inner = ",".join(f'{label}="{value}"' for label, value in labels.items() if value)
            for at, value in series.samples:
                number = f"{'+' if value > 0 else '-'}Inf" if math.isinf(value) else str(value).replace("nan", "NaN")
                lines[f"{name}{{{inner}}} {number} {since + at:.3f}"] = None
    return "\n".join([*lines, "# EOF", ""])


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    folder: Path = tmp_path_factory.mktemp("prometheus")
    (folder / "series").write_text(written(list(cases())))
    (folder / "config.yml").write_text("global: {}\n")
    load: list[str | Path] = [
        "promtool",
        "tsdb",
        "create-blocks-from",
        "openmetrics",
        "-q",
        folder / "series",
        folder / "data",
    ]
    subprocess.run(load, check=True, capture_output=True)
    address = "127.0.0.1:19390"
    with subprocess.Popen(
        [
            "prometheus",
            f"--config.file={folder}/config.yml",
            f"--storage.tsdb.path={folder}/data",
            "--storage.tsdb.retention.time=100y",
            f"--web.listen-address={address}",
            "--log.level=error",
        ]
    ) as process:
        with httpx.Client(base_url=f"http://{address}/") as http:
            for _ in range(300):
                try:
                    if http.get("/-/ready").status_code == 200:
                        break
                except httpx.TransportError:
                    pass
                time.sleep(0.1)
            yield http
        process.terminate()


def told(answer: Any) -> tuple[str, object]:
    """The kind of an answer, and its series: labels, times and values."""
    kind, result = answer["data"]["resultType"], answer["data"]["result"]
    if kind == "string":
        return "string", result[1]
    if kind == "scalar":
        result = [{"metric": {}, "value": result}]
    series = [(key(each["metric"]), each.get("values") or [each["value"]]) for each in result]
    kinds = {"scalar": ValueKind.SCALAR, "vector": ValueKind.VECTOR, "matrix": ValueKind.MATRIX}
    return kinds[kind], sorted((labels, [(at, float(value)) for at, value in samples]) for labels, samples in series)


def is_same(result: QueryResult, kind: str, real: Any) -> bool:
    if kind == "string" or result.kind != kind:
        return kind == result.kind and real == result.text
    ours = sorted((key(each.labels), list(each.samples)) for each in result.series)
    return [labels for labels, _ in ours] == [labels for labels, _ in real] and all(
        len(mine) == len(other) and all(a[0] == b[0] and same(a[1], b[1]) for a, b in zip(mine, other, strict=True))
        for (_, mine), (_, other) in zip(ours, real, strict=True)
    )


def test_each_case_comes_out_as_it_does_there(prometheus: httpx.Client) -> None:
    version = prometheus.get("/api/v1/status/buildinfo").json()["data"]["version"]
    is_old, compared, different = version.startswith("2."), 0, []
    found = list(cases())
    for case, since in zip(found, moments(found), strict=True):
        times = {"start": since + case.start, "end": since + case.end, "step": case.step}
        path, asked = ("query_range", times) if case.step else ("query", {"time": since + case.start})
        answer = prometheus.get(f"/api/v1/{path}", params={"query": case.query, **asked}).json()
        try:
            result = run(case, since)
        except PromqlRefused:
            continue  # the subset is smaller: nothing says what Prometheus does with the rest
        if case.is_new and is_old:
            continue
        compared += 1
        if answer["status"] == "error" or not is_same(result, *told(answer)):
            different.append(
                f"{case.where} {case.query}: ours {result}, theirs {answer.get('error') or answer['data']}"
            )
    assert not different, "\n".join(different)
    assert compared > 350
