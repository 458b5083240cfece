"""``peerd demo``: real daemons, a real aggregate over real files, one daemon killed in the middle; everything compared.

It shows what an operator would want to see before trusting the rest: the ring forms, the answer equals a plain
single-process computation to the last count, and when a machine dies the answer says so and is right about the others.
"""

from __future__ import annotations

import asyncio
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import aclosing
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from peerd.cli.cluster import interruptible
from peerd.cli.output import Terminal, number, print_table, seconds, size, stdout
from peerd.cluster.local import Forming, LocalCluster
from peerd.errors import Bug, ExitCode, Unavailable
from peerd.ids import format_id, short_id
from protocols.aggregation.answer import Answer, RoundProgress
from protocols.aggregation.extraction import FileSelection, Share
from protocols.aggregation.front.client import AggregationClient
from protocols.aggregation.front.commands import progress_line
from protocols.aggregation.functions import GroupedAnswer
from protocols.aggregation.query import Query, parse_query
from protocols.aggregation.reference import plain

SOURCES: Final = ("count by module", "**/*.py", r"^\s*(?:from|import)\s+(?P<module>[\w.]+)")
"""Counts which modules are imported in the standard library's source: about 1,500 groups."""
LOGS: Final = ("count by level", "**/*", r"\b(?P<level>TRACE|DEBUG|INFO|NOTICE|WARN|WARNING|ERROR|CRITICAL|FATAL)\b")
"""Counts levels, which most logs have; --query and --pattern can ask for more."""
SHOWN_GROUPS: Final = 8
SKIPPED_FOLDERS: Final = ("site-packages", "dist-packages", "__pycache__")

Reference = Mapping[str, int | float] | int | float | None


@dataclass
class DemoStep:
    """One aggregate, and the value that it is compared with."""

    name: str
    answer: Answer
    is_equal: bool
    compared_with: str


@dataclass
class Demo:
    """The demo's state: the query, the cluster that is asked, and the steps so far."""

    console: Terminal
    cluster: LocalCluster
    query: Query
    root: Path
    nodes: int
    pool: ProcessPoolExecutor
    runner: asyncio.Runner
    """Made at the start, because Ctrl-C while an event loop is being made would leave a half-made one."""
    steps: list[DemoStep] = field(default_factory=list)

    def selections(self, *, without: int | None = None) -> list[FileSelection]:
        """The shares of the nodes, all or all but one."""
        return [FileSelection(share=Share(index, self.nodes)) for index in range(self.nodes) if index != without]

    def reference(self, *, without: int | None = None) -> Future[Reference]:
        """The plain computation over the same files, in a process of its own."""
        return self.pool.submit(plain, self.query, self.root, self.selections(without=without))

    async def ask(self, watch: Callable[[RoundProgress], None]) -> Answer:
        """One round, asked of node 0."""
        query = self.query
        async with self.cluster.client(0) as client:
            lines = AggregationClient(client).aggregate(
                str(query), files=query.files, format=query.format, pattern=query.pattern
            )
            async with aclosing(lines):
                async for line in lines:
                    if isinstance(line, Answer):
                        return line
                    watch(line)
        raise Bug("the round ended without an answer and without an error")


