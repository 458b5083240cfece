"""What clients of streams send and get, as JSON; docs/streams.md has the routes."""

from __future__ import annotations

import re
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, FiniteFloat, WithJsonSchema
from pydantic_core import PydanticCustomError

from peerd.limits import NAME_LENGTH_MAX
from protocols.dissemination.messages import INTEREST_BYTES_MAX
from protocols.dissemination.names import StreamPosition

CONTENT_TYPE_LENGTH_MAX: Final = 128
ITEM_ID_LENGTH_MAX: Final = 41
AT_MS_MAX: Final = 253_402_214_400_000
"""The last day of the year 9999, in milliseconds since 1970: no later moment can be shown as a date everywhere."""
_ITEM_ID: Final = re.compile(r"([0-9]{1,20})-([0-9]{1,20})")
STREAM_NAME: Final = r"[A-Za-z][A-Za-z0-9_.-]{0,63}"
SUBSCRIPTION_NAME: Final = rf"(?!\.{{1,2}}$)[A-Za-z0-9_.-]{{0,{NAME_LENGTH_MAX}}}"
"""One dot or two alone are no name: in the path of a request they mean another one."""


def stream_name(name: str) -> str:
    """The name, if a stream may have it. Raises ``PydanticCustomError``."""
    if re.fullmatch(STREAM_NAME, name) is None:
        raise PydanticCustomError(
            "stream_name",
            "{name} is no name of a stream: expected a letter, and up to 63 more letters without accents, digits, "
            "dots, dashes and underscores",
            {"name": repr(name[:70])},
        )
    return name


def subscription_name(name: str) -> str:
    """The name, if a subscription may have it; an empty one is none. Raises ``PydanticCustomError``."""
    if re.fullmatch(SUBSCRIPTION_NAME, name) is None:
        raise PydanticCustomError(
            "subscription_name",
            "{name} is no name of a subscription: expected at most {most} letters without accents, digits, dots, "
            "dashes and underscores, and not one dot or two alone",
            {"name": repr(name[:70]), "most": NAME_LENGTH_MAX},
        )
    return name


StreamName = Annotated[
    str, AfterValidator(stream_name), WithJsonSchema({"type": "string", "pattern": f"^{STREAM_NAME}$"})
]
SubscriptionName = Annotated[
    str, AfterValidator(subscription_name), WithJsonSchema({"type": "string", "pattern": f"^{SUBSCRIPTION_NAME}$"})
]
InterestTextField = Annotated[str, Field(max_length=INTEREST_BYTES_MAX)]


def item_order(id: str) -> StreamPosition:
    """Where an item stands in its stream, from its id. Raises ``ValueError``."""
    found = _ITEM_ID.fullmatch(id)
    if found is None:
        raise ValueError(f"expected the id of an item, such as 1760000000-12, not {id!r:.60}")
    return StreamPosition(int(found[1]), int(found[2]))


class StreamsModel(BaseModel):
    """Base of answers: frozen, and a newer daemon may add fields."""

    model_config = ConfigDict(frozen=True, extra="ignore", defer_build=True)


class StreamsRequest(BaseModel):
    """Base of what clients send: a member that is not known is a mistake."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)


class StreamSpec(StreamsRequest):
    """A stream that is to be: this daemon becomes its producer."""

    name: StreamName
    kind: str = "attributes"
    """The language of its interests: ``attributes``, ``xpath``, ``coherency``, or that of an installed package."""
    policy: str = "overlap"
    """What decides the shape of its tree: ``overlap`` (CoDD), ``cost`` (Zhou, Ooi and Tan), ``first_fit``."""
    settings: dict[str, Any] = Field(default_factory=dict)
    """The policy's parameters, where they are to differ from its defaults."""
    producer_gone: Literal["end", "wait", "hand-over"] = "wait"
    """When the producer is gone for good: end the stream, wait for it to come back, or have a standby go on with it."""
    durable: bool = False
    """Items go out once they are on the producer's disk, so that they survive its restart."""
    unsigned: bool = False
    """The producer does not sign items, but for those with documents: nodes between it and a subscriber could alter
    them."""
    successors: tuple[str, ...] = ()
    """With ``hand-over``: the standbys in their order, each an address or the beginning of an id. Default: the producer
    chooses among its children."""


class StreamHandOver(StreamsRequest):
    """The producer that a stream is to have."""

    to: Annotated[str, Field(min_length=1, max_length=300)]
    """A node of the stream's tree: its address, or the beginning of its id."""


class StreamView(StreamsModel):
    """A stream, as this daemon knows it."""

    name: str
    kind: str
    policy: str
    settings: dict[str, Any]
    producer: str
    """The id of the node that publishes it."""
    role: Literal["producer", "subscriber", "none"]
    position: str | None
    """How far this node has come: the producer's boot and the item's number."""
    parent: str | None
    depth: int | None
    children: int
    subscriptions: int
    durable: bool = False
    is_kept: bool | None = None
    """At the producer of a durable stream: whether its disk takes the items."""
    term: int = 0
    """Grows each time that the stream gets another producer."""
    producer_gone: str = "wait"
    unsigned: bool = False
    """Items are not signed by the producer, but for those with documents."""
    liars: dict[str, str] = Field(default_factory=dict)
    """Parents that have given this node what the producer has not signed, or not all, by id, and where they were."""
    standbys: list[str] = Field(default_factory=list)
    """The ids of the nodes that take the stream over when its producer is gone, in their order."""


class StreamViews(StreamsModel):
    """Several streams, by name."""

    streams: list[StreamView]


