"""A node as the root of keys: it executes requests, and answers only for what it knows.

After a change of neighbours a root may lack writes that others hold. Until it has compared its records with them, it
asks them before each operation, and answers NOT_ROOT while one that it needs is silent.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Final

from peerd.api import NO_VERSION, RecordVersion
from peerd.ids import NodeId, format_id
from peerd.messages import Message, PeerRef
from peerd.services.records import messages
from peerd.services.records.messages import RecordAnswer, RecordRequest, ReplicaGet, ReplicaGot, RequestId, SignedWrite
from peerd.services.records.owners import SHARED
from peerd.services.records.record import Record, RecordId, RecordName, owned_version
from peerd.services.records.replication import Replicator
from peerd.services.records.state import RecordState
from peerd.services.records.table import OUT_OF_ROOM, REFUSALS, RequestKey

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


Wanted = tuple[RecordName, NodeId | None]
"""The name that a request is about, and whose record; ``None``: whichever there is."""


class Root:
    """Serves the keys that this node is the root of."""

    def __init__(self, state: RecordState, replicator: Replicator) -> None:
        self._state = state
        self._host = state.host
        self._replicator = replicator
        self._catch_ups: dict[Wanted, CatchUp] = {}

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
        is_crowded = request.is_replicated and self._replicator.is_crowded(_written(request))
        return "busy" if is_crowded or self._replicator.is_full else None

    # Catching up on one record

    def _catch_up(self, request: RecordRequest, source: PeerRef) -> None:
        wanted = _wanted(request)
        catch_up = self._catch_ups.get(wanted)
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
            self._catch_ups[wanted] = catch_up
            self._ask(wanted, catch_up)

    def _new_catch_up(self, key: NodeId) -> CatchUp:
        view = self._state.view
        known = view.holders(key, 2 * view.copies + 1)
        others = tuple(peer for peer in known if peer.id != self._host.id)
        return CatchUp(others, view.leaf_set.covers_ring and len(known) == 1 + len(view.leaf_set.members()))

    def _ask(self, wanted: Wanted, catch_up: CatchUp) -> None:
        def answered(reply: Message, peer: PeerRef) -> None:
            if isinstance(reply, ReplicaGot):
                catch_up.versions[peer.id] = None if reply.record is None else reply.record.version
                copies = () if reply.record is None else (reply.record,)
                for copy in (*copies, *reply.others):
                    catch_up.is_refused |= self._state.admit(copy) in OUT_OF_ROOM
                done(peer.id, reply.is_established)
            else:
                done(peer.id, None)

        def done(node_id: NodeId, is_established: bool | None) -> None:
            catch_up.answers[node_id] = is_established
            is_over = len(catch_up.answers) == len(catch_up.asked) or catch_up.is_enough(enough)
            if is_over and self._catch_ups.get(wanted) is catch_up:
                self._caught_up(wanted, catch_up)

        (key, namespace, item), owner = wanted
        timeout_s, enough = self._state.config.peer_timeout, self._state.config.replicas
        for peer in catch_up.asked:
            self._host.request(
                peer, ReplicaGet(namespace, key, item, owner), timeout_s, answered, partial(done, peer.id, None)
            )
        if not catch_up.asked:
            self._caught_up(wanted, catch_up)

    def _caught_up(self, wanted: Wanted, catch_up: CatchUp) -> None:
        del self._catch_ups[wanted]
        current = self._state.current(*wanted)
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
        current = self._state.current(*_wanted(request))
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
            owner=current.owner,
            nonce=request.nonce,
            request=current.request,
            write=current.write,
        )
        self._host.send(source, answer)

    def _write(self, request: RecordRequest, source: PeerRef, current: Record | None) -> None:
        limit = self._limit(request)
        if limit is not None:
            self._refuse(request, source, messages.QUOTA, limit)
            return
        other = self._in_the_way(request, current)
        if other is not None:
            self._answer_owned(request, source, other)
            return
        if current is not None and _is_superseded(request, source, current):
            self._answer(request, source, messages.CONFLICT, current.version, detail="superseded")
            return
        version = NO_VERSION if current is None or current.value is None else current.version
        if request.if_version is not None and request.if_version != version:
            self._answer(request, source, messages.CONFLICT, version, detail="if_version")
            return
        record = self._state.within_signed_life(self._make(request, source, current))
        is_late = record.expires_at <= self._host.now()
        verdict = "late" if is_late else self._state.table.merge(record, self._host.now())
        if verdict == "forged":  # nobody is told: who is named as its source has not sent it
            self._state.counted(verdict)
            return
        if is_late or verdict in REFUSALS:
            self._refuse(request, source, messages.QUOTA, verdict)
            return
        self._confirm(request, source, record.version, record)

    def _limit(self, request: RecordRequest) -> str | None:
        """Which limit of this node a write breaks by itself."""
        config = self._state.config
        if request.verb == messages.PUT and not 0 < request.ttl_s <= config.ttl_max:
            return "ttl"
        return "value_bytes" if len(request.value or b"") > config.value_bytes_max else None

    def _in_the_way(self, request: RecordRequest, current: Record | None) -> Record | None:
        """Another's record of this name, or a shared one, where the writer has none of its own yet.

        A courtesy to honest writers: two records of one name would both be kept, as after a partition.
        """
        if current is not None and current.value is not None:
            return None
        named = self._state.table.named(_wanted(request)[0])
        return next((each for each in named if each.value is not None and each.owner != request.owner), None)

    def _make(self, request: RecordRequest, source: PeerRef, current: Record | None) -> Record:
        now, config = self._host.now(), self._state.config
        is_delete = request.verb == messages.DELETE
        covered_until = now if current is None else max(now, current.expires_at, current.covered_until)
        identity, owner = RequestId(source.id, request.epoch, request.sequence), _written(request).owner
        if owner == SHARED:
            version = self._state.table.next_version(self._host.boot_epoch, self._host.id)
        else:
            version = owned_version(identity)
        return Record(
            request.namespace,
            request.key,
            version,
            None if is_delete else request.value or b"",
            now + (config.tombstone_ttl_s if is_delete else request.ttl_s),
            covered_until,
            identity,
            request.item,
            owner,
            SignedWrite(request.ttl_s, request.until_s, b"", request.proof),
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

    def _answer_owned(self, request: RecordRequest, source: PeerRef, other: Record) -> None:
        is_shared = other.owner == SHARED
        detail = "it is a shared record" if is_shared else f"it belongs to {format_id(other.owner)}"
        self._host.count("peerd_records_refusals_total", reason="owned")
        self._answer(request, source, messages.OWNED, other.version, 0, detail, other.owner)

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
        owner: NodeId = SHARED,
    ) -> None:
        sequence, attempt, nonce = request.sequence, request.attempt, request.nonce
        answer = RecordAnswer(
            sequence, attempt, status, version, None, 0.0, min(copies, 255), detail, owner=owner, nonce=nonce
        )
        self._host.send(source, answer)


def _wanted(request: RecordRequest) -> Wanted:
    owner = request.owner if request.verb == messages.GET else _written(request).owner
    return (request.key, request.namespace, request.item), owner


def _written(request: RecordRequest) -> RecordId:
    """The record that a PUT or DELETE writes."""
    return RecordId(request.key, request.namespace, request.item, request.owner or SHARED)


def _request_key(request: RecordRequest, source: PeerRef) -> RequestKey:
    return source.id, request.epoch, request.sequence


def _is_superseded(request: RecordRequest, source: PeerRef, current: Record) -> bool:
    """The same node wrote this record later: the request was held up on the way, its caller has moved on."""
    last = current.request
    return last.origin == source.id and (last.epoch, last.sequence) > (request.epoch, request.sequence)
