"""What goes over HTTP: the daemon writes it, the client reads it, the commands print it."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field

from peerd.ids import format_id
from peerd.models.admin import AdminModel
from rollcall.config import LABEL_LENGTH_MAX
from rollcall.roll import Answer, Roll


class NodeAnswer(AdminModel):
    """One node's answer."""

    node: str
    uptime_s: float
    label: str

    @classmethod
    def of(cls, answer: Answer) -> Self:
        """From the plugin's own."""
        return cls(node=format_id(answer.node), uptime_s=answer.uptime_s, label=answer.label)


class RollAnswer(AdminModel):
    """A whole roll, in the order of the ring, and how many nodes it should have named, where that is known."""

    answers: list[NodeAnswer]
    expected: int | None
    is_complete: bool | None
    duration_s: float

    @classmethod
    def of(cls, roll: Roll) -> Self:
        """From the plugin's own."""
        answers = [NodeAnswer.of(roll.answers[node]) for node in sorted(roll.answers)]
        return cls(answers=answers, expected=roll.expected, is_complete=roll.is_complete, duration_s=roll.duration_s)


class Label(AdminModel):
    """What the operator calls this node."""

    label: Annotated[str, Field(max_length=LABEL_LENGTH_MAX)]
