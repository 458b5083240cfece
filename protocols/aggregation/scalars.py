"""Streams of msgpack scalars: no array and no map anywhere.

So hostile bytes cannot make the decoder allocate more than a small multiple of their length. Whole numbers beyond 64
bits are written as big-endian two's complement bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Final, cast

import msgpack

from protocols.aggregation.numbers import MANTISSA_BITS_MAX

TEXT_BYTES_MAX: Final = 256
"""The longest key of a group and the longest text that is listed, in UTF-8.

A record with a longer one is rejected, never shortened into another."""
_INTEGER_BYTES_MAX: Final = 2 * MANTISSA_BITS_MAX // 8 + 1
_SCALARS: Final = frozenset({int, float, str, bytes, bool, type(None)})


def narrow(value: object) -> object:
    """Convert a scalar to one that msgpack can write."""
    if type(value) is int and not -(2**63) <= value < 2**64:
        return value.to_bytes(value.bit_length() // 8 + 1, "big", signed=True)
    return value


def widen(value: object) -> object:
    """Inverse of `narrow`. Raises ``ValueError`` unless written in the one canonical way."""
    if type(value) is not bytes:
        return value
    if len(value) > _INTEGER_BYTES_MAX:
        raise ValueError("a number is too long")
    number = int.from_bytes(value, "big", signed=True)
    if -(2**63) <= number < 2**64 or len(value) != number.bit_length() // 8 + 1:
        raise ValueError("a number is not written in its shortest form")
    return number


def widen_all(values: Sequence[object]) -> Sequence[object]:
    """`widen` each of them."""
    return list(map(widen, values)) if bytes in set(map(type, values)) else values


class ScalarWriter:
    """Writes scalars one after another."""

    def __init__(self) -> None:
        self._packer = msgpack.Packer(autoreset=False)

    def put(self, *values: object) -> None:
        """Each value: int of any size, float, str, bytes, bool or ``None``."""
        pack = self._packer.pack
        for value in values:
            pack(narrow(value))

    def bytes(self) -> bytes:
        """Return all that was written."""
        return cast(bytes, self._packer.bytes())


def packed(values: Sequence[object]) -> bytes:
    """The values one after another: msgpack's array of them, without its header."""
    if not _fit_64_bits(values):
        values = list(map(narrow, values))
    header = 1 if len(values) < 1 << 4 else 3 if len(values) < 1 << 16 else 5
    return cast(bytes, msgpack.packb(values))[header:]


def _fit_64_bits(values: Sequence[object]) -> bool:
    kinds = set(map(type, values))
    if int not in kinds:
        return True
    if kinds != {int}:
        return False
    whole = cast(Sequence[int], values)
    return min(whole) >= -(2**63) and max(whole) < 2**64


class ScalarReader:
    """Reads scalars one after another; an array, map or extension is an error. Raises ``ValueError``.

    The limits of 0 stop anything with contents; an empty array or map, which they let pass, is stopped by its type.
    """

    def __init__(self, data: bytes | bytearray | memoryview) -> None:
        size = max(1, len(data))
        self._unpacker = msgpack.Unpacker(
            max_buffer_size=size, use_list=False, max_array_len=0, max_map_len=0, max_ext_len=0
        )
        self._unpacker.feed(data)

    def take(self, count: int) -> list[object]:
        """Read the next ``count`` scalars."""
        values = list(islice(cast(Iterator[object], self._unpacker), count))
        if len(values) != count:
            raise ValueError("it ends too early")
        return self._checked(values)

    def _checked(self, values: list[object]) -> list[object]:
        if not _SCALARS.issuperset(map(type, values)):
            raise ValueError("an array, a map or an extension where a scalar belongs")
        return values

    def end(self) -> None:
        """Check that nothing is left."""
        if list(islice(cast(Iterator[object], self._unpacker), 1)):
            raise ValueError("something follows the end")

    def rest(self, most: int) -> list[object]:
        """Read all that is left: at most ``most`` scalars."""
        values = list(islice(cast(Iterator[object], self._unpacker), most + 1))
        if len(values) > most:
            raise ValueError(f"more than {most} values")
        return self._checked(values)

    def count(self, most: int, least: int = 0) -> int:
        """Read one integer from ``least`` to ``most``."""
        (value,) = self.take(1)
        if type(value) is not int or not least <= value <= most:
            raise ValueError(f"expected a whole number from {least} to {most}")
        return value

    def blob(self) -> bytes:
        """Read one byte string."""
        (value,) = self.take(1)
        if type(value) is not bytes:
            raise ValueError("expected bytes")
        return value


def unpacked(blob: bytes | memoryview, count: int) -> list[object]:
    """Inverse of `packed`. Raises ``ValueError`` unless there are ``count`` values."""
    reader = ScalarReader(blob)
    values = reader.take(count)
    reader.end()
    return values


def unpacked_all(blob: object, most: int) -> list[object]:
    """Inverse of `packed` for however many values. Raises ``ValueError`` for no bytes, and for more than ``most``."""
    if type(blob) is not bytes:
        raise ValueError("expected bytes")
    return ScalarReader(blob).rest(most)
