"""What clients of publish/subscribe send and get, as JSON; docs/protocols/pubsub.md has the routes."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from peerd.limits import KIB, LOG_BYTES_MAX, LOG_WAITING_BYTES_MAX, NAME_LENGTH_MAX
from peerd.messages import BytesMax
from protocols.pubsub.messages import FILTER_BYTES_MAX

RESERVED: Final = "_"
"""Members of an event that begin with this are no attributes: ``_payload``, ``_retain`` and so on."""
SUBSCRIPTION_NAME_MAX: Final = NAME_LENGTH_MAX
KEEP_S_MAX: Final = 7 * 86_400
KEEP_BYTES_MIN: Final = 64 * KIB
KEEP_BYTES_MAX: Final = LOG_BYTES_MAX - LOG_WAITING_BYTES_MAX
"""What a log holds besides what is on its way to the disk."""

SchemaName = Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_.-]{0,63}$")]
GroupName = Annotated[str, Field(max_length=NAME_LENGTH_MAX), BytesMax(NAME_LENGTH_MAX)]
FilterText = Annotated[str, Field(max_length=FILTER_BYTES_MAX)]


def _not_too_long(filter: str | dict[str, Any] | list[Any]) -> str | dict[str, Any] | list[Any]:
    if isinstance(filter, str) and len(filter) > FILTER_BYTES_MAX:
        raise ValueError(f"a filter has at most {FILTER_BYTES_MAX} characters, not {len(filter)} (FILTER_BYTES_MAX)")
    return filter


AnyFilter = Annotated[str | dict[str, Any] | list[Any], AfterValidator(_not_too_long)]
"""Text, or one of its JSON forms."""
AckWord = Literal["received", "replicated"]
PolicyWord = Literal["block", "drop_oldest", "disconnect"]


class PubSubModel(BaseModel):
    """Base of answers: frozen, and a newer daemon may add fields."""

    model_config = ConfigDict(frozen=True, extra="ignore", defer_build=True)


class ClientRequest(BaseModel):
    """Base of what clients send: a member that is not known is a mistake."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)


class Whatever(BaseModel):
    """A JSON object that the daemon checks, not the client: an event, or a schema."""

    model_config = ConfigDict(frozen=True, extra="allow", defer_build=True)


# Schemas


class SchemaSummary(PubSubModel):
    """A schema that the daemon knows."""

    name: str
    version: int
    attributes: int
    absent: str
    creator: str = ""
    """The node that has made it, and alone may change or end it."""


class SchemaSummaries(PubSubModel):
    """All of them, by name."""

    schemas: list[SchemaSummary]


class Declared(PubSubModel):
    """A schema is on the ring now. ``is_new``: this version was not there before."""

    name: str
    version: int
    is_new: bool


class SchemaEnded(PubSubModel):
    """A schema is over; ``version`` was its last."""

    name: str
    version: int


# Events


class Published(PubSubModel):
    """What became of an event. ``outcome`` is what was asked for, ``received`` or ``replicated``, or ``unknown``.

    ``matched``: pieces of subscriptions that matched, at all leaves. ``leaves``: how many leaves it visited.
    """

    event: str
    outcome: Literal["received", "replicated", "unknown"]
    leaves: int
    matched: int
    duration_s: float
    detail: str = ""


class EventOutcome(PubSubModel):
    """What became of one event of a batch: as in `Published`, or ``refused``: it can never be published as it is."""

    event: str = ""
    outcome: Literal["received", "replicated", "unknown", "refused"]
    detail: str = ""


class PublishedBatch(PubSubModel):
    """What became of the events of a batch, in their order."""

    outcomes: list[EventOutcome]


class ReceivedEvent(PubSubModel):
    """An event as subscribers get it. ``payload`` is text, or base64 if ``is_base64``."""

    event: str
    publisher: str
    published_at: float
    """The publisher's clock, seconds since 1970."""
    values: dict[str, Any]
    payload: str = ""
    is_base64: bool = False
    content_type: str = ""
    retain: str = ""
    is_replay: bool = False
    headers: tuple[tuple[str, str], ...] = ()


