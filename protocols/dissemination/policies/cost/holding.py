"""Several trees that share nodes adapt at the same time, and none decides on what another is changing. Pure.

A node that has a tree's token has its children in that tree hold still before it decides (section 4.2): it asks each to
hold, and each answers that it does. Then it adapts, and passes the token on. A child that holds still does nothing in
any tree until the token of that one reaches it.

Nodes that wait for each other must not wait for ever, and the paper's rule is not enough for that. By algorithm 5 a
node that waits gives in to a larger number; theorem 2 looks only at nodes that wait for a *waiting* child. But with the
trees 1 -> (2, 3) and 2 -> (1, 3), node 1 gives in to 2 while 3 holds still for 1: 2 waits for 3, 3 for 1, and 1 for 2.
So a child that holds still for one parent, and is asked by another with a larger number, asks the first one to let it
go, which it does unless it has adapted already. Of all nodes that wait, the one with the largest number then gets all
that it waits for. `tests/unit/test_dissemination_holding.py` tries every order of messages.

One `HoldStill` serves all trees of a node.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

from peerd.ids import NodeId
from protocols.dissemination.policies.cost.messages import AskToHold, AskToYield, HoldsStill, Yields

QUEUE_MAX: Final = 1024
"""Tokens and requests that wait here; above it they are dropped, and their rounds end without this node."""

TreeName = NodeId
HoldMessage = AskToHold | HoldsStill | AskToYield | Yields


class HoldRequest(NamedTuple):
    """A parent asks a node to hold still in a tree, until its token comes. The larger parent goes first."""

    parent: NodeId
    tree: TreeName


class Actions(Protocol):
    """What a node does about it. None of these may call back."""

    def children(self, tree: TreeName) -> Sequence[NodeId]: ...
    def adapt(self, tree: TreeName) -> None:
        """Decide, and change the tree."""

    def pass_token(self, child: NodeId, tree: TreeName) -> None: ...
    def tell(self, node: NodeId, message: HoldMessage) -> None: ...


@dataclass(slots=True)
class _Round:
    """This node's turn in one tree: the children that have not said yet that they hold still."""

    tree: TreeName
    missing: set[NodeId] = field(default_factory=set)


class HoldStill:
    """One node's part in all its trees."""

    def __init__(self, me: NodeId, actions: Actions) -> None:
        self._me = me
        self._actions = actions
        self.held: HoldRequest | None = None
        """For whom this node holds still."""
        self.is_asked_back = False
        """That one has been asked to let this node go."""
        self.rounds: list[_Round] = []
        self.tokens: list[TreeName] = []
        self.requests: list[HoldRequest] = []

    # What comes

    def token(self, tree: TreeName) -> None:
        """The token of a tree has come: this node's turn."""
        if self.held is not None and tree == self.held.tree:
            self.held = None
        if len(self.tokens) < QUEUE_MAX and tree not in self.tokens:
            self.tokens.append(tree)
        self._go_on()

    def passed_over(self, tree: TreeName) -> None:
        """The token of a tree has come before this node may decide again: it takes no turn, and need not hold still."""
        if self.held is not None and tree == self.held.tree:
            self.held = None
        self._go_on()

    def requested(self, request: HoldRequest) -> None:
        """A parent asks this node to hold still."""
        if len(self.requests) < QUEUE_MAX and request not in self.requests:
            self.requests.append(request)
        self._go_on()

    def child_held(self, child: NodeId, tree: TreeName) -> None:
        """A child holds still; or it is gone, and nobody need wait for it."""
        for found in self.rounds:
            if found.tree == tree:
                found.missing.discard(child)
        self._go_on()

    def asked_to_yield(self, child: NodeId, tree: TreeName) -> None:
        """A child that holds still for this node is wanted by a node with a larger number."""
        for found in self.rounds:  # else this node has adapted, and the token is on its way to the child
            if found.tree == tree and child not in found.missing:
                found.missing.add(child)
                self._actions.tell(child, Yields(tree))

    def yielded(self, parent: NodeId, tree: TreeName) -> None:
        """The parent lets this node go, and goes on waiting for it."""
        if self.held == HoldRequest(parent, tree):
            self.requests.append(self.held)
            self.held = None
        self._go_on()

    def abandon(self, tree: TreeName) -> None:
        """A child does not answer: this node does not adapt the tree this time, and those below it have their turn."""
        found = next((each for each in self.rounds if each.tree == tree), None)
        if found is not None:
            self.rounds.remove(found)
            for child in self._actions.children(tree):
                self._actions.pass_token(child, tree)
            self._go_on()

    def expire(self) -> None:
        """The token that was to end this node's holding still does not come."""
        self.held = None
        self._go_on()

    # What follows

    def _go_on(self) -> None:
        """Do what can be done now: turns first, then tokens, then requests of parents with larger numbers."""
        while self.held is None:
            ready = next((found for found in self.rounds if not found.missing), None)
            if ready is not None:
                self._take_turn(ready)
            elif self.tokens:
                self._begin_round(self.tokens.pop(0))
            elif not self._give_in():
                return
        self._ask_back()

    def _take_turn(self, ready: _Round) -> None:
        self.rounds.remove(ready)
        self._actions.adapt(ready.tree)
        for child in self._actions.children(ready.tree):
            self._actions.pass_token(child, ready.tree)

    def _begin_round(self, tree: TreeName) -> None:
        if any(found.tree == tree for found in self.rounds):
            return
        children = self._actions.children(tree)
        self.rounds.append(_Round(tree, set(children)))
        for child in children:
            self._actions.tell(child, AskToHold(tree))

    def _give_in(self) -> bool:
        """Hold still for the largest parent that asks; whether there is one that this node gives in to."""
        first = max(self.requests, default=None)
        if first is None or (self.rounds and first.parent < self._me):
            return False
        self.requests.remove(first)
        self.held, self.is_asked_back = first, False
        self._actions.tell(first.parent, HoldsStill(first.tree))
        return True

    def _ask_back(self) -> None:
        """Somebody larger wants this node than the one that it holds still for."""
        if self.held is None or self.is_asked_back:
            return
        if any(request.parent > self.held.parent for request in self.requests):
            self.is_asked_back = True
            self._actions.tell(self.held.parent, AskToYield(self.held.tree))
