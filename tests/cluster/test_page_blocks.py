"""What the pages tell their readers to type is typed here, and what they show as its output has that shape.

A page is one session, as for a reader who types it all: one folder, one environment, blocks in order. A block of `sh`
succeeds, unless a comment in it says with what it exits. A block of `console` shows output: ``...`` stands for
anything, and ids, addresses, times and sizes for any of their kind. Questions about a ring are asked again for a while,
as the reader would: it needs seconds to find out that a node has died, or what all machines measure.
tests/support/pages.py explains the marks.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.daemon_process import clean_environment
from tests.support.interrupts import take_interrupts
from tests.support.pages import SHELL, Block, Step, blocks, pages, simple_commands
from tests.test_tidy import ROOT

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

STEP_S = 120.0
SETTLE_S = 40.0
INTERRUPT_AFTER_S = 2.0
"""A command that follows something for ever runs this long before it gets Ctrl-C."""
ASKED_AGAIN = frozenset({"ring", "status", "peers", "forget", "measure", "query", "top"})
OPTIONAL = frozenset({"curl"})
"""Programs that not every machine has: where one is missing, a page is typed only up to the first use of it."""
ANYTHING = "..."
READERS_HOME = "~"
"""What the pages write for the home of who reads them."""
KINDS = (
    (r"\b\d\d:\d\d:\d\d\.\d+", "CLOCK"),
    (r"\d+\.\d+\.\d+\.\d+:\d+", "ADDRESS"),
    (r"\b(?=[0-9a-f]*\d)[0-9a-f]{8,32}\b", "ID"),
    (r"\b\d[\d,.]* (?:ns|us|ms|s|min|h|d)\b(?: \d+ (?:ms|s|min|h)\b)*", "TIME"),
    (r"\b\d[\d,.]* (?:B|KiB|MiB|GiB)\b", "SIZE"),
    (r"[ \t]+", " "),
)


def runnable(page: Path, is_long: bool) -> list[Block]:
    """The blocks of a page that are typed, and those that write files for them; none if nothing is typed."""
    marks = {"", "file", "long"} if is_long else {"", "file"}
    found = [
        block for block in blocks(page) if block.mark in marks and (block.mark == "file" or block.language in SHELL)
    ]
    typed = [block for block in found if block.mark != "file"]
    return found if any(block.mark == ("long" if is_long else "") for block in typed) else []


class Session:
    """A reader at a shell: a home of its own, in which the folder docs/ is; exports last from command to command."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self._state = home / ".session"
        self._state.write_text("")
        self._status = 0
        self._environment = clean_environment() | {
            "HOME": str(home),
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "COLUMNS": "120",
            "NO_COLOR": "1",
            "TERM": "dumb",
        }
        for name in ("XDG_STATE_HOME", "XDG_CONFIG_HOME", "XDG_RUNTIME_DIR"):
            self._environment.pop(name, None)
        shutil.copytree(ROOT / "docs", home / "docs", ignore=shutil.ignore_patterns("__pycache__"))

    def type(self, command: str) -> tuple[int, str]:
        """One command: its exit code and all that it printed."""
        before = f". {self._state}\n(exit {self._status})"
        after = f"status=$?\nexport -p > {self._state}\nexit $status"
        process = subprocess.Popen(
            ["bash", "-c", f"{before}\n{command}\n{after}"],
            cwd=self.home,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            preexec_fn=take_interrupts,
        )
        try:
            output = _to_the_end(process, "Ctrl-C" in command)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.communicate()
        self._status = process.returncode
        return process.returncode, output.replace(str(self.home), READERS_HOME)

    def end(self) -> None:
        """Stop the local clusters that a page left, after a failure."""
        for folder in (self.home / ".local" / "state" / "peerd" / "clusters").glob("*"):
            self.type(f"peerd cluster down --dir {shlex.quote(str(folder))}")


def _to_the_end(process: subprocess.Popen[str], is_endless: bool) -> str:
    """All that a process prints. One that follows something for ever gets Ctrl-C, as often as it takes."""
    over = time.monotonic() + STEP_S
    while True:
        try:
            return process.communicate(timeout=INTERRUPT_AFTER_S if is_endless else STEP_S)[0]
        except subprocess.TimeoutExpired:
            assert is_endless and time.monotonic() < over, f"still running after {STEP_S:g} s"
            os.killpg(process.pid, signal.SIGINT)


def shape(line: str) -> str:
    """A line without what differs from one run to the next."""
    for pattern, name in KINDS:
        line = re.sub(pattern, name, line)
    return line.strip()


