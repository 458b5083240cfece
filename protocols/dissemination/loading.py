"""Kinds of interests and policies, found by entry points; each is imported when the first stream needs it.

Messages and events of policies have to be known before, so that a node understands what comes. They are light, and lie
in a module ``messages`` (and ``events``) beside the policy's module, with a tuple ``MESSAGES`` (``EVENTS``).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint
from importlib.util import find_spec
from typing import Any, Final

from peerd.entry_points import entries, installed
from peerd.errors import ConfigError
from peerd.messages import Message
from peerd.telemetry.schema import Event
from protocols.dissemination.ports import InterestKind, PolicyFactory

KINDS: Final = "peerd.interests"
POLICIES: Final = "peerd.policies"


def load_kind(name: str) -> InterestKind:
    """A kind of interests. Raises `ConfigError` where it is not installed, or cannot be imported."""
    kind: InterestKind = _load(KINDS, name)
    return kind


def load_policy(name: str) -> PolicyFactory:
    """A family of policies. Raises `ConfigError` as `load_kind`."""
    factory: PolicyFactory = _load(POLICIES, name)
    return factory


@cache
def _load(group: str, name: str) -> Any:
    found = entries(group, name)
    if not found:
        names = ", ".join(installed(group))
        raise ConfigError(f"nothing of this name is installed in {group}; there are: {names}", key=name)
    try:
        return found[0].load()()
    except ImportError as error:
        raise ConfigError(f"{found[0].value} cannot be imported: {error}", key=name) from error


def policy_messages() -> tuple[type[Message], ...]:
    """The messages of all installed policies."""
    return tuple(each for entry in _policies() for each in _beside(entry, "messages", "MESSAGES"))


def policy_events() -> tuple[type[Event], ...]:
    """The events of all installed policies."""
    return tuple(each for entry in _policies() for each in _beside(entry, "events", "EVENTS"))


def _policies() -> Iterator[EntryPoint]:
    return (entries(POLICIES, name)[0] for name in installed(POLICIES))


def _beside(entry: EntryPoint, module: str, what: str) -> tuple[Any, ...]:
    package = entry.module.rpartition(".")[0]
    name = f"{package}.{module}"
    try:
        is_there = find_spec(package) is not None and find_spec(name) is not None
    except ImportError:
        return ()
    return tuple(getattr(import_module(name), what, ())) if is_there else ()
