"""``peerd demo-pubsub`` as a user runs it, with its sample in short form."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.daemon_process import clean_environment

pytestmark = pytest.mark.cluster

RUN_S = 250.0


def test_everything_that_matches_arrives_and_nothing_is_left(tmp_path: Path) -> None:
    temporary = tmp_path / "t"
    temporary.mkdir()
    command = [sys.executable, "-m", "peerd", "demo-pubsub", "-n", "3", "--events", "120", "--rate", "100"]
    environment = clean_environment() | {"HOME": str(temporary), "TMPDIR": str(temporary)}
    environment.pop("PEERD_DATA", None)
    done = subprocess.run(
        [*command, "--out", str(tmp_path)], env=environment, capture_output=True, text=True, timeout=RUN_S, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for said in (
        "90 prices and 30 metrics: the synthetic sample",
        "stocks: 90 events",
        "servers: 30 events",
        "every subscription got exactly what a plain filter of the same data gives",
        "  arrived",
        "pieces of subscriptions",
    ):
        assert said in done.stdout, done.stdout
    assert (tmp_path / "tree.svg").read_text().startswith("<svg")
    assert list(temporary.iterdir()) == []


def test_a_folder_without_data_is_told_at_once(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "peerd", "demo-pubsub", "--data", str(tmp_path)]
    done = subprocess.run(command, env=clean_environment(), capture_output=True, text=True, timeout=RUN_S, check=False)
    assert done.returncode == 69
    assert "without --data the demo replays its sample" in done.stderr
    assert "Traceback" not in done.stderr
