"""Missing members, for people."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from peerd.words import ago

if TYPE_CHECKING:
    from peerd.models.admin import MissingPeer

NAMED_MAX: Final = 8


def missing_line(missing: Sequence[MissingPeer], total: int) -> str:
    """The missing members on one line, the first few by name."""
    names = [f"{peer.id[:8]} ({peer.address}): lost {ago(peer.lost_s)}" for peer in missing[:NAMED_MAX]]
    more = f" and {total - len(names)} more" if total > len(names) else ""
    return f"missing {', '.join(names)}{more}"
