"""Invariant of the wire format: a message is decoded as it was encoded."""

from __future__ import annotations

from collections import Counter
from typing import Final

from peerd.errors import ProtocolError
from peerd.messages import Message, decode_body, encode_body
from peerd.sim.simulation import Checker, Place, Simulation

ALL_OF_A_TYPE: Final = 64
"""The first so many messages of each type are all checked, then every ``every``-th."""


class WireHygiene(Checker):
    """Decoding what was encoded gives the message back. Looks at the first of each type, then at a sample."""

    name = "wire hygiene"
    number = 30
    holds_always = True

    def __init__(self, every: int = 16) -> None:
        self._every = every
        self._counts: Counter[type[Message]] = Counter()

    def sent(self, simulation: Simulation, place: Place, message: Message) -> str | None:
        """Encode, decode, compare."""
        kind = type(message)
        self._counts[kind] += 1
        if self._counts[kind] > ALL_OF_A_TYPE and self._counts[kind] % self._every:
            return None
        try:
            decoded = decode_body(kind, encode_body(message))
        except ProtocolError as error:
            return f"{message} cannot be decoded: {error}"
        return None if decoded == message else f"{message} arrives as {decoded}"
