"""Compares a new configuration with the running one: which keys changed, which of them apply, which need a restart.

The mark on each field (``setting(..., reloads=True)``) decides. Nothing here reads a file or changes a daemon:
`plan_reload` compares two configurations.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel, ValidationError

from peerd.config import HIDDEN, LoadedConfig, PeerdConfig
from peerd.config.sources import PROTOCOLS, toml_value
from peerd.frozen import Frozen
from peerd.invalid import reason
from peerd.quantities import is_secret, reloads


class Change(Frozen):
    """One key whose value differs. ``old`` and ``new`` are in the notation of the file; secrets are `HIDDEN`."""

    key: str
    old: str
    new: str
    origin: str
    """Where the new value comes from, such as a file and its line."""


class ReloadPlan(Frozen):
    """What a reload would do."""

    loaded: LoadedConfig
    """The configuration in force afterwards: the new one, with the running values of what needs a restart."""
    applied: tuple[Change, ...]
    needs_restart: tuple[Change, ...]
    conflict: str = ""
    """Why even keys that could be applied wait for the restart: they do not fit the values that stay till then."""


class _Difference(Frozen):
    change: Change
    path: tuple[str, ...]
    value: Any
    applies: bool


def plan_reload(running: LoadedConfig, wanted: LoadedConfig) -> ReloadPlan:
    """Compare the configuration in force with the one that was just read, which is valid by itself."""
    found = list(_differences(running.config, wanted))
    live = [each for each in found if each.applies]
    try:
        config = _with(running.config, live)
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        key = problem.get("ctx", {}).get("key", "")
        conflict = f"{key}: {reason(problem)}" if key else reason(problem)
        return ReloadPlan(running, (), tuple(each.change for each in found), conflict)
    waiting = tuple(each.change for each in found if not each.applies)
    origins = _origins(running.origins, wanted.origins, [change.key for change in waiting])
    return ReloadPlan(LoadedConfig(config, origins), tuple(each.change for each in live), waiting)


def _differences(running: PeerdConfig, wanted: LoadedConfig) -> Iterator[_Difference]:
    for name in PeerdConfig.model_fields:
        if name == PROTOCOLS:
            for plugin, model in running.protocols.items():
                if plugin in wanted.config.protocols:
                    path = (PROTOCOLS, plugin)
                    yield from _of_table(model, wanted.config.protocols[plugin], path, wanted.origins)
        else:
            yield from _of_table(getattr(running, name), getattr(wanted.config, name), (name,), wanted.origins)


def _of_table(
    old: BaseModel, new: BaseModel, path: tuple[str, ...], origins: Mapping[str, str]
) -> Iterator[_Difference]:
    shown_old, shown_new = old.model_dump(), new.model_dump()
    for name, field in type(old).model_fields.items():
        value = getattr(new, name)
        if getattr(old, name) == value:
            continue
        key = ".".join((*path, name))
        told = [HIDDEN if is_secret(field) else _shown(shown[name]) for shown in (shown_old, shown_new)]
        change = Change(key, told[0], told[1], _origin(origins, key))
        yield _Difference(change, (*path, name), value, reloads(field))


def _shown(value: object) -> str:
    return "none" if value is None else toml_value(value)


def _with(running: PeerdConfig, changes: list[_Difference]) -> PeerdConfig:
    """The running configuration with these values. Raises ``ValidationError`` when they do not fit the others."""
    sections: dict[str, Any] = {name: getattr(running, name) for name in PeerdConfig.model_fields}
    sections[PROTOCOLS] = dict(running.protocols)
    for each in changes:
        tables = sections if each.path[0] != PROTOCOLS else sections[PROTOCOLS]
        table, name = each.path[-2:]
        tables[table] = tables[table].model_copy(update={name: each.value})
    sections[PROTOCOLS] = {name: _checked(table) for name, table in sections[PROTOCOLS].items()}
    return PeerdConfig.model_validate(
        {name: value if name == PROTOCOLS else _checked(value) for name, value in sections.items()}
    )


def _checked(table: BaseModel) -> BaseModel:
    return type(table).model_validate(dict(table))


def _origins(running: Mapping[str, str], wanted: Mapping[str, str], waiting: list[str]) -> dict[str, str]:
    """Return the origins of the values in force: the new ones, except for the keys that wait for a restart."""

    def waits(key: str) -> bool:
        return any(key == each or key.startswith(f"{each}.") for each in waiting)

    read = {key: origin for key, origin in wanted.items() if not waits(key)}
    return read | {key: origin for key, origin in running.items() if waits(key)}


def _origin(origins: Mapping[str, str], key: str) -> str:
    """Return the origin of a key; of a table, that of the first key in it."""
    inner = (origin for other, origin in origins.items() if other.startswith(f"{key}."))
    return origins.get(key) or next(inner, "default")
