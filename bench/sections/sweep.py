"""``peerd lab sweep`` on two worker processes of Spark, beside the same simulations run by the pool of ``--jobs 2``."""

from __future__ import annotations

import os
import sys
import time
from typing import Final

from bench.measure import Bench, at_most, ratios
from peerd.errors import Unavailable
from peerd.lab.experiment import Point
from peerd.lab.pool import groups, run_group, run_points
from peerd.pipeline.requirements import check_requirements

MASTER: Final = "local-cluster[2,1,1024]"
CELLS_AIM: Final = 1.15
"""Beside the bare simulations, without Spark's start."""


def run(bench: Bench) -> None:
    """Each cell in a process of its own in both, two at a time."""
    if not bench.has(check_requirements):
        return
    from peerd.cli.lab_sweep import task_session
    from peerd.pipeline.spark_tasks import run_tasks

    cells, duration_s = bench.scale.of(64, 16, 2), bench.scale.of(600.0, 300.0, 1.0)
    nodes = bench.scale.of(60, 60, 4)
    variant = {"session_min": 30.0, "loss": 0.0}
    points = [
        Point("overlay/churn", nodes, "euclidean", duration_s, int(4 * duration_s), duration_s / 2, seed, variant)
        for seed in range(cells)
    ]
    waiting = [[point.to_json() for point in group] for group in groups(points)]
    bare: list[float] = []
    swept: list[float] = []
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    with task_session("peerd bench", MASTER, ()) as spark:
        list(run_tasks(spark, run_group, waiting[:2]))  # workers start, and import what simulations need
        for number in range(bench.runs):
            bench.progress(f"run {number + 1} of {bench.runs}: {cells} simulations, two at a time")
            began = time.perf_counter()
            rows = [result.row for result in run_points(points, 2)]
            bare.append(time.perf_counter() - began)
            bench.progress(f"run {number + 1} of {bench.runs}: {cells} simulations on {MASTER}")
            began = time.perf_counter()
            told = [found for _, found in run_tasks(spark, run_group, waiting)]
            swept.append(time.perf_counter() - began)
            if None in rows or any(isinstance(each, str) or each[0][0] is None for each in told):
                raise Unavailable("a simulation has failed")
    bench.row("simulations here", "s", bare, note=f"{cells} of {nodes} nodes, two at a time")
    bench.row("as tasks of Spark", "s", swept, note=MASTER)
    bench.row("as tasks / here", "x", ratios(swept, bare), at_most(CELLS_AIM))
