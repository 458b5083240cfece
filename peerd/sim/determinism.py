"""Does one seed mean one run? Runs a scenario in two processes that hash strings differently, and compares traces.

``python -m peerd.sim.determinism FILE SEED [CHUNK]`` is one such process: it prints the trace as JSON. The trace has a
checkpoint every `CHECKPOINT_EVENTS` events; where two differ, a second pass compares that chunk event by event.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any, Final

from peerd.errors import Bug
from peerd.sim.engine import CHECKPOINT_EVENTS, NO_NODE, NODE_SHIFT
from peerd.sim.runner import Runner
from peerd.sim.scenario import load_scenario
from peerd.sim.world import SimulationFailure

Events = tuple[tuple[float, int], ...]
Chunks = Callable[[int], tuple[Events, Events]]

HASH_SEEDS: Final = ("1", "2")


@dataclass(frozen=True)
class Trace:
    """The trace that one process reports."""

    digest: str
    events: int
    checkpoints: tuple[tuple[int, float, str], ...]
    """(events, virtual time, hash): see `peerd.sim.engine.Checkpoint`."""
    failure: str | None
    chunk: Events


@dataclass(frozen=True)
class RunComparison:
    """Whether two runs were the same, and if not, the first event that differed."""

    digests: tuple[str, str]
    events: tuple[int, int]
    failure: str | None
    """The scenario itself failed, in the first run."""
    event: int | None = None
    """Number of the first event that differs, from 0."""
    time_s: float | None = None
    node: int | None = None

    @property
    def is_deterministic(self) -> bool:
        """Whether the two runs were equal in every event."""
        return self.digests[0] == self.digests[1]

    def __str__(self) -> str:
        if self.is_deterministic:
            return f"{self.events[0]} events, trace hash {self.digests[0]}, equal in both runs"
        text = f"two runs differ: {self.events[0]} and {self.events[1]} events"
        if self.time_s is not None:
            where = "no node" if self.node is None else f"node {self.node}"
            text += f"; first at event {self.event}, t={self.time_s:.6f} s, {where}"
        return text


def check_determinism(path: Path, seed: int) -> RunComparison:
    """Run twice, compare. Raises `Bug` when a process does not report."""
    first, second = (_trace(path, seed, hash_seed, None) for hash_seed in HASH_SEEDS)
    return compare(first, second, lambda chunk: _two_chunks(path, seed, chunk))


def compare(first: Trace, second: Trace, chunks: Chunks) -> RunComparison:
    """The verdict on two traces; ``chunks(number)`` gives both runs' events of one chunk, for the second pass."""
    digests, events = (first.digest, second.digest), (first.events, second.events)
    if first.digest == second.digest:
        return RunComparison(digests, events, first.failure)
    same_events, same_until_s = 0, 0.0
    for a, b in zip(first.checkpoints, second.checkpoints, strict=False):
        if a != b:
            break
        same_events, same_until_s, _ = a
    for offset, (one, other) in enumerate(zip_longest(*chunks(same_events // CHECKPOINT_EVENTS))):
        if one != other:
            time_s, mark = min(event for event in (one, other) if event is not None)
            node = mark >> NODE_SHIFT
            return RunComparison(
                digests, events, first.failure, same_events + offset, time_s, None if node == NO_NODE else node
            )
    # in a long run checkpoints are thinned out: the difference is somewhere after the last equal one
    return RunComparison(digests, events, first.failure, same_events, same_until_s)


def _two_chunks(path: Path, seed: int, chunk: int) -> tuple[Events, Events]:
    first, second = (_trace(path, seed, hash_seed, chunk).chunk for hash_seed in HASH_SEEDS)
    return first, second


def _trace(path: Path, seed: int, hash_seed: str, chunk: int | None) -> Trace:
    command = [sys.executable, "-m", "peerd.sim.determinism", str(path), str(seed)]
    command += [] if chunk is None else [str(chunk)]
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise Bug(f"the run with PYTHONHASHSEED={hash_seed} ended with {done.returncode}: {done.stderr[-2000:]}")
    data = json.loads(done.stdout)
    return Trace(
        data["digest"],
        data["events"],
        tuple((events, time_s, digest) for events, time_s, digest in data["checkpoints"]),
        data["failure"],
        tuple((time_s, mark) for time_s, mark in data["chunk"]),
    )


def trace_of(path: Path, seed: int, chunk: int | None) -> dict[str, Any]:
    """Run the scenario in this process; returns what it prints."""
    runner = Runner(load_scenario(path), seed, None, None)
    engine = runner.simulation.engine
    engine.keep_chunk = chunk
    failure = None
    try:
        runner.run(lambda phase, now: None)
    except SimulationFailure as error:
        failure = str(error)
    return {
        "digest": engine.digest(),
        "events": engine.events,
        "checkpoints": [(point.events, point.time_s, point.digest) for point in engine.checkpoints],
        "failure": failure,
        "chunk": engine.chunk() if chunk is not None else [],
    }


def main(arguments: list[str]) -> int:
    """Print one trace."""
    chunk = int(arguments[2]) if len(arguments) > 2 else None
    print(json.dumps(trace_of(Path(arguments[0]), int(arguments[1]), chunk)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
