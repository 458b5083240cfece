"""Whether the contributors that a result names take part, in a round so large that nobody enrols: a sample is asked.

The result is here before the sample is drawn, so nobody who made it knows who will be asked. Only a node itself can say
that it takes part, because it signs it. Whoever is silent has died since, or was invented: nobody can tell which. So a
few silent ones make an answer partial, and only more than can have died make the result one that is not taken.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from peerd.api import Host
from peerd.frozen import Frozen
from peerd.ids import NodeId
from protocols.aggregation.messages import ConfirmContribution
from protocols.aggregation.statements import confirm_statement

SAMPLE_MAX: Final = 688
"""Contributors that are asked about one result. If more than 1 % of them are invented, one such result in a thousand
has none of them in the sample: 0.99^688 < 0.001."""
SILENT_SHARE_MAX: Final = 1 / 6
"""A result is not taken when a larger share of those asked is silent. Of a true one after every tenth node has died
that is so once in ten million times; of one with 22 % invented contributors 999 times in 1,000."""
ASKED_TIMES_MAX: Final = 2
PAUSE_S: Final = 2.0
"""How long those asked have to answer before they are asked again; twice as long the second time."""
CHECK_S_MAX: Final = PAUSE_S * (2**ASKED_TIMES_MAX - 1)
"""The longest that a check takes."""
CHECK_TIMER: Final = "check_due"


class Checked(Frozen):
    """How many contributors were asked whether they take part, and how many said so."""

    asked: int = 0
    confirmed: int = 0
    had_time: bool = True
    """Whether they had time to answer, before the round's end cut it short."""

    @property
    def is_refuted(self) -> bool:
        """Whether more are silent than can have died."""
        return self.had_time and self.asked - self.confirmed > self.asked * SILENT_SHARE_MAX


NOBODY_ASKED: Final = Checked()


def unchecked(contributors: int) -> Checked:
    """What is said of a result for which there was no time: as many would have been asked, and nobody was."""
    return Checked(min(SAMPLE_MAX, contributors), 0, had_time=False)


class SpotCheck:
    """Asks about one result after the other. What a node has said in this round, it need not say again."""

    def __init__(self, host: Host, round_id: bytes) -> None:
        self._host = host
        self._round_id = round_id
        self._confirmed: set[NodeId] = set()
        self._asked: tuple[NodeId, ...] = ()
        self._silent: set[NodeId] = set()
        self._given_up: set[NodeId] = set()
        """Who has been silent for as long as it had: it is not asked again."""
        self._times = 0
        self._done: Callable[[Checked], None] | None = None

    def begin(self, contributors: Sequence[NodeId], done: Callable[[Checked], None]) -> None:
        """Ask some of them at random; ``done`` is called once, never before this returns."""
        others = [node for node in contributors if node != self._host.id]
        self._asked = tuple(self._host.rng.sample(others, min(SAMPLE_MAX, len(others))))
        self._silent = {node for node in self._asked if node not in self._confirmed}
        self._times, self._done = 0, done
        self._ask()

    def expects(self, node: NodeId) -> bool:
        """Whether this node was asked and has not answered yet."""
        return node in self._silent

    def confirm(self, node: NodeId) -> None:
        """A node says that it takes part; its proof has been checked."""
        if node in self._silent:
            self._silent.remove(node)
            self._confirmed.add(node)
            if self._silent <= self._given_up:
                self._finish(had_time=True)

    def due(self) -> None:
        """Ask again those that have not answered, unless that was done."""
        if self._times < ASKED_TIMES_MAX and not self._silent <= self._given_up:
            self._ask()
        else:
            self._given_up |= self._silent
            self._finish(had_time=True)

    def stop(self) -> None:
        """The round ends: make do with what was said so far."""
        self._finish(had_time=self._times >= ASKED_TIMES_MAX)

    def _ask(self) -> None:
        host = self._host
        waited_for = self._silent - self._given_up
        for node in self._asked:
            if node in waited_for:
                host.route(
                    node, ConfirmContribution(self._round_id, host.sign(confirm_statement(self._round_id, node)))
                )
        delay_s = PAUSE_S * 2**self._times if waited_for else 0.0
        self._times += 1
        host.set_timer(CHECK_TIMER, delay_s, self._round_id)

    def _finish(self, *, had_time: bool) -> None:
        if self._done is None:
            return
        self._host.cancel_timer(CHECK_TIMER, self._round_id)
        done, self._done = self._done, None
        outcome = Checked(len(self._asked), len(self._asked) - len(self._silent), had_time)
        self._asked, self._silent = (), set()
        done(outcome)
