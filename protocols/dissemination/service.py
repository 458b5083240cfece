"""What clients are told that cannot have what they ask for."""

from __future__ import annotations

from peerd.errors import ClientRefusal


class StreamRefused(ClientRefusal):
    """The plugin has not done what a client asked of a stream."""
