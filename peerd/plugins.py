"""The one loader of protocols: it finds plugins and their fronts through entry points, checks them, and returns them.

Daemon, simulator, command line, lab and pipeline all ask here, so what is refused is refused everywhere, with a
`ConfigError` that names the plugin. Protocols of this repository are loaded in the same way as anybody else's. Commands
that need no plugin do not load any, so a broken one cannot stop them.

Fronts are found without importing what plugins are made of (pydantic, messages): `peerd --help` asks for them.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from importlib.metadata import EntryPoint
from typing import TYPE_CHECKING, Final, TypeVar

from peerd.entry_points import CLIENT_NAMES, CONFIGURATION_TABLES, FRONTS, PLUGINS, entries, installed
from peerd.errors import ConfigError, nearest
from peerd.front import Front
from peerd.invalid import UNKNOWN_KEY, reason
from peerd.limits import KERNEL_TYPE_IDS

if TYPE_CHECKING:
    from pydantic import BaseModel

    from peerd.api import Plugin, PluginConfig
    from peerd.messages import Message
    from peerd.telemetry.schema import Event

    Configs = Mapping[str, BaseModel | Mapping[str, object]]

NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,31}")

ANYTHING: Final = (Exception, SystemExit)
"""Whatever a third party's code may raise. Code that ends its process, as scripts do, must not end ours silently."""

T = TypeVar("T")

# Plugins


def find_plugins() -> dict[str, type[Plugin]]:
    """Return every installed plugin class by name, sorted. Raises `ConfigError` naming what cannot be used."""
    from peerd.telemetry.schema import union

    found = {name: load_plugin(name) for name in installed()}
    _check_messages(found)
    union({name: plugin.events for name, plugin in found.items()})
    return found


def load_plugin(name: str) -> type[Plugin]:
    """Return one plugin's class. Raises `ConfigError` when no such plugin is installed, or it cannot be used."""
    from peerd.api import Plugin

    plugin = _load(PLUGINS, name, Plugin)
    _check_ids(name, plugin)
    for metric in plugin.metrics:
        if not metric.name.startswith(f"peerd_{name}_"):
            raise ConfigError(f"its metric {metric.name} must be called peerd_{name}_SOMETHING", key=_key(name))
    for event in plugin.events:
        if not event.KIND.startswith(f"{name}."):
            raise ConfigError(f"its event {event.KIND} must be called {name}.SOMETHING", key=_key(name))
    return plugin


def plugin_models(plugins: Mapping[str, type[Plugin]]) -> dict[str, type[BaseModel]]:
    """Return each plugin's configuration model; `peerd.config.load_config` validates ``[protocols.*]`` with them."""
    return {name: plugin.Config for name, plugin in plugins.items()}


def make_plugins(plugins: Mapping[str, type[Plugin]], configs: Configs) -> list[Plugin]:
    """Make one instance of each plugin, in the order of names, with its table of the configuration (or its defaults).

    Raises `ConfigError` for a table that none of them owns, or that its model refuses.
    """
    for name in configs:
        if name not in plugins:
            raise _no_such_plugin(name, plugins)
    return [plugin(config_of(name, plugin, configs.get(name))) for name, plugin in sorted(plugins.items())]


def plugin_factory(configs: Configs) -> Callable[[int], Sequence[Plugin]]:
    """Return what a simulation takes as ``plugins``: it makes, for each node, the plugins that have a table."""
    plugins = {name: load_plugin(name) for name in sorted(configs)}
    _check_messages(plugins)
    made = [(plugin, config_of(name, plugin, configs[name])) for name, plugin in plugins.items()]
    return lambda index: [plugin(config) for plugin, config in made]


def config_of(name: str, plugin: type[Plugin], value: BaseModel | Mapping[str, object] | None = None) -> PluginConfig:
    """Return a plugin's table, validated. Raises `ConfigError` with the key."""
    from pydantic import BaseModel, ValidationError

    if isinstance(value, plugin.Config):
        return value
    table = value.model_dump() if isinstance(value, BaseModel) else dict(value or {})
    try:
        return plugin.Config.model_validate(table)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        hint = ""
        if first["type"] == UNKNOWN_KEY:
            hint = nearest(str(first["loc"][-1]), list(plugin.Config.model_fields))
        key = ".".join([_key(name), *(str(step) for step in first["loc"])])
        raise ConfigError(f"{reason(first)}{hint}", key=key) from error


def find_events(plugins: Mapping[str, type[Plugin]] | None = None) -> dict[str, type[Event]]:
    """Return every class of event by kind: the core's and those of ``plugins`` (default: the installed ones)."""
    from peerd.telemetry.schema import union

    found = find_plugins() if plugins is None else plugins
    return union({name: plugin.events for name, plugin in found.items()})


# Fronts


def find_fronts() -> dict[str, Front]:
    """Return the fronts of all plugins that have one, sorted by name. Raises `ConfigError` for an unusable one."""
    return {name: load_front(name) for name in installed(FRONTS)}


def warn_on_stderr(error: ConfigError) -> None:
    """Tell the operator about a plugin that cannot be used; the caller goes on without it."""
    print(f"peerd: warning: {error}", file=sys.stderr)


def usable_fronts(warn: Callable[[ConfigError], None] = warn_on_stderr) -> dict[str, Front]:
    """Do as `find_fronts`, but leave out a front that cannot be used, and tell ``warn``."""
    found: dict[str, Front] = {}
    for name in installed(FRONTS):
        try:
            found[name] = load_front(name)
        except ConfigError as error:
            warn(error)
    return found


