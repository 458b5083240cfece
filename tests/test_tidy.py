"""The house rules, as tests: layers, banned imports, sizes, documentation, left-overs.

Every check is a plain function from one `Source` (or one class) to its offences, so the second half of this file can
feed it bad source and see it bite. An offence says file, line, what is wrong and what to do instead.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import io
import re
import tokenize
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

ROOT = Path(__file__).resolve().parent.parent
CODE_FOLDERS = ("peerd", "protocols", "tests", "bench")
SLEEPING_TESTS = ("tests/cluster/", "tests/deploy/", "tests/hostile/")
TEXT_SUFFIXES = {".py", ".md", ".toml", ".yaml", ".yml", ".service", ".conf", ".sh", ".lark", ".json"}
TEXT_NAMES = {"Makefile", "Dockerfile", ".dockerignore", ".gitignore", "run"}
UNTIDY_FOLDERS = {"__pycache__", "build", "dist", "out", "spark-warehouse", "metastore_db"}

LOOKED_AT = (
    *(ast.Import, ast.ImportFrom, ast.Call, ast.Attribute, ast.Subscript, ast.Constant, ast.If),
    *(ast.FunctionDef, ast.AsyncFunctionDef),
)
"""What checks ask for, of all that a file consists of."""

FILE_LINES_MAX = 600
FUNCTION_LINES_MAX = 70

# Who may import whom inside peerd. A module belongs to the layer of its longest prefix here.
LAYERS = {
    "peerd.ids": "base",
    "peerd.errors": "base",
    "peerd.invalid": "base",
    "peerd.limits": "base",
    "peerd.quantities": "base",
    "peerd.telemetry.schema": "base",
    "peerd.entry_points": "base",
    "peerd.frozen": "base",
    "peerd.places": "base",
    "peerd.words": "base",
    "peerd.models": "base",
    "peerd.messages": "messages",
    "peerd.wire": "wire",
    "peerd.api": "api",
    "peerd.driver": "driver",
    "peerd.lib": "lib",
    "peerd.front": "front",
    "peerd.plugins": "plugins",
    "peerd.linking": "linking",
    "peerd.overlay": "overlay",
    "peerd.swap": "swap",
    "peerd.services": "services",
    "peerd.node": "node",
    "peerd.config": "config",
    "peerd.telemetry": "telemetry",
    "peerd.system": "system",
    "peerd.identity": "identity",
    "peerd.client": "client",
    "peerd.cluster": "cluster",
    "peerd.daemon": "daemon",
    "peerd.sim": "sim",
    "peerd.pipeline": "pipeline",
    "peerd.report": "report",
    "peerd.spark": "spark",
    "peerd.lab": "lab",
    "peerd.testing": "testing",
    "peerd.cli": "cli",
    "peerd.__main__": "cli",
}
_KERNEL = {"base", "messages", "wire", "api"}
_SEAM = _KERNEL | {"driver"}
_NODE = _SEAM | {"lib", "overlay", "swap", "services", "node"}
_HOST = _NODE | {"config", "telemetry", "linking", "front", "plugins"}
MAY_IMPORT: dict[str, set[str]] = {
    "base": {"base"},
    "messages": {"base", "messages"},
    "wire": {"base", "messages", "wire"},
    "api": _KERNEL,
    "driver": _SEAM,
    "lib": {"base", "api", "lib"},
    "linking": _SEAM | {"lib", "linking"},
    "overlay": _SEAM | {"lib", "overlay"},
    "swap": _SEAM | {"swap"},
    "services": _KERNEL | {"services", "lib"},
    "node": _NODE,
    "config": _NODE | {"config"},
    "front": {"base"},  # and, for type checkers only, whatever a piece of a front is made of
    "plugins": _KERNEL | {"config", "front"},
    "telemetry": _KERNEL | {"config", "telemetry"},
    "client": {"base", "config", "plugins", "client"},
    "system": {"base", "linking", "system"},
    "identity": _KERNEL | {"config", "system", "identity"},
    "daemon": _HOST | {"system", "identity", "daemon"},
    "sim": _HOST | {"sim"},
    "pipeline": {"pipeline"},  # and the modules below, nothing else of ours
    "report": {"base", "front", "lab", "report"},
    "spark": _HOST | {"client", "cluster", "spark"},
    "cluster": _HOST | {"client", "system", "identity", "daemon", "cluster"},
    "lab": _HOST | {"client", "system", "daemon", "sim", "pipeline", "lab"},
    "testing": _HOST | {"client", "identity", "daemon", "sim", "testing"},
    "cli": _HOST
    | {"client", "cluster", "system", "identity", "daemon", "sim", "pipeline", "lab", "report", "spark", "cli"},
}
PIPELINE_MAY_IMPORT = ("peerd.telemetry.schema", "peerd.errors", "peerd.front")
PLUGIN_MAY_IMPORT = (
    "peerd.api",
    "peerd.ids",
    "peerd.messages",
    "peerd.entry_points",
    "peerd.frozen",
    "peerd.errors",
    "peerd.invalid",
    "peerd.lib",
    "peerd.limits",
    "peerd.quantities",
    "peerd.telemetry.schema",
    "peerd.words",
)
PLUGIN_FRONT_MAY_IMPORT = (
    *PLUGIN_MAY_IMPORT,
    *("peerd.front", "peerd.models", "peerd.client", "peerd.cli", "peerd.cluster"),
    *(
        "peerd.daemon.http.streaming",
        "peerd.daemon.http.files",
        "peerd.daemon.http.ingest",
        "peerd.daemon.http.answers",
        "peerd.system.sockets",
        "peerd.daemon.http.asker",
        "peerd.daemon.http.paying",
        "peerd.daemon.http.direct",
        "peerd.daemon.http.routes",
    ),
    *("peerd.sim", "peerd.lab", "peerd.pipeline"),
)
TYPES_ONLY = "peerd/front.py"
"""It names what others make pieces of, in annotations: below ``if TYPE_CHECKING`` it may import from any layer."""
LAYER_EXCEPTIONS: frozenset[tuple[str, str]] = frozenset()  # (file, imported name); each with its reason

SANS_IO = (
    *(
        "peerd/ids.py",
        "peerd/errors.py",
        "peerd/invalid.py",
        "peerd/limits.py",
        "peerd/quantities.py",
        "peerd/words.py",
        "peerd/driver.py",
    ),
    *("peerd/api/", "peerd/lib/", "peerd/linking/", "peerd/messages/", "peerd/node/", "peerd/overlay/"),
    *("peerd/services/", "peerd/swap/", "peerd/wire/", "protocols/"),
)
PLUGIN_FRONT = re.compile(r"protocols/\w+/front/")
"""The part of a plugin that talks to people and tools: it runs beside the protocol, never in it."""
IO_MODULES = {"asyncio", "time", "random", "os", "socket", "threading", "secrets", "uuid"}
IO_MODULES |= {"subprocess", "multiprocessing", "select", "selectors", "signal", "ssl"}
FRAMEWORKS = {"fastapi", "starlette", "uvicorn", "uvloop", "httpx", "typer", "rich", "structlog"}
FRAMEWORKS |= {"prometheus_client"}
PURE_PARTS = ("prometheus_client.parser",)
"""Of frameworks: it makes values of text, and knows no registry."""
CLOCK_CALLS = {"time.time", "time.monotonic", "datetime.now", "datetime.utcnow", "datetime.today", "date.today"}
SPAWN_CALLS = {"asyncio.create_task", "asyncio.ensure_future"}
INVALID = "peerd/invalid.py"
SPAWNER = "peerd/daemon/tasks.py"

# One letter of each is in brackets so that this file passes its own checks.
MARKERS = re.compile(r"\b(?:[T]ODO|[F]IXME|[X]XX|[H]ACK|[N]otImplementedError)\b")
SUPPRESSION = re.compile(r"#\s*(?:type:\s*ignore|noqa)")
SUPPRESSION_WITH_REASON = re.compile(r"#\s*(?:type:\s*ignore\[[\w\-, ]+\]|noqa: [A-Z]+\d+(?:, ?[A-Z]+\d+)*)\s+\S")
MACHINE_PATHS = re.compile(r"(?<![\w.~$}])/(?:[w]ork|[r]oot|[h]ome/[a-z]\w*|[U]sers/\w+)/")
OUTSIDE_FILES = re.compile(r"\.\./[s]hared|\b(?:[D]ESIGN|[R]ELIABILITY|[C]ONVENTIONS|[M]ODELS)\.md\b")


Node = TypeVar("Node", bound=ast.AST)


@dataclasses.dataclass(frozen=True)
class Source:
    """One file: its path from the root of the tree, with slashes, and its text."""

    path: str
    text: str

    @functools.cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text, self.path)

    def nodes(self, kind: type[Node]) -> list[Node]:
        """The parts of the tree that are of a kind. However many checks ask, the tree is gone through once."""
        return self._by_kind[kind]

    @functools.cached_property
    def _by_kind(self) -> dict[type[ast.AST], list[Any]]:
        found: dict[type[ast.AST], list[Any]] = {kind: [] for kind in LOOKED_AT}
        for node in ast.walk(self.tree):
            if (kind := type(node)) in found:
                found[kind].append(node)
        return found

    @property
    def is_sans_io(self) -> bool:
        return self.path.startswith(SANS_IO) and not self.is_front

    @property
    def is_front(self) -> bool:
        return PLUGIN_FRONT.match(self.path) is not None

    @property
    def module(self) -> str:
        return self.path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


Check = Callable[[Source], Iterator[str]]


# --- reading source -------------------------------------------------------------------------------------------------


def imports(source: Source) -> Iterator[tuple[int, str]]:
    """(line, dotted name) of everything imported; ``from a import b`` gives ``a.b``."""
    package = source.module if source.path.endswith("/__init__.py") else source.module.rpartition(".")[0]
    for node in source.nodes(ast.Import):
        yield from ((node.lineno, alias.name) for alias in node.names)
    for begin in source.nodes(ast.ImportFrom):
        parents = package.split(".")[: len(package.split(".")) - begin.level + 1] if begin.level else []
        base = ".".join([*parents, *([begin.module] if begin.module else [])])
        yield from ((begin.lineno, f"{base}.{alias.name}") for alias in begin.names)
    if "import_module" in source.text or "__import__" in source.text:
        for line, name, call in calls(source):
            if name in {"importlib.import_module", "__import__"}:
                literals = [argument.value for argument in call.args[:1] if isinstance(argument, ast.Constant)]
                yield from ((line, str(value)) for value in literals)


def type_checking_lines(source: Source) -> set[int]:
    """The lines below ``if TYPE_CHECKING``."""
    blocks = [node for node in source.nodes(ast.If) if dotted(node.test) == "TYPE_CHECKING"]
    return {line for block in blocks for line in range(block.lineno, (block.end_lineno or block.lineno) + 1)}


def dotted(node: ast.expr) -> str:
    """``a.b.c`` of a chain of names, else the part after the last thing that is no name."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        prefix = dotted(node.value)
        return f"{prefix}.{node.attr}" if prefix else node.attr
    return ""


