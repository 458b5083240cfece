"""Budgets for probing peers that only others have named, and a record of informants that named false ones. Pure.

A peer that is named and unknown costs a probe. One member that invents neighbours must neither use up all probes, which
would hide deaths and keep newcomers out, nor go on for ever: so hearsay has its own share of the probes, each informant
has a share of that, and a name behind which nobody answered costs its informant a part of its share for a while.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from peerd.ids import NodeId

HEARSAY_PROBES_MAX: Final = 64
"""Probes under way for hearsay of all informants together; the others are for what this node finds itself."""
INFORMANT_PROBES_MAX: Final = 16
"""The same for one informant: as many as a leaf set has members."""
FALSE_NAMES_MAX: Final = 48
"""If an informant has named so many peers that did not answer, its names are not probed until some are forgiven. After
a mass failure honest members name the dead for a while, but hardly more than two leaf sets of unknown ones."""
FORGIVEN_AFTER_S: Final = 30.0
"""One false name is forgiven each time that so many seconds have passed."""
PASSED_ON_WEIGHT: Final = 0.25
"""A false name that the informant passed on as unverified counts so much; one that it called its member counts 1."""
INFORMANTS_MAX: Final = 256
"""Informants with a record; that of the one that was added first goes when there are too many."""


@dataclass(slots=True)
class _Record:
    under_way: int = 0
    false_names: float = 0.0
    counted_at: float = 0.0
    is_doubted: bool = False


class Hearsay:
    """The informants' budgets of probes. Times are the host's monotonic seconds."""

    def __init__(self) -> None:
        self._records: dict[NodeId, _Record] = {}
        self._under_way = 0

    def may_ask(self, informant: NodeId, now: float) -> bool:
        """Whether a name from this informant may be probed now."""
        if self._under_way >= HEARSAY_PROBES_MAX:
            return False
        record = self._records.get(informant)
        if record is None:
            return True
        self._forgive(record, now)
        return record.under_way < INFORMANT_PROBES_MAX and record.under_way + 1 <= FALSE_NAMES_MAX - record.false_names

    def is_doubted(self, informant: NodeId) -> bool:
        """Whether its names have proved false too often."""
        record = self._records.get(informant)
        return record is not None and record.is_doubted

    def began(self, informant: NodeId, now: float) -> None:
        """A probe of a name from this informant is under way."""
        record = self._records.get(informant)
        if record is None:
            if len(self._records) >= INFORMANTS_MAX:
                self._under_way -= self._records.pop(next(iter(self._records))).under_way
            record = self._records[informant] = _Record(counted_at=now)
        record.under_way += 1
        self._under_way += 1

    def ended(self, informant: NodeId) -> None:
        """That probe is over."""
        record = self._records.get(informant)
        if record is not None and record.under_way:
            record.under_way -= 1
            self._under_way -= 1

    def proved_false(self, informant: NodeId, weight: float, now: float) -> bool:
        """Nobody answered behind a name from this informant; returns whether it is doubted from now on."""
        record = self._records.get(informant)
        if record is None:
            return False
        self._forgive(record, now)
        record.false_names = min(FALSE_NAMES_MAX, record.false_names + weight)
        if record.is_doubted or record.false_names <= FALSE_NAMES_MAX - 1:
            return False
        record.is_doubted = True
        return True

    def _forgive(self, record: _Record, now: float) -> None:
        record.false_names = max(0.0, record.false_names - (now - record.counted_at) / FORGIVEN_AFTER_S)
        record.counted_at = now
        if record.false_names <= FALSE_NAMES_MAX / 2:
            record.is_doubted = False
