"""What one swarm seed does: how many nodes, which faults, what work. Everything is drawn from the seed.

Each feature is on with probability one half (swarm testing, Groce et al. 2012: leaving faults out finds what all of
them at once hide), hostile nodes in a quarter of the seeds. All numbers are drawn whether a feature is on or not, so
that turning one off changes no other.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from peerd.errors import ConfigError
from peerd.sim.churn import ChurnSettings
from peerd.sim.rng import fork

NODES: Final = (1, 2, 3, 8, 16, 64)
"""Sizes at which a ring is special: alone, a pair, both neighbours, half a leaf set, nearly gapless, with a table."""
LARGE_NODES: Final = (100, 150)
"""Sizes of the few larger rings: leaf sets that cover a small ring hide what goes wrong beyond them."""
LARGE_SHARE: Final = 0.02
"""Share of the seeds that have such a ring; each takes as long as several others."""
LIARS: Final = "liars"
"""The feature of hostile nodes. It has random streams of its own, so a seed without it is what it always was."""
LIARS_SHARE_MAX: Final = 0.1
"""At most so many of the first nodes are hostile, but one at least."""
LIARS_PROBABILITY: Final = 0.25
HALVES: Final = (
    *("loss", "duplication", "reorder", "clogs", "partitions", "crashes", "pauses", "leaves", "joins", "churn"),
    *("lookups", "broadcasts"),
)
"""The features that are on in half of the seeds."""
FEATURES: Final = (*HALVES, LIARS)
ATTACKERS_MAX: Final = 99_999
ATTACKERS_PERCENT_MAX: Final = 50
CUTS: Final = ("part", "coin", "one")
"""Whom a partition takes out: a set of random size, everybody by the toss of a coin, one node."""


@dataclass(frozen=True, slots=True)
class Attackers:
    """How many nodes of a ring are hostile: a number, or a share of all."""

    number: int = 0
    share: float = 0.0

    @classmethod
    def parse(cls, text: str) -> Attackers:
        """From "2" or "10%". Raises `ConfigError`."""
        digits = text.removesuffix("%").strip()
        if digits.isascii() and digits.isdigit() and len(digits) <= len(str(ATTACKERS_MAX)) and int(digits):
            if not text.endswith("%"):
                return cls(number=int(digits))
            if int(digits) <= ATTACKERS_PERCENT_MAX:
                return cls(share=int(digits) / 100)
        raise ConfigError(
            f"expected a number from 1, or a share from 1% to {ATTACKERS_PERCENT_MAX}%, not {text!r}", key="--attackers"
        )

    def count(self, nodes: int) -> int:
        """How many those are of so many nodes, at least one."""
        return max(1, self.number or int(self.share * nodes))


@dataclass(frozen=True, slots=True)
class Plan:
    """The draw of one seed. Times are virtual seconds; a mean gap is between two faults of a kind in the whole ring."""

    seed: int
    nodes: int
    spacing_s: float
    latency_side_s: float
    latency_minimum_s: float
    features: frozenset[str]
    is_rough_start: bool
    """Whether messages are lost, doubled and reordered while the ring forms already."""
    fault_s: float
    """How long the fault phase lasts."""
    core_share: float
    """Share of the nodes alive at its end that are healed; the others die then."""
    loss: float
    is_retransmitted: bool
    duplication: float
    jitter: float
    clog_gap_s: float
    cut: str
    is_cut_one_way: bool
    cut_s: float
    crash_gap_s: float
    returning: float
    """Share of the crashed nodes that start again."""
    pause_gap_s: float
    leave_gap_s: float
    join_gap_s: float
    churn: ChurnSettings
    probes_per_s: float
    liars: int = 0
    """How many of the first nodes are hostile."""

    def has(self, feature: str) -> bool:
        """Whether a feature is on."""
        return feature in self.features

    def with_liars(self, wanted: Attackers) -> Plan:
        """The same, with hostile nodes whatever was drawn; a node that is alone has nobody to lie to."""
        liars = min(wanted.count(self.nodes), self.nodes - 1)
        return replace(self, liars=liars, features=self.features | {LIARS})

    def without(self, features: frozenset[str]) -> Plan:
        """The same, with less going on. Raises `ConfigError` for an unknown feature."""
        for feature in sorted(features - set(FEATURES)):
            raise ConfigError(f"no feature {feature!r}; known: {', '.join(FEATURES)}", key="--without")
        return replace(self, features=self.features - features)

    def __str__(self) -> str:
        details = {
            "loss": f"loss {self.loss:.0%}" + (" (retransmitted)" if self.is_retransmitted else ""),
            "duplication": f"duplication {self.duplication:.0%}",
            "partitions": f"partitions ({self.cut}{', one way' if self.is_cut_one_way else ''})",
            "churn": f"churn {self.churn.mean_s:.0f} s",
            LIARS: f"{self.liars} {'liar' if self.liars == 1 else 'liars'}",
        }
        is_shown = {feature: feature in self.features for feature in FEATURES}
        is_shown[LIARS] &= self.liars > 0
        shown = [details.get(feature, feature) for feature in FEATURES if is_shown[feature]]
        return ", ".join(shown) or "no faults"


def draw(seed: int, nodes: int | None = None, attackers: Attackers | None = None) -> Plan:
    """The plan of a seed; with ``nodes``, for a ring of that size; with ``attackers``, with so many hostile nodes."""
    plan = _draw(seed, nodes)
    if attackers is not None:
        return plan.with_liars(attackers)
    liars = fork(seed, "swarm", LIARS)
    share, is_on = liars.uniform(0.0, LIARS_SHARE_MAX), liars.random() < LIARS_PROBABILITY
    return plan.with_liars(Attackers(share=share)) if is_on else plan


def _draw(seed: int, nodes: int | None) -> Plan:
    rng = fork(seed, "swarm")
    uniform = rng.uniform
    drawn = rng.choice(NODES) if rng.random() < 0.9 else rng.randint(4, 40)
    large = fork(seed, "large swarm")  # its own stream: all else in a plan stays what it was
    if large.random() < LARGE_SHARE:
        drawn = large.randint(*LARGE_NODES)
    nodes = drawn if nodes is None else nodes
    fault_s = uniform(20.0, 90.0)
    silent = uniform(0.0, 1.0)

    def gap_s() -> float:
        """So that on average a tenth to a half of the nodes are hit during the fault phase."""
        return fault_s / (nodes * uniform(0.1, 0.5))

    return Plan(
        seed=seed,
        nodes=nodes,
        spacing_s=uniform(0.02, 0.5),
        latency_side_s=uniform(0.01, 0.2),
        latency_minimum_s=uniform(0.0, 0.03),
        features=frozenset(feature for feature in HALVES if rng.random() < 0.5),
        is_rough_start=rng.random() < 0.5,
        fault_s=fault_s,
        core_share=rng.choice((0.5, 0.75, 0.9, 1.0)),
        loss=uniform(0.0, 0.3),
        is_retransmitted=rng.random() < 0.25,
        duplication=uniform(0.0, 0.5),
        jitter=uniform(0.05, 1.0),
        clog_gap_s=uniform(0.2, 5.0),
        cut=rng.choice(CUTS),
        is_cut_one_way=rng.random() < 0.5,
        cut_s=uniform(2.0, 40.0),
        crash_gap_s=gap_s(),
        returning=uniform(0.0, 1.0),
        pause_gap_s=gap_s(),
        leave_gap_s=gap_s(),
        join_gap_s=gap_s(),
        churn=ChurnSettings(
            session_mean_s=uniform(30.0, 300.0),
            population=nodes,
            silent=silent,
            graceful=uniform(0.0, 1.0 - silent),
            returning=uniform(0.0, 1.0),
        ),
        probes_per_s=uniform(0.5, 10.0),
    )
