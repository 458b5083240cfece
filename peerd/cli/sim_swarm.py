"""``peerd sim swarm``: many small simulations, each with faults and work drawn from its seed."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from peerd.cli.lab_sweep import MASTER_HELP, task_session
from peerd.cli.options import Output, OutputOption, seed_range
from peerd.cli.output import RowWriter, Terminal, print_facts, print_table, seconds, stderr, stdout
from peerd.errors import ConfigError, ExitCode

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from peerd.sim.swarm.plan import Attackers
    from peerd.sim.swarm.swarm import SeedResult, SwarmSummary

SEEDS_MAX: Final = 10_000_000
NODES_MAX: Final = 100_000
HASH_SEEDS: Final = ("1", "2")


def swarm(
    seeds: Annotated[str, typer.Option(metavar="A:B", help="Seeds from A up to, not including, B.")] = "0:50",
    jobs: Annotated[int, typer.Option(min=1, max=1024, help="Processes, without --master; changes no result.")] = 1,
    without: Annotated[
        str, typer.Option(metavar="FEATURES", help="Leave these out, separated by commas: what does a red seed need?")
    ] = "",
    nodes: Annotated[
        int | None, typer.Option(min=1, max=NODES_MAX, help="Rings of this size; default: drawn from the seed.")
    ] = None,
    protocol: Annotated[
        list[str] | None,
        typer.Option("--protocol", metavar="NAME", help="Every node runs this protocol, too; may be repeated."),
    ] = None,
    attackers: Annotated[
        str | None,
        typer.Option(
            metavar="COUNT",
            help="Every ring has so many hostile nodes, such as 2 or 10%; default: drawn, in a quarter of the seeds.",
        ),
    ] = None,
    master: Annotated[str | None, typer.Option(metavar="URL", help=MASTER_HELP)] = None,
    conf: Annotated[
        list[str] | None, typer.Option("--conf", metavar="KEY=VALUE", help="A setting of Spark's; may be repeated.")
    ] = None,
    verbose: Annotated[bool, typer.Option("--verbose", help="Print what happened in each seed, and when.")] = False,
    check_determinism: Annotated[
        bool,
        typer.Option("--check-determinism", help="Run each seed again where strings hash differently; compare traces."),
    ] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Simulate many small rings under faults that are drawn from the seed; all invariants must hold.

    Exits with 0 when every seed is green, 1 when one is red (the last lines repeat each red one), 78 for a bad option.
    """
    from peerd.sim.swarm.swarm import run_swarm

    errors = stderr()
    if check_determinism and master is not None:
        raise typer.BadParameter("it runs on this machine, without --master", param_hint="--check-determinism")
    try:
        chosen = seed_range(seeds, SEEDS_MAX)
        protocols = _protocols(protocol or ())
        wanted = _attackers(attackers)
        how: dict[str, Any] = {
            "nodes": nodes,
            "without": _features(without),
            "protocols": protocols,
            "attackers": wanted,
        }
        run = partial(run_swarm, chosen, jobs=jobs, **how)
        with task_session("peerd sim swarm", master, conf or ()) if master is not None else nullcontext() as spark:
            if spark is not None:
                results = _on_spark(spark, chosen, how)
            else:
                results = _compared(*(run(hash_seed=each) for each in HASH_SEEDS)) if check_determinism else run()
            summary = _watch(results, len(chosen), verbose, output, errors)
    except ConfigError as error:
        errors.print(f"peerd sim swarm: {error}")
        raise typer.Exit(ExitCode.CONFIG) from error
    for result in summary.red:
        command = repeat_command(result.seed, without, nodes, check_determinism, protocols, attackers)
        errors.print(f"repeat with: {command}")
    if summary.red:
        raise typer.Exit(ExitCode.FAILURE)


def _on_spark(spark: SparkSession, seeds: range, how: Mapping[str, Any]) -> Iterator[SeedResult]:
    """The results as they come. A seed that could not be run at all is red."""
    from peerd.pipeline.spark_tasks import run_tasks
    from peerd.sim.swarm.swarm import SeedResult, run_seed

    for seed, result in run_tasks(spark, partial(run_seed, **how), seeds):
        yield SeedResult(seed, 0, "", failure=result) if isinstance(result, str) else result


