"""The record store's messages: type ids 0x0060 to 0x006F.

Times are what remains, in seconds from sending; no clock is compared with another node's.
"""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta

from peerd import limits
from peerd.api import RecordVersion
from peerd.ids import NodeId
from peerd.lib.proof_ends import MARK_BYTES
from peerd.messages import U8, U16, U64, Message, Name, Struct, Text, message
from peerd.services.records.owners import SHARED

BUCKETS: Final = 64
"""Digests in which a range is compared first."""
DIGEST_BYTES: Final = 8
DIGESTS_BYTES: Final = BUCKETS * DIGEST_BYTES
RANGES_MAX: Final = 4
PAGE_RECORDS_MAX: Final = 256
"""Versions in one message of a comparison."""
BATCH_RECORDS_MAX: Final = 256
BATCH_BYTES_MAX: Final = 48 * limits.KIB
"""Values (and `config.RECORD_OVERHEAD_BYTES` each) in one message; a single record always fits."""
ITEM_BYTES_MAX: Final = 64
VALUE_BYTES_HARD_MAX: Final = 40 * limits.KIB
REMAINING_S_MAX: Final = 8 * 86_400.0
WALL_TIME_MAX: Final = 1e12
VALUE_DIGEST_BYTES: Final = 32

GET, PUT, DELETE = range(3)
STORED, FOUND, ABSENT, CONFLICT, QUOTA, NOT_ROOT, OWNED = range(7)
HELD, REFUSED, LACKS_PROOF = range(3)

_SMALL: Final = 512
Verb = Annotated[int, Meta(ge=GET, le=DELETE)]
Item = Annotated[bytes, Meta(max_length=ITEM_BYTES_MAX)]
"""The name of one of the records under a key; empty where there is only one."""
Value = Annotated[bytes, Meta(max_length=VALUE_BYTES_HARD_MAX)]
Remaining = Annotated[float, Meta(ge=0.0, le=REMAINING_S_MAX)]
WallTime = Annotated[float, Meta(ge=0.0, le=WALL_TIME_MAX)]
Proof = Annotated[bytes, Meta(max_length=limits.PROOF_BYTES_MAX)]
Digest = Annotated[bytes, Meta(max_length=VALUE_DIGEST_BYTES)]


class RequestId(Struct):
    """Names one operation; it stays the same when the operation is sent again."""

    origin: NodeId
    epoch: U64
    sequence: U64

    @property
    def number(self) -> tuple[NodeId, int, int]:
        """The same as a key of a table."""
        return self.origin, self.epoch, self.sequence


class SignedWrite(Struct):
    """What the origin of a write has signed, besides what the record or the request itself says.

    ``ttl_s``: the lifetime that it asked for. ``until_s``: the end of that lifetime by its clock, Unix seconds.
    ``value_digest`` is empty but where the value has lapsed and is not there any more: then it is the value's.
    ``proof``: see `peerd.api.Host.sign`; `peerd.services.records.owners` has what is signed.
    """

    ttl_s: Remaining = 0.0
    until_s: WallTime = 0.0
    value_digest: Digest = b""
    proof: Proof = b""


UNSIGNED: Final = SignedWrite()
"""What nobody has signed."""


class RecordCopy(Struct):
    """A record on its way. ``value`` is ``None`` for a tombstone; older versions may live for ``covered_s`` more.

    ``request`` is the write that made it; its origin has signed it and is charged for it. ``owner`` is that origin, or
    0 (`SHARED`) where anybody may write.
    """

    namespace: Name
    key: NodeId
    version: RecordVersion
    value: Value | None
    remaining_s: Remaining
    covered_s: Remaining
    request: RequestId
    item: Item = b""
    owner: NodeId = SHARED
    write: SignedWrite = UNSIGNED


class RecordSummary(Struct):
    """Which version of a record the sender has."""

    namespace: Name
    key: NodeId
    version: RecordVersion
    item: Item = b""
    owner: NodeId = SHARED


CopyIndexes = Annotated[tuple[U8, ...], Meta(max_length=BATCH_RECORDS_MAX)]


class ProofEnd(Struct):
    """What the proofs of some records of a message end with, which is said once: the certificate of their writer.

    ``indexes``: of the records whose proofs it completes. Of several for one record the last counts.
    """

    end: Proof
    indexes: CopyIndexes


class KnownEnd(Struct):
    """The same, where the receiver should have it already: ``mark`` is its digest (BLAKE2b)."""

    mark: Annotated[bytes, Meta(min_length=MARK_BYTES, max_length=MARK_BYTES)]
    indexes: CopyIndexes


KnownEnds = Annotated[tuple[KnownEnd, ...], Meta(max_length=BATCH_RECORDS_MAX)]
ProofEnds = Annotated[tuple[ProofEnd, ...], Meta(max_length=BATCH_RECORDS_MAX)]
Copies = Annotated[tuple[RecordCopy, ...], Meta(max_length=BATCH_RECORDS_MAX)]
Summaries = Annotated[tuple[RecordSummary, ...], Meta(max_length=PAGE_RECORDS_MAX)]
Indexes = Annotated[tuple[U16, ...], Meta(max_length=PAGE_RECORDS_MAX)]
Digests = Annotated[bytes, Meta(max_length=DIGESTS_BYTES)]
Buckets = Annotated[tuple[U8, ...], Meta(max_length=BUCKETS)]
Statuses = Annotated[tuple[U8, ...], Meta(max_length=BATCH_RECORDS_MAX)]


