"""A node as the root of keys: it executes requests, and answers only for what it knows.

After a change of neighbours a root may lack writes that others hold. Until it has compared its records with them, it
asks them before each operation, and answers NOT_ROOT while one that it needs is silent.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Final

from peerd.api import NO_VERSION, RecordVersion
from peerd.ids import NodeId
from peerd.messages import Message, PeerRef
from peerd.services.records import messages
from peerd.services.records.messages import RecordAnswer, RecordRequest, ReplicaGet, ReplicaGot, RequestId
from peerd.services.records.record import Record, RecordId
from peerd.services.records.replication import Replicator
from peerd.services.records.state import RecordState
from peerd.services.records.table import REFUSALS, RequestKey

CATCH_UPS_MAX: Final = 128
REQUESTS_PER_CATCH_UP_MAX: Final = 128


@dataclass(slots=True)
class CatchUp:
    """The nodes that may hold one record are being asked for it."""

    asked: tuple[PeerRef, ...]
    """Closest to the key first, without this node."""
    is_all: bool
    """There are no other nodes."""
    requests: dict[RequestKey, tuple[RecordRequest, PeerRef]] = field(default_factory=dict)
    answers: dict[NodeId, bool | None] = field(default_factory=dict)
    """For each node asked, whether it says that it is established; ``None`` if it was silent."""
    versions: dict[NodeId, RecordVersion | None] = field(default_factory=dict)
    """What those who answered had."""
    is_refused: bool = False
    """There is no room here for the record that another node holds."""

    def is_enough(self, copies: int) -> bool:
        """Whether everybody answered up to the ``copies``-th established node: those held the key before."""
        established = 0
        for peer in self.asked:
            answer = self.answers.get(peer.id)
            if answer is None:
                return False
            established += answer
            if established >= copies:
                return True
        return self.is_all


class Root:
    """Serves the keys that this node is the root of."""

    def __init__(self, state: RecordState, replicator: Replicator) -> None:
        self._state = state
        self._host = state.host
        self._replicator = replicator
        self._catch_ups: dict[RecordId, CatchUp] = {}

    def received(self, request: RecordRequest, source: PeerRef) -> None:
        """A request was delivered here."""
        refusal = self._refusal(request)
        if refusal is not None:
            self._refuse(request, source, messages.NOT_ROOT, refusal)
        elif self._state.is_caught_up:
            self._execute(request, source)
        else:
            self._catch_up(request, source)

    def _refusal(self, request: RecordRequest) -> str | None:
        if not self._state.is_root(request.key):
            return "not_root"
        if request.verb == messages.GET:
            return None
        is_crowded = request.is_replicated and self._replicator.is_crowded(_identity(request))
        return "busy" if is_crowded or self._replicator.is_full else None

    # Catching up on one record

    def _catch_up(self, request: RecordRequest, source: PeerRef) -> None:
        identity = _identity(request)
        catch_up = self._catch_ups.get(identity)
        is_new = catch_up is None
        if is_new and len(self._catch_ups) >= CATCH_UPS_MAX:
            self._refuse(request, source, messages.NOT_ROOT, "busy")
            return
        catch_up = catch_up or self._new_catch_up(request.key)
        if len(catch_up.requests) >= REQUESTS_PER_CATCH_UP_MAX:
            self._refuse(request, source, messages.NOT_ROOT, "busy")
            return
        catch_up.requests[_request_key(request, source)] = (request, source)
        if is_new:
            self._catch_ups[identity] = catch_up
            self._ask(identity, catch_up)

    def _new_catch_up(self, key: NodeId) -> CatchUp:
        view = self._state.view
        known = view.holders(key, 2 * view.copies + 1)
        others = tuple(peer for peer in known if peer.id != self._host.id)
        return CatchUp(others, view.leaf_set.covers_ring and len(known) == 1 + len(view.leaf_set.members()))

    def _ask(self, identity: RecordId, catch_up: CatchUp) -> None:
        def answered(reply: Message, peer: PeerRef) -> None:
            if isinstance(reply, ReplicaGot):
                catch_up.versions[peer.id] = None if reply.record is None else reply.record.version
                if reply.record is not None and self._state.admit(reply.record) in REFUSALS:
                    catch_up.is_refused = True
                done(peer.id, reply.is_established)
            else:
                done(peer.id, None)

        def done(node_id: NodeId, is_established: bool | None) -> None:
            catch_up.answers[node_id] = is_established
            is_over = len(catch_up.answers) == len(catch_up.asked) or catch_up.is_enough(copies)
            if is_over and self._catch_ups.get(identity) is catch_up:
                self._caught_up(identity, catch_up)

        key, namespace, item = identity
        timeout_s, copies = self._state.config.peer_timeout, self._state.config.replicas
        for peer in catch_up.asked:
            self._host.request(
                peer, ReplicaGet(namespace, key, item), timeout_s, answered, partial(done, peer.id, None)
            )
        if not catch_up.asked:
            self._caught_up(identity, catch_up)

    def _caught_up(self, identity: RecordId, catch_up: CatchUp) -> None:
        del self._catch_ups[identity]
        current = self._state.current(identity)
        if current is not None:
            self._repair(current, catch_up)
        is_enough = catch_up.is_enough(self._state.config.replicas)
        reason = "no_room" if catch_up.is_refused else "catching_up"
        for request, source in catch_up.requests.values():
            refusal = self._refusal(request) if is_enough and not catch_up.is_refused else reason
            if refusal is not None:
                self._refuse(request, source, messages.NOT_ROOT, refusal)
            else:
                self._execute(request, source)

    def _repair(self, current: Record, catch_up: CatchUp) -> None:
        """Send the record to replicas that answered with an older version, or none."""
        view, versions = self._state.view, catch_up.versions
        replicas = [peer.id for peer in view.holders(current.key, view.copies) if peer.id in versions]
        if any(versions[node_id] != current.version for node_id in replicas) and not self._replicator.is_full:
            self._host.count("peerd_records_read_repairs_total")
            self._replicator.push(current)

    # Execution

    def _execute(self, request: RecordRequest, source: PeerRef) -> None:
        current = self._state.current(_identity(request))
        if request.verb == messages.GET:
            self._read(request, source, current)
            return
        written = self._state.table.version_written(*_request_key(request, source))
        if written is not None:
            self._confirm(request, source, written, current)
        else:
            self._write(request, source, current)

    def _read(self, request: RecordRequest, source: PeerRef, current: Record | None) -> None:
        if current is None or current.value is None:
            self._answer(request, source, messages.ABSENT)
            return
        answer = RecordAnswer(
            request.sequence,
            request.attempt,
            messages.FOUND,
            current.version,
            current.value,
            max(0.0, current.expires_at - self._host.now()),
        )
        self._host.send(source, answer)

    def _write(self, request: RecordRequest, source: PeerRef, current: Record | None) -> None:
        config = self._state.config
        if request.verb == messages.PUT and not 0 < request.ttl_s <= config.ttl_max:
            self._refuse(request, source, messages.QUOTA, "ttl")
            return
        if len(request.value or b"") > config.value_bytes_max:
            self._refuse(request, source, messages.QUOTA, "value_bytes")
            return
        if current is not None and _is_superseded(request, source, current):
            self._answer(request, source, messages.CONFLICT, current.version, detail="superseded")
            return
        version = NO_VERSION if current is None or current.value is None else current.version
        if request.if_version is not None and request.if_version != version:
            self._answer(request, source, messages.CONFLICT, version, detail="if_version")
            return
        record = self._make(request, source, current)
        verdict = self._state.table.merge(record, self._host.now())
        if verdict in REFUSALS:
            self._refuse(request, source, messages.QUOTA, verdict)
            return
        self._confirm(request, source, record.version, record)

    def _make(self, request: RecordRequest, source: PeerRef, current: Record | None) -> Record:
        now, config = self._host.now(), self._state.config
        is_delete = request.verb == messages.DELETE
        covered_until = now if current is None else max(now, current.expires_at, current.covered_until)
        return Record(
            request.namespace,
            request.key,
            self._state.table.next_version(self._host.boot_epoch, self._host.id),
            None if is_delete else request.value or b"",
            now + (config.tombstone_ttl_s if is_delete else request.ttl_s),
            covered_until,
            RequestId(source.id, request.epoch, request.sequence),
            request.item,
        )

    def _confirm(self, request: RecordRequest, source: PeerRef, version: RecordVersion, current: Record | None) -> None:
        """The write is in the table (or was, and has been superseded or has lapsed): replicate, and answer."""
        if current is None or not request.is_replicated:
            self._answer(request, source, messages.STORED, version, copies=int(current is not None))
            if current is not None:
                self._replicator.push(current)
            return

        def replicated(copies: int, is_refused: bool) -> None:
            status = messages.QUOTA if is_refused else messages.STORED
            self._answer(request, source, status, version, copies, "replica" if is_refused else "")

        self._replicator.push(current, _request_key(request, source), replicated)

    # Answers

    def _refuse(self, request: RecordRequest, source: PeerRef, status: int, reason: str) -> None:
        self._host.count("peerd_records_refusals_total", reason=reason)
        self._answer(request, source, status, detail=reason)

    def _answer(
        self,
        request: RecordRequest,
        source: PeerRef,
        status: int,
        version: RecordVersion | None = None,
        copies: int = 0,
        detail: str = "",
    ) -> None:
        answer = RecordAnswer(request.sequence, request.attempt, status, version, None, 0.0, min(copies, 255), detail)
        self._host.send(source, answer)


def _identity(request: RecordRequest) -> RecordId:
    return RecordId(request.key, request.namespace, request.item)


def _request_key(request: RecordRequest, source: PeerRef) -> RequestKey:
    return source.id, request.epoch, request.sequence


def _is_superseded(request: RecordRequest, source: PeerRef, current: Record) -> bool:
    """The same node wrote this record later: the request was held up on the way, its caller has moved on."""
    last = current.request
    return last.origin == source.id and (last.epoch, last.sequence) > (request.epoch, request.sequence)
