"""What nodes of T say to each other. ONLY APPEND: type ids and field positions are the protocol itself."""

from __future__ import annotations

from enum import IntEnum
from typing import Annotated, Final

from msgspec import Meta

from peerd import limits
from peerd.ids import NodeId
from peerd.limits import KIB
from peerd.messages import U64, BytesMax, Message, PeerRef, Struct, message
from protocols.measurement.guarantee.interval import VALUE_MAX
from protocols.measurement.guarantee.messages import Path, Seconds
from protocols.measurement.guarantee.words import BoundClaim, Measurement
from protocols.measurement.messages import READ_MAX, NotRead, Rate, ReadValue
from protocols.measurement.names import FULL_NAME_LENGTH_MAX
from protocols.measurement.placing.subtree import BITS_MAX, EXACT_MAX

Proof = Annotated[bytes, Meta(max_length=limits.PROOF_BYTES_MAX)]
COST_MAX: Final = 1e6
"""More is not said."""
Cost = Annotated[float, Meta(ge=0.0, le=COST_MAX)]
"""Messages, or a share of one."""


class QuestionWay(IntEnum):
    """Which way a question goes from node to node."""

    TREE = 0
    SQUARES = 1


@message(0x0420, bytes_max=40 * KIB)
class Subtree(Message):
    """A node says to its parent in T which nodes are at or below it (the paper's INIT): these, or a Bloom filter.

    Neither: it is no child any more.
    """

    ids: Annotated[tuple[NodeId, ...], Meta(max_length=EXACT_MAX)] = ()
    bloom: Annotated[bytes, Meta(max_length=BITS_MAX // 8)] = b""


class AlongWant(Struct):
    """A measurement that is sought over T.

    ``cost``: messages that the last
    READ of it by this reader took, its share of those that it had in common with others; 0: it knows of none.
    ``updates``: how often bounds of this width were broken lately, a second, as far as it is known; else 0.
    """

    measurement: Measurement
    half_width: Annotated[float, Meta(ge=0.0, le=VALUE_MAX)]
    cost: Cost = 0.0
    updates: Rate = 0.0


AlongWants = Annotated[tuple[AlongWant, ...], Meta(min_length=1, max_length=READ_MAX)]


@message(0x0421, bytes_max=16 * KIB)
class ReadAlong(Message):
    """READ (section 4.2.2): over T or by squares to whoever owns these or caches them; each answers the reader itself.

    ``number``: of this question at its reader, who has signed it (`placing.along.statement`), so that nobody has
    answers sent to others. ``proof``: whole, or with a mark in place of its end (`peerd.lib.proof_ends`); who does not
    know the mark sends the question back. ``path``: from the reader on, without the node that gets this. ``cost``: of
    this question so far, in messages, for each of ``wants``.
    """

    reader: PeerRef
    number: U64
    max_age_s: Seconds
    wants: AlongWants
    path: Path
    cost: Cost
    proof: Proof
    is_by_squares: bool = False


@message(0x0422, bytes_max=64 * KIB)
class AlongRead(Message):
    """READ_REPLY: what this node knows of that question's measurements. ``missing``: those that nobody beyond has.

    ``cost``: in messages, with this one, for each value. ``updates``: for each value, how often bounds of the asked
    width were broken lately, a second.
    """

    number: U64
    cost: Cost
    values: Annotated[tuple[ReadValue, ...], Meta(max_length=READ_MAX)]
    updates: Annotated[tuple[Rate, ...], Meta(max_length=READ_MAX)]
    missing: Annotated[tuple[NotRead, ...], Meta(max_length=READ_MAX)] = ()


@message(0x0423, bytes_max=16 * KIB)
class SpliceIn(Message):
    """SPLICE_IN (section 4.2.4): over T to the first node that can provide these, which answers with a `CacheUpdate`.

    It is the holder's question ``number`` of its boot, as in a `CacheAsk`. ``update_s``: who provides these is to
    hear of them at least so often, or be their owner. ``path``, ``proof``: as in `ReadAlong`. ``is_move``: who provided
    them until now has named who is to. The holder asks that node itself, without a proof; if that one cannot, nobody
    names another.
    """

    holder: PeerRef
    boot: U64
    number: U64
    max_age_s: Seconds
    update_s: Seconds
    wants: AlongWants
    path: Path
    proof: Proof
    is_move: bool = False


class MovedCache(Struct):
    """``path``: from the holder to its new provider, both included."""

    measurement: Measurement
    path: Path


@message(0x0424, bytes_max=64 * KIB)
class MoveCaches(Message):
    """A provider tells a holder who is to provide these from now on: a cache that has come in between (SPLICE_IN_OK of
    the paper), or, where it goes away itself, its own provider (SPLICE_OUT_OK)."""

    provider: PeerRef
    moved: Annotated[tuple[MovedCache, ...], Meta(min_length=1, max_length=READ_MAX)]


@message(0x0425, bytes_max=1 * KIB)
class CheckClaim(Message):
    """Is this true of a measurement of yours, as a cache says? It held ``age_s`` before this was said."""

    name: Annotated[str, BytesMax(FULL_NAME_LENGTH_MAX)]
    claim: BoundClaim
    age_s: Seconds


@message(0x0426, bytes_max=64)
class ClaimChecked(Message):
    """The answer to `CheckClaim`. Not ``is_known``: it was in another boot, or too long ago."""

    is_known: bool
    is_true: bool


PLACING_MESSAGES: Final = (Subtree, ReadAlong, AlongRead, SpliceIn, MoveCaches, CheckClaim, ClaimChecked)
