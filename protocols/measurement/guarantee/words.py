"""What providers and holders say to each other, and what a node makes of it. Pure.

A node *provides* for another when it owns a measurement, or holds a value of it, and has promised to tell the other
when the bounds that the other holds are broken. The other is its *holder*.
"""

from __future__ import annotations

from peerd.frozen import Frozen
from peerd.ids import NodeId
from protocols.measurement.guarantee.interval import Interval


class Measurement(Frozen):
    """One quantity that one node, its owner, monitors."""

    owner: NodeId
    name: str


class Sample(Frozen):
    """One reading of an owner: its boot epoch, and the number of the reading of this measurement in that boot."""

    epoch: int
    number: int


class BoundClaim(Frozen):
    """From the sample ``since`` on, up to some moment that is not said here, the value was inside ``interval``.

    ``value``: what it was when the interval was chosen, to be shown to people. ``level``: where new intervals are to
    have their centre, says the owner. ``hops``: nodes since the owner.
    """

    value: float
    level: float
    interval: Interval
    since: Sample
    hops: int = 0


class Known(Frozen):
    """A claim that a node may pass on. ``basis``: by its own clock, and it holds up to this moment at least."""

    claim: BoundClaim
    basis: float


# Messages


class Want(Frozen):
    """Provide this for me, with bounds no farther apart than twice ``half_width``."""

    measurement: Measurement
    half_width: float


class CacheAsk(Frozen):
    """A holder asks its provider to go on. ``number``: of this question, larger than those before in its boot.

    ``wants`` has all that the holder lacks, so one that was lost is made good by the next. ``drops`` it wants no more.
    ``max_age_s``: what is older the holder takes for stale.
    """

    boot: int
    number: int
    max_age_s: float
    wants: tuple[Want, ...] = ()
    drops: tuple[Measurement, ...] = ()


class CacheEntry(Frozen):
    """A provider's promise, new or changed, under a number that it uses once in its boot.

    ``follows``: the promise of that number held until this one was made; 0: nobody can tell.
    """

    measurement: Measurement
    number: int
    follows: int
    claim: BoundClaim


class Current(Frozen):
    """The promise of that number stands, and its claim held ``age_s`` before this was said, by the provider's clock."""

    measurement: Measurement
    number: int
    age_s: float


class CacheUpdate(Frozen):
    """What a provider tells a holder (the paper's CACHE UPDATE); without entries, a time-out update.

    ``asked``: the number of the holder's newest question that it has heard, in the holder's boot ``holder_boot``, and
    ``since_s`` how long ago that was when it said this, by its own clock. 0: it does not vouch for anything here.
    """

    boot: int
    holder_boot: int
    asked: int
    since_s: float
    entries: tuple[CacheEntry, ...] = ()
    current: tuple[Current, ...] = ()
    gone: tuple[Measurement, ...] = ()
    """Of these it promises nothing, or nothing any more."""


# Effects


class SendTo(Frozen):
    """Send this to that node."""

    to: NodeId
    message: CacheAsk | CacheUpdate


class Notify(Frozen):
    """A client was answered lately from a value that is not vouched for any more (section 2.2)."""

    client: str
    measurement: Measurement


class ProviderLost(Frozen):
    """This node wants a measurement, and who was to provide it does not."""

    measurement: Measurement
    provider: NodeId


Effect = SendTo | Notify | ProviderLost


# Terms


class Terms(Frozen):
    """The times of all agreements of a node, seconds."""

    max_age_s: float = 30.0
    """A value that is older is stale here."""
    update_s: float = 5.0
    """A holder hears from its provider at least so often: the time-out of section 2.2."""
    ask_s: float = 10.0
    """A provider hears from its holder at least so often."""
