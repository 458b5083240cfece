"""What applications put: the newest value of each name, for as long as they said that it holds. Pure."""

from __future__ import annotations

from typing import ClassVar, Final

from peerd.errors import ClientRefusal
from protocols.measurement.names import split_name
from protocols.measurement.sources.source import NAMES_MAX, PUSHED, MeasurementSource, refusal

TTL_S_MIN: Final = 1.0
TTL_S_MAX: Final = 86_400.0
"""Limits of how long an application may say that its value holds."""


class PushedSource(MeasurementSource):
    """The table. Until its time is over, a value is what this node measures; then its name has failed."""

    is_at_hand: ClassVar[bool] = True

    def __init__(self, period_s: float) -> None:
        super().__init__(PUSHED, period_s)
        self._values: dict[str, tuple[float, float]] = {}
        """Each value, and when it ends."""

    def put(self, name: str, value: float, ttl_s: float, now: float) -> None:
        """Take a value in place of the one before. Raises `ClientRefusal`."""
        try:
            split_name(name)
        except ValueError as error:
            raise ClientRefusal("invalid", str(error)) from error
        if refusal(name, value) or not TTL_S_MIN <= ttl_s <= TTL_S_MAX:
            expected = f"a finite number, for {TTL_S_MIN:g} to {TTL_S_MAX:g} seconds"
            raise ClientRefusal("invalid", f"{name}: expected {expected}, not {value} for {ttl_s}")
        if name not in self.read(now) and len(self._values) >= NAMES_MAX:
            raise ClientRefusal(
                "quota", f"applications put {NAMES_MAX} measurements here already, and that is the most"
            )
        self._values[name] = float(value), now + ttl_s

    def read(self, now: float) -> dict[str, float]:
        """All values that hold."""
        self._values = {name: each for name, each in self._values.items() if now < each[1]}
        return {name: value for name, (value, _) in self._values.items()}
