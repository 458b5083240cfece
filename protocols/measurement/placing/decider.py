"""The cache controller of a node (section 4.2.5): every now and then it decides what to cache."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import partial
from typing import Final

from peerd.api import Host, Part, on_timer
from peerd.ids import NodeId
from protocols.measurement.config import MeasurementConfig
from protocols.measurement.guarantee.caching import Caching
from protocols.measurement.guarantee.words import Measurement, Want
from protocols.measurement.placing.deciding import benefit, counted, decide
from protocols.measurement.placing.splicing import RENEWED, RENEWED_LEAST, Splicing
from protocols.measurement.placing.statistics import CacheCandidate, Statistics
from protocols.measurement.placing.wants import HeldWants

NEAR_ENOUGH: Final = 2.0
"""Bounds and intervals that are at most so many times stricter than needed stay as they are."""
_DECIDE: Final = "decide"


class CacheDecider(Part):
    """While this node is asked for anything, it looks every ``decide_interval`` what to cache."""

    def __init__(self, host: Host, config: MeasurementConfig, caching: Caching) -> None:
        self._host, self._config, self._caching = host, config, caching
        self.renew_s = RENEWED * config.decide_interval
        self.statistics = Statistics(RENEWED_LEAST * self.renew_s, self.wake)
        self._is_awake = False
        self._since = 0.0
        self._cached: dict[Measurement, tuple[Want, float]] = {}

    def start(self, wants: HeldWants, splicing: Splicing) -> None:
        """What carries its decisions out."""
        self._wants, self._splicing = wants, splicing

    def wake(self) -> None:
        """There is something to decide on."""
        if not self._is_awake:
            self._is_awake = True
            self._since = self._host.now()
            self._set_timer()

    def _set_timer(self) -> None:
        self._host.set_timer(_DECIDE, self._config.decide_interval * self._host.rng.uniform(0.8, 1.2))

    @on_timer(_DECIDE)
    def _decide(self, payload: None) -> None:
        now, config = self._host.now(), self._config
        elapsed_s, self._since = max(1e-3, now - self._since), now
        cached = self._wants.cached()
        candidates = self.statistics.candidates(now, elapsed_s, cached)
        foreign = [each for each in candidates if each.want.measurement.owner != self._host.id]
        of_owners = Counter(each.want.measurement.owner for each in foreign)
        vouched_for = partial(self._vouching_s, of_owners)
        foreign = [self._lasting(each, elapsed_s, vouched_for(each)) for each in foreign]
        chosen = decide(foreign, config.cache_values, config.cache_updates, vouched_for)
        self._cached = {measurement: self._terms(candidate) for measurement, candidate in chosen.items()}
        self._wants.hold("cached", self._cached.values())
        besides = [each for each in cached if each not in chosen and self._wants.is_needed(each)]
        self._wants.let_go("cached", besides)  # they go on to be held, and provided
        self._splicing.decided([each for each in self._wants.cached() if each not in chosen])
        self._wants.let_go("cached", self._splicing.left(now))
        self._is_awake = bool(len(self.statistics)) or bool(self._wants.cached())
        if self._is_awake:
            self._set_timer()

    def _lasting(self, candidate: CacheCandidate, elapsed_s: float, vouching_s: float) -> CacheCandidate:
        counted_s = elapsed_s * counted(candidate, vouching_s)
        return self.statistics.lasting(candidate, counted_s, benefit(candidate, vouching_s))

    def _vouching_s(self, of_owners: Mapping[NodeId, int], candidate: CacheCandidate) -> float:
        """Its share of the time-out updates and questions between this node and its provider."""
        measurement = candidate.want.measurement
        alike = max(self._caching.holder.alike(measurement), of_owners[measurement.owner])
        often_s = min(self._config.update_interval, candidate.update_s)
        return (1.0 / max(often_s, 1e-3) + 1.0 / self._config.ask_interval) / alike

    def _terms(self, candidate: CacheCandidate) -> tuple[Want, float]:
        """How it is to be held: as now, if that is about what is needed."""
        before = self._cached.get(candidate.want.measurement)
        wanted, update_s = candidate.want, candidate.update_s
        if before is not None:
            (held, held_s), factor = before, NEAR_ENOUGH
            is_width = held.half_width <= wanted.half_width <= factor * held.half_width
            if is_width and held_s <= update_s <= factor * held_s:
                return before
        return wanted, update_s
