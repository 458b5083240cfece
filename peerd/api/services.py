"""Records and what is kept on disk as plugins see them: the vocabulary behind `peerd.api.Host`.

Plugins import it from `peerd.api`; docs/records.md says what the service promises.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import Enum
from typing import Final, Literal, Protocol

from peerd.api.bulk import Value
from peerd.errors import Unavailable
from peerd.frozen import Frozen
from peerd.ids import NodeId
from peerd.messages import U64, Struct


class RecordVersion(Struct):
    """Which write of a record it is. Versions are ordered by ``counter``, then ``epoch``, then ``writer``. The largest
    wins everywhere; no two writes have the same.

    Of a shared record the root gives it: a counter, its boot epoch and its id. Of an owned one the owner does, and has
    signed it: its boot epoch, the number of the write in this boot, and its id.
    """

    counter: U64
    epoch: U64
    writer: NodeId

    @property
    def rank(self) -> tuple[int, int, int]:
        """Sort key."""
        return self.counter, self.epoch, self.writer


NO_VERSION = RecordVersion(0, 0, NodeId(0))
"""Given as ``if_version``, it means: write only if there is no record, or a deleted one."""

RecordAck = Literal["received", "replicated"]
"""What `RecordOutcome.STORED` means: the root holds it; or every node of the replica set does (`Host.records`)."""


class RecordOutcome(Enum):
    """How an operation on a record ended. Only what is said here is known."""

    STORED = "stored"
    """The write took effect, and as many nodes hold it as the ack asks for."""
    FOUND = "found"
    ABSENT = "absent"
    """The root has caught up with the other replicas, and there is no such record."""
    CONFLICT = "conflict"
    """Nothing changed: ``if_version`` is not the current one (which the result names), or a later write of this node
    came first."""
    QUOTA = "quota"
    """A limit, named in ``detail``; or "not_allowed", where the plugin at the root says no (`Plugin.record_allowed`).
    With ``copies`` 0 nothing changed, else that many nodes hold it and one refused."""
    OWNED = "owned"
    """Nothing changed: the record is another node's, which ``owner`` names, or a shared one (``owner`` is ``None``)."""
    NOT_ROOT = "not_root"
    """Nothing changed: no node that was reached was able to answer for the key (yet). Try again later."""
    UNKNOWN = "unknown"
    """No answer in time: a write may have taken effect, or still will."""


class RecordResult(Frozen):
    """The end of one operation on a record.

    ``version``: of what was stored, found or in conflict. ``value`` and ``remaining_s``: with FOUND. ``copies``: nodes
    known to hold the write. ``owner``: of what was stored, found or is in the way; ``None`` for a shared record.
    """

    outcome: RecordOutcome
    version: RecordVersion | None = None
    value: bytes | None = None
    remaining_s: float = 0.0
    copies: int = 0
    detail: str = ""
    owner: NodeId | None = None


class RecordRole(Enum):
    """What this node is for a record that it holds."""

    ROOT = "root"
    REPLICA = "replica"
    NONE = "none"
    """It is not in the replica set (any more): the record is handed over and then dropped, or is gone already."""


class LocalRecord(Frozen):
    """A record as this node holds it."""

    key: NodeId
    value: bytes
    version: RecordVersion
    remaining_s: float
    role: RecordRole
    item: bytes = b""
    owner: NodeId | None = None
    """The node that alone may change it; ``None`` for a shared record."""


