"""The command line of the benchmark, and its table."""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import sys
import time
from collections.abc import Sequence
from types import FrameType
from typing import Any, Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from bench.measure import Bench, BenchFailure, Recorder, Row, Scale, Section, Skip, load_average
from bench.sections import SECTIONS
from peerd.errors import PeerdError

RUNS: Final = {Scale.FULL: 5, Scale.QUICK: 3, Scale.TINY: 1}
INTERRUPTED: Final = 130


def main(arguments: Sequence[str] | None = None, sections: Sequence[Section] = SECTIONS) -> int:
    """Run the sections asked for and print the table. 0: all measured, whether aims were met or not; 1: not."""
    options = _parser().parse_args(arguments)
    signal.signal(signal.SIGTERM, _interrupt)
    scale = Scale.TINY if options.tiny else Scale.QUICK if options.quick else Scale.FULL
    recorder = Recorder(say=lambda text: print(text, file=sys.stderr, flush=True))
    failures: list[str] = []
    about = _about(scale)
    try:
        for section in sections:
            if options.only and section.name not in options.only:
                continue
            recorder.progress(section.name, section.title)
            try:
                section.run(Bench(section.name, scale, options.runs or RUNS[scale], recorder))
            except (BenchFailure, PeerdError) as error:  # the other sections can still be measured
                failures.append(f"{section.name}: {error}")
                recorder.progress(section.name, f"failed: {error}")
    except KeyboardInterrupt:
        print("interrupted: everything that was started has been ended", file=sys.stderr)
        return INTERRUPTED
    about["load_average_after"] = load_average()
    about["duration_s"] = time.monotonic() - about["duration_s"]
    if options.output == "json":
        _print_json(about, recorder, failures)
    else:
        _print_table(about, recorder, failures)
    return 1 if failures else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    names = [section.name for section in SECTIONS]
    parser.add_argument("--only", choices=names, action="append", help="this section; may be repeated")
    parser.add_argument("--quick", action="store_true", help="fewer and shorter runs")
    parser.add_argument("--tiny", action="store_true", help="just run through everything; the numbers mean nothing")
    parser.add_argument("--runs", type=int, metavar="N", help="repetitions (default 5; quick 3)")
    parser.add_argument("-o", "--output", choices=["table", "json"], default="table")
    return parser


def _interrupt(number: int, frame: FrameType | None) -> None:
    """SIGTERM ends us as SIGINT does, so that everything started is ended."""
    raise KeyboardInterrupt


def _about(scale: Scale) -> dict[str, Any]:
    return {
        "scale": str(scale),
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cores": len(os.sched_getaffinity(0)),
        "load_average_before": load_average(),
        "duration_s": time.monotonic(),
    }


def _print_json(about: dict[str, Any], recorder: Recorder, failures: list[str]) -> None:
    skips = [{"section": skip.section, "what": skip.what, "why": skip.why} for skip in recorder.skips]
    rows = [row.to_json() for row in recorder.rows]
    json.dump({"about": about, "rows": rows, "skipped": skips, "failed": failures}, sys.stdout, indent=2)
    sys.stdout.write("\n")


def _print_table(about: dict[str, Any], recorder: Recorder, failures: list[str]) -> None:
    console = Console(width=None if sys.stdout.isatty() else 160, highlight=False)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for heading in ("section", "measured"):
        table.add_column(heading)
    for heading in ("median", "spread"):
        table.add_column(heading, justify="right")
    for heading in ("unit", "aim", "", "remark"):
        table.add_column(heading, overflow="fold")
    previous = ""
    for row in recorder.rows:
        table.add_row(*_cells(row, is_first=row.section != previous))
        previous = row.section
    console.print(table)
    console.print(_small_print(about))
    _print_lines(console, recorder.skips, failures)


def _cells(row: Row, *, is_first: bool) -> list[str | Text]:
    aim = "" if row.aim is None else f"{'>=' if row.aim.bound == 'at least' else '<='} {number(row.aim.value)}"
    verdict = {None: Text(""), True: Text("met", "green"), False: Text("MISSED", "bold red")}[row.is_met]
    spread = f"{row.spread:.0%}" if len(row.samples) > 1 else "one run"
    return [row.section if is_first else "", row.name, number(row.median), spread, row.unit, aim, verdict, row.note]


def _print_lines(console: Console, skips: Sequence[Skip], failures: Sequence[str]) -> None:
    for skip in skips:
        console.print(Text(f"left out: {skip.what} ({skip.why})"))
    for failure in failures:
        console.print(Text(f"FAILED: {failure}", "bold red"))


def _small_print(about: dict[str, Any]) -> Text:
    return Text(
        "\nMedian of the runs; spread is (largest - smallest) / median. Ratios are taken run by run.\n"
        f"{about['machine']}, {about['cores']} cores, Python {about['python']}, {about['scale']}, "
        f"{about['duration_s']:.0f} s; load average {about['load_average_before']:.1f} before, "
        f"{about['load_average_after']:.1f} after (its own work included)."
    )


def number(value: float) -> str:
    """Three significant digits; whole from a thousand on."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
