"""Measures what the process uses, and decides how many files it may open for what."""

from __future__ import annotations

import resource
import time
from collections.abc import Iterable
from typing import Final, NamedTuple

from peerd.limits import HTTP_CONNECTIONS_SPARE
from peerd.linking.settings import SOCKETS_UNBOUNDED
from peerd.system.proc import open_files, resident_bytes
from peerd.telemetry.schema import ResourceSnapshot

DESCRIPTORS_RESERVED: Final = 64
"""Descriptors kept for logs, event files, the admin socket, spilled values and dials: peers cannot use them up."""
HTTP_SHARE: Final = 16
"""An HTTP listener's requests get at most one in so many descriptors."""


def resource_snapshot(links: int, loop_lag_s: float) -> ResourceSnapshot:
    """Measure the process now."""
    return ResourceSnapshot(
        rss_bytes=rss_bytes(),
        cpu_s=time.process_time(),
        open_files=open_files() or 0,
        links=links,
        loop_lag_s=loop_lag_s,
    )


def rss_bytes() -> int:
    """Resident memory; where there is no /proc, its peak."""
    return resident_bytes() or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


class Room(NamedTuple):
    """How many links a process has room for, and how many connections from and to peers of every kind."""

    links: int
    sockets: int


def room_for(links_max: int, http_budgets: Iterable[int] = ()) -> Room:
    """Raise the soft limit of open files to the hard one; returns what there is room for, at most the links wanted.

    ``http_budgets``: requests wanted at each HTTP listener; their descriptors are not available for peers.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        soft = hard
    if soft == resource.RLIM_INFINITY:
        return Room(links_max, SOCKETS_UNBOUNDED)
    http = sum(http_requests_room(wanted) + HTTP_CONNECTIONS_SPARE for wanted in http_budgets)
    # Four fifths, less the reserve; half of it for bulk connections and handshakes under way.
    sockets = max(16, min(soft * 4 // 5, soft - http) - DESCRIPTORS_RESERVED)
    return Room(min(links_max, sockets // 2), sockets)


def http_requests_room(wanted: int) -> int:
    """Return how many of the requests that an HTTP listener wants may be under way: each takes a descriptor."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return wanted if soft == resource.RLIM_INFINITY else min(wanted, max(1, soft // HTTP_SHARE))
