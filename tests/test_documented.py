"""Every message and every setting is documented, checked on the live classes; each check is shown to bite."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import re
import typing
from collections.abc import Iterator
from pathlib import Path

from pydantic import BaseModel, Field

from peerd import messages
from peerd.plugins import find_plugins
from tests.test_tidy import ROOT, code, report, within


def where(cls: type) -> str:
    """``file:line`` of a class."""
    try:
        path = Path(inspect.getsourcefile(cls) or "?").resolve()
        line = inspect.getsourcelines(cls)[1]
    except (OSError, TypeError):
        return cls.__module__
    return f"{path.relative_to(ROOT) if path.is_relative_to(ROOT) else path.name}:{line}"


def message_offences(cls: type, documentation: str) -> Iterator[str]:
    """A message has a docstring of its own (dataclasses make one up) and is named in the documentation."""
    text = cls.__doc__ or ""
    if not text.strip() or text.startswith(f"{cls.__name__}("):
        yield f"{where(cls)}: message {cls.__name__} has no docstring; say who sends it, when, and what answers it"
    if not re.search(rf"\b{cls.__name__}\b", documentation):
        yield f"{where(cls)}: message {cls.__name__} is in no page under docs/; add it to its protocol's page"


def config_offences(model: type[BaseModel], seen: set[type] | None = None) -> Iterator[str]:
    """Every field of a model, and of the models inside it, has a description (that is the manual)."""
    seen = set() if seen is None else seen
    if model in seen:
        return
    seen.add(model)
    for name, field in model.model_fields.items():
        if not (field.description or "").strip():
            yield f"{where(model)}: {model.__name__}.{name} has no description; say meaning, unit and default's reason"
        for inner in models_in(field.annotation):
            yield from config_offences(inner, seen)


def models_in(annotation: object) -> Iterator[type[BaseModel]]:
    """The pydantic models anywhere inside an annotation, in order."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in typing.get_args(annotation):
        yield from models_in(argument)


def import_protocols() -> None:
    """Load every plugin, and every messages module, so that the registries are full."""
    find_plugins()
    for source in code():
        if source.path.endswith("/messages.py") and not source.path.startswith("tests/"):
            importlib.import_module(source.module)


def test_every_message_is_documented() -> None:
    import_protocols()
    pages = [*sorted((ROOT / "docs").rglob("*.md")), ROOT / "README.md"]
    documentation = "\n".join(page.read_text("utf-8") for page in pages if page.exists())
    ours = [cls for cls in messages.registered().values() if within(cls.__module__, ("peerd", "protocols"))]
    assert ours, "the message registry is empty: nothing was checked"
    offences = [offence for cls in ours for offence in message_offences(cls, documentation)]
    assert not offences, report(offences)


def test_every_config_field_is_described() -> None:
    config: type[BaseModel] = importlib.import_module("peerd.config").PeerdConfig
    offences = list(config_offences(config))
    for source in code():
        if source.path.startswith(("peerd/", "protocols/")) and source.path.endswith("/config.py"):
            module = importlib.import_module(source.module)
            for value in vars(module).values():
                if isinstance(value, type) and issubclass(value, BaseModel) and value.__module__ == source.module:
                    offences += config_offences(value)
    assert not offences, report(offences)


def test_message_check_bites() -> None:
    @dataclasses.dataclass
    class Undocumented:
        text: str

    assert len(list(message_offences(Undocumented, "UndocumentedToo is here"))) == 2
    Undocumented.__doc__ = "Asks for nothing."
    assert list(message_offences(Undocumented, "| `Undocumented` | nothing |")) == []


class _Inner(BaseModel):
    silent: int = 0
    spoken: int = Field(default=0, description="Says what it is.")


class _Outer(BaseModel):
    inner: dict[str, _Inner | None] = Field(description="Inner models by name.")


def test_config_check_bites() -> None:
    offences = list(config_offences(_Outer))
    assert len(offences) == 1 and "_Inner.silent has no description" in offences[0]
