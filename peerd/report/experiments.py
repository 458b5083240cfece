"""Pages of what ``peerd lab`` has measured: one for each group of experiments, which is one or more papers."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from peerd.errors import ConfigError, Unavailable
from peerd.lab.experiment import Experiment, Row
from peerd.lab.grid import sweep_command
from peerd.lab.registry import experiments, group_of
from peerd.report.page import Page, Section
from peerd.words import counted

RESULTS: Final = "results.json"


def write_pages(folder: Path, out: Path | None = None) -> list[Path]:
    """Write ``GROUP.html``, ``.md`` and ``.json`` for each group of experiments that has results below the folder.

    They go beside the results, or to ``out``. Raises `Unavailable` where there are no results, `ConfigError` for
    results that cannot be read.
    """
    target = folder if out is None else out
    target.mkdir(parents=True, exist_ok=True)
    written = []
    for group, page in make_pages(folder).items():
        for suffix, text in (("html", page.as_html()), ("md", page.as_markdown()), ("json", page.as_json())):
            written.append(target / f"{group}.{suffix}")
            written[-1].write_text(text)
    return written


def make_pages(folder: Path) -> dict[str, Page]:
    """The page of each group, in the order of `experiments`. See `write_pages`."""
    found: dict[str, list[tuple[Experiment, Mapping[str, Any]]]] = {}
    for experiment in experiments().values():
        if (file := folder / experiment.name / RESULTS).is_file():
            found.setdefault(group_of(experiment.name), []).append((experiment, _results(file)))
    if not found:
        raise Unavailable(f"{folder}: there are no results of `peerd lab run` or `peerd lab sweep`")
    has_pictures = importlib.util.find_spec("matplotlib") is not None
    pages = {}
    for group, measured in found.items():
        sections = [_section(experiment, document) for experiment, document in measured]
        facts = list(_facts([document for _, document in measured]))
        pages[group] = Page(f"What peerd lab has measured: {group}", facts, sections, has_pictures)
    return pages


def _results(file: Path) -> Mapping[str, Any]:
    try:
        document = json.loads(file.read_bytes())
        if not isinstance(document, dict) or not all(isinstance(row, dict) for row in document["rows"]):
            raise ValueError("no rows")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"no results of peerd lab: {error}", file=str(file)) from error
    return document


def _facts(documents: list[Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    rows = [row for document in documents for row in document["rows"]]
    yield "experiments", f"{len(documents):,}"
    yield "simulations", f"{len(rows):,}"
    yield "simulated", f"{sum(row.get('simulated_s') or 0 for row in rows) / 3600:,.1f} hours"
    yield "processor time", f"{sum(row.get('processor_s') or 0 for row in rows) / 3600:,.2f} hours"
    yield "versions", ", ".join(sorted({str(document.get("version", "?")) for document in documents}))


def _section(experiment: Experiment, document: Mapping[str, Any]) -> Section:
    """The figure's pictures, and the table; lists and tables within rows are in the JSON only."""
    rows: list[Row] = document["rows"]
    seeds = sorted({row["seed"] for row in rows if "seed" in row})
    told = [f"Reproduces {experiment.reproduces}."]
    told += [f"The paper says: {experiment.paper}."] if experiment.paper else []
    told += [f"We measured: {counted(len(rows), 'simulation')}."]
    if seeds:
        told.append(f"{counted(len(seeds), 'seed')}: {seeds[0]} to {seeds[-1]}.")
    failed = sum(row.get("failure") is not None for row in rows)
    if failed:
        told.append(f"{counted(failed, 'simulation')} failed.")
    told.append(f"Again: {sweep_command(experiment, document.get('settings', {}))}")
    columns = {
        column.key: column.heading
        for column in experiment.columns
        if not any(isinstance(row.get(column.key), dict | list) for row in rows)
    }
    # As texts: a heading says what is counted, and has the unit.
    cells = [{column.key: str(column.cell(row)) for column in experiment.columns} for row in rows]
    charts = experiment.charts(rows) if rows else []
    title = f"{experiment.name}: {experiment.title}"
    return Section(experiment.name, title, " ".join(told), columns, rows, cells, charts)
