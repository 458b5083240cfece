"""What a producer signs of its stream, how that travels, and how every node checks it. Pure.

Whoever is between the producer and a subscriber passes items on. What it alters, makes up or takes from elsewhere is
noticed by its own children, because every node checks what it gets before it does anything with it. docs/security.md
says what a node can still do: pass nothing on.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Final

from peerd.errors import ProtocolError
from peerd.ids import NodeId, id_to_bytes, parse_id
from protocols.dissemination.messages import Seal, StreamItem
from protocols.dissemination.names import TERM_SHIFT, position_text
from protocols.dissemination.sealing import SealedBatch, item_digest
from protocols.dissemination.stream import StreamRecord

CHECKED_MAX: Final = 64
"""Batches that were checked lately. One that comes in several messages is checked once."""

Sign = Callable[[bytes], bytes]
Verify = Callable[[NodeId, bytes, bytes], bool]


def _named(record: StreamRecord) -> bytes:
    """The stream, as statements name it: two of one name may have been created in two parts of a divided ring."""
    return id_to_bytes(record.key) + (id_to_bytes(parse_id(record.creator)) if record.creator else bytes(16))


class Proofs:
    """The signatures of one stream, at one node. ``record`` is that of the moment."""

    def __init__(self, record: Callable[[], StreamRecord], sign: Sign, verify: Verify) -> None:
        self._record_now, self._sign, self._verify = record, sign, verify
        self._record = record()
        self._use(self._record)
        self._open: SealedBatch | None = None
        """The producer's, which takes the next item."""
        self._checked: OrderedDict[tuple[int, int, bytes, bytes], bytes] = OrderedDict()
        """What was found to be signed, by where the batch begins and how it is signed."""

    def _use(self, record: StreamRecord) -> None:
        self._record, self._name = record, _named(record)
        self._signers = {each.term: parse_id(each.id) for each in record.former}
        self._signers[record.term] = parse_id(record.producer.id)

    def _look(self) -> None:
        if (record := self._record_now()) is not self._record:
            self._use(record)

    def _needs_seal(self, item: StreamItem) -> bool:
        return not self._record.unsigned or item.attachment is not None

    # The producer

    def sealed(self, item: StreamItem) -> StreamItem:
        """The producer's next item, which is a part of the batch that is signed when it is sent."""
        self._look()
        if not self._needs_seal(item):
            return item
        if self._open is None or not self._open.is_next(item.position.epoch, item.position.sequence):
            self._open = SealedBatch(item.position.epoch, item.position.sequence, self._proof)
        self._open.add(item_digest(item.packed))
        item.batch = self._open
        return item

    def take_back(self, item: StreamItem) -> None:
        """The item that was sealed last is none: it was refused in the end."""
        if item.batch is not None:
            item.batch.take_back()

    def _proof(self, batch: SealedBatch) -> bytes:
        return self._sign(batch.statement(self._name))

    # Everybody else

    def is_term_known(self, seals: Sequence[Seal]) -> bool:
        """Whether what is signed is of no later term than the record: else that has to be read again first."""
        self._look()
        return max([seal.epoch for seal in seals], default=0) >> TERM_SHIFT <= self._record.term

    def checked(self, items: Sequence[StreamItem], seals: Sequence[Seal], certificate: bytes) -> list[StreamItem]:
        """The items of a message, which are what the producer has signed. Raises `ProtocolError`.

        Left out are those of a term so long ago that it is not known any more who has signed them.
        """
        self._look()
        found: list[StreamItem] = []
        at = 0
        for seal in seals or ([Seal(len(items))] if items else ()):
            some = items[at : at + seal.items]
            at += seal.items
            if at > len(items):
                break
            found += self._of_batch(some, seal, certificate) if seal.count else self._unsigned(some)
        if at != len(items):
            raise ProtocolError("forged", f"seals for {at} items beside {len(items)}")
        return found

    def _unsigned(self, items: Sequence[StreamItem]) -> Sequence[StreamItem]:
        for item in items:
            if self._needs_seal(item):
                raise ProtocolError("forged", f"the item {position_text(item.position)} is not signed")
        return items

    def _of_batch(self, items: Sequence[StreamItem], seal: Seal, certificate: bytes) -> Sequence[StreamItem]:
        signer = self._signers.get(seal.epoch >> TERM_SHIFT)
        if signer is None:
            return []
        own: dict[int, bytes] = {}
        for item in items:
            index = item.position.sequence - seal.first
            if item.position.epoch != seal.epoch or not 0 <= index < seal.count or index in own:
                raise ProtocolError("forged", f"the item {position_text(item.position)} is not in the batch beside it")
            own[index] = item_digest(item.packed)
        try:
            batch = SealedBatch.read(seal.epoch, seal.first, seal.count, own, seal.digests)
        except ValueError as error:
            raise ProtocolError("forged", str(error)) from error
        batch.signature, batch.certificate = seal.signature, certificate
        statement = batch.statement(self._name)
        key = (seal.epoch, seal.first, seal.signature, certificate)
        if self._checked.get(key) != statement:
            if not self._verify(signer, statement, seal.signature + certificate):
                place = f"{seal.epoch}-{seal.first} to {seal.first + seal.count - 1}"
                raise ProtocolError("forged", f"the producer has not signed the items {place} as they came")
            self._checked[key] = statement
            if len(self._checked) > CHECKED_MAX:
                self._checked.popitem(last=False)
        for item in items:
            item.batch = batch
        return items
