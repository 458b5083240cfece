"""What became of one thing, as people and programs read it: for ``peerd report`` and ``peerd analyze``."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from peerd.cli.options import Output
from peerd.cli.output import Terminal, print_data, print_table, printable, stdout
from peerd.report.cells import cell
from peerd.words import counted

if TYPE_CHECKING:
    from peerd.front import Row
    from peerd.report.story import StoryEvent

PART_COLUMNS = {
    "event": "event",
    "outcome": "outcome",
    "nodes": "nodes",
    "times": "times",
    "first_s": "first after",
    "last_s": "last after",
    "longest_s": "took at most",
}
STEP_COLUMNS = {"after_s": "after", "node": "node", "number": "event", "event": "what", "details": "details"}
STEPS_SHOWN_MAX = 40


def print_story(tables: Path, name: str, output: Output) -> None:
    """Print what became of something. Raises as `peerd.report.story.tell`."""
    from peerd.report.story import tell

    story, console = tell(tables, name), stdout()
    steps = [dataclasses.asdict(step) for step in story.steps]
    told = {"name": story.name, "begins_ts": story.begins_ts, "is_cut": story.is_cut, "parts": story.parts()}
    if print_data(output, {**told, "steps": steps}, steps):
        return
    nodes = len({step.node for step in story.steps})
    console.print(
        f"{story.name}: {counted(len(story.steps), 'event')}{' or more' if story.is_cut else ''} of "
        f"{counted(nodes, 'node')} within {story.duration_s:.3f} s (by the nodes' clocks)"
    )
    _print_table(console, "What happened", PART_COLUMNS, story.parts())
    _print_table(console, "What took longest", STEP_COLUMNS, map(_cells, story.longest()))
    _print_table(console, "In order", STEP_COLUMNS, map(_cells, story.steps[:STEPS_SHOWN_MAX]))
    if len(steps) > STEPS_SHOWN_MAX:
        console.print(f"{len(steps) - STEPS_SHOWN_MAX} more events: -o jsonl has them")


def _cells(step: StoryEvent) -> Row:
    from peerd.report.story import details

    why = "" if step.why is None else f", after event {step.why}"
    shown = {"after_s": step.after_s, "node": step.node, "number": str(step.number), "event": step.event}
    return {**shown, "details": details(step.fields) + why}


def _print_table(console: Terminal, title: str, columns: Mapping[str, str], rows: Iterable[Row]) -> None:
    cells = [[printable(cell(name, row[name])) for name in columns] for row in rows]
    console.print()
    print_table(console, list(columns.values()), cells, title)