def calls(source: Source) -> Iterator[tuple[int, str, ast.Call]]:
    """(line, dotted name, call) of every call."""
    for node in source.nodes(ast.Call):
        yield node.lineno, dotted(node.func), node


def within(name: str, prefixes: tuple[str, ...]) -> bool:
    """Whether a dotted name is one of the prefixes or lies below one."""
    return any(name == prefix or name.startswith(f"{prefix}.") for prefix in prefixes)


def layer_of(name: str) -> str | None:
    """The layer of a module or of a name in it; ``None`` for a module that `LAYERS` does not know."""
    parts = name.split(".")
    for length in range(len(parts), 1, -1):
        if found := LAYERS.get(".".join(parts[:length])):
            return found
    return None


def is_name_in_package(name: str) -> bool:
    """Whether a dotted name is defined in ``peerd/__init__.py`` itself (its version, say): anyone may have that."""
    parts = name.split(".")
    return len(parts) == 1 or not any((ROOT / "peerd" / f"{parts[1]}{suffix}").exists() for suffix in ("", ".py"))


# --- checks on one file ---------------------------------------------------------------------------------------------


def check_layers(source: Source) -> Iterator[str]:
    """Arrows point down only; peerd never imports protocols; plugins see the api and no further."""
    judge = {"peerd": _layer_offence, "protocols": _plugin_offence}.get(source.path.partition("/")[0])
    if judge is None:
        return
    seen: set[tuple[int, str]] = set()
    unjudged = type_checking_lines(source) if source.path == TYPES_ONLY else set()
    for line, name in imports(source):
        if line in unjudged:
            continue
        ours = name.partition(".")[0] in {"peerd", "protocols"}
        offence = judge(source, name) if ours and (source.path, name) not in LAYER_EXCEPTIONS else None
        if offence and (line, offence) not in seen:  # several names of one import statement
            seen.add((line, offence))
            yield f"{source.path}:{line}: imports {name}; {offence}"