def demo(
    input_: Annotated[
        Path | None,
        typer.Option("--input", metavar="DIR", exists=True, file_okay=False, help="Your files. Default: Python's own."),
    ] = None,
    query: Annotated[str | None, typer.Option(help="What to ask; see peerd aggregate --help.")] = None,
    files: Annotated[str | None, typer.Option(metavar="GLOB", help="Files below the input folder.")] = None,
    pattern: Annotated[str | None, typer.Option(metavar="REGEX", help="Named groups become fields.")] = None,
    nodes: Annotated[int, typer.Option("-n", "--nodes", min=3, max=32, help="How many daemons.")] = 8,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Keep the event logs and the Parquet tables here.")
    ] = None,
) -> None:
    """Start daemons, aggregate real files, kill one in the middle, and check every answer. 0 if all were right."""
    console = stdout()
    defaults = SOURCES if input_ is None else LOGS
    asked = parse_query(query or defaults[0], files=files or defaults[1], pattern=pattern or defaults[2])
    with interruptible(), tempfile.TemporaryDirectory(prefix="peerd-demo-") as folder:
        work = Path(folder)
        root = input_.resolve() if input_ is not None else _copy_sources(console, work / "input")
        events = (out or work) / "events"
        if events.exists():
            raise Unavailable(f"{events} holds the events of another run: name another folder, or remove it")
        with _worker() as pool, asyncio.Runner() as runner:
            runner.get_loop()
            cluster = LocalCluster(work / "cluster", name="demo", keep=True)
            with cluster:
                state = Demo(console, cluster, asked, root, nodes, pool, runner)
                _form(state)
                _compare_all(state)
                _compare_with_a_kill(state)
                _print_nodes(state)
            console.print("clean shutdown: no process is left")
            shutil.move(cluster.layout.events, events)
        _print_steps(state)
        _analyze(console, events, (out or work) / "tables")
    if not all(step.is_equal for step in state.steps):
        raise typer.Exit(ExitCode.FAILURE)
    console.print("every comparison held", "bold")


def _worker() -> ProcessPoolExecutor:
    """One process beside ours. Ctrl-C reaches it, too: it then ends at once and without a traceback."""
    return ProcessPoolExecutor(
        1, mp_context=get_context("spawn"), initializer=signal.signal, initargs=(signal.SIGINT, signal.SIG_DFL)
    )


def _copy_sources(console: Terminal, target: Path) -> Path:
    """A snapshot of the standard library's source files: both computations read exactly the same bytes."""
    source = Path(sysconfig.get_path("stdlib"))
    count = total = 0
    for file in sorted(source.rglob("*.py")):
        relative = file.relative_to(source)
        if file.is_file() and not any(part in SKIPPED_FOLDERS for part in relative.parts):
            copy = target / relative
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, copy)
            count, total = count + 1, total + copy.stat().st_size
    console.print(f"input: {count:,} source files of Python's standard library, {size(total)}")
    return target


def _form(state: Demo) -> None:
    console = state.console
    began = time.monotonic()
    with console.status(f"starting {state.nodes} daemons") as status:

        def show(forming: Forming) -> None:
            status.update(
                f"{forming.elapsed_s:4.1f} s  {forming.answering} of {forming.expected} daemons answer, "
                f"{forming.complete} have their whole leaf set"
            )

        state.cluster.up(state.nodes, settings=lambda index: _settings(state, index), progress=show)
    took_s = time.monotonic() - began
    console.print(f"ring: {state.nodes} daemons, separate processes, mutual TLS; complete in {seconds(took_s)}")


def _settings(state: Demo, index: int) -> dict[str, Any]:
    share = f"{index}/{state.nodes}"
    return {"protocols": {"aggregation": {"data_root": str(state.root), "share": share}}}


def _compare_all(state: Demo) -> None:
    console = state.console
    console.print(f"asking node 0: {state.query} in {state.query.files}")
    expected = state.reference()
    answer = _watch(state, lambda progress: None)
    _finish(state, "all alive", answer, expected.result(), f"plain computation over all {state.nodes} nodes' files")
    if isinstance(answer.value, GroupedAnswer):
        print_table(console, ("group", "count"), list(answer.value.groups.items())[:SHOWN_GROUPS])


def _compare_with_a_kill(state: Demo) -> None:
    """Kill a node while it reads its files, and compare; the answer has its data if that was swapped before."""
    victim = state.nodes // 2
    node = state.cluster.node(victim)
    killed: list[float] = []

    def watch(progress: RoundProgress) -> None:
        if progress.enrolled >= state.nodes and not killed and progress.stage == "enrolled":
            state.cluster.kill(victim)
            killed.append(progress.elapsed_s)

    state.console.print(f"asking again; node {victim} ({node.id[:8]}) gets SIGKILL once all {state.nodes} take part")
    answer = _watch(state, watch)
    if not killed:
        state.cluster.kill(victim)
        state.console.print("the round was over before the kill")
    else:
        state.console.print(f"killed {seconds(killed[0])} into the round")
    if answer.contributors == state.nodes:
        told = f"plain computation over all {state.nodes} nodes' files: node {victim}'s data had been swapped already"
        _finish(state, "one killed", answer, state.reference().result(), told)
        return
    told = f"plain computation over the other {state.nodes - 1} nodes' files"
    expected = state.reference(without=victim).result()
    _finish(state, "one killed", answer, expected, told)
    for missing in answer.missing:
        state.console.print(f"  missing: {short_id(missing.node)} at {missing.address}: {missing.reason}")
    if [format_id(missing.node) for missing in answer.missing] != [node.id]:
        state.console.print(f"  but the killed node is {node.id[:8]}")
        state.steps[-1].is_equal = False


