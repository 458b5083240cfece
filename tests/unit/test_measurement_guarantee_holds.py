"""The guarantee under delay, loss, repetition, pauses, restarts and drifting clocks, judged by who knows all values."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st
from msgspec.structs import replace

from peerd.errors import Bug
from peerd.lib import leases
from protocols.measurement.guarantee.caching import Caching
from protocols.measurement.guarantee.holder import Holder
from protocols.measurement.guarantee.interval import Interval
from protocols.measurement.guarantee.messages import CacheUpdate, StandingPromises
from protocols.measurement.guarantee.provider import Provider
from tests.support.examples import examples
from tests.support.guarantee_world import CPU, TERMS, World, drawn, drawn_op

STEPS = 120


def offences(seed: int) -> tuple[World, list[str]]:
    """What does not hold in the world of a seed, at the first step after which something does not."""
    world, ops = drawn(Random(seed), STEPS)
    for op in ops:
        world.play(op)
        if found := world.offences():
            return world, found
    return world, []


@settings(max_examples=examples(200), deadline=None)
@given(st.data())
def test_no_fresh_answer_is_ever_outside_its_interval(data: st.DataObject) -> None:
    rng = data.draw(st.randoms(use_true_random=False))
    world, _ = drawn(rng, 0)
    for _ in range(data.draw(st.integers(1, 80))):
        world.play(drawn_op(rng))
        assert not world.offences()


def test_the_worlds_have_fresh_and_stale_answers_at_every_depth() -> None:
    fresh, reads = [0, 0, 0, 0], [0, 0, 0, 0]
    for seed in range(60):
        world, ops = drawn(Random(seed), STEPS)
        for op in ops:
            world.play(op)
            for index, node in enumerate(world.nodes):
                answer = node.caching.read(CPU, node.clock(world.real))
                reads[index] += answer is not None
                fresh[index] += answer is not None and not answer.is_stale
    assert all(count > 300 for count in fresh)
    assert all(all_of_them - count > 100 for all_of_them, count in zip(reads, fresh, strict=True))


def test_once_nothing_fails_everybody_has_a_fresh_value_as_exact_as_was_asked_for() -> None:
    for seed in range(100):
        world, ops = drawn(Random(seed), STEPS)
        for op in ops:
            world.play(op)
        world.heal()
        assert not world.offences()
        for node in world.nodes:
            answer = node.caching.read(CPU, node.clock(world.real))
            assert answer is not None and not answer.is_stale, f"seed {seed}"
            assert answer.claim.interval.is_within(node.half_width), f"seed {seed}"
            assert answer.age_s < TERMS.update_s + TERMS.ask_s


# Planted mistakes: each has to be found


def counts_from_when_it_hears(monkeypatch: pytest.MonkeyPatch) -> None:
    """A holder takes a word for as new as it is when it comes."""
    heard = Holder.heard

    def hears(self: Holder, provider: Any, word: CacheUpdate, now: float) -> Any:
        monkeypatch.setattr(leases.Asks, "said_at", lambda self, number, since_s: now if number else None)
        return heard(self, provider, word, now)

    monkeypatch.setattr(Holder, "heard", hears)


def renews_whatever_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """A holder that has missed a change takes the word on the new promise for one on the old."""
    heard = Holder.heard

    def hears(self: Holder, provider: Any, word: CacheUpdate, now: float) -> Any:
        ages = word.standing.ages_s()
        mine = dict.fromkeys(self._up(provider).promises, min(ages.values())) if ages else {}
        return heard(self, provider, replace(word, standing=StandingPromises.of(mine | ages)), now)

    monkeypatch.setattr(Holder, "heard", hears)


def compares_the_value_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the paper has it: a holder is told when the new value, not the new interval, is outside of its bounds."""
    monkeypatch.setattr(Interval, "contains", lambda self, other: self.holds(other.centre))
    monkeypatch.setattr(Provider, "validate", lambda self, now: None)


def counts_from_the_end_of_the_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    """An owner takes what its source said for as new as it is when it comes."""
    sampled = Caching.sampled
    monkeypatch.setattr(Caching, "sampled", lambda self, values, asked_at, now: sampled(self, values, now, now))


def takes_what_an_earlier_boot_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A holder that was started anew dates words by its new questions that answer the old ones."""
    heard = Holder.heard
    monkeypatch.setattr(
        Holder,
        "heard",
        lambda self, provider, word, now: heard(self, provider, replace(word, holder_boot=self._boot), now),
    )


def does_not_notice_that_its_provider_began_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """The numbers of promises begin at 1 again, and mean others."""
    heard = Holder.heard
    monkeypatch.setattr(
        Holder, "heard", lambda self, provider, word, now: heard(self, provider, replace(word, boot=1), now)
    )


def passes_no_ages_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache in the middle says that what it has is as new as its word."""
    monkeypatch.setattr(Provider, "_age_s", staticmethod(lambda known, now: 0.0))


def says_that_all_was_well_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache that has missed a change does not tell its own holders when the value is back."""
    changed = Provider.changed
    monkeypatch.setattr(
        Provider,
        "changed",
        lambda self, measurements, now: changed(self, dict.fromkeys(measurements, True), now),
    )


def believes_in_clocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second is a second."""
    monkeypatch.setattr(leases, "_SLOWEST", 1.0)


def forgets_holders_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """A provider that was not asked lately ends its promises at once."""
    monkeypatch.setattr(Provider, "_may_hold", lambda self, edge, now: self._is_heard(edge, now))


@pytest.mark.parametrize(
    ("plant", "seeds"),
    [
        (counts_from_when_it_hears, 100),
        (renews_whatever_it_has, 300),
        (compares_the_value_only, 300),
        (counts_from_the_end_of_the_reading, 100),
        (takes_what_an_earlier_boot_asked_for, 300),
        (does_not_notice_that_its_provider_began_anew, 1000),
        (passes_no_ages_on, 100),
        (says_that_all_was_well_meanwhile, 1000),
        (believes_in_clocks, 300),
        (forgets_holders_early, 300),
    ],
)
def test_a_planted_mistake_is_found(
    plant: Callable[[pytest.MonkeyPatch], None], seeds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    for seed in range(seeds):
        try:
            if offences(seed)[1]:
                return
        except Bug:
            return
    pytest.fail(f"not found in {seeds} seeds: {plant.__doc__}")