def _layer_offence(source: Source, name: str) -> str | None:
    if name.startswith("protocols"):
        return "peerd never imports protocols: find plugins through the entry-point group peerd.protocols"
    here, there = layer_of(source.module), layer_of(name)
    if there is None and is_name_in_package(name):
        return None
    if here is None or there is None:
        return f"{source.module if here is None else name} has no layer: add it to LAYERS in tests/test_tidy.py"
    if here == "pipeline" and within(name, PIPELINE_MAY_IMPORT):
        return None
    if there in MAY_IMPORT[here]:
        return None
    return (
        f"layer {here} may import {', '.join(sorted(MAY_IMPORT[here]))}, not {there}: move the code down, or pass it in"
    )


def _plugin_offence(source: Source, name: str) -> str | None:
    own = ".".join(source.module.split(".")[:2])
    if within(name, (own,)) or name == "protocols":
        is_backwards = within(name, (f"{own}.front",)) and not source.is_front
        return "the kernel part of a plugin does not know its front" if is_backwards else None
    if name.startswith("protocols."):
        return "plugins never import each other: talk through messages, or move the shared part into peerd.api"
    allowed = PLUGIN_FRONT_MAY_IMPORT if source.is_front else PLUGIN_MAY_IMPORT
    return None if within(name, allowed) else f"a plugin may import {', '.join(allowed)} and its own package"


