"""How many examples a property needs that is seldom wrong: a part of them in every run, and more in the long one."""

from __future__ import annotations

from typing import Final

from hypothesis import settings

PART: Final = 4
"""Of the examples, which are the same ones each time, every run tries one in so many."""
MORE: Final = 10
"""The long run tries so many times as many, new ones each time."""


def examples(count: int) -> int:
    """For ``@settings(max_examples=...)`` of a property that a profile's number of examples would not do for."""
    return count // PART if settings.get_current_profile_name() == "fast" else count * MORE
