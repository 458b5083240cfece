"""The front of dissemination: its pieces for the HTTP API, client, command line, simulator and pipeline."""

from __future__ import annotations

from peerd.front import Front


class DisseminationFront(Front):
    """Each piece is in a module of its own beside this one."""

    name = "dissemination"
