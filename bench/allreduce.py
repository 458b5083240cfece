"""One MPI rank: ``mpirun -n N python -m bench.allreduce BYTES``. Rank 0 prints the median time as JSON."""

from __future__ import annotations

import json
import statistics
import sys
import time
from array import array
from typing import Final

from mpi4py import MPI

REPETITIONS: Final = 5
INT64_BYTES: Final = 8


def main() -> None:
    """A warm-up, then `REPETITIONS` calls; each takes as long as its slowest rank. Exits 1 on a wrong sum."""
    world = MPI.COMM_WORLD
    count = int(sys.argv[1]) // INT64_BYTES
    own = array("q", [world.rank + 1]) * count
    total = array("q", [0]) * count
    durations: list[float] = []
    for repetition in range(REPETITIONS + 1):
        world.Barrier()
        began = time.perf_counter()
        world.Allreduce([own, MPI.INT64_T], [total, MPI.INT64_T], op=MPI.SUM)
        slowest_s = world.allreduce(time.perf_counter() - began, op=MPI.MAX)
        if repetition:
            durations.append(slowest_s)
    if total[0] != total[-1] or total[0] != world.size * (world.size + 1) // 2:
        sys.exit(f"rank {world.rank}: the sum is {total[0]}")
    if world.rank == 0:
        print(json.dumps({"duration_s": statistics.median(durations)}), flush=True)


if __name__ == "__main__":
    main()
