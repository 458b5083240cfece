"""Where settings come from: files, environment, command line; merged, checked, and each value's origin kept.

Nothing here knows a particular setting: `peerd.config` has the models.
"""

from __future__ import annotations

import json
import re
import textwrap
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic.json_schema import models_json_schema
from pydantic_core import ErrorDetails

from peerd.errors import ConfigError, closest
from peerd.invalid import MISSING, UNKNOWN_KEY, reason
from peerd.quantities import FROM_TEXT

Tree = dict[str, Any]
"""Nested tables as tomllib gives them."""
Model = TypeVar("Model", bound=BaseModel)

ENVIRONMENT_PREFIX: Final = "PEERD_"
PROTOCOLS: Final = "protocols"
FILE_BYTES_MAX: Final = 1024 * 1024
_SHOWN_LENGTH_MAX: Final = 80

_PART: Final = r"""(?:[A-Za-z0-9_-]+|"[^"\n]*"|'[^'\n]*')"""
_PATH: Final = rf"{_PART}(?:\s*\.\s*{_PART})*"
_TABLE_LINE: Final = re.compile(rf"\s*\[\[?\s*({_PATH})\s*\]\]?\s*(?:#.*)?$")
_KEY_LINE: Final = re.compile(rf"\s*({_PATH})\s*=")


@dataclass(frozen=True)
class Layer:
    """Settings of one source. ``origins`` maps dotted keys to where they stand; ``name`` stands for the rest."""

    name: str
    tree: Tree
    origins: dict[str, str] = field(default_factory=dict)

    def origin(self, key: str) -> str:
        """Where ``key``, or the nearest table around it, was set; the layer's name when unknown."""
        while key:
            if key in self.origins:
                return self.origins[key]
            key = key.rpartition(".")[0]
        return self.name


def _is_model(annotation: object) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


@dataclass(frozen=True)
class ConfigSchema:
    """The tables and keys that exist: the root model, and each plugin's (``None``: plugins are not looked at)."""

    root: type[BaseModel]
    plugins: Mapping[str, type[BaseModel]] | None

    def model_at(self, path: Sequence[str]) -> type[BaseModel] | None:
        """The model of the table at ``path``, or ``None`` when there is no such table."""
        found: Any
        if path and path[0] == PROTOCOLS:
            if len(path) < 2 or self.plugins is None or path[1] not in self.plugins:
                return None
            found, rest = self.plugins[path[1]], path[2:]
        else:
            found, rest = self.root, path
        for part in rest:
            if get_origin(found) is dict:  # of tables that the operator names
                found = get_args(found)[1]
            else:
                info = found.model_fields.get(part) if _is_model(found) else None
                found = info.annotation if info else None
        return found if _is_model(found) else None

    def field_at(self, path: Sequence[str]) -> FieldInfo | None:
        """The field at ``path``, or ``None`` when there is none."""
        model = self.model_at(path[:-1])
        return model.model_fields.get(path[-1]) if model and path else None

    def tables(self) -> Iterator[tuple[str, type[BaseModel]]]:
        """Every top-level table with its model, plugins last."""
        for name in self.root.model_fields:
            model = self.model_at([name])
            if model is not None:
                yield name, model
        for name in sorted(self.plugins or {}):
            yield f"{PROTOCOLS}.{name}", (self.plugins or {})[name]

    def known_keys(self) -> list[str]:
        """Every dotted key."""
        return [f"{table}.{key}" for table, model in self.tables() for key in model.model_fields]


# Reading --------------------------------------------------------------------------------------------------


def expand_files(paths: Sequence[Path]) -> Iterator[Path]:
    """Files as given; of a directory (conf.d) its ``*.toml`` in name order."""
    for path in paths:
        if path.is_dir():
            yield from sorted(path.glob("*.toml"))
        else:
            yield path


def read_file(path: Path) -> Layer:
    """Read one TOML file. Raises `ConfigError`."""
    try:
        with path.open("rb") as file:
            content = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise ConfigError(f"cannot read it: {error.strerror}", file=str(path)) from error
    if len(content) > FILE_BYTES_MAX:
        raise ConfigError(f"larger than {FILE_BYTES_MAX} bytes", file=str(path))
    try:
        text = content.decode()
        tree = tomllib.loads(text)
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigError(f"not TOML: {error}", file=str(path)) from error
    return Layer(str(path), tree, {key: f"{path}:{line}" for key, line in key_lines(text).items()})


