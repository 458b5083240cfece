"""What a source of measurements is, and what of its answer is believed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping
from sys import float_info
from typing import ClassVar, Final

from peerd.frozen import Frozen
from protocols.measurement.names import split_name

NAMES_MAX: Final = 256
"""Measurements of one source."""
MACHINE: Final = "system"
"""The source of what the operating system tells."""
NETWORK: Final = "network"
"""The source of what the overlay has measured."""
PUSHED: Final = "pushed"
"""The source of what applications put."""
SMOOTHED: Final = "smoothed"
"""Who derives means and deviations. It is no source, but owns their names."""
_OF_MACHINE: Final = (
    "cpu load1 memory memory_available_bytes disk disk_free_bytes disk_read_bytes_per_second processes uptime_seconds "
    "disk_write_bytes_per_second network_receive_bytes_per_second network_transmit_bytes_per_second"
)
RESERVED: Final[Mapping[str, str]] = {
    **dict.fromkeys(_OF_MACHINE.split(), MACHINE),
    "rtt": NETWORK,
    "bandwidth": NETWORK,
}
"""Names, without a peer's, that mean the same on every node, and the only source that may tell each."""


class MeasurementSource(ABC):
    """Something that knows values of this node, and is asked for all of them every ``period_s`` seconds.

    It is never read twice at a time, so it may remember what it has read. In a simulation it is a function of ``now``
    and of nothing else, with what a reading costs as ``cost_s`` of virtual time.
    """

    is_at_hand: ClassVar[bool] = False
    """It looks into this node's own memory: it is read at once, by the thread of the protocol, and not by a worker."""
    may_block: ClassVar[bool] = False
    """What it asks may never answer, such as a file of another machine. Of all these one at most is read at a time, so
    that they never hold more than one of the few workers."""
    cost_s: float = 0.0

    def __init__(self, name: str, period_s: float) -> None:
        self.name, self.period_s = name, period_s

    @abstractmethod
    def read(self, now: float) -> Mapping[str, float]:
        """Values by full names (`protocols.measurement.names`); it was asked at ``now``. Whatever it raises, it failed.

        A name that was there before, and is not any more, has failed too.
        """


class SourceReading(Frozen):
    """An answer of a source: what is believed, and how much was refused, by reason."""

    values: Mapping[str, float]
    refused: Mapping[str, int]


def gather(source: MeasurementSource, now: float) -> SourceReading:
    """Read a source, and check every name and value. Runs in a worker. Raises what the source raises."""
    values: dict[str, float] = {}
    refused: Counter[str] = Counter()
    for name, value in source.read(now).items():
        if reason := refusal(name, value) or ("too_many" if len(values) >= NAMES_MAX else ""):
            refused[reason] += 1
        else:
            values[name] = float(value)
    return SourceReading(values, refused)


def refusal(name: object, value: object) -> str:
    """Why this is no measurement, as a label of a counter; empty when it is one."""
    try:
        split_name(name if isinstance(name, str) else "")
    except ValueError:
        return "bad_name"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return "no_number"
    return "" if -float_info.max <= value <= float_info.max else "not_finite"  # whole numbers may be larger
