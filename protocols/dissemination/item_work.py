"""What an item costs a node, worked out from how long the node was busy with each. Pure.

With every item a node looks at each child, and sends to some: it is busy for ``looked * filter_s + sent * send_s``.
From many items with different counts both can be told apart, by least squares in which old items count less. In the
simulator nothing takes time; there a stated model is used.
"""

from __future__ import annotations

from typing import Final

from protocols.dissemination.ports import ItemWork

KEEP: Final = 0.998
"""How much the past counts after one more item: half after about 350 items."""
ITEMS_MIN: Final = 16
"""Nothing is said of fewer items."""
LONGEST_S: Final = 1.0
"""An item that kept a node longer was held up by something else."""
LEAST_S: Final = 1e-7
MODEL: Final = ItemWork(filter_s=20e-6, send_s=60e-6)
"""For hosts in which handlers take no time: a guess at what a small item takes a daemon."""


class WorkMeter:
    """The work of one node in one stream."""

    def __init__(self) -> None:
        self._count = 0
        self._is_timed = False
        self._looked_looked = self._looked_sent = self._sent_sent = 0.0
        self._looked_busy = self._sent_busy = 0.0

    def add(self, busy_s: float, looked: int, sent: int) -> None:
        """An item kept the node busy so long: it looked at so many children, and sent it to so many of them."""
        if looked <= 0 or not 0.0 <= busy_s <= LONGEST_S:
            return
        self._count = min(ITEMS_MIN, self._count + 1)
        self._is_timed = self._is_timed or busy_s > 0
        self._looked_looked = KEEP * self._looked_looked + looked * looked
        self._looked_sent = KEEP * self._looked_sent + looked * sent
        self._sent_sent = KEEP * self._sent_sent + sent * sent
        self._looked_busy = KEEP * self._looked_busy + looked * busy_s
        self._sent_busy = KEEP * self._sent_busy + sent * busy_s

    def work(self) -> ItemWork | None:
        """What is known; ``None``: too few items yet."""
        if self._count < ITEMS_MIN:
            return None
        if not self._is_timed:
            return MODEL
        a, b, c = self._looked_looked, self._looked_sent, self._sent_sent
        area = a * c - b * b
        if area > 1e-6 * a * c:
            filter_s = (c * self._looked_busy - b * self._sent_busy) / area
            send_s = (a * self._sent_busy - b * self._looked_busy) / area
            if filter_s > 0 and send_s > 0:
                return ItemWork(max(LEAST_S, filter_s), max(LEAST_S, send_s))
        # the counts say too little (each child gets each item, or none does): shared out as in the model
        scale = self._looked_busy / (a * MODEL.filter_s + b * MODEL.send_s)
        return ItemWork(max(LEAST_S, MODEL.filter_s * scale), max(LEAST_S, MODEL.send_s * scale))
