"""What all parts have in common that make another node a stream's producer."""

from __future__ import annotations

from collections.abc import Callable

from peerd.api import Part
from peerd.messages import Message, PeerRef
from protocols.dissemination.messages import HandOver, HandOverAnswer, HandOverState, HandOverStep
from protocols.dissemination.names import START, StreamPosition
from protocols.dissemination.stream import StreamRecord
from protocols.dissemination.streams import Streams


class ProducerPart(Part):
    def __init__(self, streams: Streams) -> None:
        self._streams, self._host, self._config = streams, streams.host, streams.config
        self._nodes, self._registry, self._produced = streams.nodes, streams.registry, streams.produced

    def _ask(
        self,
        peer: PeerRef,
        step: HandOverStep,
        record: StreamRecord,
        on_answer: Callable[[HandOverAnswer | None], None] = lambda answer: None,
        watermark: StreamPosition = START,
    ) -> None:
        """Ask a node, or tell it something. ``None``: no answer in time; one that makes no sense refuses."""

        def answered(reply: Message, source: PeerRef) -> None:
            refused = HandOverAnswer(record.key, HandOverState.REFUSED)
            on_answer(reply if isinstance(reply, HandOverAnswer) else refused)

        question = HandOver(record.key, step, record.term, watermark)
        self._host.request(peer, question, self._config().ask_timeout, answered, lambda: on_answer(None))
