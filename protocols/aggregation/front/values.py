"""Answers of functions on a terminal."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

from peerd.cli.output import Terminal, number, print_table
from peerd.words import counted
from protocols.aggregation.figures import Estimate, Figure, Figures, GroupedAnswer, HistogramFigure, Listing

BAR_WIDTH: Final = 40
"""Characters of the longest bar of a histogram."""


def print_value(value: Figure | Figures | GroupedAnswer, console: Terminal, by: Sequence[str] = ()) -> None:
    """Print the value of an answer; ``by``: the fields whose values its groups are."""
    if isinstance(value, GroupedAnswer):
        _print_groups(value, console, by)
    elif isinstance(value, Figures):
        rows = [(name, text_of_figure(each)) for name, each in value.figures.items()]
        print_table(console, ("function", "value"), rows, numbers=("value",))
    elif isinstance(value, HistogramFigure):
        _print_histogram(value, console)
    else:
        console.print("no data" if value is None else text_of_figure(value), "bold")


def text_of_figure(figure: Figure) -> str:
    """The answer of a function on one line."""
    if figure is None:
        return "-"
    if isinstance(figure, Estimate):
        return f"{_short(figure.estimate)} ({_short(figure.low)} to {_short(figure.high)})"
    if isinstance(figure, HistogramFigure):
        return ", ".join(f"{count:,} {where}" for where, count in _places(figure))
    if isinstance(figure, Listing):
        values = [each if isinstance(each, str) else number(each) for each in figure.values]
        return ", ".join(values) + (", and more" if figure.more else "")
    return number(figure)


def keys_of(group: str, count: int) -> list[str]:
    """The values of a group's ``count`` fields."""
    if count <= 1:
        return [group]
    try:
        keys = json.loads(group)
    except ValueError:
        keys = None
    # Every group of an honest node is such an array; one that is not is shown as it came.
    is_keys = isinstance(keys, list) and len(keys) == count and all(isinstance(key, str) for key in keys)
    return keys if is_keys else [group, *[""] * (count - 1)]


def _short(value: float | int) -> str:
    return number(value) if isinstance(value, int) else number(float(f"{value:.4g}"))


def _places(histogram: HistogramFigure) -> list[tuple[str, int]]:
    """The counts of a histogram, each with the place that it is of."""
    edges = list(map(number, histogram.edges))
    between = [f"from {low} to {high}" for low, high in pairwise(edges)]
    return list(zip([f"below {edges[0]}", *between, f"from {edges[-1]}"], histogram.counts, strict=True))


def _print_histogram(histogram: HistogramFigure, console: Terminal) -> None:
    most = max(histogram.counts) or 1
    rows = [(where, f"{count:,}", "#" * round(BAR_WIDTH * count / most)) for where, count in _places(histogram)]
    print_table(console, ("value", "records", ""), rows, numbers=("records",))


def _print_groups(value: GroupedAnswer, console: Terminal, by: Sequence[str]) -> None:
    names = list(by) if len(by) > 1 else ["group"]
    figures = {
        group: each.figures if isinstance(each, Figures) else {"value": each} for group, each in value.groups.items()
    }
    heads = list(next(iter(figures.values()), {"value": None}))
    rows = [
        (*keys_of(group, len(names)), *(text_of_figure(each.get(head)) for head in heads))
        for group, each in figures.items()
    ]
    print_table(console, (*names, *heads), rows, numbers=tuple(heads))
    hidden = value.groups_total - len(value.groups)
    if hidden > 0:
        console.print(f"and {counted(hidden, 'group')} more (--top)")
    if not value.exact:
        rest = value.remainder
        texts = rest.figures if isinstance(rest, Figures) else {} if rest is None else {"": rest}
        together = [f"{name} {text_of_figure(each)}".strip() for name, each in texts.items()]
        remainder = f", together {', '.join(together)}" if together else ""
        console.print(
            f"not exact: up to {counted(value.remainder_groups_max, 'group')} folded away{remainder} (--groups-max)"
        )
