"""Which clients were answered from which values lately: they are told when a value is dropped (section 2.2). Pure."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from protocols.measurement.guarantee.effects import Notify
from protocols.measurement.guarantee.words import Measurement

ANSWERS_MAX: Final = 4096
"""Answers that are remembered, the newest ones. A client whose answer is not among them is not told."""


class Answered:
    """The newest answer of each client from each value."""

    def __init__(self, remembered_s: float) -> None:
        self._remembered_s = remembered_s
        self._answers: dict[Measurement, OrderedDict[str, float]] = {}
        self._order: OrderedDict[tuple[Measurement, str], None] = OrderedDict()

    def note(self, client: str, measurement: Measurement, now: float) -> None:
        """A client was answered."""
        self._answers.setdefault(measurement, OrderedDict())[client] = now
        self._order[measurement, client] = None
        self._order.move_to_end((measurement, client))
        if len(self._order) > ANSWERS_MAX:
            (oldest, whose), _ = self._order.popitem(last=False)
            self._forget(oldest, whose)

    def _forget(self, measurement: Measurement, client: str) -> None:
        answers = self._answers[measurement]
        del answers[client]
        if not answers:
            del self._answers[measurement]

    def dropped(self, measurement: Measurement, now: float) -> list[Notify]:
        """Nobody vouches for a value any more: who was answered from it lately is to know, once."""
        answers = self._answers.pop(measurement, OrderedDict[str, float]())
        for client in answers:
            del self._order[measurement, client]
        return [Notify(client, measurement) for client, at in answers.items() if now - at <= self._remembered_s]
