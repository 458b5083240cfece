"""Filtered dissemination: streams, each with a tree of those who want a part of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar, Final

from peerd.api import (
    AcceptSwap,
    HistorySize,
    Host,
    NeighbourChange,
    Plugin,
    PluginConfig,
    RefuseSwap,
    SendRefusal,
    SwapRequest,
    handles,
    on_timer,
)
from peerd.errors import ProtocolError
from peerd.ids import NodeId
from peerd.messages import Message, PeerRef
from protocols.dissemination import messages
from protocols.dissemination.asking import StreamQuestions
from protocols.dissemination.config import DisseminationConfig
from protocols.dissemination.documents import messages as document_messages
from protocols.dissemination.documents.drafts import Documents
from protocols.dissemination.documents.exchange import DocumentExchange
from protocols.dissemination.documents.manifest import Attachment
from protocols.dissemination.events import EVENTS
from protocols.dissemination.loading import policy_messages
from protocols.dissemination.messages import (
    HandOver,
    HandOverAnswer,
    PlanAnswer,
    PlanQuestion,
    StreamItem,
    TreeAnswer,
    TreeQuestion,
)
from protocols.dissemination.metrics import METRICS
from protocols.dissemination.names import position_text
from protocols.dissemination.producer.changes import ProducerChanges
from protocols.dissemination.producer.publishing import Publishers
from protocols.dissemination.stream import StreamRecord
from protocols.dissemination.stream_node import StreamNode
from protocols.dissemination.streams import Streams
from protocols.dissemination.subscribing import Subscribing
from protocols.dissemination.taking_part import TICK, StreamNodes, UsedNumbers
from protocols.dissemination.views import histories

_POLICY_MESSAGES: Final = policy_messages()
_QUESTIONS: Final = (TreeQuestion, TreeAnswer, PlanQuestion, PlanAnswer, HandOver, HandOverAnswer)
_OF_TREE: Final = tuple(kind for kind in messages.MESSAGES if kind not in _QUESTIONS)


class Dissemination(Plugin):
    """What clients do goes to its parts: ``changes``, ``publishers``, ``subscribing``, ``questions``, ``documents``."""

    name: ClassVar[str] = "dissemination"
    messages: ClassVar[tuple[type[Message], ...]] = (
        *messages.MESSAGES,
        *document_messages.MESSAGES,
        *_POLICY_MESSAGES,
    )
    metrics = METRICS
    events = EVENTS
    Config: ClassVar[type[PluginConfig]] = DisseminationConfig
    config: DisseminationConfig

    def __init__(self, config: PluginConfig | None = None) -> None:
        super().__init__(config)
        self._used = UsedNumbers()

    def inherit(self, failed: Dissemination) -> None:
        """Go on with the numbers: members would take items of a number that they have had for old ones."""
        nodes: StreamNodes | None = getattr(failed, "nodes", None)  # it may have failed before it had any
        self._used = failed._used if nodes is None else nodes.used()

    def start(self, host: Host) -> None:
        super().start(host)
        self._drained: Callable[[], None] | None = None
        streams = self.streams = Streams(host, lambda: self.config, self)
        self.nodes, self.produced, self.clients = streams.nodes, streams.produced, streams.clients
        self.nodes.numbers = self._used
        self.questions = StreamQuestions(streams)
        self.publishers = Publishers(streams)
        self.subscribing = Subscribing(streams)
        self.changes = ProducerChanges(streams, self.questions, self.publishers)
        self.exchange = DocumentExchange(host, streams.config, self.nodes.above, self.nodes.wake)
        self.documents = Documents(host, streams.config, self.exchange, self.publishers)
        self.add_parts(streams, streams.registry, self.nodes, self.produced, self.questions)
        self.add_parts(self.exchange, self.subscribing, self.changes.succession)
        for kind in _POLICY_MESSAGES:
            self.handlers.messages[kind] = self.nodes.policy_received
        host.when_over(self.clients.let_go)
        host.when_over(self.nodes.let_go)
        self.produced.produce_again()
        self.subscribing.begin()

    # Messages

    @handles(*_OF_TREE)
    def on_tree_message(self, message: Message, source: PeerRef) -> None:
        """For one stream's member."""
        self.nodes.received(message, source)

    def deliver(self, key: NodeId, message: Message, source: PeerRef) -> None:
        raise ProtocolError("not_direct", f"a {type(message).__name__} comes from its sender's own link only")

    # Upcalls

    def swap_requested(self, request: SwapRequest) -> AcceptSwap | RefuseSwap:
        return self.exchange.swap_requested(request)

    def send_refused(self, peer: PeerRef, message_type: type[Message], reason: SendRefusal, count: int) -> None:
        if message_type in document_messages.MESSAGES:
            self.exchange.gone(peer.id)
        if message_type in _OF_TREE:  # a part of what it was to get is missing
            self.nodes.gone(peer.id)

    def peer_down(self, peer: PeerRef, reason: str) -> None:
        self.nodes.gone(peer.id)

    def neighbours_changed(self, change: NeighbourChange) -> None:
        missing = {each.peer.id for each in self.host.missing_members()} if change.removed and len(self.nodes) else ()
        for peer in change.removed:
            if peer.id in missing:
                self.nodes.gone(peer.id)
                self.exchange.gone(peer.id)

    def writable(self, peer: PeerRef) -> None:
        self.nodes.writable()
        self.publishers.let()

    def drain(self, done: Callable[[], None]) -> None:
        self._drained, self.streams.is_leaving = done, True
        for node in self.nodes:
            self.changes.begin_leaving(node)
        self._check_drained()

    def _check_drained(self) -> None:
        for node in self.nodes:
            if node.has_left():
                self.nodes.give_up(node, "left")
        if self._drained is not None and not len(self.nodes):
            done, self._drained = self._drained, None
            done()

    def stop(self) -> None:
        self.subscribing.stop()
        self.nodes.ledger.report(self.nodes)
        for node in self.nodes:
            node.leave()

    def histories(self) -> Sequence[HistorySize]:
        return histories(list(self.clients), list(self.nodes))

    def validate(self) -> None:
        self.nodes.validate()
        self.exchange.validate()

    # What the streams tell

    @on_timer(TICK)
    def tick(self, payload: None) -> None:
        """Four times a second, while there is something to do."""
        self.nodes.tick()
        self.subscribing.tick()
        self.exchange.tick()
        self.changes.tick()
        self.publishers.let()
        self._check_drained()
        if any((len(self.nodes), len(self.clients), len(self.publishers), self._drained, self.exchange.has_work())):
            self.nodes.wake()

    def on_room(self) -> None:
        """See `StreamsOwner.on_room`."""
        self.publishers.let()

    def document_came(self, node: StreamNode, item: StreamItem, attachment: Attachment) -> None:
        """See `StreamsOwner.document_came`."""
        self.exchange.begin(node.record.key, node.name, position_text(item.position), attachment)

    def name_lost(self, record: StreamRecord) -> None:
        """See `StreamsOwner.name_lost`."""
        self.changes.succession.name_lost(record)

    def returned(self, node: StreamNode) -> None:
        """See `StreamsOwner.returned`."""
        self.changes.succession.returned(node)

    def stream_gone(self, node: StreamNode, reason: str) -> None:
        """See `StreamsOwner.stream_gone`."""
        self.changes.succession.gone(node)
        self.exchange.stream_gone(node.record.key)
        self.subscribing.stream_gone(node, reason)
        self.publishers.let()
