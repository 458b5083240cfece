"""Messages of publish/subscribe: type ids 0x0200 to 0x0225. ONLY APPEND: they are the protocol itself.

The names follow section 4.2.1 of the thesis. `ProbeSub`, `TransferSub`, `CellOrder`, `LeafUpdate` and `CellQuestion`
are routed to the key of a cell, and `Arrived` to a subscriber, where anybody may have made up their source. All others
are taken from their sender's own link only. A routed message is never believed about somebody else: a subscription that
came in one is asked about at its subscriber before it is kept (`Established`).
"""

from __future__ import annotations

from enum import IntEnum
from typing import Annotated, Final

from msgspec import Meta

from peerd.ids import NodeId
from peerd.limits import KIB, PROOF_BYTES_MAX
from peerd.messages import U8, U16, U32, U64, BytesMax, Message, Name, PeerRef, Struct, Text, message
from protocols.pubsub.delivering.losses import Losses
from protocols.pubsub.names import SubscriptionKey
from protocols.pubsub.tree.cells import Cell, Coordinate

FILTER_BYTES_MAX: Final = 8 * KIB
VALUES_BYTES_MAX: Final = 16 * KIB
PAYLOAD_BYTES_MAX: Final = 32 * KIB
EVENTS_BYTES_MAX: Final = 44 * KIB
"""Events in one message, counted with their envelopes."""
EVENTS_MAX: Final = 256
"""Events in one message."""
CELLS_MAX: Final = 1024
"""Cells in one message."""
SUBS_MAX: Final = 64
"""Subscriptions in one message."""
REPORT_BYTES_MAX: Final = 30 * KIB
"""What one node tells of an event and a subscriber."""
ENTRIES_MAX: Final = 512
"""Leaves told of in one message."""
HOPS_MAX: Final = 64
CARRIED_HOPS_MAX: Final = 16
"""An acknowledgement that is carried crosses at most so many links."""
EVENT_ACK_BYTES_MAX: Final = 24 * KIB
RETAIN_KEY_BYTES_MAX: Final = 256
RATE_MAX: Final = (1 << 32) - 1
HEADERS_MAX: Final = 32
"""Headers of one event."""
HEADERS_BYTES_MAX: Final = 4 * KIB
"""Headers of one event together, counted as `protocols.pubsub.headers.headers_bytes` does."""
HEADER_NAME_MAX: Final = 128
SINCE_RETAINED: Final = (1 << 64) - 1
"""As ``since_ms`` of a subscription: of the past only the last value of each key, however old that is."""

Filter = Annotated[str, BytesMax(FILTER_BYTES_MAX)]
Proof = Annotated[bytes, Meta(max_length=PROOF_BYTES_MAX)]
Attribute = U8
"""Number of an attribute in its schema, from 1; 0 is `protocols.pubsub.names.EVERY`."""
Cells = Annotated[tuple[Cell, ...], Meta(max_length=CELLS_MAX)]
Hops = Annotated[int, Meta(ge=0, le=HOPS_MAX)]


class CellState(IntEnum):
    """What a cell of a tree is, as the root of its key keeps it."""

    UNKNOWN = 0
    """There is no such node in the tree, as far as this machine knows."""
    LEAF = 1
    """It holds the subscriptions whose points lie in it, and matches events with them."""
    INNER = 2
    """It was split: its halves hold them."""
    RETIRED = 3
    """It was merged back: its parent holds them."""
    MOVED = 4
    """They are at its alternate."""


class PieceStatus(IntEnum):
    """How a request about a subscription ended."""

    KEPT = 0
    """The root of the leaf holds it, and events match it from now on."""
    REPLICATED = 1
    """So do the other nodes of the replica set."""
    ELSEWHERE = 2
    """This node is not the root of the leaf that the point lies in; ``cell`` is where to look next."""
    QUOTA = 3
    """A limit, which ``detail`` names."""
    REFUSED = 4
    """The subscription cannot be kept here, and ``detail`` says why: an unknown schema, a filter that is not valid."""
    GONE = 5
    """There is no such subscription (any more)."""


