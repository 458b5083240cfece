"""The value that travels in a swap, and the pure work on it that runs off the event loop: extract, merge, encode.

A swapped value is 8 bytes, big-endian: the value bytes that were moved to build it; then the encoded partial.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from peerd.api import IN_MEMORY, Scratch, SizedBlob, Value, value_size_bytes
from peerd.errors import ProtocolError, Unavailable
from peerd.frozen import Frozen
from peerd.ids import NodeId, format_id
from protocols.aggregation.config import FileSelection
from protocols.aggregation.groups import in_pairs
from protocols.aggregation.partial import SLICED_BYTES_MAX, Extraction, Partial, disjoint, merge
from protocols.aggregation.patterns import RegexEngine
from protocols.aggregation.prefix import Levels
from protocols.aggregation.query import Query

SWAP: Final = b"S"
NAMED_SWAP: Final = b"N"
RESULT: Final = b"R"
OWN: Final = b"O"
PIECE: Final = b"P"
MERGED: Final = b"M"
_MOVED_BYTES: Final = 8
MOVED_BYTES_MAX: Final = 2**63 - 1
"""Largest count of moved bytes. A sum stops there: what one member claims must not spoil the values of others."""
OVERFLOW: Final = "aggregation_overflow"
"""The reason of an error that says nothing about who gave the value: an honest node passes on what it was told."""
MERGE_COST_S_PER_BYTE: Final = 1e-8
"""The time that the simulator charges for decoding, merging and encoding: 100 MB/s, as measured on counters."""

Extractor = Callable[[Query, NodeId], Extraction]
"""How a node, whose id it is given, gets its data. Called in a worker process, so in a daemon it is picklable."""


@dataclass(slots=True)
class OwnData:
    """What a node contributes to rounds: from files by default, and nothing without an extractor.

    ``padding_bytes``, in simulations only, count towards the size of every value, without being there.
    """

    extractor: Extractor | None
    padding_bytes: int = 0

    def extractor_of(self, tags: Mapping[str, str], scratch: Scratch) -> Extractor | None:
        """The extractor for a node that has these tags now, and this room for large values."""
        extractor = self.extractor
        if not isinstance(extractor, FileExtractor):
            return extractor
        return replace(extractor, tags=tuple(tags.items()), scratch=scratch)


@dataclass(frozen=True, slots=True)
class Aggregate:
    """A partial, ready to be given away; immutable, so a swap under way cannot be torn by a merge."""

    partial: Partial
    encoded: bytes | memoryview
    """A view of what is in memory or mapped, where the value goes in slices."""
    moved_bytes: int
    """Value bytes moved over the network to build it, along this tree."""
    padding_bytes: int = 0
    scratch: Scratch = IN_MEMORY
    """Where what is merged with it is written, where the value goes in slices."""

    @property
    def value(self) -> Value:
        """Return the bytes that the swap layer sends."""
        return SizedBlob(bytes(self.encoded), self.padding_bytes) if self.padding_bytes else self.encoded

    def within(self, bytes_max: int) -> bytes:
        """The value, if a message with so much room can carry it; else nothing."""
        return bytes(self.encoded) if not self.padding_bytes and len(self.encoded) <= bytes_max else b""


def swap_tag(round_id: bytes, level: int) -> bytes:
    """Return the tag that names one swap: the round and the level."""
    return SWAP + round_id + bytes((level,))


def named_swap_tag(round_id: bytes) -> bytes:
    """Names a swap of two nodes that were named after the round's start: their places tell the level."""
    return NAMED_SWAP + round_id


def result_tag(round_id: bytes) -> bytes:
    """Names the result of a round, for a fetch."""
    return RESULT + round_id


class FileExtractor(Frozen):
    """Extracts the data of a node from its files."""

    root: Path
    selection: FileSelection
    regex_engine: RegexEngine
    tags: tuple[tuple[str, str], ...] = ()
    scratch: Scratch = IN_MEMORY

    def __call__(self, query: Query, own: NodeId) -> Extraction:
        """See `protocols.aggregation.extraction.extract`."""
        from protocols.aggregation.extraction import extract  # for workers only: see `EXTRACTION_MODULES`

        return extract(
            query,
            self.root,
            self.selection,
            regex_engine=self.regex_engine,
            node=format_id(own),
            tags=dict(self.tags),
            scratch=self.scratch,
        )


