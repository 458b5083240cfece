"""What a daemon says when it refuses, as a `Problem`, whoever it was that answered."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from peerd.client.transport import TransportFailed
from peerd.models.admin import PROBLEM_TYPE, Problem

NO_ROUTE: Final = {404: "Not Found", 405: "Method Not Allowed"}
"""How a daemon answers what it has no route for; when it does not find what was asked for, it says what that is."""


def problem_of(status: int, reason: str, content_type: str, content: bytes, has_none: str) -> Problem:
    """The problem that an answer is. ``has_none``: the sentence for a route that the daemon does not have."""
    if content_type.startswith(PROBLEM_TYPE):
        problem = Problem.model_validate_json(content)
    else:
        detail = content[:200].decode("utf-8", "replace").strip() or reason
        problem = Problem(title=reason, status=status, detail=detail)
    if problem.detail != NO_ROUTE.get(status):
        return problem
    why = "it is older than this command, runs without that protocol, or this is not the operators' address"
    return problem.model_copy(update={"detail": f"{has_none}: {why}"})


def why_unreachable(address: str, error: TransportFailed) -> str:
    """Say in one phrase why nobody answers, and what to do."""
    start = "start one with `peerd run`, or name its socket with --socket or PEERD_SOCKET"
    if address.startswith("http"):
        return f"{error}; {start}"
    try:
        Path(address).lstat()
    except FileNotFoundError:
        return f"there is no such socket; {start}"
    except PermissionError:
        return "you may not look there; join the socket's group, or become its owner"
    if not os.access(address, os.R_OK | os.W_OK):
        return "you may not open that socket; join its group, or become its owner"
    if error.is_refused:
        return f"nobody listens on that socket, so the daemon has died or is starting; {start}"
    return str(error)
