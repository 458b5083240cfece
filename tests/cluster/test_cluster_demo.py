"""``peerd demo`` as a user runs it: its comparisons, its exit code, and what it leaves behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from protocols.aggregation.answer import Answer
from protocols.aggregation.collector import Basis
from protocols.aggregation.figures import GroupedAnswer
from protocols.aggregation.front.demo import is_same
from protocols.aggregation.partial import ExtractionReport
from tests.support.interrupts import take_interrupts

pytestmark = pytest.mark.cluster

RUN_S = 280.0


def environment(temporary: Path) -> dict[str, str]:
    """No Java, so that the demo has to do without; temporary files where the test sees them."""
    temporary.mkdir()
    return {"PATH": "/nowhere", "JAVA_HOME": "/nowhere", "HOME": str(temporary), "TMPDIR": str(temporary)}


def processes_that_name(path: Path) -> list[str]:
    """Command lines of processes that mention a path."""
    found = []
    for directory in Path("/proc").iterdir():
        try:
            command = (directory / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:  # no process, or one that has just ended
            continue
        if str(path) in command:
            found.append(command)
    return found


def assert_all_end(path: Path) -> None:
    """No process that mentions the path is left. One that was being started when its starter was interrupted notices
    by its closed lifeline, as soon as it has started."""
    deadline = time.monotonic() + 10
    while left := processes_that_name(path):
        assert time.monotonic() < deadline, left
        time.sleep(0.05)


def test_every_answer_is_right_and_nothing_is_left(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "peerd", "demo"]
    done = subprocess.run(
        command, env=environment(tmp_path / "t"), capture_output=True, text=True, timeout=RUN_S, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for said in (
        "5 daemons, separate processes with mutual TLS, have formed a ring in ",
        "node 3 (",
        "got SIGKILL while all of that was under way",
        "4 of 5 daemons",
        "node 3: lost ",
        "a filtered stream: ",
        "publish/subscribe: a replay of 750 stock prices and 250 server metrics",
        "clean shutdown: no process is left",
        "the Spark job over the event logs is left out: ",
        "every answer equals the plain computation (11 comparisons)",
        "what to try next",
        "peerd stream create log",
    ):
        assert said in done.stdout, done.stdout
    assert " NO\n" not in done.stdout
    assert done.stderr == "", "no progress in a pipe"
    assert list((tmp_path / "t").iterdir()) == []
    assert processes_that_name(tmp_path / "t") == []


def wait_for(directory: Path, pattern: str) -> None:
    deadline = time.monotonic() + 60
    while not list(directory.glob(pattern)):
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.parametrize("moment", ["", "have formed a ring", "items are out"])
def test_ctrl_c_in_the_demo_leaves_nothing(moment: str, tmp_path: Path) -> None:
    temporary = tmp_path / "t"
    command = [sys.executable, "-m", "peerd", "demo"]
    # A session of its own: the terminal sends Ctrl-C to the whole group, the worker process included.
    with subprocess.Popen(
        command,
        env=environment(temporary),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=take_interrupts,
    ) as process:
        if moment:
            assert process.stdout is not None
            said: list[str] = []
            for line in process.stdout:
                said.append(line)
                if moment in line:
                    break
            else:
                pytest.fail(f"it never came to {moment!r}: {''.join(said)}")
        else:
            wait_for(temporary, "peerd-demo-*/cluster/cluster.json")  # daemons are only just starting
        os.killpg(process.pid, signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in errors
    assert_all_end(temporary)
    assert list(temporary.iterdir()) == []


def answer(value: int | float | GroupedAnswer | None) -> Answer:
    return Answer(
        round="00",
        query="count",
        value=value,
        contributors=1,
        contributor_ids=(),
        expected=1,
        expected_basis=Basis.LEAF_SET,
        missing=(),
        missing_count=0,
        report=ExtractionReport(),
        duration_s=0.1,
        value_bytes=1,
        moved_bytes=1,
        computed_by=None,
    )


def groups(counts: dict[str, int | float], *, folded: int = 0) -> GroupedAnswer:
    return GroupedAnswer(groups=counts, groups_total=len(counts), remainder_groups_max=folded, remainder=None)


@pytest.mark.parametrize(
    ("value", "expected", "same"),
    [
        (groups({"a": 1, "b": 2}), {"b": 2, "a": 1}, True),
        (groups({"a": 1, "b": 2}), {"a": 1, "b": 3}, False),
        (groups({"a": 1}), {"a": 1, "b": 2}, False),
        (groups({"a": 1, "b": 2}), {"a": 1}, False),
        (groups({"a": 1}, folded=1), {"a": 1}, False),
        (groups({}), {}, True),
        (groups({}), None, False),
        (7, 7, True),
        (7, 8, False),
        (None, None, True),
    ],
)
def test_equal_means_to_the_last_count(
    value: GroupedAnswer | int | None, expected: dict[str, int] | int | None, same: bool
) -> None:
    assert is_same(answer(value), expected) is same
