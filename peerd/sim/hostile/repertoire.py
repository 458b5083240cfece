"""Everything that hostile nodes do, by name: what every node can do, and what protocols bring for theirs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from peerd.plugins import gather, load_front
from peerd.sim.hostile.member import Behaviour
from peerd.sim.hostile.neighbours import Colluders, FalseDeaths, HalfDeaf, InventedNeighbours
from peerd.sim.hostile.noise import Flood, Malformed, Replay, SilentStreams
from peerd.sim.hostile.routing import Astray, BlackHole, FalseRoot

KINDS: Final[tuple[type[Behaviour], ...]] = (
    *(InventedNeighbours, Colluders, FalseDeaths, HalfDeaf),
    *(BlackHole, FalseRoot, Astray),
    *(Flood, Malformed, Replay, SilentStreams),
)
BY_NAME: Final[Mapping[str, type[Behaviour]]] = {kind.name: kind for kind in KINDS}


def behaviours_by_name(protocols: Iterable[str] = ()) -> dict[str, type[Behaviour]]:
    """Those above and those of these protocols. Raises `ConfigError` for a protocol that cannot be used."""
    fronts = {name: load_front(name) for name in sorted(protocols)}
    found = gather(fronts, "behaviour", lambda front: front.behaviours().items(), taken=BY_NAME)
    return {**BY_NAME, **found}
