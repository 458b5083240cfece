"""What Linux tells of the machine: processor, memory, disks, network, processes, load. Read from /proc by a worker.

Where a file is missing (another system, a container that hides it), only the measurements in it are missing. Memory and
load are the machine's, not those of a container's limits; network counters are those of the daemon's own namespace.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from math import inf
from pathlib import Path
from typing import Final

from peerd.frozen import Frozen
from protocols.measurement.sources.source import MACHINE, MeasurementSource

SECTOR_BYTES: Final = 512
"""Of /proc/diskstats, whatever the device's own are."""
_WHOLE_DISK: Final = re.compile(r"(?:[hsv]d|xvd)[a-z]+|nvme\d+n\d+|mmcblk\d+")
"""Partitions, and what is made of disks (LVM, RAID, loop devices), would count the same bytes again."""
_DOUBLE: Final = re.compile(r"(?:lo|veth|docker|br|virbr|cni|flannel|cali|tap|tun|wg|ifb|dummy|bond|team).*|.*\..*")
"""Network devices without a wire of their own: their bytes are counted at another one, or never leave the machine."""


class Counters(Frozen):
    """Numbers that only grow, by measurement and device, at a moment of the machine's own clock."""

    at_s: float
    values: Mapping[tuple[str, str], int]

    def rates_since(self, before: Counters | None) -> dict[str, float]:
        """How much more a second of each measurement, over all devices that were there before.

        Nothing of a measurement of which a counter went back: it has begun anew, or has wrapped around.
        """
        if before is None or self.at_s <= before.at_s:
            return {}
        rates: dict[str, float] = {}
        for (name, device), value in self.values.items():
            if (earlier := before.values.get((name, device))) is not None:
                rate = (value - earlier) / (self.at_s - before.at_s) if value >= earlier else -inf
                rates[name] = rates.get(name, 0.0) + rate
        return {name: rate for name, rate in rates.items() if rate >= 0}


Counted = dict[tuple[str, str], int]


def processor(stat: str) -> Counted:
    """Ticks of all cores. Waiting for a disk is no work; what guests use is in ``user`` already."""
    ticks = [int(each) for each in stat.splitlines()[0].split()[1:9]]
    idle = ticks[3] + ticks[4]
    return {("cpu_busy", ""): sum(ticks) - idle, ("cpu_idle", ""): idle}


def traffic(net_dev: str) -> Counted:
    """Bytes of each network device. Large numbers may follow the device's colon without a space."""
    rows = (line.replace(":", " ").split() for line in net_dev.splitlines()[2:])
    wired = [row for row in rows if _DOUBLE.fullmatch(row[0]) is None]
    received = {("network_receive_bytes_per_second", row[0]): int(row[1]) for row in wired}
    return received | {("network_transmit_bytes_per_second", row[0]): int(row[9]) for row in wired}


def transfers(diskstats: str) -> Counted:
    """Bytes of each disk."""
    disks = [row for row in map(str.split, diskstats.splitlines()) if _WHOLE_DISK.fullmatch(row[2])]
    read = {("disk_read_bytes_per_second", row[2]): int(row[5]) * SECTOR_BYTES for row in disks}
    return read | {("disk_write_bytes_per_second", row[2]): int(row[9]) * SECTOR_BYTES for row in disks}


def memory(meminfo: str) -> dict[str, float]:
    """Available is what programs can still get, with the caches that would be given up for them."""
    lines = (line.split() for line in meminfo.splitlines())
    bytes_of = {words[0]: int(words[1]) * 1024 for words in lines if len(words) == 3}
    available, total = bytes_of["MemAvailable:"], bytes_of["MemTotal:"]
    return {"memory": 1 - available / total, "memory_available_bytes": available}


_STATES: Final[tuple[tuple[str, Callable[[str], dict[str, float]]], ...]] = (
    ("meminfo", memory),
    ("loadavg", lambda text: {"load1": float(text.split()[0])}),
    ("uptime", lambda text: {"uptime_seconds": float(text.split()[0])}),
)
_COUNTERS: Final = (("stat", processor), ("net/dev", traffic), ("diskstats", transfers))
_MISSING: Final = (OSError, ValueError, LookupError, ArithmeticError)
"""What reading and parsing raise where a file is missing, or is not what Linux has there."""


class MachineSource(MeasurementSource):
    """``disk``: a path on the file system whose space is measured."""

    def __init__(self, period_s: float, disk: Path, proc: Path = Path("/proc")) -> None:
        super().__init__(MACHINE, period_s)
        self._disk, self._proc = disk, proc
        self._before: Counters | None = None

    def read(self, now: float) -> dict[str, float]:
        """All that can be read now; rates from the second reading on."""
        values: dict[str, float] = {}
        counted: Counted = {}
        for file, parse in _STATES:
            with suppress(*_MISSING):
                values |= parse(self._text(file))
        for file, count in _COUNTERS:
            with suppress(*_MISSING):
                counted |= count(self._text(file))
        with suppress(*_MISSING):
            _, used, free = shutil.disk_usage(self._disk)  # as `df` has it: what is kept for root is neither
            values |= {"disk": used / (used + free), "disk_free_bytes": free}
        with suppress(*_MISSING):
            values["processes"] = sum(entry.name.isdigit() for entry in self._proc.iterdir())
        # The machine's own clock, read beside the counters: this may run well after ``now``, when a worker was free.
        if (at_s := values.get("uptime_seconds")) is not None:
            counters = Counters(at_s, counted)
            rates, self._before = counters.rates_since(self._before), counters
            idle, busy = rates.pop("cpu_idle", None), rates.pop("cpu_busy", None)
            if idle is not None and busy is not None and idle + busy > 0:
                rates["cpu"] = busy / (idle + busy)
            values |= rates
        return values

    def _text(self, file: str) -> str:
        return (self._proc / file).read_text("utf-8", "replace")