def check_sans_io_imports(source: Source) -> Iterator[str]:
    """No clock, randomness, input or output where the code runs in the simulator too."""
    if not source.is_sans_io:
        return
    for line, name in imports(source):
        top = name.partition(".")[0]
        if top in IO_MODULES:
            yield (
                f"{source.path}:{line}: imports {top} in a sans-IO layer; time, randomness and input/output come "
                "from peerd.api.Host (the type of host.rng is peerd.api.Rng)"
            )
        elif top in FRAMEWORKS and not within(name, PURE_PARTS):
            yield f"{source.path}:{line}: imports {top} in a sans-IO layer; it belongs in the plugin's front"


def check_sizes(source: Source) -> Iterator[str]:
    """Small files, small functions, tests included."""
    lines = source.text.count("\n")
    if lines > FILE_LINES_MAX:
        yield f"{source.path}:1: {lines} lines, over {FILE_LINES_MAX}; split it by responsibility"
    functions: list[ast.FunctionDef | ast.AsyncFunctionDef] = [*source.nodes(ast.FunctionDef)]
    for node in [*functions, *source.nodes(ast.AsyncFunctionDef)]:
        length = (node.end_lineno or node.lineno) - node.lineno + 1
        if length > FUNCTION_LINES_MAX:
            yield (
                f"{source.path}:{node.lineno}: {node.name} has {length} lines, over {FUNCTION_LINES_MAX}; "
                "extract named steps"
            )


