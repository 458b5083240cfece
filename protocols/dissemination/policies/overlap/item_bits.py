"""Sets of items, to and from their form in messages. Pure."""

from __future__ import annotations

from pyroaring import BitMap64

from peerd.errors import ProtocolError
from protocols.dissemination.policies.overlap.messages import BITS_BYTES_MAX, SPAN_MAX, ItemBits
from protocols.dissemination.statistics.received import ItemSet


def to_bits(known: ItemSet) -> ItemBits:
    """As it travels: at most `BITS_BYTES_MAX`; of a longer window every 2nd, 4th... item only."""
    since = max(known.since, known.watermark - SPAN_MAX)
    every = known.every
    while (known.watermark - since) // every > BITS_BYTES_MAX * 8 - 1:
        every *= 2
    items = known.within(since, known.watermark).sampled(every)
    first = since // every + 1
    bits = bytearray((items.span + 7) // 8)
    for number in items.items:
        at = number // every - first
        bits[at >> 3] |= 1 << (at & 7)
    return ItemBits(known.epoch, since, items.watermark, bytes(bits), every.bit_length() - 1)


def newest(known: ItemSet) -> ItemSet:
    """So many of the newest items as can be told without leaving any out."""
    return known.within(known.watermark - (BITS_BYTES_MAX * 8 - 1), known.watermark)


def from_bits(told: ItemBits) -> ItemSet:
    """As it is used. Raises `ProtocolError` where its parts do not fit together."""
    every = 1 << told.every_log2
    if not 0 <= told.watermark - told.since <= SPAN_MAX:
        raise ProtocolError("bad_items", f"a set of items from {told.since} to {told.watermark}")
    first = told.since // every + 1
    span = told.watermark // every + 1 - first
    if len(told.bits) != (span + 7) // 8:
        raise ProtocolError("bad_items", f"{len(told.bits)} bytes for {span} items")
    items = BitMap64()
    for at, byte in enumerate(told.bits):
        while byte:
            low = byte & -byte
            number = (first + at * 8 + low.bit_length() - 1) * every
            if number > told.watermark:  # before it is added: a bitmap has no place for what takes more than 64 bits
                raise ProtocolError("bad_items", "bits above the end")
            items.add(number)
            byte ^= low
    return ItemSet(told.epoch, told.since, told.watermark, items, every)
