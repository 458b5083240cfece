"""Six simulated nodes under mixed load, and what their memory is made of: for tests that nothing grows without bound.

The load is that of an ordinary day: subscribers that stay and some that come and go, events, a stream with readers, and
aggregates. Everything is read at once. What each container in a node holds is found by walking through the node's
objects, so that a container that somebody adds tomorrow is looked at as well.
"""

from __future__ import annotations

import json
from collections import Counter, deque
from collections.abc import Callable, Iterator
from functools import partial
from random import Random
from typing import Any, Final

from peerd.lib.feed import Reader
from peerd.sim.simulation import Place, Simulation
from peerd.testing.simulation import ring
from protocols.aggregation.front.scenario import one_record, plugin_of as aggregation_of
from protocols.aggregation.plugin import Aggregation
from protocols.aggregation.query import parse_query
from protocols.aggregation.requester import RoundListener
from protocols.dissemination.config import DisseminationConfig
from protocols.dissemination.front.judging import plugin_of as streams_of
from protocols.dissemination.models import StreamSpec, StreamSubscriptionRequest
from protocols.dissemination.plugin import Dissemination
from protocols.pubsub.config import PubSubConfig
from protocols.pubsub.front.judging import plugin_of as pubsub_of
from protocols.pubsub.front.workload import ThesisWorkload
from protocols.pubsub.models import SubscriptionRequest
from protocols.pubsub.plugin import PubSub

NODES: Final = 6
STAYING: Final = 24
"""Subscriptions that are there all the time."""
PASSING_S: Final = 30.0
"""Every so often one more subscription comes, for this long; and a subscription to the stream."""
STREAM: Final = "readings"
CLASSES: Final = tuple("abcdefgh")
REPLAY_ITEMS: Final = 40
COUNT: Final = parse_query("count", files="**/*")


class Soak:
    """The ring and its load. ``events_hz``, ``items_hz``: published a second; an aggregate every ``aggregate_s``."""

    def __init__(
        self, seed: int = 0, *, events_hz: float = 30.0, items_hz: float = 19.0, aggregate_s: float = 7.0, **pubsub: Any
    ) -> None:
        self.rng = Random(seed)
        self.simulation: Simulation = ring(NODES, seed, plugins=lambda index: _plugins(index, pubsub))
        self.workload = ThesisWorkload(self.rng)
        self.counts: Counter[str] = Counter()
        self._readers: list[Reader[Any]] = []
        self._declare()
        for _ in range(STAYING):
            self._subscribe(self._place())
        self.simulation.run_for(10.0)
        for every_s, act in (
            (1 / events_hz, self._publish),
            (1 / items_hz, self._publish_item),
            (aggregate_s, self._aggregate),
            (PASSING_S, self._come_and_go),
            (0.5, self._read),
        ):
            self._repeat(every_s, act)

    def run_for(self, duration_s: float) -> None:
        """Let virtual time pass under load."""
        self.simulation.run_for(duration_s)

    def _repeat(self, every_s: float, act: Any) -> None:
        def step() -> None:
            act()
            self.simulation.after(every_s, step)

        self.simulation.after(every_s, step)

    def _place(self) -> Place:
        return self.rng.choice(self.simulation.live_nodes())

    def _declare(self) -> None:
        first = self.simulation.nodes[0]
        told: list[object] = []
        pubsub_of(first).schemas.declare(self.workload.document(), told.append)
        spec = StreamSpec(name=STREAM, kind="attributes", policy="overlap")
        streams_of(first).changes.create(spec, told.append)
        self.simulation.run_until(lambda: len(told) == 2, limit_s=60.0)
        for place in self.simulation.nodes:
            pubsub_of(place).schemas.fetch(self.workload.schema, lambda schema, why: None)
        self.simulation.run_for(10.0)
        for place in self.simulation.nodes[1:]:
            self._follow(place)

    # Publish/subscribe

    def _subscribe(self, place: Place) -> str:
        asked = SubscriptionRequest.model_validate(
            {"schema": self.workload.schema, "filter": self.workload.subscription()}
        )
        view = pubsub_of(place).subscriptions.subscribe(asked, lambda answer: None)
        self._readers.append(pubsub_of(place).subscriptions.reading(view.id)[1].reader("start"))
        return view.id

    def _publish(self) -> None:
        pubsub_of(self._place()).entering.publish(self.workload.schema, self.workload.event(), self._published)

    def _published(self, answer: Any) -> None:
        self.counts["failed" if isinstance(answer, Exception) else answer.outcome] += 1

    # Streams

    def _follow(self, place: Place) -> None:
        def done(answer: Any) -> None:
            if isinstance(answer, Exception):
                self.counts["streams refused"] += 1
                return
            self._readers.append(streams_of(place).subscribing.reading(answer.id)[1].reader("start"))
            followed.append(answer.id)

        followed: list[str] = []
        wants = " OR ".join(f"class = '{each}'" for each in self.rng.sample(CLASSES, 3))
        streams_of(place).subscribing.subscribe(StreamSubscriptionRequest(stream=STREAM, interest=wants), done)
        if self.simulation.now > 60.0:
            self.simulation.after(PASSING_S, partial(_each, streams_of(place).subscribing.unsubscribe, followed))

    def _publish_item(self) -> None:
        item = {"class": self.rng.choice(CLASSES), "number": self.counts["items"], "note": "x" * 50}
        streams_of(self.simulation.nodes[0]).publishers.publish(STREAM, json.dumps(item).encode())
        self.counts["items"] += 1

    # All

    def _aggregate(self) -> None:
        aggregation_of(self._place()).requesting.aggregate(COUNT, RoundListener(self._aggregated))

    def _aggregated(self, answer: Any) -> None:
        self.counts[f"aggregate {answer.outcome}"] += 1

    def _come_and_go(self) -> None:
        place = self._place()
        self.simulation.after(PASSING_S, partial(_each, pubsub_of(place).subscriptions.end, [self._subscribe(place)]))
        self._follow(self.rng.choice(self.simulation.nodes[1:]))

    def _read(self) -> None:
        for reader in self._readers:
            while (entry := reader.take()) is not None:
                self.counts[type(entry).__name__] += 1
        self._readers = [reader for reader in self._readers if not reader.is_over]


