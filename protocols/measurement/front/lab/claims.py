"""What the paper says of each experiment, for the pages of ``peerd lab report``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

PAPER_SAYS: Final[Mapping[str, str]] = {
    "measurement/traffic": (
        "a burst of reads is followed by one of splices; then reads fall dramatically, and what is left is mostly "
        "updates"
    ),
    "measurement/cache-size": (
        "larger caches need fewer messages, until all that is asked for fits in; small ones change what they have "
        "all the time, with many splices, but need less in all than none"
    ),
    "measurement/volatility": (
        "caches are dropped as updates rise, and the total never exceeds what it is without caches"
    ),
    "measurement/near-queriers": "the total falls as more queriers are near each other",
    "measurement/near-owners": "the total falls as more owners are near each other",
    "measurement/bounds": "the rate of updates drops significantly as bounds become wider",
    "measurement/latency": "the tree has the lowest latency, squares are a little worse, and naive is the worst",
    "measurement/total": "the tree is the lowest, squares save moderately, naive is the highest",
    "measurement/tags": (
        "caches placed by an application's own space exploit locality among owners; nothing is measured"
    ),
}
