"""What systems are compared by: messages that are published, subscribers of whom each wants some, and who gets what."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

OnFound = Callable[[int, int], None]
"""Told of a message that a subscriber wants: the subscriber's number, and when it was published."""
OnReceived = Callable[[], None]
"""Told of each message that comes to a subscriber, wanted or not."""
Wants = Callable[[bytes], int | None]
"""When a message was published, monotonic nanoseconds, if a subscriber wants it: what a program does with a payload
that a broker has brought."""


class Work(Protocol):
    """The same in every run, for all systems. Messages are numbered, and begin again where there are no more."""

    def due(self, subscribers: int, first: int, count: int) -> list[int]:
        """How many of these messages each of the first so many subscribers has to get."""

    def to_json(self) -> dict[str, Any]:
        """For the processes of publisher and subscribers."""

    def payload(self, number: int) -> bytes:
        """A message, as brokers get it, with the time of now in it."""

    def wants(self, subscriber: int) -> Wants:
        """What a subscriber does with payloads."""
