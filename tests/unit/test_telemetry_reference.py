"""``docs/telemetry.md`` lists every event and every metric, generated from the code.

``python tests/unit/test_telemetry_reference.py`` writes the generated parts anew.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from msgspec import defstruct

import peerd
from peerd.api import Metric, Plugin
from peerd.errors import Bug, ConfigError
from peerd.limits import EVENT_TEXT_LENGTH_MAX
from peerd.plugins import find_plugins
from peerd.telemetry.metrics import check_metric
from peerd.telemetry.schema import COMMON_FIELDS, Event, NodeReady, NodeStopped, field_types, json_schema, union

PAGE = Path(__file__).resolve().parents[2] / "docs" / "telemetry.md"
NOT_IMPORTED = ("peerd.pipeline", "peerd.cli", "peerd.__main__")
"""They declare no metric; the pipeline needs an extra."""


def event_reference() -> str:
    lines = ["| Common field | Type | Meaning |", "|---|---|---|"]
    lines += [f"| `{name}` | {kind.__name__} | {meaning} |" for name, (kind, meaning) in COMMON_FIELDS.items()]
    lines += ["", "| Event | Recorded when | Fields |", "|---|---|---|"]
    for kind, event_type in in_the_tree().items():
        fields = ", ".join(
            f"`{name}`{'' if python_type is str else f' {python_type.__name__}'}{' or null' if may_be_null else ''}"
            for name, (python_type, may_be_null) in field_types(event_type).items()
        )
        meaning = " ".join((event_type.__doc__ or "").replace("``", "`").split())
        lines.append(f"| `{kind}` | {meaning} | {fields} |")
    return "\n".join(lines)


def in_the_tree() -> dict[str, type[Event]]:
    """The events of the core and of the plugins in this repository."""
    ours = {name: plugin for name, plugin in find_plugins().items() if plugin.__module__.startswith("protocols.")}
    return union({name: plugin.events for name, plugin in ours.items()})


def metric_reference() -> str:
    rows = [
        f"| `{metric.name}` | {metric.kind} | {', '.join(metric.labels) or '-'} | {metric.help} |"
        for metric in declared_metrics()
    ]
    return "\n".join(["| Metric | Kind | Labels | Meaning |", "|---|---|---|---|", *rows])


def declared_metrics() -> list[Metric]:
    """Every metric that a module or a plugin of ours declares, by name."""
    find_plugins()
    found: dict[str, Metric] = {}
    for module in pkgutil.walk_packages(peerd.__path__, "peerd.", onerror=_refuse):
        if not module.name.startswith(NOT_IMPORTED):
            for metric in _metrics_in(vars(importlib.import_module(module.name)).values()):
                found[metric.name] = metric
    for plugin in _subclasses(Plugin):
        if plugin.__module__.startswith(("peerd.", "protocols.")):
            found |= {metric.name: metric for metric in plugin.metrics}
    return [found[name] for name in sorted(found)]


def _metrics_in(values: Any) -> Iterator[Metric]:
    for value in values:
        if isinstance(value, Metric):
            yield value
        elif isinstance(value, tuple):
            yield from (item for item in value if isinstance(item, Metric))


def _subclasses(plugin: type[Plugin]) -> Iterator[type[Plugin]]:
    for subclass in plugin.__subclasses__():
        yield subclass
        yield from _subclasses(subclass)


def _refuse(name: str) -> None:
    raise ImportError(name)


def rewrite(text: str) -> str:
    """The page with its generated parts made anew."""
    for name, part in (("events", event_reference()), ("metrics", metric_reference())):
        begin, end = f"<!-- generated: {name} -->\n", f"<!-- end of {name} -->\n"
        before, found, rest = text.partition(begin)
        _, closed, after = rest.partition(end)
        assert found and closed, f"{PAGE.name} has no place for the generated {name}"
        text = f"{before}{begin}{part}\n{end}{after}"
    return text


def test_the_page_says_what_the_code_says() -> None:
    text = PAGE.read_text("utf-8")
    assert text == rewrite(text), "run: python tests/unit/test_telemetry_reference.py"


def test_every_event_says_when_it_is_recorded() -> None:
    for event_type in in_the_tree().values():
        assert (event_type.__doc__ or "").strip() not in ("", (Event.__doc__ or "").strip()), event_type.KIND


def test_every_declared_metric_follows_the_naming_rules() -> None:
    metrics = declared_metrics()
    assert len(metrics) > 20
    for metric in metrics:
        check_metric(metric)


@pytest.mark.parametrize(("annotation", "offence"), [(int | str | None, "one type"), (list[int], "plain type")])
def test_an_event_field_has_one_plain_type(annotation: Any, offence: str) -> None:
    unregistered = defstruct("Unregistered", [("field", annotation)])
    with pytest.raises(Bug, match=offence):
        field_types(cast(type[Event], unregistered))


def test_a_text_of_somebody_else_is_cut_in_its_record() -> None:
    event = NodeStopped(reason="x" * (EVENT_TEXT_LENGTH_MAX + 1), uptime_s=1.5)
    assert event.columns() == {"reason": "x" * EVENT_TEXT_LENGTH_MAX, "uptime_s": 1.5}


class Shouted(Event):
    """A peer that is a number."""

    KIND = "stranger.shouted"
    peer: int


class Numbered(Event):
    """Reuses a name of every event."""

    KIND = "stranger.numbered"
    boot: int


@pytest.mark.parametrize(
    ("events", "offence"),
    [
        ((Shouted,), r"protocols\.stranger: the field peer is int in .*stranger\.shouted and str in link\.up"),
        ((Numbered,), r"the field boot is int in the event stranger\.numbered and int in every event"),
        ((NodeReady,), r"the event node\.ready is NodeReady already"),
    ],
)
def test_events_that_clash_are_refused_by_name(events: tuple[type[Event], ...], offence: str) -> None:
    with pytest.raises(ConfigError, match=offence):
        union({"stranger": events})


def test_every_event_is_declared_by_the_core_or_by_its_plugin() -> None:
    declared = set(in_the_tree().values())
    written = {event for event in _subclasses_of(Event) if event.__module__.startswith(("peerd.", "protocols."))}
    assert written == declared


def _subclasses_of(event: type[Event]) -> Iterator[type[Event]]:
    for subclass in event.__subclasses__():
        yield subclass
        yield from _subclasses_of(subclass)


def test_the_json_schema_describes_each_kind() -> None:
    events = in_the_tree()
    schema = json_schema(events)
    assert list(schema["properties"]) == schema["required"] == list(COMMON_FIELDS)
    by_kind = {part["if"]["properties"]["event"]["const"]: part["then"] for part in schema["allOf"]}
    assert list(by_kind) == list(events)
    assert by_kind["overlay.lookup_finished"]["properties"] == {
        "key": {"type": "string"},
        "root": {"type": ["string", "null"]},
        "hops": {"type": "integer"},
        "duration_s": {"type": "number"},
    }


if __name__ == "__main__":
    PAGE.write_text(rewrite(PAGE.read_text("utf-8")), "utf-8")
