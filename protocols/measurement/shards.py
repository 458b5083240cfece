"""What the root of a shard has, the descriptions of some of the ring's nodes, and what of it has changed. Pure."""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections import OrderedDict, deque
from collections.abc import Mapping
from itertools import islice, takewhile
from typing import Final, NamedTuple

from peerd.ids import NodeId, id_to_bytes
from protocols.measurement.messages import DESCRIPTION_BYTES_MAX, GONE_MAX, MARK_BYTES, PAGE_BYTES_MAX, PAGE_MAX

MARKS_MAX: Final = 1024
"""Earlier states that are known by their marks, the newest ones. Who knows an older one is told everything."""
NODE_BYTES: Final = 24
"""A node takes so many in an answer beside its description."""


class ShardPage(NamedTuple):
    """Descriptions for whoever asks. ``is_all``: there are no more. ``gone``, ``is_changes``: as in a `NodesAnswer`."""

    nodes: list[tuple[NodeId, bytes]]
    is_all: bool
    gone: tuple[NodeId, ...] = ()
    is_changes: bool = False


class HeldShard:
    """Thousands of descriptions are milliseconds of work, and a question is a few bytes: so it is done once for all
    questions until one of them changes, and who knows an earlier state is told what has changed since."""

    def __init__(self) -> None:
        self.mark = b""
        """Of all descriptions."""
        self._values: Mapping[NodeId, bytes] = {}
        self._order: list[NodeId] = []
        self._changed: dict[NodeId, int] = {}
        """In which state each has changed last, in that order."""
        self._gone: deque[tuple[int, NodeId]] = deque(maxlen=GONE_MAX)
        self._states = 0
        self._marks: OrderedDict[bytes, int] = OrderedDict()

    def update(self, held: Mapping[NodeId, bytes]) -> None:
        """These are all of them now."""
        changed = [node for node, value in held.items() if self._values.get(node) != value]
        gone = [node for node in self._values if node not in held]
        if self.mark and not (changed or gone):
            return
        self._states += 1
        for node in (*changed, *gone):
            self._changed.pop(node, None)
        self._changed.update(dict.fromkeys(changed, self._states))
        self._gone.extend((self._states, node) for node in gone)
        self._values, self._order = held, sorted(held)
        digest = hashlib.blake2b(digest_size=MARK_BYTES)
        for node in self._order:
            digest.update(id_to_bytes(node))
            digest.update(hashlib.blake2b(held[node], digest_size=MARK_BYTES).digest())
        self.mark = digest.digest()
        self._marks[self.mark] = self._states
        self._marks.move_to_end(self.mark)
        if len(self._marks) > MARKS_MAX:
            self._marks.popitem(last=False)

    def page(self, mark: bytes, after: NodeId) -> ShardPage:
        """What has changed since an earlier state, if it is known and fits; else all, beginning after that node."""
        return self._changes(mark) or self._page(after)

    def _changes(self, mark: bytes) -> ShardPage | None:
        state = self._marks.get(mark)
        is_forgotten = len(self._gone) == GONE_MAX and state is not None and state < self._gone[0][0]
        if state is None or is_forgotten:
            return None
        newer = takewhile(lambda node: self._changed[node] > state, reversed(self._changed))
        found = [(node, self._values[node]) for node in newer]
        gone = dict.fromkeys(node for at, node in self._gone if at > state and node not in self._values)
        is_small = len(found) <= PAGE_MAX and sum(len(value) + NODE_BYTES for _, value in found) <= PAGE_BYTES_MAX
        is_right = all(len(value) <= DESCRIPTION_BYTES_MAX for _, value in found)
        return ShardPage(found, True, tuple(gone), True) if is_small and is_right else None

    def _page(self, after: NodeId) -> ShardPage:
        page: list[tuple[NodeId, bytes]] = []
        size = 0
        for node in islice(self._order, bisect_right(self._order, after), None):
            value = self._values[node]
            if len(value) > DESCRIPTION_BYTES_MAX:
                continue
            if size + len(value) > PAGE_BYTES_MAX or len(page) == PAGE_MAX:
                return ShardPage(page, False)
            page.append((node, value))
            size += len(value) + NODE_BYTES
        return ShardPage(page, True)
