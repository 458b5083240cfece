"""Draws charts with matplotlib (the extra ``lab``). The same chart gives the same bytes, so a rerun makes no diff."""

from __future__ import annotations

import importlib
import io
from typing import Any, Final

from peerd.errors import Unavailable
from peerd.lab.charts import Chart

COLOURS: Final = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#F0E442")
"""Okabe and Ito (2008): told apart by people with any kind of colour vision."""
GREY: Final = "#767676"
MARKERS: Final = "osD^vPX*"
STYLE: Final = {
    "svg.hashsalt": "peerd",
    "svg.fonttype": "none",
    "figure.figsize": (7.2, 4.2),
    "figure.facecolor": "white",
    "savefig.facecolor": "white",
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.color": "#DDDDDD",
    "font.family": "sans-serif",
    "legend.frameon": False,
    "text.parse_math": False,  # what is between two dollars is as it is
}
NO_METADATA: Final = {"svg": {"Date": None, "Creator": None}, "png": {"Software": None}}
PNG_DPI: Final = 150
MARKED_MAX: Final = 100
"""The points of a longer line are not marked."""
ROWS_NAMED_MAX: Final = 24
"""For more rows of spans there is no room to name each."""
HEADROOM: Final = 1.08
"""An axis ends this much higher than the highest point."""


def require() -> None:
    """Raises `Unavailable`, saying what to install, when there is nothing to draw with."""
    _matplotlib()


def _matplotlib() -> Any:
    try:
        return importlib.import_module("matplotlib")
    except ImportError:
        raise Unavailable("charts need matplotlib: pip install 'peerd[lab]' (or leave them out: --no-charts)") from None


def draw(chart: Chart, kind: str = "svg") -> bytes:
    """Draw a chart and return the file's content; ``kind`` is "svg" or "png"."""
    matplotlib = _matplotlib()
    figures = importlib.import_module("matplotlib.figure")
    with matplotlib.rc_context({**matplotlib.rcParamsDefault, **STYLE}):
        figure = figures.Figure(layout="constrained")
        axes = figure.subplots()
        if chart.spans:
            _draw_spans(axes, chart)
        elif chart.stacks:
            _draw_bars(axes, chart)
        else:
            _draw_lines(axes, chart)
        axes.set_title(chart.title, loc="left")
        axes.set_xlabel(chart.x)
        axes.set_ylabel(chart.y)
        handles, labels = axes.get_legend_handles_labels()
        if chart.stacks:
            # The legend then lists the parts of a bar from the top down, as they lie on each other.
            handles, labels = handles[::-1], labels[::-1]
        figure.legend(handles, labels, loc="outside right upper" if len(labels) > 1 else "outside lower left")
        file = io.BytesIO()
        figure.savefig(file, format=kind, dpi=PNG_DPI, metadata=NO_METADATA[kind])
    return file.getvalue()


def _draw_lines(axes: Any, chart: Chart) -> None:
    measured = 0
    for line in chart.lines:
        x = [point[0] for point in line.points]
        y = [point[1] for point in line.points]
        if line.is_reference:
            axes.plot(x, y, color=GREY, linestyle="--", label=line.label)
            continue
        colour, marker = COLOURS[measured % len(COLOURS)], MARKERS[measured % len(MARKERS)]
        measured += 1
        axes.plot(x, y, color=colour, marker=marker if len(x) <= MARKED_MAX else "", markersize=5, label=line.label)
        if any(low != high for _, _, low, high in line.points):
            lowest, highest = [point[2] for point in line.points], [point[3] for point in line.points]
            axes.fill_between(x, lowest, highest, color=colour, alpha=0.2, linewidth=0)
    if chart.x_is_log:
        axes.set_xscale("log")
    if chart.x_ticks:
        axes.set_xticks(chart.x_ticks, [f"{tick:,g}" if tick < 1e6 else f"{tick:g}" for tick in chart.x_ticks])
        axes.set_xticks([], minor=True)
    if chart.y_is_log:
        axes.set_yscale("log")
    else:
        axes.set_ylim(
            0, HEADROOM * max((point[3] for line in chart.lines for point in line.points), default=1.0) or 1.0
        )


def _draw_bars(axes: Any, chart: Chart) -> None:
    bottoms = [0.0] * len(chart.categories)
    for number, stack in enumerate(chart.stacks):
        look = {"label": stack.label, "color": COLOURS[number % len(COLOURS)], "edgecolor": "white", "linewidth": 0.5}
        if chart.lies_down:
            axes.barh(chart.categories, stack.heights, left=bottoms, height=0.6, **look)
        else:
            axes.bar(chart.categories, stack.heights, bottom=bottoms, width=0.6, **look)
        bottoms = [bottom + height for bottom, height in zip(bottoms, stack.heights, strict=True)]
    if chart.lies_down:
        axes.invert_yaxis()
    axes.grid(visible=False, axis="y" if chart.lies_down else "x")


def _draw_spans(axes: Any, chart: Chart) -> None:
    rows = list(dict.fromkeys(span.row for span in chart.spans))
    for number, label in enumerate(dict.fromkeys(span.label for span in chart.spans)):
        spans = [span for span in chart.spans if span.label == label]
        axes.barh(
            [rows.index(span.row) for span in spans],
            [span.end - span.begin for span in spans],
            left=[span.begin for span in spans],
            height=0.7,
            label=label,
            color=COLOURS[number % len(COLOURS)],
        )
    if len(rows) <= ROWS_NAMED_MAX:
        axes.set_yticks(range(len(rows)), rows)
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
