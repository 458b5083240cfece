"""``peerd demo``: five real daemons do what every protocol is for, one is killed meanwhile, and each answer is checked.

What the protocols do comes from their fronts (`Front.demo`); here are the ring, the kill, the verdict, and what a job
over the event logs finds.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import tempfile
import time
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from peerd.cli.analyze import print_ledger, print_nodes, print_traffic
from peerd.cli.cluster import interruptible
from peerd.cli.output import Terminal, print_table, seconds, stdout
from peerd.cluster.demo import DemoComparison, DemoPart, DemoStage
from peerd.cluster.layout import Tables
from peerd.cluster.local import Forming, LocalCluster
from peerd.errors import Bug, ExitCode, PeerdError
from peerd.plugins import usable_fronts, warn_on_stderr
from peerd.words import counted

NODES: Final = 5
FORMED_WITHIN_S: Final = 180.0
"""It takes some seconds; a machine that does much else may need minutes."""
VICTIM: Final = 3


def demo(
    spark: Annotated[bool, typer.Option("--spark/--no-spark", help="End with the Spark job, where it can run.")] = True,
) -> None:
    """Start five daemons; a filtered stream, publish/subscribe and aggregates run on them while one daemon is killed.

    Each answer is compared with a plain computation over the same data. Exit code 0 if all are equal.
    """
    console = stdout()
    parts = [part for front in usable_fronts(warn_on_stderr).values() if (part := front.demo()) is not None]
    with interruptible(), tempfile.TemporaryDirectory(prefix="peerd-demo-") as folder, asyncio.Runner() as runner:
        runner.get_loop()  # now: Ctrl-C while an event loop is being made would leave a half-made one
        work = Path(folder)
        cluster = LocalCluster(work / "cluster", name="demo", keep=True)
        with cluster:
            _form(cluster, parts, work, console)
            found = runner.run(_perform(cluster, parts, work, console))
        console.print("clean shutdown: no process is left\n")
        if spark:
            _analyze(console, cluster.layout.events, work / "tables")
    is_right = all(each.is_equal for each in found)
    verdict = f"every answer equals the plain computation ({counted(len(found), 'comparison')})"
    console.print(verdict if is_right else "SOME ANSWERS DIFFER from the plain computation: see above", "bold")
    _print_next_steps(console, parts)
    if not is_right:
        raise typer.Exit(ExitCode.FAILURE)


def _form(cluster: LocalCluster, parts: list[DemoPart], work: Path, console: Terminal) -> None:
    began = time.monotonic()
    with console.status(f"starting {NODES} daemons") as status:

        def show(forming: Forming) -> None:
            status.update(f"{forming.complete} of {forming.expected} daemons have their whole leaf set")

        cluster.up(NODES, settings=partial(_settings, parts, work), timeout_s=FORMED_WITHIN_S, progress=show)
    took = seconds(time.monotonic() - began)
    console.print(f"{NODES} daemons, separate processes with mutual TLS, have formed a ring in {took}")


def _settings(parts: list[DemoPart], work: Path, index: int) -> Tables:
    merged: dict[str, Any] = {}
    for part in parts:
        merged |= part.settings(work, index, NODES)
    return {"protocols": merged}


async def _perform(cluster: LocalCluster, parts: list[DemoPart], work: Path, console: Terminal) -> list[DemoComparison]:
    """Run all parts at once, kill the victim in the middle, and print what each has found."""
    victim = cluster.node(VICTIM)
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(cluster.client(index)) for index in range(NODES)]
        stage = DemoStage(cluster, clients, VICTIM, work, len(parts), console.print)
        try:
            async with asyncio.TaskGroup() as group:
                running = [group.create_task(part.run(stage)) for part in parts]
                await stage.all_under_way.wait()
                await asyncio.to_thread(cluster.kill, VICTIM)
                console.print(f"node {VICTIM} ({victim.id[:8]}) got SIGKILL while all of that was under way")
                stage.killed.set()
        except ExceptionGroup as failed:
            raise _first_of(failed) from None
    found = []
    for part, task in zip(parts, running, strict=True):
        rows = task.result()
        console.print()
        cells = [(each.what, each.answer, "yes" if each.is_equal else "NO") for each in rows]
        print_table(console, ("compared", "answer", "equal to the plain computation"), cells, part.title)
        found += rows
    console.print()
    return found


def _first_of(failed: ExceptionGroup[Exception]) -> Exception:
    """What to tell the user: the first of ours that is no bug, else the first."""
    flat: list[Exception] = []
    waiting: list[Exception] = [failed]
    while waiting:
        each = waiting.pop()
        if isinstance(each, ExceptionGroup):
            waiting += each.exceptions
        else:
            flat.append(each)
    ours = [each for each in flat if isinstance(each, PeerdError) and not isinstance(each, Bug)]
    return (ours or flat)[0]


def _analyze(console: Terminal, events: Path, tables: Path) -> None:
    """Show what the Spark job finds in the event logs just written; one line when it cannot run here."""
    command = [sys.executable, "-m", "peerd", "analyze", str(events), "--out", str(tables), "--no-report", "-o", "json"]
    command += ["--tables", "nodes,messages,ledger"]  # what is shown; all of them take a newcomer's time
    with console.status("Spark reads the event logs"):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode == ExitCode.UNAVAILABLE:
        reason = next((line.strip() for line in done.stderr.splitlines() if line.strip()), "no reason given")
        console.print(f"the Spark job over the event logs is left out: {reason}\n")
    elif done.returncode != ExitCode.OK:
        console.print(done.stderr)
        raise typer.Exit(ExitCode.FAILURE)
    else:
        console.print("what the Spark job finds in the daemons' event logs (peerd analyze):")
        report = json.loads(done.stdout)
        print_nodes(report["nodes"], console)
        print_traffic(report, console)
        print_ledger(report["ledger"], console)
        console.print("unknown: counted, or on its way, where a daemon was killed\n")


def _print_next_steps(console: Terminal, parts: list[DemoPart]) -> None:
    console.print("\nwhat to try next, on a cluster of your own:")
    steps = [
        ("peerd cluster up -n 5 --data .", "then the `export` line that it prints"),
        ("peerd status; peerd ring", "what a daemon sees"),
        *(step for part in parts for step in part.next_steps),
        ("peerd cluster kill 3; peerd ring --check", "who is missing, and since when"),
        ("peerd cluster down", "nothing is left; docs/tour.md goes the same way with explanations"),
    ]
    width = max(len(command) for command, _ in steps)
    for command, what in steps:
        console.print(f"  {command:<{width}}  # {what}")
