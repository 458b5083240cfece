"""The plugins that a scenario names, found where the daemon finds them: the entry points ``peerd.protocols``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import entry_points
from typing import Any, Final

from pydantic import ValidationError

from peerd.api import Plugin, PluginConfig
from peerd.errors import ConfigError
from peerd.sim.scenario import nearest

GROUP: Final = "peerd.protocols"


def plugin_factory(tables: Mapping[str, Mapping[str, Any]]) -> Callable[[int], Sequence[Plugin]]:
    """What `Simulation` takes as ``plugins``. Raises `ConfigError` for an unknown plugin or a bad table."""
    made: list[tuple[type[Plugin], PluginConfig]] = []
    for name in sorted(tables):
        plugin = load_plugin(name)
        try:
            made.append((plugin, plugin.Config.model_validate(tables[name])))
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            key = ".".join(["protocols", name, *(str(step) for step in first["loc"])])
            hint = ""
            if first["type"] == "extra_forbidden":
                hint = nearest(str(first["loc"][-1]), list(plugin.Config.model_fields))
            raise ConfigError(f"{first['msg']}{hint}", key=key) from None
    return lambda index: [plugin(config) for plugin, config in made]


def load_plugin(name: str) -> type[Plugin]:
    """The class of one plugin. Raises `ConfigError` when nobody registered that name, or not a plugin."""
    found = entry_points(group=GROUP)
    if name not in found.names:
        raise ConfigError(f"no such plugin{nearest(name, sorted(found.names))}", key=f"protocols.{name}")
    plugin = found[name].load()
    if not (isinstance(plugin, type) and issubclass(plugin, Plugin)):
        raise ConfigError(f"{found[name].value} is no peerd.api.Plugin", key=f"protocols.{name}")
    return plugin
