"""The actions that a scenario may ask of this plugin: to use numbers instead of files, and to start rounds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from peerd.errors import ConfigError, Unavailable
from peerd.front import Report as Reporter
from peerd.ids import NodeId, format_id
from peerd.quantities import parse_duration, parse_size
from peerd.sim.simulation import Place
from protocols.aggregation.answer import Answer
from protocols.aggregation.exchange import Extractor
from protocols.aggregation.functions import Input
from protocols.aggregation.groups import Grouped, key_of
from protocols.aggregation.partial import Extraction, ExtractionReport
from protocols.aggregation.plugin import Aggregation
from protocols.aggregation.query import Query, parse_query
from protocols.aggregation.registry import function_of
from protocols.aggregation.requester import RoundListener


def one_record(group: str) -> Extractor:
    """Extraction without files: one record, whose every number is 1 and whose every text is ``group``."""

    def run(query: Query, own: NodeId) -> Extraction:
        inputs = {Input.TEXT: group, Input.VECTOR: (1,)}
        values = [inputs.get(function_of((call,)).takes, 1) for call in query.calls]
        value = values[0] if len(values) == 1 else values
        grouped, key = Grouped(query.function, query.groups_max), key_of([group] * len(query.by))
        state = grouped.lift(key, value) if query.by else query.function.lift(value)
        return Extraction(state, ExtractionReport(records=1, records_selected=1))

    return run


def plugin_of(place: Place) -> Aggregation:
    """The plugin of a simulated node. Raises ``KeyError`` when the node runs without it."""
    return cast(Aggregation, place.node.plugins[Aggregation.name])


def give_numbers(place: Place, arguments: Mapping[str, Any], report: Reporter) -> None:
    """Action ``numbers``: this node contributes one record; each value weighs ``value_bytes`` (such as "1MiB")."""
    _check_arguments(arguments, {"value_bytes"})
    plugin = plugin_of(place)
    plugin.data.extractor = one_record(format_id(place.id))
    plugin.data.padding_bytes = parse_size(arguments.get("value_bytes", "0B"))


def ask(place: Place, arguments: Mapping[str, Any], report: Reporter) -> None:
    """Action ``aggregate``: one round; its answer becomes a row of the report."""
    _check_arguments(arguments, {"query", "deadline"})
    deadline_s = parse_duration(arguments["deadline"]) if "deadline" in arguments else None

    def finished(answer: Answer) -> None:
        report(
            {
                "outcome": answer.outcome,
                "value": answer.value if isinstance(answer.value, int | float) else None,
                "contributors": answer.contributors,
                "expected": answer.expected,
                "missing": answer.missing_count,
                "duration_s": round(answer.duration_s, 6),
                "moved_bytes": answer.moved_bytes,
            }
        )

    try:
        plugin_of(place).requesting.aggregate(
            parse_query(arguments.get("query", "count")), RoundListener(finished), deadline_s
        )
    except Unavailable as error:
        report({"outcome": "unavailable", "reason": str(error)})


def _check_arguments(arguments: Mapping[str, Any], known: set[str]) -> None:
    for name in sorted(set(arguments) - known):
        raise ConfigError(f"unknown argument; known here: {', '.join(sorted(known))}", key=f"arguments.{name}")
