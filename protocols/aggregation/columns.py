"""Many groups as columns: on the wire, and, where numpy is installed, in memory.

A megabyte of counters is 75,000 groups, whose keys and states as objects of Python cost twenty times their bytes, and a
tenth of a second to read and merge at every level of a round. As sorted keys and arrays of numbers both are a matter of
milliseconds.

On the wire a column is one byte string: a byte that says how it is written, then

    0   the values one after another as msgpack scalars: numbers of any size, texts, byte strings, ``None``
    1   one whole number as a msgpack scalar, which all values are
    2 to 5   whole numbers of 1, 2, 4 or 8 bytes each, with a sign, little-endian
    6   floats of 8 bytes each, little-endian

Keys are in ascending order of their UTF-8, each once: a column of their lengths in bytes, and all of them one after
another.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum
from functools import cache
from itertools import accumulate, pairwise
from typing import Any, Final, cast
from zlib import crc32

from protocols.aggregation.scalars import TEXT_BYTES_MAX, packed, unpacked

ARRAYS_MIN: Final = 512
"""With fewer groups than that objects of Python are as fast, and numpy need not be loaded."""
_PADDING_MAX: Final = 4
"""Keys become arrays where the longest one takes at most so many times the bytes of the mean."""
_SCALARS, _CONSTANT, _FLOATS = 0, 1, 6
_WIDTHS: Final = ((2, "b", 1 << 7), (3, "h", 1 << 15), (4, "i", 1 << 31), (5, "q", 1 << 63))
_LIMIT: Final = _WIDTHS[-1][2]
_TYPES: Final = {code: letter for code, letter, _ in _WIDTHS} | {_FLOATS: "d"}
_ADDEND_MAX: Final = 1 << 62
"""Two whole numbers below that add up to one that an array holds."""


class ArrayKind(StrEnum):
    """What a column of states may be as an array, and how two of its numbers are merged.

    The first column ranks the groups: most and counts by what they are, whole numbers by how far they are from 0, and
    of least the smallest goes first. So the `rank` of a function that has arrays says the same.
    """

    COUNT = "count"
    """Whole numbers from 1 on, which are added."""
    WHOLE = "whole"
    """Whole numbers, which are added."""
    SCALE = "scale"
    """-1 throughout: the sums in the column before are of whole numbers."""
    LEAST = "least"
    MOST = "most"


@cache
def _numpy() -> Any:
    try:
        import numpy
    except ImportError:
        return None
    return numpy


# --- one column -----------------------------------------------------------------------------------------------


def write_column(values: Sequence[object]) -> bytes:
    """The values of a column as one byte string."""
    kinds = set(map(type, values))
    if kinds == {int}:
        whole = cast(Sequence[int], values)
        low, high = min(whole), max(whole)
        if low == high and -_LIMIT <= low < _LIMIT:
            return bytes((_CONSTANT,)) + packed([low])
        for code, letter, limit in _WIDTHS:
            if -limit <= low and high < limit:
                return bytes((code,)) + _little(array(letter, whole)).tobytes()
    if kinds == {float}:
        return bytes((_FLOATS,)) + _little(array("d", cast(Sequence[float], values))).tobytes()
    return bytes((_SCALARS,)) + packed(values)


def _little(numbers: array[Any]) -> array[Any]:
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers


def read_column(column: bytes, count: int) -> Sequence[object]:
    """Inverse of `write_column`. Raises ``ValueError`` unless there are ``count`` values."""
    code, body = _split(column)
    if code == _SCALARS:
        return unpacked(body, count)
    if code == _CONSTANT:
        return [_constant(body)] * count
    numbers = array(_TYPES[code])
    _check_length(body, count * numbers.itemsize)
    numbers.frombytes(body)
    return _little(numbers).tolist()


def _split(column: bytes) -> tuple[int, memoryview]:
    if not column or column[0] not in (_SCALARS, _CONSTANT, *_TYPES):
        raise ValueError("a column that is written in an unknown way")
    return column[0], memoryview(column)[1:]


def _constant(body: memoryview) -> int:
    (value,) = unpacked(body, 1)
    if type(value) is not int:
        raise ValueError("a column that repeats what is no whole number")
    return value


def _check_length(body: memoryview, expected: int) -> None:
    if len(body) != expected:
        raise ValueError(f"a column of {len(body)} bytes, expected {expected}")


def write_keys(keys: Sequence[str]) -> tuple[bytes, bytes]:
    """The lengths of keys in ascending order, and the keys."""
    texts = [key.encode() for key in keys]
    return write_column(list(map(len, texts))), b"".join(texts)


def read_keys(lengths: bytes, keys: bytes, count: int) -> list[str]:
    """Inverse of `write_keys`. Raises ``ValueError`` for keys that are too long, not in order, or no UTF-8."""
    sizes = read_column(lengths, count)
    if set(map(type, sizes)) - {int}:
        raise ValueError("the length of a key is no whole number")
    known = cast(Sequence[int], sizes)
    if min(known, default=0) < 0 or max(known, default=0) > TEXT_BYTES_MAX:
        raise ValueError(f"a key has more than {TEXT_BYTES_MAX} bytes")
    if sum(known) != len(keys):
        raise ValueError("the lengths of the keys are not those of the keys")
    parts = [keys[start:end] for start, end in pairwise(accumulate(known, initial=0))]
    if any(a >= b for a, b in pairwise(parts)):
        raise ValueError("keys are not ascending")
    try:
        return [part.decode() for part in parts]
    except UnicodeDecodeError as error:
        raise ValueError("a key is no UTF-8") from error


def parts_of(keys: Iterable[str], parts: int) -> Iterator[int]:
    """In which of so many parts the group of each key is: the same on every node."""
    return (number % parts for number in map(crc32, map(str.encode, keys)))


# --- many columns as arrays -----------------------------------------------------------------------------------


class GroupColumns:
    """Keys in ascending order, and the columns of their states. Never changed once made.

    ``keys``: an array of byte strings, padded with zeros. ``columns``: arrays of int64 or float64 of the same length.
    """

    __slots__ = ("columns", "keys")

    def __init__(self, keys: Any, columns: list[Any]) -> None:
        self.keys, self.columns = keys, columns

    def __len__(self) -> int:
        return len(self.keys)

    @staticmethod
    def of(
        kinds: Sequence[ArrayKind], keys: Sequence[str], lists: Sequence[Sequence[object]], least: int | None = None
    ) -> GroupColumns | None:
        """From keys in ascending order; ``None`` where these values are not for arrays, or fewer than ``least``."""
        lengths, texts = write_keys(keys)
        return GroupColumns.read(kinds, len(keys), lengths, texts, list(map(write_column, lists)), least)

    @staticmethod
    def read(
        kinds: Sequence[ArrayKind],
        count: int,
        lengths: bytes,
        keys: bytes,
        columns: Sequence[bytes],
        least: int | None = None,
    ) -> GroupColumns | None:
        """From the wire; ``None`` where these values are not for arrays, or there is no numpy.

        Raises ``ValueError`` for what is no group of such a kind, as reading one by one does.
        """
        numpy = _numpy() if kinds and count >= (ARRAYS_MIN if least is None else least) else None
        if numpy is None:
            return None
        arrays = []
        for kind, column in zip(kinds, columns, strict=True):
            values = _array(numpy, column, count)
            if values is None or not _suits(numpy, kind, values):
                return None
            arrays.append(values + 0.0 if values.dtype.kind == "f" else values)  # -0.0 becomes 0.0
        padded = _padded_keys(numpy, _array(numpy, lengths, count), keys)
        return None if padded is None else GroupColumns(padded, arrays)

    def write(self) -> tuple[bytes, bytes, list[bytes]]:
        """Return lengths, keys and columns, as `read` takes them."""
        numpy, width = _numpy(), self.keys.dtype.itemsize
        cells = self.keys.view(numpy.uint8).reshape(len(self), width)
        used = cells != 0
        lengths = used.sum(axis=1)
        return _written(numpy, lengths), cells[used].tobytes(), [_written(numpy, each) for each in self.columns]

    def texts(self) -> list[str]:
        """Return the keys."""
        return [key.decode() for key in self.keys.tolist()]

    def lists(self) -> list[list[object]]:
        """Return the columns as lists of numbers."""
        return [each.tolist() for each in self.columns]

    def merge(self, kinds: Sequence[ArrayKind], other: GroupColumns) -> GroupColumns | None:
        """Both, with the states of the keys that they share merged; ``None`` where an array cannot hold the result."""
        numpy = _numpy()
        for kind, mine, yours in zip(kinds, self.columns, other.columns, strict=True):
            if mine.dtype != yours.dtype or (kind in _ADDED and not (_is_addend(mine) and _is_addend(yours))):
                return None
        pairs = list(zip(kinds, self.columns, other.columns, strict=True))
        if self.keys.dtype == other.keys.dtype and numpy.array_equal(self.keys, other.keys):
            return GroupColumns(self.keys, [_merger(numpy, kind)(mine, yours) for kind, mine, yours in pairs])
        keys = numpy.concatenate((self.keys, other.keys))
        sortable = _sortable(numpy, keys)
        order = numpy.argsort(sortable, kind="stable")  # of two sorted runs: linear
        ordered = sortable[order]
        is_first = numpy.ones(len(keys), dtype=bool)
        is_first[1:] = ordered[1:] != ordered[:-1]
        starts = numpy.flatnonzero(is_first)
        columns = [
            _merger(numpy, kind).reduceat(numpy.concatenate((mine, yours))[order], starts)
            for kind, mine, yours in pairs
        ]
        return GroupColumns(keys[order[starts]], columns)

    def split(self, parts: int) -> list[GroupColumns]:
        """The groups of each part, see `parts_of`."""
        numpy = _numpy()
        hashes = numpy.fromiter(map(crc32, self.keys.tolist()), dtype=numpy.int64, count=len(self))
        return [self._where(hashes % parts == part) for part in range(parts)]

    def _where(self, mask: Any) -> GroupColumns:
        return GroupColumns(self.keys[mask], [column[mask] for column in self.columns])

    def ranked(self, kinds: Sequence[ArrayKind], count: int | None) -> tuple[list[str], list[list[object]]]:
        """The first ``count`` groups (default all) by rank and then key: their keys, and their columns."""
        order = self._order(kinds, len(self) if count is None else count)
        keys = [key.decode() for key in self.keys[order].tolist()]
        return keys, [column[order].tolist() for column in self.columns]

    def _order(self, kinds: Sequence[ArrayKind], count: int) -> Any:
        """The places of the first ``count`` groups by rank, and of equal ones by key."""
        numpy = _numpy()
        falling = _falling(numpy, kinds[0], self.columns[0])
        if not 0 < count < len(falling):
            return numpy.argsort(falling, kind="stable")[:count]
        last = numpy.partition(falling, count - 1)[count - 1]
        places = numpy.flatnonzero(falling <= last)  # these, and all that are equal to the last one: by key
        return places[numpy.argsort(falling[places], kind="stable")[:count]]

    def fold(self, kinds: Sequence[ArrayKind], most: int) -> tuple[GroupColumns, list[int | float]]:
        """The ``most`` groups that come first by rank and then key, and the `totals` of the others, at least one."""
        numpy = _numpy()
        folded = numpy.ones(len(self), dtype=bool)
        folded[self._order(kinds, most)] = False
        return self._where(~folded), self._where(folded).totals(kinds)

    def totals(self, kinds: Sequence[ArrayKind]) -> list[int | float]:
        """The columns of the state of all groups together."""
        return [_total(kind, column) for kind, column in zip(kinds, self.columns, strict=True)]


_ADDED: Final = frozenset({ArrayKind.COUNT, ArrayKind.WHOLE})


def _sortable(numpy: Any, keys: Any) -> Any:
    """Keys of up to 8 bytes as whole numbers, which are sorted as the keys are, and four times as fast."""
    count, width = len(keys), keys.dtype.itemsize
    if width > 8:
        return keys
    cells = numpy.zeros((count, 8), dtype=numpy.uint8)
    cells[:, :width] = keys.view(numpy.uint8).reshape(count, width)
    return cells.view(">u8").ravel().astype(numpy.uint64)


def _array(numpy: Any, column: bytes, count: int) -> Any:
    """A column as an array; ``None`` where it is not written as one."""
    code, body = _split(column)
    if code == _SCALARS:
        return None
    if code == _CONSTANT:
        value = _constant(body)
        return None if not -_LIMIT <= value < _LIMIT else numpy.broadcast_to(numpy.int64(value), (count,))
    kind = numpy.dtype(_TYPES[code]).newbyteorder("<")
    _check_length(body, count * kind.itemsize)
    return numpy.frombuffer(body, dtype=kind).astype(numpy.float64 if code == _FLOATS else numpy.int64)


def _suits(numpy: Any, kind: ArrayKind, values: Any) -> bool:
    """Whether the values are for an array of that kind. What is wrong with others is said where they are read alone."""
    if values.dtype.kind == "f":
        return kind in (ArrayKind.LEAST, ArrayKind.MOST) and bool(numpy.isfinite(values).all())
    if kind is ArrayKind.COUNT:
        return bool(values.min() >= 1)
    return kind is not ArrayKind.SCALE or bool((values == -1).all())


def _padded_keys(numpy: Any, lengths: Any, keys: bytes) -> Any:
    """Keys as an array of padded byte strings; ``None`` where that would take too much room, or they are not right."""
    if lengths is None or lengths.dtype.kind == "f" or not keys or b"\0" in keys:
        return None
    count, width = len(lengths), int(lengths.max())
    if lengths.min() < 0 or width > TEXT_BYTES_MAX or int(lengths.sum()) != len(keys):
        return None
    if count * width > _PADDING_MAX * len(keys):
        return None
    cells = numpy.frombuffer(keys, dtype=numpy.uint8)
    if not keys.isascii():
        begins = cells[(numpy.cumsum(lengths) - lengths)[lengths > 0]]
        if not _is_text(keys) or bool(((begins & 0xC0) == 0x80).any()):
            return None  # no UTF-8, or a key begins in the middle of a character
    if count * width == len(keys):
        padded = cells.reshape(count, width)
    else:
        padded = numpy.zeros((count, width), dtype=numpy.uint8)
        padded[numpy.arange(width) < lengths[:, None]] = cells
    texts = padded.view(f"S{width}").ravel()
    return texts if bool((texts[:-1] < texts[1:]).all()) else None


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _written(numpy: Any, values: Any) -> bytes:
    if values.dtype.kind == "f":
        return bytes((_FLOATS,)) + bytes(values.astype("<f8").tobytes())
    low, high = int(values.min()), int(values.max())
    if low == high:
        return bytes((_CONSTANT,)) + packed([low])
    code, letter = next((code, letter) for code, letter, limit in _WIDTHS if -limit <= low and high < limit)
    kind = numpy.dtype(letter).newbyteorder("<")
    return bytes((code,)) + bytes(values.astype(kind).tobytes())


def _is_addend(values: Any) -> bool:
    return bool(values.min() > -_ADDEND_MAX and values.max() < _ADDEND_MAX)


def _merger(numpy: Any, kind: ArrayKind) -> Any:
    return numpy.add if kind in _ADDED else numpy.maximum if kind is ArrayKind.MOST else numpy.minimum


def _falling(numpy: Any, kind: ArrayKind, values: Any) -> Any:
    """Numbers that are the smaller the higher a group's rank. No negation may overflow, as that of -2**63 does."""
    if kind is ArrayKind.WHOLE:
        return numpy.where(values < 0, values, -values)
    if kind is ArrayKind.LEAST:
        return values
    return ~values if values.dtype.kind == "i" else -values


def _total(kind: ArrayKind, values: Any) -> int | float:
    if kind not in _ADDED:
        return cast(int | float, (values.max() if kind is ArrayKind.MOST else values.min()).item())
    is_safe = max(-int(values.min()), int(values.max())) * len(values) < _LIMIT
    return int(values.sum()) if is_safe else sum(values.tolist())
