"""Processes of this machine, named so that a recycled process id is never mistaken for them. Linux only (/proc)."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from typing import Final

from pydantic import BaseModel, ConfigDict

from peerd.errors import Unavailable
from peerd.system import proc

_PR_SET_PDEATHSIG: Final = 1
_PR_SET_NAME: Final = 15


class ProcessRef(BaseModel):
    """One process, told apart from later ones with the same id by its start, in clock ticks since boot."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    pid: int
    start_ticks: int


def require_linux() -> None:
    """Raises `Unavailable` elsewhere: local clusters need /proc, pidfds and the parent-death signal."""
    if sys.platform != "linux":
        raise Unavailable(f"local clusters of daemons need Linux, this is {sys.platform}; run single daemons instead")


def process_ref(pid: int) -> ProcessRef | None:
    """The process that has this id now; ``None`` when there is none, or only a zombie."""
    started = proc.start_ticks(pid)
    return None if started is None else ProcessRef(pid=pid, start_ticks=started)


def is_alive(process: ProcessRef | None) -> bool:
    """Whether this process still runs, and its id does not belong to a newer one."""
    return process is not None and process_ref(process.pid) == process


def send_signal(process: ProcessRef | None, number: signal.Signals) -> bool:
    """Signal this process; ``False`` when it is gone. A pidfd makes sure that no other process gets the signal."""
    if process is None:
        return False
    try:
        descriptor = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return False
    try:
        if process_ref(process.pid) != process:
            return False
        signal.pidfd_send_signal(descriptor, number)
    except ProcessLookupError:
        return False
    finally:
        os.close(descriptor)
    return True


def resident_bytes(process: ProcessRef | None) -> int | None:
    """Resident memory, pages shared with other processes included; ``None`` when the process is gone."""
    if process is None or not is_alive(process):
        return None
    return proc.resident_bytes(process.pid)


def die_with_parent(parent_pid: int, number: signal.Signals) -> None:
    """Have the kernel send ``number`` to this process when the parent (thread) that forked it ends.

    Raises `Unavailable` when the parent is gone already, or the kernel refuses.
    """
    library = ctypes.CDLL(None, use_errno=True)
    if library.prctl(_PR_SET_PDEATHSIG, int(number), 0, 0, 0) != 0:
        raise Unavailable(f"prctl(PR_SET_PDEATHSIG): {os.strerror(ctypes.get_errno())}")
    if os.getppid() != parent_pid:  # the process ended before the call
        raise Unavailable("the process that started this one is gone")


def name_process(name: str) -> None:
    """Set the name that ``ps -o comm`` and ``top`` show for this process: at most 15 bytes."""
    ctypes.CDLL(None).prctl(_PR_SET_NAME, name.encode()[:15], 0, 0, 0)