def load_front(name: str) -> Front:
    """Return one plugin's front; a plain `Front` for an installed plugin that brings none. Raises `ConfigError`."""
    if name not in installed():
        if name in installed(FRONTS):
            raise ConfigError(f"there is a front in {FRONTS}, and no plugin in {PLUGINS}", key=_key(name))
        raise _no_such_plugin(name, installed())
    if name not in installed(FRONTS):
        return Front()
    return guarded(name, "front", _load(FRONTS, name, Front))


def guarded(plugin: str, what: str, function: Callable[[], T]) -> T:
    """Call a function of a front. Whatever it raises becomes a `ConfigError` that names the plugin."""
    try:
        return function()
    except ANYTHING as error:  # this is a third party's code, which may raise anything
        raise ConfigError(f"its {what} fails: {type(error).__name__}: {error}", key=_key(plugin)) from error


def gather(
    fronts: Mapping[str, Front],
    what: str,
    pieces: Callable[[Front], Iterable[tuple[str, T]]],
    taken: Iterable[str] = (),
    usable: Callable[[str, str], str | None] = lambda plugin, name: None,
    warn: Callable[[ConfigError], None] | None = None,
) -> dict[str, T]:
    """Collect one kind of piece from all fronts, by the pieces' names and in the order of the fronts.

    ``pieces`` gives names and pieces; ``taken`` are the core's names; ``usable`` says what is wrong with a plugin's
    name for a piece. Raises `ConfigError`, naming both owners, when two pieces have one name, or a front cannot say
    what it has; with ``warn``, that is told the error and the piece is left out.
    """
    owners = dict.fromkeys(taken, "peerd itself")
    found: dict[str, T] = {}

    def refuse(error: ConfigError) -> None:
        if warn is None:
            raise error
        warn(error)

    for plugin, front in fronts.items():
        try:
            brought = guarded(plugin, what, partial(_listed, pieces, front))
        except ConfigError as error:
            refuse(error)
            continue
        for name, piece in brought:
            problem = f"{owners[name]} has it" if name in owners else usable(plugin, name)
            if problem is not None:
                refuse(ConfigError(f"its {what} {name!r} cannot be used: {problem}", key=_key(plugin)))
                continue
            owners[name] = f"the plugin {plugin}"
            found[name] = piece
    return found


# Inside


def _listed(pieces: Callable[[Front], Iterable[tuple[str, T]]], front: Front) -> list[tuple[str, T]]:
    return list(pieces(front))


def _load(group: str, name: str, base: type[T]) -> type[T]:
    """Import what is registered under a name, and check what holds for plugins and fronts alike."""
    registered_here = entries(group, name)
    if not registered_here:
        raise _no_such_plugin(name, installed())
    entry = registered_here[0]
    if (reason := _bad_name(name)) is not None:
        raise ConfigError(f"{entry.value} cannot be called {name!r}: {reason}", key=_key(name))
    for other in registered_here[1:]:
        if other.value != entry.value:
            raise ConfigError(f"two installed plugins have this name: {entry.value} and {other.value}", key=_key(name))
    found = _import(entry)
    if not isinstance(found, type) or not issubclass(found, base):
        raise ConfigError(f"{entry.value} is not a subclass of {base.__module__}.{base.__name__}", key=_key(name))
    if (own := getattr(found, "name", None)) != name:
        raise ConfigError(f"{entry.value} calls itself {own!r}", key=_key(name))
    return found


def _bad_name(name: str) -> str | None:
    """Say why a name is not allowed: it is one in the configuration, or in Python one of ``client.NAME``."""
    if name in CONFIGURATION_TABLES:
        return "a part of peerd has that name"
    if name in CLIENT_NAMES:
        return "the Python client has a method of that name"
    return None if NAME.fullmatch(name) else f"a name must match {NAME.pattern}"


def _import(entry: EntryPoint) -> object:
    try:
        return entry.load()
    except ANYTHING as error:  # this is a third party's code: whatever it raises is reported with the plugin's name
        raise ConfigError(
            f"the plugin {entry.value} cannot be imported: {type(error).__name__}: {error}", key=_key(entry.name)
        ) from error


def _check_ids(name: str, plugin: type[Plugin]) -> None:
    from peerd.messages import registered

    known = registered()
    for kind in plugin.messages:
        if kind.TYPE_ID in KERNEL_TYPE_IDS:
            raise ConfigError(
                f"its message {kind.__name__} has the type id {kind.TYPE_ID:#06x}; those below "
                f"{KERNEL_TYPE_IDS.stop:#06x} are peerd's own",
                key=_key(name),
            )
        if known.get(kind.TYPE_ID) is not kind:
            raise ConfigError(f"its message {kind.__name__} has a type id that is taken", key=_key(name))


def _check_messages(plugins: Mapping[str, type[Plugin]]) -> None:
    owners: dict[type[Message], str] = {}
    for name, plugin in plugins.items():
        for kind in plugin.messages:
            if (owner := owners.setdefault(kind, name)) != name:
                raise ConfigError(f"it takes the message {kind.__name__} of the plugin {owner}", key=_key(name))


def _no_such_plugin(name: str, known: Iterable[str]) -> ConfigError:
    return ConfigError(f"no plugin of this name is installed{nearest(name, list(known))}", key=_key(name))


def _key(name: str) -> str:
    return f"protocols.{name}"