class ItemPublished(StreamsModel):
    """An item is in the stream. ``id``: the producer's boot and the item's number."""

    stream: str
    id: str
    bytes: int
    is_kept: bool = False
    """It is on the producer's disk, because the stream is durable."""


class WrappedItem(StreamsRequest):
    """One line of many items: its payload as text or in base64, and what it is."""

    payload: str | None = None
    payload_base64: str | None = None
    content_type: Annotated[str, Field(max_length=CONTENT_TYPE_LENGTH_MAX)] = ""


class StreamWish(StreamsRequest):
    """What a client wants of the stream that the path of its request names."""

    interest: InterestTextField = ""
    """In the language of the stream's kind. Empty: everything."""
    after: str | None = None
    """Resume after this item (an ``id``), or ``start``: everything that is still remembered. Default: from now on."""
    name: SubscriptionName = ""
    """A name keeps the subscription while no client reads it."""


class StreamSubscriptionRequest(StreamWish):
    """What a client wants of a stream."""

    stream: StreamName
    name: str = ""
    owner: str = ""
    """Whose it is; what that means, the front says."""


class StreamSubscriptionView(StreamsModel):
    """A subscription of this daemon."""

    id: str
    stream: str
    kind: str
    interest: str
    """As it was understood: the canonical text."""
    name: str
    owner: str = ""
    """Whose it is: ``token NAME`` or ``user NUMBER``; empty where a client over TCP showed no token."""
    epoch: str
    """The epoch of its feed."""
    state: Literal["joining", "live", "orphaned", "ended"]
    received: int
    missed_gaps: int
    """Times that a part of the stream was lost on its way here."""
    dropped: int = 0
    """Items that came here, and that no reader got because it was too slow."""
    note: str = ""
    """What its client should know of it: that it wants to begin behind an item that is not there yet."""
    is_kept: bool = False
    """It has a name, is on disk, and so survives a restart of its daemon."""
    is_ordered: bool = True
    """Items come in the order of their ids. ``False`` for the current values of objects: there what comes last counts,
    even with a smaller id, so that nothing may be passed over because of its id."""


class StreamSubscriptionViews(StreamsModel):
    """Several subscriptions, oldest first."""

    subscriptions: list[StreamSubscriptionView]


class DocumentView(StreamsModel):
    """A document, as this daemon has it."""

    id: str
    stream: str
    item: str
    """The id of the item that it is attached to."""
    name: str
    """As its publisher has given it: text from elsewhere, and no path."""
    size: int
    content_type: str
    chunk_bytes: int
    state: Literal["complete", "arriving", "partial"]
    """``partial``: a part is here, and nothing more comes at the moment."""
    here_bytes: int
    neighbours: int
    """Nodes with which it is exchanged now."""


class DocumentViews(StreamsModel):
    """Several documents, oldest first."""

    documents: list[DocumentView]


class AttachedDocument(StreamsModel):
    """The document that belongs to an item."""

    id: str
    name: str
    size: int
    content_type: str = ""


CREATED_ANEW: Final = "the stream was created anew: this one is another, and its ids may be lower"
"""The reason of a mark behind which ids say nothing about those before it."""


class ReceivedItem(StreamsModel):
    """What a subscription gets: an item, or a mark.

    ``lost``: what came after ``since`` and up to ``id`` is lost, wholly or in part.
    ``payload`` for text, ``payload_base64`` for anything else. ``stale``: the value is only known to have been this.
    ``fresh``: after that, values are known to be so again, and all of them follow anew.
    """

    type: Literal["item", "lost", "stale", "fresh", "ended"] = "item"
    stream: str
    id: str
    published_ms: int | None = None
    content_type: str = ""
    payload: str | None = None
    payload_base64: str | None = None
    since: str | None = None
    reason: str = ""
    document: AttachedDocument | None = None
    """It may still be on its way when the item is here."""


class StreamTreeNode(StreamsModel):
    """A node of a stream's tree."""

    node: str
    address: str
    parent: str | None
    depth: int
    interests: list[str]
    children: int
    fan_out: int
    figures: dict[str, FiniteFloat]
    """``items_per_s``, ``bytes_per_s``, ``spurious_share`` and what the policy counts."""
    second_parent: str | None = None
    """Who has promised to take the node when its parent dies; ``None``: nobody yet, or the parent is the producer."""


class StreamTreeView(StreamsModel):
    """A stream's tree. ``missing``: nodes that did not answer in time."""

    stream: str
    policy: str
    nodes: list[StreamTreeNode]
    missing: list[str]
    standbys: list[str] = Field(default_factory=list)
    """Who takes the stream over when its producer is gone, in this order."""


class PlannedMove(StreamsModel):
    """A change that the policy would make next."""

    what: str
    node: str
    from_parent: str | None
    to_parent: str | None
    gain: FiniteFloat
    """In the policy's own measure, which ``unit`` names."""
    unit: str


class PastMove(StreamsModel):
    """A change that was made."""

    at_ms: Annotated[int, Field(ge=0, le=AT_MS_MAX)]
    what: str
    node: str
    from_parent: str | None
    to_parent: str | None
    predicted: FiniteFloat
    measured: FiniteFloat | None
    """``None``: not enough has come since."""
    unit: str


class StreamPlanView(StreamsModel):
    """What a stream's policy would do next."""

    stream: str
    policy: str
    moves: list[PlannedMove]


class StreamHistoryView(StreamsModel):
    """What a stream's policy has done."""

    stream: str
    policy: str
    moves: list[PastMove]
