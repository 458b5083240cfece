"""What the plugin records in the event log. ONLY APPEND. Kinds begin with the plugin's name."""

from __future__ import annotations

from peerd.telemetry.schema import Event


class Answered(Event):
    """This node has answered a roll call."""

    KIND = "rollcall.answered"
    call: int


class Finished(Event):
    """At the caller: a roll call is over."""

    KIND = "rollcall.finished"
    call: int
    answers: int
    expected: float | None
    duration_s: float
