"""Functions whose states are small however many records there are: quantiles and the number of distinct values.

Sketches come from peers, so their bytes are checked, and they merge exactly in any order:

- Quantiles count numbers in buckets whose bounds grow by a constant factor, so each bucket stands for its numbers with
  a relative error of at most `RELATIVE_ERROR` (DDSketch: Masson, Rim, Lee, VLDB 2019; without its collapsing of
  buckets, which depends on the order of merges: the range of a double bounds how many there are).
- Distinct values are counted by HyperLogLog (Flajolet et al. 2007) with 2**12 registers; two of them are merged by
  the larger value of each register. The estimator is Ertl's (arXiv 1702.01284), which needs no tables of corrections.
"""

from __future__ import annotations

import math
import sys
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from itertools import accumulate, pairwise
from typing import Any, Final, cast

from protocols.aggregation.figures import Estimate
from protocols.aggregation.functions import Input, Tallying
from protocols.aggregation.numbers import COUNT_MAX, Number, add_counts
from protocols.aggregation.scalars import packed, unpacked_all

RELATIVE_ERROR: Final = 0.01
"""By how much a quantile may differ from the true one, as a part of it."""
_GROWTH: Final = math.log((1 + RELATIVE_ERROR) / (1 - RELATIVE_ERROR))
_MIDDLE: Final = 40_000
"""The key of the bucket that ends at 1. Keys of negative numbers are negative, and 0 has the key 0."""
_KEY_MIN: Final = _MIDDLE + math.ceil(math.log(5e-324) / _GROWTH)
_KEY_MAX: Final = _MIDDLE + math.ceil(1024 * math.log(2) / _GROWTH)

Buckets = tuple[int, ...]
"""The keys of buckets, ascending, each followed by its count."""


class Quantile(Tallying[Buckets]):
    """The quantile ``q`` of the numbers, within `RELATIVE_ERROR`; ``q`` 0.5 is the median, 0 and 1 are the extremes."""

    name, is_packed, expands, zero = "quantile", True, True, ()

    def __init__(self, *arguments: Number) -> None:
        if len(arguments) != 1 or not 0 <= arguments[0] <= 1:
            raise ValueError("takes one number from 0 to 1 behind the field, as in quantile(x, 0.9)")
        self.q = arguments[0]

    def merge(self, a: Buckets | dict[int, int], b: Buckets | dict[int, int]) -> Buckets:
        merged = dict(_by_key(a))
        for key, count in _by_key(b).items():
            merged[key] = merged.get(key, 0) + count
        add_counts(sum(merged.values()), 0)
        return self.end(merged)

    def lower(self, state: Buckets) -> Estimate | None:
        if not state:
            return None
        below = list(accumulate(state[1::2]))
        place = math.floor(self.q * (below[-1] - 1))  # of the sorted numbers, from 0
        return estimate_of(state[2 * bisect_right(below, place)])

    def rank(self, state: Buckets | dict[int, int]) -> Number:
        return sum(_by_key(state).values())

    def to_columns(self, state: Buckets) -> tuple[object, ...]:
        return (packed(state),)

    def from_columns(self, values: Sequence[object]) -> Buckets:
        (blob,) = values
        numbers = unpacked_all(blob, 2 * (2 * (_KEY_MAX - _KEY_MIN + 1) + 1))
        if len(numbers) % 2 or set(map(type, numbers)) - {int}:
            raise ValueError("not buckets")
        state = cast(Buckets, tuple(numbers))
        keys, counts = state[::2], state[1::2]
        if any(a >= b for a, b in pairwise(keys)) or any(key and not _KEY_MIN <= abs(key) <= _KEY_MAX for key in keys):
            raise ValueError("keys of buckets that are not ascending, or beyond those of numbers")
        if min(counts, default=1) < 1 or sum(counts) > COUNT_MAX:
            raise ValueError("not counts of buckets")
        return state

    def may_hold(self, state: Buckets, records: int) -> bool:
        return sum(state[1::2]) == records

    def begin(self) -> dict[int, int]:
        return {}

    def add(self, tally: dict[int, int], value: Number) -> dict[int, int]:
        key = bucket_key(value)
        tally[key] = tally.get(key, 0) + 1
        return tally

    def end(self, tally: dict[int, int]) -> Buckets:
        return tuple(number for bucket in sorted(tally.items()) for number in bucket)


def _by_key(state: Buckets | dict[int, int]) -> Mapping[int, int]:
    return state if isinstance(state, dict) else dict(zip(state[::2], state[1::2], strict=True))


def bucket_key(value: Number) -> int:
    """The key of a number's bucket."""
    if not value:
        return 0
    key = _MIDDLE + math.ceil(math.log(abs(value)) / _GROWTH)
    return key if value > 0 else -key


def estimate_of(key: int) -> Estimate:
    """The bounds of a bucket, and the number in it from which none of its numbers differs by more than the error."""
    if not key:
        return Estimate(0, 0, 0)
    low, high = _bound(abs(key) - 1), _bound(abs(key))
    middle = high * (1 - RELATIVE_ERROR)  # 2 high / (growth + 1)
    return Estimate(middle, low, high) if key > 0 else Estimate(-middle, -high, -low)


def _bound(key: int) -> float:
    try:
        return math.exp((key - _MIDDLE) * _GROWTH)
    except OverflowError:
        return sys.float_info.max


class Median(Quantile):
    """The median: the quantile 0.5."""

    name = "median"

    def __init__(self, *arguments: Number) -> None:
        if arguments:
            raise ValueError("takes no number behind the field")
        super().__init__(0.5)


