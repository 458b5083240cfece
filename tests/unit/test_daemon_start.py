"""What a daemon loads and makes when it starts: seconds of each start, and memory for as long as it runs."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cache
from typing import Any, Final

# fmt: off
NOT_AT_REST: Final = (
    "asyncssh", "configparser", "duckdb", "fastapi", "httpx", "lark", "logging.config", "logging.handlers", "lxml",
    "numpy", "peerd.client", "peerd.cluster", "peerd.lab", "peerd.pipeline", "peerd.sim", "prometheus_client",
    "pyroaring", "re2", "rich", "starlette", "typer", "uvicorn.main",
)
# fmt: on
"""Some of it a daemon loads later, when somebody asks for what needs it."""
DATACLASSES_MAX: Final = 142
"""Of ours. Python writes the source of a dataclass's methods and compiles it, which takes half a millisecond: what does
not change is a `peerd.frozen.Frozen`. Raise it where what changes needs one more."""
MODULES_MAX: Final = 482
"""Of ours. Each takes a third of a millisecond and 25 KiB."""

START: Final = """
import dataclasses, gc, json, sys

made = []
real = dataclasses._process_class

def process_class(cls, *options):
    made.append(cls.__module__)
    return real(cls, *options)

dataclasses._process_class = process_class
from peerd.cli.run import run
from peerd.plugins import find_plugins
find_plugins()
import peerd.daemon.service, peerd.daemon.admin.server
print(json.dumps({"modules": list(sys.modules), "dataclasses": made}))
"""


def printed(code: str) -> str:
    """What a new process prints that runs this."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    return done.stdout.strip()


@cache
def started() -> dict[str, Any]:
    result: dict[str, Any] = json.loads(printed(START))
    return result


def ours(names: list[str]) -> int:
    return sum(name.partition(".")[0] in ("peerd", "protocols") for name in names)


def test_a_daemon_at_rest_has_not_loaded_what_it_may_never_need() -> None:
    assert not set(NOT_AT_REST) & set(started()["modules"])


def test_few_classes_are_written_and_compiled_at_start() -> None:
    assert 0 < ours(started()["dataclasses"]) <= DATACLASSES_MAX


def test_few_modules_are_loaded_at_start() -> None:
    assert 0 < ours(started()["modules"]) <= MODULES_MAX


def test_entry_points_are_looked_for_once() -> None:
    code = (
        "from importlib import metadata; real, looked = metadata.entry_points, []; "
        "metadata.entry_points = lambda **group: looked.append(group) or real(**group); "
        "from peerd.plugins import find_plugins; find_plugins(); find_plugins(); print(looked.count({}))"
    )
    assert printed(code) == "1"


def test_the_collector_is_off_while_a_daemon_is_loaded_and_on_when_it_runs() -> None:
    code = (
        "import gc, peerd.cli.run as command, peerd.daemon.service as service; told = []; "
        "command.reader = lambda words: lambda: told.append(gc.isenabled()) or 1 / 0\n"
        "try: command.run([])\n"
        "except ZeroDivisionError: pass\n"
        "service.run = lambda main, loop: (main.close(), told.extend([gc.isenabled(), gc.get_freeze_count() > 9999]))\n"
        "service.serve(None); print(told)"
    )
    assert printed(code) == "[False, True, True]"


def test_a_cluster_imports_what_routes_need_before_it_forks() -> None:
    code = (
        "import sys, peerd.cluster.node_process as node; node.prepare(); "
        "print(*(name for name in sys.modules if name.startswith('protocols.') and name.endswith('.front.http')))"
    )
    assert len(printed(code).split()) == 4, "the routes of the four protocols"
