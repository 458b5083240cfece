"""`peerd demo` sees what is wrong: an answer that differs, a part that fails, a moment that never comes."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from peerd.cli import demo
from peerd.cli.terminal import stdout
from peerd.cluster.demo import DemoComparison, DemoPart, DemoStage
from peerd.cluster.local import LocalCluster
from peerd.errors import Bug, Unavailable
from protocols.dissemination.front.demo import _Reader, _reading, _verdict
from protocols.dissemination.models import ReceivedItem


class Part(DemoPart):
    """Says what the test wants, or fails."""

    title = "a part"

    def __init__(self, name: str, result: DemoComparison | Exception) -> None:
        self.name, self.result = name, result
        self.saw_kill = False

    def settings(self, work: Path, index: int, count: int) -> Mapping[str, Any]:
        return {self.name: {"index": index, "count": count}}

    async def run(self, stage: DemoStage) -> list[DemoComparison]:
        stage.is_under_way()
        await stage.killed.wait()
        self.saw_kill = True
        if isinstance(self.result, Exception):
            raise self.result
        return [self.result]


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LocalCluster:
    """A folder as of a cluster that runs; killing is noted only."""
    cluster = LocalCluster(tmp_path / "cluster")
    lock = cluster.layout.lock()
    cluster.layout.create("demo", range(40001, 40001 + demo.NODES))
    monkeypatch.setattr(LocalCluster, "kill", lambda self, index: None)
    os.close(lock)
    return cluster


async def test_all_parts_run_at_once_and_see_the_kill(
    cluster: LocalCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    parts: list[DemoPart] = [Part("a", DemoComparison("x", "1", True)), Part("b", DemoComparison("y", "2", False))]
    found = await demo._perform(cluster, parts, tmp_path, stdout())
    assert [each.is_equal for each in found] == [True, False]
    printed = capsys.readouterr().out
    assert "got SIGKILL" in printed and "NO" in printed
    assert demo._settings(parts, tmp_path, 2)["protocols"]["b"] == {"index": 2, "count": demo.NODES}


async def test_what_a_part_raises_ends_the_demo(cluster: LocalCluster, tmp_path: Path) -> None:
    parts: list[DemoPart] = [Part("a", DemoComparison("x", "1", True)), Part("b", Unavailable("the ring is down"))]
    with pytest.raises(Unavailable, match="the ring is down"):
        await demo._perform(cluster, parts, tmp_path, stdout())
    with pytest.raises(Bug):
        await demo._perform(cluster, [Part("a", Bug("ours"))], tmp_path, stdout())


@pytest.mark.parametrize(
    ("came", "is_right"), [([1, 2, 3], True), ([1, 3, 2], False), ([1, 2], False), ([1, 2, 3, 3], False)]
)
def test_a_stream_is_right_when_all_came_once_and_in_order(came: list[int], is_right: bool) -> None:
    reader = _Reader(1, "TRUE", lambda item: item["number"] > 0)
    for number in came:
        reader.take(ReceivedItem(stream="s", id=f"1-{number}", payload=f'{{"number": {number}}}'))
    reader.take(ReceivedItem(type="lost", stream="s", id="1-9"))
    verdict = _verdict(reader, [_reading(number) for number in range(4)])
    assert verdict.is_equal is is_right and "1 gap" in verdict.answer
