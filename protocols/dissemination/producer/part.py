"""What all parts have in common that make another node a stream's producer."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from peerd.api import Host, Part
from peerd.messages import Message, PeerRef
from protocols.dissemination.config import DisseminationConfig
from protocols.dissemination.messages import HandOver, HandOverStep
from protocols.dissemination.names import START
from protocols.dissemination.producer.produced import ProducedStreams
from protocols.dissemination.registry import StreamRegistry
from protocols.dissemination.stream import StreamRecord
from protocols.dissemination.taking_part import StreamNodes


@dataclass(frozen=True, slots=True)
class Streams:
    """The streams of one node, and what it knows of them."""

    host: Host
    config: Callable[[], DisseminationConfig]
    nodes: StreamNodes
    registry: StreamRegistry
    produced: ProducedStreams
    on_change: Callable[[], None]
    """This node has become a stream's producer, or is it no more, or stays it after all."""
    is_leaving: Callable[[], bool]


class ProducerPart(Part):
    def __init__(self, streams: Streams) -> None:
        self._host, self._config, self._nodes = streams.host, streams.config, streams.nodes
        self._registry, self._produced = streams.registry, streams.produced
        self._on_change, self._is_leaving = streams.on_change, streams.is_leaving

    def _tell(self, peers: Iterable[PeerRef], step: HandOverStep, record: StreamRecord) -> None:
        """Say something of a stream, to which nobody has to say anything: what is to come of it comes by itself."""
        question = HandOver(record.key, step, record.term, START)
        for peer in peers:
            self._host.request(peer, question, self._config().ask_timeout, _heard, lambda: None)


def _heard(reply: Message, source: PeerRef) -> None:
    """Nothing is to be done."""
