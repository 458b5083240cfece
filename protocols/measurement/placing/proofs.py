"""Signatures of questions that others pass on, with their signer's certificate only where somebody may lack it.

A question has the certificate on ways that its signer has not had an answer over yet, and a mark of it on the others. A
node that does not know the mark (it has started anew, has forgotten it, or is new on the way) sends the question back
to whom it has it from, who sends it again with the certificate, which it then keeps to its end. Nothing is remembered
of a question for that, nor of who knows what.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from msgspec.structs import replace

from peerd.api import Host
from peerd.ids import NodeId
from peerd.lib.proof_ends import SeenEnds, is_short, shortened
from peerd.messages import Message, PeerRef
from protocols.measurement.placing.messages import ReadAlong, SpliceIn

Q = TypeVar("Q", ReadAlong, SpliceIn)


class WayProofs:
    """Those of one node."""

    def __init__(self, host: Host, send: Callable[[PeerRef, Message], None]) -> None:
        self._host, self._send, self._seen = host, send, SeenEnds()

    def signed(self, question: Q, statement: bytes) -> Q:
        """A question of this node, whole."""
        proof = self._host.sign(statement)
        self._seen.note(proof)
        return replace(question, proof=proof)

    def on_known_way(self, question: Q) -> Q:
        """A genuine question, as it goes on where nodes have probably seen the certificate."""
        return question if is_short(question.proof) else replace(question, proof=shortened(question.proof))

    def on_new_way(self, question: Q) -> Q:
        """A genuine question, as it goes on where nodes may lack the certificate."""
        whole = self._seen.whole(question.proof)
        return question if whole is None else replace(question, proof=whole)

    def came_back(self, question: Q, source: PeerRef) -> bool:
        """Whether this node has sent it to one that does not know the mark, which then gets it again, whole."""
        is_back = question.path[-1:] == (self._host.id,) and is_short(question.proof)
        if is_back and not is_short((again := self.on_new_way(question)).proof):
            wants = tuple(replace(want, cost=0.0) for want in again.wants)  # who is beyond may lack it, too
            self._send(source, replace(again, wants=wants))
        return is_back

    def is_genuine(
        self, question: ReadAlong | SpliceIn, signer: NodeId, statement: bytes, source: PeerRef
    ) -> bool | None:
        """Whether the signer has said that; ``None``: the mark is not known here, and the source gets it back."""
        proof = self._seen.whole(question.proof)
        if proof is None:
            self._send(source, question)
            return None
        is_genuine = self._host.verify(signer, statement, proof)
        if is_genuine:
            self._seen.note(proof)
        return is_genuine
