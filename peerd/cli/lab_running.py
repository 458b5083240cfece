"""Simulations of ``peerd lab`` while they run, and what is written and printed of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Protocol

import typer

from peerd.cli.options import Output
from peerd.cli.output import print_data, print_table, stderr, stdout

if TYPE_CHECKING:
    from peerd.lab.experiment import Experiment, Point, Row
    from peerd.lab.pool import Result, Watch
    from peerd.lab.store import ResultStore


ROWS_MAX: Final = 200
"""Rows of a printed table."""
FormatOption = Annotated[
    Output,
    typer.Option("-o", "--output", "--format", help="A table for people; JSON, JSON lines, CSV or YAML for programs."),
]


class LabRunner(Protocol):
    """What runs points."""

    def __call__(self, points: Sequence[Point], *, watch: Watch) -> Iterator[Result]:
        """Yield what came of each point as it is done."""


class LabReport:
    """One experiment: its points, and what has become of them. ``rows``: in the order of the points."""

    def __init__(
        self,
        experiment: Experiment,
        points: Sequence[Point],
        settings: Mapping[str, Any],
        out: Path,
        resume: bool,
        *,
        has_parquet: bool = False,
    ) -> None:
        from peerd.lab.store import ResultStore

        self.experiment = experiment
        self.points = points
        self.rows: list[Row] = []
        self.errors: list[str] = []
        self._settings = settings
        self._store = ResultStore(out / experiment.name, has_parquet=has_parquet)
        self._by_key: dict[str, Row] = {}
        for point in self.points if resume else ():
            if (row := self._store.kept(point)) is not None:
                self._by_key[point.digest] = row

    @property
    def waiting(self) -> list[Point]:
        """The points that have not run."""
        return [point for point in self.points if point.digest not in self._by_key]

    @property
    def failed(self) -> list[Point]:
        """The points that have no row, or whose simulation has failed, once all have run."""
        rows = ((point, self._by_key.get(point.digest)) for point in self.points)
        return [point for point, row in rows if row is None or row.get("failure") is not None]

    def take(self, result: Result) -> None:
        """Keep the result of a point."""
        if result.row is None:
            self.errors.append(f"{result.point}: {result.error}")
        else:
            self._by_key[result.point.digest] = result.row
            self._store.keep(result.point, result.row)

    def finish(self, kinds: Sequence[str]) -> None:
        """Write tables and charts."""
        found = [(point, self._by_key[point.digest]) for point in self.points if point.digest in self._by_key]
        self.errors += [f"{point}: {row['failure']}" for point, row in found if row.get("failure") is not None]
        self.rows = self.experiment.derive([row for _, row in found])
        if self.rows:
            self._store.finish(self.experiment, self._settings, self.rows)
            _draw(self.experiment, self.rows, self._store, kinds)


def run_reports(reports: Sequence[LabReport], run: LabRunner) -> None:
    """Run the points of all experiments together, as some of them begin alike."""
    by_name = {report.experiment.name: report for report in reports}
    waiting = [point for report in reports for point in report.waiting]
    total = sum(len(report.points) for report in reports)
    with _progress(total, total - len(waiting)) as (advance, watch):
        for result in run(waiting, watch=watch):
            by_name[result.point.experiment].take(result)
            advance()


def _draw(experiment: Experiment, rows: Sequence[Row], store: ResultStore, kinds: Sequence[str]) -> None:
    from peerd.lab.drawing import draw

    for chart in experiment.charts(rows):
        for kind in kinds if not chart.is_empty else ():
            store.add_file(f"{chart.name}.{kind}", draw(chart, kind))


@contextmanager
def _progress(total: int, done: int) -> Iterator[tuple[Callable[[], None], Watch]]:
    """Show a progress bar on a terminal; yields what to call after each point, and with each phase of a point."""
    errors = stderr()
    if not errors.is_terminal:
        yield (lambda: None), (lambda point, phase, now: None)
        return
    finished, note = done, ""
    with errors.status() as status:

        def show() -> None:
            status.update(f"lab: {finished} of {total}  {note}", finished, total)

        def advance() -> None:
            nonlocal finished
            finished += 1
            show()

        def watch(point: Point, phase: str, now_s: float) -> None:
            nonlocal note
            values = " ".join(f"{name}={value}" for name, value in point.parameters.items())
            note = f"{point.experiment}, {phase}, t={now_s:.0f} s: {values}"
            show()

        show()
        yield advance, watch


def print_rows(experiment: Experiment, rows: Sequence[Row]) -> None:
    """Print the table, without the columns that hold lists: those are for results.json and charts."""
    columns = [
        column for column in experiment.columns if not any(isinstance(row.get(column.key), dict | list) for row in rows)
    ]
    headings = [column.heading for column in columns]
    cells = ([column.cell(row) for column in columns] for row in rows)
    console = stdout()
    print_table(console, headings, islice(cells, ROWS_MAX), title=f"{experiment.name}: {experiment.title}")
    if len(rows) > ROWS_MAX:
        console.print(f"{len(rows) - ROWS_MAX:,} more rows are in results.csv")
    console.print()


def print_reports(reports: Sequence[LabReport], kinds: Sequence[str], output: Output) -> None:
    """Write what came of the experiments, and print it; ``kinds``: of charts."""
    for report in reports:
        report.finish(kinds)
        if output is Output.TABLE:
            print_rows(report.experiment, report.rows)
        for text in report.errors:
            stderr().print(f"peerd lab: {text}")
    if output is not Output.TABLE:
        documents: list[Row] = [
            {"experiment": report.experiment.name, "rows": report.rows, "errors": report.errors} for report in reports
        ]
        rows = [{"experiment": each["experiment"], **row} for each in documents for row in each["rows"]]
        print_data(output, documents, rows)
