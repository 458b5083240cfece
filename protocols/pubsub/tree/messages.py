"""Messages about leaves that are shared (`protocols.pubsub.tree.sharing`). ONLY APPEND: they are the protocol itself.

All are taken from their sender's own link only.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Annotated, Final

from msgspec import Meta

from peerd.ids import NodeId
from peerd.limits import KIB
from peerd.messages import U8, U16, U32, U64, Message, Name, PeerRef, Struct, message
from protocols.pubsub.messages import SUBS_MAX, Attribute, Subs
from protocols.pubsub.tree.cells import Cell

PIECES_LENT_MAX: Final = 1024
"""A leaf with more pieces is not lent to helpers."""
HELPERS_MAX: Final = 8
"""Nodes besides the root that share one leaf."""


class PieceName(Struct):
    """Names a piece: see `protocols.pubsub.names.SubscriptionKey`."""

    subscriber: NodeId
    sid: U64
    piece: U16


@message(0x0222, bytes_max=44 * KIB)
class LendLeaf(Message):
    """The root of a hot leaf to a helper, a request: these pieces are (no longer) in the leaf. Answered by `LeafLent`.

    ``number``: random, of this loan to this helper; 0: it is over. ``begins``: nothing has been taken yet. Who has
    given the leaf back does not take it again by a later message, for it would have some of its pieces only.
    """

    schema: Name
    attribute: Attribute
    cell: Cell
    number: U64
    begins: bool = False
    subs: Subs = ()
    gone: Annotated[tuple[PieceName, ...], Meta(max_length=SUBS_MAX)] = ()


@message(0x0223, bytes_max=256)
class LoanQuestion(Message):
    """Helper to root, a request: may I do the work of your leaf (for some seconds more)? Answered by `LeafLent`.

    ``load``: events a minute that have come to the helper because of it.
    """

    schema: Name
    attribute: Attribute
    cell: Cell
    number: U64
    load: U32


class LoanState(IntEnum):
    """What the root and a helper say of a loan."""

    OVER = 0
    GIVEN = 1
    """The helper has the pieces that the root has named, or the first of them; but it is not to serve yet."""
    SERVING = 2


@message(0x0224, bytes_max=1024)
class LeafLent(Message):
    """Answer to `LendLeaf` and `LoanQuestion`. ``taken``: how many of the pieces named, from the first on.
    ``helpers``: all that may serve now, besides the root."""

    state: U8
    taken: U8 = 0
    helpers: Annotated[tuple[PeerRef, ...], Meta(max_length=HELPERS_MAX)] = ()


@message(0x0225, bytes_max=512)
class LeafHelper(Message):
    """Root of a leaf, or helper, to a publisher: send what goes to this leaf to that node from now on."""

    schema: Name
    attribute: Attribute
    cell: Cell
    helper: PeerRef


LOAN_MESSAGES: Final[tuple[type[Message], ...]] = (LendLeaf, LoanQuestion, LeafLent, LeafHelper)
