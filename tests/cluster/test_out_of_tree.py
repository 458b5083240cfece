"""The plugin of docs/writing-a-plugin.md, built as a wheel and installed where nothing of this tree is: every piece of
its front works there, and an environment without it keeps its events.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from textwrap import indent
from typing import Any

import pytest

from peerd.errors import ExitCode, Unavailable
from peerd.pipeline.requirements import check_requirements
from tests.support import pages
from tests.support.fresh_environment import FreshEnvironment, build_peerd, build_wheel
from tests.test_tidy import ROOT

pytestmark = pytest.mark.cluster

PROJECT = ROOT / "docs" / "examples" / "rollcall"
PAGE = ROOT / "docs" / "writing-a-plugin.md"
NODES = 3


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("out-of-tree")


@pytest.fixture(scope="module")
def peerd_wheel(folder: Path) -> Path:
    return build_peerd(folder)


@pytest.fixture(scope="module")
def environment(folder: Path, peerd_wheel: Path) -> FreshEnvironment:
    return FreshEnvironment(folder / "environment", [peerd_wheel, build_wheel(PROJECT, folder)])


@pytest.fixture(scope="module")
def socket(environment: FreshEnvironment, folder: Path) -> Iterator[str]:
    """A cluster of the environment's daemons is up meanwhile; the admin socket of its first one."""
    cluster = folder / "cluster"
    environment.peerd(
        *("cluster", "up", "--dir", str(cluster), "-n", str(NODES), "--label", "rack-{k}", "--keep"),
        *("--set", "protocols.rollcall.patience=500ms"),
    )
    try:
        yield json.loads((cluster / "cluster.json").read_text())["socket_dir"] + "/0.sock"
    finally:
        environment.peerd("cluster", "down", "--dir", str(cluster), "--keep")


@pytest.fixture(scope="module")
def events(environment: FreshEnvironment, folder: Path) -> Path:
    """The event log of the example's scenario."""
    log = folder / "events"
    log.mkdir()
    environment.peerd("sim", str(PROJECT / "scenario.toml"), "--events", str(log / "events.ndjson"))
    return log


