"""Reads the sources of a node, each in its period, and tells what they say and when they were asked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import isfinite
from typing import ClassVar, Final, Protocol

from peerd.api import Host, Metric, Part, on_timer
from peerd.errors import ClientRefusal
from protocols.measurement.events import SourceBack, SourceFailed
from protocols.measurement.names import split_name
from protocols.measurement.sources.smoothing import Smoothing
from protocols.measurement.sources.source import (
    NAMES_MAX,
    PUSHED,
    RESERVED,
    SMOOTHED,
    MeasurementSource,
    SourceReading,
    gather,
    refusal,
)

TTL_S_MIN: Final = 1.0
TTL_S_MAX: Final = 86_400.0
"""Limits of how long an application may say that its value holds."""
READING_S_MAX: Final = 10.0
"""A reading that takes longer has failed. What it brings later is thrown away, and until then none is begun."""
STAGGER_S_MAX: Final = 5.0
"""A source is read for the first time within so many seconds, or within its period."""
TURN_S: Final = 1.0
"""A source that has to wait for another one that may block looks again after so long."""
PUSHED_S: Final = 5.0
"""How often it is looked whether what applications put still holds, and said so."""
PROBLEM_LENGTH_MAX: Final = 200
"""Characters of what went wrong, as it is shown to people."""
REFUSED: Final = "peerd_measurement_refused_total"
FAILING: Final = "peerd_measurement_failing_sources"
METRICS: Final[tuple[Metric, ...]] = (
    Metric(REFUSED, "counter", "Readings of this node's sources, and values in them, that were refused.", ("reason",)),
    Metric(FAILING, "gauge", "Sources of this node whose last reading failed."),
)
"""Reasons: bad_name, no_number, not_finite, too_many, taken (the name is another's); failed, late (whole readings)."""


class PushedSource(MeasurementSource):
    """The table. Until its time is over, a value is what this node measures; then its name has failed."""

    is_at_hand: ClassVar[bool] = True

    def __init__(self, period_s: float) -> None:
        super().__init__(PUSHED, period_s)
        self._values: dict[str, tuple[float, float]] = {}
        """Each value, and when it ends."""

    def put(self, name: str, value: float, ttl_s: float, now: float) -> None:
        """Take a value in place of the one before. Raises `ClientRefusal`."""
        try:
            split_name(name)
        except ValueError as error:
            raise ClientRefusal("invalid", str(error)) from error
        if refusal(name, value) or not TTL_S_MIN <= ttl_s <= TTL_S_MAX:
            expected = f"a finite number, for {TTL_S_MIN:g} to {TTL_S_MAX:g} seconds"
            raise ClientRefusal("invalid", f"{name}: expected {expected}, not {value} for {ttl_s}")
        if name not in self.read(now) and len(self._values) >= NAMES_MAX:
            raise ClientRefusal(
                "quota", f"applications put {NAMES_MAX} measurements here already, and that is the most"
            )
        self._values[name] = float(value), now + ttl_s

    def read(self, now: float) -> dict[str, float]:
        """All values that hold."""
        self._values = {name: each for name, each in self._values.items() if now < each[1]}
        return {name: value for name, (value, _) in self._values.items()}


class SampleTaker(Protocol):
    """Who is told."""

    def sampled(self, values: Mapping[str, float], asked_at: float) -> None:
        """The source was asked at that time, and this is what it said. Times of one name never go back."""

    def failed(self, names: Sequence[str]) -> None:
        """These measurements have no value at present."""


@dataclass(slots=True)
class _Watched:
    """A source, the names that it tells at present, and when the reading that is under way began."""

    source: MeasurementSource
    names: dict[str, None] = field(default_factory=dict)
    asked_at: float | None = None
    is_late: bool = False
    problem: str = ""
    failed_at: float | None = None
    """When it began to fail, if it does."""


class Sampling(Part):
    """All sources of one node, and what applications put. Nothing that a source does or says raises here.

    A name belongs to the first source that tells it, for as long as that source goes on.
    """

    def __init__(
        self, host: Host, sources: Sequence[MeasurementSource], taker: SampleTaker, smoothings: Iterable[Smoothing] = ()
    ) -> None:
        self._host, self._pushed, self._taker = host, PushedSource(PUSHED_S), taker
        self._watched = {source.name: _Watched(source) for source in (*sources, self._pushed)}
        self._smoothings: dict[str, list[Smoothing]] = {}
        self._owners: dict[str, str] = {}
        """Which source tells a name at present."""
        for each in smoothings:
            self._smoothings.setdefault(each.of, []).append(each)
            self._owners[each.name] = SMOOTHED

    def begin(self) -> None:
        """Read all sources from now on. Called in the plugin's `start`, once its parts are added."""
        for name, watched in self._watched.items():
            first_s = self._host.rng.uniform(0.0, min(STAGGER_S_MAX, watched.source.period_s))
            self._host.set_timer("measure", first_s, name)

    def source_of(self, name: str) -> str:
        """Which source tells this name."""
        return self._owners.get(name, "")

    def problems(self) -> dict[str, str]:
        """Sources whose last reading failed, or was refused in part, each with what went wrong, for people."""
        return {name: watched.problem for name, watched in self._watched.items() if watched.problem}

    def put(self, name: str, value: float, ttl_s: float) -> None:
        """An application says that this is the value for the next ``ttl_s`` seconds. Raises `ClientRefusal`."""
        if (owner := self._owner(name, PUSHED)) != PUSHED:
            raise ClientRefusal("conflict", f"{name} is measured by this node itself: {owner}")
        now = self._host.now()
        self._pushed.put(name, value, ttl_s, now)
        self._watched[PUSHED].names[name], self._owners[name] = None, PUSHED
        self._tell({name: float(value)}, now)

    # One reading

    @on_timer("measure")
    def _due(self, name: str) -> None:
        watched = self._watched[name]
        source, now = watched.source, self._host.now()
        blocked = [each for each in self._watched.values() if each.source.may_block and each.asked_at is not None]
        has_to_wait = source.may_block and watched.asked_at is None and bool(blocked)
        self._host.set_timer("measure", TURN_S if has_to_wait else source.period_s, name)
        if has_to_wait:
            watched.problem = f"waits for {blocked[0].source.name}"
        if has_to_wait or watched.asked_at is not None:
            return
        if source.is_at_hand:
            self._take(watched, gather(source, now), now)
            return
        watched.asked_at = now
        self._host.set_timer("measure_late", READING_S_MAX, name)
        ended = partial(self._ended, watched)
        self._host.offload(gather, source, now, done=ended, failed=ended, cost_s=source.cost_s)

    @on_timer("measure_late")
    def _late(self, name: str) -> None:
        watched = self._watched[name]
        watched.is_late = True
        self._take(watched, SourceReading({}, {"late": 1}), self._host.now(), f"no answer in {READING_S_MAX:g} s")

    def _ended(self, watched: _Watched, outcome: SourceReading | BaseException) -> None:
        self._host.cancel_timer("measure_late", watched.source.name)
        asked_at, is_late = watched.asked_at, watched.is_late
        watched.asked_at, watched.is_late = None, False
        if asked_at is not None and not is_late:
            problem = "" if isinstance(outcome, SourceReading) else f"{type(outcome).__name__}: {outcome}"
            reading = outcome if isinstance(outcome, SourceReading) else SourceReading({}, {"failed": 1})
            self._take(watched, reading, asked_at, problem)

    # What it has brought

    def _take(self, watched: _Watched, reading: SourceReading, asked_at: float, problem: str = "") -> None:
        source = watched.source.name
        told = {name: value for name, value in reading.values.items() if self._owner(name, source) == source}
        taken = len(reading.values) - len(told)
        refused = {**reading.refused, **({"taken": taken} if taken else {})}
        for reason, count in refused.items():
            self._host.count(REFUSED, count, reason=reason)
        in_part = ", ".join(f"{reason}: {count}" for reason, count in refused.items())
        watched.problem = (problem or in_part)[:PROBLEM_LENGTH_MAX]
        self._note_failing(watched, problem)
        gone = [name for name in watched.names if name not in told]
        watched.names = dict.fromkeys(told)
        self._owners |= dict.fromkeys(told, source)
        self._fail(gone)
        self._tell(told, asked_at)

    def _note_failing(self, watched: _Watched, problem: str) -> None:
        """Record when a source begins to fail, and when it works again."""
        source, failed_at, now = watched.source.name, watched.failed_at, self._host.now()
        if bool(problem) == (failed_at is not None):
            return
        watched.failed_at = now if problem else None
        begun = SourceFailed(source=source, reason=problem)
        self._host.emit(begun if failed_at is None else SourceBack(source=source, duration_s=now - failed_at))
        self._host.gauge(FAILING, sum(each.failed_at is not None for each in self._watched.values()))

    def _owner(self, name: str, source: str) -> str:
        """Who alone may tell this name: that source, if nobody else does."""
        return RESERVED.get(name.partition("@")[0]) or self._owners.get(name, source)

    def _tell(self, values: Mapping[str, float], asked_at: float) -> None:
        """All of one reading at once, with what is derived of it."""
        all_of_it, failed = dict(values), []
        for name, value in values.items():
            for each in self._smoothings.get(name, ()):
                smoothed = each.add(value, asked_at)
                if isfinite(smoothed):
                    all_of_it[each.name] = smoothed
                else:  # the values are near the largest number
                    failed.append(each.name)
        if all_of_it:
            self._taker.sampled(all_of_it, asked_at)
        if failed:
            self._taker.failed(failed)

    def _fail(self, names: Sequence[str]) -> None:
        """They have no value any more, nor has what is derived of them: nobody can tell what the next one would be."""
        for name in names:
            del self._owners[name]
        if names:
            derived = (each.name for name in names for each in self._smoothings.get(name, ()))
            self._taker.failed([*names, *derived])
