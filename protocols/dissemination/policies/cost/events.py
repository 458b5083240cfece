"""What the cost-based policy records in the event log. ONLY APPEND, as everywhere in the schema."""

from __future__ import annotations

from typing import Final

from peerd.telemetry.schema import Event, Text


class TreeAdapted(Event):
    """At the node that decided: a transformation was carried out, as far as ``moves`` moves."""

    KIND = "dissemination.tree_adapted"
    stream: str
    transformation: Text
    moved: str
    moves: int
    is_complete: bool
    predicted: float


class AdaptationMeasured(Event):
    """At the node that decided: what a transformation has brought."""

    KIND = "dissemination.adaptation_measured"
    stream: str
    transformation: Text
    moved: str
    predicted: float
    measured: float


EVENTS: Final = (TreeAdapted, AdaptationMeasured)
