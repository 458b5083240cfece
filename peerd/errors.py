"""Whose fault it is, and what the process says when it ends.

`PeerMisbehaved` is theirs (counted, connection closed), `Bug` is ours (crashes the simulator; the daemon logs it
and restarts the plugin), `Unavailable` is nobody's (try again), `ConfigError` is the operator's.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import IntEnum


class ExitCode(IntEnum):
    """Process exit codes; the operator's scripts branch on them."""

    OK = 0
    FAILURE = 1
    USAGE = 2
    PARTIAL = 3
    UNAVAILABLE = 69
    DUPLICATE_IDENTITY = 77
    CONFIG = 78


class PeerdError(Exception):
    """Base of every error that peerd raises on purpose."""


class PeerMisbehaved(PeerdError):
    """A peer sent what no correct peer sends. It costs the peer its connection, and us a counter."""


class ProtocolError(PeerMisbehaved):
    """Bytes that are not a valid frame or message. ``reason`` is a stable label for the counter."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason = reason
        self.detail = detail


class HandshakeRefused(PeerMisbehaved):
    """The handshake ended without a link. ``reason`` is stable; the text names both sides."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail


class Bug(PeerdError, AssertionError):
    """An invariant of ours does not hold."""


class Unavailable(PeerdError):
    """What was asked for cannot be done now; trying again later may work."""


class ClientRefusal(Exception):
    """What a client of a plugin asked for was not done, and trying the same again does not help; the text says why.

    ``kind``: "unknown" (there is no such thing), "conflict" (somebody else came first), "invalid", "quota".
    """

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind


class ConfigError(PeerdError):
    """The configuration is wrong: where, which key, and what was expected."""

    def __init__(self, message: str, *, file: str | None = None, key: str | None = None) -> None:
        where = ": ".join(part for part in (file, key) if part)
        super().__init__(f"{where}: {message}" if where else message)
        self.file = file
        self.key = key
        self.message = message


def closest(name: str, known: Iterable[str], *, likeness: float = 0.6) -> str | None:
    """Return the known name that is most like ``name``; ``None`` when none is. A likeness of 1 is the same name."""
    import difflib  # here, because most daemons never hear a wrong name

    return next(iter(difflib.get_close_matches(name, list(known), 1, likeness)), None)


def nearest(name: str, known: Sequence[str]) -> str:
    """What to add to an error about an unknown name: ``, did you mean "..."?``, or all that are known."""
    close = closest(name, known)
    return f', did you mean "{close}"?' if close is not None else f"; known: {', '.join(sorted(known)) or 'none'}"
