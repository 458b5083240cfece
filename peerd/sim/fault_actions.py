"""The actions of a scenario that break the network, clocks or processes for a while.

All of them hit running nodes, by default all nodes, and last for ``duration``, or without it until ``heal`` (clocks:
for ever; pauses: until ``resume``). Nodes that are chosen at random are drawn from the seed.
"""

from __future__ import annotations

from itertools import accumulate, pairwise
from random import Random
from typing import Any, Literal

from pydantic import Field, model_validator

from peerd.errors import ConfigError
from peerd.sim.clock import DRIFT_MAX
from peerd.sim.faults import Direction, Impairment, Scope, between_groups, majorities_ring
from peerd.sim.tables import Probability, Seconds, Selection
from peerd.sim.world import SimNode, World


class Fault(Selection):
    """Base of all faults."""

    duration: Seconds | None = Field(
        default=None, gt=0, le=1e7, description="For how long; absent: until it is undone."
    )

    @property
    def is_selective(self) -> bool:
        """Whether it names the nodes that it hits."""
        return self.count is not None or self.share is not None or self.nodes is not None


class Impair(Fault):
    """Paths lose, repeat, hold up or stop what is sent on them. Adds to what ``[network]`` says."""

    do: Literal["impair"]
    direction: Direction = Field(default="both", description="Paths into the nodes, out of them, or both.")
    loss: Probability = Field(default=0.0, description="Probability that a message is lost.")
    duplication: Probability = Field(default=0.0, description="Probability that a message arrives twice.")
    reordering: Probability = Field(default=0.0, description="Probability that a message is held up.")
    reorder_delay: Seconds = Field(default=0.1, ge=0, le=60, description="At most this long, uniformly.")
    clog: Probability = Field(default=0.0, description="Probability, each second, that a path stops.")
    clog_longest: Seconds = Field(default=5.0, ge=0, le=3600, description="At most this long, uniformly.")


class Partition(Fault):
    """Cut the network into groups: by shares, or the nodes that are named from the rest. Replaces the last one."""

    do: Literal["partition"]
    mode: Literal["groups", "majorities_ring"] = Field(
        default="groups", description="groups, or majorities_ring: each node reaches a majority, no two the same one."
    )
    shares: tuple[float, ...] = Field(
        default=(0.5, 0.5), min_length=2, max_length=64, description="Share of the nodes in each group."
    )
    one_way: bool = Field(default=False, description="Whether later groups are heard by earlier ones all the same.")

    @model_validator(mode="after")
    def _check_mode(self) -> Partition:
        is_by_shares = "shares" in self.model_fields_set
        if self.mode == "majorities_ring" and (self.is_selective or is_by_shares or self.one_way):
            raise ValueError("majorities_ring is about all nodes: no shares, count, share, nodes or one_way")
        if self.is_selective and is_by_shares:
            raise ValueError("give shares, or one of count, share and nodes")
        return self


class Cut(Fault):
    """One direction between two nodes, or everything into or out of some nodes, gets nowhere."""

    do: Literal["cut"]
    source: int | None = Field(default=None, ge=0, description="Index of the node that is not heard any more.")
    target: int | None = Field(default=None, ge=0, description="Index of the node that does not hear it.")
    direction: Direction = Field(default="both", description="in: the nodes hear nobody; out: nobody hears them.")

    @model_validator(mode="after")
    def _check_whom(self) -> Cut:
        is_pair = self.source is not None and self.target is not None
        if is_pair == self.is_selective or (self.source is None) != (self.target is None):
            raise ValueError("give source and target, or one of count, share and nodes")
        return self


class Pause(Fault):
    """SIGSTOP, and SIGCONT after ``duration``. Default: one node."""

    do: Literal["pause"]
    spacing_s: Seconds = Field(default=0.0, ge=0, description="Between two nodes.")


