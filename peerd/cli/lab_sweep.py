"""``peerd lab sweep``: an experiment over a grid of values and many seeds, on this machine or on a cluster of Spark."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from peerd.cli.lab_running import FormatOption, LabReport, LabRunner, print_reports, run_reports
from peerd.cli.options import Output, seed_range
from peerd.cli.output import stderr
from peerd.errors import ConfigError, ExitCode

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from peerd.lab.experiment import Point
    from peerd.lab.pool import Result, Watch

SEEDS_MAX: Final = 100_000
MASTER_HELP: Final = (
    "Run them as tasks of Spark there, such as spark://host:7077. Workers get peerd, and need what it needs."
)


def sweep(
    name: Annotated[str, typer.Argument(metavar="EXPERIMENT", help="Such as overlay/churn.")],
    grid: Annotated[
        list[str] | None,
        typer.Option(
            "--grid",
            metavar="KEY=V,V...",
            help="Values of nodes, topology, duration, settle, lookups, or of what the experiment varies. Repeat it "
            "for each key; there is a simulation for each combination. Default: as `peerd lab run`.",
        ),
    ] = None,
    seeds: Annotated[str, typer.Option(metavar="A:B", help="Seeds from A up to, not including, B.")] = "0:10",
    master: Annotated[str | None, typer.Option(metavar="URL", help=MASTER_HELP)] = None,
    conf: Annotated[
        list[str] | None, typer.Option("--conf", metavar="KEY=VALUE", help="A setting of Spark's; may be repeated.")
    ] = None,
    jobs: Annotated[
        int | None,
        typer.Option(min=1, max=1024, help="Without --master: processes at a time. Default: all processors."),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Small sizes where the grid names none.")] = False,
    out: Annotated[Path, typer.Option(metavar="DIR", file_okay=False, help="Results go to DIR/EXPERIMENT/.")] = Path(
        "lab"
    ),
    resume: Annotated[bool, typer.Option("--resume", help="Run only what is missing there.")] = False,
    charts: Annotated[bool, typer.Option("--charts/--no-charts", help="Draw charts (SVG).")] = True,
    output: FormatOption = Output.TABLE,
) -> None:
    """Run an experiment over a grid of values, each with many seeds.

    Each row is in DIR/EXPERIMENT/rows/*.parquet as soon as it is known, and in the end in results.json and results.csv.

    Exits with 0, or 1 when a simulation failed (the last lines repeat each), 2 for an unknown name or option, 69 where
    Spark cannot run, 78 for a topology that cannot be used.
    """
    from peerd.lab.drawing import require
    from peerd.lab.grid import command_of, parse_grid, sweep_points
    from peerd.lab.registry import experiments
    from peerd.lab.topologies import check

    try:
        known = experiments()
        if name not in known:
            raise ConfigError(f"no experiment {name!r}: `peerd lab list` has their names", key="EXPERIMENT")
        experiment = known[name]
        chosen = seed_range(seeds, SEEDS_MAX)
        base = experiment.quick if quick else experiment.full
        values = parse_grid(grid or (), experiment)
        points = sweep_points(experiment, base, values, chosen)
    except ConfigError as error:
        raise typer.BadParameter(str(error)) from error
    if charts:
        require()
    for topology in dict.fromkeys(point.topology for point in points):
        check(topology, chosen.start)
    has_parquet = find_spec("pyarrow") is not None
    if not has_parquet:
        stderr().print("peerd lab: no Parquet is written: pip install 'peerd[spark]'")
    settings = {"grid": {key: list(found) for key, found in values.items()}, "seeds": seeds, "quick": quick}
    report = LabReport(experiment, points, settings, out, resume, has_parquet=has_parquet)
    with _runner(master, conf or (), jobs) as run:
        run_reports([report], run)
    print_reports([report], ("svg",) if charts else (), output)
    for point in report.failed:
        stderr().print(f"repeat with: {command_of(point)}")
    if report.errors:
        raise typer.Exit(ExitCode.FAILURE)


@contextmanager
def _runner(master: str | None, conf: Sequence[str], jobs: int | None) -> Iterator[LabRunner]:
    """What runs points, here or there."""
    from peerd.lab.pool import run_points

    if master is None:
        yield partial(run_points, jobs=jobs or os.cpu_count() or 1)
        return
    with task_session("peerd lab sweep", master, conf) as spark:
        yield partial(_run_on_spark, spark)


@contextmanager
def task_session(name: str, master: str, conf: Sequence[str]) -> Iterator[SparkSession]:
    """A session for tasks that are Python calls. Raises `Unavailable` where Spark cannot run."""
    from peerd.cli.analyze import spark_setting
    from peerd.pipeline.requirements import check_requirements

    check_requirements(master)
    from peerd.pipeline.session import is_local, spark_session
    from peerd.spark import ship

    settings = {"spark.app.name": name, **dict(map(spark_setting, conf))}
    with (
        tempfile.TemporaryDirectory(prefix="peerd-ship-") as folder,
        spark_session(master, is_quick=True, settings=settings) as spark,
    ):
        if not is_local(master):
            ship(spark, Path(folder))
        yield spark


def _run_on_spark(spark: SparkSession, points: Sequence[Point], watch: Watch) -> Iterator[Result]:
    from peerd.lab.experiment import Point
    from peerd.lab.pool import Result, groups, run_group
    from peerd.pipeline.spark_tasks import run_tasks

    waiting = [[point.to_json() for point in group] for group in groups(points)]
    for group, told in run_tasks(spark, run_group, waiting):
        found = [(None, told) for _ in group] if isinstance(told, str) else told
        for point, (row, error) in zip(group, found, strict=True):
            yield Result(Point.of_json(point), row, error)
