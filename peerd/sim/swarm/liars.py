"""The hostile nodes of a swarm seed: who they are, what they do, and what lookups through them may come to."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from peerd.api import LookupResult
from peerd.ids import NodeId, closest, format_id, short_id
from peerd.plugins import gather, load_front
from peerd.sim.hostile.member import Behaviour, Party
from peerd.sim.hostile.neighbours import Colluders, FalseDeaths, HalfDeaf, InventedNeighbours
from peerd.sim.hostile.noise import Flood, Malformed, Replay, SilentStreams
from peerd.sim.hostile.routing import Astray, BlackHole, FalseRoot
from peerd.sim.rng import fork
from peerd.sim.simulation import Simulation
from peerd.sim.swarm.plan import LIARS, Plan
from peerd.sim.swarm.states import States
from peerd.sim.truth import HEAL_S, SERVE_TWICE_S

BEHAVIOURS_MAX: Final = 3
"""A hostile node has between one and so many behaviours of every node's, and as many of its protocols'."""


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


class Liars:
    """Draws them, starts them, and judges lookups. Without the feature it does nothing, and excuses nothing."""

    def __init__(
        self, simulation: Simulation, plan: Plan, protocols: Sequence[str], note: Callable[[str], None]
    ) -> None:
        self._simulation = simulation
        self._note = note
        self._misled = 0
        self._unanswered = 0
        count = plan.liars if plan.has(LIARS) else 0
        rng = fork(plan.seed, "swarm", LIARS, "who")
        chosen = sorted(rng.sample(range(plan.nodes), count))
        of_protocols = sorted(set(behaviours_by_name(protocols)) - {kind.name for kind in KINDS})
        by_name = behaviours_by_name(protocols)
        behaviours: dict[int, list[type[Behaviour]]] = {}
        for index in chosen:
            kinds = rng.sample(KINDS, rng.randint(1, BEHAVIOURS_MAX))
            own = fork(plan.seed, "swarm", LIARS, "protocols", index)  # so that all else stays with and without them
            names = own.sample(of_protocols, min(own.randint(1, BEHAVIOURS_MAX), len(of_protocols)))
            behaviours[index] = [*kinds, *(by_name[name] for name in names)]
        self.party = Party(simulation, behaviours)

    def begin(self) -> None:
        """From now on they misbehave, until the end of the seed: nobody heals them."""
        for index, kinds in self.party.behaviours.items():
            self._note(f"{index} misbehaves from now on: {', '.join(kind.name for kind in kinds)}")
        self.party.begin()

    def judge(self, result: LookupResult) -> None:
        """An honest node that a lookup names is the root, or only hostile nodes are closer.

        A lookup without an answer says so; one that ends at a hostile node may have been misled, and nobody can tell.
        """
        simulation = self._simulation
        ids = simulation.truth.ready.ids
        if not simulation.hostile or not ids or simulation.truth.calm_s() < HEAL_S:
            return
        if result.root is None:
            self._unanswered += 1
        elif simulation.is_hostile(result.root.id):
            self._misled += result.root.id != closest(result.key, ids)
        elif result.root.id != (root := simulation.honest_root(result.key)) and not self._has_moved(
            result.root.id, root
        ):
            raise simulation.failure(
                f"a lookup of {format_id(result.key)} names {short_id(result.root.id)} as its root"
            )

    def _has_moved(self, *roots: NodeId) -> bool:
        """Whether one of these nodes has come or gone lately, or goes now, so that two may answer for one key."""
        simulation, truth = self._simulation, self._simulation.truth
        return any(
            node_id in truth.ended
            or simulation.now - truth.since[node_id] < SERVE_TWICE_S
            or simulation.places[node_id].node.overlay.state.is_leaving  # its answer may have been under way
            for node_id in roots
        )

    def finish(self, states: States) -> None:
        """Say what was reached."""
        simulation, ids = self._simulation, self.party.ids
        states.count("liar accused", any(about.id in ids for _, _, about, _ in simulation.misbehaviours))
        states.count("message in a liar's hands", self.party.has_had_any)
        states.count("lookup misled", self._misled > 0)
        states.count("lookup unanswered", self._unanswered > 0)
        for place in simulation.honest_nodes() if ids else ():
            history = place.node.overlay.state.history
            notes = (note for node_id in sorted(ids) for note in history.of(node_id))
            states.count("liar doubted", any(note.verdict == "doubted" for note in notes))
