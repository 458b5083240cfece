"""How several workers share the tests: what stays together, what begins first, and who takes what waits.

A suite is over when its last test is. So what takes long begins first, and the short rest fills the gaps at the end.
Tests of real processes wait more than they compute; were they all to run at once, cores would be idle meanwhile. Some
workers take those, and the others what only computes, until one of the two kinds is over.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

WAITING: Final = frozenset({"cluster", "hostile"})
"""Folders whose tests wait for real processes, and for time to pass."""
ONE_GROUP: Final = frozenset({"pipeline", "hostile", "tests"})
"""Folders that share what is expensive: a session of Spark, a ring of daemons, the syntax trees of our code."""
WORKERS_A_WAITER: Final = 3
"""One worker in so many takes what waits first."""
LONGEST_FIRST: Final = (
    "pipeline",
    "hostile",
    "tests/cluster/test_cluster_aggregate.py",
    "tests/sim/test_amplification.py",
    "tests",
    "tests/cluster/test_page_blocks.py",
    "tests/unit/test_overlay_join.py",
    "tests/sim/test_measurement_squares.py",
    "tests/cluster/test_cluster_demo.py",
    "tests/unit/test_overlay_faults.py",
    "tests/unit/test_streams_http.py",
    "tests/sim/test_dissemination_swarm.py",
    "tests/sim/test_pubsub_tree.py",
    "tests/sim/test_dissemination_take_over.py",
    "tests/cluster/test_cluster_pubsub.py",
    "tests/unit/test_streams_commands.py",
    "tests/unit/test_pubsub_http.py",
    "tests/sim/test_measurement_tree.py",
    "tests/cluster/test_streams.py",
    "tests/sim/test_records_faults.py",
    "tests/sim/test_dissemination_hostile.py",
    "tests/sim/test_pubsub_swarm.py",
    "tests/sim/test_records_repair.py",
    "tests/unit/test_overlay_messaging.py",
    "tests/unit/test_overlay_partitions.py",
    "tests/sim/test_dissemination_hand_over.py",
    "tests/cluster/test_links_half_open.py",
    "tests/unit/test_dissemination_xpath.py",
    "tests/unit/test_admission.py",
    "tests/cluster/test_cluster_expectations.py",
    "tests/sim/test_swarm.py",
    "tests/sim/test_pubsub_events.py",
    "tests/sim/test_pubsub_away.py",
    "tests/sim/test_lab_overlay.py",
    "tests/sim/test_hostile.py",
    "tests/sim/test_lab_aggregation.py",
    "tests/sim/test_pubsub_sharing.py",
    "tests/unit/test_cli_local_commands.py",
    "tests/sim/test_aggregation_rounds.py",
    "tests/sim/test_lab_dissemination.py",
    "tests/sim/test_measurement.py",
)
"""Groups that take ten seconds and more, the longest first. The others keep the order in which they were found."""


def begin_apart(files: Sequence[str], worker: int, workers: int) -> list[str]:
    """In which order one of several workers reads the files of tests: each begins with a share of its own.

    On a clean checkout every file has to be compiled, its assertions rewritten, which for all takes ten seconds of
    processor. So each worker does that for a part of them, and finds the others done.
    """
    begin = len(files) * worker // workers
    return [*files[begin:], *files[:begin]]


def run_together(node_id: str) -> str:
    """What one worker has to run, test after test, has the same name here: a file, or one of some folders.

    The fixtures of a file, and the simulated rings that its tests share, are made once then.
    """
    file = node_id.partition("::")[0]
    folder = _folder(file)
    return folder if folder in ONE_GROUP else file


def is_waiting(group: str) -> bool:
    """Whether the tests of a group wait more than they compute."""
    return (group if group in ONE_GROUP else _folder(group)) in WAITING


def next_group(groups: Iterable[str], waits: bool) -> str:
    """Which of the groups that are left a worker takes: the longest of its kind, or of the other kind after those."""
    ranks = {group: rank for rank, group in enumerate(LONGEST_FIRST)}
    return min(groups, key=lambda group: (is_waiting(group) is not waits, ranks.get(group, len(ranks))))


def _folder(file: str) -> str:
    return Path(file).parent.name
