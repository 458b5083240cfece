"""``peerd analyze --follow``, killed at any time while nodes write: its tables are those of one job over all."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from peerd.errors import Unavailable
from peerd.pipeline.requirements import check_requirements
from peerd.telemetry.event_files import EventFiles
from peerd.telemetry.schema import NodeReady
from tests.support.event_logs import Log

KILLS = 10


class Ring(threading.Thread):
    """Nodes that write events until they are told to end: files are finished and compressed, a node starts anew."""

    def __init__(self, logs: Path) -> None:
        super().__init__()
        self._logs = logs
        self.stops = threading.Event()

    def run(self) -> None:
        """See `threading.Thread`."""
        chosen = random.Random(7)
        nodes = [Log(letter * 32) for letter in "abc"]
        files = [EventFiles(self._logs / log.node[:8], log.node, boot=log.boot) for log in nodes]
        while not self.stops.wait(0.05):
            which = chosen.randrange(len(nodes))
            log = nodes[which]
            for _ in range(chosen.randrange(20)):
                log.add(float(log.last_id), NodeReady(duration_s=float(log.last_id), ring_size=3.0))
                files[which].write(log.records.pop())
            if chosen.random() < 0.05:
                files[which].finish()
            if chosen.random() < 0.02:
                nodes[which] = Log(log.node, log.boot + 1)
                files[which].close()
                files[which] = EventFiles(self._logs / log.node[:8], log.node, boot=log.boot + 1)
            if chosen.random() < 0.02 and (finished := sorted(self._logs.rglob("*.ndjson*"))):
                with contextlib.suppress(FileNotFoundError):  # it was given another name
                    source = chosen.choice(finished)
                    shutil.copy(source, self._logs / f"copy-{chosen.randrange(9)}.{source.name.partition('.')[2]}")
        for each in files:
            each.close()


def rows_in(out: Path) -> dict[str, list[str]]:
    """Each table's rows as text, sorted; the column ``batch`` says nothing of them."""
    from pyarrow import dataset

    found = {}
    for folder in out.iterdir():
        if folder.is_dir():
            rows = dataset.dataset(folder, format="parquet", partitioning="hive").to_table().to_pylist()
            found[folder.name] = sorted(
                json.dumps({key: row[key] for key in sorted(row) if key != "batch"}, default=str) for row in rows
            )
    return found


@pytest.mark.long
def test_sigkill(tmp_path: Path) -> None:
    """JVM and workers are killed with it. Lines come late, twice, and in files that grow and are compressed."""
    try:
        check_requirements()
    except Unavailable as error:
        pytest.skip(reason=str(error))
    logs, out = tmp_path / "logs", tmp_path / "out"
    ring, chosen = Ring(logs), random.Random(KILLS)
    ring.start()
    analyze = [sys.executable, "-m", "peerd", "analyze", str(logs), "--no-report", "-o", "jsonl"]
    follow = [*analyze, "--out", str(out), "--follow"]
    told = 0
    try:
        for _ in range(KILLS):
            with subprocess.Popen(
                [*follow, "--every", "1s"], start_new_session=True, stdout=subprocess.PIPE, text=True
            ) as process:
                assert process.stdout is not None
                told += bool(process.stdout.readline())  # it has begun to work
                time.sleep(chosen.random() * 6)
                os.killpg(process.pid, signal.SIGKILL)
    finally:
        ring.stops.set()
        ring.join()
    assert told == KILLS
    for command in ([*follow, "--once"], [*analyze, "--out", str(tmp_path / "batch")]):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    assert rows_in(out) == rows_in(tmp_path / "batch")
