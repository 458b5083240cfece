"""Looks at a whole tree from outside, cell by cell from the root down, for people who want to see it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Literal

from peerd.errors import Unavailable
from peerd.ids import format_id
from peerd.messages import PeerRef
from protocols.pubsub.cells import WHOLE, Area, alternate, area_of, children, is_alternate, text
from protocols.pubsub.messages import CellAnswer, CellState
from protocols.pubsub.models import TreeLeaf, TreeView
from protocols.pubsub.names import Tree
from protocols.pubsub.tree.questions import Questions
from protocols.pubsub.tree.storage import CellAddress

CELLS_MAX: Final = 4096
"""Most cells that are asked for one drawing; where there are more, it is told that some are missing."""
OPEN_MAX: Final = 16
"""Questions under way at a time."""

Word = Literal["leaf", "inner", "moved", "unknown", "retired", "silent"]
WORDS: Final[dict[int, Word]] = {
    CellState.LEAF: "leaf",
    CellState.INNER: "inner",
    CellState.MOVED: "moved",
    CellState.RETIRED: "retired",
    CellState.UNKNOWN: "unknown",
}
Bounds = Callable[[Area], tuple[tuple[str, str], tuple[str, str]]]
"""The ends of a rectangle as people read them: x, then y."""


class TreeWalk:
    """One look at one tree. ``on_done`` is called once, with what has answered."""

    def __init__(
        self, questions: Questions, tree: Tree, attribute: str, bounds: Bounds, on_done: Callable[[TreeView], None]
    ) -> None:
        self._questions = questions
        self._tree = tree
        self._attribute = attribute
        self._bounds = bounds
        self._on_done = on_done
        self._waiting = [WHOLE]
        self._open = 0
        self._found: dict[int, TreeLeaf] = {}
        self._is_complete = True

    def begin(self) -> None:
        """Ask the first question. Raises `Unavailable` when too many are asked already."""
        if not self._ask(self._waiting.pop()):
            raise Unavailable("too many questions about trees are under way; try again in some seconds")

    def _ask(self, cell: int) -> bool:
        def answered(answer: CellAnswer | None, who: PeerRef | None) -> None:
            self._answered(cell, answer, who)

        self._open += 1
        if self._questions.ask(CellAddress(self._tree, cell), answered):
            return True
        self._open -= 1
        return False

    def _answered(self, cell: int, answer: CellAnswer | None, who: PeerRef | None) -> None:
        self._open -= 1
        x, y = self._bounds(area_of(cell))
        if answer is None or who is None:
            self._is_complete = False
            self._found[cell] = TreeLeaf(bits=text(cell), state="silent", x=x, y=y)
        else:
            state = WORDS.get(answer.state, "unknown")
            self._found[cell] = TreeLeaf(
                bits=text(cell), state=state, owner=format_id(who.id), subs=answer.subs, load=answer.load, x=x, y=y
            )
            if state == "inner":
                self._waiting += children(cell)
            elif state == "moved" and not is_alternate(cell):  # an alternate that says so is lying
                self._waiting.append(alternate(cell))
        self._go_on()

    def _go_on(self) -> None:
        while self._waiting and self._open < OPEN_MAX:
            if len(self._found) + self._open >= CELLS_MAX or not self._ask(self._waiting[-1]):
                self._is_complete = False
                self._waiting.clear()
                break
            self._waiting.pop()
        if not self._open:
            cells = [self._found[cell] for cell in sorted(self._found, key=text)]
            shown = {"schema": self._tree.schema, "attribute": self._attribute}
            self._on_done(TreeView.model_validate({**shown, "cells": cells, "is_complete": self._is_complete}))
