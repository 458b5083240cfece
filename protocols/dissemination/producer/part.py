"""What all parts have in common that make another node a stream's producer."""

from __future__ import annotations

from collections.abc import Iterable

from peerd.api import Part
from peerd.messages import Message, PeerRef
from protocols.dissemination.messages import HandOver, HandOverStep
from protocols.dissemination.names import START
from protocols.dissemination.stream import StreamRecord
from protocols.dissemination.streams import Streams


class ProducerPart(Part):
    def __init__(self, streams: Streams) -> None:
        self._streams, self._host, self._config = streams, streams.host, streams.config
        self._nodes, self._registry, self._produced = streams.nodes, streams.registry, streams.produced

    def _tell(self, peers: Iterable[PeerRef], step: HandOverStep, record: StreamRecord) -> None:
        """Say something of a stream, to which nobody has to say anything: what is to come of it comes by itself."""
        question = HandOver(record.key, step, record.term, START)
        for peer in peers:
            self._host.request(peer, question, self._config().ask_timeout, _heard, lambda: None)


def _heard(reply: Message, source: PeerRef) -> None:
    """Nothing is to be done."""
