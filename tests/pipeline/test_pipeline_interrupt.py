"""Ctrl-C while Spark runs: one line, exit code 130, and no JVM that goes on alone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from peerd.errors import Unavailable
from peerd.pipeline.requirements import check_requirements
from peerd.system.proc import start_ticks
from peerd.telemetry.schema import SCHEMA_VERSION, NodeReady
from peerd.telemetry.sinks import encode_record
from tests.support.daemon_process import wait_until
from tests.support.interrupts import take_interrupts

SCRIPT = """
import signal
import sys
import weakref
import peerd.pipeline.session as session
from peerd.cli.main import main

launch = session.launch_gateway

def told(*arguments, **options):
    if sys.argv[1] == "launch":
        print("now 0", flush=True)
    gateway = launch(*arguments, **options)
    if sys.argv[1] == "context":
        print("now", gateway.proc.pid, flush=True)
    return gateway

class Finalised:
    pass

def made(context):
    if sys.argv[1] == "finaliser":  # Python says that it ignores exceptions there
        sys.unraisablehook = lambda error: print("now", context._gateway.proc.pid, flush=True)
        finalised = Finalised()
        kept = weakref.ref(finalised, lambda reference: signal.raise_signal(signal.SIGINT))
        del finalised
    if sys.argv[1] == "job":
        print("now", context._gateway.proc.pid, flush=True)
    return session_type(context)

session_type = session.SparkSession
session.launch_gateway, session.SparkSession = told, made
sys.exit(main(["analyze", sys.argv[2], "--out", sys.argv[3]]))
"""


@pytest.mark.parametrize(
    ("moment", "number"),
    [
        *((moment, signal.SIGINT) for moment in ("launch", "context", "finaliser", "job")),
        ("job", signal.SIGTERM),  # of a service manager
    ],
)
def test_ctrl_c_ends_spark(tmp_path: Path, moment: str, number: signal.Signals) -> None:
    try:
        check_requirements()
    except Unavailable as error:
        pytest.skip(reason=str(error))
    logs, temporary = tmp_path / "logs", tmp_path / "t"
    temporary.mkdir()
    write_log(logs)
    with subprocess.Popen(
        [sys.executable, "-c", SCRIPT, moment, str(logs), str(tmp_path / "tables")],
        env={**os.environ, "TMPDIR": str(temporary)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # the terminal sends Ctrl-C to the whole group
        preexec_fn=take_interrupts,
    ) as process:
        assert process.stdout is not None
        word, _, jvm = process.stdout.readline().partition(" ")
        assert word == "now"
        if moment != "finaliser":
            os.killpg(process.pid, number)
        output, errors = process.communicate(timeout=50)
    assert process.returncode == 130
    assert output == ""
    assert errors == "peerd analyze: interrupted; Spark has stopped, and the tables are not complete\n"
    assert not int(jvm) or start_ticks(int(jvm)) is None
    assert alive_in_group(process.pid) == []
    assert not list(temporary.glob("peerd-spark-*"))


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_following_ends(tmp_path: Path, number: signal.Signals) -> None:
    """After its first batch, when Python workers of Spark are there too: in one line, and it leaves none of them."""
    try:
        check_requirements()
    except Unavailable as error:
        pytest.skip(reason=str(error))
    logs, temporary = tmp_path / "logs", tmp_path / "t"
    temporary.mkdir()
    write_log(logs)
    command = [sys.executable, "-m", "peerd", "analyze", str(logs), "--out", str(tmp_path / "out"), "--follow"]
    with subprocess.Popen(
        command,
        env={**os.environ, "TMPDIR": str(temporary)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=take_interrupts,
    ) as process:
        assert process.stdout is not None
        assert "9 new events" in process.stdout.readline()
        process.send_signal(number)
        _, errors = process.communicate(timeout=50)
    assert process.returncode == 130
    assert errors == "peerd analyze: interrupted; Spark has stopped, and it goes on from here with the same --out\n"
    assert not list(temporary.glob("peerd-spark-*"))
    wait_until(lambda: not alive_in_group(process.pid), "the workers to end")


def alive_in_group(group: int) -> list[str]:
    """Processes of a group that run. One that has ended and waits to be noticed by its new parent does not."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, number = stat.read_text().rpartition(")")[2].split()[:3]
        except OSError:  # it ended while we looked
            continue
        if int(number) == group and state != "Z":
            found.append(stat.parent.name)
    return found


def write_log(directory: Path) -> None:
    directory.mkdir()
    event = NodeReady(duration_s=1.0, ring_size=3.0)
    stamps = {"schema_version": SCHEMA_VERSION, "ts": 1.0, "mono_s": 1.0, "node": "a" * 32, "boot": 1, "cause": None}
    records = (encode_record({**stamps, "id": number, "event": event.KIND, **event.columns()}) for number in range(9))
    (directory / "events-aaaaaaaa-1-1.ndjson").write_bytes(b"".join(records))