def test_the_wheel_has_every_file_that_the_program_reads(peerd_wheel: Path) -> None:
    packed = set(zipfile.ZipFile(peerd_wheel).namelist())
    files = {
        path.relative_to(ROOT).as_posix()
        for folder in ("peerd", "protocols")
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert files
    assert sorted(files - packed) == []


def test_it_is_really_installed(environment: FreshEnvironment) -> None:
    done = environment.python("-c", "import peerd, rollcall; print(peerd.__file__); print(rollcall.__file__)")
    assert all(path.startswith(str(environment.directory)) for path in done.stdout.split()), done.stdout
    base = subprocess.run([sys.executable, "-c", "import rollcall"], capture_output=True, cwd="/", check=False)
    assert base.returncode != 0, "the environment of the tests has the plugin, too: nothing would be shown"


def test_the_authors_tests_pass_there(environment: FreshEnvironment) -> None:
    """A message handled, events, feed, client, daemons; and a seeded bug that the checker catches."""
    options = ("-q", "-p", "no:cacheprovider", "-o", "asyncio_mode=auto")
    done = environment.python("-m", "pytest", *options, str(PROJECT / "tests"))
    assert done.returncode == 0, done.stdout + done.stderr


def test_its_commands_ask_the_daemon(environment: FreshEnvironment, socket: str) -> None:
    everything = environment.peerd("--help").stdout
    assert "Ask every node who is there" in everything
    assert "What this node is called" in everything
    answer = json.loads(environment.peerd("rollcall", "--socket", socket, "-o", "json").stdout)
    assert answer["is_complete"]
    assert sorted(each["label"] for each in answer["answers"]) == ["rack-0", "rack-1", "rack-2"]
    assert "up for" in environment.peerd("rollcall", "--socket", socket).stdout
    assert environment.peerd("label", "show", "--socket", socket).stdout == "rack-0\n"
    environment.peerd("label", "set", "front door", "--socket", socket)
    assert environment.peerd("label", "show", "--socket", socket).stdout == "front door\n"
    too_long = environment.run("peerd", "label", "set", "x" * 65, "--socket", socket)
    assert too_long.returncode not in (ExitCode.OK, ExitCode.PARTIAL)


def test_its_options_make_nodes(environment: FreshEnvironment, tmp_path: Path) -> None:
    environment.peerd("init", "--dir", str(tmp_path / "node"), "--label", "rack 7")
    told = environment.peerd("config", "show", str(tmp_path / "node" / "peerd.toml")).stdout
    assert "rack 7" in told


def test_its_checker_and_its_work_run_in_the_simulator(environment: FreshEnvironment) -> None:
    report = json.loads(environment.peerd("sim", str(PROJECT / "scenario.toml"), "-o", "json").stdout)
    assert [call["answers"] for call in report["calls"]] == [40, 36]
    assert report["checks"][0]["name"].endswith("rollcall_complete")
    swarm = environment.peerd("sim", "swarm", "--protocol", "rollcall", "--seeds", "0:1", "-o", "json").stdout
    assert json.loads(swarm)["passed"]


def test_its_experiment_runs_in_the_lab(environment: FreshEnvironment, tmp_path: Path) -> None:
    environment.peerd("lab", "run", "rollcall/time", "--quick", "--nodes", "10", "--out", str(tmp_path))
    [results] = tmp_path.rglob("results.json")
    [row] = _rows(json.loads(results.read_text()))
    assert row["answered_share"] == 1.0
    assert row["last_answer_s"] > 0


@pytest.fixture
def with_it(environment: FreshEnvironment, events: Path, tmp_path: Path) -> Any:
    """What the analysis reports where the plugin is installed; its tables are in the folder ``a``."""
    try:
        check_requirements()
    except Unavailable as error:
        pytest.skip(reason=str(error))
    return json.loads(environment.peerd("analyze", str(events), "--out", str(tmp_path / "a"), "-o", "json").stdout)


@pytest.mark.spark
def test_its_table_is_made(with_it: Any, tmp_path: Path) -> None:
    assert [(row["answered"], row["answers"]) for row in with_it["roll_calls"]] == [(40, 40), (36, 36)]
    assert with_it["unknown"] == []
    assert (tmp_path / "a" / "roll_calls").is_dir()


@pytest.mark.long  # tests/pipeline/test_pipeline_job.py shows the same with events of a plugin that never was
@pytest.mark.spark
def test_without_it_its_events_are_kept(with_it: Any, events: Path, tmp_path: Path) -> None:
    dataset = pytest.importorskip("pyarrow.dataset", reason="the extra `spark` is not installed")
    command = [sys.executable, "-m", "peerd", "analyze", str(events), "--out", str(tmp_path / "b"), "-o", "json"]
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PEERD_")}
    done = subprocess.run(command, capture_output=True, text=True, env=clean, check=False)
    assert done.returncode == 0, done.stderr
    without = json.loads(done.stdout)
    assert "roll_calls" not in without
    assert {row["event"]: row["events"] for row in without["unknown"]} == {
        "rollcall.answered": 76,
        "rollcall.finished": 2,
    }
    assert without["events"] == with_it["events"]
    assert "rollcall.answered" in done.stderr
    kept = dataset.dataset(tmp_path / "b" / "events").to_table(columns=["event", "raw"]).to_pylist()
    raw = [bytes(row["raw"]["metadata"]) for row in kept if row["event"] == "rollcall.finished"]  # names of its fields
    assert len(raw) == 2 and all(b"answers" in names for names in raw)
    assert all((row["raw"] is not None) == row["event"].startswith("rollcall.") for row in kept)


# The page


def blocks(language: str) -> list[str]:
    """The page's blocks of code in one language."""
    return [block.text for block in pages.blocks(PAGE) if block.language == language]


@pytest.mark.parametrize("language", ["python", "toml"])
def test_the_page_shows_code_of_the_project(language: str) -> None:
    sources = [path.read_text("utf-8") for path in sorted(PROJECT.rglob("*")) if path.suffix in {".py", ".toml"}]
    shown = blocks(language)
    assert shown
    missing = [block for block in shown if not any(_is_in(block, source) for source in sources)]
    assert not missing, f"{PAGE.name} shows what is nowhere in {PROJECT.name}:\n{missing[0]}"


def _is_in(block: str, source: str) -> bool:
    """Whether the source has these lines, blank ones aside; the page shows methods without their indentation."""
    lines = "\n".join(line for line in source.splitlines() if line.strip())
    shown = "\n".join(line for line in block.splitlines() if line.strip())
    return any(f"\n{indent(shown, ' ' * width)}\n" in f"\n{lines}\n" for width in range(0, 13, 4))


def test_the_commands_of_the_page_work(environment: FreshEnvironment) -> None:
    [commands] = [block for block in blocks("sh") if "cluster up" in block]
    with tempfile.TemporaryDirectory() as short:  # a unix socket's path may have a hundred characters, not many more
        copy = Path(short) / "rollcall"
        shutil.copytree(PROJECT, copy)
        try:
            done = environment.shell(commands, cwd=copy)
        finally:
            environment.run("peerd", "cluster", "down", "--dir", str(copy / "out" / "cluster"), cwd=copy)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "rack-1" in done.stdout
    assert "front door" in done.stdout
    assert "rollcall_complete" in done.stdout


def _rows(results: Any) -> list[dict[str, Any]]:
    return list(results["rows"])