EXTRACTION_MODULES: Final = ("protocols.aggregation.extraction",)
"""What the worker process of a `FileExtractor` needs."""


def own_tag(round_id: bytes) -> bytes:
    """Names what one node has extracted itself, for a fetch."""
    return OWN + round_id


def piece_tag(round_id: bytes) -> bytes:
    """Names the exchange of two nodes' pieces of a round."""
    return PIECE + round_id


def merged_tag(round_id: bytes) -> bytes:
    """Names the piece of all values that a node has merged, for a fetch."""
    return MERGED + round_id


def extract_own(extractor: Extractor, query: Query, own: NodeId, path: str = "", scratch: Scratch = IN_MEMORY) -> bytes:
    """Extract this node's own contribution, as an encoded partial. Runs in a worker process.

    With a path it is written there, as a value to swap, and nothing is returned.
    """
    extraction = extractor(query, own)
    partial = Partial.of(query, own, extraction.value, extraction.report)
    if not path:
        return partial.encode()
    writer = scratch.writer(path)
    writer.write(bytes(_MOVED_BYTES))
    partial.write(writer)
    writer.close()
    return b""


def open_own(
    query: Query, own: NodeId, padding_bytes: int, data: bytes, path: str = "", scratch: Scratch = IN_MEMORY
) -> Aggregate:
    """This node's own contribution from what `extract_own` returned, or wrote.

    The worker has run a stranger's query, so it is believed no more than the stranger: raises `ProtocolError` for what
    is no partial of this query, or holds the data of another node; `Unavailable` for a file that cannot be read.
    """
    value = scratch.open_file(path, _MOVED_BYTES + SLICED_BYTES_MAX) if path else bytes(_MOVED_BYTES) + data
    partial = Partial.decode(memoryview(value)[_MOVED_BYTES:], query)
    if partial.contributors != (own,):
        raise ProtocolError("foreign_contributor", "a worker's result is not this node's own")
    return Aggregate(partial, value, 0, padding_bytes, scratch)


def merge_received(levels: Levels, level: int, own: Aggregate, received: Value) -> Aggregate:
    """Our aggregate and the partner's, both left as they are.

    Raises `ProtocolError` when the partner's is malformed, shares a contributor with ours, or holds one that is not of
    L^level (such a partial is never merged, so nobody is counted twice), or when both together pass a bound.
    """
    theirs, moved_bytes = decode_value(own.partial.query, received)
    if not disjoint(own.partial, theirs):
        raise ProtocolError("common_contributor", "the partner's partial holds a node that ours holds")
    strangers = [node for node in theirs.contributors if levels.level_of(node) != level]
    if strangers:
        raise ProtocolError("foreign_contributor", f"{len(strangers)} contributors are not of level {level}")
    moved = own.moved_bytes + moved_bytes + value_size_bytes(own.value) + value_size_bytes(received)
    return _seal_all(merge(own.partial, theirs), moved, own.padding_bytes, own.scratch)


def is_givers_fault(error: ProtocolError) -> bool:
    """Whether whoever gave us a value is to blame for the error: no correct node gives such a value."""
    return error.reason != OVERFLOW


def decode_value(query: Query, value: Value, *, is_part: bool = False) -> tuple[Partial, int]:
    """The partial of a received value, and the bytes moved to build it. Raises `ProtocolError`."""
    data = memoryview(value.payload if isinstance(value, SizedBlob) else value)
    if len(data) < _MOVED_BYTES:
        raise ProtocolError("malformed", "a swapped value is too short")
    moved_bytes = int.from_bytes(data[:_MOVED_BYTES], "big")
    if moved_bytes > MOVED_BYTES_MAX:
        raise ProtocolError("malformed", f"more than {MOVED_BYTES_MAX} bytes moved")
    return Partial.decode(data[_MOVED_BYTES:], query, is_part=is_part), moved_bytes


def decode_own(query: Query, giver: NodeId, value: Value) -> Partial:
    """What a node has extracted itself. Raises `ProtocolError`, also for the data of others."""
    partial, _ = decode_value(query, value)
    if partial.contributors != (giver,):
        raise ProtocolError("foreign_contributor", "it is not the giver's own data")
    return partial


