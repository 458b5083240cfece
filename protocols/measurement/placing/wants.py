"""What this node holds of other nodes' measurements, and why: clients watch it, or the node caches it by itself."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, KeysView
from typing import Final, Literal

from peerd.api import Host
from peerd.ids import NodeId
from protocols.measurement.config import MeasurementConfig
from protocols.measurement.guarantee.caching import Caching
from protocols.measurement.guarantee.effects import Effect
from protocols.measurement.guarantee.words import Measurement, Want
from protocols.measurement.placing.splicing import Splicing

Why = Literal["watched", "cached"]
OVER_TREE: Final = {"tree": ("watched", "cached"), "auto": ("cached",)}
"""For which reasons values are held from the first node on the way over T that can provide them, by ``placing``; else
from their owners, which is quicker where bounds break: one latency."""


class HeldWants:
    """Each value is held once: as tight, and as often vouched for, as the strictest reason wants it."""

    def __init__(
        self,
        host: Host,
        config: MeasurementConfig,
        caching: Caching,
        splicing: Splicing,
        carry_out: Callable[[Iterable[Effect]], None],
    ) -> None:
        self._host, self._config = host, config
        self._caching, self._splicing, self._carry_out = caching, splicing, carry_out
        self._of: dict[Measurement, dict[Why, tuple[float, float]]] = {}

    def cached(self) -> KeysView[Measurement]:
        """What this node caches by its own decision, in an order that is the same in each run of a seed."""
        return dict.fromkeys(measurement for measurement, why in self._of.items() if "cached" in why).keys()

    def is_watched(self, measurement: Measurement) -> bool:
        """Whether clients need it here."""
        return "watched" in self._of.get(measurement, ())

    def hold(self, why: Why, wants: Iterable[tuple[Want, float]]) -> None:
        """Hold these for this reason from now on, vouched for at least so often, seconds."""
        changed = []
        for want, update_s in wants:
            of = self._of.setdefault(want.measurement, {})
            before = self._terms(of)
            of[why] = want.half_width, update_s
            if self._terms(of) != before:
                changed.append(want.measurement)
        self._place(changed)

    def let_go(self, why: Why, measurements: Collection[Measurement]) -> None:
        """Not for this reason any more."""
        changed, gone = [], []
        for measurement in measurements:
            of = self._of.get(measurement, {})
            before = self._terms(of)
            if of.pop(why, None) is None:
                continue
            if not of:
                del self._of[measurement]
                gone.append(measurement)
            elif self._terms(of) != before:
                changed.append(measurement)
        self._place(changed)
        if gone:
            self._splicing.forget(gone)
            self._carry_out(self._caching.unwant(gone, self._host.now()))

    def _place(self, measurements: Iterable[Measurement]) -> None:
        over_tree: dict[float, list[Want]] = {}
        direct: dict[tuple[NodeId, float], list[Want]] = {}
        for measurement in measurements:
            half_width, update_s, is_over_tree = self._terms(self._of[measurement])
            want = Want(measurement, half_width)
            if is_over_tree:
                over_tree.setdefault(update_s, []).append(want)
            else:
                self._splicing.forget((measurement,))
                direct.setdefault((measurement.owner, update_s), []).append(want)
        for update_s, wants in over_tree.items():
            self._splicing.seek(wants, update_s)
        for (owner, update_s), wants in direct.items():
            self._carry_out(self._caching.want(wants, owner, self._host.now(), update_s))

    def _terms(self, of: dict[Why, tuple[float, float]]) -> tuple[float, float, bool]:
        """Half-width and interval that do for all reasons, and whether one of them is a reason to seek it over T."""
        widths, intervals = zip(*of.values(), strict=True) if of else ((), ())
        is_over_tree = not of.keys().isdisjoint(OVER_TREE.get(self._config.placing, ()))
        return min(widths, default=float("inf")), min(intervals, default=float("inf")), is_over_tree
