"""Does one seed mean one run? Runs a function in two processes that hash texts differently, and compares the traces.

The order of a set of texts differs between the two, so if such an order reaches a message, the traces differ.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from typing import Final

from peerd.errors import Bug
from peerd.sim.simulation import Simulation

HASH_SEEDS: Final = ("1", "2")
ERROR_CHARACTERS_MAX: Final = 4000

SeededRun = Callable[[int], Simulation]
"""Takes a seed, and returns the simulation that it ran to its end. A function of a module, to be imported by name."""


def trace_hashes(run: SeededRun, seed: int) -> tuple[str, str]:
    """The trace hash of the same run in two processes with different values of PYTHONHASHSEED.

    Raises `Bug` when a process fails.
    """
    first, second = (_trace_hash(run, seed, hash_seed) for hash_seed in HASH_SEEDS)
    return first, second


def assert_one_run(run: SeededRun, seed: int = 0) -> str:
    """Fail unless both runs were the same in every event; returns their trace hash.

    For a scenario file ``peerd sim FILE --check-determinism`` does the same, and names the first event that differs.
    """
    first, second = trace_hashes(run, seed)
    assert first == second, f"seed {seed} gave two runs: {first} and {second}"
    return first


def _trace_hash(run: SeededRun, seed: int, hash_seed: str) -> str:
    if run.__qualname__ != run.__name__:
        raise Bug(f"{run.__qualname__} is not a function of a module, so another process cannot import it")
    file = run.__code__.co_filename if hasattr(run, "__code__") else ""
    command = [sys.executable, "-m", "peerd.testing", run.__module__, file, run.__name__, str(seed)]
    path = os.pathsep.join(part or os.getcwd() for part in sys.path)
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": path}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        told = done.stderr[-ERROR_CHARACTERS_MAX:]
        raise Bug(f"the run with PYTHONHASHSEED={hash_seed} ended with {done.returncode}: {told}")
    return done.stdout.strip().rpartition("\n")[2]
