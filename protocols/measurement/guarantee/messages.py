"""What providers and holders say to each other. ONLY APPEND: type ids and field positions are the protocol itself."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import accumulate
from typing import Annotated, Final

from msgspec import Meta

from peerd.ids import NodeId
from peerd.limits import KIB
from peerd.messages import U32, U64, Message, Struct, message
from protocols.measurement.guarantee.words import BoundClaim, Measurement, Want

WANTED_MAX: Final = 64
"""Measurements in one question; for more there are several."""
STANDING_MAX: Final = 2048
"""Promises that one word may say to stand."""
PATH_MAX: Final = 32
"""Nodes on the way of a message over T. Routes have a few; what comes to so many is given up."""
TOLD_MAX: Final = 128
"""Promises in one word of a provider; for more there are several."""

AGE_UNIT_S: Final = 1 / 64
"""Ages are told in so many seconds, rounded so that nothing seems younger than it is: most are one byte."""
AGES_MAX: Final = (1 << 32) - 1

Seconds = Annotated[float, Meta(ge=0.0, le=1e9)]
Path = Annotated[tuple[NodeId, ...], Meta(max_length=PATH_MAX)]


@message(0x0400, bytes_max=16 * KIB)
class CacheAsk(Message):
    """A holder asks its provider to go on. ``number``: of this question, larger than those before in its boot.

    ``wants`` has all that the holder lacks, so one that was lost is made good by the next. ``drops``: the numbers of
    promises that it does not know. ``unwanted``: what it wants no more, whatever was promised of it meanwhile.
    ``max_age_s``: what is older the holder takes for stale. ``update_s``: it wants to hear at least so often.
    """

    boot: U64
    number: U64
    max_age_s: Seconds
    update_s: Seconds
    wants: Annotated[tuple[Want, ...], Meta(max_length=WANTED_MAX)] = ()
    drops: Annotated[tuple[U64, ...], Meta(max_length=WANTED_MAX)] = ()
    unwanted: Annotated[tuple[Measurement, ...], Meta(max_length=WANTED_MAX)] = ()


class CacheEntry(Struct):
    """A provider's promise, new or changed, under a number that it uses once in its boot.

    ``replaces``: the number of the one before about the same measurement; 0: there is none. ``is_continuous``: that
    one held until this one was made; else nobody can tell. ``measurement``: ``None`` where it is that of the promise
    before, and so is the epoch of the sample, which is 0 then.
    """

    number: U64
    replaces: U64
    is_continuous: bool
    claim: BoundClaim
    measurement: Measurement | None = None


class StandingPromises(Struct):
    """These promises stand, and their claims held so many `AGE_UNIT_S` before this was said, by the provider's clock.

    ``steps``: the number of the first promise, and then from each number to the next, which is mostly one byte.
    """

    steps: Annotated[tuple[U64, ...], Meta(max_length=STANDING_MAX)] = ()
    ages: Annotated[tuple[U32, ...], Meta(max_length=STANDING_MAX)] = ()

    def __post_init__(self) -> None:
        if len(self.steps) != len(self.ages) or 0 in self.steps:
            raise ValueError("each promise has a number of its own, and an age")

    @classmethod
    def of(cls, ages: Mapping[int, float]) -> StandingPromises:
        """Ages in seconds, by number."""
        numbers = sorted(ages)
        steps = tuple(number - before for before, number in zip([0, *numbers], numbers, strict=False))
        return cls(steps, tuple(min(AGES_MAX, math.ceil(ages[number] / AGE_UNIT_S)) for number in numbers))

    def ages_s(self) -> dict[int, float]:
        """The same."""
        return dict(zip(accumulate(self.steps), (AGE_UNIT_S * age for age in self.ages), strict=True))


@message(0x0401, bytes_max=64 * KIB)
class CacheUpdate(Message):
    """What a provider tells a holder (the paper's CACHE UPDATE); without entries, a time-out update.

    ``asked``: the number of the holder's newest question that it has heard, in the holder's boot ``holder_boot``, and
    ``since`` how many `AGE_UNIT_S` ago that was when it said this, by its own clock. 0: it does not vouch for anything
    here.
    ``gone``: of these it promises nothing, or nothing any more. ``newest``: of its promises up to this number to the
    holder, those that stand are all in ``standing``; 0: they need not be. ``path``: where this answers a question that
    came over T, its way from the holder to the provider, both included.
    """

    boot: U64
    holder_boot: U64
    asked: U64
    since: U32
    entries: Annotated[tuple[CacheEntry, ...], Meta(max_length=TOLD_MAX)] = ()
    standing: StandingPromises = StandingPromises()
    gone: Annotated[tuple[Measurement, ...], Meta(max_length=TOLD_MAX)] = ()
    newest: U64 = 0
    path: Path = ()

    @property
    def since_s(self) -> float:
        """``since`` in seconds."""
        return AGE_UNIT_S * self.since


GUARANTEE_MESSAGES: Final = (CacheAsk, CacheUpdate)