class Records(Protocol):
    """The replicated key-value store, as one plugin sees it: a namespace of its own. docs/records.md says what holds.

    Soft state: a record lives for ``ttl_s`` unless it is put again. Operations never fail silently: ``on_result``
    is called once, later, within ``timeout_s`` (default: ``[records] operation_timeout``). They raise `Unavailable`
    when too many are under way; nothing else is raised: a limit that is broken is the outcome QUOTA.

    One key may have many records, one for each ``item``, a name of up to 64 bytes. The key alone decides which nodes
    hold them; versions, lifetimes and outcomes are each item's own. How many, and how many bytes, is bounded by
    ``[records] key_items_max`` and ``key_bytes_max``.

    A record belongs to the node that puts it: only that node changes or deletes it. With ``shared`` it is nobody's, and
    every node may, if it says ``shared`` as well and the plugin lets it (`Plugin.record_allowed`). Every write is
    signed by its node, which is charged for it. Two nodes that create one name at the same time, or in two parts of the
    ring, have a record each; a `get` that does not say whose then finds the one that the root heard of first.
    """

    def put(
        self,
        key: NodeId,
        value: bytes,
        ttl_s: float,
        on_result: Callable[[RecordResult], None],
        *,
        item: bytes = b"",
        ack: RecordAck = "received",
        if_version: RecordVersion | None = None,
        timeout_s: float | None = None,
        shared: bool = False,
    ) -> None:
        """Have the root write a value that lives for ``ttl_s`` seconds; ``if_version``: only over that version."""

    def get(
        self,
        key: NodeId,
        on_result: Callable[[RecordResult], None],
        *,
        item: bytes = b"",
        owner: NodeId | None = None,
        timeout_s: float | None = None,
    ) -> None:
        """Ask the root for the value; ``owner``: that of this node's record only."""

    def delete(
        self,
        key: NodeId,
        on_result: Callable[[RecordResult], None],
        *,
        item: bytes = b"",
        ack: RecordAck = "received",
        if_version: RecordVersion | None = None,
        timeout_s: float | None = None,
        shared: bool = False,
    ) -> None:
        """Have the root delete the record; STORED means that a tombstone is where the value was."""

    def local(self, key: NodeId, item: bytes = b"", owner: NodeId | None = None) -> LocalRecord | None:
        """What this node itself holds, without asking anybody; ``owner`` as for `get`."""

    def items(self, key: NodeId) -> Iterator[LocalRecord]:
        """Everything under one key that this node itself holds, by the names of the items, whosever it is.

        On the root of the key that has caught up, and on its replicas, this is all of it but for what is on its way.
        """

    def is_settled(self, key: NodeId) -> bool:
        """Whether this node is the root of the key, and has compared its records since its neighbours last changed.

        Then `items` is all of it, but for what is on its way. `Plugin.records_settled` tells when a no may be a yes.
        """

    def held(self) -> Iterator[LocalRecord]:
        """Every record of the namespace that this node holds, in key order."""


class KeyValues(Protocol):
    """Small durable key-value store of one plugin; each change is on disk before the method returns.

    That takes milliseconds, in which the node does nothing else: for what changes rarely. What changes often belongs
    in a `Log`. Bounded by `limits.STORE_KEYS_MAX` and `limits.STORE_VALUE_BYTES_MAX`.
    """

    def get(self, key: str) -> bytes | None:
        """The value; ``None`` when there is none. Raises `Unavailable` when the disk refuses."""

    def put(self, key: str, value: bytes) -> None:
        """Raises `Unavailable`, having changed nothing, over a limit or when the disk refuses."""

    def delete(self, key: str) -> None:
        """Harmless when there is no such key. Raises `Unavailable` as `put`."""

    def keys(self) -> list[str]:
        """All keys, sorted."""


class Log(Protocol):
    """Append-only log of one plugin, for durable queues: records with numbers from 1 on, bounded in bytes.

    Appending waits for no disk: what several handlers append becomes durable together (group commit), and the plugin
    is told. After a crash the log holds all that was durable and perhaps some of what came after, whole records only,
    without a gap; the numbers of those that are lost are given again, so tell nobody a number before it is durable.
    Callbacks run like handlers of the plugin, later.
    """

    @property
    def first(self) -> int:
        """The number of the oldest record that is kept; `next` when there is none."""

    @property
    def next(self) -> int:
        """The number that the next record will get."""

    @property
    def durable(self) -> int:
        """Records up to this number survive a crash."""

    @property
    def bytes_used(self) -> int:
        """The size of the records that are kept: their lengths, plus `limits.LOG_RECORD_OVERHEAD_BYTES` for each."""

    def append(
        self,
        record: bytes,
        on_durable: Callable[[int], None] | None = None,
        on_failed: Callable[[int, str], None] | None = None,
    ) -> int:
        """Add a record; returns its number. Exactly one callback is called, once, unless the node ends first.

        ``on_failed(number, why)``: the disk refused. Then this record and all later ones are not in the log any more,
        and their numbers are given again. Raises `Unavailable` over `limits.LOG_RECORD_BYTES_MAX`,
        `limits.LOG_BYTES_MAX` (truncate first) or `limits.LOG_WAITING_BYTES_MAX` (the disk is behind).
        """

    def read(self, after: int, limit: int) -> list[tuple[int, bytes]]:
        """Up to ``limit`` records with numbers above ``after``, in order, those included that are not durable yet.

        At most `limits.LOG_READ_BYTES_MAX` bytes, but one record at least. It reads from disk, so ask for little at a
        time. A number that is skipped was lost to damage of the disk. Raises `Unavailable` when the disk refuses.
        """

    def truncate(self, watermark: int) -> None:
        """Remove the records up to this number. That is durable a little later: after a crash some may be back."""


