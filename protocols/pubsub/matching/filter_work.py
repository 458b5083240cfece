"""What it takes to read and index a filter, by its length alone, and who may have how much of it done.

Measured on the dearest filters that are accepted (`python -m tests.fuzz.dearest`): conditions on few attributes that
have to be multiplied out, long lists of equalities. Others take as little as a fifth of their price.
"""

from __future__ import annotations

import json
from typing import Final

from protocols.pubsub.messages import FILTER_BYTES_MAX

FILTER_S: Final = 0.000_2
FILTER_BYTE_S: Final = 0.000_03
"""Seconds of processor for a filter, and for each of its bytes."""
WORK_PER_S: Final = 0.2
WORK_BURST_S: Final = 4.0
"""For one member over its own link, or one client: a fifth of a processor in the long run, and so many seconds of it at
once, which are 2,000 filters of 60 bytes."""
UNPROVEN_PER_S: Final = 0.05
UNPROVEN_BURST_S: Final = 0.5
"""For all that comes over other nodes together, so that nobody can be charged for it. What comes above it is to be
brought by its subscriber."""
BRINGS_PER_S: Final = 50.0
BRINGS_BURST: Final = 1000.0
"""So often one subscriber is told to bring a piece, which somebody may have made up in its name."""


def price_s(filter: str) -> float:
    """Seconds of processor at most to read and index a filter."""
    return FILTER_S + FILTER_BYTE_S * min(len(filter.encode()), FILTER_BYTES_MAX)


def price_of(document: object) -> float:
    """The same for a filter in any of the forms that clients send."""
    return price_s(document if isinstance(document, str) else json.dumps(document, default=str))
