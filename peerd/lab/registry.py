"""All experiments by name."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from peerd.errors import ConfigError, nearest
from peerd.lab.experiment import Experiment
from peerd.lab.overlay import churn, clogs, failure, hops

EXPERIMENTS: Final[dict[str, Experiment]] = {
    experiment.name: experiment for module in (hops, churn, failure, clogs) for experiment in module.EXPERIMENTS
}
GROUPS: Final = tuple(dict.fromkeys(name.partition("/")[0] for name in EXPERIMENTS))
"""``overlay`` stands for all of the overlay's."""


def find(names: Iterable[str]) -> list[Experiment]:
    """Those that are named, or are in a group that is, each once. Raises `ConfigError` for an unknown name."""
    found: dict[str, Experiment] = {}
    for name in names:
        matching = [each for each in EXPERIMENTS if each == name or each.partition("/")[0] == name]
        if not matching:
            raise ConfigError(f"no experiment {name!r}{nearest(name, [*EXPERIMENTS, *GROUPS])}")
        found |= {each: EXPERIMENTS[each] for each in matching}
    return list(found.values())
