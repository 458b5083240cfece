"""Looks at a whole tree from outside, cell by cell from the root down, for people who want to see it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Literal

from peerd.errors import Unavailable
from peerd.ids import format_id
from peerd.messages import PeerRef
from protocols.pubsub.messages import CellAnswer, CellState
from protocols.pubsub.models import TreeLeaf, TreeView
from protocols.pubsub.names import EVERY, Tree
from protocols.pubsub.schema.book import SchemaBook
from protocols.pubsub.schema.event_schema import EventSchema
from protocols.pubsub.service import NotDone
from protocols.pubsub.tree.cells import (
    LEVEL_LIMIT,
    SIDE,
    WHOLE,
    alternate,
    area_of,
    children,
    is_alternate,
    level,
    text,
)
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
EVERY_NAME: Final = "*"


class TreeViews:
    """The trees, as clients ask for them."""

    def __init__(self, schemas: SchemaBook, questions: Questions) -> None:
        self._schemas, self._questions = schemas, questions

    def tree(self, schema: str, attribute: str, on_done: Callable[[TreeView | Exception], None]) -> None:
        """The tree of an attribute, by default the first; ``*``: that of subscriptions that name no range."""

        def found(known: EventSchema | None, why: str) -> None:
            try:
                if known is None:
                    raise NotDone("unknown", why)
                _TreeWalk(self._questions, known, attribute, on_done).begin()
            except (NotDone, Unavailable) as error:
                on_done(error)

        self._schemas.fetch(schema, found)


class _TreeWalk:
    """One look at one tree. ``on_done`` is called once, with what has answered. Raises `NotDone`."""

    def __init__(
        self, questions: Questions, schema: EventSchema, attribute: str, on_done: Callable[[TreeView], None]
    ) -> None:
        self._questions, self._on_done = questions, on_done
        self._attribute = attribute or schema.document.attributes[0].name
        self._known = schema.attributes.get(self._attribute)
        if self._known is None and self._attribute != EVERY_NAME:
            names = ", ".join(each.name for each in schema.document.attributes)
            raise NotDone("unknown", f"{schema.name} has no attribute {self._attribute!r:.60}; it has {names}")
        self._tree = Tree(schema.name, EVERY if self._known is None else self._known.number)
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
        area = area_of(cell)
        x, y = self._ends(area.x_low, area.x_high), self._ends(area.y_low, area.y_high)
        if answer is None or who is None:
            self._is_complete = False
            self._found[cell] = TreeLeaf(bits=text(cell), state="silent", x=x, y=y)
        else:
            state = WORDS.get(answer.state, "unknown")
            self._found[cell] = TreeLeaf(
                bits=text(cell), state=state, owner=format_id(who.id), subs=answer.subs, load=answer.load, x=x, y=y
            )
            if is_alternate(cell):
                pass  # it has no parts, whatever it says
            elif state == "inner" and level(cell) < LEVEL_LIMIT:
                self._waiting += children(cell)
            elif state == "moved":
                self._waiting.append(alternate(cell))
        self._go_on()

    def _ends(self, low: int, high: int) -> tuple[str, str]:
        """As values, or as shares of the square where these mean nothing."""
        if self._known is None:
            return f"{low / SIDE:.4g}", f"{high / SIDE:.4g}"
        return self._known.shown_at(low), self._known.shown_at(high)

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
