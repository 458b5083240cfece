"""What clients are told when publish/subscribe has not done what they asked for."""

from __future__ import annotations

from peerd.errors import ClientRefusal


class NotDone(ClientRefusal):
    """Publish/subscribe has not done what a client asked for."""