def key_lines(text: str) -> dict[str, int]:
    """Line numbers (from 1) of tables and keys in TOML text, by dotted key. Not a parser: good enough for messages."""
    lines: dict[str, int] = {}
    table: list[str] = []
    inside: str | None = None
    for number, line in enumerate(text.splitlines(), 1):
        if inside is not None:  # this line is part of a string of several lines
            inside = None if inside in line else inside
            continue
        if match := _TABLE_LINE.match(line):
            table = _split_path(match[1])
            lines.setdefault(".".join(table), number)
        elif match := _KEY_LINE.match(line):
            lines.setdefault(".".join([*table, *_split_path(match[1])]), number)
        for quotes in ('"""', "'''"):
            if line.count(quotes) % 2:
                inside = quotes
    return lines


def _split_path(text: str) -> list[str]:
    return [part.strip("\"'") for part in re.findall(_PART, text)]


def read_environment(environment: Mapping[str, str], schema: ConfigSchema) -> Layer:
    """Read ``PEERD_SECTION__KEY`` variables. Other ``PEERD_`` names are left alone, unless only one ``_`` is missing.

    Raises `ConfigError` for such a near miss: a setting that silently does nothing is worse than an error.
    """
    tree: Tree = {}
    origins: dict[str, str] = {}
    near_misses = {
        ENVIRONMENT_PREFIX + key.replace(".", "_").upper(): ENVIRONMENT_PREFIX + key.replace(".", "__").upper()
        for key in schema.known_keys()
    }
    for name, text in sorted(environment.items()):
        origin = f"environment {name}"
        if name in near_misses:
            raise ConfigError(f"write {near_misses[name]}: two underscores before the key", file=origin)
        if not name.startswith(ENVIRONMENT_PREFIX) or "__" not in name:
            continue
        path = name.removeprefix(ENVIRONMENT_PREFIX).lower().split("__")
        if path[0] == PROTOCOLS and schema.plugins is None:
            continue
        _put(tree, path, _from_text(text, schema.field_at(path), origin, ".".join(path)), origin)
        origins[".".join(path)] = origin
    return Layer("environment", tree, origins)


def read_sets(sets: Sequence[str], schema: ConfigSchema) -> Layer:
    """``--set section.key=value`` texts; a later one wins. Raises `ConfigError`."""
    tree: Tree = {}
    origins: dict[str, str] = {}
    for text in sets:
        key, equals, value = text.partition("=")
        path = [part.strip() for part in key.split(".")]
        if not equals or len(path) < 2 or not all(path):
            raise ConfigError(f"expected section.key=value, not {text[:_SHOWN_LENGTH_MAX]!r}", file="flag --set")
        _put(tree, path, _from_text(value, schema.field_at(path), "flag --set", ".".join(path)), "flag --set")
        origins[".".join(path)] = "flag --set"
    return Layer("flag --set", tree, origins)


def read_flags(flags: Mapping[str, object]) -> Layer:
    """Dedicated options, by the dotted key that they set; ``None`` means not given."""
    tree: Tree = {}
    origins: dict[str, str] = {}
    for key, value in flags.items():
        if value is not None:
            origins[key] = f"flag --{key.rpartition('.')[2].replace('_', '-')}"
            _put(tree, key.split("."), value, origins[key])
    return Layer("flag", tree, origins)


def named_layer(tree: Tree, name: str) -> Layer:
    """A layer whose values all come from one named place (a profile)."""
    return Layer(name, tree, {key: name for key, _ in leaves(tree)})


def _put(tree: Tree, path: Sequence[str], value: object, origin: str) -> None:
    for part in path[:-1]:
        tree = tree.setdefault(part, {})
        if not isinstance(tree, dict):
            raise ConfigError(f"{part!r} is set both as a value and as a table", file=origin, key=".".join(path))
    tree[path[-1]] = value


