"""What the users' pages offer is installed: kinds of interest, and policies."""

from __future__ import annotations

import re

import pytest

from peerd.entry_points import installed
from protocols.dissemination.loading import KINDS, POLICIES
from tests.test_tidy import ROOT

FOR_EXPERIMENTS = {"classes"}
"""Kinds that no user needs: the lab draws interests and items of them."""


def offered(page: str, column: str) -> set[str]:
    """The names in the first column of the page's table that has this heading there."""
    _, heading, rest = (ROOT / "docs" / page).read_text("utf-8").partition(f"\n| {column} | ")
    assert heading, f"docs/{page} has no table of names with the heading {column!r}"
    rows = rest.partition("\n\n")[0]
    return set(re.findall(r"^\| `(\w+)` \|", rows, re.MULTILINE))


@pytest.mark.parametrize(
    ("page", "column", "group"),
    [("streams.md", "kind", KINDS), ("interests.md", "kind", KINDS), ("streams.md", "policy", POLICIES)],
)
def test_what_a_page_offers_is_what_is_installed(page: str, column: str, group: str) -> None:
    assert offered(page, column) == set(installed(group)) - FOR_EXPERIMENTS