class OrderKind(IntEnum):
    """What a cell's parent asks of it, or it of its parent."""

    BE_LEAF = 0
    """Parent to child: I have been split, and all your subscriptions are with you: you are a leaf."""
    COPY_UP = 1
    """Parent to child: send me all that you hold, because I want to be a leaf again."""
    RETIRE = 2
    """Parent to child: I am a leaf again and have all that was yours."""


# Subscriptions


class SubObject(Struct):
    """A piece of a subscription, as leaves keep it: (subscriber, sid, subscription), section 3.3.1.

    ``low`` and ``high``: its point, within the tree of ``attribute``. ``filter``: the whole condition, exact.
    ``version`` grows whenever the subscriber changes or renews it. ``group``: with others of this name and the same
    filter, each event goes to one of them.
    """

    subscriber: PeerRef
    sid: U64
    piece: U16
    version: U64
    attribute: Attribute
    low: Coordinate
    high: Coordinate
    filter: Filter
    group: Name = ""
    since_ms: U64 = 0
    """Deliver also what was published since (milliseconds since 1970), as far as the leaf remembers; 0: nothing."""
    keep_s: U32 = 0
    """Durable: while its node is away, events are kept for it for so long, and so many bytes of them; 0: it is not."""
    keep_bytes: U32 = 0
    until_ms: U64 = 0
    """With ``keep_s``: the piece itself stays until then (milliseconds since 1970), though nobody renews it."""

    @property
    def key(self) -> SubscriptionKey:
        """What names the piece on the whole ring."""
        return SubscriptionKey(self.subscriber.id, self.sid, self.piece)


Subs = Annotated[tuple[SubObject, ...], Meta(max_length=SUBS_MAX)]


@message(0x0200, bytes_max=12 * KIB)
class ProbeSub(Message):
    """ProbeSubMessage: look for the leaf of a subscription's point, and install it there.

    Routed to the key of ``cell``. What a node there does with it: a leaf tells the subscriber (`Established`), an inner
    node sends it on to a leaf or child, anything else up to the cell at half the level. ``vouched``: the sender is the
    inner node right above, so the cell is one of the tree. ``careful``: go down child by child, and trust no table.
    ``only_leaf``: it is tried at other cells at the same time, so what is no leaf drops it.
    """

    schema: Name
    sub: SubObject
    cell: Cell
    lasts_s: U32
    vouched: bool = False
    careful: bool = False
    hops: Hops = 0
    only_leaf: bool = False


@message(0x0201, bytes_max=1024)
class Established(Message):
    """Leaf to subscriber, a request: this piece came to me by others; is it yours, and do you want it?

    The piece matches events from now on. It is kept for longer only if the subscriber says so, on its own link.
    """

    schema: Name
    sid: U64
    piece: U16
    version: U64
    cell: Cell
    is_new: bool
    """The leaf did not know it. Of a renewal it means that the subscription had been lost."""
    level: U8
    """The leaf's level: how deep the tree is there."""


@message(0x0202, bytes_max=128)
class Confirm(Message):
    """Answer to `Established`."""

    sid: U64
    piece: U16
    version: U64
    """The version that the subscriber wants."""
    is_wanted: bool
    lasts_s: U32 = 0


@message(0x0203, bytes_max=256)
class Kept(Message):
    """Leaf to subscriber, one way: the piece is at the whole replica set now, or why it could not be kept."""

    schema: Name
    sid: U64
    piece: U16
    version: U64
    cell: Cell
    status: U8
    detail: Annotated[str, Meta(max_length=96)] = ""


@message(0x0204, bytes_max=12 * KIB)
class InsertSub(Message):
    """InsertSubMessage: subscriber to the leaf that it knows, a request: keep, change or renew this piece."""

    schema: Name
    sub: SubObject
    cell: Cell
    lasts_s: U32


@message(0x0205, bytes_max=1024)
class InsertAnswer(Message):
    """Answer to `InsertSub` and `EndSub`. `Kept` follows when it is replicated."""

    status: U8
    cell: Cell
    is_new: bool = False
    detail: Text = ""


@message(0x0206, bytes_max=256)
class EndSub(Message):
    """Subscriber to leaf, a request: this piece is over."""

    schema: Name
    sid: U64
    piece: U16
    version: U64
    attribute: Attribute
    cell: Cell


