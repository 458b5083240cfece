"""What every test gets: a Hypothesis profile, and the long tests left out unless asked for.

- ``HYPOTHESIS_PROFILE=fast`` (the default): few examples, the same ones every time, so a red build is a red commit.
- ``HYPOTHESIS_PROFILE=deep``: many examples, new ones every time; a failure prints the blob that repeats it.
  What needs a number of its own scales it by the profile, too (`tests.support.examples`).
- ``pytest --long`` also runs the tests marked ``long``, and those that `tests/long.txt` names.

The time-out of a test is there for one that hangs, and is counted in real time: it is so long (``timeout`` in
pyproject.toml) that a test of seconds passes on a machine that gives it a fiftieth of a core.
"""

from __future__ import annotations

import gc
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog
from hypothesis import HealthCheck, settings

from tests.support.foreign_words import watch_errors
from tests.support.long_cases import is_dear
from tests.support.workers import WORKERS_A_WAITER, begin_apart, next_group, run_together

PROFILE = os.environ.get("HYPOTHESIS_PROFILE", "fast")
FAST_EXAMPLES = 20
DEEP_EXAMPLES = 2_000
LONG_TIMEOUT_S = 1_800
COLLECTOR_THRESHOLDS = (20_000, 20, 50)
"""Of Python's collector. A simulated ring is a hundred thousand objects that live to the end of the test; at the usual
thresholds going through them again and again takes an eighth of the processor time of the simulated tests."""

# No deadline and no "too slow": the build machine is shared, and pytest's own time-out stays in force.
_PATIENT = (HealthCheck.too_slow,)
settings.register_profile(
    "fast",
    max_examples=FAST_EXAMPLES,
    deadline=None,
    derandomize=True,
    suppress_health_check=_PATIENT,
)
settings.register_profile(
    "deep",
    max_examples=DEEP_EXAMPLES,
    deadline=None,
    print_blob=True,
    suppress_health_check=_PATIENT,
)


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """Have the workers read the files of the whole suite in different orders (`begin_apart`)."""
    config = session.config
    if (worker := getattr(config, "workerinput", None)) and config.args_source is config.ArgsSource.TESTPATHS:
        files = sorted(str(path) for path in Path(__file__).parent.rglob("test_*.py"))
        config.args = begin_apart(files, int(worker["workerid"].removeprefix("gw")), worker["workercount"])


def pytest_collection_finish() -> None:
    """All that was imported stays: the collector need not look at it again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*COLLECTOR_THRESHOLDS)


@pytest.fixture(autouse=True)
def _no_log_handler_stays() -> Iterator[None]:
    """A test that sets logging up, as the daemon does, must not have the next one's output begin with log lines.

    Handlers are taken away here. A logger that remembers its settings (`cache_loggers`) cannot be told others, and
    writes where `structlog.testing.capture_logs` does not see it: such a test is refused.
    """
    root = logging.getLogger()
    level = root.level
    yield
    for handler in root.handlers[:]:
        if isinstance(handler.formatter, structlog.stdlib.ProcessorFormatter):
            root.removeHandler(handler)
    root.setLevel(level)
    if structlog.get_config()["cache_logger_on_first_use"]:
        structlog.reset_defaults()
        pytest.fail("sets up logging for good, as a daemon does: do that in a process of its own")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--long``."""
    parser.addoption("--long", action="store_true", help="also run the tests marked `long`")


def pytest_configure(config: pytest.Config) -> None:
    """Load the Hypothesis profile that the environment names."""
    if PROFILE not in {"fast", "deep"}:
        raise pytest.UsageError(f"HYPOTHESIS_PROFILE is {PROFILE!r}; it must be `fast` or `deep`")
    settings.load_profile(PROFILE)
    watch_errors()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out long tests unless asked; give whatever may be slow on purpose a longer time-out.

    All workers must have them in the same order.
    """
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: item.path)
    for item in items:
        if is_dear(item.nodeid):
            item.add_marker(pytest.mark.long)
    if not config.getoption("--long"):
        long = [item for item in items if item.get_closest_marker("long")]
        items[:] = [item for item in items if not item.get_closest_marker("long")]
        if long:
            config.hook.pytest_deselected(items=long)
    for item in items:
        if (PROFILE == "deep" or item.get_closest_marker("long")) and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(LONG_TIMEOUT_S))


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Let go of the syntax trees of all our files once nobody needs them.

    While they live, a full run of Python's collector takes a second, and simulated runs ask for some.
    """
    here = Path(__file__).parent
    if item.path.parent == here and (nextitem is None or nextitem.path.parent != here):
        from tests.test_tidy import code

        code.cache_clear()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """One worker more than there are cores: tests of real processes spend much of their time waiting for them."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return cores + 1


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With several workers (``-n 2 --dist loadgroup``): groups of `run_together`, handed out by `next_group`.

    Not by marks: pytest-xdist 3.8 writes the group of a mark to where pytest 9.2 does not read it, so that every test
    was a group of its own.
    """
    if config.getvalue("dist") != "loadgroup":
        return None
    from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]  # the library has no types

    class ByGroup(LoadScopeScheduling):  # type: ignore[misc]  # the library has no types
        def _split_scope(self, nodeid: str) -> str:
            return run_together(nodeid)

        def _assign_work_unit(self, node: Any) -> None:
            """Put the group that the node is to take to the front of the queue, from which the library takes one."""
            waits = self.nodes.index(node) % WORKERS_A_WAITER == 0
            self.workqueue.move_to_end(next_group(self.workqueue, waits), last=False)
            super()._assign_work_unit(node)

    return ByGroup(config, log)
