"""Whether what a node costs its parent has changed lately: then what came before says nothing of what will come. Pure.

A node costs its parent a certain share of the stream's items. When interests change, so does this share, from one item
to the next; a mean over the items before and after would hide the new share until most of the items are new.
"""

from __future__ import annotations

import math
from typing import Final

from pyroaring import BitMap64

from protocols.dissemination.statistics.received import ItemSet

STEPS: Final = 16
"""The time of a change is looked for at so many places at most."""
ITEMS_MIN: Final = 25
"""With fewer items of the stream before or after it, nothing is taken for a change."""
SIGMAS: Final = 3.0
"""How unlikely the difference must be where nothing has changed, in standard deviations: one such look in some hundred
finds a change that is none, and then decides by fewer items than it could."""


def since_change(items: ItemSet, free: BitMap64) -> ItemSet:
    """Keep the items since the share of those that are not ``free`` last changed; all of them if it has not.

    The place where the shares before and after it differ most, in standard deviations of that difference.
    """
    costly = items.items - free
    count, span = len(costly), items.span
    best, since = SIGMAS, items.since
    step = max(ITEMS_MIN, span // STEPS)
    for newest in range(step, span - step + 1, step):
        at = items.watermark - newest * items.every
        new = costly.range_cardinality(at + 1, items.watermark + 1)
        variance = count / span * (1 - count / span) * (1 / newest + 1 / (span - newest))
        sigmas = abs(new / newest - (count - new) / (span - newest)) / math.sqrt(variance) if variance else 0.0
        if sigmas > best:
            best, since = sigmas, at
    return items.within(since, items.watermark)
