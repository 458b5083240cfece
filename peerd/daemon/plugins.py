"""Plugins are found through the entry-point group ``peerd.protocols``; those in the tree have no other way in."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Final

from pydantic import BaseModel, ValidationError

from peerd.api import Plugin, PluginConfig
from peerd.errors import ConfigError

GROUP: Final = "peerd.protocols"
CORE_NAMES: Final = frozenset({"overlay", "swap", "node", "records"})


def find_plugins() -> dict[str, type[Plugin]]:
    """Every installed plugin class by name, sorted. Raises `ConfigError` naming what cannot be used."""
    found: dict[str, type[Plugin]] = {}
    for entry in sorted(entry_points(group=GROUP), key=lambda entry: (entry.name, entry.value)):
        plugin = _load(entry)
        if entry.name in found and found[entry.name] is not plugin:
            raise ConfigError(f"two installed plugins have this name, one is {entry.value}", key=_key(entry.name))
        found[entry.name] = plugin
    return found


def plugin_models(plugins: Mapping[str, type[Plugin]]) -> dict[str, type[BaseModel]]:
    """Each plugin's configuration model by name: what `peerd.config.load_config` validates ``[protocols.*]`` with."""
    return {name: plugin.Config for name, plugin in plugins.items()}


def make_plugins(
    plugins: Mapping[str, type[Plugin]], configs: Mapping[str, BaseModel | Mapping[str, object]]
) -> list[Plugin]:
    """One instance of each plugin, in name order, with its table of the configuration (or its defaults).

    Raises `ConfigError` for a table that no installed plugin owns, or that its model refuses.
    """
    for name in configs:
        if name not in plugins:
            known = ", ".join(plugins) or "none"
            raise ConfigError(f"no plugin of this name is installed (there are: {known})", key=_key(name))
    return [plugin(_config_of(name, plugin, configs.get(name))) for name, plugin in sorted(plugins.items())]


def _load(entry: EntryPoint) -> type[Plugin]:
    try:
        plugin: object = entry.load()
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"the plugin {entry.value} cannot be imported: {error}", key=_key(entry.name)) from error
    if not isinstance(plugin, type) or not issubclass(plugin, Plugin):
        raise ConfigError(f"{entry.value} is not a subclass of peerd.api.Plugin", key=_key(entry.name))
    if plugin.name != entry.name or entry.name in CORE_NAMES:
        raise ConfigError(f"{entry.value} calls itself {plugin.name!r}", key=_key(entry.name))
    return plugin


def _config_of(name: str, plugin: type[Plugin], value: BaseModel | Mapping[str, object] | None) -> PluginConfig:
    if isinstance(value, plugin.Config):
        return value
    table = value.model_dump() if isinstance(value, BaseModel) else dict(value or {})
    try:
        return plugin.Config.model_validate(table)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(str(step) for step in first["loc"])
        raise ConfigError(first["msg"], key=f"{_key(name)}.{field}" if field else _key(name)) from error


def _key(name: str) -> str:
    return f"protocols.{name}"
