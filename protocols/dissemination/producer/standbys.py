"""The producer's side of standing by: it chooses who is to take a stream over, and writes them into its record.

A standby stays one as long as it answers, so the order in the record changes only where a node has gone.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from peerd.errors import Unavailable
from peerd.ids import NodeId
from peerd.messages import PeerRef
from protocols.dissemination.asking import StreamQuestions, node_in_tree
from protocols.dissemination.messages import HandOverAnswer, HandOverState, HandOverStep
from protocols.dissemination.models import StreamTreeView
from protocols.dissemination.producer.part import ProducerPart
from protocols.dissemination.producer.role import UNASKED_S
from protocols.dissemination.service import StreamRefused
from protocols.dissemination.stream import SeedRef
from protocols.dissemination.stream_node import StreamNode
from protocols.dissemination.streams import Streams

STANDBYS: Final = 2
"""So many are chosen where the stream's creator has named nobody."""
ASK_STANDBYS_S: Final = 5.0
"""They are asked so often whether they have everything."""
FIND_NAMED_S: Final = 30.0
"""Where a named one is not known, the tree is looked through for it so often."""
REFUSED_S: Final = 60.0
"""Who has refused is not asked again for so long."""


@dataclass(slots=True)
class _Standby:
    peer: PeerRef
    heard_at: float
    is_ready: bool = False
    """It has everything that is remembered. Once it had, it is kept complete by the tree."""


@dataclass(slots=True)
class _Chosen:
    """The standbys of one stream, in their order."""

    node: StreamNode
    standbys: dict[NodeId, _Standby] = field(default_factory=dict)
    refused: dict[NodeId, float] = field(default_factory=dict)
    named: dict[str, PeerRef] = field(default_factory=dict)
    """Where the nodes are that the stream's creator has named."""
    find_at: float = 0.0


class Standbys(ProducerPart):
    """Of all streams that this node produces."""

    def __init__(self, streams: Streams, questions: StreamQuestions) -> None:
        super().__init__(streams)
        self._questions = questions
        self._chosen: dict[NodeId, _Chosen] = {}
        self._due_at = 0.0

    def tick(self) -> None:
        """Ask all standbys, and look for others in the place of those that are gone. Called a few times a second."""
        now = self._host.now()
        if now < self._due_at:
            return
        self._due_at = now + ASK_STANDBYS_S
        for key in [key for key, chosen in self._chosen.items() if not self._is_current(chosen)]:
            del self._chosen[key]
        for node in self._nodes:
            if node.is_producer and node.record.has_standbys and not node.is_paused and node.is_held():
                if node.record.key not in self._chosen:
                    self._chosen[node.record.key] = self._begun(node, now)
                self._look(self._chosen[node.record.key], now)

    @staticmethod
    def _begun(node: StreamNode, now: float) -> _Chosen:
        """After a restart those that were standbys before stay so, if they answer."""
        before = [each.peer for each in node.record.standbys]
        return _Chosen(node, {peer.id: _Standby(peer, now, is_ready=True) for peer in before})

    def _is_current(self, chosen: _Chosen) -> bool:
        node = chosen.node
        return self._nodes.get(node.record.key) is node and node.is_producer

    def _look(self, chosen: _Chosen, now: float) -> None:
        for id in [id for id, each in chosen.standbys.items() if now - each.heard_at >= UNASKED_S]:
            self._remove(chosen, id)
        for id in [id for id, until in chosen.refused.items() if now >= until]:
            del chosen.refused[id]
        if chosen.node.record.successors:
            self._find_named(chosen, now)
        for peer in self._candidates(chosen):
            chosen.standbys.setdefault(peer.id, _Standby(peer, now))
        for each in list(chosen.standbys.values()):
            self._ask_one(chosen, each)
        self._write(chosen)

    def _candidates(self, chosen: _Chosen) -> Sequence[PeerRef]:
        """Whom to ask besides those that stand by already."""
        names = chosen.node.record.successors
        if names:
            found = [chosen.named[name] for name in names if name in chosen.named]
            return [peer for peer in found if peer.id not in chosen.refused]
        free = STANDBYS - len(chosen.standbys)
        children = [child.peer for child in chosen.node.children()]
        new = [peer for peer in children if peer.id not in chosen.standbys and peer.id not in chosen.refused]
        return new[: max(0, free)]

    def _ask_one(self, chosen: _Chosen, standby: _Standby) -> None:
        def answered(answer: HandOverAnswer | None) -> None:
            is_asked = self._is_current(chosen) and chosen.standbys.get(standby.peer.id) is standby
            if answer is None or not is_asked:
                return
            if answer.state == HandOverState.REFUSED:
                self._remove(chosen, standby.peer.id)
            else:
                standby.heard_at = self._host.now()
                standby.is_ready |= answer.state == HandOverState.READY
            self._write(chosen)

        self._ask(standby.peer, HandOverStep.STAND_BY, chosen.node.record, answered)

    def _remove(self, chosen: _Chosen, id: NodeId) -> None:
        peer = chosen.standbys.pop(id).peer
        chosen.refused[id] = self._host.now() + REFUSED_S
        for name in [name for name, found in chosen.named.items() if found == peer]:
            del chosen.named[name]

    def _write(self, chosen: _Chosen) -> None:
        """Say in the record who stands by, where that has changed."""
        node = chosen.node
        ready = [each.peer for each in chosen.standbys.values() if each.is_ready]
        named = [chosen.named[name] for name in node.record.successors if name in chosen.named]
        if named:
            ready.sort(key=lambda peer: named.index(peer) if peer in named else len(named))
        standbys = tuple(SeedRef.of(peer) for peer in ready)
        if standbys != node.record.standbys:
            node.record = node.record.model_copy(update={"standbys": standbys})
            self._registry.change(node.record)
            self._produced.remember(node.record)  # after a restart they are asked whether they have taken over

    def _find_named(self, chosen: _Chosen, now: float) -> None:
        """Look through the tree for nodes that are named and not known: each has to be a member."""
        unknown = [name for name in chosen.node.record.successors if name not in chosen.named]
        if not unknown or now < chosen.find_at:
            return
        chosen.find_at = now + FIND_NAMED_S

        def found(view: StreamTreeView | Exception) -> None:
            if isinstance(view, Exception) or not self._is_current(chosen):
                return
            for name in unknown:
                with suppress(StreamRefused):
                    peer = node_in_tree(view, name)
                    if peer.id != self._host.id:
                        chosen.named[name] = peer

        with suppress(Unavailable):
            self._questions.walk(chosen.node.record, found)

    def release(self, node: StreamNode) -> None:
        """The stream is over: nobody is to go on with it."""
        for each in node.record.standbys:
            self._ask(each.peer, HandOverStep.RELEASE, node.record)
