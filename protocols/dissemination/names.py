"""How streams, items and interests are named. Pure."""

from __future__ import annotations

from functools import lru_cache
from hashlib import sha256
from typing import Annotated, Final

from msgspec import Meta

from peerd.ids import NodeId, id_from_bytes
from peerd.messages import Struct

INTEREST_ID_BYTES: Final = 16


TERM_SHIFT: Final = 44
"""A boot is told by milliseconds since 1970, which have 42 bits until the year 2109."""
TERM_MAX: Final = (1 << 19) - 1
"""So often a stream can be handed over; positions fit into 63 bits then."""
PLACE_MAX: Final = (1 << 63) - 1
"""Both numbers of a place in a stream are at most this, so that clients and bitmaps can work with them."""


def epoch_of(term: int, boot: int) -> int:
    """What the items of a producer are numbered in: later terms have larger ones, whatever the machines' clocks say."""
    return (term << TERM_SHIFT) + boot


PlaceNumber = Annotated[int, Meta(ge=0, le=PLACE_MAX)]


class StreamPosition(Struct, order=True):
    """A place in a stream: the producer's epoch, and the item's number in it, from 1. Without gaps at the producer.

    As a mark it means "everything up to here". Messages have it as it is.
    """

    epoch: PlaceNumber
    sequence: PlaceNumber

    @property
    def before(self) -> StreamPosition:
        """Up to the item before this one."""
        return StreamPosition(self.epoch, self.sequence - 1)


START: Final = StreamPosition(0, 0)
"""Before the first item of any stream."""


def position_text(position: StreamPosition) -> str:
    """A place in a stream, as clients see it: the id of the item there."""
    return f"{position.epoch}-{position.sequence}"


def position_of(text: str) -> StreamPosition:
    """Read what a client gives as the place to resume after. Raises ``ValueError``."""
    if text == "start":
        return START
    epoch, _, number = text.partition("-")
    if not (text.isascii() and epoch.isdecimal() and number.isdecimal() and len(text) <= 40):
        raise ValueError(f"expected the id of an item, such as 3-120, or 'start', not {text!r:.60}")
    position = StreamPosition(int(epoch), int(number))
    if max(position.epoch, position.sequence) > PLACE_MAX:
        raise ValueError(f"{text} is no id of an item")
    return position


@lru_cache(maxsize=4096)
def stream_key(name: str) -> NodeId:
    """The place of a stream's record on the ring, and how messages name the stream."""
    return id_from_bytes(sha256(b"peerd-stream\0" + name.encode()).digest()[:16])


@lru_cache(maxsize=1 << 14)
def interest_id(kind: str, text: str) -> bytes:
    """Names an interest, wherever it is told of: the same text of the same kind has the same id everywhere."""
    return sha256(b"peerd-interest\0%b\0%b" % (kind.encode(), text.encode())).digest()[:INTEREST_ID_BYTES]
