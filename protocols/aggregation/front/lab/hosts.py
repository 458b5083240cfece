"""How fast the links of simulated machines are: the networks of Cappos and Hartman (2008), section 5.2."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from random import Random
from typing import Final

from peerd.sim.simulation import Place

DEPARTMENT_MBITS: Final = (1000.0,) * 142 + (100.0,) * 205 + (10.0,) * 6
"""The paper's department of computer science: 353 systems behind one switch."""
WIDE_MBITS: Final = 5.0, 1.0, 0.5, 100.0
"""For PlanetLab's nodes, whose bandwidths are not at hand: log-normal, with this median, standard deviation of the
logarithm, and bounds. The paper's table 2 has 2.1 to 3.2 Mbit/s, the mean peaks of nodes at work."""
UNIFORM_MBITS: Final = 100.0
MBIT_BYTES: Final = 125_000

Draw = Callable[[int, Random], list[float]]
"""The rates of so many machines, Mbit/s each way."""


def department(count: int, rng: Random) -> list[float]:
    """Machines of the department; of more than it has, the others are drawn from it again."""
    drawn = rng.sample(DEPARTMENT_MBITS, min(count, len(DEPARTMENT_MBITS)))
    return drawn + rng.choices(DEPARTMENT_MBITS, k=count - len(drawn))


def wide(count: int, rng: Random) -> list[float]:
    """Nodes of a testbed over the world."""
    middle, deviation, least, most = WIDE_MBITS
    drawn = (rng.lognormvariate(math.log(middle), deviation) for _ in range(count))
    return [min(max(rate, least), most) for rate in drawn]


def uniform(count: int, rng: Random) -> list[float]:
    """Machines that are all the same."""
    return [UNIFORM_MBITS] * count


LINKS: Final[dict[str, Draw]] = {"department": department, "planetlab": wide, "square": wide, "uniform": uniform}
"""By the name of a topology. Machines of others have links without a limit."""


def limit_links(places: Sequence[Place], topology: str, rng: Random) -> list[float]:
    """Give each machine its rate, the same up and down, from now on; returns them, Mbit/s, infinite where none is."""
    draw = LINKS.get(topology)
    if draw is None:
        return [math.inf] * len(places)
    rates = draw(len(places), rng)
    for place, rate in zip(places, rates, strict=True):
        place.port.set_rates(rate * MBIT_BYTES, rate * MBIT_BYTES)
    return rates
