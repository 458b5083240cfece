"""Nodes that come and go: at random times, or as in a trace.

Poisson churn: sessions are exponential and arrivals a Poisson process with the rate that keeps the population where it
is, as in the evaluations of MSPastry (Castro et al. 2004, section 5.1) and Bamboo (Rhea et al. 2004, section 3).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, model_validator

from peerd.errors import ConfigError
from peerd.sim.rng import fork
from peerd.sim.simulation import Place, Simulation

TRACE_BYTES_MAX: Final = 64 * 1024 * 1024
POPULATION_MAX: Final = 100_000
ENDINGS: Final = ("kill", "silence", "leave")


class ChurnSettings(BaseModel):
    """Poisson churn. One of the two session times is given."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    session_median_s: float | None = Field(
        default=None, gt=0, description="Time that half of the nodes stay for at most, seconds; ln 2 times the mean."
    )
    session_mean_s: float | None = Field(default=None, gt=0, description="Mean time that nodes stay, seconds.")
    population: int | None = Field(
        default=None,
        ge=1,
        le=POPULATION_MAX,
        description="Mean number of running nodes; absent: as many as run when churn begins.",
    )
    silent: float = Field(default=0.5, ge=0, le=1, description="Share of the nodes that go by power loss.")
    graceful: float = Field(
        default=0.0, ge=0, le=1, description="Share that leave in order; all the others are killed (connections reset)."
    )
    returning: float = Field(
        default=0.0,
        ge=0,
        le=1,
        description="Share of the arrivals that are a node from before, with its id and a larger boot epoch.",
    )

    @model_validator(mode="after")
    def _check(self) -> ChurnSettings:
        if (self.session_median_s is None) == (self.session_mean_s is None):
            raise ValueError("give session_median_s or session_mean_s")
        if self.silent + self.graceful > 1:
            raise ValueError("silent and graceful are shares of the same nodes: together at most 1")
        return self

    @property
    def mean_s(self) -> float:
        """The mean of the exponential distribution of sessions, seconds."""
        return self.session_mean_s or (self.session_median_s or 0.0) / math.log(2)


@dataclass
class ChurnReport:
    """How many nodes churn started, stopped and killed."""

    phase: str = ""
    arrivals: int = 0
    returns: int = 0
    """Arrivals of a node from before."""
    killed: int = 0
    silenced: int = 0
    left: int = 0
    spared: int = 0
    """How often no node was taken, because it was the last one that ran."""

    @property
    def departures(self) -> int:
        """All departures, of every kind."""
        return self.killed + self.silenced + self.left


class Churn:
    """Takes and adds nodes of a simulation from `start` until `stop`."""

    def __init__(
        self,
        simulation: Simulation,
        settings: ChurnSettings,
        *,
        name: str = "churn",
        note: Callable[[str], None] = lambda text: None,
    ) -> None:
        """``name`` chooses the random generator; ``note`` is called with what happens, in words."""
        self.report = ChurnReport()
        self._note = note
        self._simulation = simulation
        self._settings = settings
        self._rng = fork(simulation.seed, name)
        self._gone: list[Place] = []
        """The nodes that may return."""
        self._is_on = False

    def start(self) -> None:
        """Give every running node a session that begins now (exponential times have no memory), and begin arrivals."""
        self._is_on = True
        for place in self._simulation.live_nodes():
            self._begin_session(place)
        population = self._settings.population or max(len(self._simulation.truth.running), 1)
        self._arrive_later(self._settings.mean_s / population)

    def stop(self) -> None:
        """Let no node come or go any more."""
        self._is_on = False

    def _later(self, delay_s: float, action: Callable[[], None]) -> None:
        def act() -> None:
            if self._is_on:
                action()

        self._simulation.after(delay_s, act)

    def _arrive_later(self, mean_gap_s: float) -> None:
        def arrive() -> None:
            self._arrive()
            self._arrive_later(mean_gap_s)

        self._later(self._rng.expovariate(1.0 / mean_gap_s), arrive)

    def _arrive(self) -> None:
        simulation = self._simulation
        self.report.arrivals += 1
        if self._rng.random() < self._settings.returning and self._gone:
            place = self._gone.pop(self._rng.randrange(len(self._gone)))
            self.report.returns += 1
            simulation.restart(place)
        else:
            place = simulation.add_node()
        self._note(f"churn: {place.index} comes")
        self._begin_session(place)

    def _begin_session(self, place: Place) -> None:
        self._later(self._rng.expovariate(1.0 / self._settings.mean_s), lambda: self._depart(place))

    def _depart(self, place: Place) -> None:
        simulation, settings = self._simulation, self._settings
        if not place.is_live:
            return  # somebody else took it
        if len(simulation.truth.running) == 1:
            self.report.spared += 1
            self._begin_session(place)
            return
        draw = self._rng.random()
        self._note(f"churn: {place.index} goes")
        is_graceful = settings.silent <= draw < settings.silent + settings.graceful
        ending = "leave" if is_graceful else "silence" if draw < settings.silent else "kill"
        _end(simulation, self.report, place, ending, self._ended)

    def _ended(self, place: Place) -> None:
        if self._settings.returning:
            self._gone.append(place)


