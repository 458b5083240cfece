"""Tools with which authors test their plugins, in this repository or outside of it. They need no test framework.

- `FakeHost`: one plugin without a node, for tests of what it answers to what.
- `ring`, `always`, `run_to_rest`: simulated clusters of any size, with invariants.
- `assert_one_run`: one seed gives one run.
- `peerd.testing.daemons.daemons`: a few real daemons on loopback. Not imported here, as it loads the whole daemon.

docs/writing-a-plugin.md shows each of them at work.
"""

from peerd.testing.determinism import SeededRun, assert_one_run, trace_hashes
from peerd.testing.host import Asked, FakeHost, Request, peer, through_the_wire
from peerd.testing.simulation import always, ring, run_to_rest

__all__ = [
    "Asked",
    "FakeHost",
    "Request",
    "SeededRun",
    "always",
    "assert_one_run",
    "peer",
    "ring",
    "run_to_rest",
    "through_the_wire",
    "trace_hashes",
]
