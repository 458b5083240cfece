"""``peerd sim``: run a scenario in the simulator."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from typer.core import TyperGroup

from peerd.cli.options import Output, OutputOption
from peerd.cli.output import Terminal, print_data, print_table, stderr, stdout
from peerd.cli.sim_swarm import swarm
from peerd.errors import ConfigError, ExitCode, PeerdError

if TYPE_CHECKING:
    from peerd.sim.determinism import RunComparison
    from peerd.sim.report import ScenarioReport

DEFAULT: Final = "run"


class _Commands(TyperGroup):
    """A first argument that is not the name of a command is a scenario file."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put the default command, ``run``, in front of such arguments."""
        if args and args[0] not in self.commands and args[0] not in ctx.help_option_names:
            args = [DEFAULT, *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    cls=_Commands,
    help="Simulate a cluster: `peerd sim SCENARIO` (short for `peerd sim run SCENARIO`) or `peerd sim swarm`.",
    no_args_is_help=True,
)


@app.command(DEFAULT)
def sim(
    scenario: Annotated[Path, typer.Argument(metavar="SCENARIO", help="Scenario file (TOML); see docs/simulator.md.")],
    seed: Annotated[
        int | None, typer.Option(min=0, max=(1 << 63) - 1, help="What all randomness comes from; default: the file's.")
    ] = None,
    check_determinism: Annotated[
        bool,
        typer.Option(
            "--check-determinism", help="Run twice in processes that hash strings differently, and compare the traces."
        ),
    ] = False,
    events: Annotated[
        Path | None, typer.Option(metavar="DIR", file_okay=False, help="Write event logs there, for `peerd analyze`.")
    ] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Run a scenario: simulated nodes, real protocol code, virtual time. One seed is one run.

    Exits with 0 when every check held, 1 when one did not (the last line repeats the run), 78 for a bad scenario.
    """
    errors = stderr()
    try:
        passed = _run(scenario, seed, check_determinism, events, output, errors)
    except PeerdError as error:
        errors.print(f"peerd sim: {error}")
        raise typer.Exit(ExitCode.CONFIG if isinstance(error, ConfigError) else ExitCode.FAILURE) from error
    if not passed:
        raise typer.Exit(ExitCode.FAILURE)


app.command()(swarm)


def _run(path: Path, seed: int | None, is_checked: bool, events: Path | None, output: Output, errors: Terminal) -> bool:
    from peerd.sim.determinism import check_determinism
    from peerd.sim.records import NdjsonSink
    from peerd.sim.runner import run_scenario
    from peerd.sim.scenario import load_scenario

    scenario = load_scenario(path)
    seed = scenario.seed if seed is None else seed
    with errors.status(f"simulating {scenario.name}") as status:
        report = run_scenario(
            scenario,
            seed=seed,
            sink=NdjsonSink(events) if events is not None else None,
            progress=lambda phase, now: status.update(f"simulating {scenario.name}: {phase}, t={now:.1f} s"),
        )
        report.repeat = repeat_command(path, seed, is_checked and report.passed)
        verdict = None
        if is_checked:
            status.update("running twice to compare the traces")
            verdict = check_determinism(path, seed)
    is_deterministic = verdict is None or verdict.is_deterministic
    if not print_data(output, report_as_json(report, verdict)):
        print_report(report, verdict, stdout())
    if not (report.passed and is_deterministic):
        reason = report.failure or (str(verdict) if not is_deterministic else "a check did not hold")
        errors.print(f"peerd sim: failed: {reason}")
        errors.print(f"repeat with: {report.repeat}")
    return report.passed and is_deterministic


def repeat_command(path: Path, seed: int, is_checked: bool) -> str:
    """Return the command line that repeats this run."""
    words = ["peerd", "sim", str(path), "--seed", str(seed)]
    return shlex.join([*words, "--check-determinism"] if is_checked else words)


def report_as_json(report: ScenarioReport, verdict: RunComparison | None) -> dict[str, Any]:
    """Return the report, and the verdict on determinism if there is one, as JSON."""
    data = report.to_json()
    if verdict is not None:
        data["deterministic"] = verdict.is_deterministic
        data["determinism"] = str(verdict)
    return data


def print_report(report: ScenarioReport, verdict: RunComparison | None, console: Terminal) -> None:
    """Print the report's tables for people."""
    _print_rows(
        console,
        f"{report.scenario}, seed {report.seed}",
        ("", ""),
        [
            ("simulated time", f"{report.simulated_s:,.1f} s"),
            ("nodes", f"{report.live_nodes:,} running of {report.nodes:,}"),
            ("control messages", f"{report.messages:,} ({report.messages_bytes:,} bytes)"),
            ("bulk", f"{report.stream_bytes:,} bytes"),
            ("lost", ", ".join(f"{reason} {count:,}" for reason, count in report.dropped.items()) or "none"),
            ("events", f"{report.events:,} in {report.wall_s:.2f} s ({report.events_per_s:,.0f} a second)"),
            ("trace hash", report.trace_hash),
        ],
    )
    _print_rows(
        console,
        "Phases",
        ("phase", "from", "for", "events", "messages", "running"),
        [
            (
                phase.name,
                f"{phase.begun_s:.1f} s",
                f"{phase.duration_s:.1f} s",
                f"{phase.events:,}",
                f"{phase.messages:,}",
                f"{phase.live_nodes:,}",
            )
            for phase in report.phases
        ],
    )
    _print_rows(
        console,
        "Lookups",
        ("phase", "asked", "answered", "right", "share", "hops", "time"),
        [
            (
                row.phase,
                f"{row.asked:,}",
                f"{row.answered:,}",
                f"{row.correct:,}",
                f"{row.success:.2%}",
                f"{row.hops / max(row.answered, 1):.2f}",
                f"{row.duration_s / max(row.answered, 1):.3f} s",
            )
            for row in report.lookups
        ],
    )
    _print_repairs(report, console)
    _print_workloads(report, console)
    calls = [
        (
            f"{call['at_s']:.1f} s",
            f"{call['protocol']}.{call['action']}",
            ", ".join(f"{key}={value}" for key, value in call.items() if key not in ("at_s", "protocol", "action")),
        )
        for call in report.calls
    ]
    _print_rows(console, "Plugins", ("at", "action", "result"), calls)
    checks = [
        (f"{check.at_s:.1f} s", check.name, "holds" if check.passed else f"does not hold: {check.detail}")
        for check in report.checks
    ]
    if verdict is not None:
        checks.append(("", "determinism", str(verdict)))
    _print_rows(console, "Checks", ("at", "what", "result"), checks)


def _print_repairs(report: ScenarioReport, console: Terminal) -> None:
    _print_rows(
        console,
        "Whole again",
        ("phase", "waited from", "for"),
        [
            (
                row.phase,
                f"{row.begun_s:.1f} s",
                f"{row.took_s:.1f} s" if row.took_s is not None else f"not within {row.limit_s:g} s: {row.detail}",
            )
            for row in report.repairs
        ],
    )


def _print_workloads(report: ScenarioReport, console: Terminal) -> None:
    _print_rows(
        console,
        "Churn",
        ("phase", "came", "of them back", "killed", "vanished", "left"),
        [
            (row.phase, *(f"{count:,}" for count in (row.arrivals, row.returns, row.killed, row.silenced, row.left)))
            for row in report.churn
        ],
    )
    _print_rows(
        console,
        "Messages to keys",
        ("phase", "sent", "right", "wrong", "lost", "orphans", "hops", "p50", "p99", "stretch"),
        [
            (
                row.phase,
                *(f"{count:,}" for count in (row.sent, row.right, row.wrong, row.lost, row.orphaned)),
                f"{row.mean_hops:.2f}",
                *(f"{row.quantile_s(share):.3f} s" for share in (0.5, 0.99)),
                f"{row.stretch:.2f}",
            )
            for row in report.workloads
        ],
    )
    names = {rate.message: None for row in report.workloads for rate in row.rates}
    sent = [{rate.message: f"{rate.sent_per_s:.3f}" for rate in row.rates} for row in report.workloads]
    totals = [
        ("control (all but Route)", *(f"{row.control_per_s:.3f}" for row in report.workloads)),
        ("control without acks", *(f"{row.maintenance_per_s:.3f}" for row in report.workloads)),
        ("bytes", *(f"{row.bytes_per_s:,.1f}" for row in report.workloads)),
    ]
    _print_rows(
        console,
        "Sent, a second a node",
        ("message", *(row.phase for row in report.workloads)),
        [*((name, *(row.get(name, "") for row in sent)) for name in names), *totals] if sent else [],
    )


def _print_rows(console: Terminal, title: str, headings: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> None:
    if not rows:
        return
    print_table(console, headings, rows, title)
    console.print()
