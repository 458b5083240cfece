"""The ways of caching that are compared, each a set of settings of the plugin, and what its clients ask."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from peerd.frozen import Frozen
from peerd.lab.experiment import Row

TERMS: Final[Mapping[str, str]] = {
    "max_age": "10m",
    "update_interval": "3m",
    "ask_interval": "3m",
    "describe_interval": "50m",
}
"""The time-outs of section 2.2, of which the paper says nothing, are so long that they hardly cost messages."""
DECIDE_S: Final = 16.0
"""The observation period of section 4.2.5, as long as that of the queries."""
CACHE_UPDATES: Final = 1000.0
"""Updates a second that a node may spend: more than any does, as the paper gives no limit."""


GROUP: Final = "group"
"""The tag of section 5.2, for which owners of one group have the same value."""


class Way(Frozen):
    """One of them. ``caches``: whether nodes cache. ``scrapes``: clients ask all nodes, and not just for what they want
    to know."""

    placing: str
    caches: bool = True
    scrapes: bool = False
    region_tag: str = ""


WAYS: Final[Mapping[str, Way]] = {
    "naive": Way("owners", caches=False),
    "scrape": Way("owners", caches=False, scrapes=True),
    "alone": Way("owners"),
    "squares": Way("squares"),
    "tree": Way("tree"),
    "squares by tag": Way("squares", region_tag=GROUP),
    "tree by tag": Way("tree", region_tag=GROUP),
}
"""naive: each owner is asked, each time. alone: the same, but whoever asks may cache what it asks for. squares: the
paper's approach with coordinates (chapter 3). tree: that with the routes of the overlay (chapter 4); without room for
caches it is what the paper calls no caching. By tag: the owners of each group have a tag in common, by which caches are
chosen (section 5.2)."""


def settings_of(way: str) -> Row:
    """The settings of measurement queries on all nodes, but for the size of caches."""
    placing = {
        "placing": WAYS[way].placing,
        "region_tag": WAYS[way].region_tag,
        "cache_updates": CACHE_UPDATES,
        "decide_interval": f"{DECIDE_S:g}s",
    }
    return {"system": False, **TERMS, **placing}
