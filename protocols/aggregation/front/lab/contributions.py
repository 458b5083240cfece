"""The aggregates of systems that stand beside San Fermin: of one size, whoever is in them, and they say who."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from peerd.api import Host, SizedBlob, SwapCallbacks, Value
from peerd.ids import ID_BYTES, NodeId, id_from_bytes, id_to_bytes
from protocols.aggregation.exchange import MERGE_COST_S_PER_BYTE


def value_of(contributors: Iterable[NodeId], value_bytes: int) -> SizedBlob:
    """The aggregate of these nodes' data."""
    return SizedBlob(b"".join(map(id_to_bytes, sorted(contributors))), value_bytes)


def contributors_of(value: Value) -> set[NodeId]:
    """Whose data an aggregate has."""
    data = bytes(value.payload if isinstance(value, SizedBlob) else value)
    return {id_from_bytes(data[start : start + ID_BYTES]) for start in range(0, len(data), ID_BYTES)}


def merge(host: Host, value_bytes: int, done: Callable[[], None]) -> None:
    """Call back when two aggregates are merged, which takes as long as with San Fermin."""

    def failed(error: BaseException) -> None:
        raise error

    cost_s = MERGE_COST_S_PER_BYTE * 2 * value_bytes
    host.offload(bool, done=lambda result: done(), failed=failed, cost_s=cost_s)


def ignoring() -> SwapCallbacks:
    """For who gets nothing."""
    return SwapCallbacks(lambda value: None, lambda reason: None)
