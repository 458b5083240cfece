"""Numbers in tables, as people read them."""

from __future__ import annotations

from typing import Final

ID_COLUMNS: Final = ("node",)
ID_LENGTH: Final = 8
PLAIN_COLUMNS: Final = ("boot",)
"""Numbers that name something; nobody counts with them."""


def cell(name: str, value: object) -> str:
    """The text of a value in the column ``name``, whose end tells the unit of a number."""
    if value is None:
        return "-"
    if name in ID_COLUMNS:
        return str(value)[:ID_LENGTH]
    if isinstance(value, float):
        return f"{value:.3f} s" if name.endswith("_s") else f"{value:.1f}".removesuffix(".0")
    if isinstance(value, int) and name not in PLAIN_COLUMNS:
        return f"{value:,}"
    return str(value)