def _from_text(text: str, info: FieldInfo | None, origin: str, key: str) -> object:
    """A value given as text: lists as "a,b" or in TOML notation, tables in TOML notation, the rest as it is."""
    annotation = info.annotation if info else None
    kind = get_origin(annotation) or annotation
    is_list = kind in (list, tuple)
    if is_list and not text.lstrip().startswith("["):
        return [item.strip() for item in text.split(",") if item.strip()]
    if is_list or kind is dict or (isinstance(kind, type) and issubclass(kind, BaseModel)):
        try:
            return tomllib.loads(f"value = {text}")["value"]
        except tomllib.TOMLDecodeError as error:
            raise ConfigError(f"expected a TOML value: {error}", file=origin, key=key) from error
    return text


# Merging --------------------------------------------------------------------------------------------------


def merge(layers: Sequence[Layer]) -> Layer:
    """All layers as one, later ones winning: tables merge, everything else replaces."""
    tree: Tree = {}
    origins: dict[str, str] = {}
    for layer in layers:
        _merge_into(tree, layer.tree, layer, origins, "")
    return Layer("", tree, origins)


def _merge_into(target: Tree, source: Tree, layer: Layer, origins: dict[str, str], prefix: str) -> None:
    for key, value in source.items():
        dotted = f"{prefix}{key}"
        origins[dotted] = layer.origin(dotted)
        if isinstance(value, dict):
            inner = target.get(key)
            if not isinstance(inner, dict):
                inner = target[key] = {}
            _merge_into(inner, value, layer, origins, f"{dotted}.")
        else:
            target[key] = value


