"""What a reload would do, as a comparison of two configurations; no daemon, no clock."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st
from pydantic import BaseModel

import peerd
from peerd.api import PluginConfig
from peerd.config import HIDDEN, LoadedConfig, PeerdConfig, load_config
from peerd.config.reload import Change, plan_reload
from peerd.config.sources import PROTOCOLS
from peerd.overlay.config import OverlayConfig
from peerd.plugins import find_plugins, plugin_models
from peerd.quantities import Duration, reloads, setting
from peerd.swap.config import SwapConfig

PACKAGE = Path(peerd.__file__).parent
OPERATING = PACKAGE.parent / "docs" / "operating.md"


def reloading_keys(plugins: Mapping[str, type[BaseModel]] | None = None) -> Iterator[str]:
    """Every dotted key whose new value a running daemon takes, in the order of the configuration, plugins included."""
    for name, field in PeerdConfig.model_fields.items():
        model = field.annotation
        if isinstance(model, type) and issubclass(model, BaseModel):
            yield from (f"{name}.{key}" for key, inner in model.model_fields.items() if reloads(inner))
    for name, model in sorted((plugins or {}).items()):
        yield from (f"{PROTOCOLS}.{name}.{key}" for key, inner in model.model_fields.items() if reloads(inner))


class NotesConfig(PluginConfig):
    """A plugin's table with a key of each sort."""

    patience: Duration = setting("2s", "Reloads.", reloads=True)
    folder: str = setting("", "Needs a restart.")
    password: str = setting("", "Nobody is to see it.", reloads=True, secret=True)


def loaded(*sets: str) -> LoadedConfig:
    return load_config(environment={}, sets=sets, plugin_models={"notes": NotesConfig})


def keys(changes: tuple[Change, ...]) -> list[str]:
    return [change.key for change in changes]


def test_nothing_changed() -> None:
    plan = plan_reload(loaded(), loaded())
    assert (plan.applied, plan.needs_restart, plan.conflict) == ((), (), "")
    assert plan.loaded.config == loaded().config


def test_a_key_that_reloads_is_applied_and_told_with_both_values_and_its_place() -> None:
    plan = plan_reload(loaded(), loaded("telemetry.log_level=debug", "limits.send_queue_bytes=1MiB"))
    assert plan.applied == (
        Change("telemetry.log_level", '"info"', '"debug"', "flag --set"),
        Change("limits.send_queue_bytes", '"4MiB"', '"1MiB"', "flag --set"),
    )
    assert plan.needs_restart == ()
    assert plan.loaded.config.telemetry.log_level == "debug"
    assert plan.loaded.origins["telemetry.log_level"] == "flag --set"


def test_a_key_that_needs_a_restart_keeps_its_value_and_its_place() -> None:
    plan = plan_reload(loaded(), loaded("node.listen=127.0.0.1:9", "overlay.settle=1s"))
    assert keys(plan.applied) == ["overlay.settle"]
    assert plan.needs_restart == (Change("node.listen", '"0.0.0.0:7420"', '"127.0.0.1:9"', "flag --set"),)
    assert plan.loaded.config.node.listen == "0.0.0.0:7420"
    assert plan.loaded.origins["node.listen"] == "default"
    assert plan.loaded.config.overlay.settle == 1.0


def test_what_was_put_back_no_longer_waits_for_a_restart() -> None:
    first = plan_reload(loaded(), loaded("node.listen=127.0.0.1:9"))
    assert plan_reload(first.loaded, loaded()).needs_restart == ()


def test_keys_that_do_not_fit_the_values_that_stay_wait_together_with_them() -> None:
    """overlay.failure_timeout, which needs a restart, must be at least twice overlay.heartbeat_interval."""
    wanted = loaded("overlay.heartbeat_interval=20s", "overlay.failure_timeout=1m", "telemetry.log_level=debug")
    plan = plan_reload(loaded(), wanted)
    assert plan.applied == ()
    assert keys(plan.needs_restart) == [
        "overlay.heartbeat_interval",
        "overlay.failure_timeout",
        "telemetry.log_level",
    ]
    assert "overlay.failure_timeout" in plan.conflict and "40s" in plan.conflict
    assert plan.loaded.config == loaded().config


def test_tables_of_plugins_follow_the_marks_of_their_fields() -> None:
    plan = plan_reload(loaded(), loaded("protocols.notes.patience=5s", "protocols.notes.folder=/srv"))
    assert plan.applied == (Change("protocols.notes.patience", '"2s"', '"5s"', "flag --set"),)
    assert plan.needs_restart == (Change("protocols.notes.folder", '""', '"/srv"', "flag --set"),)
    notes = plan.loaded.config.protocols["notes"]
    assert isinstance(notes, NotesConfig)
    assert (notes.patience, notes.folder) == (5.0, "")


def test_the_value_of_a_secret_is_never_shown() -> None:
    before, after = loaded("protocols.notes.password=one"), loaded("protocols.notes.password=two")
    plan = plan_reload(before, after)
    assert plan.applied == (Change("protocols.notes.password", HIDDEN, HIDDEN, "flag --set"),)
    assert {key: value for key, value, _ in after.rows()}["protocols.notes.password"] == HIDDEN
    assert "two" not in repr(plan.applied)


CHOICES = {
    "node.listen": ["127.0.0.1:1", "127.0.0.1:2"],
    "node.bootstrap": ["a:1", "a:1,b:2"],
    "telemetry.log_level": ["debug", "error"],
    "limits.links_max": ["64", "65"],
    "overlay.settle": ["1s", "2s"],
    "overlay.vouch_delay": ["5s", "6s"],
    "records.replicas": ["4", "5"],
    "protocols.notes.patience": ["3s", "4s"],
    "protocols.notes.folder": ["/a", "/b"],
}