# The tree


@message(0x0207, bytes_max=44 * KIB)
class TransferSub(Message):
    """TransferSubMessage: copies of subscriptions go to a child that will be a leaf (or up, to be merged).

    Routed to the key of ``cell``; its root asks each subscriber (`Established`) and answers the sender, `Transferred`.
    """

    schema: Name
    attribute: Attribute
    cell: Cell
    from_cell: Cell
    subs: Subs
    remaining_s: Annotated[tuple[U32, ...], Meta(max_length=SUBS_MAX)]
    """How long each of them still lasts."""
    transfer: U64 = 0
    """Random number of the split or merge; `CellAnswer` of ``from_cell`` proves it. No subscriptions: that was all."""


class TransferResult(Struct):
    """What became of one piece: `PieceStatus` REPLICATED, GONE, QUOTA or REFUSED."""

    subscriber: NodeId
    sid: U64
    piece: U16
    version: U64
    status: U8


@message(0x0208, bytes_max=8 * KIB)
class Transferred(Message):
    """Child to parent (or parent to child), one way: these copies have arrived and are replicated, or are gone."""

    schema: Name
    attribute: Attribute
    cell: Cell
    results: Annotated[tuple[TransferResult, ...], Meta(max_length=SUBS_MAX)]
    transfer: U64 = 0
    """The same number as in `TransferSub`: who answers has seen that."""


@message(0x0209, bytes_max=256)
class CellOrder(Message):
    """Routed between a cell and its parent; see `OrderKind`. Repeated until it is answered by a `LeafUpdate`."""

    schema: Name
    attribute: Attribute
    cell: Cell
    """Who shall do it."""
    kind: U8


class LeafEntry(Struct):
    """A leaf of the tree, as its ancestors know it (table 3.1).

    ``subs``: how many subscriptions it holds. ``load``: events a minute.
    """

    cell: Cell
    subs: U32
    load: U32 = 0


@message(0x020A, bytes_max=16 * KIB)
class LeafUpdate(Message):
    """LeafUpdateMessage: routed from a leaf to its parent, and from there up to the root of the tree.

    ``entries`` replace all that the receiver knew about leaves in ``below``.
    """

    schema: Name
    attribute: Attribute
    cell: Cell
    """To whom it goes now."""
    below: Cell
    entries: Annotated[tuple[LeafEntry, ...], Meta(max_length=ENTRIES_MAX)]


@message(0x020B, bytes_max=256)
class CellQuestion(Message):
    """Routed to the key of a cell by who draws the tree, or by its parent or child; `CellAnswer` comes back."""

    schema: Name
    attribute: Attribute
    cell: Cell
    nonce: U64
    is_brief: bool = False
    """Without the entries: a cell that asks whether its parent, or its child, is what a message claims."""


@message(0x020C, bytes_max=24 * KIB)
class CellAnswer(Message):
    """What a node keeps for a cell: its state, its subscriptions, its load, and which leaves it knows below it."""

    nonce: U64
    state: U8
    subs: U32 = 0
    load: U32 = 0
    entries: Annotated[tuple[LeafEntry, ...], Meta(max_length=ENTRIES_MAX)] = ()
    transfer: U64 = 0
    """The number of the split (even) or merge (odd) of this cell that is under way; 0: none."""


# Events


class EventHeader(Struct):
    """A text under a name that travels with an event's payload; filters do not look at it."""

    name: Annotated[str, Meta(max_length=HEADER_NAME_MAX)]
    value: Annotated[str, Meta(max_length=HEADERS_BYTES_MAX)]


class EventBody(Struct):
    """An event on its way. ``values``: msgpack of a map from attributes' numbers (as text) to values.

    ``published_ms``: the publisher's clock, milliseconds since 1970. ``retain``: the key under which it replaces the
    last value; empty: it is not retained. ``proof``: the publisher's, where the schema asks for one.
    """

    publisher: PeerRef
    epoch: U64
    sequence: U64
    published_ms: U64
    values: Annotated[bytes, Meta(max_length=VALUES_BYTES_MAX)]
    payload: Annotated[bytes, Meta(max_length=PAYLOAD_BYTES_MAX)] = b""
    content_type: Name = ""
    retain: Annotated[bytes, Meta(max_length=RETAIN_KEY_BYTES_MAX)] = b""
    proof: Proof = b""
    headers: Annotated[tuple[EventHeader, ...], Meta(max_length=HEADERS_MAX)] = ()


