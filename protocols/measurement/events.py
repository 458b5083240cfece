"""What measurement queries record in the event log. ONLY APPEND, as everywhere in the schema."""

from __future__ import annotations

from typing import Final

from peerd.telemetry.schema import Event, Text


class MeasurementTraffic(Event):
    """A minute in which anything happened, as one node has seen it. ``reads``: questions of its clients, about so many
    ``values``; ``cached``: those that were known here. Then what it sent, by kind. ``held_values``, ``holders``: now.
    ``relative_width``: how wide the held bounds are beside the usual ones, in the mean; null where none are usual.
    ``tree_questions``, ``tree_answers``: READs that went on over T, and answers to them.
    ``aggregate_asks``, ``aggregate_words``: of aggregates that are reckoned in T.
    ``checked``: values of caches about which owners were asked, or that were forged; ``violated``: those that were
    wrong."""

    KIND = "measurement.traffic"
    reads: int
    values: int
    cached: int
    stale: int
    missing: int
    asks: int
    updates_broken: int
    updates_time_out: int
    updates_gone: int
    owner_questions: int
    node_questions: int
    held_values: int
    holders: int
    relative_width: float | None
    tree_questions: int = 0
    tree_answers: int = 0
    splices: int = 0
    moves: int = 0
    checked: int = 0
    violated: int = 0
    aggregate_asks: int = 0
    aggregate_words: int = 0


class SourceFailed(Event):
    """A source of this node has begun to fail: a reading of it raised, or took too long."""

    KIND = "measurement.source_failed"
    source: Text
    reason: Text


class SourceBack(Event):
    """A source of this node works again, so long after it began to fail."""

    KIND = "measurement.source_back"
    source: Text
    duration_s: float


class BoundViolated(Event):
    """An owner says that its value was outside of what a cache has told about it, or has not signed that value."""

    KIND = "measurement.bound_violated"
    name: Text
    owner: Text
    cache: Text


EVENTS: Final[tuple[type[Event], ...]] = (MeasurementTraffic, SourceFailed, SourceBack, BoundViolated)