class SetClocks(Fault):
    """Clocks go wrong, each node's by itself. What is not given is right; after ``duration`` everything is."""

    do: Literal["clock"]
    drift: float = Field(
        default=0.0, ge=0, le=DRIFT_MAX, description="The monotonic clock gains or loses up to this share."
    )
    offset: Seconds = Field(default=0.0, ge=0, le=1e9, description="The time of day jumps by up to this, either way.")
    strobe: Seconds = Field(default=0.0, ge=0, le=1e9, description="The time of day jumps to and fro by this.")
    strobe_period: Seconds = Field(default=0.01, gt=0, le=1e6, description="How often it does.")


AnyFault = Impair | Partition | Cut | Pause | SetClocks
FAULTS: dict[str, type[Fault]] = {
    "impair": Impair,
    "partition": Partition,
    "cut": Cut,
    "pause": Pause,
    "clock": SetClocks,
}


def inject(world: World[Any], fault: AnyFault, places: list[SimNode[Any]], generator: Random) -> None:
    """Begin a fault. ``places`` are the nodes that it hits, in the order in which they were drawn."""
    network = world.network
    match fault:
        case Impair():
            scope = Scope(frozenset(place.index for place in places) if fault.is_selective else None, fault.direction)
            network.impair(_impairment(fault), scope, fault.duration)
        case Partition(mode="majorities_ring"):
            network.partition_by(majorities_ring(_shuffled(world, generator)), fault.duration)
        case Partition():
            cut = between_groups(_groups(world, fault, places, generator), is_one_way=fault.one_way)
            network.partition_by(cut, fault.duration)
        case Cut(source=int(source), target=int(target)):
            if max(source, target) >= len(world.nodes):
                raise ConfigError(f"no node {max(source, target)}: there are {len(world.nodes)}", key="cut")
            network.cut_by(lambda a, b: (a, b) == (source, target), fault.duration)
        case Cut():
            scope = Scope(frozenset(place.index for place in places), fault.direction)
            network.cut_by(scope.covers, fault.duration)
        case Pause():
            for number, place in enumerate(places):
                _pause(world, place, fault.spacing_s * number, fault.duration)
        case SetClocks():
            for place in places:
                _set_clock(world, place, fault, generator)


def _impairment(fault: Impair) -> Impairment:
    return Impairment(
        fault.loss, fault.duplication, fault.reordering, fault.reorder_delay, fault.clog, fault.clog_longest
    )


def _shuffled(world: World[Any], generator: Random) -> list[int]:
    order = list(range(len(world.nodes)))
    generator.shuffle(order)
    return order


def _groups(world: World[Any], fault: Partition, places: list[SimNode[Any]], generator: Random) -> list[list[int]]:
    if fault.is_selective:
        return [[place.index for place in places]]
    order = _shuffled(world, generator)
    total = sum(fault.shares)
    bounds = [0, *(round(len(order) * share / total) for share in accumulate(fault.shares))]
    return [order[first:last] for first, last in pairwise(bounds)]


def _pause(world: World[Any], place: SimNode[Any], delay_s: float, duration_s: float | None) -> None:
    def pause() -> None:
        if not place.is_live:
            return
        driver = place.driver
        world.pause(place)
        if duration_s is not None:  # only this process, and not a newer one of the same node
            world.after(duration_s, lambda: world.resume(place) if place.driver is driver else None)

    if delay_s:
        world.after(delay_s, pause)
    else:
        pause()


def _set_clock(world: World[Any], place: SimNode[Any], fault: SetClocks, generator: Random) -> None:
    clock = place.port.skewed_clock()
    clock.set_drift(world.now, generator.uniform(-fault.drift, fault.drift))
    clock.offset_s = generator.uniform(-fault.offset, fault.offset)
    clock.strobe_s, clock.strobe_period_s = fault.strobe, fault.strobe_period if fault.strobe else 0.0

    def set_right() -> None:
        clock.set_drift(world.now, 0.0)
        clock.offset_s = clock.strobe_s = clock.strobe_period_s = 0.0

    if fault.duration is not None:
        world.after(fault.duration, set_right)
