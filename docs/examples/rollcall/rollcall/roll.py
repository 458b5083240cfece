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
    expected: float
    """How many nodes there were, as far as the caller knew when it called."""
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
    def is_complete(self) -> bool:
        """Whether as many have answered as were expected."""
        return len(self.answers) >= round(self.expected)

    @property
    def duration_s(self) -> float:
        """From the call to the latest answer."""
        return max(self.last_s - self.begun_s, 0.0)
