"""A drawing of a tree, from what the roots of its cells say, truly or not."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, cast

import pytest

from peerd.messages import PeerRef
from peerd.testing.host import peer
from protocols.pubsub.explaining.tree_walk import CELLS_MAX, _TreeWalk
from protocols.pubsub.messages import CellAnswer, CellState
from protocols.pubsub.models import TreeView
from protocols.pubsub.schema.document import read_document
from protocols.pubsub.schema.event_schema import EventSchema
from protocols.pubsub.tree.cells import LEVEL_LIMIT, is_alternate, level
from protocols.pubsub.tree.questions import Questions
from protocols.pubsub.tree.storage import CellAddress

SCHEMA = EventSchema(read_document({"name": "s", "attributes": [{"name": "x", "type": "float", "low": 0, "high": 1}]}))


class Answers:
    """Implements as much of `Questions` as a walk needs: each cell says what the test says."""

    def __init__(self, state_of: Callable[[int], CellState]) -> None:
        self.state_of = state_of
        self.asked: deque[Callable[[], None]] = deque()

    def ask(self, place: CellAddress, done: Callable[[CellAnswer | None, PeerRef | None], None], **how: Any) -> bool:
        answer = CellAnswer(1, int(self.state_of(place.cell)))
        self.asked.append(lambda: done(answer, peer(7)))
        return True


def walk(state_of: Callable[[int], CellState]) -> TreeView:
    """What is drawn when all have answered."""
    told: list[TreeView] = []
    answers = Answers(state_of)
    _TreeWalk(cast(Questions, answers), SCHEMA, "x", told.append).begin()
    while answers.asked:
        answers.asked.popleft()()
    (view,) = told
    return view


@pytest.mark.parametrize("lie", [CellState.INNER, CellState.MOVED])
def test_alternates_have_no_parts_whatever_their_roots_say(lie: CellState) -> None:
    view = walk(lambda cell: lie if is_alternate(cell) else CellState.MOVED)
    assert [cell.state for cell in view.cells] == ["moved", "inner" if lie is CellState.INNER else "moved"]


def test_no_cell_is_deeper_than_cells_can_be() -> None:
    def state_of(cell: int) -> CellState:
        return CellState.LEAF if cell & 1 and level(cell) else CellState.INNER  # one chain down to the deepest level

    assert len(walk(state_of).cells) == 1 + 2 * LEVEL_LIMIT < CELLS_MAX