def _features(text: str) -> frozenset[str]:
    from peerd.sim.swarm.plan import draw

    features = frozenset(word.strip() for word in text.split(",") if word.strip())
    draw(0).without(features)  # complains about unknown ones before anything runs
    return features


def _protocols(names: Sequence[str]) -> tuple[str, ...]:
    from peerd.sim.swarm.work import work_of

    chosen = tuple(dict.fromkeys(names))
    work_of(chosen)  # complains about unknown ones before anything runs
    return chosen


def _attackers(text: str | None) -> Attackers | None:
    from peerd.sim.swarm.plan import Attackers

    return None if text is None else Attackers.parse(text)


def repeat_command(
    seed: int,
    without: str,
    nodes: int | None,
    is_checked: bool,
    protocols: Sequence[str] = (),
    attackers: str | None = None,
) -> str:
    """Return the command line that repeats one seed."""
    words = ["peerd", "sim", "swarm", "--seeds", f"{seed}:{seed + 1}", "--verbose"]
    words += ["--without", without] if without else []
    words += ["--nodes", str(nodes)] if nodes is not None else []
    words += [word for name in protocols for word in ("--protocol", name)]
    words += ["--attackers", attackers] if attackers is not None else []
    return shlex.join([*words, "--check-determinism"] if is_checked else words)


def _watch(results: Iterator[SeedResult], count: int, verbose: bool, output: Output, errors: Terminal) -> SwarmSummary:
    from peerd.sim.swarm.swarm import SwarmSummary

    console, summary, writer = stdout(), SwarmSummary(), RowWriter(output)
    with errors.status() as status:
        status.update(_progress(0, count), 0, count)
        for result in results:
            summary.add(result)
            status.clear()  # the line of the seed may go to the same terminal
            if output is not Output.TABLE:
                writer.write(_as_json(result, verbose))
            else:
                _print_seed(result, verbose, console)
            done = summary.passed + len(summary.red)
            status.update(_progress(done, count), done, count)
    if output is Output.TABLE:
        _print_summary(summary, count, console)
    return summary


def _compared(first: Iterator[SeedResult], second: Iterator[SeedResult]) -> Iterator[SeedResult]:
    """Yield the first results; a seed whose second run differs is a failure."""
    for one, other in zip(first, second, strict=True):
        if one.digest != other.digest and one.passed:
            one.failure = f"two runs differ: {one.events} and {other.events} events, {one.digest} and {other.digest}"
        yield one


def _progress(done: int, total: int) -> str:
    return f"{done} of {total} seeds"


def _print_seed(result: SeedResult, verbose: bool, console: Terminal) -> None:
    repaired = "" if result.repaired_s is None else f", whole after {result.repaired_s:.0f} s"
    outcome = f"green{repaired}" if result.passed else f"RED in {result.phase}: {result.failure}"
    line = f"seed {result.seed:<6} {result.nodes:>3} nodes  {result.events:>7} events  {result.plan}: {outcome}"
    console.print(line)
    for time_s, text in result.log if verbose else ():
        console.print(f"    {time_s:9.3f} s  {text}")


def _as_json(result: SeedResult, verbose: bool) -> dict[str, Any]:
    data = {**vars(result), "passed": result.passed, "states": sorted(result.states)}
    if not verbose:
        del data["log"]
    return data


def _print_summary(summary: SwarmSummary, seeds: int, console: Terminal) -> None:
    repaired = sorted(summary.repaired_s)
    facts = [
        ("green", f"{summary.passed:,} of {seeds:,} seeds"),
        ("simulated", f"{summary.simulated_s:,.0f} s, {summary.events:,} events"),
        ("processor time", seconds(summary.cpu_s)),
    ]
    if summary.judged:
        facts.append(("judged", f"{summary.judged:,} answers to clients"))
    if repaired:
        median = repaired[len(repaired) // 2]
        facts.append(("whole after", f"{median:.0f} s (median), {repaired[-1]:.0f} s (longest)"))
    console.print()
    print_facts(console, facts)
    print_table(console, ("state", "seeds"), ((state, count) for state, count in summary.states.most_common()))
    if summary.never:
        console.print(f"never reached: {', '.join(summary.never)}")