# Subscriptions


class SubscriptionRequest(ClientRequest):
    """A subscription to be. Without ``name`` it ends a while after its last reader has gone; with one it stays."""

    schema_name: SchemaName = Field(alias="schema")
    filter: AnyFilter = Field("TRUE", description="Text, or one of its JSON forms.")
    name: Annotated[str, Field(max_length=SUBSCRIPTION_NAME_MAX, pattern=r"^[A-Za-z0-9_.-]*$")] = Field(
        "", description="Durable: it is kept under this name, with its events, until it is ended."
    )
    group: GroupName = Field(
        "", description="Each event goes to one of the subscriptions of this group with this filter."
    )
    policy: PolicyWord = Field("drop_oldest", description="What happens when a reader is slow.")
    since_s: Annotated[float, Field(ge=0.0, le=86_400.0)] = Field(
        0.0, description="Also what was published in the last so many seconds, as far as leaves remember it."
    )
    retained: bool = Field(
        False, description="Of what was published before, the last value of each key. Not with since_s."
    )
    keep_s: Annotated[int, Field(ge=1, le=KEEP_S_MAX)] | None = Field(
        None, description="Durable: for how long events are kept for it, also at leaves while this daemon is away."
    )
    keep_bytes: Annotated[int, Field(ge=KEEP_BYTES_MIN, le=KEEP_BYTES_MAX)] | None = Field(
        None, description="Durable: how much is kept for it; the newest, when it is full."
    )
    items_max: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    bytes_max: Annotated[int, Field(ge=1024, le=64 << 20)] | None = None

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True, defer_build=True)


class SubscriptionChange(ClientRequest):
    """Another filter for a subscription that goes on: nothing is lost, nothing doubled."""

    filter: AnyFilter


class MissedEvents(PubSubModel):
    """Events of the schema that were lost on their way, why, and which node says so."""

    count: int
    reason: str
    by: str


class SubscriptionView(PubSubModel):
    """A subscription of a client of this daemon.

    ``state``: ``installing``, ``received``, ``replicated``, ``covered`` (by ``covered_by``), ``refused``, ``ending``.
    """

    id: str
    name: str = ""
    schema_name: str = Field(alias="schema")
    filter: str
    owner: str = ""
    """Whose it is: ``token NAME`` or ``user NUMBER``; empty where a client over TCP showed no token."""
    group: str = ""
    policy: str
    state: str
    covered_by: str | None = None
    pieces: int = 0
    readers: int = 0
    delivered: int = 0
    dropped: int = 0
    duplicates: int = 0
    keep_s: int = 0
    keep_bytes: int = 0
    """Durable: for how long, and how much, events are kept for it."""
    missed: int = 0
    """Events of the schema that leaves dropped for this daemon; some of them may not have matched."""
    missed_because: list[MissedEvents] = []
    """The same by reason and by the node that says so."""
    gap_s: float = 0.0
    detail: str = ""

    model_config = ConfigDict(frozen=True, extra="ignore", populate_by_name=True, defer_build=True)


class SubscriptionViews(PubSubModel):
    """All subscriptions of this daemon's clients, oldest first."""

    subscriptions: list[SubscriptionView]


# The tree


class TreeLeaf(PubSubModel):
    """A cell of a tree, as the root of its key told. ``bits``: the halvings that made it, with an ``a`` behind them for
    the alternate of a cell that was moved."""

    bits: str
    state: Literal["leaf", "inner", "moved", "unknown", "retired", "silent"]
    owner: str = ""
    subs: int = 0
    load: int = 0
    x: tuple[str, str] = ("", "")
    y: tuple[str, str] = ("", "")


class TreeView(PubSubModel):
    """The cells of one attribute's tree, parents before children."""

    schema_name: str = Field(alias="schema")
    attribute: str
    cells: list[TreeLeaf]
    is_complete: bool

    model_config = ConfigDict(frozen=True, extra="ignore", populate_by_name=True, defer_build=True)
