"""What a protocol does in a seed of the swarm, and how that is judged."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from random import Random
from typing import ClassVar, Final

from peerd.api import Plugin
from peerd.errors import Unavailable
from peerd.plugins import load_front, load_plugin
from peerd.sim.rng import fork
from peerd.sim.simulation import Place, Simulation

AGAIN_S: Final = 1.0
"""A client whose wish was refused for the moment tries again after this."""
TRIES_MAX: Final = 8


class SwarmWork:
    """Base of a protocol's work; one instance a seed. Each method may be called with any node that is in the ring.

    ``rng`` is the only source of chance: a seed is one run, and the work of one protocol does not disturb another's.
    """

    gap_s: float = 5.0
    """Mean time between two `act`, virtual seconds."""
    rings: ClassVar[tuple[tuple[float, int, int], ...]] = ()
    """Sizes of rings: up to this share of the seeds, the smallest, the largest. Empty: as without protocols."""
    refusals: ClassVar[tuple[type[Exception], ...]] = (Unavailable,)
    """What a node raises that refuses a client's wish for the moment."""

    def __init__(self, simulation: Simulation, rng: Random) -> None:
        self.simulation = simulation
        self.rng = rng
        self.not_done: list[str] = []
        """What was refused again and again, though the ring was calm: for the verdict."""

    @property
    def judged(self) -> int:
        """So many answers clients were told, and each was judged."""
        return 0

    @classmethod
    def plugin(cls, index: int) -> Plugin | None:
        """The plugin of the node at this index, anew for each of its incarnations; ``None``: one with its defaults."""
        return None

    @classmethod
    def nodes(cls, rng: Random) -> int | None:
        """How many nodes the ring of a seed has; ``None``: as many as a seed without protocols."""
        share = rng.random()
        return next((rng.randint(low, high) for below, low, high in cls.rings if share < below), None)

    def act(self, place: Place) -> None:
        """Do something while faults strike. Nothing needs to succeed, but what does must be right."""

    def prove(self, place: Place) -> None:
        """The ring is calm, and stays so: do what has to succeed within half a minute."""

    def insist(self, place: Place, action: Callable[[Place], None], tries: int = 1) -> None:
        """Do something in a calm ring as a client does it, which tries again what was refused for the moment."""
        try:
            action(place)
        except self.refusals as error:
            if tries == TRIES_MAX:
                self.not_done.append(f"in a calm ring {place} says: {error}")
            else:
                self.simulation.after(AGAIN_S, partial(self.insist, place, action, tries + 1))

    def verdict(self) -> list[str]:
        """Half a minute after `prove`: what was wrong since the beginning, one sentence each. Any ends the seed red."""
        return []


def work_of(names: Sequence[str]) -> dict[str, type[SwarmWork]]:
    """The work of these protocols; of one that brings none, the base: its plugin runs, and its checkers watch.

    Raises `ConfigError` for a protocol that is not installed or cannot be used.
    """
    return {name: load_front(name).swarm_work() or SwarmWork for name in names}


def nodes_of(work: dict[str, type[SwarmWork]], seed: int) -> int | None:
    """How many nodes the first of them wants that wants any number: drawn from the seed, and from nothing else."""
    wanted = (kind.nodes(fork(seed, "swarm", "nodes", name)) for name, kind in work.items())
    return next((nodes for nodes in wanted if nodes is not None), None)


def plugins_of(work: dict[str, type[SwarmWork]], index: int) -> list[Plugin]:
    """The plugins of one node."""
    return [kind.plugin(index) or load_plugin(name)() for name, kind in work.items()]
