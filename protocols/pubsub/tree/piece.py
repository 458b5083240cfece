"""One piece of a subscription in a cell, as the root of the cell's key holds it. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from peerd.messages import PeerRef
from protocols.pubsub.messages import SubObject

RENEWED_S: Final = 1.0
"""What lasts so much longer than something else was renewed after it. Less is rounding."""


class PieceLease(NamedTuple):
    """Which version of a piece somebody has, and until when."""

    version: int
    expires_at: float

    def covers(self, other: PieceLease) -> bool:
        """Whether the other one brings nothing new: a subscriber may renew the same version, too."""
        is_renewed = other.expires_at > self.expires_at + RENEWED_S
        return self.version > other.version or (self.version == other.version and not is_renewed)


@dataclass(slots=True)
class Piece:
    """One piece of a subscription in a cell.

    ``is_kept``: its subscriber (or the cell that gave it) has vouched for it, so it is stored; until then it is
    provisional, and matches only. ``stored``: the version that the whole replica set holds.
    """

    sub: SubObject
    expires_at: float
    is_kept: bool = False
    stored: int | None = None
    is_putting: bool = False
    put_after: float = 0.0
    is_indexed: bool = False
    tells_subscriber: bool = False
    """The subscriber waits to hear that it is replicated (`Kept`)."""
    giver: tuple[PeerRef, int] | None = None
    """Who gave a copy and waits to hear that it is replicated (`Transferred`), and the number of that transfer."""

    @property
    def lease(self) -> PieceLease:
        """What its subscriber has asked for last."""
        return PieceLease(self.sub.version, self.expires_at)

    @property
    def is_stored(self) -> bool:
        """Whether this version is at the whole replica set."""
        return self.stored is not None and self.stored >= self.sub.version
