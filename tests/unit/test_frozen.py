"""Values that are compared and hashed by their fields."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from peerd.frozen import Frozen


class Point(Frozen):
    x: int
    y: int = 0


def test_values_of_the_same_fields_are_one() -> None:
    assert Point(1, 2) == Point(1, y=2) != Point(2, 1)
    assert {Point(1): "a"}[Point(1, 0)] == "a"


def test_a_value_does_not_change() -> None:
    with pytest.raises(AttributeError):
        Point(1).x = 2  # type: ignore[misc]  # that it is refused is the point


def test_hashes_do_not_differ_from_process_to_process() -> None:
    """Or the order of a set would, and a seed would not be one run. Where a class lies in memory must not count."""
    code = "from tests.unit.test_frozen import Point; print(hash(Point(1, 2)))"
    environment = {**os.environ, "PYTHONHASHSEED": "1"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert int(done.stdout) == hash((1, 2)) == hash(Point(1, 2))
