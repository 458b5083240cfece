"""Why events were lost before they came to their subscriber, as nodes and readers are told. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from enum import IntEnum
from typing import Annotated, Final, TypeAlias

from msgspec import Meta

from peerd.ids import NodeId, format_id
from peerd.lib.feed import FeedLoss
from peerd.messages import U8, U32, Struct

LOST_MAX: Final = 2**32 - 1
"""So many lost events are counted for one reason."""
REASONS_MAX: Final = 16


class LossReason(IntEnum):
    """Why an event that matched will not come. ONLY APPEND: the numbers travel."""

    OTHER = 0
    QUEUE_FULL = 1
    """More waited for the node than ``delivery_queue``."""
    MEMORY_FULL = 2
    """More waited for all nodes together than ``deliveries_bytes``."""
    SILENT = 3
    """The node did not answer for ``delivery_keep``."""
    KEEP_BYTES = 4
    """More came than the subscription states to be kept for it (``keep_bytes``)."""
    KEEP_TIME = 5
    """The node was away for longer than the subscription states (``keep``)."""
    LEAF_FULL = 6
    """The leaf's node keeps no more for others: ``kept_per_node``, ``kept_total``, or its disk."""
    NO_SCHEMA = 7
    """The subscriber's own node could not look the schema up, so it could not read its filter."""
    SLOW_READER = 8
    """The subscriber's own node had no room: a reader that blocks is slow."""
    DAMAGED = 9
    """The subscriber's own disk has lost it."""
    PAST = 10
    """A leaf does not remember as much of the past as was asked for; how many events that were, nobody knows."""


class LostEvents(Struct):
    """So many events were lost for one reason."""

    reason: U8
    count: U32


Losses: TypeAlias = Annotated[tuple[LostEvents, ...], Meta(max_length=REASONS_MAX)]


class LossCount:
    """Losses that are to be told, by schema."""

    def __init__(self) -> None:
        self._counts: dict[str, Counter[int]] = {}

    def __bool__(self) -> bool:
        return bool(self._counts)

    def note(self, schema: str, reason: int, count: int = 1) -> None:
        """Count some more."""
        counts = self._counts.setdefault(schema, Counter())
        counts[reason] = min(counts[reason] + count, LOST_MAX)

    def add(self, schema: str, losses: Iterable[LostEvents]) -> None:
        """Count what could not be told."""
        for each in losses:
            self.note(schema, each.reason, each.count)

    def take(self, schema: str) -> tuple[LostEvents, ...]:
        """What is to be told of a schema; it counts as told."""
        counts = self._counts.pop(schema, Counter())
        return tuple(LostEvents(reason, count) for reason, count in sorted(counts.items())[:REASONS_MAX])

    def rows(self) -> list[tuple[str, int, int]]:
        """All of it, sorted: schema, reason, count."""
        return [(schema, *each) for schema in self.schemas() for each in sorted(self._counts[schema].items())]

    def schemas(self) -> list[str]:
        """Schemas of which something is to be told, sorted."""
        return sorted(self._counts)


def shown_loss(lost: LostEvents, by: NodeId) -> FeedLoss:
    """As a reader gets it: who says it, and why."""
    known = lost.reason in LossReason.__members__.values()
    reason = LossReason(lost.reason) if known else LossReason.OTHER
    return FeedLoss(lost.count, reason.name.lower(), format_id(by))