def _each(end: Callable[[str], object], ids: list[str]) -> None:
    for id in ids:
        end(id)


def _plugins(index: int, pubsub: dict[str, Any]) -> list[Any]:
    aggregation = Aggregation()
    aggregation.data.extractor = one_record(str(index))
    small = {"replay_items": REPLAY_ITEMS, "feed_items": REPLAY_ITEMS + 10} if "feed_items" in pubsub else {}
    streams = Dissemination(DisseminationConfig.model_validate(small))
    return [PubSub(PubSubConfig.model_validate(pubsub)), streams, aggregation]


# What nodes hold

_OURS: Final = ("peerd.", "protocols.")
_LEAVES: Final = (str, bytes, int, float, bool, type(None), type)
OUTSIDE: Final = frozenset({"World", "Simulation", "Engine", "Network", "SimDriver", "Port"})
"""Of the simulator: what is reached through these is not the node's."""


def held(simulation: Simulation) -> Counter[str]:
    """How many entries the containers of all nodes have, by where they are: ``PubSub.publishing.outcomes``, say."""
    found: Counter[str] = Counter()
    seen: set[int] = set()
    for place in simulation.live_nodes():
        for where, size in _walk(place.node, type(place.node).__name__, seen):
            found[where] += size
    return found


def _walk(root: Any, name: str, seen: set[int]) -> Iterator[tuple[str, int]]:
    queue: deque[tuple[Any, str]] = deque([(root, name)])
    while queue:
        thing, where = queue.popleft()
        if isinstance(thing, _LEAVES) or id(thing) in seen or type(thing).__name__ in OUTSIDE:
            continue
        seen.add(id(thing))
        if isinstance(thing, dict | list | set | frozenset | tuple | deque):
            yield where, len(thing)
            values = thing.values() if isinstance(thing, dict) else thing
            queue.extend((each, f"{where}[]") for each in values)
            if isinstance(thing, dict):
                queue.extend((each, f"{where}[key]") for each in thing if not isinstance(each, _LEAVES))
        elif isinstance(thing, bytearray):
            yield where, len(thing)
        elif type(thing).__module__.startswith(_OURS):
            queue.extend((value, f"{type(thing).__name__}.{field}") for field, value in _fields(thing))


def _fields(thing: Any) -> Iterator[tuple[str, Any]]:
    yield from getattr(thing, "__dict__", {}).items()
    for kind in type(thing).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        for slot in (slots,) if isinstance(slots, str) else slots:
            value = getattr(thing, slot, None)
            if value is not None and slot != "__weakref__":
                yield slot, value


def histories(simulation: Simulation) -> dict[str, tuple[int, int]]:
    """What all nodes say that they remember of the past: bytes, and at most."""
    found: dict[str, tuple[int, int]] = {}
    for place in simulation.live_nodes():
        for owner, each in place.node.histories():
            before = found.get(f"{owner}: {each.name}", (0, 0))
            found[f"{owner}: {each.name}"] = before[0] + each.bytes, before[1] + each.bytes_max
    return found
