"""One piece of a subscription on its way to its leaf, and there: Li 2008, section 3.3. Pure.

A piece is installed by a probe that goes to a cell of a random level. The leaf that it ends at says so
(`Established`), and from then on it is dealt with directly: it is renewed three times a lease, and ended. Once a lease
the renewal is a probe again, so that a node that only claims to be the leaf does not keep the piece to itself.

Each method returns what is to be done, in order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Final, TypeAlias

from msgspec.structs import replace

from peerd.api import Rng
from peerd.frozen import Frozen
from peerd.messages import PeerRef
from protocols.pubsub.messages import PieceStatus, SubObject
from protocols.pubsub.tree.cells import LEVEL_LIMIT, Cell, cell_at, holds_point, level, lies_within

CAREFUL_AFTER: Final = 2
"""Probes without an answer after which they go down cell by cell, and trust no table."""
RETRY_S_MAX: Final = 30.0
"""Longest pause between two tries."""
RENEWALS_PER_LEASE: Final = 3
KEPT_WAIT_S: Final = 5.0
"""A leaf that has established the piece is asked again after so long if it does not say that it is replicated."""
REFUSALS_MAX: Final = 3
"""A leaf's refusal is believed when so many tries, at cells of different levels, were refused."""
END_TRIES_MAX: Final = 8
"""After so many tries to end a piece it is left to its lease."""
JITTER: Final = 0.2
NEVER: Final = float("inf")


class SendProbe(Frozen):
    """Route a `ProbeSub` to the key of this cell. ``only_leaf``: the piece is tried at other cells, too."""

    cell: Cell
    is_careful: bool
    only_leaf: bool = False


class SendInsert(Frozen):
    """Send an `InsertSub` to the node that was the root of the leaf."""

    owner: PeerRef
    cell: Cell


class SendEnd(Frozen):
    """Send an `EndSub` to it."""

    owner: PeerRef
    cell: Cell


class Find(Frozen):
    """Look up the root of this cell, in order to end the piece there."""

    cell: Cell


class News(Enum):
    """What there is to tell about a piece, and about a subscription when all of its pieces have come so far."""

    RECEIVED = "received"
    """Its leaf has it: events match it from now on."""
    REPLICATED = "replicated"
    """So have the other nodes of the leaf's replica set."""
    REFUSED = "refused"
    """It will not be kept, and the detail says why."""
    FOUND_AGAIN = "found_again"
    """It had been lost with all its copies, and is installed again: what was published in the gap has not arrived."""
    ENDED = "ended"
    """It is over, and need not be known any more."""


class InstallReport(Frozen):
    """Something to tell. ``gap_s``: with FOUND_AGAIN, for how long it may have been gone at most."""

    news: News
    detail: str = ""
    gap_s: float = 0.0


InstallAction: TypeAlias = SendProbe | SendInsert | SendEnd | Find | InstallReport


class HoldingLeaf(Frozen):
    """The leaf that holds the piece, as far as this node knows."""

    cell: Cell
    owner: PeerRef


class Stage(Enum):
    """How far a piece has come."""

    WANTED = 0
    """No leaf has it yet."""
    HELD = 1
    REPLICATED = 2
    ENDING = 3
    OVER = 4
    """It has ended, or was refused."""


class InstallWait(Enum):
    """What the piece waits for, when anything."""

    NOTHING = 0
    """It is renewed when it is due."""
    ESTABLISHED = 1
    """A probe is under way."""
    ANSWER = 2
    """A request to the leaf is under way."""
    KEPT = 3
    """The leaf makes copies."""


