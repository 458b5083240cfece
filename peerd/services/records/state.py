"""What the parts of the record store share: the table, the view of the neighbourhood, and whether it has caught up."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from peerd.api import LocalRecord, RecordRole
from peerd.ids import NodeId
from peerd.messages import PeerRef
from peerd.services.records.batches import shortened
from peerd.services.records.config import RecordsConfig
from peerd.services.records.messages import ProofEnd, RecordCopy
from peerd.services.records.owners import CLOCK_MARGIN_S, SHARED
from peerd.services.records.ports import RecordsHost
from peerd.services.records.record import Record, RecordId, RecordName, from_copy, to_copy
from peerd.services.records.schedule import Schedule
from peerd.services.records.table import ORIGIN_LIMITS, OUT_OF_ROOM, REFUSALS, RecordTable
from peerd.services.records.view import ReplicaView


class RecordState:
    """Owned by `peerd.services.records.plugin.RecordStore`."""

    def __init__(self, host: RecordsHost, config: RecordsConfig) -> None:
        self.host = host
        self.config = config
        self.table = RecordTable(
            config, self._changed, self.is_genuine, self.is_allowed, host.record_upcalls.has_plugin
        )
        self.schedule = Schedule(config)
        self.view = ReplicaView(host.peer, host.leaf_set(), config.replicas)
        self.is_established = False
        """Whether this node has caught up once: from then on it holds whatever it ever held, or has seen it taken."""
        self.pulled: dict[NodeId, bool] = {}
        """Neighbours that this node has compared its records with since the neighbourhood last changed, and whether
        they are established."""
        self.lacks_records = False
        """A record that this node is the root of was refused for want of room, so what is not here may exist."""
        self.lacks_items = False
        """The same, and not only since its writer had used up its own share here: nobody brings this about alone."""
        self.owes_word = True
        """Plugins are to be told when this node has caught up: since they last were, it had to again, or one asked
        when it had not."""
        self.view_changed: Callable[[], None] = lambda: None
        self.changed: Callable[[], None] = lambda: None
        """A record came, changed or went."""
        self._told = self.view
        """The view from which plugins were last told their roles."""

    @property
    def is_settled(self) -> bool:
        """Whether this node is in the ring, with a neighbourhood that tells who holds what."""
        return self.host.is_ready and self.view.is_settled

    def sources(self) -> list[PeerRef]:
        """The neighbours to compare with next, at most one a side, before this node has caught up.

        The records of a key are where its replica set was before the last changes: with the r nodes closest to the key
        that were there then. So, on each side, the neighbours count up to the r-th that is established; newcomers
        between have nothing of their own to tell, but may have taken writes since.
        """
        found: dict[NodeId, PeerRef] = {}
        for side in self.view.sides:
            established = 0
            for peer in side:
                if established >= self.view.copies:
                    break
                if peer.id not in self.pulled:
                    found[peer.id] = peer
                    break
                established += self.pulled[peer.id]
        return list(found.values())

    @property
    def is_caught_up(self) -> bool:
        """Whether a root may answer from what it holds alone."""
        return self.has_compared and not self.lacks_records

    @property
    def has_compared(self) -> bool:
        """Whether this node has compared its records with its neighbours since they last changed."""
        return self.is_settled and not self.sources()

    @property
    def has_items(self) -> bool:
        """Whether this node holds all that there is under the keys that it is the root of (`Records.is_settled`)."""
        return self.has_compared and not self.lacks_items

    def catch_up_again(self) -> None:
        """Forget what was learnt from the neighbours, so that everything is compared again."""
        self.pulled.clear()
        self.schedule.clear()
        self.lacks_records = self.lacks_items = False
        self.owes_word = True

    def tell_settled(self) -> None:
        """Tell plugins that this node has caught up, if it has, and if they are to be told."""
        if self.owes_word and self.has_items:
            self.owes_word = False
            self.host.record_upcalls.settled()

    def refresh(self) -> ReplicaView:
        """The view of the leaf set as it is now; call it first in every handler that judges who holds what."""
        leaf_set = self.host.leaf_set()
        if leaf_set is not self.view.leaf_set:
            before, self.view = self.view, ReplicaView(self.host.peer, leaf_set, self.config.replicas)
            if self.view.near_ids != before.near_ids:
                self._near_changed(before)
            elif self.is_established and not len(self.table) and self.is_caught_up:
                return self.view  # nobody to compare with, and nothing to hand over
            if self.view.is_settled:
                self._tell_roles()
            self.view_changed()
        return self.view

    def _near_changed(self, before: ReplicaView) -> None:
        """Compare again with all, since this node may have got keys.

        Where nodes only came it has lost some, and what it learnt from the others is still true.
        """
        self.schedule.clear()
        self.owes_word = True
        if not self.view.only_gained(before):
            self.catch_up_again()

    def heard_empty(self, peer: PeerRef) -> None:
        """An established neighbour began a comparison and says that it holds nothing: it need not be asked."""
        if peer.id in self.view.near_ids:
            self.pulled[peer.id] = True

    def is_root(self, key: NodeId) -> bool:
        """Whether this node may act as the root of a key now."""
        view = self.refresh()
        return self.is_settled and view.role(key) is RecordRole.ROOT

    def _tell_roles(self) -> None:
        if not len(self.table):
            self._told = self.view
            return
        before, self._told = self._told, self.view
        for arc in self.view.changed_arcs(before):
            role = self.view.role(arc.low)
            for record in self.table.within(arc):
                if record.value is not None:
                    self.host.record_upcalls.changed(record.namespace, record.key, role, record.item)

    def _changed(self, identity: RecordId) -> None:
        self.changed()
        key, namespace, item, _ = identity
        held = self.table.get(identity)
        is_gone = held is None or held.value is None
        self.host.record_upcalls.changed(namespace, key, RecordRole.NONE if is_gone else self.view.role(key), item)

    def admit(self, copy: RecordCopy) -> str:
        """Merge what a peer sent; the table's verdict. Refusals are counted."""
        now = self.host.now()
        record = from_copy(copy, now, self.config.ttl_max, self.config.tombstone_ttl_s)
        record = self.within_signed_life(record)
        verdict = self.table.merge(record, now)
        if verdict in OUT_OF_ROOM and self.view.role(record.key) is RecordRole.ROOT:
            verdict = self._lacking(record, verdict)
        return self.counted(verdict)

    def _lacking(self, record: Record, verdict: str) -> str:
        """This root has no room for a record: what is not here may exist, unless the record is false."""
        is_share = verdict in ORIGIN_LIMITS
        if self.lacks_items or (is_share and self.lacks_records):
            return verdict  # it is known already, and checking a record takes its time
        objection = self.table.objection(record)
        if objection is None:
            self.lacks_records, self.lacks_items = True, not is_share
        return objection or verdict

    def within_signed_life(self, record: Record) -> Record:
        """The record with no more life than its writer has signed: a copy that somebody kept does not bring it back."""
        rest_s = record.write.until_s + CLOCK_MARGIN_S - self.host.wall_time()
        if record.value is not None:
            rest_s = min(rest_s, record.write.ttl_s)
        elif record.is_lapsed:
            rest_s += self.config.tombstone_ttl_s
        return replace(record, expires_at=min(record.expires_at, self.host.now() + rest_s))

    def is_genuine(self, record: Record) -> bool:
        """Whether the origin of its write has signed it."""
        return self.host.verify(record.request.origin, record.statement, record.write.proof)

    def is_allowed(self, record: Record) -> bool:
        """Whether its plugin lets the origin write it."""
        if record.owner != SHARED:
            return self.host.record_upcalls.takes_owned(record.namespace)
        return self.host.record_upcalls.is_allowed(
            record.namespace, record.key, record.item, record.value, record.request.origin
        )

    def counted(self, verdict: str) -> str:
        """Count a verdict when it is a refusal."""
        if verdict in REFUSALS:
            self.host.count("peerd_records_refusals_total", reason=verdict)
        return verdict

    def current(self, name: RecordName, owner: NodeId | None) -> Record | None:
        """The record that is held under this name and has not lapsed; it may be a tombstone.

        Without an ``owner`` the one with a value of which this node heard first, if there is one.
        """
        self.table.lapse(self.host.now())
        if owner is not None:
            return self.table.get(RecordId(*name, owner))
        found = self.table.named(name)
        return next((record for record in found if record.value is not None), found[0] if found else None)

    def copy(self, record: Record) -> RecordCopy:
        """The record as it is sent to others at this moment."""
        return to_copy(record, self.host.now())

    def batch(self, records: Sequence[Record]) -> tuple[tuple[RecordCopy, ...], tuple[ProofEnd, ...]]:
        """Records as they are sent to others together."""
        return shortened([self.copy(record) for record in records])

    def local(self, record: Record) -> LocalRecord:
        """The record as plugins see it. It must have a value."""
        remaining_s = record.expires_at - self.host.now()
        role = self.view.role(record.key)
        owner = None if record.owner == SHARED else record.owner
        return LocalRecord(record.key, record.value or b"", record.version, remaining_s, role, record.item, owner)
