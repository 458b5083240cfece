"""What the thesis says of each experiment, for the pages of ``peerd lab report``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

LI_SAYS: Final[Mapping[str, str]] = {
    "pubsub/installation": "with 1,000 nodes 331 ms in the mean, about 70 % within 600 ms, about 90 % within 1 s",
    "pubsub/delivery": "with 1,000 nodes 333 ms in the mean, about 70 % within 400 ms, nearly all within 1 s",
    "pubsub/multicast": "probes sent together cost 1,050 bytes a node for an event in place of 1,480: 30 % less",
    "pubsub/balancing": "with the cut-off line 1,050 bytes a node for an event in place of 2,120: 50 % less",
    "pubsub/scale": "330 ms in the mean with 1,000 nodes, 430 ms with 5,000",
}