def has_shape(output: str, shown: tuple[str, ...]) -> bool:
    """Whether the output has the shape of the lines that a page shows."""
    expected = ""
    for line in (line.strip() for line in shown if line.strip()):
        if line == ANYTHING:
            expected += r"(?:.*\n)*"
        else:
            expected += ".*".join(re.escape(shape(part)) for part in line.split(ANYTHING)) + r"\n"
    actual = "".join(f"{shape(line)}\n" for line in output.splitlines() if line.strip())
    return re.fullmatch(expected, actual) is not None


def is_as_shown(step: Step, status: int, output: str) -> bool:
    """Whether a command did what the page says."""
    if step.shown is not None:
        return has_shape(output, step.shown)
    said = re.search(r"#.*\bexits with (\d+)", step.command)
    if "Ctrl-C" in step.command:
        return status in (0, 130, -signal.SIGINT)
    return status == (int(said[1]) if said else 0)


def perform(session: Session, block: Block) -> None:
    """Type all commands of a block."""
    if block.mark == "file":
        (session.home / block.note).write_text(block.text)
        return
    for step in block.steps():
        programs = {words[0] for words in simple_commands(step.command)}
        for missing in sorted(name for name in programs & OPTIONAL if shutil.which(name) is None):
            pytest.skip(f"{block.page} was typed up to line {step.line}, which needs {missing}: it is not installed")
        again = any(words[0] == "peerd" and ASKED_AGAIN & set(words[1:2]) for words in simple_commands(step.command))
        until = time.monotonic() + (SETTLE_S if again else 0)
        while True:
            status, output = session.type(step.command)
            if is_as_shown(step, status, output):
                break
            shown = "\n".join(step.shown) if step.shown is not None else "success, or the code that its comment says"
            told = f"{step.command}\nexit code {status}\n--- printed\n{output}\n--- the page has\n{shown}"
            assert time.monotonic() < until, f"{block.page}:{step.line}: {told}"


@pytest.fixture
def session() -> Iterator[Session]:
    with tempfile.TemporaryDirectory(
        prefix="peerd-page-"
    ) as folder:  # short: paths of sockets have some 100 characters
        session = Session(Path(folder).resolve())
        try:
            yield session
        finally:
            session.end()


def _names(found: list[Path]) -> list[str]:
    return [page.relative_to(ROOT).as_posix() for page in found]


PAGES = [page for page in pages() if runnable(page, is_long=False)]
LONG_PAGES = [page for page in pages() if runnable(page, is_long=True)]


@pytest.mark.parametrize("page", PAGES, ids=_names(PAGES))
def test_what_the_page_says_works(page: Path, session: Session) -> None:
    for block in runnable(page, is_long=False):
        perform(session, block)


@pytest.mark.long
@pytest.mark.parametrize("page", LONG_PAGES, ids=_names(LONG_PAGES))
def test_what_takes_long_works_too(page: Path, session: Session) -> None:
    for block in runnable(page, is_long=True):
        perform(session, block)


def test_the_pages_for_newcomers_are_run() -> None:
    assert {"README.md", "docs/tour.md", "docs/filters.md", "docs/simulator.md"} <= set(_names(PAGES))


@pytest.mark.parametrize(
    ("output", "shown", "is_shape"),
    [
        ("5 nodes answered in 1.82 ms\n", ("5 nodes answered in 2 s",), True),
        ("4 nodes answered in 1.82 ms\n", ("5 nodes answered in 2 s",), False),
        ("  6a5ef080 at 127.0.0.1:33559   lost\n", ("0bea9506 at 127.0.0.1:1 lost",), True),
        ("a\nb\nc\n", ("a", "...", "c"), True),
        ("a\nb\nd\n", ("a", "...", "c"), False),
        ("a\nb\n", ("a",), False),
        ("up 3 s, process 17\n", ("up 5 s, ...",), True),
        ("value is (1)\n", ("value is (2)",), False),
    ],
)
def test_the_comparison_of_shapes_bites(output: str, shown: tuple[str, ...], is_shape: bool) -> None:
    assert has_shape(output, shown) is is_shape


def test_a_session_keeps_exports_and_the_last_exit_code(session: Session) -> None:
    assert session.type("export COLOUR='light blue'") == (0, "")
    assert session.type('echo "$COLOUR"; exit 3') == (3, "light blue\n")
    text = "export A=1\nfalse # exits with 1\n"
    perform(session, Block("page.md", 1, "sh", "", "", text))
    with pytest.raises(AssertionError, match=r"page.md:2: false"):
        perform(session, Block("page.md", 1, "sh", "", "", "true\nfalse\n"))
    with pytest.raises(AssertionError, match="the page has"):
        perform(session, Block("page.md", 1, "console", "", "", "$ echo 4 nodes\n5 nodes\n"))