def check_words_of_validation(source: Source) -> Iterator[str]:
    """What is wrong with a value is said in our words, and in one place."""
    if source.path.startswith("tests/") or source.path == INVALID:
        return
    for node in source.nodes(ast.Subscript):
        if isinstance(node.slice, ast.Constant) and node.slice.value == "msg":
            yield f"{source.path}:{node.lineno}: quotes the library that validates; use peerd.invalid"


def check_no_sleep_in_tests(source: Source) -> Iterator[str]:
    """A test that sleeps is slow on a fast machine and fails on a slow one.

    Tests of other processes ask them again and again, and an attack has its rhythm: there pauses are allowed.
    ``asyncio.sleep(0)`` is no sleep: it gives the event loop one turn and takes no time.
    """
    if not source.path.startswith("tests/") or source.path.startswith(SLEEPING_TESTS):
        return
    for line, name, call in calls(source):
        one_turn = name == "asyncio.sleep" and [ast.dump(argument) for argument in call.args] == ["Constant(value=0)"]
        if name.rpartition(".")[2] == "sleep" and not one_turn:
            yield f"{source.path}:{line}: calls {name}; wait for an event or drive the simulated clock"


def check_banned_calls(source: Source) -> Iterator[str]:
    """Tasks are spawned where their exceptions are seen; clocks are read by the Host only."""
    spawned = source.path != SPAWNER
    for line, name, call in calls(source):
        if spawned and (name in SPAWN_CALLS or _is_loop_spawn(call)):
            yield f"{source.path}:{line}: calls {name}; use peerd.daemon.tasks.spawn, or a TaskGroup"
        if source.is_sans_io and any(name == banned or name.endswith(f".{banned}") for banned in CLOCK_CALLS):
            yield f"{source.path}:{line}: calls {name} in a sans-IO layer; use host.now() or host.wall_time()"
    for line, name in imports(source):
        if spawned and name in SPAWN_CALLS:
            yield f"{source.path}:{line}: imports {name}; use peerd.daemon.tasks.spawn, or a TaskGroup"


def _is_loop_spawn(call: ast.Call) -> bool:
    if not isinstance(call.func, ast.Attribute) or call.func.attr != "create_task":
        return False
    owner = call.func.value
    name = dotted(owner.func) if isinstance(owner, ast.Call) else dotted(owner)
    return name.rpartition(".")[2] in {"loop", "_loop", "get_running_loop", "get_event_loop"}


def check_suppressions(source: Source) -> Iterator[str]:
    """Silencing a tool, or skipping a test, names what and says why."""
    is_silencing = SUPPRESSION.search(source.text)  # to find comments for sure takes long
    for token in tokenize.generate_tokens(io.StringIO(source.text).readline) if is_silencing else ():
        if token.type != tokenize.COMMENT or not SUPPRESSION.search(token.string):
            continue
        if not SUPPRESSION_WITH_REASON.search(token.string):
            yield f"{source.path}:{token.start[0]}: {token.string}; name the code and add the reason after it"
    if "pytest" not in source.text:
        return
    called = {id(call.func) for _, _, call in calls(source)}
    for node in source.nodes(ast.Attribute):
        if node.attr == "skip" and id(node) not in called and dotted(node) == "pytest.mark.skip":
            yield f"{source.path}:{node.lineno}: skips without a reason; write skip(reason=...)"
    for line, name, call in calls(source):
        named = any(keyword.arg == "reason" for keyword in call.keywords)
        if name == "pytest.skip" and not (named or call.args):
            yield f"{source.path}:{line}: pytest.skip without a reason; say what is missing"
        if name in {"pytest.mark.skip", "pytest.mark.skipif", "pytest.mark.xfail"} and not named:
            yield f"{source.path}:{line}: {name} without reason=; say why"


