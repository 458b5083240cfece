"""What a node believes of its parents: what the producer has signed, and all of it for who wants all. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from peerd.errors import ProtocolError
from peerd.ids import NodeId
from protocols.dissemination.messages import ItemBatch, ReplayItems, StreamItem
from protocols.dissemination.names import StreamPosition
from protocols.dissemination.tree.links import Completeness, EdgeMessage, Intake, Uplink
from protocols.dissemination.tree.state import MemberState

FORGED: Final = "forged"
WITHHELD: Final = "withheld"
OUT_OF_ORDER: Final = "out_of_order"
LIES: Final = frozenset((FORGED, WITHHELD, OUT_OF_ORDER))
"""Reasons of errors that name who has altered a stream, or passed on less than it has promised, or goes back in it."""
DISTRUST_S: Final = 600.0
"""A node that has given this one what the producer has not signed is no parent for so long."""
DISTRUSTED_MAX: Final = 64
RECORD_S: Final = 9.0
"""Besides `links.PARKED_S`: what is of a later term waits for so long until the ring shows whose that is."""


class Trust:
    """One node's, in one stream."""

    def __init__(self, state: MemberState) -> None:
        self._state = state
        self._distrusted: dict[NodeId, float] = {}
        """Until when."""

    def may_be_parent(self, peer: NodeId, now: float) -> bool:
        """Whether a node has not lied lately."""
        return self._distrusted.get(peer, 0.0) <= now

    def _lied(self, link: Uplink, reason: str, detail: str, now: float) -> ProtocolError:
        self._distrusted.pop(link.peer.id, None)
        if len(self._distrusted) >= DISTRUSTED_MAX:
            del self._distrusted[next(iter(self._distrusted))]
        self._distrusted[link.peer.id] = now + DISTRUST_S
        return ProtocolError(reason, f"{link.peer}: {detail}")

    def must_wait(self, link: Uplink, message: EdgeMessage, now: float) -> bool:
        """Whether it cannot be known yet who has signed what a message brings: the record is read again for that."""
        proofs = self._state.proofs
        if proofs is None or not isinstance(message, ItemBatch | ReplayItems) or proofs.is_term_known(message.seals):
            return False
        if link.intake is not Intake.EARLY:
            link.intake, link.parked_at = Intake.EARLY, now + RECORD_S
        return True

    def items(self, link: Uplink, message: ItemBatch | ReplayItems, now: float) -> Sequence[StreamItem]:
        """The items of a message, one of which may have come in parts but for its end. Raises `ProtocolError`."""
        link.intake = Intake.FREE
        packed = link.whole(message.items)
        if packed is None:
            raise ProtocolError("bad_parts", f"{link.peer} has begun an item that does not end so")
        items = [StreamItem.unpack(each) for each in packed]
        if self._state.proofs is None:
            return items
        link.certificate = message.certificate or link.certificate
        try:
            return self._state.proofs.checked(items, message.seals, link.certificate)
        except ProtocolError as error:
            raise self._lied(link, FORGED, error.detail, now) from error

    def check_next(self, link: Uplink, to: StreamPosition, step: int, now: float) -> None:
        """A parent goes on, by an item (``step`` is 1) or to a mark (0). Raises `ProtocolError` where no correct one
        would: it goes back, or leaves something out of everything.

        Producers number without holes, so each number up to where the parent says to be is an item.
        """
        before = link.watermark
        if to < before or (step and to == before):
            raise self._lied(link, OUT_OF_ORDER, f"is at {to} after {before}", now)
        if (
            link.completeness is Completeness.WHOLE
            and to.epoch == before.epoch
            and to.sequence != before.sequence + step
        ):
            detail = f"leaves out what is between {before} and {to}, though this node wants everything"
            raise self._lied(link, WITHHELD, detail, now)

    def came_to(self, link: Uplink, watermark: StreamPosition) -> None:
        """A parent is so far, and has said so."""
        link.came_to(watermark, is_proven=self._state.proofs is not None and self._state.last_sent is None)
