"""Measurement queries in the swarm: some of its seeds, and that its judges find what is planted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from peerd.sim.swarm.swarm import SwarmSummary, run_seed
from protocols.measurement import reading
from protocols.measurement.guarantee.holder import Holder
from protocols.measurement.guarantee.provider import Provider
from protocols.measurement.readings import Reading
from tests.support.long_cases import cases

PROTOCOLS = ("measurement",)
ONCE_RED = (2076, 2126, 2600, 2629, 2827, 2874, 3032, 3739, 4622, 4859)
"""A hostile node was the root of both copies of a description, and hid that node: nobody else could know of it. A node
that had started anew, and had no parent in T yet, told its former parent as if that had asked the root; a moment later
it told its next parent, and was counted twice. While a question waited for nodes that had died, over T and then as
owners, values that had been at hand grew stale, although their caches had heard of them anew (2600, 2827, 2874). A
checker had a node that left, started anew and paused be expected by one that had heard of none but the goodbye (2629).
A node that came back served its keys while its neighbour did, which had just asked it in vain whether it lives (3032).
Meanwhile the cache had lost its provider, and what it had heard last was younger than what was told (3739).
Of a node that had died before it measured anything an older question was refused, and that was taken for the proof's
(4622). A checker had a node be expected that had said goodbye and started anew: the goodbye came late (4859).
"""
ONCE_RED_LONG = (2075, 2405, 4809)
"""An answer was judged by an older claim with the same interval, which was not what it was told from. Again values grew
stale while dead nodes were waited for (2405). A goodbye came late (4809)."""
SMALL = 6
TOO_YOUNG_S = 2.0


@pytest.mark.parametrize("seed", cases(range(3), range(3, 20)))
def test_seed(seed: int) -> None:
    result = run_seed(seed, protocols=PROTOCOLS)
    assert result.passed, f"{result.plan}: {result.failure}"


@pytest.mark.parametrize("seed", cases(ONCE_RED, ONCE_RED_LONG))
def test_seed_that_was_red(seed: int) -> None:
    result = run_seed(seed, protocols=PROTOCOLS)
    assert result.passed, f"{result.plan}: {result.failure}"


def test_a_seed_is_one_run_whatever_the_hash_seed() -> None:
    """What a node stops to cache was told in the order of a set, which the next process has otherwise."""
    words = ["-m", "peerd", "sim", "swarm", "--seeds", "9:10", "--nodes", str(SMALL), "--protocol", *PROTOCOLS]

    def digest(hash_seed: str) -> object:
        command = [sys.executable, *words, "--output", "jsonl"]
        done = subprocess.run(command, env=os.environ | {"PYTHONHASHSEED": hash_seed}, capture_output=True, check=True)
        return json.loads(done.stdout)["digest"]

    assert digest("1") == digest("2")


def test_a_seed_says_how_many_answers_it_has_judged() -> None:
    summary = SwarmSummary()
    result = run_seed(0, nodes=SMALL, protocols=PROTOCOLS)
    summary.add(result)
    summary.add(result)
    assert summary.judged == 2 * result.judged > 200


def tells_clients_too_young_an_age(monkeypatch: pytest.MonkeyPatch) -> None:
    """What clients are told is older than it says; what nodes hold is right."""

    def younger(measurement: Any, value: float, interval: Any, age_s: float, *rest: Any) -> Reading:
        return Reading(measurement, value, interval, max(0.0, age_s - TOO_YOUNG_S), *rest)

    monkeypatch.setattr(reading, "Reading", younger)


def holds_too_young_an_age(monkeypatch: pytest.MonkeyPatch) -> None:
    """A holder takes a word for newer than it is."""
    renew = Holder._renew
    monkeypatch.setattr(
        Holder, "_renew", lambda self, measurement, basis, done: renew(self, measurement, basis + TOO_YOUNG_S, done)
    )


def passes_no_ages_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache in the middle says that what it has is as new as its word. It takes a chain of caches and a value that
    moves meanwhile: of seeds 3 to 40 it is found with 31, 33, 36 and 39, and with none of 15 in rings of 12."""
    monkeypatch.setattr(Provider, "_age_s", staticmethod(lambda known, now: 0.0))


@pytest.mark.parametrize(
    ("plant", "seeds"),
    [
        (tells_clients_too_young_an_age, range(3)),
        (holds_too_young_an_age, range(3)),
        (passes_no_ages_on, range(31, 37)),
    ],
)
def test_a_planted_mistake_is_found(
    plant: Callable[[pytest.MonkeyPatch], None], seeds: range, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    results = (run_seed(seed, nodes=SMALL, protocols=PROTOCOLS) for seed in seeds)
    failure = next((result.failure for result in results if not result.passed), None)
    assert failure is not None, plant.__doc__
    assert "is told, and" in failure or "is said to have been in" in failure
