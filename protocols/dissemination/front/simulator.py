"""Streams in the swarm: created, published and subscribed to while faults strike, and what must hold of them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any, Final, Literal

from peerd.api import Plugin
from peerd.entry_points import installed
from peerd.errors import ConfigError, Unavailable
from peerd.sim.rng import fork
from peerd.sim.simulation import Place, Simulation
from peerd.sim.swarm.work import SwarmWork
from protocols.dissemination.config import DisseminationConfig
from protocols.dissemination.front.checkers import NoOrphans, OneProducer
from protocols.dissemination.front.judging import StreamJudge, WatchedStream, plugin_of, producing
from protocols.dissemination.front.published import WRITINGS
from protocols.dissemination.front.storms import MovesAMinute
from protocols.dissemination.front.troubles import Troubles
from protocols.dissemination.loading import POLICIES, load_policy
from protocols.dissemination.models import StreamSpec, StreamView
from protocols.dissemination.names import StreamPosition, position_text
from protocols.dissemination.plugin import Dissemination
from protocols.dissemination.service import StreamRefused

SETTINGS: Final[dict[str, Any]] = {
    "lease": "30s",
    "replay_items": 300,
    "replay_for": "2m",
    "retry": "1s",
    "retry_max": "4s",
    "producer_gone_after": "20s",
    "standby_lease": "20s",
}
"""Short times, so that a seed sees what takes hours, and a short memory, so that some of it is lost and told."""
SHORT_MEMORY: Final[dict[str, Any]] = {"replay_items": 60, "feed_items": 80, "slow_bytes": "64KiB"}
"""Besides, where troubles strike: a burst of items is more than nodes, feeds and connections hold."""
RINGS: Final = ((0.10, 1, 3), (0.85, 6, 16), (0.98, 17, 32), (1.0, 33, 80))
"""Sizes of rings: up to this share of the seeds, the smallest, the largest."""
CLASSES: Final = "abcdef"
STREAMS_MAX: Final = 3
DURABLE_EVERY: Final = 2
STANDBYS_EVERY: Final = 3
"""Every so many streams one is created that a standby takes over when its producer is gone."""
TOLD_MAX: Final = 20
CREATE_SHARE: Final = 0.05
SUBSCRIBE_SHARE: Final = 0.30
END_SHARE: Final = 0.08
PAST_SHARE: Final = 0.2
BURST_MAX: Final = 6
TROUBLE_SHARE: float = 0.15
"""Of what is done besides plain use; a test of one seed of the past sets it to 0."""
DIVIDED_FACTOR: Final = 3.0
"""So much more of it while the ring is divided: two streams of one name come about then only."""
SLOW_SHARE: Final = 0.4
"""Of the seeds that slow one subscriber's link down once."""
RESTLESS: Final[dict[str, dict[str, Any]]] = {
    "overlap": {"moves_per_minute": 2, "request_items": 10, "threshold": 0.02, "delta": 0.0, "young": 1},
    "cost": {"round": "5s", "window": "2s"},
}
"""Settings of streams by policy, where troubles strike: many moves are asked for, so the limits on them are reached."""
PROOF_SUBSCRIPTIONS: Final = 5
PROOF_ITEMS: Final = 12
PROOF_DELAY_S: Final = 10.0
"""From the beginning of the calm to the items that must arrive."""
PROOF_GAP_S: Final = 0.5
LATE_ITEMS_MAX: Final = 8
"""In a calm ring a value is within its tolerance of one that was current while this many items were published: 4 s."""


def usable_policies() -> list[str]:
    """The installed policies, by name; one that needs settings, or cannot be imported, is left out."""
    found = []
    for name in installed(POLICIES):
        try:
            load_policy(name).settings({})
        except (ConfigError, ValueError):
            continue
        found.append(name)
    return found


def usable_kinds() -> list[str]:
    """The kinds of interests that streams have."""
    return list(WRITINGS)


def is_durable(number: int) -> bool:
    """Whether a run's stream of this number, from 1, is kept on its producer's disk."""
    return number % DURABLE_EVERY == 0


