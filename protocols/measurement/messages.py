"""Messages of measurement queries. ONLY APPEND: type ids and field positions are the protocol itself."""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta

from peerd.ids import NodeId
from peerd.limits import KIB
from peerd.messages import U64, BytesMax, Message, PeerRef, Struct, Text, message
from protocols.measurement.guarantee.messages import GUARANTEE_MESSAGES, Seconds
from protocols.measurement.guarantee.words import BoundClaim, Measurement, Want
from protocols.measurement.names import NAME, NAME_LENGTH_MAX
from protocols.measurement.placing.squares import Spot

READ_MAX: Final = 64
"""Measurements in one READ, and in one answer to it; for more there are several."""
TAGS_MAX: Final = 32
PAIRS_MAX: Final = 48
"""Other nodes with which a node has a measurement of one name."""
NAMES_MAX: Final = 128
"""Names of measurements that a node describes itself with."""
DESCRIPTION_BYTES_MAX: Final = 8 * KIB
PAGE_BYTES_MAX: Final = 24 * KIB
PAGE_MAX: Final = 1024
"""Descriptions in one answer: bytes, and how many."""
TAG_BYTES_MAX: Final = 64
TAG_VALUE_BYTES_MAX: Final = 128
TAG_KEY: Final = rf"\A[A-Za-z_][A-Za-z0-9_.-]{{0,{TAG_BYTES_MAX - 1}}}\Z"
MARK_BYTES: Final = 8
KEY_BYTES_MAX: Final = 64
GONE_MAX: Final = 256
"""Nodes that are described no more, in one answer."""
SHARDS_MAX: Final = 256
Rate = Annotated[float, Meta(ge=0.0, le=1e6)]
"""A second."""


# Reading (section 4.1)


@message(0x0410, bytes_max=16 * KIB)
class ReadValues(Message):
    """What do you know of these? To their owner, or to a node that may hold them. The answer is a `ValuesRead`.

    A name that ends in ``@`` means all measurements of that name that the owner has with other nodes.
    """

    wants: Annotated[tuple[Want, ...], Meta(max_length=READ_MAX)]


class ReadValue(Struct):
    """It held ``age_s`` before this was said, by the clock of who says it."""

    measurement: Measurement
    claim: BoundClaim
    age_s: Seconds


class NotRead(Struct):
    """Nothing can be said of this one, and why."""

    measurement: Measurement
    reason: Text


@message(0x0411, bytes_max=64 * KIB)
class ValuesRead(Message):
    """The answer to `ReadValues`. ``updates``: how often bounds as wide as was asked for were broken lately, a second;
    one for each value."""

    values: Annotated[tuple[ReadValue, ...], Meta(max_length=READ_MAX)]
    missing: Annotated[tuple[NotRead, ...], Meta(max_length=READ_MAX)] = ()
    updates: Annotated[tuple[Rate, ...], Meta(max_length=READ_MAX)] = ()


# Which nodes there are


class Tag(Struct):
    """What an operator says of a node, such as that its role is web."""

    key: Annotated[str, BytesMax(TAG_BYTES_MAX), Meta(pattern=TAG_KEY)]
    value: Annotated[str, BytesMax(TAG_VALUE_BYTES_MAX)]


class MeasureName(Struct):
    """A name of measurements. ``peers``: it is of this node and each of these others."""

    name: Annotated[str, BytesMax(NAME_LENGTH_MAX), Meta(pattern=rf"\A{NAME.pattern}\Z")]
    peers: Annotated[tuple[NodeId, ...], Meta(max_length=PAIRS_MAX)] = ()


class Description(Struct):
    """What a node says of itself, in records that are its own. ``number``: a later one has a larger number.

    ``spot``: where it is in the latency space; ``None``: it does not know yet. ``key``: with which its
    signatures are checked (`peerd.api.Host.public_key`); empty: it signs nothing.
    """

    peer: PeerRef
    number: U64
    tags: Annotated[tuple[Tag, ...], Meta(max_length=TAGS_MAX)] = ()
    names: Annotated[tuple[MeasureName, ...], Meta(max_length=NAMES_MAX)] = ()
    spot: Spot | None = None
    key: Annotated[bytes, Meta(max_length=KEY_BYTES_MAX)] = b""


@message(0x0412, bytes_max=128)
class NodesQuestion(Message):
    """Which nodes are described in this shard, those after ``after``? ``mark``: of all that the asker knows of it.

    To the root of the shard's key. The answer is a `NodesAnswer`.
    """

    shard: Annotated[int, Meta(ge=0, lt=SHARDS_MAX)]
    after: NodeId
    mark: Annotated[bytes, Meta(max_length=MARK_BYTES)] = b""


class Described(Struct):
    """The record of a node: a `Description`, as that node has written it."""

    node: NodeId
    data: Annotated[bytes, Meta(max_length=DESCRIPTION_BYTES_MAX)]


@message(0x0413, bytes_max=48 * KIB)
class NodesAnswer(Message):
    """``mark``: of all that the root has.

    ``is_all``: there are no more after these. ``is_settled``: the root has caught up with the other replicas.
    ``is_changes``: only what has changed since the asker's mark, with ``gone``, which are described no more.
    """

    mark: Annotated[bytes, Meta(max_length=MARK_BYTES)]
    nodes: Annotated[tuple[Described, ...], Meta(max_length=PAGE_MAX)]
    is_all: bool
    is_settled: bool
    gone: Annotated[tuple[NodeId, ...], Meta(max_length=GONE_MAX)] = ()
    is_changes: bool = False


MESSAGES: Final = (*GUARANTEE_MESSAGES, ReadValues, ValuesRead, NodesQuestion, NodesAnswer)
