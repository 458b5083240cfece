"""A report as data, and as HTML, Markdown and JSON. The page needs nothing from a network."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, Final

from peerd.lab.charts import Chart
from peerd.lab.drawing import draw
from peerd.report.cells import cell

ROWS_OPEN_MAX: Final = 12
"""A longer table is closed until somebody opens it."""
ROWS_SHOWN_MAX: Final = 500
"""The page and the Markdown have no more rows of a table; the JSON has all that were read."""
NO_PICTURES: Final = "Without pictures: pip install 'peerd[lab]', then peerd report"

Row = Mapping[str, Any]

_STYLE: Final = """
body { font: 16px/1.5 system-ui, sans-serif; color: #222; max-width: 64rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.2rem; margin-top: 2.5rem; border-bottom: 1px solid #ddd; }
img { max-width: 100%; } .charts { display: flex; flex-wrap: wrap; gap: 1rem; }
table { border-collapse: collapse; font-size: .85rem; } .wide { overflow-x: auto; }
th, td { padding: .2rem .7rem; border-bottom: 1px solid #eee; text-align: left; } td.n, th.n { text-align: right; }
dl { display: grid; grid-template-columns: max-content auto; gap: .1rem 1rem; } dd { margin: 0; }
summary { cursor: pointer; color: #0072b2; } .note { color: #666; }
"""


@dataclass(frozen=True, slots=True)
class Section:
    """One part: what it shows, pictures, and a table. ``cells``: the rows as they are shown, where they differ."""

    name: str
    title: str
    text: str
    columns: Mapping[str, str]
    rows: Sequence[Row]
    cells: Sequence[Row]
    charts: Sequence[Chart] = ()


@dataclass(frozen=True, slots=True)
class Page:
    """A whole report. ``facts``: what is said first, as (what, value). ``has_pictures``: there is what draws them."""

    title: str
    facts: Sequence[tuple[str, str]]
    sections: Sequence[Section]
    has_pictures: bool

    def as_json(self) -> str:
        """All of it but the pictures."""
        sections = {
            each.name: {"title": each.title, "rows": [dict(row) for row in each.rows]} for each in self.sections
        }
        told = {"title": self.title, "facts": dict(self.facts), "sections": sections}
        return json.dumps(told, ensure_ascii=False, indent=1, default=str) + "\n"

    def as_markdown(self) -> str:
        """All of it but the pictures, for where people write."""
        parts = [f"# {self.title}", "\n".join(f"- {_plain(what)}: {_plain(value)}" for what, value in self.facts)]
        for each in self.sections:
            parts += [f"## {each.title}", each.text]
            if each.rows:
                parts.append("\n".join(_markdown_table(each)))
        return "\n\n".join(parts) + "\n"

    def as_html(self) -> str:
        """The page, with pictures in it."""
        facts = "".join(f"<dt>{escape(what)}</dt><dd>{escape(value)}</dd>" for what, value in self.facts)
        missing = "" if self.has_pictures else f"<p class=note>{NO_PICTURES}</p>"
        body = "\n".join(map(self._html_section, self.sections))
        return (
            '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
            '<meta name="viewport" content="width=device-width">'
            f"<title>{escape(self.title)}</title><style>{_STYLE}</style></head>\n"
            f"<body><h1>{escape(self.title)}</h1><dl>{facts}</dl>{missing}\n{body}\n</body></html>\n"
        )

    def _html_section(self, section: Section) -> str:
        drawn = [each for each in section.charts if self.has_pictures and not each.is_empty]
        charts = f"<div class=charts>{''.join(map(_picture, drawn))}</div>" if drawn else ""
        table = "".join(_html_table(section)) if section.rows else ""
        if len(section.rows) > ROWS_OPEN_MAX:
            table = f"<details><summary>{len(section.rows):,} rows</summary>{table}</details>"
        return (
            f'<h2 id="{escape(section.name)}">{escape(section.title)}</h2><p>{escape(section.text)}</p>{charts}{table}'
        )


def _picture(chart: Chart) -> str:
    data = base64.b64encode(draw(chart)).decode()
    return f'<img alt="{escape(chart.title)}" src="data:image/svg+xml;base64,{data}">'


def _html_table(section: Section) -> Iterable[str]:
    numbers = _numbers(section)
    marks = {name: " class=n" if name in numbers else "" for name in section.columns}
    yield "<div class=wide><table><tr>"
    yield from (f"<th{marks[name]}>{escape(heading)}</th>" for name, heading in section.columns.items())
    yield "</tr>"
    for row in section.cells[:ROWS_SHOWN_MAX]:
        cells = (f"<td{marks[name]}>{escape(cell(name, row.get(name)))}</td>" for name in section.columns)
        yield f"<tr>{''.join(cells)}</tr>"
    yield "</table></div>"
    if len(section.rows) > ROWS_SHOWN_MAX:
        yield f"<p class=note>{len(section.rows) - ROWS_SHOWN_MAX:,} more rows are in report.json.</p>"


def _markdown_table(section: Section) -> Iterable[str]:
    numbers = _numbers(section)
    yield f"| {' | '.join(map(_plain, section.columns.values()))} |"
    yield f"|{'|'.join('---:' if name in numbers else '---' for name in section.columns)}|"
    for row in section.cells[:ROWS_SHOWN_MAX]:
        yield f"| {' | '.join(_plain(cell(name, row.get(name))) for name in section.columns)} |"


def _numbers(section: Section) -> set[str]:
    """The columns that have numbers, which are to the right."""
    return {name for name in section.columns if not any(isinstance(row.get(name), str) for row in section.rows)}


def _plain(text: str) -> str:
    """A text that cannot be taken for Markdown's marks."""
    return " ".join(text.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;").split())
