"""Spark elsewhere, as deploy/spark/ starts it: a standalone master with a worker, and a server of Spark Connect.

Its workers run a Python that has no peerd, but what peerd needs.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import sysconfig
import time
import venv
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from peerd.errors import Unavailable
from peerd.pipeline.requirements import CONNECT_NEEDS, check_requirements
from tests.support.event_logs import helper_log, requester_log

pytestmark = pytest.mark.long

FOLDER = Path(__file__).parents[2] / "deploy" / "spark"
SUBMIT = str(Path(sys.executable).with_name("spark-submit"))
READY_WITHIN_S = 120.0
SWEEP = ("lab", "sweep", "overlay/hops", "--grid", "nodes=8", "--grid", "lookups=10", "--seeds", "0:2", "--no-charts")


@pytest.fixture(autouse=True)
def needed() -> None:
    try:
        check_requirements()
    except Unavailable as error:
        pytest.skip(reason=str(error))


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """In which Spark's workers find peerd's dependencies, and no peerd."""
    venv.create(tmp_path / "bare")
    others = tmp_path / "others"
    others.mkdir()
    for each in Path(sysconfig.get_path("purelib")).iterdir():
        if "peerd" not in each.name:
            (others / each.name).symlink_to(each)
    found = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return {
        **found,
        "OTHERS": str(others),
        "PYTHON": sys.executable,
        "PYSPARK_PYTHON": str(tmp_path / "bare/bin/python"),
        "PYSPARK_DRIVER_PYTHON": sys.executable,
    }


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


@contextmanager
def running(script: str, environment: Mapping[str, str], log: Path, ready: str) -> Iterator[None]:
    """A script of deploy/spark/, from when it says that it is ready."""
    with (
        log.open("w") as output,
        subprocess.Popen(
            [FOLDER / script], env=environment, stdout=output, stderr=output, start_new_session=True
        ) as spark,
    ):
        try:
            deadline = time.monotonic() + READY_WITHIN_S
            while ready not in log.read_text():
                assert time.monotonic() < deadline and spark.poll() is None, log.read_text()
                time.sleep(0.2)
            yield
        finally:
            os.killpg(spark.pid, signal.SIGTERM)


def logs_in(folder: Path) -> str:
    for each in (requester_log(), helper_log()):
        each.write(folder / each.node[:8])
    return str(folder)


def run(command: list[str], environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def check_tables(done: subprocess.CompletedProcess[str], out: Path) -> None:
    assert done.returncode == 0, done.stderr
    assert "19 events of 2 boots" in done.stdout
    assert {path.name for path in out.iterdir()} >= {"events", "losses", "nodes", "rounds", "levels"}


def check_swept(done: subprocess.CompletedProcess[str], out: Path) -> None:
    assert done.returncode == 0, done.stderr
    assert len((out / "overlay" / "hops" / "results.csv").read_text().splitlines()) == 3


def test_a_job_and_a_sweep_on_a_standalone_cluster(tmp_path: Path, environment: dict[str, str]) -> None:
    logs, out, port = logs_in(tmp_path / "logs"), tmp_path / "out", free_port()
    environment |= {"PORT": str(port), "MEMORY": "1g"}
    cluster = ["--master", f"spark://127.0.0.1:{port}", "--conf", "spark.executor.memory=512m"]
    workers = ["--conf", f"spark.executorEnv.PYTHONPATH={environment['OTHERS']}"]
    peerd = [sys.executable, "-m", "peerd"]
    with running("standalone.sh", environment, tmp_path / "spark.log", "Registering worker"):
        asked = run([*peerd, "analyze", logs, "--out", f"{out}/asked", *cluster], environment)
        program = [str(FOLDER / "submit.py"), "analyze", logs, "--out", f"{out}/submitted"]
        submitted = run([SUBMIT, *cluster, *program], environment)
        swept = run([*peerd, *SWEEP, "--out", f"{out}/lab", *cluster, *workers], environment)
        lacking = run([*peerd, *SWEEP, "--out", f"{out}/none", *cluster], environment)
    check_tables(asked, out / "asked")
    check_tables(submitted, out / "submitted")
    check_swept(swept, out / "lab")
    assert lacking.returncode == 69 and "a worker has no " in lacking.stderr


def test_a_job_and_a_sweep_over_spark_connect(tmp_path: Path, environment: dict[str, str]) -> None:
    for module in CONNECT_NEEDS:
        pytest.importorskip(module, reason="the extra `connect` is not installed")
    logs, out, port = logs_in(tmp_path / "logs"), tmp_path / "out", free_port()
    (Path(logs) / "copy.ndjson.gz").write_bytes(next(Path(logs).rglob("*-1-1.ndjson.gz")).read_bytes())
    server = {**environment, "PORT": str(port), "MEMORY": "1g", "PYTHONPATH": environment["OTHERS"]}
    client = {**environment, "JAVA_HOME": "/nowhere"}
    connect = ["--master", f"sc://127.0.0.1:{port}"]
    peerd = [sys.executable, "-m", "peerd"]
    with running("connect.sh", server, tmp_path / "spark.log", "Spark Connect server started"):
        twice = [run([*peerd, "analyze", logs, "--out", f"{out}/tables", *connect], client) for _ in range(2)]
        swept = run([*peerd, *SWEEP, "--out", f"{out}/lab", *connect], client)
        followed = run([*peerd, "analyze", logs, "--out", f"{out}/followed", "--follow", *connect], client)
    for each in twice:
        check_tables(each, out / "tables")
        assert "came twice" in each.stderr
    check_swept(swept, out / "lab")
    assert followed.returncode == 69 and "--follow" in followed.stderr
