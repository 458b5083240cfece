"""Reports of leaves to the nodes above them, which fill their tables (LeafNodeUpdateMessage, section 3.2.2)."""

from __future__ import annotations

from typing import Final

from peerd.api import Part, handles, on_timer
from peerd.messages import PeerRef
from protocols.pubsub.messages import ENTRIES_MAX, CellState, LeafEntry, LeafUpdate
from protocols.pubsub.names import Tree
from protocols.pubsub.tree.cell_node import CellNode
from protocols.pubsub.tree.cells import WHOLE, ancestor, is_alternate, level, lies_within, parent
from protocols.pubsub.tree.forest import Forest, Standing
from protocols.pubsub.tree.leaf_table import LeafTable
from protocols.pubsub.tree.storage import CellAddress

REPORT_DELAY_S: Final = 0.2
"""Several changes of a cell within this time make one report."""
UNSETTLED_MAX: Final = 512
"""Reports that are kept while this node, the new root of a cell, catches up; each is at most some KiB."""
HEARD_INTERVALS: Final = 3
"""A leaf that was not heard of for so many update intervals is forgotten."""


class TreeReports(Part):
    """Sends and takes reports."""

    def __init__(self, forest: Forest) -> None:
        self._forest = forest
        self._host = forest.host
        self._dirty: dict[CellAddress, None] = {}
        self._due: dict[CellAddress, float] = {}
        self._early: dict[CellAddress, dict[int, LeafUpdate]] = {}
        """By cell that is about to be something else, the last report from each of its halves."""
        self._unsettled: dict[tuple[CellAddress, int], tuple[float, LeafUpdate]] = {}
        """The last report from each half of cells whose next root this node may be, and when it came."""

    def changed(self, node: CellNode) -> None:
        """Tell the parent soon."""
        if node.cell == WHOLE:
            return
        if not self._dirty:
            self._host.set_timer("tree_report", REPORT_DELAY_S)
        self._dirty[node.place] = None

    @on_timer("tree_report")
    def _report_changes(self, payload: None) -> None:
        dirty, self._dirty = self._dirty, {}
        for place in dirty:
            node = self._forest.cells.get(place)
            if node is not None and not node.is_switching:
                self._report(node)

    def tell(self, place: CellAddress, state: CellState) -> None:
        """Answer an order at once, for a cell that nothing is remembered about."""
        if state in (CellState.UNKNOWN, CellState.RETIRED):
            self._send(place.above, place.cell, ())

    def tick(self) -> None:
        """Repeat what is due, and forget what was not repeated."""
        now, interval_s = self._host.now(), self._forest.config.update_interval
        self._due = {place: due for place, due in self._due.items() if place in self._forest.cells}
        switching = {node.place for node in self._forest.nodes() if node.is_switching}
        self._early = {place: early for place, early in self._early.items() if place in switching}
        self._forget_old()
        for node in self._forest.nodes():
            if node.table is not None and node.table.forget(now - HEARD_INTERVALS * interval_s):
                self.changed(node)
            if node.cell != WHOLE and now >= self._due.setdefault(node.place, now + interval_s) and node.state.value:
                self.changed(node)

    def _report(self, node: CellNode) -> None:
        interval_s = self._forest.config.update_interval
        self._due[node.place] = self._host.now() + interval_s * self._host.rng.uniform(0.8, 1.2)
        entries: tuple[LeafEntry, ...] = ()
        if node.state is CellState.LEAF:
            entries = (node.entry(self._host.now()),)
        elif node.is_inner:
            entries = tuple(self._table(node).summary(ENTRIES_MAX, with_gaps=True))
        elif node.state is CellState.UNKNOWN:
            return
        self._send(node.place.above, node.cell, entries)

    def _send(self, to: CellAddress, below: int, entries: tuple[LeafEntry, ...]) -> None:
        self._host.route(to.key, LeafUpdate(to.tree.schema, to.tree.attribute, to.cell, below, entries))

    @handles(LeafUpdate)
    def _updated(self, message: LeafUpdate, source: PeerRef) -> None:
        place, below = CellAddress(Tree(message.schema, message.attribute), message.cell), message.below
        if not lies_within(below, place.cell) or below == place.cell or is_alternate(place.cell):
            return  # routed: whoever made it up is not the one who passed it on
        child = below if parent(below) == place.cell else ancestor(below, level(place.cell) + 1)
        node = self._forest.find(place)
        if node is None or node.is_switching:
            if message.entries or below == child:  # that one part of a half has no leaf says nothing of the half
                self._wait(place, child, message, node)
            return
        if node.is_inner and child in node.parts:
            level_max = self._forest.config.level_max  # no leaf is deeper, whatever a report says
            leaves = [entry for entry in message.entries if level(entry.cell) <= level_max]
            has_changed = self._table(node).replace(below, leaves, self._host.now())
            if has_changed and node.cell != WHOLE:
                self._send(node.place.above, below, message.entries)
        elif message.entries:
            self._forest.growth.claimed(node, child)
        self._forest.growth.heard(node, child, bool(message.entries))

    def _wait(self, place: CellAddress, child: int, message: LeafUpdate, switching: CellNode | None) -> None:
        """Keep a report until it is known what the cell is, or will be."""
        if switching is not None:
            self._early.setdefault(place, {})[child] = message
        elif self._forest.standing(place.key) is Standing.UNSETTLED:
            self._unsettled.pop((place, child), None)
            if len(self._unsettled) >= UNSETTLED_MAX:  # the oldest is the first that will be said again
                del self._unsettled[next(iter(self._unsettled))]
            self._unsettled[place, child] = self._host.now(), message

    def settled(self) -> None:
        """This node has caught up: reports for cells that are its own now are taken in before anything else comes.

        Where all that knew an inner cell have died at once, only such a report tells that it is no empty leaf.
        """
        self._forget_old()
        waiting, self._unsettled = self._unsettled, {}
        for _, message in waiting.values():
            self._updated(message, self._host.peer)

    def _forget_old(self) -> None:
        """Let go of reports that have been said again since, or are not true any more."""
        since = self._host.now() - self._forest.config.update_interval
        self._unsettled = {where: kept for where, kept in self._unsettled.items() if kept[0] >= since}

    def switched(self, node: CellNode) -> None:
        """It is known what a cell is now: what came too early is taken in. It would not be said again for an interval,
        and meanwhile a leaf below that this cell does not know of would get events, and none of its subscriptions."""
        for message in self._early.pop(node.place, {}).values():
            self._updated(message, self._host.peer)

    def _table(self, node: CellNode) -> LeafTable:
        if node.table is None:
            node.table = LeafTable(node.cell, self._forest.config.leaf_table_max, node.parts)
        return node.table


def half_entry(node: CellNode, child: int) -> LeafEntry | None:
    """What an inner node knows of one of its parts, if that is a leaf."""
    found = None if node.table is None else node.table.get(child)
    return found if found is not None and parent(found.cell) == node.cell else None
