"""What clients ask of a node, and what it sends to others for that: counted, and told once a minute."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final

from peerd.api import Host, Metric, Part, on_timer
from peerd.messages import Message
from protocols.measurement.aggregates.messages import AggregateAsk, AggregateWord
from protocols.measurement.bounds import usual_half_width
from protocols.measurement.events import MeasurementTraffic
from protocols.measurement.guarantee.caching import Caching
from protocols.measurement.guarantee.messages import CacheAsk, CacheUpdate
from protocols.measurement.messages import NodesQuestion, ReadValues
from protocols.measurement.placing.messages import AlongRead, MoveCaches, ReadAlong, SpliceIn
from protocols.measurement.readings import NoReading, Reading

REPORT_S: Final = 60.0
"""So long after the first thing that happened, all of it is told."""
_REPORT: Final = "traffic"
_READS: Final = "peerd_measurement_reads_total"
_VALUES: Final = "peerd_measurement_values_total"
_UPDATES: Final = "peerd_measurement_updates_total"
_CHECKED: Final = "peerd_measurement_checked_total"
TRAFFIC_METRICS: Final[tuple[Metric, ...]] = (
    Metric(_READS, "counter", "Questions of this node's clients. A statement asks one or a few."),
    Metric(_VALUES, "counter", "Values in the answers: cached, fetched (from owners), stale, missing.", ("outcome",)),
    Metric(_UPDATES, "counter", "Words to nodes that hold values.", ("kind",)),
    Metric(_CHECKED, "counter", "Values of caches: true, violated, unknown, says the owner; or forged.", ("outcome",)),
)
_SENT: Final[dict[type, str]] = {
    CacheAsk: "asks",
    ReadValues: "owner_questions",
    NodesQuestion: "node_questions",
    ReadAlong: "tree_questions",
    AlongRead: "tree_answers",
    SpliceIn: "splices",
    MoveCaches: "moves",
    AggregateAsk: "aggregate_asks",
    AggregateWord: "aggregate_words",
}
_UPDATED: Final = ("updates_broken", "updates_time_out", "updates_gone")
_TOLD: Final = ("checked", "violated", "reads", "values", "cached", "stale", "missing", *_SENT.values(), *_UPDATED)
"""The fields of the event that are counts of a minute."""


class TrafficCounts(Part):
    """Those of one node. An event for each question would be as many as clients like."""

    def __init__(self, host: Host, caching: Caching) -> None:
        self._host, self._caching = host, caching
        self._counts: Counter[str] = Counter()

    def read(self, answers: Sequence[Reading | NoReading], at_hand: int) -> None:
        """A client's question has its answers; the first so many were known here."""
        outcomes = Counter(_outcome(each, number < at_hand) for number, each in enumerate(answers))
        self._add(outcomes + Counter(reads=1, values=len(answers)))
        self._host.count(_READS)
        for outcome, values in outcomes.items():
            self._host.count(_VALUES, values, outcome=outcome)

    def sent(self, message: Message) -> None:
        """A message has been sent."""
        if isinstance(message, CacheUpdate):
            kind = "broken" if message.entries else "gone" if message.gone else "time_out"
            self._host.count(_UPDATES, kind=kind)
            self._add({f"updates_{kind}": 1})
        else:
            self._add({_SENT[type(message)]: 1})

    def checked(self, outcome: str) -> None:
        """It was looked whether what a cache has told is true."""
        self._host.count(_CHECKED, outcome=outcome)
        self._add({"checked": 1, "violated": int(outcome in ("violated", "forged"))})

    def _add(self, counts: dict[str, int]) -> None:
        if not self._counts:
            self._host.set_timer(_REPORT, REPORT_S)
        self._counts.update(counts)

    @on_timer(_REPORT)
    def report(self, payload: None = None) -> None:
        """Tell what has happened since the last time."""
        if not self._counts:
            return
        self._host.cancel_timer(_REPORT)
        of, self._counts = self._counts, Counter()
        held = self._caching.holder.held
        width = relative_width((each.name, value.claim.interval.half_width) for each, value in held.items())
        now = {"held_values": len(held), "holders": len(self._caching.provider.edges)}
        self._host.emit(MeasurementTraffic(**{name: of[name] for name in _TOLD}, **now, relative_width=width))


def _outcome(answer: Reading | NoReading, is_at_hand: bool) -> str:
    if isinstance(answer, NoReading):
        return "missing"
    return "stale" if answer.is_stale else "cached" if is_at_hand else "fetched"


def relative_width(half_widths: Iterable[tuple[str, float]]) -> float | None:
    """How wide bounds are beside the usual ones of their names, in the mean; ``None`` where no name has usual ones."""
    ratios = [each / usual for name, each in half_widths if (usual := usual_half_width(name)) > 0.0]
    return sum(ratios) / len(ratios) if ratios else None
