"""How streams get other producers: all parts of it, put together for the plugin."""

from __future__ import annotations

from collections.abc import Callable

from peerd.api import Part
from peerd.errors import Unavailable
from protocols.dissemination.asking import TreeQuestions
from protocols.dissemination.next_producer import NextProducer
from protocols.dissemination.producer_part import Streams
from protocols.dissemination.service import StreamRefused
from protocols.dissemination.standbys import Standbys
from protocols.dissemination.stepping_down import Rivals
from protocols.dissemination.stream_node import StreamNode
from protocols.dissemination.succession import Succession
from protocols.dissemination.take_over import TakeOver


class ProducerChanges:
    """``on_change`` is called when this node becomes a stream's producer, or is it no more, or stays it after all."""

    def __init__(
        self,
        streams: Streams,
        questions: TreeQuestions,
        on_change: Callable[[], None],
        is_leaving: Callable[[], bool],
    ) -> None:
        self.rivals = Rivals(streams)
        self.succession = Succession(streams, self.rivals)
        self.next_producer = NextProducer(streams, self.rivals)
        self.next_producer.is_leaving = is_leaving
        self.take_over = TakeOver(streams, self.rivals, self.next_producer)
        self.standbys = Standbys(streams, questions)
        for part in (self.rivals, self.succession, self.next_producer, self.take_over):
            part.on_change = on_change

    @property
    def parts(self) -> tuple[Part, ...]:
        """Those with timers and messages."""
        return (self.rivals, self.succession, self.next_producer, self.take_over)

    def tick(self) -> None:
        """Called a few times a second."""
        self.standbys.tick()
        self.take_over.tick()

    def begin_leaving(self, node: StreamNode) -> None:
        """In order: a stream that has standbys goes to the first of them, before this node leaves its tree."""
        if not node.is_producer or not node.record.standbys:
            node.begin_leaving()
            return
        try:
            self.succession.hand_over(node, node.record.standbys[0].peer, lambda why: node.begin_leaving())
        except (StreamRefused, Unavailable):
            node.begin_leaving()
