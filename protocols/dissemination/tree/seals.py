"""How signed items share out to messages, and what a message says of their signatures. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from msgspec.structs import replace

from protocols.dissemination.messages import (
    ITEMS_BYTES_MAX,
    ITEMS_MAX,
    LARGE_FROM_BYTES,
    Carry,
    ReplayItems,
    Seal,
    StreamItem,
    batch_of,
)
from protocols.dissemination.sealing import DIGEST_BYTES, SIGNATURE_BYTES, SealedBatch
from protocols.dissemination.tree.links import Downlink, EdgeMessage

SEAL_BYTES: Final = SIGNATURE_BYTES + 36
"""What a `Seal` takes in a message besides digests, at most."""


def in_messages(items: Iterable[StreamItem]) -> Iterator[tuple[StreamItem, ...]]:
    """Share items out to messages, as many in each as fit, all signed with one certificate.

    A large one is alone, and is cut as it is sent.
    """
    some: list[StreamItem] = []
    size = 0
    for each in items:
        own = ITEMS_BYTES_MAX if each.size > LARGE_FROM_BYTES else each.size + _seal_bytes(some, each)
        if some and (size + own > ITEMS_BYTES_MAX or len(some) == ITEMS_MAX or _is_other_signer(some, each)):
            yield tuple(some)
            some, size = [], 0
        some.append(each)
        size += own
    if some:
        yield tuple(some)


def _seal_bytes(some: Sequence[StreamItem], item: StreamItem) -> int:
    """What a message takes more for the signature of its next item, at most."""
    batch = batch_of(item)
    if batch is None:
        return 0
    path = DIGEST_BYTES * (batch.count - 1).bit_length()
    if not some or not _continues(some[-1], item):
        return SEAL_BYTES + 2 * path
    return 0 if item.sequence == some[-1].sequence + 1 else path


def _is_other_signer(some: Sequence[StreamItem], item: StreamItem) -> bool:
    before, batch = batch_of(some[-1]), batch_of(item)
    if before is batch or batch is None:
        return False
    batch.close()
    first = next(filter(None, map(batch_of, some)), batch)
    first.close()
    return first.certificate != batch.certificate


def batch_runs(items: Sequence[StreamItem]) -> Iterator[tuple[SealedBatch | None, Sequence[StreamItem]]]:
    """Items of a message that come one after the other and are of one batch, or of none."""
    begin = 0
    for at in range(1, len(items) + 1):
        if at == len(items) or not _continues(items[at - 1], items[at]):
            yield batch_of(items[begin]), items[begin:at]
            begin = at


def _continues(before: StreamItem, item: StreamItem) -> bool:
    batch = batch_of(item)
    return batch is batch_of(before) and (batch is None or item.sequence > before.sequence)


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
            wanted |= 1 << (item.sequence - batch.first)
        digests = batch.without(wanted)
        seals.append(Seal(len(some), batch.epoch, batch.first, batch.count, batch.signature, digests))
        is_any, certificate = True, batch.certificate
    return (tuple(seals), certificate) if is_any else ((), b"")


def numbered(child: Downlink, message: EdgeMessage) -> EdgeMessage:
    """A message that goes out now, with its number on the edge and with what the producer has signed of its items."""
    if isinstance(message, Carry | ReplayItems):
        seals, certificate = seals_of(message.items)
        if seals:
            told, child.certificate = b"" if certificate == child.certificate else certificate, certificate
            items = tuple([item.bare for item in message.items])
            return replace(
                message, attempt=child.attempt, number=child.number, items=items, seals=seals, certificate=told
            )
    return replace(message, attempt=child.attempt, number=child.number)
