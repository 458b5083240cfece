"""A standby takes a stream over when its producer is gone.

1. The producer has it stand by, and names it in the record (`standbys`): it has everything that is remembered.
2. It has no way to the producer any more. It looks at the record every two seconds, and acts when that has lapsed, in
   the order of the record (`fencing`). The store lets one node write it: the same lock as for a planned hand-over.
3. It is the source of the tree, and tells those that were next to the producer. For `SETTLE_S` it gives them what they
   have not had, and takes nothing new.
4. It begins its term. What the old producer has sent after what is here is told as lost: nobody knows whether there is
   any.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from peerd.api import on_timer
from peerd.ids import NodeId
from peerd.messages import PeerRef
from protocols.dissemination.events import StreamProducerReplaced
from protocols.dissemination.messages import HandOverStep
from protocols.dissemination.names import TERM_MAX, position_text
from protocols.dissemination.producer.fencing import may_take_over_at
from protocols.dissemination.producer.next_producer import Coming, NextProducer
from protocols.dissemination.producer.part import ProducerPart
from protocols.dissemination.producer.stepping_down import Rivals
from protocols.dissemination.service import StreamRefused
from protocols.dissemination.stream import StreamRecord
from protocols.dissemination.stream_node import StreamNode
from protocols.dissemination.streams import Streams

LOOK_EVERY_S: Final = 2.0
"""A standby without a way to the producer looks at the record so often."""
SETTLE_S: Final = 2.0
"""For so long after a take-over nothing new is published, while orphans come and get what they have not had."""
TELL_AGAIN_S: Final = 1.0
"""They are told once more after this."""
JUST_TAKEN: Final = "has just been taken over, and goes on in a moment"
_TELL: Final = "stream_taken_told"
_SETTLED: Final = "stream_taken_settled"


class TakeOver(ProducerPart):
    """The standby's side."""

    def __init__(self, streams: Streams, rivals: Rivals, next_producer: NextProducer) -> None:
        super().__init__(streams)
        self._rivals = rivals
        self._next_producer = next_producer
        self._due_at = 0.0
        self._told: dict[NodeId, tuple[PeerRef, ...]] = {}
        """Who was next to the old producer, and hears of the new one."""

    def tick(self) -> None:
        """Look at the records of streams without a producer. Called a few times a second."""
        now = self._host.now()
        if now < self._due_at:
            return
        self._due_at = now + LOOK_EVERY_S
        for coming in self._next_producer.standing_by():
            if self._nodes.get(coming.node.record.key) is not coming.node or coming.is_writing:
                continue
            if coming.node.is_adrift:
                coming.adrift_at = now
                self._look(coming)
            elif coming.node.record.rank_of(self._host.id) is None:
                self._nodes.look_up(coming.node)  # it may say so by now

    def _look(self, coming: Coming) -> None:
        node = coming.node

        def found(answer: StreamRecord | Exception) -> None:
            is_still = self._nodes.get(node.record.key) is node and node.is_adrift and not coming.is_writing
            if not is_still or coming not in self._next_producer.standing_by():
                return
            if isinstance(answer, StreamRefused) and answer.kind == "unknown":
                self._lapsed(coming)
            elif isinstance(answer, StreamRecord):
                coming.lapsed_at = None
                self._nodes.found(node, answer)

        self._registry.find(node.name, found)

    def _lapsed(self, coming: Coming) -> None:
        """The ring has no record of the stream."""
        node, now = coming.node, self._host.now()
        if coming.lapsed_at is None:
            coming.lapsed_at = now
        rank = node.record.rank_of(self._host.id)
        if rank is None or not node.member.has_whole(coming.everything) or self._streams.is_leaving:
            return
        record = node.record.taken_over(self._host.peer, rank)
        lease_s = self._registry.lease_s(record)
        if now >= may_take_over_at(coming.asked_at, coming.lapsed_at, lease_s, rank) and record.term <= TERM_MAX:
            self._next_producer.take(coming, record, partial(self._taken, rank))

    def _taken(self, rank: int, coming: Coming, old: StreamRecord) -> None:
        node, key = coming.node, coming.node.record.key
        node.why_paused = JUST_TAKEN
        self._rivals.watch(key, old.producer.peer)
        self._host.count("peerd_dissemination_take_overs_total")
        self._host.emit(
            StreamProducerReplaced(
                stream=node.name,
                predecessor=old.producer.id,
                term=node.record.term,
                rank=rank,
                silent_s=self._host.now() - coming.asked_at,
                position=position_text(node.member.state.watermark),
            )
        )
        near = (*old.seed_peers, *(each.peer for each in old.standbys))
        absent = (self._host.id, old.producer.peer.id)
        self._told[key] = tuple(dict.fromkeys(peer for peer in near if peer.id not in absent))
        self.tell(key)
        self._host.set_timer(_TELL, TELL_AGAIN_S, key)
        self._host.set_timer(_SETTLED, SETTLE_S, key)

    @on_timer(_TELL)
    def tell(self, key: NodeId) -> None:
        """Tell those that were next to the old producer who the new one is."""
        node = self._settling(key)
        if node is None:
            return
        self._tell(self._told.get(key, ()), HandOverStep.TAKEN, node.record)

    def _settling(self, key: NodeId) -> StreamNode | None:
        node = self._nodes.get(key)
        return node if node is not None and node.is_producer and node.why_paused == JUST_TAKEN else None

    @on_timer(_SETTLED)
    def on_settled(self, key: NodeId) -> None:
        """Begin the term: items are published from now on."""
        self._told.pop(key, None)
        node = self._settling(key)
        if node is not None:
            node.why_paused = ""
            node.begin_term(node.record)
            self._produced.keep_from_now_on(node)
            self._nodes.on_room()
