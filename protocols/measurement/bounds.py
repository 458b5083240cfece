"""How exactly a value is wanted by those who do not say: half the width of its bounds, by its name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from peerd.limits import KIB, MIB

STALE_S: Final = 30.0
"""How old a value may be where nobody says."""
USUAL: Final[Mapping[str, float]] = {
    "cpu": 0.05,
    "memory": 0.02,
    "disk": 0.01,
    "load1": 0.25,
    "processes": 5.0,
    "uptime_seconds": 60.0,
    "rtt": 0.005,
    "bandwidth": 1.0 * MIB,
}
"""What a person would hardly see: a twentieth of the processor, a fiftieth of the memory."""
BY_END: Final[Mapping[str, float]] = {
    "_bytes_per_second": 64.0 * KIB,
    "_bytes": 16.0 * MIB,
}


def usual_half_width(name: str) -> float:
    """Half the width of bounds for a measurement of this name; 0: the very value, of what nobody knows the scale."""
    name = name.partition("@")[0]
    if name in USUAL:
        return USUAL[name]
    return next((half for end, half in BY_END.items() if name.endswith(end)), 0.0)
