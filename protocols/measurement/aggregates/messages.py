"""What is said of aggregates. ONLY APPEND: type ids and field positions are the protocol itself."""

from __future__ import annotations

import hashlib
from typing import Annotated, Final

from msgspec import Meta

from peerd.limits import KIB
from peerd.messages import U32, U64, BytesMax, Message, Struct, encode_struct, message
from protocols.measurement.aggregates.partial import FUNCTIONS, PartialAggregate
from protocols.measurement.guarantee.interval import VALUE_MAX, Interval
from protocols.measurement.guarantee.messages import Seconds
from protocols.measurement.names import NAME_LENGTH_MAX

WHERE_BYTES_MAX: Final = 256
"""The longest condition. All nodes of T judge it about once a second, for as long as one node asks: 0.25 ms."""
STALE_MAX_S: Final = 60.0
"""The oldest parts that count. So long a node is silent that has got another parent: see `SubtreeAggregate`."""
STALE_MIN_S: Final = 5.0
"""The youngest parts that can be had: on the way through T, each hop adds to the age."""
KEY_BYTES: Final = 8

HalfWidth = Annotated[float, Meta(ge=0.0, le=VALUE_MAX)]


class AggregateSpec(Struct):
    """What somebody wants to know: the aggregate of the measurement ``name`` of the nodes that meet ``where``.

    ``function``: its place in `FUNCTIONS`. ``half_width``: the bounds of the answer are to be no farther apart than
    twice that. ``stale_s``: the oldest values that count.
    """

    function: Annotated[int, Meta(ge=0, lt=len(FUNCTIONS))]
    name: Annotated[str, BytesMax(NAME_LENGTH_MAX)]
    where: Annotated[str, BytesMax(WHERE_BYTES_MAX)]
    half_width: HalfWidth
    stale_s: Annotated[float, Meta(ge=STALE_MIN_S, le=STALE_MAX_S)]

    @property
    def word(self) -> str:
        """What the function is called."""
        return FUNCTIONS[self.function]

    @property
    def key(self) -> bytes:
        """A name for it, the same on all nodes."""
        return hashlib.blake2b(encode_struct(self), digest_size=KEY_BYTES).digest()


@message(0x0438, bytes_max=1 * KIB)
class AggregateAsk(Message):
    """Tell me the aggregate of your subtree, and again when it leaves its bounds. To the root of T, and down T.

    ``number``: of this question, in the asker's ``boot``. ``half_width``: what the bounds of this subtree may be.
    ``is_from_parent``: the asker counts what it is told with what its other children say; else it asks the root.
    """

    boot: U64
    number: U64
    spec: AggregateSpec
    half_width: HalfWidth
    is_from_parent: bool = False


@message(0x0439, bytes_max=256)
class AggregateWord(Message):
    """The aggregate of a subtree: all that is to be said of it, so that a word that was lost is made good by the next.

    ``number``: in the ``boot`` of who says it; a later word has a larger one. ``asked``: the newest question that was
    heard, in the asker's boot ``asker_boot``, and ``since_s`` how long ago that was. ``age_s``: of the oldest part.
    """

    key: Annotated[bytes, Meta(min_length=KEY_BYTES, max_length=KEY_BYTES)]
    boot: U64
    number: U64
    asker_boot: U64
    asked: U64
    since_s: Seconds
    counted: U32
    expected: U32
    age_s: Seconds
    interval: Interval | None = None

    def __post_init__(self) -> None:
        if self.counted > self.expected:
            raise ValueError(f"{self.counted} of {self.expected} nodes cannot be counted")
        if self.interval is not None and not self.counted:
            raise ValueError("no node has no value")

    def partial(self, said_at: float) -> PartialAggregate:
        """What it says, of a word that was said then."""
        return PartialAggregate(self.interval, self.counted, self.expected, said_at)


AGGREGATE_MESSAGES: Final = (AggregateAsk, AggregateWord)
