"""All experiments by name: those of the core, and those that protocols bring."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from peerd.errors import ConfigError, nearest
from peerd.lab.experiment import Experiment
from peerd.lab.overlay import churn, clogs, failure, hops, stretch
from peerd.plugins import gather, usable_fronts, warn_on_stderr

CORE: Final[dict[str, Experiment]] = {
    experiment.name: experiment
    for module in (hops, stretch, churn, failure, clogs)
    for experiment in module.EXPERIMENTS
}


def experiments() -> dict[str, Experiment]:
    """Return the experiments by name: the core's, then those of each protocol.

    What cannot be used of a protocol is reported on standard error, and the rest works: a front that fails, an
    experiment whose name is taken or does not begin with the protocol's.
    """
    brought = gather(
        usable_fronts(),
        "experiment",
        lambda front: ((each.name, each) for each in front.experiments()),
        CORE,
        _bad_name,
        warn_on_stderr,
    )
    return {**CORE, **brought}


def experiment(name: str) -> Experiment:
    """Return one experiment by its name. Raises `ConfigError`."""
    return find([name])[0] if name not in CORE else CORE[name]


def find(names: Iterable[str]) -> list[Experiment]:
    """Return the experiments that are named, or whose group is, each once. Raises `ConfigError` for an unknown name.

    A group is what stands before the slash: ``overlay`` stands for all of the overlay's.
    """
    known = experiments()
    found: dict[str, Experiment] = {}
    for name in names:
        matching = [each for each in known if each == name or group_of(each) == name]
        if not matching:
            groups = dict.fromkeys(group_of(each) for each in known)
            raise ConfigError(f"no experiment {name!r}{nearest(name, [*known, *groups])}")
        found |= {each: known[each] for each in matching}
    return list(found.values())


def group_of(name: str) -> str:
    """Return the group of an experiment's name: ``overlay`` for ``overlay/hops``."""
    return name.partition("/")[0]


def _bad_name(plugin: str, name: str) -> str | None:
    return None if name.startswith(f"{plugin}/") else f"expected {plugin}/SOMETHING"