@st.composite
def some_sets(draw: st.DrawFn) -> list[str]:
    """Some settings, each with one of its values."""
    chosen = draw(st.lists(st.sampled_from(sorted(CHOICES)), unique=True))
    return [f"{key}={draw(st.sampled_from(CHOICES[key]))}" for key in chosen]


def rows(config: LoadedConfig) -> dict[str, tuple[Any, str]]:
    """Value and origin of each key."""
    return {key: (value, origin) for key, value, origin in config.rows()}


@given(some_sets(), some_sets())
def test_afterwards_each_key_is_as_wanted_or_named_as_waiting(before: list[str], after: list[str]) -> None:
    running, wanted = loaded(*before), loaded(*after)
    plan = plan_reload(running, wanted)
    live = set(reloading_keys({"notes": NotesConfig}))
    old, new, now = (rows(each) for each in (running, wanted, plan.loaded))
    for key in now:
        waits = key in keys(plan.needs_restart)
        assert now[key] == (old[key] if waits else new[key])
        assert waits == (old[key][0] != new[key][0] and key not in live)
    again = plan_reload(plan.loaded, wanted)
    assert (again.applied, again.needs_restart) == ((), plan.needs_restart)
    assert plan_reload(plan.loaded, running).needs_restart == (), "what was put back is as it was"


@pytest.mark.parametrize(
    "key",
    [
        "telemetry.log_level",
        "telemetry.sink",
        "limits.links_max",
        "limits.peer_messages_per_second",
        "limits.accepts_per_second",
        "data.connections_max",
        "data.cors_origins",
        "data.tls_certificate",
        "admin.operators",
        "node.bootstrap",
        "node.allowed_networks",
        "overlay.route_deadline",
        "swap.stall_timeout",
        "protocols.notes.patience",
    ],
)
def test_what_operators_expect_to_reload_does(key: str) -> None:
    assert key in list(reloading_keys({"notes": NotesConfig}))


def test_nobody_changes_who_a_node_is_while_it_runs() -> None:
    live = list(reloading_keys())
    for key in ("node.cluster", "node.listen", "node.state_dir", "tls.mode", "tls.key_file", "admin.socket"):
        assert key not in live


@pytest.mark.parametrize(("package", "model"), [("overlay", OverlayConfig), ("swap", SwapConfig)])
def test_a_field_that_reloads_is_never_copied_when_an_object_is_made(package: str, model: type[BaseModel]) -> None:
    """What ``__init__`` copies would stay as it was; sessions and rounds that begin later may copy."""
    marked = {name for name, field in model.model_fields.items() if reloads(field)}
    assert marked
    offences = [
        f"{path.name}:{line} copies {name}"
        for path in sorted((PACKAGE / package).rglob("*.py"))
        for line, name in copied(ast.parse(path.read_text("utf-8")))
        if name in marked and (path.name, name) not in PER_SESSION
    ]
    assert not offences


PER_SESSION = {("session.py", "progress_bytes"), ("join.py", "join_retry_min")}
"""A swap that began goes on as it began; a pause that doubles begins anew with every round."""


def copied(tree: ast.AST) -> list[tuple[int, str]]:
    """Fields of something called config that a constructor reads."""
    constructors = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name == "__init__"]
    return [
        (node.lineno, node.attr)
        for constructor in constructors
        for node in ast.walk(constructor)
        if isinstance(node, ast.Attribute) and ast.unparse(node.value).endswith("config")
    ]


def test_the_check_for_copies_bites() -> None:
    source = "class A:\n    def __init__(self, state):\n        self.x = state.config.settle\n"
    assert copied(ast.parse(source)) == [(3, "settle")]


# The operators' page --------------------------------------------------------------------------------------


BEGIN, END = "<!-- keys that reload: from the marks in the code -->\n", "<!-- end of keys that reload -->\n"


def reload_table() -> str:
    """Per table of the configuration: what a reload applies; the rest needs a restart."""
    models = {name: model for name, model in plugin_models(find_plugins()).items() if is_ours(model)}
    live = set(reloading_keys(models))
    tables: dict[str, Any] = {
        name: info.annotation for name, info in PeerdConfig.model_fields.items() if name != PROTOCOLS
    }
    tables |= {f"{PROTOCOLS}.{name}": model for name, model in sorted(models.items())}
    lines = ["| table | a reload applies |", "| --- | --- |"]
    for table, model in tables.items():
        applied = [f"`{key}`" for key in model.model_fields if f"{table}.{key}" in live]
        waiting = [f"`{key}`" for key in model.model_fields if f"{table}.{key}" not in live]
        lines.append(f"| `{table}` | {listed(applied, waiting)} |")
    return "\n".join(lines) + "\n"


def is_ours(model: type[BaseModel]) -> bool:
    return model.__module__.startswith("protocols.")


def listed(applied: list[str], waiting: list[str]) -> str:
    """The shorter of the two lists: what is applied, or what is not."""
    if len(waiting) < len(applied):
        return f"all but {', '.join(waiting)}" if waiting else "all"
    return ", ".join(applied) or "none"


def test_the_operators_page_has_the_keys_that_reload() -> None:
    """``python tests/unit/test_config_reload.py`` writes the table anew."""
    text = OPERATING.read_text("utf-8")
    assert text.partition(BEGIN)[2].partition(END)[0] == reload_table()


if __name__ == "__main__":
    page = OPERATING.read_text("utf-8")
    head, _, rest = page.partition(BEGIN)
    OPERATING.write_text(head + BEGIN + reload_table() + END + rest.partition(END)[2], "utf-8")