class PieceRejected(ProtocolError):
    """A piece that no correct node gives."""

    def __init__(self, giver: NodeId, error: ProtocolError) -> None:
        super().__init__(error.reason, error.detail)
        self.giver = giver


def split_own(own: Aggregate, count: int) -> list[Value]:
    """A node's own value in so many pieces."""
    padding_bytes = own.padding_bytes // count
    return [_seal(part, 0, padding_bytes, own.scratch.less(count)).value for part in own.partial.split(count)]


def merge_pieces(query: Query, own: NodeId, pieces: Mapping[NodeId, Value], scratch: Scratch = IN_MEMORY) -> Aggregate:
    """The pieces that these nodes have given, each of its own value, in one; ``own`` is where they have come to.

    Raises `PieceRejected` for one that is malformed, or holds the data of others than its giver; `ProtocolError` when
    they pass a bound together, whoever is to blame.
    """
    parts = [_piece(query, giver, (giver,), value) for giver, value in pieces.items()]
    padding_bytes = max(_padding_of(value) for value in pieces.values())
    merged = in_pairs(merge, [part for part, _ in parts])
    return _seal_all(merged, _size_bytes(own, pieces), padding_bytes, scratch)


def join_pieces(query: Query, own: NodeId, pieces: Mapping[NodeId, Value], scratch: Scratch = IN_MEMORY) -> Aggregate:
    """The value of all nodes from the pieces that these have merged; ``own`` is where they have come to.

    Raises `PieceRejected` for one that is malformed, or holds the data of others than all of them; `ProtocolError` when
    they do not fit together, whoever is to blame, or pass a bound together.
    """
    nodes = tuple(sorted(pieces))
    parts = [_piece(query, giver, nodes, value) for giver, value in pieces.items()]
    moved_bytes = sum(moved for _, moved in parts) + _size_bytes(own, pieces)
    padding_bytes = sum(map(_padding_of, pieces.values()))
    return _seal_all(Partial.join([part for part, _ in parts]), moved_bytes, padding_bytes, scratch)


def _piece(query: Query, giver: NodeId, contributors: tuple[NodeId, ...], value: Value) -> tuple[Partial, int]:
    try:
        partial, moved_bytes = decode_value(query, value, is_part=True)
        if partial.contributors != contributors:
            raise ProtocolError("foreign_contributor", "a piece is not of the nodes that it should be of")
    except ProtocolError as error:
        raise PieceRejected(giver, error) from error
    return partial, moved_bytes


def _size_bytes(own: NodeId, pieces: Mapping[NodeId, Value]) -> int:
    return sum(value_size_bytes(value) for giver, value in pieces.items() if giver != own)


def _padding_of(value: Value) -> int:
    return value.padding_bytes if isinstance(value, SizedBlob) else 0


def merge_all(partials: Sequence[Partial]) -> Partial:
    """All of these, of which no two share a contributor. Raises `ProtocolError` when together they pass a bound."""
    merged = in_pairs(merge, partials)
    if merged.query.is_sliced:
        len(merged.value)  # looks at each slice, so that nothing is raised when others do
    return merged


def _seal_all(partial: Partial, moved_bytes: int, padding_bytes: int, scratch: Scratch) -> Aggregate:
    """As `_seal`, of what others have given. Raises `ProtocolError` when it passes a bound."""
    try:
        return _seal(partial, min(moved_bytes, MOVED_BYTES_MAX), padding_bytes, scratch)
    except Unavailable as error:
        raise ProtocolError(OVERFLOW, str(error)) from error


def _seal(partial: Partial, moved_bytes: int, padding_bytes: int, scratch: Scratch) -> Aggregate:
    moved = moved_bytes.to_bytes(_MOVED_BYTES, "big")
    if not partial.query.is_sliced:
        return Aggregate(partial, moved + partial.encode(), moved_bytes, padding_bytes)
    writer = scratch.writer()
    writer.write(moved)
    partial.write(writer)
    encoded = writer.finish()
    return Aggregate(partial.stored(encoded[_MOVED_BYTES:]), encoded, moved_bytes, padding_bytes, scratch)
