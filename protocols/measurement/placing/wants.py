"""What this node holds of other nodes' measurements, and why: clients watch it, or ask for it often, or the node has
decided to cache it.

Values that clients ask for again and again would be asked for, over the network, about once in the time after which
they are stale: two messages with everything in them, whether or not anything has changed. To hold them takes a few
bytes a value in that time, and more only where bounds break; and every answer is at hand.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, KeysView
from dataclasses import dataclass
from typing import Final, Literal

from peerd.api import Host, Part, on_timer
from peerd.ids import NodeId
from protocols.measurement.config import MeasurementConfig
from protocols.measurement.guarantee.caching import Caching
from protocols.measurement.guarantee.effects import Effect
from protocols.measurement.guarantee.words import Measurement, Want
from protocols.measurement.placing.along import FEW_OWNERS
from protocols.measurement.placing.splicing import Splicing
from protocols.measurement.placing.statistics import STALE_MIN_S, Statistics

Why = Literal["watched", "asked", "cached"]
"""Clients watch it, or ask for it often; or this node has decided to cache it."""
OVER_TREE: Final = ("auto", "tree")
"""With these for ``placing``, values are held from the first node on the way over T that can provide them; else from
their owners, which is quicker where bounds break: one latency. With ``auto`` so are those of few owners, unless this
node has decided to cache them."""
UPDATES: Final = 2.5
"""What clients need is vouched for so often in the time after which it is stale."""
DIRECT_S: Final = 120.0
"""So long caches are not tried again for what they have not kept young enough."""
OFTEN: Final = 3
"""A value is held that was asked for so often within the age that it may have."""
BREAKS_MAX: Final = 2.5
"""Unless its bounds break more often than this in that time."""
LOOK_S: Final = 5.0
"""How often it is looked for what is not asked for any more."""
LEAST_S: Final = 10.0
"""What was asked for within this time, or twice the age that it may have, still is."""
LOOSER_S: Final = 60.0
"""After this time it is held as exact, and as young, as it was asked for in that time."""
OFTEN_MAX: Final = 4096
"""Values that are counted, or held; more are asked for each time."""
_LOOK: Final = "asked"


class HeldWants:
    """Each value is held once: as tight, and as often vouched for, as the strictest reason wants it. ``left`` has it
    decided, soon, what is cached."""

    def __init__(
        self,
        host: Host,
        config: MeasurementConfig,
        caching: Caching,
        splicing: Splicing,
        carry_out: Callable[[Iterable[Effect]], None],
        left: Callable[[], None],
    ) -> None:
        self._host, self._config = host, config
        self._caching, self._splicing, self._carry_out, self._left = caching, splicing, carry_out, left
        self._of: dict[Measurement, dict[Why, tuple[float, float]]] = {}
        self._direct: dict[Measurement, float] = {}
        """What is held from its owner though it is usual to seek it over T, and until when."""

    def cached(self) -> KeysView[Measurement]:
        """What this node caches by its own decision, in an order that is the same in each run of a seed."""
        return dict.fromkeys(measurement for measurement, why in self._of.items() if "cached" in why).keys()

    def is_needed(self, measurement: Measurement) -> bool:
        """Whether clients need it here."""
        return not self._of.get(measurement, {}).keys() <= {"cached"}

    def late(self, measurements: Iterable[Measurement]) -> None:
        """Caches do not keep these as young as they are wanted: where clients need them, their owners are to provide
        them."""
        self.avoid_caches([each for each in measurements if self.is_needed(each)], DIRECT_S)

    def avoid_caches(self, measurements: Iterable[Measurement], seconds: float) -> None:
        """Their owners are to provide these, for a while."""
        wanted = [each for each in measurements if each in self._of]
        self._direct.update(dict.fromkeys(wanted, self._host.now() + seconds))
        self._place(wanted)

    def look(self) -> None:
        """Now and then, try caches again."""
        now = self._host.now()
        again = [each for each, until in self._direct.items() if now > until]
        for measurement in again:
            del self._direct[measurement]
        self._place(again)

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
        """Not for this reason any more. What others hold from here is cached from now on, until it is decided what is:
        they are told of another provider then."""
        changed, gone, is_left = [], [], False
        for measurement in measurements:
            of = self._of.get(measurement, {})
            before = self._terms(of)
            if of.pop(why, None) is None:
                continue
            if not of and why != "cached" and self._splicing.provides(measurement):
                of["cached"], is_left = before, True
            elif not of:
                del self._of[measurement]
                self._direct.pop(measurement, None)
                gone.append(measurement)
            elif self._terms(of) != before:
                changed.append(measurement)
        self._place(changed)
        if is_left:
            self._left()
        if gone:
            self._splicing.forget(gone)
            self._carry_out(self._caching.unwant(gone, self._host.now()))

    def _place(self, measurements: Iterable[Measurement]) -> None:
        over_tree: dict[float, list[Want]] = {}
        direct: dict[tuple[NodeId, float], list[Want]] = {}
        is_few = self._config.placing == "auto" and self._has_few_owners()
        for measurement in measurements:
            half_width, update_s = self._terms(self._of[measurement])
            want = Want(measurement, half_width)
            if is_few and "cached" not in self._of[measurement]:
                self._direct.setdefault(measurement, self._host.now() + DIRECT_S)
            if self._config.placing in OVER_TREE and measurement not in self._direct:
                over_tree.setdefault(update_s, []).append(want)
            else:
                self._splicing.forget((measurement,))
                direct.setdefault((measurement.owner, update_s), []).append(want)
        for update_s, wants in over_tree.items():
            self._splicing.seek(wants, update_s)
        for (owner, update_s), wants in direct.items():
            self._carry_out(self._caching.want(wants, owner, self._host.now(), update_s))

    def _has_few_owners(self) -> bool:
        owners: set[NodeId] = set()
        for measurement in self._of:
            owners.add(measurement.owner)
            if len(owners) > FEW_OWNERS:
                return False
        return True

    @staticmethod
    def _terms(of: dict[Why, tuple[float, float]]) -> tuple[float, float]:
        """Half-width and interval that do for all reasons."""
        widths, intervals = zip(*of.values(), strict=True) if of else ((), ())
        return min(widths, default=float("inf")), min(intervals, default=float("inf"))


@dataclass(slots=True)
class _Asked:
    """One value. ``half_width``, ``max_age_s``: the strictest that it was asked for; and the same since ``since``."""

    half_width: float
    max_age_s: float
    began: float
    last_at: float
    since: float
    next_half_width: float
    next_max_age_s: float
    times: int = 0
    is_held: bool = False

    def note(self, half_width: float, max_age_s: float, now: float) -> bool:
        """Somebody asks; whether it is to be held otherwise than it is."""
        if now - self.began > self.max_age_s:
            self.began, self.times = now, 0
        self.times += 1
        self.last_at = now
        before = self.half_width, self.max_age_s
        self.half_width, self.max_age_s = min(self.half_width, half_width), min(self.max_age_s, max_age_s)
        self.next_half_width = min(self.next_half_width, half_width)
        self.next_max_age_s = min(self.next_max_age_s, max_age_s)
        if now - self.since > LOOSER_S:
            self.half_width, self.max_age_s = self.next_half_width, self.next_max_age_s
            self.since, self.next_half_width, self.next_max_age_s = now, half_width, max_age_s
        return (self.is_held and before != (self.half_width, self.max_age_s)) or (
            not self.is_held and self.times >= OFTEN
        )


class AskedOften(Part):
    """``update_s``: as often any provider vouches for what it provides. So what may be much older is not held."""

    def __init__(self, host: Host, update_s: float, wants: HeldWants, statistics: Statistics) -> None:
        self._host, self._wants, self._statistics = host, wants, statistics
        self._max_age_s = UPDATES * update_s
        self._asked: dict[Measurement, _Asked] = {}

    def is_held(self, measurement: Measurement) -> bool:
        """Whether this is held because of that."""
        asked = self._asked.get(measurement)
        return asked is not None and asked.is_held

    def note(self, wants: Iterable[Want], max_age_s: float) -> None:
        """A client asks for these of other nodes, together."""
        if not STALE_MIN_S <= max_age_s <= self._max_age_s:
            return
        now, new = self._host.now(), list[tuple[Want, float]]()
        for measurement, half_width in ((want.measurement, want.half_width) for want in wants):
            if measurement.name.endswith("@"):
                continue  # only the owner knows which pairs there are
            asked = self._asked.get(measurement)
            if asked is None and len(self._asked) >= OFTEN_MAX:
                continue
            if asked is None:
                if not self._asked:
                    self._host.cancel_timer(_LOOK)
                    self._host.set_timer(_LOOK, LOOK_S)
                asked = _Asked(half_width, max_age_s, now, now, now, half_width, max_age_s)
                self._asked[measurement] = asked
            if asked.note(half_width, max_age_s, now):
                breaks = self._statistics.updates_s(measurement) * asked.max_age_s
                if asked.is_held or breaks <= BREAKS_MAX:
                    asked.is_held = True
                    new.append((Want(measurement, asked.half_width), asked.max_age_s / UPDATES))
        if new:
            self._wants.hold("asked", new)

    @on_timer(_LOOK)
    def _look(self, payload: None) -> None:
        now = self._host.now()
        over = [each for each, asked in self._asked.items() if now - asked.last_at > max(LEAST_S, 2 * asked.max_age_s)]
        held = [each for each in over if self._asked[each].is_held]
        for measurement in over:
            del self._asked[measurement]
        self._wants.let_go("asked", held)
        if self._asked:
            self._host.set_timer(_LOOK, LOOK_S)
