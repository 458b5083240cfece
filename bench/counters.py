"""A node's counters: so many keys that they encode to a given size, as a dict, as a partial, and as a CSV file.

And what a round over them took after the files were read, as the event log says.
"""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from peerd.ids import NodeId
from protocols.aggregation.answer import Answer
from protocols.aggregation.groups import Grouped
from protocols.aggregation.partial import ExtractionReport, Partial
from protocols.aggregation.query import parse_query
from protocols.aggregation.registry import function_named

QUERY: Final = parse_query("sum(value) by key", files="*.csv")
VALUE_MAX: Final = 1_000_000
_CALIBRATION_GROUPS: Final = 4000

Counters = Mapping[str, int]


def counters(count: int, seed: int) -> Counters:
    """``count`` counters: the same keys for every seed, other values."""
    rng = random.Random(seed)
    return {f"k{number:06d}": rng.randrange(1, VALUE_MAX) for number in range(count)}


def count_for(size_bytes: int) -> int:
    """How many counters encode to about ``size_bytes``."""
    sample_bytes = len(partial(counters(_CALIBRATION_GROUPS, 0), 1).encode())
    return round(size_bytes * _CALIBRATION_GROUPS / sample_bytes)


def partial(values: Counters, contributor: int) -> Partial:
    """What the node with that id contributes."""
    function = function_named("sum")
    grouped = Grouped(function, QUERY.groups_max)
    groups = {key: function.lift(value) for key, value in values.items()}
    zero = grouped.zero
    report = ExtractionReport(records=len(values), records_selected=len(values))
    return Partial.of(QUERY, NodeId(contributor), type(zero)(groups, zero.remainder), report)


def write_csv(values: Counters, file: Path) -> None:
    """The file that `QUERY` reads."""
    file.parent.mkdir(parents=True, exist_ok=True)
    lines = ["key,value", *(f"{key},{value}" for key, value in values.items())]
    file.write_text("\n".join(lines) + "\n", "utf-8")


def after_reading_s(events: Path, rounds: Sequence[Answer]) -> list[float]:
    """From when the last node had read its files to the answer, as the event log says."""
    extracted: dict[str, float] = {}
    finished: dict[str, float] = {}
    for file in events.rglob("*.ndjson*"):
        data = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
        for line in data.splitlines():
            event: dict[str, Any] = json.loads(line)
            if event["event"] == "aggregation.extracted":
                extracted[event["round"]] = max(event["ts"], extracted.get(event["round"], 0.0))
            elif event["event"] == "aggregation.round_finished":
                finished[event["round"]] = event["ts"]
    return [finished[each.round] - extracted[each.round] for each in rounds]
