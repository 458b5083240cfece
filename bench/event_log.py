"""A generated event log, as large as wanted: all kinds of events that a ring writes, in proportions of a busy one.

A million events are some 260 MB, the same bytes each time.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any, Final

from peerd.plugins import find_events
from peerd.telemetry.schema import SCHEMA_VERSION, Event, field_types
from peerd.telemetry.sinks import encode_record

NODES: Final = 100
BEGAN_TS: Final = 1_790_000_000.0
EVENTS_A_FILE: Final = 50_000
USUAL: Final = {
    "metric.snapshot": 350,
    "traffic.snapshot": 220,
    "pubsub.event_delivered": 100,
    "swap.finished": 60,
    "overlay.lookup_finished": 60,
    "aggregation.level_finished": 50,
    "pubsub.event_published": 30,
    "dissemination.load": 16,
    "overlay.leaf_set_changed": 10,
    "link.up": 10,
    "link.down": 10,
    "resource.snapshot": 8,
    "measurement.traffic": 8,
    "pubsub.node_load": 8,
    "aggregation.round_started": 5,
    "dissemination.moved": 5,
}
"""How often a kind comes among some thousand events. The others come once, and a sink drops nothing."""
WORDS: Final = ("done", "swapped", "received", "timed_out", "peerd_links", "Ping", "way=in", "moved", "new", "overlay")
IDENTIFIERS: Final = frozenset({"peer", "key", "root", "requester", "subscriber", "parent", "from_parent", "to_parent"})


def write_event_log(directory: Path, events: int, nodes: int = NODES, seed: int = 1) -> None:
    """Write this many events of so many nodes in files of plain lines, about half a second of a node apart."""
    random = Random(seed)
    kinds = find_events()
    weights = [0 if kind == "sink.dropped" else USUAL.get(kind, 1) for kind in kinds]
    made = {kind: _maker(event, random) for kind, event in kinds.items()}
    directory.mkdir(parents=True, exist_ok=True)
    for number in range(nodes):
        node = f"{random.getrandbits(128):032x}"
        chosen = random.choices(list(kinds), weights, k=events // nodes + (number < events % nodes))
        for begin in range(0, len(chosen), EVENTS_A_FILE):
            lines = []
            for place, kind in enumerate(chosen[begin : begin + EVENTS_A_FILE], begin + 1):
                mono_s = place * 0.5 + random.random()
                stamps = {"ts": BEGAN_TS + mono_s, "mono_s": mono_s, "node": node, "boot": 1, "id": place}
                stamps |= {"cause": place - 1 if place % 3 == 0 else None, "event": kind}
                lines.append(encode_record({"schema_version": SCHEMA_VERSION, **stamps, **made[kind]()}))
            (directory / f"events-{node[:8]}-1-{begin // EVENTS_A_FILE + 1}.ndjson").write_bytes(b"".join(lines))


def _maker(event: type[Event], random: Random) -> Callable[[], dict[str, Any]]:
    """What makes the fields of one event of a kind."""
    texts = list(WORDS)
    makers: dict[type, Callable[[], Any]] = {
        int: lambda: random.randrange(1000),
        float: random.random,
        bool: lambda: random.random() < 0.5,
        str: lambda: random.choice(texts),
    }
    peers = [f"{random.getrandbits(128):032x}" for _ in range(NODES)]
    fields = {
        name: (lambda: random.choice(peers)) if name in IDENTIFIERS else makers[kind]
        for name, (kind, _) in field_types(event).items()
    }
    return lambda: {name: make() for name, make in fields.items()}
