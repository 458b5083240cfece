"""Invariants of the record store across the whole cluster, seen from outside the nodes."""

from __future__ import annotations

from collections.abc import Iterator

from peerd.ids import NodeId, closeness, short_id
from peerd.services.records.owners import SHARED
from peerd.services.records.record import Record, RecordId
from peerd.sim.simulation import Checker, Simulation


class Replication(Checker):
    """Every record is held, in one version, by exactly the r live nodes closest to its key.

    Holds once faults are over and repair has had its time; the last seconds of a record's life are left out, since its
    copies do not lapse at one instant.
    """

    name = "record replication"

    def __init__(self, copies: int = 3, remaining_s_min: float = 5.0) -> None:
        self._copies = copies
        self._remaining_s_min = remaining_s_min

    def check(self, simulation: Simulation) -> list[str]:
        """Compare each record's holders with the sorted ring."""
        held: dict[RecordId, dict[NodeId, Record]] = {}
        for place in simulation.live_nodes():
            for record in place.node.records.state.table:
                if record.expires_at > simulation.now + self._remaining_s_min:
                    held.setdefault(record.identity, {})[place.id] = record
        ids = simulation.oracle().ids
        return [text for identity in sorted(held) for text in self._check(identity, held[identity], ids)]

    def _check(self, identity: RecordId, copies: dict[NodeId, Record], ids: list[NodeId]) -> Iterator[str]:
        key, namespace, item, owner = identity
        whose = [] if owner == SHARED else [f"of {short_id(owner)}"]
        name = " ".join((namespace, short_id(key), *([repr(item)] if item else ()), *whose))
        expected = sorted(ids, key=lambda node_id: closeness(key, node_id))[: self._copies]
        if set(copies) != set(expected):
            names = ", ".join(short_id(node_id) for node_id in sorted(copies))
            wanted = ", ".join(short_id(node_id) for node_id in sorted(expected))
            yield f"{name} is held by {names}, not by {wanted}"
        versions = {(record.version.rank, record.value) for record in copies.values()}
        if len(versions) > 1:
            yield f"{name} has {len(versions)} versions"