class Installation:
    """The state of one piece. ``due_at``: when `due` has to be called, `NEVER` for never."""

    def __init__(
        self,
        sub: SubObject,
        *,
        lease_s: float,
        retry_s: float,
        rng: Rng,
        next_levels: Callable[[int], Sequence[int]],
        next_version: Callable[[], int],
    ) -> None:
        self.sub = sub
        self.stage = Stage.WANTED
        self.place: HoldingLeaf | None = None
        self.due_at = NEVER
        self.tries = 0
        """Probes or requests since anything was last heard from a leaf."""
        self.probes = 0
        """Probes sent so far."""
        self._lease_s, self._retry_s = lease_s, retry_s
        self._rng, self._next_levels, self._next_version = rng, next_levels, next_version
        self._waiting = InstallWait.NOTHING
        self._hint: Cell | None = None
        self._found_cell: Cell | None = None
        """The cell whose root was looked up last, in order to end the piece there."""
        self._renewals = 0
        self._refusals = 0
        self._refused_try = 0
        """The try that was refused last: each counts once, whoever refuses it how often."""
        self._unkept = 0
        self._heard_at = 0.0
        self._has_arrived = False
        """Whether a leaf was heard to have it, so that this has been told."""

    @property
    def is_installed(self) -> bool:
        """Whether a leaf holds it, as far as this node knows."""
        return self.stage in (Stage.HELD, Stage.REPLICATED)

    @property
    def is_asking(self) -> bool:
        """Whether a request to the leaf is under way, whose end decides what is done next."""
        return self._waiting is InstallWait.ANSWER

    @property
    def is_over(self) -> bool:
        """Whether nothing will ever be done for it again."""
        return self.stage is Stage.OVER

    # What this node wants

    def begin(self, now: float) -> list[InstallAction]:
        """Look for its leaf."""
        return self._probe(now)

    def end(self, now: float) -> list[InstallAction]:
        """It is not wanted any more. Where no leaf has told of it yet, the one that does will hear that."""
        if self.is_over or self.stage is Stage.ENDING:
            return []
        if self.place is None:
            return self._over()
        self.stage, self.tries = Stage.ENDING, 0
        return self._end(now, self.place.owner, self.place.cell)

    def due(self, now: float) -> list[InstallAction]:
        """Do what is due: try again, or renew."""
        if self.stage is Stage.ENDING:
            return self._end_again(now)
        if self.stage is Stage.OVER:
            return []
        if self._waiting is InstallWait.KEPT and self.place is not None and self.tries < CAREFUL_AFTER:
            return self._insert(now, self.place)
        if self._waiting is not InstallWait.NOTHING or self.place is None:
            return self._probe(now)
        self.sub = replace(self.sub, version=self._next_version())
        self._renewals += 1
        self.tries = 0
        if self._renewals % RENEWALS_PER_LEASE == 0:
            return self._probe(now)
        return self._insert(now, self.place)

    # What others say

    def arrived(self, version: int, cell: Cell) -> list[InstallAction]:
        """A leaf lets it be known that it has the piece, by a message that may be of anybody who has seen the probe.

        So it is told, and nothing else changes: `established` says where the piece is, and is waited for as before.
        """
        if self.stage is not Stage.WANTED or version != self.sub.version or not self._lies_in(cell):
            return []
        return self._received()

    def established(
        self, now: float, owner: PeerRef, cell: Cell, version: int, is_new: bool
    ) -> tuple[bool, list[InstallAction]]:
        """Answer whether the piece is wanted there. The owner is who says it, on its own link.

        A leaf that was split off has what its parent had: perhaps an older version, which lapses as it would have done
        there. So that does not answer the probe that renews it.
        """
        if self.stage in (Stage.ENDING, Stage.OVER) or not self._lies_in(cell):
            return False, []
        place = self.place
        was_installed = self.is_installed
        is_answer = self._waiting is InstallWait.ESTABLISHED and version == self.sub.version
        if not is_answer and place is not None:
            if lies_within(cell, place.cell):  # the leaf was split or moved, or has another root now
                self.place = HoldingLeaf(cell, owner)
                self._heard_at = now
            return True, []
        self.place = HoldingLeaf(cell, owner)
        gap = self._gap(now) if was_installed and is_new and not self._is_below(cell, place) else []
        self._heard(now, is_replicated=self.stage is Stage.REPLICATED and not is_new)
        return True, gap if was_installed else self._received()

    def kept(
        self, now: float, source: PeerRef, version: int, status: int, detail: str, cell: Cell | None = None
    ) -> list[InstallAction]:
        """The leaf says how it went; only from whom the piece is at, unless it is at none.

        A leaf that has had many probes asks for the piece itself, over this node's own link (ELSEWHERE, with its cell).
        """
        if self.stage in (Stage.ENDING, Stage.OVER) or version > self.sub.version:
            return []
        if (
            status == PieceStatus.ELSEWHERE
            and self._waiting is InstallWait.ESTABLISHED
            and cell
            and self._lies_in(cell)
        ):
            self.place = HoldingLeaf(cell, source)
            return self._insert(now, self.place)
        if self.place is not None and source.id != self.place.owner.id:
            return []
        if status in (PieceStatus.QUOTA, PieceStatus.REFUSED):
            return self._refused(now, PieceStatus(status), detail)
        if not self.is_installed:
            return []
        if status == PieceStatus.REPLICATED:
            return self._replicated(now)
        return self._look_elsewhere(now) if status in (PieceStatus.ELSEWHERE, PieceStatus.GONE) else []

    def insert_answered(self, now: float, status: int, cell: Cell, is_new: bool, detail: str) -> list[InstallAction]:
        """The leaf has answered `SendInsert`."""
        if self._waiting is not InstallWait.ANSWER or self.stage in (Stage.ENDING, Stage.OVER):
            return []
        if status in (PieceStatus.QUOTA, PieceStatus.REFUSED):
            return self._refused(now, PieceStatus(status), detail)
        if status not in (PieceStatus.KEPT, PieceStatus.REPLICATED):
            self._forget_offer()
            return self._look_elsewhere(now, cell)
        gap = self._gap(now) if is_new and self.is_installed else []
        self._heard(now, is_replicated=self.stage is Stage.REPLICATED and not is_new)
        gap += self._received()
        return gap + (self._replicated(now) if status == PieceStatus.REPLICATED else [])

    def insert_silent(self, now: float) -> list[InstallAction]:
        """The leaf does not answer: whoever is the root of its cell now knows the piece."""
        if self._waiting is not InstallWait.ANSWER or self.stage in (Stage.ENDING, Stage.OVER):
            return []
        cell = None if self.place is None else self.place.cell
        self._forget_offer()
        return self._look_elsewhere(now, cell)

    def end_answered(self, now: float, status: int, cell: Cell) -> list[InstallAction]:
        """The leaf has answered `SendEnd`."""
        if self.stage is not Stage.ENDING:
            return []
        if status != PieceStatus.ELSEWHERE:
            return self._over()
        if cell == self._found_cell and level(cell) < LEVEL_LIMIT:
            # Its root itself says that it is no leaf: it was split, and the half that the point lies in is.
            cell = cell_at(self.sub.low, self.sub.high, level(cell) + 1)
        return self._find(now, cell if self._lies_in(cell) else None)

    def end_silent(self, now: float) -> list[InstallAction]:
        """The leaf does not answer; the root of its cell is looked for when the next try is due."""
        return []

    def found(self, now: float, cell: Cell, owner: PeerRef) -> list[InstallAction]:
        """The answer to `Find`."""
        return self._end(now, owner, cell) if self.stage is Stage.ENDING else []

    # Inside

    def _forget_offer(self) -> None:
        """A leaf that has asked for the piece does not take it."""
        if self.stage is Stage.WANTED:
            self.place = None

    def _received(self) -> list[InstallAction]:
        """Tell that events come, once."""
        if self._has_arrived:
            return []
        self._has_arrived = True
        return [InstallReport(News.RECEIVED)]

    def _lies_in(self, cell: Cell) -> bool:
        return holds_point(cell, self.sub.low, self.sub.high)

    def _is_below(self, cell: Cell, place: HoldingLeaf | None) -> bool:
        """Whether a cell is a part of the leaf that was known: then it was split, and nothing was lost."""
        return place is not None and cell != place.cell and lies_within(cell, place.cell)

    def _gap(self, now: float) -> list[InstallAction]:
        return [InstallReport(News.FOUND_AGAIN, gap_s=now - self._heard_at)]

    def _heard(self, now: float, *, is_replicated: bool) -> None:
        """A leaf has it: all that was tried is forgotten."""
        self._heard_at = now
        self._refusals = self._refused_try = 0
        self._hint = None
        # What was published before is asked for only once: afterwards it would come again with every move.
        self.sub = replace(self.sub, since_ms=0)
        if is_replicated:
            self._rest(now)
            return
        if self._waiting is not InstallWait.ANSWER:
            self.tries = 0
        self.stage = Stage.HELD if self.stage is Stage.WANTED else self.stage
        self._wait(now, InstallWait.KEPT, min(KEPT_WAIT_S * 2**self._unkept, self._lease_s / RENEWALS_PER_LEASE))
        self._unkept = min(self._unkept + 1, 16)

    def _replicated(self, now: float) -> list[InstallAction]:
        was_replicated = self.stage is Stage.REPLICATED
        self.stage, self._heard_at = Stage.REPLICATED, now
        if self._waiting is not InstallWait.NOTHING:
            self._rest(now)
        return [] if was_replicated else [InstallReport(News.REPLICATED)]

    def _rest(self, now: float) -> None:
        """Wait for the next renewal."""
        self.tries = self._unkept = 0
        self._wait(now, InstallWait.NOTHING, self._lease_s / RENEWALS_PER_LEASE)

    def _wait(self, now: float, waiting: InstallWait, delay_s: float) -> None:
        self._waiting = waiting
        self.due_at = now + delay_s * self._rng.uniform(1 - JITTER, 1)

    def _retry_after_s(self) -> float:
        longest_s = min(RETRY_S_MAX, self._lease_s / RENEWALS_PER_LEASE)  # what was lost is back within that time
        return min(longest_s, self._retry_s * (1 << min(max(0, self.tries - 1), 16)))

    def _probe(self, now: float) -> list[InstallAction]:
        self.tries += 1
        self.probes += 1
        cell, self._hint = self._hint, None
        cells = [cell] if cell is not None else self._guesses()
        self._wait(now, InstallWait.ESTABLISHED, self._retry_after_s())
        is_careful = self.tries > CAREFUL_AFTER
        return [SendProbe(cell, is_careful, only_leaf=number > 0) for number, cell in enumerate(cells)]

    def _guesses(self) -> list[Cell]:
        levels = self._next_levels(self.tries if self.stage is Stage.WANTED else 2)
        return [cell_at(self.sub.low, self.sub.high, min(each, LEVEL_LIMIT)) for each in levels]

    def _insert(self, now: float, place: HoldingLeaf) -> list[InstallAction]:
        self.tries += 1
        self._wait(now, InstallWait.ANSWER, NEVER)  # the request has a time limit of its own
        return [SendInsert(place.owner, place.cell)]

    def _look_elsewhere(self, now: float, cell: Cell | None = None) -> list[InstallAction]:
        """Probe: at once, with the cell that was named if it can be right, and later when that has not helped."""
        self._hint = cell if cell is not None and self._lies_in(cell) else None
        if self.tries <= CAREFUL_AFTER:
            return self._probe(now)
        self._wait(now, InstallWait.ESTABLISHED, self._retry_after_s())
        return []

    def _refused(self, now: float, status: PieceStatus, detail: str) -> list[InstallAction]:
        if self._refused_try == self.tries:
            return []
        self._refused_try = self.tries
        self._refusals += 1
        if self.stage is Stage.WANTED and self._refusals >= REFUSALS_MAX:
            self.stage, self.due_at = Stage.OVER, NEVER
            return [InstallReport(News.REFUSED, detail or status.name.lower())]
        # A subscription that its clients use already is not given up: there may be room again.
        self._wait(now, InstallWait.ESTABLISHED, self._retry_after_s())
        return []

    # Its end

    def _end(self, now: float, owner: PeerRef, cell: Cell) -> list[InstallAction]:
        self.place = HoldingLeaf(cell, owner)
        self.tries += 1
        self._wait(now, InstallWait.ANSWER, self._retry_after_s())
        return [SendEnd(owner, cell)]

    def _end_again(self, now: float) -> list[InstallAction]:
        return self._find(now, None)

    def _find(self, now: float, cell: Cell | None) -> list[InstallAction]:
        if self.tries >= END_TRIES_MAX or self.place is None:
            return self._over()
        self.tries += cell is None  # a lookup that is not answered counts, or it would be tried for ever
        self._wait(now, InstallWait.ANSWER, self._retry_after_s())
        self._found_cell = self.place.cell if cell is None else cell
        return [Find(self._found_cell)]

    def _over(self) -> list[InstallAction]:
        self.stage, self.due_at = Stage.OVER, NEVER
        return [InstallReport(News.ENDED)]