def check_module_docstring(source: Source) -> Iterator[str]:
    """Every module says what it is for; an empty ``__init__.py`` has nothing to say."""
    if source.text.strip() and not ast.get_docstring(source.tree):
        yield f"{source.path}:1: no module docstring; say in a line or more what the module is for"


def check_left_overs(source: Source) -> Iterator[str]:
    """Nothing unfinished, and nothing that only exists on the author's machine. For text files of every kind."""
    for number, line in enumerate(source.text.splitlines(), start=1):
        for pattern, advice in (
            (MARKERS, "finish it, or write it down where users see it (docs, issue tracker)"),
            (MACHINE_PATHS, "a path of one machine; make it relative or configurable"),
            (OUTSIDE_FILES, "not in this repository; say it here in full"),
        ):
            if found := pattern.search(line):
                yield f"{source.path}:{number}: {found.group()!r}: {advice}"


CODE_CHECKS: tuple[Check, ...] = (
    check_layers,
    check_sans_io_imports,
    check_sizes,
    check_words_of_validation,
    check_no_sleep_in_tests,
    check_banned_calls,
    check_suppressions,
    check_module_docstring,
)


# --- the tree -------------------------------------------------------------------------------------------------------


@functools.cache
def code() -> tuple[Source, ...]:
    """Every Python file of ours."""
    paths = sorted(path for folder in CODE_FOLDERS for path in (ROOT / folder).rglob("*.py"))
    return tuple(Source(path.relative_to(ROOT).as_posix(), path.read_text("utf-8")) for path in paths)


@functools.cache
def texts() -> tuple[Source, ...]:
    """Every text file of ours, code included, without what tools leave behind."""

    def ours(path: Path) -> bool:
        parts = path.relative_to(ROOT).parts
        hidden = any(part.startswith(".") and part != ".ci" for part in parts[:-1])
        return not hidden and not UNTIDY_FOLDERS.intersection(parts) and "egg-info" not in path.as_posix()

    wanted = (path for path in ROOT.rglob("*") if path.suffix in TEXT_SUFFIXES or path.name in TEXT_NAMES)
    paths = sorted(path for path in wanted if ours(path) and path.is_file())
    return tuple(Source(path.relative_to(ROOT).as_posix(), path.read_text("utf-8")) for path in paths)


def report(offences: list[str]) -> str:
    """All offences, one a line."""
    return f"{len(offences)} offence(s):\n" + "\n".join(offences)


@pytest.mark.parametrize("check", CODE_CHECKS, ids=lambda check: check.__name__)
def test_code_is_tidy(check: Check) -> None:
    offences = [offence for source in code() for offence in check(source)]
    assert not offences, report(offences)


def test_no_left_overs() -> None:
    offences = [offence for source in texts() for offence in check_left_overs(source)]
    assert not offences, report(offences)


def test_every_plugin_in_the_tree_is_an_entry_point() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    for group, pattern in (("peerd.protocols", "*/plugin.py"), ("peerd.fronts", "*/front/__init__.py")):
        found = {path.relative_to(ROOT).parts[1] for path in (ROOT / "protocols").glob(pattern)}
        declared = set(project["entry-points"][group])
        assert found == declared, f"pyproject.toml: entry points of {group} and protocols/{pattern} differ"


# --- every check bites ----------------------------------------------------------------------------------------------

