"""What the process uses, and how many files it may open."""

from __future__ import annotations

import os
import resource
import time
from pathlib import Path
from typing import Final, NamedTuple

from peerd.linking.settings import SOCKETS_UNBOUNDED
from peerd.telemetry.schema import ResourceSnapshot

DESCRIPTORS_RESERVED: Final = 64
"""For logs, event files, the admin socket, spilled values, dials: what peers open must not use them up."""
_PAGE_BYTES: Final = resource.getpagesize()


def resource_snapshot(links: int, loop_lag_s: float) -> ResourceSnapshot:
    """The process as it is now."""
    return ResourceSnapshot(
        rss_bytes=rss_bytes(),
        cpu_s=time.process_time(),
        open_files=len(os.listdir("/proc/self/fd")) if Path("/proc/self/fd").is_dir() else 0,
        links=links,
        loop_lag_s=loop_lag_s,
    )


def rss_bytes() -> int:
    """Resident memory; where there is no /proc, its peak."""
    try:
        return int(Path("/proc/self/statm").read_bytes().split()[1]) * _PAGE_BYTES
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


class Room(NamedTuple):
    """How many links a process has room for, and how many connections from and to peers of every kind."""

    links: int
    sockets: int


def room_for(links_max: int) -> Room:
    """Raise the soft limit of open files to the hard one; returns what then has room, at most the links wanted."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        soft = hard
    if soft == resource.RLIM_INFINITY:
        return Room(links_max, SOCKETS_UNBOUNDED)
    # Four fifths, less the reserve; half of it for bulk connections and handshakes under way.
    sockets = max(16, soft * 4 // 5 - DESCRIPTORS_RESERVED)
    return Room(min(links_max, sockets // 2), sockets)
