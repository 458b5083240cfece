"""What the process uses, and how many files it may open."""

from __future__ import annotations

import os
import resource
import time
from pathlib import Path
from typing import Final

from peerd.telemetry.schema import ResourceSnapshot

DESCRIPTORS_RESERVED: Final = 64
"""For logs, event files, the admin socket, spilled values: links must not use them up."""
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


def links_that_fit(links_max: int) -> int:
    """Raise the soft limit of open files to the hard one; returns how many links then have room, at most the wanted."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        soft = hard
    if soft == resource.RLIM_INFINITY:
        return links_max
    # Four fifths, less the reserve; half of it for bulk connections and handshakes under way.
    return max(8, min(links_max, (soft * 4 // 5 - DESCRIPTORS_RESERVED) // 2))
