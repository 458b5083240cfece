"""Asking a subscriber whether a piece is its own, before it is kept: whoever brought it may have made it up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from peerd.api import Host
from peerd.messages import Message, PeerRef
from protocols.pubsub.messages import Arrived, Confirm, Established, SubObject
from protocols.pubsub.tree.cell_node import CellNode

CONFIRM_S: Final = 10.0
"""How long a subscriber may take to confirm a piece."""
ASKING_MAX: Final = 1024
"""Questions to subscribers that are under way at a time; what comes above that is not taken."""


class OwnPieces(Protocol):
    """The pieces of this node's own clients, who have paid for them."""

    def knows(self, sid: int, piece: int) -> bool:
        """Whether it is one of them."""

    def on_established(self, message: Established, source: PeerRef) -> Message | None:
        """See `Established`."""


class SubscriberQuestions:
    """The subscribers of pieces, on whatever node they are. ``own``: those of this very node."""

    def __init__(self, host: Host) -> None:
        self.own: OwnPieces
        self._host = host
        self._asking = 0

    def ask(self, node: CellNode, sub: SubObject, *, is_new: bool, done: Callable[[Confirm | None], None]) -> bool:
        """Ask; ``done`` is called once, perhaps at once, with ``None`` for silence. Returns whether it was asked."""
        if self._asking >= ASKING_MAX:
            return False
        question = Established(
            node.place.tree.schema, sub.sid, sub.piece, sub.version, node.cell, is_new, min(255, node.level)
        )
        if sub.subscriber.id == self._host.id:
            done(_fitting(self.own.on_established(question, self._host.peer), question))
            return True
        self._asking += 1
        if is_new and self._host.peer_version(sub.subscriber) is None:  # there is no link yet
            self._tell_ahead(node, sub)

        def ended(answer: Message | None) -> None:
            self._asking -= 1
            done(_fitting(answer, question))

        self._host.request(sub.subscriber, question, CONFIRM_S, lambda reply, peer: ended(reply), lambda: ended(None))
        return True

    def _tell_ahead(self, node: CellNode, sub: SubObject) -> None:
        """Tell the subscriber by routing that its piece is here: opening a link takes longer than the way there."""
        arrived = Arrived(node.place.tree.schema, sub.sid, sub.piece, sub.version, node.cell)
        self._host.route(sub.subscriber.id, arrived)


def _fitting(answer: Message | None, question: Established) -> Confirm | None:
    """The answer, if it is one to this question."""
    is_fitting = isinstance(answer, Confirm) and (answer.sid, answer.piece) == (question.sid, question.piece)
    return answer if isinstance(answer, Confirm) and is_fitting else None
