"""What CoDD's policies record in the event log. ONLY APPEND, as everywhere in the schema."""

from __future__ import annotations

from typing import Final

from peerd.telemetry.schema import Event, Text


class OverlapJoined(Event):
    """A node has found a parent by overlap; ``overhead``: what that gets for it alone, per item."""

    KIND = "dissemination.overlap_joined"
    stream: Text
    parent: Text
    offers: int
    overhead: float
    duration_s: float


class ReorganisationAsked(Event):
    """A node that gets too much in vain asks to have the child with the least overlap moved."""

    KIND = "dissemination.reorganisation_asked"
    stream: Text
    child: Text
    spurious_share: float
    predicted: float


class ReorganisationDecided(Event):
    """At a granter: a request was looked at. ``outcome``: moved, no_gain, declined or silent."""

    KIND = "dissemination.reorganisation_decided"
    stream: Text
    child: Text
    parent: Text
    outcome: Text
    gain: float
    nodes_asked: int
    asker: Text = ""
    """The mover's parent until then, which had asked."""


class ReorganisationMeasured(Event):
    """At a granter: what a move was to save at the parent left, and has saved, per item."""

    KIND = "dissemination.reorganisation_measured"
    stream: Text
    child: Text
    predicted: float
    measured: float


class MovedUp(Event):
    """A node, with ``children`` of its children, has left its parent for its grandparent, which had room."""

    KIND = "dissemination.moved_up"
    stream: Text
    from_parent: Text
    parent: Text
    children: int


EVENTS: Final = (OverlapJoined, ReorganisationAsked, ReorganisationDecided, ReorganisationMeasured, MovedUp)
