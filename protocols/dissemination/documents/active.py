"""What a node knows of a document that it exchanges with others now."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from peerd.api import Value
from peerd.ids import NodeId
from protocols.dissemination.documents.download import Download
from protocols.dissemination.documents.manifest import Attachment
from protocols.dissemination.documents.store import KeptDocument

MEET_S: Final = 1.0
"""The first pause of a node that finds nobody with what it lacks, before it asks the next node above it."""


@dataclass(eq=False, slots=True)
class Active:
    """A document that is exchanged now."""

    kept: KeptDocument
    download: Download
    begun_at: float
    streams: dict[NodeId, None] = field(default_factory=dict)
    """The streams that it came with here, and whose trees say whom to ask."""
    is_checking: bool = False
    """What is left of an earlier try is being read first."""
    senders: dict[NodeId, None] = field(default_factory=dict)
    again: int = 0
    """Chunks that came in vain, in part or as a whole."""
    banned: dict[NodeId, None] = field(default_factory=dict)
    """Those that have sent a chunk that was not what it should be."""
    waiting: dict[int, list[Callable[[Value | Exception], None]]] = field(default_factory=dict)
    """Clients that read a chunk that is still to come."""
    sources_tried: int = 0
    meet_at: float = 0.0
    meet_pause_s: float = MEET_S
    names_at: float = 0.0
    paused_until: float = 0.0
    came_at: float = 0.0
    """When the last chunk was kept."""
    used_at: float = 0.0

    @property
    def attachment(self) -> Attachment:
        """What it is."""
        return self.kept.attachment
