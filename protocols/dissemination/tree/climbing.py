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
from protocols.dissemination.tree import effects as do
from protocols.dissemination.tree.state import MemberState

PLEDGE_S: Final = 2.0
"""A node that has let a check pass does not move for so long; a move that takes longer is given up."""
PARKED_MAX: Final = 64
"""Checks that wait for the end of this node's own move."""


class Climbing:
    """One node's part in the checks of other nodes' moves in one stream."""

    def __init__(self, state: MemberState) -> None:
        self._state = state
        self.is_moving = False
        """Whether a move of this node is under way: from its first message to its end."""
        self._pledged_until = 0.0
        self._parked: list[Climb] = []

    def may_move(self, now: float) -> bool:
        """Whether this node may begin to move."""
        return now >= self._pledged_until

    def moved(self, parent: PeerRef | None, now: float) -> do.Effects:
        """This node's move has ended, one way or the other: what waited for that goes on."""
        self.is_moving = False
        parked, self._parked = self._parked, []
        return [effect for climb in parked for effect in self.check(climb, parent, now)]

    def check(self, climb: Climb, parent: PeerRef | None, now: float) -> do.Effects:
        """Let a check pass, hold it back, or answer it. ``parent``: the one that this node has for good."""
        state = self._state
        if state.is_source:
            return [self._answer(climb, is_clear=True)]
        if self.is_moving and climb.mover.id < state.me.id:
            if len(self._parked) >= PARKED_MAX:
                return [self._answer(climb, is_clear=False)]
            self._parked.append(climb)
            return []
        if parent is None or climb.hops >= DEPTH_MAX:
            return [self._answer(climb, is_clear=False)]
        self._pledged_until = now + PLEDGE_S
        return [do.Send(parent, replace(climb, hops=climb.hops + 1))]

    def _answer(self, climb: Climb, *, is_clear: bool) -> do.Send:
        return do.Send(climb.mover, Climbed(climb.stream, climb.attempt, is_clear, climb.hops))