BITES: list[tuple[Check, str, str, str]] = [
    (check_layers, "peerd/ids.py", "import peerd.messages", "layer base may import base"),
    (check_layers, "peerd/wire/codec.py", "from peerd import api", "not api"),
    (check_layers, "peerd/lib/filter/parse.py", "from peerd.driver import Clock", "not driver"),
    (check_layers, "peerd/overlay/table.py", "from peerd.swap import session", "not swap"),
    (check_layers, "peerd/overlay/table.py", "from ..daemon import tasks", "not daemon"),
    (check_layers, "peerd/daemon/links/link.py", "from peerd.sim.network import Network", "not sim"),
    (check_layers, "peerd/sim/run.py", "def late():\n    import peerd.cli.main", "peerd/sim/run.py:2: "),
    (check_layers, "peerd/pipeline/job.py", "from peerd.ids import NodeId", "not base"),
    (check_layers, "peerd/daemon/load.py", "import protocols.aggregation", "never imports protocols"),
    (check_layers, "peerd/api/__init__.py", "import importlib\nimportlib.import_module('protocols.x')", "entry-point"),
    (check_layers, "peerd/unheard_of.py", "import peerd.ids", "has no layer"),
    (check_layers, "protocols/pubsub/state.py", "from protocols.aggregation import state", "each other"),
    (check_layers, "protocols/pubsub/plugin.py", "from peerd.overlay import leafset", "a plugin may import"),
    (check_layers, "protocols/pubsub/api.py", "from peerd.client import Client", "a plugin may import"),
    (check_layers, "protocols/pubsub/front/cli.py", "from peerd.daemon import link", "a plugin may import"),
    (check_layers, "protocols/pubsub/plugin.py", "from protocols.pubsub.front import http", "does not know its front"),
    (check_layers, "peerd/front.py", "from peerd.client import Client", "layer front"),
    (check_layers, "peerd/ids.py", "if TYPE_CHECKING:\n    from peerd.client import Client", "layer base"),
    (check_sans_io_imports, "peerd/node/node.py", "import time", "imports time"),
    (check_sans_io_imports, "peerd/overlay/a.py", "if TYPE_CHECKING:\n    from random import Random", "Rng"),
    (check_sans_io_imports, "protocols/pubsub/state.py", "import os.path", "imports os"),
    (check_sans_io_imports, "protocols/pubsub/plugin.py", "import fastapi", "plugin's front"),
    (check_sans_io_imports, "protocols/pubsub/state.py", "from prometheus_client import Counter", "plugin's front"),
    (check_sizes, "tests/unit/test_a.py", "\n" * (FILE_LINES_MAX + 1), "split it"),
    (check_sizes, "peerd/ids.py", "def f():\n" + "    a = 1\n" * FUNCTION_LINES_MAX, "f has 71 lines"),
    (check_words_of_validation, "peerd/plugins.py", "error.errors()[0]['msg']", "peerd.invalid"),
    (check_no_sleep_in_tests, "tests/sim/test_a.py", "import time\ntime.sleep(1)", "test_a.py:2"),
    (check_no_sleep_in_tests, "tests/unit/test_a.py", "asyncio.sleep(0.0001)", "test_a.py:1"),
    (check_no_sleep_in_tests, "tests/support/a.py", "async def f():\n    await sleep(0.1)", "a.py:2"),
    (check_banned_calls, "peerd/daemon/links/link.py", "asyncio.create_task(run())", "spawn"),
    (check_banned_calls, "tests/unit/test_a.py", "asyncio.get_running_loop().create_task(run())", "spawn"),
    (check_banned_calls, "peerd/cli/main.py", "from asyncio import ensure_future", "spawn"),
    (check_banned_calls, "peerd/swap/a.py", "started = clock.time.time()", "host.now()"),
    (check_banned_calls, "protocols/pubsub/state.py", "datetime.datetime.now()", "host.now()"),
    (check_suppressions, "peerd/ids.py", "a = 1  # type: " + "ignore", "name the code"),
    (check_suppressions, "peerd/ids.py", "a = 1  # type: " + "ignore[misc]", "add the reason"),
    (check_suppressions, "peerd/ids.py", "a = 1  # no" + "qa: E501", "add the reason"),
    (check_suppressions, "tests/test_a.py", "pytest.skip()", "without a reason"),
    (check_suppressions, "tests/test_a.py", "@pytest.mark.skip\ndef test_a(): pass", "skip(reason=...)"),
    (check_suppressions, "tests/test_a.py", "@pytest.mark.xfail(strict=True)\ndef test_a(): pass", "say why"),
    (check_module_docstring, "peerd/ids.py", "A = 1\n", "no module docstring"),
    (check_left_overs, "peerd/ids.py", "a = 1  # TO" + "DO: later", "finish it"),
    (check_left_overs, "docs/a.md", "see /ro" + "ot/notes", "one machine"),
    (check_left_overs, "docs/a.md", "as DE" + "SIGN.md says", "not in this repository"),
]

