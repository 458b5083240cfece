"""Invariants of streams in the simulator, seen from inside all nodes at once.

What a hostile node says of its place is its own affair, so edges are judged among honest nodes only.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Final

from peerd.ids import NodeId, short_id
from peerd.sim.checkers import Checker
from peerd.sim.simulation import Place, Simulation
from protocols.dissemination.config import DisseminationConfig
from protocols.dissemination.messages import DEPTH_MAX, ITEMS_BYTES_MAX
from protocols.dissemination.plugin import Dissemination
from protocols.dissemination.stream_node import StreamNode

TAKEN_AGAIN_S: Final = 1.0
"""A connection that takes more again is given what waits within this: it is looked at four times a second."""


def streams_of(place: Place) -> Iterator[StreamNode]:
    """The streams that a node takes part in."""
    plugin = place.node.plugins.get(Dissemination.name)
    if isinstance(plugin, Dissemination):
        yield from plugin.nodes


def _honest(simulation: Simulation) -> Iterator[tuple[Place, StreamNode]]:
    for place in simulation.honest_nodes() if simulation.hostile else simulation.live_nodes():
        for node in streams_of(place):
            yield place, node


class NoCircles(Checker):
    """Following parents, no way of a stream comes back to where it began.

    A node that moves has two parents for a while, and an orphan takes the stream from a node that is not known yet to
    be above it; it calls that node its parent only when that is known.
    """

    name = "streams have no circles"
    number = 17
    holds_always: ClassVar[bool] = True

    def check(self, simulation: Simulation) -> list[str]:
        parents: dict[str, dict[NodeId, NodeId]] = {}
        for place, node in _honest(simulation):
            if node.parent is not None:
                parents.setdefault(node.name, {})[place.id] = node.parent.id
        return [told for stream, edges in parents.items() for told in _circles(stream, edges)]


def _circles(stream: str, parents: dict[NodeId, NodeId]) -> Iterator[str]:
    clear: set[NodeId] = set()
    for start in parents:
        way: dict[NodeId, None] = {}
        at = start
        while at in parents and at not in way and at not in clear:
            way[at] = None
            at = parents[at]
        if at in way:
            names = [short_id(each) for each in way]
            yield f"{stream}: a circle through {' -> '.join(names[names.index(short_id(at)) :])}"
        clear.update(way)


class StreamBounds(Checker):
    """Children, depth, buffers and queues are within their limits; one more child only where one leaves, or has handed
    the stream over."""

    name = "streams within limits"
    number = 18
    holds_always: ClassVar[bool] = True

    def check_node(self, simulation: Simulation, place: Place) -> list[str]:
        found = []
        for node in streams_of(place):
            config = _config_of(place)
            children = node.member.down.children
            buffer = node.member.state.buffer
            if len(children) > config.fan_out + 1:
                found.append(f"{node.name}: {len(children)} children at {place}, and the fan-out is {config.fan_out}")
            if len(node.member.state.path) > DEPTH_MAX:
                found.append(f"{node.name}: {place} is {len(node.member.state.path)} deep")
            if buffer.bytes > config.replay_bytes + ITEMS_BYTES_MAX or len(buffer) > config.replay_items:
                found.append(f"{node.name}: {place} remembers {len(buffer)} items of {buffer.bytes} bytes")
            found += [
                f"{node.name}: {len(child.queue)} items wait for {child.peer} at {place}"
                for child in children.values()
                if child.queue_bytes > config.replay_bytes or len(child.queue) > config.replay_items
            ]
        return found


class SiblingsFlow(Checker):
    """F19: nothing waits for a child whose connection takes more, whoever else is slow."""

    name = "slow children hold nobody up"
    holds_always: ClassVar[bool] = True

    def __init__(self) -> None:
        self._free_since: dict[int, dict[tuple[int, NodeId, NodeId, int], float]] = {}
        """Since when something waits for a child that would take it: by node; boot, stream, child and its attempt."""

    def check_node(self, simulation: Simulation, place: Place) -> list[str]:
        found, before = [], self._free_since.get(place.index, {})
        free = self._free_since[place.index] = {}
        for node in streams_of(place):
            for child in node.member.down.children.values():
                if not child.outbox or node.is_slow(child.peer) or place.index in simulation.truth.paused:
                    continue
                key = place.boot_epoch, node.record.key, child.peer.id, child.attempt
                free[key] = before.get(key, simulation.now)
                if simulation.now - free[key] >= TAKEN_AGAIN_S:
                    found.append(f"{node.name}: {child.peer} would take what waits for it at {place}, and gets nothing")
        return found


def _config_of(place: Place) -> DisseminationConfig:
    config = place.node.plugins[Dissemination.name].config
    assert isinstance(config, DisseminationConfig)
    return config


class NoOrphans(Checker):
    """In a calm ring: every member of a stream whose producer lives has a parent, and the parent knows of it."""

    name = "streams have no orphans"
    number = 19

    def check(self, simulation: Simulation) -> list[str]:
        members = {(node.name, place.id): node for place, node in _honest(simulation)}
        alive = {name for (name, _), node in members.items() if node.is_producer}
        found = []
        for (name, id), node in members.items():
            if node.is_producer or name not in alive or node.is_unused:
                continue
            if node.parent is None:
                found.append(f"{name}: {short_id(id)} has no parent")
                continue
            parent = members.get((name, node.parent.id))
            if parent is not None and id not in parent.member.down.children:
                found.append(f"{name}: {short_id(node.parent.id)} does not know its child {short_id(id)}")
        return found


class OneProducer(Checker):
    """In a calm ring: no two nodes produce streams of one name."""

    name = "streams have one producer"

    def check(self, simulation: Simulation) -> list[str]:
        producers: dict[str, list[str]] = {}
        for place, node in _honest(simulation):
            if node.is_producer:
                producers.setdefault(node.name, []).append(short_id(place.id))
        return [f"{name}: {' and '.join(ids)} produce it" for name, ids in producers.items() if len(ids) > 1]
