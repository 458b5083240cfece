"""Messages about copies of events: in memory until they are delivered, on disk while a subscriber's node is away.

Type ids as in `protocols.pubsub.messages`. ONLY APPEND.
"""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta

from peerd.ids import NodeId
from peerd.limits import KIB
from peerd.messages import U16, U64, Message, Name, PeerRef, Struct, message
from protocols.pubsub.messages import EVENTS_MAX, SUBS_MAX, EventBody, EventName, Events, Places


@message(0x0213, bytes_max=48 * KIB)
class HoldEvents(Message):
    """Leaf's root to a replica, a request: hold these events until `ReleaseEvents`; answered by `Held`."""

    schema: Name
    events: Events
    places: Places


@message(0x0214, bytes_max=64)
class Held(Message):
    """Answer to `HoldEvents`."""

    count: U16


@message(0x0215, bytes_max=12 * KIB)
class ReleaseEvents(Message):
    """Leaf's root to a replica, one way: everybody who should has these events."""

    schema: Name
    events: Annotated[tuple[EventName, ...], Meta(max_length=EVENTS_MAX)]


class KeptEvent(Struct):
    """An event as it is kept. ``number``: the place that its root has given it, which grows; ``until_ms``: how long it
    is of use, milliseconds since 1970; ``chosen``: as in `DeliveredEvent`."""

    number: U64
    until_ms: U64
    event: EventBody
    chosen: Annotated[tuple[U64, ...], Meta(max_length=SUBS_MAX)] = ()


@message(0x021E, bytes_max=56 * KIB)
class KeepEvents(Message):
    """Leaf's root to its neighbours on the ring, a request: keep these on disk, in case I am gone when the subscriber's
    node is back; answered by `Held`. ``bytes_max``: what its subscriptions state."""

    schema: Name
    subscriber: PeerRef
    bytes_max: U64
    events: Annotated[tuple[KeptEvent, ...], Meta(max_length=EVENTS_MAX)]


@message(0x021F, bytes_max=128)
class ForgetKept(Message):
    """One way, to whom `KeepEvents` went: the subscriber's node has what ``root`` has given numbers up to this one."""

    subscriber: NodeId
    root: NodeId
    up_to: U64


COPY_MESSAGES: Final[tuple[type[Message], ...]] = (HoldEvents, Held, ReleaseEvents, KeepEvents, ForgetKept)