Events = Annotated[tuple[EventBody, ...], Meta(max_length=EVENTS_MAX)]


class EventName(Struct):
    """Names an event: see `protocols.pubsub.names.EventId`."""

    publisher: NodeId
    epoch: U64
    sequence: U64


class TreeCells(Struct):
    """Cells of one attribute's tree."""

    attribute: Attribute
    cells: Cells


Places = Annotated[tuple[TreeCells, ...], Meta(max_length=64)]


@message(0x020D, bytes_max=48 * KIB)
class ProbePub(Message):
    """ProbePubMessage and ProbePubMulticastMessage: these events have to visit these cells (sections 3.4.1 and 3.4.2).

    It goes from node to node, each time split by next hop (Program 3.4), or at once to a leaf's owner that the sender
    remembers. All events belong to one publisher, in its order. ``vouched``: the sender is the inner node right above
    all of these cells. ``copies``: so many nodes besides the leaf's root shall hold each event before `EventAck`.
    """

    schema: Name
    publisher: PeerRef
    events: Events
    places: Places
    copies: U8
    attempt: U8 = 0
    """Counts the tries of the publisher: what was seen in an earlier one is looked at again."""
    vouched: bool = False
    hops: Hops = 0
    remembered: bool = False
    """The publisher takes these cells for leaves. Where one lies in a larger leaf now, it is told (`EventAck.failed`),
    so that it keeps its events in order: another cell of the same leaf may be on its way."""
    after: U64 = 0
    """The publisher's event before these that is on its way to the same leaves: one that has not had it does not take
    these, and tells the publisher. 0: there is none."""
    is_lent: bool = False
    """The root of these leaves has named the receiver as its helper (`LeafHelper`)."""


@message(0x020E, bytes_max=EVENT_ACK_BYTES_MAX)
class EventAck(Message):
    """Leaf to publisher: these events have visited these leaves, whose
    root I am, and are held by ``copies`` others.

    ``matched``: for each event, how many pieces matched. ``failed``: why they could not be matched, else empty; then
    the publisher tries again later (``retry_ms``) or not (0).
    """

    schema: Name
    epoch: U64
    sequences: Annotated[tuple[U64, ...], Meta(max_length=EVENTS_MAX)]
    covered: Places
    matched: Annotated[tuple[U32, ...], Meta(max_length=EVENTS_MAX)]
    copies: U8
    failed: Text = ""
    retry_ms: U32 = 0


class DeliveredEvent(Struct):
    """An event for one subscriber's node. ``chosen``: the subscriptions of groups that are to get it there.

    Other subscriptions are not named: the node asks its own filters, which is the exact check at the subscriber.
    ``is_replay``: it was published before the subscription, which asked for it (``since_ms``).
    """

    event: EventBody
    chosen: Annotated[tuple[U64, ...], Meta(max_length=SUBS_MAX)] = ()
    is_replay: bool = False


@message(0x020F, bytes_max=48 * KIB)
class EventDelivery(Message):
    """EventDeliveryMessage: leaf's root to subscriber, a request.

    ``stream`` and ``number``: batches of one stream are taken in order, from 1 on; a new stream has another ``stream``.
    ``lost``: how many events of this schema for this node were dropped since the batch before, and why.
    """

    schema: Name
    stream: U64
    number: U64
    deliveries: Annotated[tuple[DeliveredEvent, ...], Meta(max_length=EVENTS_MAX)]
    lost: Losses = ()


@message(0x0210, bytes_max=4 * KIB)
class DeliveryAnswer(Message):
    """Answer to `EventDelivery`. ``taken``: the number of the last batch of the stream that was taken, in order.

    ``pause_ms``: a slow reader there blocks; send the rest again after so long. ``unwanted``: deliveries of the batch
    (by index) that matched no subscription of this node: what the leaf keeps for it is out of date.

    A batch for a durable subscription is taken when its events are on disk. That is a little later: the request itself
    is then not answered, and this message comes one way, naming the ``stream``.
    """

    taken: U64
    pause_ms: U32 = 0
    unwanted: Annotated[tuple[U16, ...], Meta(max_length=EVENTS_MAX)] = ()
    stream: U64 = 0


