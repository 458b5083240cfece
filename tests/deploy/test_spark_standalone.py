"""``peerd analyze`` on a Spark cluster: a standalone master with a worker, as deploy/spark/ starts them."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from peerd.errors import Unavailable
from peerd.pipeline.requirements import check_requirements
from tests.support.event_logs import helper_log, requester_log

SCRIPT = Path(__file__).parents[2] / "deploy" / "spark" / "standalone.sh"
PROGRAM = str(SCRIPT.with_name("submit.py"))
SUBMIT = str(Path(sys.executable).with_name("spark-submit"))
READY_WITHIN_S = 120.0


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def wait_for_worker(log: Path) -> None:
    deadline = time.monotonic() + READY_WITHIN_S
    while "Registering worker" not in log.read_text():
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.2)


@pytest.mark.long
def test_a_job_on_a_standalone_cluster(tmp_path: Path) -> None:
    try:
        check_requirements()
    except Unavailable as error:
        pytest.skip(reason=str(error))
    logs, out, log = tmp_path / "logs", tmp_path / "out", tmp_path / "spark.log"
    for each in (requester_log(), helper_log()):
        each.write(logs / each.node[:8])
    port = free_port()
    environment = {**os.environ, "PORT": str(port), "MEMORY": "1g", "PYTHON": sys.executable}
    environment |= {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    with (
        log.open("w") as output,
        subprocess.Popen([SCRIPT], env=environment, stdout=output, stderr=output, start_new_session=True) as spark,
    ):
        try:
            wait_for_worker(log)
            cluster = ["--master", f"spark://127.0.0.1:{port}", "--conf", "spark.executor.memory=512m"]
            commands = {
                "asked": [sys.executable, "-m", "peerd", "analyze", str(logs), "--out", f"{out}/asked", *cluster],
                "submitted": [SUBMIT, *cluster, PROGRAM, "analyze", str(logs), "--out", f"{out}/submitted"],
            }
            done = {
                name: subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
                for name, command in commands.items()
            }
        finally:
            os.killpg(spark.pid, signal.SIGTERM)
    for name, ended in done.items():
        assert ended.returncode == 0, ended.stderr
        assert "19 events of 2 boots" in ended.stdout
        assert {path.name for path in (out / name).iterdir()} >= {"events", "losses", "nodes", "rounds", "levels"}
