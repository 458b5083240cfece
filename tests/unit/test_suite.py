"""What the suite's own set-up promises."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.conftest import pytest_runtest_teardown
from tests.support.long_cases import dear, is_dear
from tests.support.workers import LONGEST_FIRST, ONE_GROUP, begin_apart, is_waiting, next_group, run_together
from tests.test_tidy import ROOT, code

TESTS = Path(__file__).parents[1]


@pytest.mark.parametrize(
    ("first", "second", "is_one"),
    [
        ("tests/pipeline/test_a.py::test_one", "tests/pipeline/test_b.py::TestIt::test_two[x::y]", True),
        ("tests/cluster/test_a.py::test_one", "tests/cluster/test_a.py::test_two", True),
        ("tests/cluster/test_a.py::test_one", "tests/cluster/test_b.py::test_one", False),
        ("tests/hostile/test_a.py::test_one", "tests/hostile/test_b.py::test_two", True),
        ("tests/test_a.py::test_one", "tests/test_b.py::test_two[x]", True),
        ("tests/unit/test_a.py::test_one[1]", "tests/unit/test_a.py::test_one[2]", True),
        ("tests/unit/test_a.py::test_one", "tests/unit/test_b.py::test_one", False),
    ],
)
def test_what_shares_expensive_things_runs_in_one_worker(first: str, second: str, is_one: bool) -> None:
    assert (run_together(first) == run_together(second)) is is_one


def test_each_worker_reads_all_files_and_begins_with_a_share_of_its_own() -> None:
    files = [f"{number:02}" for number in range(11)]
    orders = [begin_apart(files, worker, 3) for worker in range(3)]
    assert [order[0] for order in orders] == ["00", "03", "07"]
    assert all(sorted(order) == files for order in orders)


def test_what_is_to_begin_first_exists() -> None:
    assert [group for group in LONGEST_FIRST if group not in ONE_GROUP and not (ROOT / group).is_file()] == []
    assert len(set(LONGEST_FIRST)) == len(LONGEST_FIRST)


def test_dear_tests_exist() -> None:
    """A test that got another name would be in every run again."""
    assert not [line for line in dear() if "[" in line and line.partition("[")[0] in dear()], "named twice"
    gone = []
    for line in dear():
        file, *_, name = line.partition("[")[0].split("::")
        if not (ROOT / file).is_file() or f"def {name}(" not in (ROOT / file).read_text("utf-8"):
            gone.append(line)
    assert gone == []


def test_a_test_is_dear_with_all_its_cases_or_with_some() -> None:
    whole = min(line for line in dear() if "[" not in line)
    case = min(line for line in dear() if "[" in line)
    assert is_dear(whole) and is_dear(f"{whole}[3-uvloop]") and is_dear(case)
    assert not is_dear(f"{whole}_at_once") and not is_dear(case.partition("[")[0])


def test_long_groups_begin_first_and_each_worker_prefers_its_kind() -> None:
    long_waiting = next(group for group in LONGEST_FIRST if is_waiting(group))
    long_computing = next(group for group in LONGEST_FIRST if not is_waiting(group))
    left = ["tests/cluster/test_short.py", "tests/sim/test_short.py", long_computing, long_waiting]

    def taken(waits: bool) -> list[str]:
        groups, order = list(left), []
        while groups:
            order.append(next_group(groups, waits))
            groups.remove(order[-1])
        return order

    assert taken(True) == [long_waiting, "tests/cluster/test_short.py", long_computing, "tests/sim/test_short.py"]
    assert taken(False) == [long_computing, "tests/sim/test_short.py", long_waiting, "tests/cluster/test_short.py"]


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
