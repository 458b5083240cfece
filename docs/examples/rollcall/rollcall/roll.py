"""The algorithm: who has answered one call. Pure state, which knows no host."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from peerd.ids import NodeId

ANSWERS_MAX: Final = 10_000
"""Nodes that one roll holds; from the network comes whatever comes."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One node's answer."""

    node: NodeId
    uptime_s: float
    label: str


@dataclass
class Roll:
    """One call: its answers so far, by node."""

    number: int
    expected: int | None
    """How many nodes there were when the caller called; ``None``: it does not see the whole ring."""
    begun_s: float
    last_s: float = 0.0
    """When the latest answer came, on the caller's clock."""
    answers: dict[NodeId, Answer] = field(default_factory=dict)

    def add(self, answer: Answer, now_s: float) -> bool:
        """Whether it counts: the first answer of a node does, as long as there is room."""
        if answer.node in self.answers or len(self.answers) >= ANSWERS_MAX:
            return False
        self.answers[answer.node] = answer
        self.last_s = now_s
        return True

    @property
    def is_complete(self) -> bool | None:
        """Whether everybody has answered; ``None``: nobody knows. An answer never says more than it knows."""
        return None if self.expected is None else len(self.answers) >= self.expected

    @property
    def duration_s(self) -> float:
        """From the call to the latest answer."""
        return max(self.last_s - self.begun_s, 0.0)