class RangeDigests(Struct):
    """Digests of the sender's records in [low, high), cut into equal parts; the whole ring if both are equal.

    Bounds are places: a key and, behind it, ``low_item`` or ``high_item``, compared with 64 bits of a hash of namespace
    and item. So the items of one key make a range, too. ``digests`` without zeros at the end: of a range that holds
    nothing there are none. ``is_pull``: the sender wants what it lacks, and gives nothing; parts where the receiver has
    nothing do not differ.
    """

    low: NodeId
    high: NodeId
    digests: Digests
    is_pull: bool
    low_item: U64 = 0
    high_item: U64 = 0


class DifferingParts(Struct):
    """The parts of one range, by number, in which the sender has other records or versions."""

    parts: Buckets


Ranges = Annotated[tuple[RangeDigests, ...], Meta(max_length=RANGES_MAX)]
Differing = Annotated[tuple[DifferingParts, ...], Meta(max_length=RANGES_MAX)]


@message(0x0060, bytes_max=limits.ROUTED_BODY_BYTES_MAX)
class RecordRequest(Message):
    """Routed to the root of the key, which answers its source with `RecordAnswer`.

    ``verb`` is GET, PUT or DELETE. The request id is (source, ``epoch``, ``sequence``); ``attempt`` counts sendings.
    ``is_replicated`` asks for the answer only once the whole replica set holds the write. ``owner``: of a write its
    source, or 0 for a shared record; of a GET whose record is meant, ``None`` for whichever there is. A write is signed
    by its source. ``nonce`` comes back in the answer, so that nobody answers who has not seen the request.
    """

    verb: Verb
    namespace: Name
    key: NodeId
    epoch: U64
    sequence: U64
    attempt: U8
    value: Value | None = None
    ttl_s: Remaining = 0.0
    is_replicated: bool = False
    if_version: RecordVersion | None = None
    item: Item = b""
    owner: NodeId | None = SHARED
    until_s: WallTime = 0.0
    proof: Proof = b""
    nonce: U64 = 0


@message(0x0061, bytes_max=BATCH_BYTES_MAX)
class RecordAnswer(Message):
    """Root to origin: how an attempt at a request ended (STORED, FOUND, ABSENT, CONFLICT, QUOTA, NOT_ROOT or OWNED).

    ``owner``: of the record that was found or is in the way; 0 for a shared one. ``request`` and ``write`` prove to the
    reader that the value found is what that node wrote.
    """

    sequence: U64
    attempt: U8
    status: U8
    version: RecordVersion | None = None
    value: Value | None = None
    remaining_s: Remaining = 0.0
    copies: U8 = 0
    detail: Text = ""
    owner: NodeId = SHARED
    nonce: U64 = 0
    request: RequestId | None = None
    write: SignedWrite = UNSIGNED


@message(0x0062)
class ReplicaPut(Message):
    """Hold these, unless you have newer ones; to nodes of the replica set. Answered by `ReplicaAck`.

    ``known``: ends of proofs that the receiver has seen in records before, as far as the sender knows.
    """

    records: Copies
    ends: ProofEnds = ()
    known: KnownEnds = ()


@message(0x0063)
class ReplicaAck(Message):
    """One status for each record of a `ReplicaPut`: HELD (this version or a newer one), REFUSED or LACKS_PROOF.

    LACKS_PROOF: the end of its proof is not known here; send it whole. What refuses is a limit, a false proof, or the
    plugin. ``newer`` has the newer versions that the sender holds, as many as fit.
    """

    statuses: Statuses
    newer: Copies
    ends: ProofEnds = ()


@message(0x0064, bytes_max=_SMALL)
class ReplicaGet(Message):
    """A root that has not caught up asks what the receiver has of one record. Answered by `ReplicaGot`.

    ``owner``: whose record it is about, ``None`` for whichever there is.
    """

    namespace: Name
    key: NodeId
    item: Item = b""
    owner: NodeId | None = SHARED


@message(0x0065)
class ReplicaGot(Message):
    """The receiver's copy, a tombstone perhaps; ``None`` when it has neither.

    ``is_established``: it has caught up with its neighbours once, since it started. ``others`` are records of the same
    name by other owners, as many as fit.
    """

    record: RecordCopy | None
    is_established: bool
    others: Copies = ()


@message(0x0066, bytes_max=4 * limits.KIB)
class DigestRequest(Message):
    """A comparison begins: digests of ranges that both hold, or that the sender needs. Answered by `DigestReply`.

    ``is_empty``: the sender is established, as in `ReplicaGot`, and holds no record at all: no need to ask it in turn.
    """

    ranges: Ranges
    is_empty: bool = False


@message(0x0067, bytes_max=_SMALL)
class DigestReply(Message):
    """What differs in each range of the request, in its order; ``is_established`` as in `ReplicaGot`."""

    differing: Differing
    is_established: bool


@message(0x0068)
class VersionsRequest(Message):
    """What the sender has in [low, high), all of it (nothing more than ``entries`` if both are equal).

    Places as in `RangeDigests`. Answered by `VersionsReply`.
    """

    low: NodeId
    high: NodeId
    entries: Summaries
    low_item: U64 = 0
    high_item: U64 = 0


@message(0x0069)
class VersionsReply(Message):
    """Which entries, by index, the receiver wants, and its own records in the range that are newer or missing there.

    These are in the order of their places. ``is_partial``: there are more than fit; ask for what comes behind the last.
    """

    wanted: Indexes
    newer: Copies
    is_partial: bool
    ends: ProofEnds = ()


RECORD_MESSAGES: Final[tuple[type[Message], ...]] = (
    RecordRequest,
    RecordAnswer,
    ReplicaPut,
    ReplicaAck,
    ReplicaGet,
    ReplicaGot,
    DigestRequest,
    DigestReply,
    VersionsRequest,
    VersionsReply,
)
