"""What the suite's own set-up promises."""

from __future__ import annotations

import pytest

from tests.conftest import run_together


@pytest.mark.parametrize(
    ("first", "second", "is_one"),
    [
        ("tests/pipeline/test_a.py::test_one", "tests/pipeline/test_b.py::TestIt::test_two[x::y]", True),
        ("tests/cluster/test_a.py::test_one", "tests/cluster/test_a.py::test_two", True),
        ("tests/cluster/test_a.py::test_one", "tests/cluster/test_b.py::test_one", False),
        ("tests/hostile/test_a.py::test_one", "tests/hostile/test_b.py::test_two", True),
        ("tests/unit/test_a.py::test_one[1]", "tests/unit/test_a.py::test_one[2]", False),
    ],
)
def test_what_shares_expensive_things_runs_in_one_worker(first: str, second: str, is_one: bool) -> None:
    assert (run_together(first) == run_together(second)) is is_one