class StreamTraffic(SwarmWork):
    """Nodes create streams, publish, subscribe and leave. What arrives must be right, in order, and nothing may be
    missing that was not told to be lost; in the calm ring all must arrive."""

    gap_s: float = 0.7
    rings = RINGS
    refusals = (Unavailable, StreamRefused)

    def __init__(self, simulation: Simulation, rng: Random) -> None:
        super().__init__(simulation, rng)
        self._judge = StreamJudge()
        self._trouble_rng = fork(simulation.seed, "swarm", "streams", "troubles")
        self._troubles = Troubles(simulation, self._trouble_rng, self._judge)
        self._moves = MovesAMinute()
        simulation.watch(self._moves)
        self._is_slow_due = self._trouble_rng.random() < SLOW_SHARE
        self._handed_over: list[StreamView | Exception] | None = None
        self._policies, self._kinds = usable_policies(), usable_kinds()
        self._producers: dict[str, Place] = {}
        self._proof: WatchedStream | None = None
        self._due: dict[str, StreamPosition] = {}
        self._proof_watched: list[WatchedStream] = []
        self._number = 0

    @classmethod
    def plugin(cls, index: int) -> Plugin:
        settings = {**SETTINGS, **SHORT_MEMORY} if TROUBLE_SHARE else SETTINGS
        return Dissemination(DisseminationConfig.model_validate({**settings, "fan_out": 2 + index % 4}))

    def act(self, place: Place) -> None:
        self._read()
        try:
            self._act(place)
        except self.refusals:
            return  # outside the ring, too busy, or not producing any more: an answer, too

    def _read(self) -> None:
        self._judge.read()
        if len(self.not_done) < TOLD_MAX:
            self.not_done += self._judge.unmarked(self.simulation)

    def _act(self, place: Place) -> None:
        share = TROUBLE_SHARE * (DIVIDED_FACTOR if self.simulation.network.is_faulty else 1.0)
        if self._trouble_rng.random() < share and self._judge.streams:
            if self._is_slow_due and self._troubles.slow_down():
                self._is_slow_due = False
            else:
                self._troubles.strike(place, CLASSES)
            return
        chance = self.rng.random()
        if not self._producers or (chance < CREATE_SHARE and len(self._producers) < STREAMS_MAX):
            self._create(place, lambda answer: None)
        elif chance < CREATE_SHARE + SUBSCRIBE_SHARE:
            stream = self.rng.choice(sorted(self._producers))
            self._judge.subscribe(place, stream, self._wants(), self._after(stream))
        elif chance < CREATE_SHARE + SUBSCRIBE_SHARE + END_SHARE:
            self._end_one()
        else:
            stream = self.rng.choice(sorted(self._producers))
            for _ in range(self.rng.randint(1, BURST_MAX)):
                self._publish(stream)

    def _create(self, place: Place, on_done: Callable[[StreamView | Exception], None]) -> str:
        self._number += 1
        name = f"stream{self._number}"
        kind = self._kinds[0] if len(self._kinds) == 1 else self.rng.choice(self._kinds)
        policy = self.rng.choice(self._policies)
        settings = RESTLESS.get(policy, {}) if TROUBLE_SHARE else {}
        producer_gone: Literal["wait", "hand-over"] = "hand-over" if self._number % STANDBYS_EVERY == 1 else "wait"
        spec = StreamSpec(
            name=name,
            kind=kind,
            policy=policy,
            producer_gone=producer_gone,
            durable=is_durable(self._number),
            settings=settings,
        )
        self._judge.create(place, spec, on_done)
        self._producers[name] = place
        return name

    def _wants(self) -> str:
        return ",".join(sorted(self.rng.sample(CLASSES, self.rng.randint(1, 4))))

    def _after(self, stream: str) -> str | None:
        published = self._judge.streams[stream]
        positions = [] if self._judge.rivals(published) else published.positions  # whose would the mark be?
        if not positions or self.rng.random() >= PAST_SHARE:
            return None
        return position_text(self.rng.choice(positions[-50:]))

    def _end_one(self) -> None:
        live = [each for each in self._judge.watched if each.is_live and not each.is_over]
        if live:
            self._judge.end(self.rng.choice(live))

    def _publish(self, stream: str) -> None:
        place = self._producer(stream)
        if place is not None and place.is_live:
            self._judge.publish(place, stream, self.rng.choice(CLASSES))

    def _producer(self, label: str) -> Place | None:
        """Where to publish: some node that takes itself for the producer; if there is none, the one that last was."""
        found = producing(self.simulation, self._judge.streams[label])
        if len(found) > 1:
            return self._trouble_rng.choice(found)
        return found[0] if found else self._producers.get(label)

    # The calm ring

    def prove(self, place: Place) -> None:
        """A new stream is created, and used, as a client does it that tries again what was refused for the moment.

        The streams that there are have their last items published, too.
        """
        self.insist(place, self._begin_proof)

    def _begin_proof(self, place: Place) -> None:
        def told(answer: StreamView | Exception) -> None:
            if isinstance(answer, Unavailable) and self.simulation.now <= self._troubles.slow_until:
                self.insist(place, self._begin_proof)  # the record may lie behind the slow link
            elif isinstance(answer, Exception):
                self.not_done.append(f"in a calm ring {place} cannot create a stream: {answer}")
            else:
                self._go_on(name)

        name = self._create(place, told)

    def _go_on(self, name: str) -> None:
        honest = self.simulation.honest_nodes()
        chosen = [self.rng.choice(honest) for _ in range(PROOF_SUBSCRIPTIONS)]
        rivals = [place for place in honest if place not in chosen and place is not self._producers[name]]
        for place in rivals[-1:]:
            self.insist(place, partial(self._take_name, name))
        for place in chosen:
            self.insist(place, partial(self._subscribe, name))
        if TROUBLE_SHARE:
            self.simulation.after(PROOF_DELAY_S + PROOF_GAP_S, partial(self._attach_all, name))
            self.simulation.after(PROOF_DELAY_S + 4 * PROOF_GAP_S, partial(self._hand_over, name))
        for at in range(PROOF_ITEMS):
            self.simulation.after(PROOF_DELAY_S + at * PROOF_GAP_S, partial(self._publish_all, name))

    def _take_name(self, name: str, place: Place) -> None:
        """Create a stream of a name that is taken, which has to be refused."""

        def told(answer: StreamView | Exception) -> None:
            is_right = isinstance(answer, Unavailable) or (
                isinstance(answer, StreamRefused) and answer.kind == "conflict"
            )
            if not is_right:
                self.not_done.append(f"in a calm ring {place} creates {name}, which another one produces: {answer}")

        plugin_of(place).changes.create(StreamSpec(name=name, kind=self._kinds[0], policy="first_fit"), told)

    def _attach_all(self, proof: str) -> None:
        """A document in the new stream, and in another one, which may be on its way to another producer just now."""
        others = [label for label in self._judge.streams if label != proof]
        for label in (proof, *self._trouble_rng.sample(others, min(1, len(others)))):
            self._troubles.attach(label, self._trouble_rng.choice(CLASSES), partial(self._attached, label == proof))

    def _attached(self, is_proof: bool, answer: Exception | None) -> None:
        if answer is not None and (is_proof or not isinstance(answer, Unavailable)):
            self.not_done.append(str(answer))

    def _hand_over(self, name: str) -> None:
        self._handed_over = self._troubles.hand_over(name)

    def _subscribe(self, name: str, place: Place) -> None:
        self._proof_watched.append(self._judge.subscribe(place, name, self._wants()))

    def _publish_all(self, proof: str) -> None:
        """An item of the new stream, and of each whose producer still is one. Values are as good as they have to be."""
        self._read()
        if not self._judge.calm_since:
            self._judge.calm_since = {name: stream.last for name, stream in self._judge.streams.items()}
        elif len(self.not_done) < TOLD_MAX:
            self.not_done += self._judge.outdated(LATE_ITEMS_MAX)
        for label in sorted(self._judge.streams):
            place = self._producer(label)
            try:
                if place is not None and place.is_live:
                    self._judge.publish(place, label, self.rng.choice(CLASSES))
                    self._due[label] = self._judge.streams[label].last
            except self.refusals as error:
                if label == proof and self._handed_over != []:
                    self.not_done.append(f"in a calm ring {place} cannot publish: {error}")

    def verdict(self) -> list[str]:
        self._read()
        if self.simulation.hostile:
            return [*self._judge.certain, *self._troubles.documents.wrong]
        refused = [each for each in self._proof_watched if each.place.is_live and each.reader is None]
        told = [f"in a calm ring {each.place} is not subscribed: {each.why_not or 'no answer'}" for each in refused[:1]]
        orphans = NoOrphans().check(self.simulation)
        seen = [*self._judge.offences, *self._judge.ended(self.simulation), *self._judge.missing(self._due)]
        seen += [*self._judge.stale(self._due), *self._judge.untold(self.simulation), *self._moves.offences]
        seen += [*self._troubles.verdict(), *self._calm_hand_over()]
        return [*seen, *self.not_done, *told, *orphans, *OneProducer().check(self.simulation)]

    def _calm_hand_over(self) -> list[str]:
        if self._handed_over is None or any(isinstance(each, StreamView) for each in self._handed_over):
            return []
        why = self._handed_over[0] if self._handed_over else "no answer"
        return [f"in a calm ring a stream is not handed over: {why}"]
