"""How signed items share out to messages, and what a message says of their signatures. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from peerd.limits import SIGNATURE_BYTES
from protocols.dissemination.messages import ITEMS_BYTES_MAX, ITEMS_MAX, Seal, StreamItem
from protocols.dissemination.names import StreamPosition
from protocols.dissemination.ports import total_bytes
from protocols.dissemination.sealing import DIGEST_BYTES, SealedBatch

SEAL_BYTES: Final = SIGNATURE_BYTES + 36
"""What a `Seal` takes in a message besides digests, at most."""


def in_messages(items: Iterable[StreamItem]) -> Iterator[tuple[StreamItem, ...]]:
    """Share items out to messages, as many in each as fit, all signed with one certificate.

    A large one is alone, and is cut as it is sent.
    """
    some: list[StreamItem] = []
    size = 0
    for each in items:
        own = ITEMS_BYTES_MAX if each.is_large else each.size + _seal_bytes(some, each)
        if some and (size + own > ITEMS_BYTES_MAX or len(some) == ITEMS_MAX or _is_other_signer(some, each)):
            yield tuple(some)
            some, size = [], 0
        some.append(each)
        size += own
    if some:
        yield tuple(some)


def _seal_bytes(some: Sequence[StreamItem], item: StreamItem) -> int:
    """What a message takes more for the signature of its next item, at most."""
    batch = item.batch
    if batch is None:
        return 0
    path = DIGEST_BYTES * (batch.count - 1).bit_length()
    if not some or not _continues(some[-1], item):
        return SEAL_BYTES + 2 * path
    return 0 if item.position.sequence == some[-1].position.sequence + 1 else path


def _is_other_signer(some: Sequence[StreamItem], item: StreamItem) -> bool:
    before, batch = some[-1].batch, item.batch
    if before is batch or batch is None:
        return False
    batch.close()
    first = next((each.batch for each in some if each.batch is not None), batch)
    first.close()
    return first.certificate != batch.certificate


def batch_runs(items: Sequence[StreamItem]) -> Iterator[tuple[SealedBatch | None, Sequence[StreamItem]]]:
    """Items of a message that come one after the other and are of one batch, or of none."""
    begin = 0
    for at in range(1, len(items) + 1):
        if at == len(items) or not _continues(items[at - 1], items[at]):
            yield items[begin].batch, items[begin:at]
            begin = at


def _continues(before: StreamItem, item: StreamItem) -> bool:
    return item.batch is before.batch and (item.batch is None or item.position > before.position)


def seals_of(items: Sequence[StreamItem]) -> tuple[tuple[Seal, ...], bytes]:
    """What a message says of its items, and the certificate that goes with it."""
    seals: list[Seal] = []
    certificate = b""
    is_any = False
    for batch, some in batch_runs(items):
        if batch is None:
            seals.append(Seal(len(some)))
            continue
        batch.close()
        wanted = 0
        for item in some:
            wanted |= 1 << (item.position.sequence - batch.first)
        digests = batch.without(wanted)
        seals.append(Seal(len(some), batch.epoch, batch.first, batch.count, batch.signature, digests))
        is_any, certificate = True, batch.certificate
    return (tuple(seals), certificate) if is_any else ((), b"")


@dataclass(eq=False, slots=True)
class Parcel:
    """Items of one message: the same for all children that get the same."""

    items: tuple[StreamItem, ...]
    watermark: StreamPosition | None
    """There is nothing else for the child up to here; ``None``: they are of the past."""
    packed: tuple[bytes, ...] = field(init=False)
    size: int = field(init=False)
    """What they count for."""
    _seals: tuple[tuple[Seal, ...], bytes] | None = None

    def __post_init__(self) -> None:
        self.packed = tuple([item.packed for item in self.items])
        self.size = total_bytes(self.items)

    def seals(self) -> tuple[tuple[Seal, ...], bytes]:
        """See `seals_of`: worked out when the first child is sent them, which has the producer sign them."""
        if self._seals is None:
            self._seals = seals_of(self.items)
        return self._seals


def parcels(items: Iterable[StreamItem], *, is_old: bool) -> Iterator[Parcel]:
    """What items are sent in. ``is_old``: children may be further in the stream than these."""
    for some in in_messages(items):
        yield Parcel(some, None if is_old else some[-1].position)
