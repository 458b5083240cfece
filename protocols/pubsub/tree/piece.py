"""One piece of a subscription in a cell, as the root of the cell's key holds it. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from peerd.messages import PeerRef
from protocols.pubsub.messages import SubObject


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
    def is_stored(self) -> bool:
        """Whether this version is at the whole replica set."""
        return self.stored is not None and self.stored >= self.sub.version
