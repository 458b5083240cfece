"""What the aggregation protocol records in the event log. ONLY APPEND, as everywhere in the schema."""

from __future__ import annotations

from typing import Final

from peerd.limits import EVENT_TEXT_LENGTH_MAX
from peerd.telemetry.schema import Event, Text
from protocols.aggregation.query import Query


class RoundStarted(Event):
    """This node learned of an aggregation round."""

    KIND = "aggregation.round_started"
    round: str
    requester: str
    query: Text


class RoundExtracted(Event):
    """This node's own data is ready."""

    KIND = "aggregation.extracted"
    round: str
    files: int
    records: int
    rejected: int
    value_bytes: int
    duration_s: float


class LevelFinished(Event):
    """This node ended one prefix level; ``outcome`` is swapped, empty, timed_out or pruned."""

    KIND = "aggregation.level_finished"
    round: str
    level: int
    outcome: Text
    peer: str | None
    contributors: int
    value_bytes: int
    duration_s: float


class PiecesFinished(Event):
    """This node's part in an exchange in pieces ended: ``outcome`` is merged, at the requester joined, or why all nodes
    go on with whole values."""

    KIND = "aggregation.pieces_finished"
    round: str
    outcome: Text
    nodes: int
    value_bytes: int
    duration_s: float


class RoundLeft(Event):
    """This node's part in a round ended; ``outcome`` is stopped, expired, refused, or idle: it made room."""

    KIND = "aggregation.round_left"
    round: str
    outcome: Text
    contributors: int
    duration_s: float


class RoundFinished(Event):
    """At the requester: the answer of a round."""

    KIND = "aggregation.round_finished"
    round: str
    requester: str
    query: Text
    contributors: int
    expected: float
    missing: int
    completeness: float
    duration_s: float
    value_bytes: int
    outcome: Text


class ResultRejected(Event):
    """At the requester: a result was not taken, because it cannot be true."""

    KIND = "aggregation.result_rejected"
    round: str
    peer: str
    reason: Text


EVENTS: Final[tuple[type[Event], ...]] = (
    RoundStarted,
    RoundExtracted,
    LevelFinished,
    RoundLeft,
    RoundFinished,
    ResultRejected,
    PiecesFinished,
)


def query_text(query: Query) -> str:
    """A query as events show it: the beginning of a long one."""
    return str(query)[:EVENT_TEXT_LENGTH_MAX]
