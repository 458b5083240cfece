"""``peerd report``: of tables that are there, a page with pictures, or what became of one thing."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from peerd.cli.analyze import plugin_tables
from peerd.cli.main import exit_code
from peerd.cli.options import Output, OutputOption
from peerd.cli.output import print_result, stderr
from peerd.cli.story import print_story
from peerd.errors import PeerdError


def report(
    tables: Annotated[Path, typer.Argument(metavar="TABLES", help="The folder of tables: --out of `peerd analyze`.")],
    out: Annotated[Path | None, typer.Option(help="Where the report goes. Default: beside the tables.")] = None,
    explain: Annotated[
        str,
        typer.Option(
            metavar="ID", help="In place of it: what became of this round, publication, document or whatever has an id."
        ),
    ] = "",
    output: OutputOption = Output.TABLE,
) -> None:
    """Write report.html, report.md and report.json of the tables that `peerd analyze` has made. Needs no Java.

    Pictures need the extra `lab`; without it the page has the tables only.
    """
    from peerd.report.making import write_report

    try:
        if explain:
            print_story(tables, explain, output)
            return
        paths = write_report(tables, plugin_tables(), out)
    except PeerdError as error:
        stderr().print(f"peerd report: {error}")
        raise typer.Exit(exit_code(error)) from error
    print_result(output, {"files": list(map(str, paths))}, "\n".join(map(str, paths)))