def _watch(state: Demo, react: Callable[[RoundProgress], None]) -> Answer:
    with state.console.status("asking") as status:

        def watch(progress: RoundProgress) -> None:
            status.update(progress_line(progress))
            react(progress)

        return state.runner.run(state.ask(watch))


def _finish(state: Demo, name: str, answer: Answer, expected: Reference, compared_with: str) -> None:
    is_equal = is_same(answer, expected)
    state.steps.append(DemoStep(name, answer, is_equal, compared_with))
    verdict = "equals" if is_equal else "DIFFERS FROM"
    total = answer.value.groups_total if isinstance(answer.value, GroupedAnswer) else 1
    report = answer.report
    state.console.print(
        f"answer: {answer.contributors} of {answer.expected} nodes, {total:,} groups over "
        f"{report.records_selected:,} records in {report.files_read:,} files, {seconds(answer.duration_s)}"
    )
    state.console.print(f"  {verdict} the {compared_with}", "green" if is_equal else "bold red")


def is_same(answer: Answer, expected: Reference) -> bool:
    """Whether both are equal in every count: the same groups, and nothing folded into the remainder."""
    value = answer.value
    if isinstance(value, GroupedAnswer):
        return isinstance(expected, Mapping) and value.exact and value.groups == dict(expected)
    return value == expected


def _print_steps(state: Demo) -> None:
    rows = [
        (
            step.name,
            f"{step.answer.contributors} of {step.answer.expected}",
            seconds(step.answer.duration_s),
            size(step.answer.value_bytes),
            size(step.answer.moved_bytes),
            "yes" if step.is_equal else "NO",
        )
        for step in state.steps
    ]
    print_table(state.console, ("round", "nodes", "time", "result", "moved", "equal to the plain computation"), rows)


def _print_nodes(state: Demo) -> None:
    """Memory and messages of every node that is left."""
    alive = [node for node in state.cluster.status() if node.status is not None]
    messages = state.runner.run(_messages_sent(state, [node.node.index for node in alive]))
    rows = [
        (node.node.index, node.node.id[:8], size(node.resident_bytes or 0), number(sent))
        for node, sent in zip(alive, messages, strict=True)
    ]
    print_table(state.console, ("node", "id", "memory", "messages sent"), rows)


async def _messages_sent(state: Demo, indices: list[int]) -> list[int]:
    async def of(index: int) -> int:
        async with state.cluster.client(index) as client:
            return messages_sent(await client.metrics())

    return list(await asyncio.gather(*map(of, indices)))


def messages_sent(metrics: str) -> int:
    """The sum over all message types in a Prometheus text."""
    lines = (line for line in metrics.splitlines() if line.startswith("peerd_messages_sent_total{"))
    return round(sum(float(line.rpartition(" ")[2]) for line in lines))


def _analyze(console: Terminal, events: Path, tables: Path) -> None:
    """The Spark job over the event logs just written; one line when it cannot run here."""
    command = [sys.executable, "-m", "peerd", "analyze", str(events), "--out", str(tables)]
    with console.status("Spark reads the event logs"):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode == ExitCode.UNAVAILABLE:
        reason = next((line.strip() for line in done.stderr.splitlines() if line.strip()), "no reason given")
        console.print(f"event logs: Spark job skipped: {reason}")
    elif done.returncode != ExitCode.OK:
        console.print(done.stderr)
        raise typer.Exit(ExitCode.FAILURE)
    else:
        console.print("event logs, as the Spark job (peerd analyze) sees them:")
        console.print(done.stdout)
