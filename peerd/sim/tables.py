"""The building blocks of a scenario file's tables: their base, their units, and the nodes that an action hits.

A duration may be written with its unit ("30s", "5ms") or as a number of seconds, a rate as "12MiB" a second or as a
number of bytes a second.
"""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from peerd.quantities import Duration, Size, parse_size

NODES_MAX: Final = 100_000

Seconds = Duration
"""Seconds in Python; in a file "30s", or a number of seconds."""
Bytes = Size
"""Bytes in Python; in a file "64KiB", or a number of bytes."""
Rate = Annotated[float, BeforeValidator(lambda value: parse_size(value) if isinstance(value, str) else value)]
"""Bytes a second in Python; in a file "12MiB", or a number of bytes a second."""
Probability = Annotated[float, Field(ge=0, lt=1)]


class Table(BaseModel):
    """Base of every table of a scenario: unknown keys are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Action(Table):
    """Base of all actions."""

    at_s: Seconds = Field(default=0.0, ge=0, description="When, seconds from the start of the phase.")


class Selection(Action):
    """The nodes that an action hits; at most one of the three is given."""

    count: int | None = Field(default=None, ge=1, le=NODES_MAX, description="So many nodes, drawn from the seed.")
    share: float | None = Field(default=None, gt=0, le=1, description="This share of the nodes, drawn from the seed.")
    nodes: tuple[int, ...] | None = Field(default=None, description="These nodes, by index from 0.")

    @model_validator(mode="after")
    def _check_one(self) -> Selection:
        if sum(value is not None for value in (self.count, self.share, self.nodes)) > 1:
            raise ValueError("give one of count, share and nodes")
        return self
