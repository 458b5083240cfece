"""What the suite's own set-up promises."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.conftest import pytest_runtest_teardown, run_together
from tests.test_tidy import code

TESTS = Path(__file__).parents[1]


@pytest.mark.parametrize(
    ("first", "second", "is_one"),
    [
        ("tests/pipeline/test_a.py::test_one", "tests/pipeline/test_b.py::TestIt::test_two[x::y]", True),
        ("tests/cluster/test_a.py::test_one", "tests/cluster/test_a.py::test_two", True),
        ("tests/cluster/test_a.py::test_one", "tests/cluster/test_b.py::test_one", False),
        ("tests/hostile/test_a.py::test_one", "tests/hostile/test_b.py::test_two", True),
        ("tests/test_a.py::test_one", "tests/test_b.py::test_two[x]", True),
        ("tests/unit/test_a.py::test_one[1]", "tests/unit/test_a.py::test_one[2]", False),
    ],
)
def test_what_shares_expensive_things_runs_in_one_worker(first: str, second: str, is_one: bool) -> None:
    assert (run_together(first) == run_together(second)) is is_one


def test_syntax_trees_are_kept_to_the_last_test_that_reads_them_and_no_longer() -> None:
    def end(name: str, following: str | None) -> int:
        code()
        item: Any = SimpleNamespace(path=TESTS / name)
        after: Any = SimpleNamespace(path=TESTS / following) if following else None
        pytest_runtest_teardown(item, after)
        return code.cache_info().currsize

    assert end("test_tidy.py", "test_one_word.py") == 1
    assert end("unit/test_a.py", "test_tidy.py") == 1
    assert end("test_tidy.py", "unit/test_a.py") == 0
    assert end("test_tidy.py", None) == 0