PASSES: list[tuple[Check, str, str]] = [
    (check_layers, "peerd/node/node.py", "from peerd.overlay import a\nfrom .swap import b\nimport json"),
    (check_layers, "peerd/pipeline/job.py", "from peerd.telemetry import schema\nfrom peerd.errors import Bug"),
    (check_layers, "peerd/cli/main.py", "from peerd.daemon import run\nfrom peerd import __version__"),
    (check_layers, "protocols/pubsub/plugin.py", "from protocols.pubsub import state\nfrom . import messages"),
    (check_layers, "protocols/pubsub/front/cli.py", "from peerd.client import Client\nimport peerd.cli.output"),
    (check_layers, "peerd/front.py", "if TYPE_CHECKING:\n    from peerd.client import Client"),
    (check_sans_io_imports, "protocols/pubsub/front/http.py", "import asyncio, fastapi"),
    (
        check_sans_io_imports,
        "protocols/pubsub/state.py",
        "from prometheus_client.parser import text_fd_to_metric_families",
    ),
    (check_sans_io_imports, "peerd/daemon/links/link.py", "import asyncio, time"),
    (check_sizes, "peerd/ids.py", "def f():\n" + "    a = 1\n" * (FUNCTION_LINES_MAX - 1)),
    (check_words_of_validation, INVALID, "details['msg']"),
    (check_no_sleep_in_tests, "tests/cluster/test_a.py", "time.sleep(1)"),
    (check_no_sleep_in_tests, "tests/hostile/attacker.py", "asyncio.sleep(1)"),
    (check_no_sleep_in_tests, "tests/unit/test_a.py", "asyncio.sleep(0)"),
    (check_banned_calls, "peerd/daemon/links/link.py", "group.create_task(run())\ntime.time()"),
    (check_banned_calls, SPAWNER, "asyncio.create_task(run())"),
    (check_suppressions, "peerd/ids.py", "a = 1  # type: " + "ignore[misc]  # the library has no types"),
    (check_suppressions, "tests/test_a.py", "pytest.skip('no Java')"),
    (check_module_docstring, "peerd/wire/__init__.py", ""),
    (check_left_overs, "docs/a.md", "put it in ~/peerd or /etc/peerd/peerd.toml"),
]


@pytest.mark.parametrize(("check", "path", "text", "expected"), BITES)
def test_check_bites(check: Check, path: str, text: str, expected: str) -> None:
    offences = list(check(Source(path, text)))
    assert len(offences) == 1, report(offences)
    assert offences[0].startswith(f"{path}:")
    assert expected in offences[0]


@pytest.mark.parametrize(("check", "path", "text"), PASSES)
def test_check_lets_good_source_pass(check: Check, path: str, text: str) -> None:
    assert list(check(Source(path, text))) == []


def test_every_check_has_a_source_that_it_bites() -> None:
    assert {check for check, *_ in BITES} == {check for check, *_ in PASSES} == {*CODE_CHECKS, check_left_overs}
