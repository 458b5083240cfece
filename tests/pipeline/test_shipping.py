"""What workers of Spark get of peerd."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import distributions
from pathlib import Path
from zipfile import ZipFile

import pytest

pytest.importorskip("pyspark", reason="the extra `spark` is not installed")
pytestmark = pytest.mark.spark

PROGRAM = """
import sys
sys.path.insert(0, sys.argv[1])
from peerd.entry_points import FRONTS, installed
from peerd.lab.registry import experiments
from protocols.dissemination.front.lab import dtd
print(dtd.__file__)
print(*installed(FRONTS))
print(len(experiments()))
"""


def test_a_worker_finds_peerd_and_its_plugins_in_it(tmp_path: Path) -> None:
    from peerd.lab.registry import experiments
    from peerd.spark.shipping import pack

    path = pack(tmp_path)
    assert not [name for name in ZipFile(path).namelist() if "__pycache__" in name]
    told = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(path)], capture_output=True, text=True, check=True, cwd=tmp_path
    ).stdout.splitlines()
    assert told == [
        f"{path}/protocols/dissemination/front/lab/dtd.py",
        "aggregation dissemination measurement pubsub",
        str(len(experiments())),
    ]


def test_it_says_itself_which_plugins_it_has(tmp_path: Path) -> None:
    """So a worker that has no peerd of its own knows them."""
    from peerd.spark.shipping import pack

    [found] = distributions(path=[str(pack(tmp_path))])
    assert found.name == "peerd"
    assert {entry.name for entry in found.entry_points.select(group="peerd.protocols")} >= {"aggregation", "pubsub"}