class Files(Protocol):
    """Large files of one plugin, read and written by pieces while the node does other things. They survive a restart.

    What is asked for is done in the order in which it was asked for. Exactly one of ``done`` and ``failed`` is called,
    once, later, unless the node ends first; ``failed`` gets an `Unavailable` that says why. A crash of the machine may
    lose what was written last, or leave a part of it: what has to be right is verified by who reads it. A piece is read
    as it was written: at the same place, with the same size.
    """

    def sizes(self) -> dict[str, int]:
        """Every file with its size in bytes, by name. It reads a folder, so ask when the plugin starts.

        Raises `Unavailable` when the disk refuses.
        """

    def write(
        self, name: str, offset: int, piece: Value, done: Callable[[], None], failed: Callable[[Unavailable], None]
    ) -> None:
        """Write a piece of a file, which is made if there is none; what lies before it may come later.

        Names are lower-case letters, digits, ``-`` and ``_``, at most 64. A piece has at most
        `limits.FILE_PIECE_BYTES_MAX` bytes. Fails where less than `limits.FILES_FREE_BYTES_MIN` of the disk is free.
        """

    def read(
        self, name: str, offset: int, size: int, done: Callable[[Value], None], failed: Callable[[Unavailable], None]
    ) -> None:
        """Read a piece. Fails where there is less."""

    def rename(self, name: str, to: str, done: Callable[[], None], failed: Callable[[Unavailable], None]) -> None:
        """Give a file another name, in place of a file of that name."""

    def delete(self, name: str) -> None:
        """Remove a file. Harmless when there is none; one that the disk refuses to remove stays."""


class ScratchWriter(Protocol):
    """Takes one value from its beginning to its end.

    Raises `Unavailable` when the disk refuses, or would have less free room than must stay.
    """

    @property
    def size_bytes(self) -> int:
        """What was written."""

    def write(self, data: bytes | memoryview) -> None:
        """Append this."""

    def overwrite(self, offset: int, data: bytes) -> None:
        """Write over what is there."""

    def read(self, offset: int, size: int) -> bytes:
        """What was written there."""

    def finish(self) -> memoryview:
        """All of it, read-only. Nothing is written after that."""

    def close(self) -> None:
        """See to it that all is in the file whose path was given, where another process looks for it."""


class Scratch(Protocol):
    """Room for values that are larger than memory should hold: for work off the loop, and for workers.

    Small ones stay in memory. The others are files without a name, whose room returns with the last view of them.
    """

    def less(self, parts: int) -> Scratch:
        """For one of so many values at a time: as much memory for all together."""

    def writer(self, path: str = "") -> ScratchWriter:
        """Begin a value, or write a file that `new_file` has made."""

    def new_file(self) -> str:
        """The path of a new file, for another process to write; empty where everything stays in memory.

        Raises `Unavailable` when the disk refuses.
        """

    def open_file(self, path: str, bytes_max: int) -> memoryview:
        """A view of a file that another process has written, which has no name any more.

        Raises `Unavailable` for one that is too long, is no file any more, or cannot be read.
        """

    def drop_file(self, path: str) -> None:
        """Take a file's name away. Harmless when there is none."""


class MemoryWriter:
    """Implements `ScratchWriter`."""

    def __init__(self) -> None:
        self._data = bytearray()

    @property
    def size_bytes(self) -> int:
        return len(self._data)

    def write(self, data: bytes | memoryview) -> None:
        self._data += data

    def overwrite(self, offset: int, data: bytes) -> None:
        self._data[offset : offset + len(data)] = data

    def read(self, offset: int, size: int) -> bytes:
        return bytes(self._data[offset : offset + size])

    def finish(self) -> memoryview:
        return memoryview(self._data).toreadonly()

    def close(self) -> None:
        """There is no file."""


class MemoryScratch(Frozen):
    """Implements `Scratch` where everything stays in memory, as in simulations."""

    def less(self, parts: int) -> MemoryScratch:
        return self

    def writer(self, path: str = "") -> MemoryWriter:
        return MemoryWriter()

    def new_file(self) -> str:
        return ""

    def open_file(self, path: str, bytes_max: int) -> memoryview:
        raise Unavailable("there are no files")

    def drop_file(self, path: str) -> None:
        """There is none."""


IN_MEMORY: Final[Scratch] = MemoryScratch()


class Store(KeyValues, Protocol):
    """What a plugin keeps on disk."""

    def files(self) -> Files:
        """This plugin's large files; always the same object."""

    def scratch(self) -> Scratch:
        """Where to write values that are larger than memory should hold, in threads and workers; none survives."""

    def log(self, name: str) -> Log:
        """The log of that name (lower-case letters, digits, ``-`` and ``_``); always the same one.

        Raises `Unavailable` for one more than `limits.LOGS_PER_PLUGIN_MAX`, or when it cannot be read; `Bug` for a name
        of another form.
        """