class NodeDelivery(Struct):
    """One subscriber's part of a delivery by multicast."""

    subscriber: NodeId
    chosen: Annotated[tuple[U64, ...], Meta(max_length=SUBS_MAX)] = ()


@message(0x0211, bytes_max=44 * KIB)
class GroupDelivery(Message):
    """An event for many subscribers, sent from node to node and split by next hop (section 3.4.3); nobody answers it.

    Who does not get it so gets it directly, when the leaf sees no `DeliveryNote` in time.
    """

    schema: Name
    leaf: PeerRef
    event: EventBody
    to: Annotated[tuple[NodeDelivery, ...], Meta(max_length=CELLS_MAX)]
    hops: Hops = 0


@message(0x0212, bytes_max=12 * KIB)
class DeliveryNote(Message):
    """Subscriber to leaf, one way: these events arrived by `GroupDelivery`."""

    schema: Name
    events: Annotated[tuple[EventName, ...], Meta(max_length=EVENTS_MAX)]


# Why an event did or did not arrive


@message(0x0216, bytes_max=512)
class ExplainQuestion(Message):
    """A request: what do you know of this event, and of its way to this subscriber?"""

    schema: Name
    publisher: NodeId
    epoch: U64
    sequence: U64
    subscriber: NodeId


@message(0x0221, bytes_max=128)
class PastForgotten(Message):
    """Leaf to subscriber: of what this subscription asks for of the past (``since_ms``) I do not remember all."""

    schema: Name
    sid: U64


@message(0x0217, bytes_max=32 * KIB)
class ExplainAnswer(Message):
    """Answer to `ExplainQuestion`: JSON for people and programs (its form: ``protocols.pubsub.explaining.reports``)."""

    report: Annotated[bytes, Meta(max_length=REPORT_BYTES_MAX)]


@message(0x0218, bytes_max=256)
class Arrived(Message):
    """Leaf to subscriber, routed to the subscriber's id: the piece is here, and events match it from now on.

    It saves the subscriber the opening of a link, for which `Established` has to wait. The numbers of the piece come
    back as the probe had them, so who sends this has seen the probe. It says nothing about who keeps the piece.
    """

    schema: Name
    sid: U64
    piece: U16
    version: U64
    cell: Cell


# How much others do


@message(0x021A, bytes_max=32)
class LoadQuestion(Message):
    """A request: how much do you do for events? Answered by `LoadAnswer`.

    ``brings``: a leaf with so many bytes a second is being moved from the sender to the receiver.
    """

    brings: U32 = 0


@message(0x021B, bytes_max=32)
class LoadAnswer(Message):
    """Answer to `LoadQuestion`. ``rate``: bytes a second that the node has sent for events of late, its work for them
    counted as bytes (`protocols.pubsub.tree.meter`). ``coming``: how many more there will be from leaves that are being
    moved to it."""

    rate: U32
    coming: U32 = 0


@message(0x021C, bytes_max=EVENT_ACK_BYTES_MAX + 3 * KIB)
class CarriedAck(Message):
    """An `EventAck` whose link was refused, back along the way of the events, from node to node.

    ``leaf``: who says it, and proves it, as the nodes on the way need not be believed. ``ack``: its encoded body.
    """

    publisher: NodeId
    leaf: PeerRef
    ack: Annotated[bytes, Meta(max_length=EVENT_ACK_BYTES_MAX)]
    proof: Proof
    hops: Hops = 0


MESSAGES: Final[tuple[type[Message], ...]] = (
    *(ProbeSub, Established, Confirm, Kept, InsertSub, InsertAnswer, EndSub, Arrived),
    *(TransferSub, Transferred, CellOrder, LeafUpdate, CellQuestion, CellAnswer, LoadQuestion, LoadAnswer),
    *(ProbePub, EventAck, EventDelivery, DeliveryAnswer, GroupDelivery, DeliveryNote, PastForgotten),
    CarriedAck,
    *(ExplainQuestion, ExplainAnswer),
)