def leaves(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted key and value of everything that is not a table."""
    for key, value in tree.items():
        if isinstance(value, Mapping) and value:
            yield from leaves(value, f"{prefix}{key}.")
        elif not isinstance(value, Mapping):
            yield f"{prefix}{key}", value


def fields(model: BaseModel, prefix: str = "") -> Iterator[tuple[str, FieldInfo]]:
    """Dotted key and field of everything that is not itself a table, tables of plugins included."""
    for name, info in type(model).model_fields.items():
        value = getattr(model, name)
        if isinstance(value, BaseModel):
            yield from fields(value, f"{prefix}{name}.")
        elif name == PROTOCOLS and not prefix:
            for plugin, table in value.items():
                yield from fields(table, f"{PROTOCOLS}.{plugin}.")
        else:
            yield f"{prefix}{name}", info


def value_at(tree: Tree, key: str, default: object) -> object:
    """The value at a dotted key, or ``default``."""
    value: object = tree
    for part in key.split("."):
        if not isinstance(value, dict) or part not in value:
            return default
        value = value[part]
    return value


# Checking -------------------------------------------------------------------------------------------------


def validate(root: type[Model], schema: ConfigSchema, merged: Layer) -> tuple[Model | None, list[ConfigError]]:
    """Build the configuration, or ``None`` and one `ConfigError` for everything wrong, in the order found."""
    tree = {key: value for key, value in merged.tree.items() if key != PROTOCOLS}
    plugins, problems = _validate_plugins(schema, merged)
    try:
        config = root.model_validate({**tree, PROTOCOLS: plugins}, context={FROM_TEXT: True})
    except ValidationError as error:
        return None, [_explain(details, (), schema, merged) for details in error.errors()] + problems
    return (None, problems) if problems else (config, [])


def _validate_plugins(schema: ConfigSchema, merged: Layer) -> tuple[dict[str, BaseModel], list[ConfigError]]:
    tables = merged.tree.get(PROTOCOLS, {})
    plugins: dict[str, BaseModel] = {}
    if schema.plugins is None:
        return plugins, []
    if not isinstance(tables, dict):
        return plugins, [ConfigError("expected a table", file=merged.origin(PROTOCOLS), key=PROTOCOLS)]
    unknown = [name for name in tables if name not in schema.plugins]
    problems = [_unknown_key([PROTOCOLS, name], schema, merged) for name in unknown]
    for name, model in sorted(schema.plugins.items()):
        try:
            plugins[name] = model.model_validate(tables.get(name, {}), context={FROM_TEXT: True})
        except ValidationError as error:
            problems += [_explain(details, (PROTOCOLS, name), schema, merged) for details in error.errors()]
    return plugins, problems


def _explain(details: ErrorDetails, prefix: tuple[str, ...], schema: ConfigSchema, merged: Layer) -> ConfigError:
    path = [*prefix, *map(str, details["loc"])]
    context = details.get("ctx", {})
    if details["type"] == UNKNOWN_KEY:
        return _unknown_key(path, schema, merged)
    if details["type"] == "peerd_key":
        key = str(context["key"])
        return ConfigError(str(context["message"]), file=merged.origin(key) or None, key=key)
    key = ".".join(path)
    origin = merged.origin(key) or None
    if details["type"] == MISSING:
        return ConfigError("needs a value: it has no default", file=origin, key=key)
    shown = repr(details["input"])[:_SHOWN_LENGTH_MAX]
    return ConfigError(f"{reason(details)}, not {shown}", file=origin, key=key)


def _unknown_key(path: Sequence[str], schema: ConfigSchema, merged: Layer) -> ConfigError:
    key = ".".join(path)
    what = "table" if isinstance(value_at(merged.tree, key, None), dict) else "key"
    guess = _nearest(path, schema)
    hint = f": did you mean {guess}?" if guess else f"; known here: {', '.join(_siblings(path, schema))}"
    return ConfigError(f"unknown {what}{hint}", file=merged.origin(key) or None, key=key)


def _siblings(path: Sequence[str], schema: ConfigSchema) -> list[str]:
    if len(path) == 2 and path[0] == PROTOCOLS:
        return sorted(schema.plugins or {})
    model = schema.model_at(path[:-1])
    return list(model.model_fields) if model else []


def _nearest(path: Sequence[str], schema: ConfigSchema) -> str | None:
    """The known key most like ``path``: a neighbour of it, else the same name in another table."""
    if (guess := closest(path[-1], _siblings(path, schema))) is not None:
        return ".".join([*path[:-1], guess])
    elsewhere = {key.rpartition(".")[2]: key for key in reversed(schema.known_keys())}
    if (guess := closest(path[-1], elsewhere, likeness=0.8)) is not None:
        return elsewhere[guess]
    return None


# Showing --------------------------------------------------------------------------------------------------


def scaffold(schema: ConfigSchema) -> str:
    """A TOML file of every setting, described, commented out at its default."""
    lines = [
        "# peerd configuration. A line such as '#key = value' shows a default: remove the '#' to change it.",
        "# Durations need a unit (us, ms, s, m, h, d), sizes too (B, KiB, MiB, GiB, TiB).",
        "# PEERD_SECTION__KEY in the environment and --set section.key=value win over this file.",
    ]
    for table, model in schema.tables():
        lines += ["", f"[{table}]"]
        required = [key for key, info in model.model_fields.items() if info.is_required()]
        defaults = {} if required else model().model_dump()
        for key, info in model.model_fields.items():
            lines += ["", *(f"# {line}" for line in textwrap.wrap(info.description or "", 100))]
            lines.append(f"#{key} = {toml_value(defaults[key])}" if key in defaults else f"#{key} =")
    return "\n".join(lines) + "\n"


def toml_value(value: object) -> str:
    """A value in TOML notation. JSON's strings, numbers and booleans are TOML's too; tables are inline."""
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{json.dumps(str(key))} = {toml_value(item)}" for key, item in value.items()) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(toml_value, value)) + "]"
    if value is None:
        raise ValueError("TOML has no null: give the setting another default")
    return json.dumps(value)


def json_schema(schema: ConfigSchema) -> dict[str, Any]:
    """One JSON Schema for the root model with each plugin's table in place."""
    plugins = dict(sorted((schema.plugins or {}).items()))
    references, document = models_json_schema(
        [(schema.root, "validation"), *((model, "validation") for model in plugins.values())], title="peerd"
    )
    document = {**document, "$schema": "https://json-schema.org/draft/2020-12/schema"}
    root = document["$defs"][references[schema.root, "validation"]["$ref"].rpartition("/")[2]]
    root["properties"][PROTOCOLS] = {
        "type": "object",
        "properties": {name: references[model, "validation"] for name, model in plugins.items()},
        "additionalProperties": schema.plugins is None,
    }
    return {**document, **references[schema.root, "validation"]}