def _end(
    simulation: Simulation,
    report: ChurnReport,
    place: Place,
    ending: str,
    ended: Callable[[Place], None] = lambda place: None,
) -> None:
    """Have a node go in one of the `ENDINGS`; its memory is freed when it has gone."""

    def then() -> None:
        ended(place)
        simulation.after(0.0, lambda: simulation.bury(place))

    if ending == "leave":
        report.left += 1
        simulation.stop(place, then=then)
        return
    if ending == "silence":
        report.silenced += 1
        simulation.silence(place)
    else:
        report.killed += 1
        simulation.kill(place)
    then()


class TraceEvent(NamedTuple):
    """One line of a churn trace."""

    time_s: float
    node: str
    is_up: bool
    ending: str
    """One of `ENDINGS`, for a node that goes down."""


def read_trace(path: Path) -> list[TraceEvent]:
    """The events of a trace file, in order of time.

    A line is ``TIME NODE up`` or ``TIME NODE down [kill|silence|leave]``, fields separated by blanks: seconds from the
    beginning, any word that names the node, what happens. Empty lines and what follows a ``#`` are ignored. A node is
    down at first; what it does alternates. Raises `ConfigError` with the line.
    """
    try:
        data = path.read_bytes()
    except (OSError, ValueError) as error:  # ValueError: a NUL in its name
        raise ConfigError(f"cannot be read: {getattr(error, 'strerror', error)}", file=str(path)) from None
    if len(data) > TRACE_BYTES_MAX:
        raise ConfigError(f"{len(data)} bytes, limit {TRACE_BYTES_MAX}", file=str(path))
    found: list[tuple[float, int, TraceEvent]] = []
    for number, line in enumerate(data.decode("utf-8", "replace").splitlines(), start=1):
        words = line.partition("#")[0].split()
        if words:
            event = _parse_event(words, path, number)
            found.append((event.time_s, number, event))
    found.sort()
    up: set[str] = set()
    for _, number, event in found:
        if (event.node in up) == event.is_up:
            state = "up" if event.is_up else "down"
            raise ConfigError(f"line {number}: {event.node} is {state} already", file=str(path))
        (up.add if event.is_up else up.remove)(event.node)
    return [event for _, _, event in found]


def _parse_event(words: list[str], path: Path, number: int) -> TraceEvent:
    try:
        time_s = float(words[0])
    except ValueError:
        time_s = -1.0
    if not 0 <= time_s < math.inf:
        raise ConfigError(f"line {number}: expected seconds, 0 or more, not {words[0]!r}", file=str(path))
    match words[1:]:
        case [node, "up"]:
            return TraceEvent(time_s, node, True, "")
        case [node, "down"]:
            return TraceEvent(time_s, node, False, "kill")
        case [node, "down", ending] if ending in ENDINGS:
            return TraceEvent(time_s, node, False, ending)
    raise ConfigError(
        f"line {number}: expected TIME NODE up, or TIME NODE down with one of {', '.join(ENDINGS)}", file=str(path)
    )


class TraceChurn:
    """Plays a trace: a node that comes up again has its old identity."""

    def __init__(self, simulation: Simulation, events: list[TraceEvent]) -> None:
        self.report = ChurnReport()
        self._simulation = simulation
        self._events = events
        self._next = 0
        self._places: dict[str, Place] = {}
        self._begun_s = 0.0
        self._is_on = False

    def start(self) -> None:
        """The trace's time 0 is now."""
        self._is_on = True
        self._begun_s = self._simulation.now
        self._play_later()

    def stop(self) -> None:
        """Play no further."""
        self._is_on = False

    def _play_later(self) -> None:
        if self._next < len(self._events):
            due = self._begun_s + self._events[self._next].time_s
            self._simulation.after(max(0.0, due - self._simulation.now), self._play)

    def _play(self) -> None:
        if not self._is_on:
            return
        event = self._events[self._next]
        self._next += 1
        if event.is_up:
            self._up(event.node)
        else:
            place = self._places[event.node]
            if place.is_live:  # else somebody else took it
                _end(self._simulation, self.report, place, event.ending)
        self._play_later()

    def _up(self, node: str) -> None:
        self.report.arrivals += 1
        if node in self._places:
            self.report.returns += 1
            self._simulation.restart(self._places[node])
        else:
            self._places[node] = self._simulation.add_node()
