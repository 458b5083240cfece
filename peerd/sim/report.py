"""The results of a scenario run. All of them but ``wall_s`` are the same in every run with the same seed."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from peerd.sim.churn import ChurnReport
from peerd.sim.engine import Checkpoint
from peerd.sim.workload import LookupReport


@dataclass
class LookupSummary:
    """Lookups of one action, against the true ring."""

    phase: str
    success_min: float = 0.0
    """Smallest share of right answers that the scenario accepts."""
    asked: int = 0
    refused: int = 0
    """Lookups that were not made, because the node had too many under way."""
    answered: int = 0
    correct: int = 0
    hops: int = 0
    """Sum over the answered ones."""
    duration_s: float = 0.0
    """Sum over the answered ones."""

    @property
    def success(self) -> float:
        """The share of lookups whose answer was the true root."""
        return self.correct / self.asked if self.asked else 1.0


@dataclass
class CheckResult:
    """One check action, or the sweeps taken together."""

    name: str
    at_s: float
    passed: bool
    detail: str = ""


@dataclass
class RepairSummary:
    """One wait for a whole ring."""

    phase: str
    begun_s: float
    limit_s: float
    took_s: float | None = None
    """``None``: longer than the limit."""
    detail: str = ""
    """What did not hold at the end."""


@dataclass
class PhaseSummary:
    """What one phase cost."""

    name: str
    begun_s: float
    duration_s: float
    events: int
    messages: int
    live_nodes: int


@dataclass
class ScenarioReport:
    """All results of one run."""

    scenario: str
    seed: int
    simulated_s: float = 0.0
    wall_s: float = 0.0
    events: int = 0
    nodes: int = 0
    live_nodes: int = 0
    messages: int = 0
    """Control frames delivered."""
    messages_bytes: int = 0
    stream_bytes: int = 0
    dropped: dict[str, int] = field(default_factory=dict)
    phases: list[PhaseSummary] = field(default_factory=list)
    checks: list[CheckResult] = field(default_factory=list)
    repairs: list[RepairSummary] = field(default_factory=list)
    lookups: list[LookupSummary] = field(default_factory=list)
    workloads: list[LookupReport] = field(default_factory=list)
    churn: list[ChurnReport] = field(default_factory=list)
    calls: list[dict[str, Any]] = field(default_factory=list)
    """What plugins' scenario actions reported, in order: ``at_s``, ``protocol`` and the action's own keys."""
    failure: str | None = None
    trace_hash: str = ""
    checkpoints: list[Checkpoint] = field(default_factory=list)
    repeat: str = ""
    """The command that repeats the run."""

    @property
    def passed(self) -> bool:
        """No failure, and every check held."""
        return self.failure is None and all(check.passed for check in self.checks)

    @property
    def events_per_s(self) -> float:
        """Events a second of real time; differs from run to run."""
        return self.events / self.wall_s if self.wall_s > 0 else 0.0

    def to_json(self) -> dict[str, Any]:
        """Plain data, without the checkpoints."""
        data = asdict(self)
        del data["checkpoints"]
        for summary, lookups in zip(data["lookups"], self.lookups, strict=True):
            summary["success"] = lookups.success
        data["workloads"] = [workload.to_json() for workload in self.workloads]
        return {**data, "passed": self.passed, "events_per_s": self.events_per_s}
