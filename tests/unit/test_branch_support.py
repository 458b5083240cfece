"""What a branch does is told, and stays in it."""

from __future__ import annotations

import os
import sys

import pytest

from peerd.errors import Bug
from tests.support.branch import in_a_branch


def test_what_a_branch_changes_is_seen_in_it_only() -> None:
    made = [1]

    def change() -> tuple[int, list[int]]:
        made.append(2)
        return os.getpid(), made

    process, changed = in_a_branch(change)
    assert (changed, made) == ([1, 2], [1])
    assert process != os.getpid()


def test_what_a_branch_raises_is_raised_here() -> None:
    with pytest.raises(Bug, match="ValueError: wrong"):
        in_a_branch(lambda: _raise(ValueError("wrong")))
    with pytest.raises(Bug, match="SystemExit"):
        in_a_branch(lambda: sys.exit(0))
    with pytest.raises(Bug, match="without an answer"):
        in_a_branch(lambda: os._exit(0))


def test_what_cannot_be_told_is_an_error() -> None:
    with pytest.raises(Bug, match="pickle"):
        in_a_branch(lambda: lambda: None)


def _raise(error: Exception) -> None:
    raise error
