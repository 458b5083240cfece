"""A walk over the ring: ask everybody that anybody lists what it sees. For people; no table is changed by it.

It starts from the peers that this node knows. Each answer names the leaf set of one node, 8 successors and 8
predecessors, whom the walk asks in their turn; so it finds every node that a chain of leaf sets leads to, both of two
rings when this node knows somebody in each, and it ends.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from peerd.frozen import Frozen
from peerd.ids import NodeId
from peerd.messages import Message, PeerRef
from peerd.overlay.messages import ViewReply, ViewRequest
from peerd.overlay.ports import OverlayHost

IN_FLIGHT_MAX: Final = 16
NODES_MAX: Final = 4096
"""A walk stops looking for more, and says so: a liar could name nodes without end."""
ANSWER_TIMEOUT_S: Final = 5.0
"""How long to wait for an answer: more than dialling takes on a busy machine."""
ATTEMPTS: Final = 2


class NodeView(Frozen):
    """One node that answered, and what it sees."""

    peer: PeerRef
    says: ViewReply


class WalkProgress(Frozen):
    """How far a walk is, in nodes."""

    answered: int
    silent: int
    found: int
    """Answered, silent, or yet to be asked."""


@dataclass(slots=True)
class Survey:
    """What a walk found."""

    own: NodeId
    views: dict[NodeId, NodeView] = field(default_factory=dict)
    silent: dict[NodeId, PeerRef] = field(default_factory=dict)
    is_truncated: bool = False
    """The walk found more than `NODES_MAX` nodes, and looked at no more."""
    duration_s: float = 0.0


class Walk:
    """One walk. ``finished`` is called once, never before the constructor's caller has got on; `cancel` prevents it.

    ``is_known``: peers whose link is worth keeping; others that were dialled for one question are hung up on.
    """

    def __init__(
        self,
        host: OverlayHost,
        own_view: ViewReply,
        start: Iterable[PeerRef],
        is_known: Callable[[NodeId], bool],
        finished: Callable[[Survey], None],
        progress: Callable[[WalkProgress], None] = lambda progress: None,
    ) -> None:
        self._host = host
        self._is_known = is_known
        self._finished = finished
        self._progress = progress
        self._begun_at = host.now()
        self._waiting: deque[PeerRef] = deque()
        self._seen: set[NodeId] = {host.id}
        self._in_flight = 0
        self.is_over = False
        """It has finished, or was cancelled."""
        self.survey = Survey(host.id, {host.id: NodeView(host.peer, own_view)})
        self._find((*start, *own_view.smaller, *own_view.larger))

    def begin(self) -> bool:
        """Ask the first ones. Returns whether there is anybody to ask: otherwise `survey` is all there is."""
        self._ask_more()
        return self._in_flight > 0

    def cancel(self) -> None:
        """Ask nobody else; answers under way are ignored."""
        self.is_over = True
        self._waiting.clear()

    def _find(self, peers: Iterable[PeerRef]) -> None:
        for peer in peers:
            if peer.id in self._seen:
                continue
            if len(self._seen) >= NODES_MAX:
                self.survey.is_truncated = True
                return
            self._seen.add(peer.id)
            self._waiting.append(peer)

    def _ask_more(self) -> None:
        while self._waiting and self._in_flight < IN_FLIGHT_MAX:
            self._in_flight += 1
            self._ask(self._waiting.popleft(), 1)

    def _ask(self, peer: PeerRef, attempt: int) -> None:
        was_linked = self._host.is_linked(peer)

        def answered(reply: Message, source: PeerRef) -> None:
            if not was_linked and not self._is_known(source.id):
                self._host.disconnect(source, "surveyed")
            if isinstance(reply, ViewReply):
                self._answered(source, reply)
            else:
                self._silent(peer)

        def timed_out() -> None:
            if attempt < ATTEMPTS and not self.is_over:
                self._ask(peer, attempt + 1)
            else:
                self._silent(peer)

        self._host.request(peer, ViewRequest(), ANSWER_TIMEOUT_S, answered, timed_out)

    def _answered(self, peer: PeerRef, reply: ViewReply) -> None:
        self.survey.views[peer.id] = NodeView(peer, reply)
        self._find((*reply.larger, *reply.smaller))
        self._one_done()

    def _silent(self, peer: PeerRef) -> None:
        self.survey.silent[peer.id] = peer
        self._one_done()

    def _one_done(self) -> None:
        self._in_flight -= 1
        if self.is_over:
            return
        self._ask_more()
        survey = self.survey
        self._progress(WalkProgress(len(survey.views), len(survey.silent), len(self._seen)))
        if not self._in_flight:
            self.is_over = True
            survey.duration_s = self._host.now() - self._begun_at
            self._finished(survey)
