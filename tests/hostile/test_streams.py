"""A member goes for a stream: what it passes on, who is above whom, and whose the stream is."""

from __future__ import annotations

import pytest

from protocols.dissemination.front.hostile import (
    AltersManifests,
    FalseItems,
    LeavesOut,
    RunsAhead,
    TakesFromElsewhere,
    Withholds,
)
from protocols.dissemination.front.hostile_base import StreamBehaviour
from tests.hostile.ring import Ring
from tests.hostile.streams import watched

pytestmark = pytest.mark.cluster

ITEMS = 60
LIES: dict[type[StreamBehaviour], set[str]] = {
    FalseItems: {"forged"},
    AltersManifests: {"forged"},
    TakesFromElsewhere: {"forged"},
    LeavesOut: {"withheld"},
    RunsAhead: {"withheld", "out_of_order"},
    Withholds: set(),
}


@pytest.mark.parametrize(
    "kind",
    [kind if kind is FalseItems else pytest.param(kind, marks=pytest.mark.long) for kind in LIES],
    ids=lambda kind: kind.name,
)
async def test_what_it_forges_or_leaves_out_as_a_parent_is_read_by_nobody(
    ring: Ring, kind: type[StreamBehaviour]
) -> None:
    """Those below it notice, name it where it has lied, and lose nothing: they have another parent."""
    async with ring.attacked() as (attacker, _), watched(ring, attacker, "forged") as stream:
        attacker.behave(kind)
        await stream.publish(ITEMS)
        await stream.is_read()
        await stream.is_whole()
        assert await stream.liars() <= LIES[kind]
        if LIES[kind]:
            await ring.is_named(attacker)
