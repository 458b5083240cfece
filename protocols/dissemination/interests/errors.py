"""What is wrong with an interest or an item."""

from __future__ import annotations

from peerd.errors import PeerdError


class InterestError(PeerdError, ValueError):
    """An interest that cannot be used; the text says where and why."""


class ItemError(PeerdError, ValueError):
    """An item that is malformed, or above a limit that the text names."""
