"""Splicing, in every order: two splices and a failure on small trees (Chandramouli, section 4.2.4)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.long_cases import cases
from tests.support.splice_world import Choice, SpliceWorld, played

CHAIN = (None, 0, 1, 2)
"""Each node's route leads through the one before it; the owner is the root."""
ASIDE = (3, 3, 1, None)
"""The owner and node 1 are below the root, node 2 below node 1."""
HELD_BELOW: tuple[Choice, ...] = (("in", 2),)
SPLICES: dict[str, tuple[tuple[int | None, ...], tuple[Choice, ...], tuple[Choice, Choice]]] = {
    "two come in, the lower one first": (CHAIN, (("in", 3),), (("in", 2), ("in", 1))),
    "one comes in above one that goes away": (CHAIN, (("in", 3), ("in", 2)), (("out", 2), ("in", 1))),
    "one comes in below one that goes away": (CHAIN, (("in", 3), ("in", 1)), (("out", 1), ("in", 2))),
    "two go away": (CHAIN, (("in", 3), ("in", 2), ("in", 1)), (("out", 2), ("out", 1))),
    "two come in, the owner aside": (ASIDE, (("in", 2),), (("in", 1), ("in", 3))),
    "the root goes away, the owner aside": (ASIDE, (("in", 2), ("in", 3)), (("out", 3), ("in", 1))),
}


def orders(
    parents: tuple[int | None, ...], before: tuple[Choice, ...], splices: tuple[Choice, Choice], failure: str
) -> Iterator[tuple[Choice, ...]]:
    """Every order of two splices, all that they have handed over, and one failure, that leads to a world of its own."""
    seen = set()
    stack: list[tuple[Choice, ...]] = [()]
    while stack:
        choices = stack.pop()
        world = played(parents, before, choices)
        left = [each for each in splices if each not in choices]
        has_failed = any(each[0] in ("lose", "crash") for each in choices)
        key = (world.key(), tuple(left), has_failed)
        if key in seen:
            continue
        seen.add(key)
        yield choices
        options: list[Choice] = [*left, *(("deliver", *link) for link in world.waiting())]
        if not has_failed and failure == "lose":
            options += [("lose", *link) for link in world.waiting()]
        elif not has_failed and failure == "crash":
            options += [("crash", number) for _, number in splices]
        stack += [(*choices, option) for option in options]


def wrong(world: SpliceWorld, *, newest_first: bool) -> list[str]:
    """What is wrong when the owner reads another value now, and all is handed over."""
    offences = list(world.offences())
    world.play(("read",))
    while waiting := world.waiting():
        world.play(("deliver", *waiting[-newest_first]))
        offences += world.offences()
    return offences


MOST = ("two go away", "one comes in below one that goes away")
REST = tuple(name for name in SPLICES if name not in MOST)


@pytest.mark.parametrize("failure", ["lose", "crash"])
@pytest.mark.parametrize("name", cases(MOST, REST))
def test_no_order_of_two_splices_and_a_failure_makes_a_fresh_value_wrong(name: str, failure: str) -> None:
    parents, before, splices = SPLICES[name]
    for choices in orders(parents, before, splices, failure):
        for newest_first in (False, True):
            offences = wrong(played(parents, before, choices), newest_first=newest_first)
            assert not offences, (choices, offences)


@pytest.mark.parametrize("failure", ["none", *cases((), ("lose", "crash"))])
@pytest.mark.parametrize("name", SPLICES)
def test_after_any_order_of_two_splices_the_nearest_cache_provides(name: str, failure: str) -> None:
    """Proposition 2, when all has come to rest and the caches have renewed their places."""
    parents, before, splices = SPLICES[name]
    for choices in orders(parents, before, splices, failure):
        world = played(parents, before, choices)
        if world.waiting() or any(each not in choices for each in splices):
            continue
        world.settle(45.0)
        world.renew()
        world.settle(5.0)
        caches = [index for index, node in enumerate(world.nodes) if node.is_up and world.provider(index) is not None]
        found = {index: world.provider(index) for index in caches}
        assert found == {index: world.first_on_the_way(index) for index in caches}, choices
        assert not list(world.offences())
        fresh = [world.nodes[index].caching.fresh(world.cpu, world.now) for index in caches]
        assert all(fresh), choices
