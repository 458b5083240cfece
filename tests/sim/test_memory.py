"""Memory is flat: under steady load nothing in a node grows without bound, and `status` names the bounds.

The short test makes every bound so small that it is reached in a minute: what still grows then has none. The long one
leaves the bounds as they are, and runs three hours of virtual time.
"""

from __future__ import annotations

import gc
import tracemalloc
from collections import Counter

import pytest

from peerd.overlay import overlay as overlays
from peerd.overlay.dedupe import Window
from peerd.services.records import table
from peerd.sim.world import rare_collections
from protocols.aggregation import participating, requesting
from protocols.dissemination.tree import replay
from protocols.pubsub.delivering import ledger
from protocols.pubsub.matching import leaf_events
from protocols.pubsub.publishing import answering, once, passing, publisher
from protocols.pubsub.schema import event_schema as schema
from tests.support.soak import Soak, held, histories

SETTLE_S = 90.0
LOOK_S = 60.0
GROWTH = 60
"""Entries by which the containers of one kind, in all six nodes together, may differ between two looks."""
HOURS = 3
SHARE = 1.10


def _make_small(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name, value in (
        (leaf_events, "VISITS_KEPT", 100),
        (passing, "SEEN_S", 20.0),
        (answering, "WAYS_MAX", 100),
        (ledger, "EVENTS_KEPT", 100),
        (publisher, "OUTCOMES_MAX", 50),
        (once, "ONCE_MAX", 10),
        (schema, "DECODED_KEPT", 10),
        (participating, "ENDED_MAX", 10),
        (requesting, "ASKED_MAX", 10),
        (replay, "TRIM_AFTER", 10),
        (table, "WRITES_REMEMBERED_MAX", 20),
    ):
        monkeypatch.setattr(module, name, value)
    monkeypatch.setattr(overlays, "Window", lambda: Window(50))


def test_nothing_grows_without_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    _make_small(monkeypatch)
    soak = Soak(events_hz=8.0, items_hz=6.0, aggregate_s=3.0, dedupe_window=128, history_bytes="64KiB", feed_items=10)
    soak.run_for(SETTLE_S)
    before = held(soak.simulation)
    soak.run_for(LOOK_S)
    after = held(soak.simulation)
    grown = {where: (before[where], size) for where, size in after.items() if size > 1.1 * before[where] + GROWTH}
    assert not grown, f"these grow with time: name a bound, and make it small in this test: {grown}"
    assert soak.counts["replicated"] + soak.counts["received"] > 700 and soak.counts["aggregate complete"] > 30


def test_every_history_is_within_its_bound_and_told() -> None:
    soak = Soak(events_hz=8.0, items_hz=6.0, aggregate_s=3.0)
    soak.run_for(30.0)
    found = histories(soak.simulation)
    assert all(0 < most < 2 << 30 and bytes_now <= most for bytes_now, most in found.values()), found
    assert len(found) >= 13 and sum(bytes_now > 0 for bytes_now, _ in found.values()) >= 10, found


@pytest.mark.long
@pytest.mark.timeout(7200)
def test_three_hours_end_with_the_memory_that_their_second_half_began_with() -> None:
    with rare_collections():
        soak = Soak(events_hz=5.0, items_hz=3.0, aggregate_s=30.0, dedupe_window=8192)
        tracemalloc.start(1)
        try:
            taken: Counter[str] = Counter()
            for half in ("first", "second"):
                soak.run_for(HOURS * 1800.0)
                gc.collect()
                taken[half] = tracemalloc.get_traced_memory()[0]
        finally:
            tracemalloc.stop()
    assert taken["second"] < SHARE * taken["first"], f"{taken}, {histories(soak.simulation)}"
