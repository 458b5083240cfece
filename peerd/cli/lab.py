"""``peerd lab``: experiments that reproduce the figures of papers in the simulator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from peerd.cli.lab_running import FormatOption, LabReport, print_reports, run_reports
from peerd.cli.lab_sweep import sweep
from peerd.cli.main import exit_code
from peerd.cli.options import Output, duration_s
from peerd.cli.output import print_data, print_facts, print_result, print_table, seconds, stderr, stdout
from peerd.errors import ConfigError, ExitCode, PeerdError

if TYPE_CHECKING:
    from peerd.lab.experiment import Column, Experiment, Row, Settings

NODES_MAX: Final = 100_000
JOBS_MAX: Final = 1024

app = typer.Typer(help="Experiments that reproduce the figures of papers in the simulator.", no_args_is_help=True)


@app.command("list")
def list_(
    names: Annotated[list[str] | None, typer.Argument(metavar="[NAME...]", help="Explain these, with columns.")] = None,
    output: FormatOption = Output.TABLE,
) -> None:
    """What experiments there are, what they reproduce, and what their columns mean."""
    from peerd.lab.registry import experiments as all_of_them

    experiments = _find(names) if names else list(all_of_them().values())
    if output is not Output.TABLE:
        print_data(output, [_described(experiment) for experiment in experiments])
    elif names:
        for experiment in experiments:
            _explain(experiment)
    else:
        headings = ("name", "what", "reproduces", "nodes", "simulations", "each measures", "processor time")
        print_table(stdout(), headings, (_listed(experiment) for experiment in experiments))


def _find(names: Sequence[str]) -> list[Experiment]:
    from peerd.lab.registry import find

    try:
        return find(names)
    except ConfigError as error:
        raise typer.BadParameter(str(error), param_hint="NAME") from error


def _explain(experiment: Experiment) -> None:
    console = stdout()
    sizes = ((name, getattr(experiment, name)) for name in ("full", "quick"))
    facts = [("name", experiment.name), ("what", experiment.title), ("reproduces", experiment.reproduces)]
    facts += [("the paper says", experiment.paper)] if experiment.paper else []
    for name, settings in sizes:
        facts.append((name, ", ".join(f"{key} {getattr(settings, key)}" for key in settings.__slots__)))
    print_facts(console, facts)
    print_table(console, ("column", "in results.json", "meaning"), (_column(column) for column in experiment.columns))
    console.print()


def _column(column: Column) -> tuple[str, str, str]:
    return column.heading, column.key, column.meaning


def _described(experiment: Experiment) -> Row:
    return {
        "name": experiment.name,
        "title": experiment.title,
        "reproduces": experiment.reproduces,
        "paper": experiment.paper or None,
        "takes": experiment.takes,
        "settings": {name: getattr(experiment.full, name) for name in experiment.full.__slots__},
        "quick": {name: getattr(experiment.quick, name) for name in experiment.quick.__slots__},
        "columns": {column.key: column.meaning for column in experiment.columns},
    }


def _listed(experiment: Experiment) -> tuple[object, ...]:
    full = experiment.full
    sizes = ", ".join(f"{nodes:,}" for nodes in full.nodes)
    points = len(experiment.points(full))
    return (
        experiment.name,
        experiment.title,
        experiment.reproduces,
        sizes,
        points,
        seconds(full.duration_s),
        experiment.takes,
    )


@app.command()
def run(
    names: Annotated[
        list[str], typer.Argument(metavar="NAME...", help="Such as overlay/hops; overlay is all of the overlay's.")
    ],
    seed: Annotated[int, typer.Option(min=0, max=1 << 62, help="What all randomness comes from.")] = 1,
    seeds: Annotated[int, typer.Option(min=1, max=10_000, help="Repeat with so many seeds, counting from --seed.")] = 1,
    nodes: Annotated[str | None, typer.Option(metavar="N,N...", help="Sizes of the ring.")] = None,
    duration: Annotated[str | None, typer.Option(metavar="TIME", help='Virtual time measured, such as "10m".')] = None,
    lookups: Annotated[int | None, typer.Option(min=1, max=10_000_000, help="About so many in that time.")] = None,
    topology: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[NAME=]WHAT",
            help="A model (euclidean, sphere, transit-stub, constant), a latency file (.txt, .npz), or a .toml with a "
            "table [topology]. Repeat it to compare several.",
        ),
    ] = None,
    jobs: Annotated[int, typer.Option(min=1, max=JOBS_MAX, help="Simulations at a time, a process each.")] = 1,
    quick: Annotated[bool, typer.Option("--quick", help="Small sizes, to see how it works.")] = False,
    out: Annotated[Path, typer.Option(metavar="DIR", file_okay=False, help="Results go to DIR/NAME/.")] = Path("lab"),
    resume: Annotated[bool, typer.Option("--resume", help="Keep the points that a run before has left there.")] = False,
    charts: Annotated[bool, typer.Option("--charts/--no-charts", help="Draw charts (SVG).")] = True,
    png: Annotated[bool, typer.Option("--png", help="Draw them as PNG, too.")] = False,
    output: FormatOption = Output.TABLE,
) -> None:
    """Run experiments: print a table, write results.json, results.csv and charts.

    Exits with 0, or 1 when a simulation failed, 2 for an unknown name or option, 78 for a topology that cannot be used.
    """
    from peerd.lab.drawing import require
    from peerd.lab.experiment import chosen
    from peerd.lab.pool import run_points

    experiments = _find(names)
    choices = {
        "seed": seed,
        "seeds": seeds,
        "nodes": _sizes(nodes),
        "duration_s": _measured_s(duration),
        "lookups": lookups,
        "topologies": tuple(topology) if topology else None,
    }
    plans = [(each, chosen(each.quick if quick else each.full, **choices)) for each in experiments]
    if charts or png:
        require()
    kinds = ("svg", "png") if png else ("svg",) if charts else ()
    _check_topologies([settings for _, settings in plans])
    reports = [LabReport(each, each.points(settings), asdict(settings), out, resume) for each, settings in plans]
    run_reports(reports, partial(run_points, jobs=jobs))
    print_reports(reports, kinds, output)
    if any(report.errors for report in reports):
        raise typer.Exit(ExitCode.FAILURE)


def _sizes(text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    words = text.split(",")
    if not all(word.strip().isdecimal() and 1 <= int(word) <= NODES_MAX for word in words):
        raise typer.BadParameter(f"expected sizes from 1 to {NODES_MAX}, such as 100,300", param_hint="--nodes")
    return tuple(dict.fromkeys(int(word) for word in words))


def _measured_s(text: str | None) -> float | None:
    if text is None:
        return None
    if (value := duration_s(text, "--duration")) <= 0:
        raise typer.BadParameter("expected more than nothing", param_hint="--duration")
    return value


def _check_topologies(plans: Sequence[Settings]) -> None:
    """Check the topologies first, so that a bad file is reported before anything runs."""
    from peerd.lab.topologies import check

    for topology in dict.fromkeys(topology for settings in plans for topology in settings.topologies):
        check(topology, plans[0].seed)


@app.command()
def report(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Where results are: --out of `peerd lab run`.")] = Path(
        "lab"
    ),
    out: Annotated[Path | None, typer.Option(help="Where the pages go. Default: beside the results.")] = None,
    output: FormatOption = Output.TABLE,
) -> None:
    """Write a page with pictures of all that was measured, for each group of experiments: overlay.html, and so on.

    As Markdown and JSON, too. Pictures need the extra `lab`; without it the pages have the tables only.
    """
    from peerd.report.experiments import write_pages

    try:
        paths = write_pages(folder, out)
    except PeerdError as error:
        stderr().print(f"peerd lab report: {error}")
        raise typer.Exit(exit_code(error)) from error
    print_result(output, {"files": list(map(str, paths))}, "\n".join(map(str, paths)))


app.command()(sweep)
