"""No circles: before a node moves for good, the way up from its new parent is checked, up to the producer. Pure.

Each node on the way promises not to move itself for `PLEDGE_S`; so what was checked stays true until the mover has
moved. Where two movers meet, the one with the smaller id waits for the other: of all movers that would close a circle
together, the last one finds itself on its way up, and stays where it is. docs/protocols/dissemination-tree.md has the
proof.
"""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from peerd.messages import PeerRef
from protocols.dissemination.messages import DEPTH_MAX, Climb, Climbed
from protocols.dissemination.tree.state import MemberState

PLEDGE_S: Final = 2.0
"""A node that has let a check pass does not move for so long; a move that takes longer is given up."""
PARKED_MAX: Final = 64
"""Checks that wait for the end of this node's own move."""


class Climbing:
    """One node's part in the checks of one stream."""

    def __init__(self, state: MemberState) -> None:
        self._state = state
        self.is_moving = False
        """Whether a move of this node is under way: from its first message to its end."""
        self._pledged_until = 0.0
        self._parked: list[Climb] = []

    def may_move(self) -> bool:
        """Whether this node may begin to move."""
        return self._state.now >= self._pledged_until

    def moved(self, parent: PeerRef | None) -> None:
        """This node's move has ended, one way or the other: what waited for that goes on."""
        self.is_moving = False
        parked, self._parked = self._parked, []
        for climb in parked:
            self.check(climb, parent)

    def check(self, climb: Climb, parent: PeerRef | None) -> bool:
        """Let a check pass, hold it back, or answer it. ``parent``: the one that this node has for good.

        Returns whether it is that of this node's own move, which has come back to it.
        """
        state = self._state
        if climb.mover.id == state.me.id:
            return True
        if state.is_source:
            self._answer(climb, is_clear=True)
        elif self.is_moving and climb.mover.id < state.me.id:
            if len(self._parked) < PARKED_MAX:
                self._parked.append(climb)
            else:
                self._answer(climb, is_clear=False)
        elif parent is None or climb.hops >= DEPTH_MAX:
            self._answer(climb, is_clear=False)
        else:
            self._pledged_until = state.now + PLEDGE_S
            state.send(parent, replace(climb, hops=climb.hops + 1))
        return False

    def _answer(self, climb: Climb, *, is_clear: bool) -> None:
        self._state.send(climb.mover, Climbed(climb.stream, climb.attempt, is_clear, climb.hops))
