"""Numbers and times in sentences for people. It imports nothing, so that every command can use it."""

from __future__ import annotations


def counted(number: int, what: str, plural: str = "") -> str:
    """So many things: "1 item", "1,300 items"; ``plural``: of words that have another one."""
    return f"{number:,} {what if number == 1 else plural or what + 's'}"


def ago(seconds: float) -> str:
    """A time in the past: whole seconds, minutes or hours."""
    for unit, size in (("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit} ago"
    return f"{seconds:.0f} s ago"
