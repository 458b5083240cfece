"""What is said of a measurement, and what a node makes of it. Pure values; the first four travel in messages.

A node *provides* for another when it owns a measurement, or holds a value of it, and has promised to tell the other
when the bounds that the other holds are broken. The other is its *holder*.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Annotated, Protocol

from msgspec import Meta

from peerd.frozen import Frozen
from peerd.ids import NodeId
from peerd.limits import SIGNATURE_BYTES
from peerd.messages import U8, U64, BytesMax, Struct
from protocols.measurement.guarantee.interval import VALUE_MAX, Interval, Quantity
from protocols.measurement.names import FULL_NAME_LENGTH_MAX


class Measurement(Struct):
    """One quantity that one node, its owner, monitors."""

    owner: NodeId
    name: Annotated[str, BytesMax(FULL_NAME_LENGTH_MAX)]


class Sample(Struct):
    """One reading of an owner: its boot epoch, and the number of the reading in that boot, whatever was read."""

    epoch: U64
    number: U64


class BoundClaim(Struct):
    """From the sample ``since`` on, up to some moment that is not said here, the value was inside ``interval``.

    ``value``: what it was in that sample, to be shown to people. ``level``: where new intervals are to have their
    centre, says the owner. ``hops``: nodes since the owner. ``signature``: the owner's, of the sample and its value,
    or empty.
    """

    value: Quantity
    level: Quantity
    interval: Interval
    since: Sample
    hops: U8 = 0
    signature: Annotated[bytes, Meta(max_length=SIGNATURE_BYTES)] = b""


class Want(Struct):
    """Provide this for me, with bounds no farther apart than twice ``half_width``."""

    measurement: Measurement
    half_width: Annotated[float, Meta(ge=0.0, le=VALUE_MAX)]


class Known(Frozen):
    """A claim that a node may pass on. ``basis``: by its own clock, and it holds up to this moment at least."""

    claim: BoundClaim
    basis: float


class SignatureVerdict(Enum):
    """What a signature shows of a claim."""

    GENUINE = auto()
    """The owner has read this value, and it is inside the interval."""
    UNSIGNED = auto()
    """Nothing: there is none, or the owner's key is not known here."""
    FORGED = auto()
    """The owner has not said that."""


class Signatures(Protocol):
    """Owners sign what they have read, so that nobody else can make up a value."""

    def signed(self, measurement: Measurement, claim: BoundClaim) -> BoundClaim:
        """A claim of this node about its own measurement, as it is told to others."""

    def verdict(self, measurement: Measurement, claim: BoundClaim) -> SignatureVerdict:
        """Of a claim about another node's measurement."""


class NoSignatures:
    """Implements `Signatures` where nobody signs, and everybody is believed."""

    def signed(self, measurement: Measurement, claim: BoundClaim) -> BoundClaim:
        """The claim as it is."""
        return claim

    def verdict(self, measurement: Measurement, claim: BoundClaim) -> SignatureVerdict:
        """It is taken for genuine."""
        return SignatureVerdict.GENUINE


class Terms(Frozen):
    """The times of all agreements of a node, seconds."""

    max_age_s: float = 30.0
    """A value that is older is stale here."""
    update_s: float = 5.0
    """A holder hears from its provider at least so often: the time-out of section 2.2."""
    ask_s: float = 10.0
    """A provider hears from its holder at least so often."""