REGISTERS: Final = 1 << 12
_REST_BITS: Final = 64 - 12
_RANK_MAX: Final = _REST_BITS + 1
DISTINCT_ERROR: Final = 1.04 / math.sqrt(REGISTERS)
"""The standard error of a count of distinct values, as a part of it."""
_SPARSE_BYTES: Final = 3
"""A register that is set, in a sparse state: its number in two bytes, its value in one."""
_SPARSE_MAX: Final = (REGISTERS - 1) // _SPARSE_BYTES
"""Most registers in a sparse state; with more of them all registers take fewer bytes."""


class Distinct(Tallying[bytes]):
    """How many different texts there are; ``low`` to ``high`` are two standard errors (95 of 100 times).

    A state is the set registers with their numbers, ascending, or, if that is not shorter, all registers.
    """

    name, takes, is_packed, zero = "distinct", Input.TEXT, True, b""

    def merge(self, a: Any, b: Any) -> bytes:
        left, right = _registers(a), _registers(b)
        if not isinstance(left, dict) and not isinstance(right, dict):
            return bytes(map(max, left, right))
        if isinstance(left, dict):
            left, right = right, left
        merged = left.copy() if isinstance(left, dict) else bytearray(left)
        for number, value in cast(dict[int, int], right).items():
            _raise(merged, number, value)
        return self.end(merged)

    def lower(self, state: bytes) -> Estimate:
        count = distinct_estimate(state)
        low, high = count / (1 + 2 * DISTINCT_ERROR), count / (1 - 2 * DISTINCT_ERROR)
        return Estimate(round(count), math.floor(low), math.ceil(high))

    def rank(self, state: Any) -> Number:
        return distinct_estimate(state)

    def to_columns(self, state: bytes) -> tuple[object, ...]:
        return (state,)

    def from_columns(self, values: Sequence[object]) -> bytes:
        (state,) = values
        if type(state) is not bytes:
            raise ValueError("expected bytes")
        if len(state) == REGISTERS:
            if max(state) > _RANK_MAX or REGISTERS - state.count(0) <= _SPARSE_MAX:
                raise ValueError("registers beyond what a hash gives, or so few that they are written sparsely")
            return state
        if len(state) % _SPARSE_BYTES or len(state) > _SPARSE_BYTES * _SPARSE_MAX:
            raise ValueError("not registers")
        found = _registers(state)
        ranks = state[2::_SPARSE_BYTES]
        if state and (max(found) >= REGISTERS or not min(ranks) or max(ranks) > _RANK_MAX or self.end(found) != state):
            raise ValueError("registers that are not ascending, or beyond what a hash gives")
        return state

    def may_hold(self, state: bytes, records: int) -> bool:
        return (state == b"") == (records == 0)

    def begin(self) -> dict[int, int]:
        return {}

    def add(self, tally: Any, value: str) -> Any:
        hashed = int.from_bytes(blake2b(value.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "big")
        rest = hashed & ((1 << _REST_BITS) - 1)
        _raise(tally, hashed >> _REST_BITS, _RANK_MAX - rest.bit_length())
        if isinstance(tally, dict) and len(tally) > _SPARSE_MAX:
            return bytearray(_dense(tally))
        return tally

    def end(self, tally: Any) -> bytes:
        if not isinstance(tally, dict):
            return bytes(tally)
        if len(tally) > _SPARSE_MAX:
            return _dense(tally)
        return b"".join(bytes((number >> 8, number & 255, tally[number])) for number in sorted(tally))


def _raise(registers: dict[int, int] | bytearray, number: int, value: int) -> None:
    present = registers.get(number, 0) if isinstance(registers, dict) else registers[number]
    if value > present:
        registers[number] = value


def _dense(registers: dict[int, int]) -> bytes:
    return bytes(registers.get(number, 0) for number in range(REGISTERS))


def _registers(state: Any) -> Any:
    """A state or tally as a dict of the registers that are set, or as all of them."""
    if isinstance(state, dict) or len(state) == REGISTERS:
        return state
    return {a << 8 | b: rank for a, b, rank in zip(state[::3], state[1::3], state[2::3], strict=True)}


def distinct_estimate(state: Any) -> float:
    """The estimate of a HyperLogLog's registers (Ertl, algorithm 6)."""
    registers = _registers(state)
    ranks = list(registers.values()) if isinstance(registers, dict) else registers
    counts = [0] * (_RANK_MAX + 1)
    for rank in ranks:
        counts[rank] += 1
    counts[0] += REGISTERS - len(ranks)
    total = REGISTERS * _tau(1 - counts[_RANK_MAX] / REGISTERS)
    for rank in range(_REST_BITS, 0, -1):
        total = 0.5 * (total + counts[rank])
    total += REGISTERS * _sigma(counts[0] / REGISTERS)
    return REGISTERS * REGISTERS / (2 * math.log(2) * total)


def _sigma(x: float) -> float:
    if x == 1.0:
        return math.inf
    term, power, last = 1.0, x, -1.0
    while power != last:
        x *= x
        last = power
        power += x * term
        term += term
    return power


def _tau(x: float) -> float:
    if x in (0.0, 1.0):
        return 0.0
    term, total, last = 1.0, 1 - x, -1.0
    while total != last:
        x = math.sqrt(x)
        last = total
        term *= 0.5
        total -= (1 - x) ** 2 * term
    return total / 3
