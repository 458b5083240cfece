"""The checkers that protocols bring, beside those of `peerd.sim.checkers`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from peerd.front import Front
from peerd.plugins import gather, load_front, usable_fronts
from peerd.sim.checkers import BY_NAME, Checker


def checkers_by_name() -> dict[str, type[Checker]]:
    """Return all checkers that a scenario may name. Raises `ConfigError` when two have one name."""
    return {**BY_NAME, **_gathered(usable_fronts())}


def continuous_checkers(protocols: Iterable[str]) -> list[type[Checker]]:
    """Return the checkers of these protocols that hold always. Raises `ConfigError` for an unusable protocol."""
    fronts = {name: load_front(name) for name in sorted(protocols)}
    return [kind for kind in _gathered(fronts).values() if kind.holds_always]


def _gathered(fronts: Mapping[str, Front]) -> dict[str, type[Checker]]:
    return gather(fronts, "checker", lambda front: front.checkers().items(), taken=BY_NAME)
