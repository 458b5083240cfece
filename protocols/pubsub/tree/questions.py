"""Asking the root of a cell what the cell is: so claims in routed messages are checked, and trees are drawn."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from peerd.api import Part, handles, on_timer
from peerd.lib.admission import TokenBucket
from peerd.messages import PeerRef
from protocols.pubsub.messages import ENTRIES_MAX, CellAnswer, CellQuestion, CellState, LeafEntry
from protocols.pubsub.names import Tree
from protocols.pubsub.tree.cell_node import CellNode
from protocols.pubsub.tree.forest import Forest
from protocols.pubsub.tree.nearness import may_be_root
from protocols.pubsub.tree.storage import CellAddress

QUESTION_S: Final = 5.0
"""How long the root of a cell may take to say what it is."""
QUESTIONS_MAX: Final = 1024
"""Questions of this node that are under way at a time."""
FULL_ANSWERS_A_SECOND: Final = 20
"""Answers with all leaves that a node gives: they are much longer than the questions, whose source may be made up."""

Done = Callable[[CellAnswer | None, PeerRef | None], None]


class Questions(Part):
    """The questions of this node, and its answers to those of others."""

    def __init__(self, forest: Forest) -> None:
        self._forest = forest
        self._host = forest.host
        self._open: dict[int, Done] = {}
        self._full_answers = TokenBucket(FULL_ANSWERS_A_SECOND, FULL_ANSWERS_A_SECOND, self._host.now())

    def ask(self, place: CellAddress, done: Done, *, is_brief: bool = True) -> bool:
        """Ask the root of a cell; ``done(answer, who)`` is called once, later. ``False``: too many are open."""
        if len(self._open) >= QUESTIONS_MAX:
            return False
        nonce = self._host.rng.getrandbits(63)
        if nonce in self._open:
            return False
        self._open[nonce] = done
        self._host.set_timer("tree_question", QUESTION_S, nonce)
        schema, attribute = place.tree
        self._host.route(place.key, CellQuestion(schema, attribute, place.cell, nonce, is_brief))
        return True

    @on_timer("tree_question")
    def _unanswered(self, nonce: int) -> None:
        self._open.pop(nonce)(None, None)

    @handles(CellAnswer)
    def _answered(self, message: CellAnswer, source: PeerRef) -> None:
        """Only who has seen the question knows its number: the root of the cell, or a node on the way to it."""
        done = self._open.pop(message.nonce, None)
        if done is not None:
            self._host.cancel_timer("tree_question", message.nonce)
            done(message, source)

    @handles(CellQuestion)
    def _asked(self, message: CellQuestion, source: PeerRef) -> None:
        node = self._forest.find(CellAddress(Tree(message.schema, message.attribute), message.cell))
        if node is None or node.is_switching:
            return  # the asker tries again: what would be said now may be wrong a moment later
        if not message.is_brief and not self._full_answers.take(self._host.now()):
            return
        self._host.send(source, self._answer(node, message, self._transfer_for(node, source)))

    def _transfer_for(self, node: CellNode, asker: PeerRef) -> int:
        """The number of the split or merge, for the roots of the parts only: who knows it can give them copies."""
        job = node.split or node.merge
        keys = (CellAddress(node.place.tree, part).key for part in (() if job is None else job.parts))
        return node.transfer if any(may_be_root(self._host, asker.id, key) for key in keys) else 0

    def _answer(self, node: CellNode, message: CellQuestion, transfer: int) -> CellAnswer:
        leaves: tuple[LeafEntry, ...] = ()
        if node.table is not None:
            leaves = tuple(node.table.entries())
        elif node.state is CellState.LEAF:
            leaves = (node.entry(self._host.now()),)
        subs, load = sum(each.subs for each in leaves), sum(each.load for each in leaves)
        entries = () if message.is_brief else leaves
        if entries and node.table is not None:
            entries = tuple(node.table.summary(ENTRIES_MAX))
        return CellAnswer(message.nonce, node.state, subs & 0xFFFFFFFF, load & 0xFFFFFFFF, entries, transfer)
