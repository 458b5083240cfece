"""Filtered dissemination: streams, each with a tree of those who want a part of it. What clients may do with them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar, Final

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
from peerd.errors import ProtocolError, Unavailable
from peerd.ids import NodeId
from peerd.lib.feed import Feed
from peerd.messages import Message, PeerRef
from protocols.dissemination import messages
from protocols.dissemination.asking import TreeQuestions, describe, node_in_tree, told_moves
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
    TreeAnswer,
    TreeQuestion,
)
from protocols.dissemination.metrics import METRICS
from protocols.dissemination.models import (
    ItemPublished,
    ReceivedItem,
    StreamHistoryView,
    StreamPlanView,
    StreamSpec,
    StreamSubscriptionRequest,
    StreamSubscriptionView,
    StreamTreeView,
    StreamView,
)
from protocols.dissemination.names import stream_key
from protocols.dissemination.producer.changes import ProducerChanges
from protocols.dissemination.producer.part import Streams
from protocols.dissemination.producer.produced import ProducedStreams
from protocols.dissemination.producer.publishing import Publishers
from protocols.dissemination.registry import StreamRegistry
from protocols.dissemination.service import StreamRefused
from protocols.dissemination.stream import StreamRecord
from protocols.dissemination.stream_node import StreamNode
from protocols.dissemination.subscribing import Subscribing
from protocols.dissemination.subscriptions import ClientSubscriptions, Told
from protocols.dissemination.taking_part import StreamNodes, UsedNumbers
from protocols.dissemination.views import histories, view_of_node, view_of_record

_ANSWERS: Final = "stream_answers"
LEAVING: Final = "this node is leaving the ring"
"""What clients are told meanwhile; they wait, and go on when it is back."""
_POLICY_MESSAGES: Final = policy_messages()
_QUESTIONS: Final = (TreeQuestion, TreeAnswer, PlanQuestion, PlanAnswer, HandOver, HandOverAnswer)
_OF_TREE: Final = tuple(kind for kind in messages.MESSAGES if kind not in _QUESTIONS)


class Dissemination(Plugin):
    """Implements `protocols.dissemination.service.StreamService`."""

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
        self.registry = StreamRegistry(host, self._settings)
        self.nodes = StreamNodes(host, self._settings, self.registry)
        self.nodes.numbers = self._used
        self.clients = ClientSubscriptions(host, self._settings)
        self.questions = TreeQuestions(host, self._settings, self._answer)
        self.registry.seeds_of = self.nodes.with_seeds
        self.nodes.on_gone = self._stream_gone
        self.nodes.on_tick = self._tick
        self.nodes.has_work = self._has_work
        self._drained: Callable[[], None] | None = None
        self._is_leaving = False
        self._answers: list[Callable[[], None]] = []
        self.produced = ProducedStreams(host, self._settings, self.nodes, self.registry)
        streams_of = self.nodes, self.produced, self._find, self._why_unavailable
        self.publishers = Publishers(host, *streams_of, self._later)
        self.subscribing = Subscribing(host, self._settings, self.clients, *streams_of)
        own = self.nodes, self.registry, self.produced
        streams = Streams(host, self._settings, *own, self.publishers.let, lambda: self._is_leaving)
        self.changes = ProducerChanges(streams, self.questions)
        self.nodes.on_room = self.publishers.let
        self.exchange = DocumentExchange(host, self._settings, self.nodes.above, self.nodes.wake)
        self.documents = Documents(host, self._settings, self.exchange, self._kind_of, self.publish)
        self.nodes.on_document = self.exchange.begin
        self.add_parts(self.registry, self.nodes, self.produced, self.exchange, self.subscribing, *self.changes.parts)
        for kind in _POLICY_MESSAGES:
            self.handlers.messages[kind] = self.nodes.policy_received
        host.when_over(self.clients.let_go)
        host.when_over(self.nodes.let_go)
        self.produced.produce_again()
        self.subscribing.begin()

    def _settings(self) -> DisseminationConfig:
        return self.config

    def _why_unavailable(self) -> str:
        return LEAVING if self._is_leaving else ""

    # Messages

    @handles(*_OF_TREE)
    def on_tree_message(self, message: Message, source: PeerRef) -> None:
        """For one stream's member."""
        self.nodes.received(message, source)

    @handles(TreeQuestion, PlanQuestion)
    def on_question(self, message: TreeQuestion | PlanQuestion, source: PeerRef) -> Message:
        """Answer about one stream."""
        return self._answer(message)

    @handles(TreeAnswer, PlanAnswer)
    def on_answer(self, message: Message, source: PeerRef) -> None:
        """An answer that comes after its time."""

    def _answer(self, message: TreeQuestion | PlanQuestion) -> Message:
        node = self.nodes.get(message.stream)
        if isinstance(message, TreeQuestion):
            return TreeAnswer(message.stream) if node is None else describe(node, self.config.fan_out)
        if node is None:
            return PlanAnswer(message.stream)
        return PlanAnswer(message.stream, told_moves(node.policy.history() if message.is_past else node.policy.plan()))

    def deliver(self, key: NodeId, message: Message, source: PeerRef) -> None:
        raise ProtocolError("not_direct", f"a {type(message).__name__} comes from its sender's own link only")

    # Upcalls

    def swap_requested(self, request: SwapRequest) -> AcceptSwap | RefuseSwap:
        return self.exchange.swap_requested(request)

    def send_refused(self, peer: PeerRef, message_type: type[Message], reason: SendRefusal, count: int) -> None:
        if message_type in document_messages.MESSAGES:
            self.exchange.gone(peer.id)
        if message_type in _OF_TREE:
            self.nodes.send_refused(peer, message_type, reason)

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
        self._drained, self._is_leaving = done, True
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
        for node in self.nodes:
            node.leave()

    def histories(self) -> Sequence[HistorySize]:
        return histories(list(self.clients), list(self.nodes))

    def validate(self) -> None:
        self.nodes.validate()
        self.exchange.validate()

    def _tick(self) -> None:
        self.subscribing.tick()
        self.exchange.tick()
        self.changes.tick()
        self.publishers.let()
        self._check_drained()

    def _has_work(self) -> bool:
        return bool(len(self.clients) or len(self.publishers) or self._drained or self.exchange.has_work())

    def _later(self, on_done: Callable[[Any], None]) -> Callable[[Any], None]:
        """Answers that are known at once come after the caller's own call has returned."""

        def answer(what: Any) -> None:
            if not self._answers:
                self.host.set_timer(_ANSWERS, 0.0)
            self._answers.append(partial(on_done, what))

        return answer

    @on_timer(_ANSWERS)
    def on_answers(self, payload: None) -> None:
        """Give the answers."""
        answers, self._answers = self._answers, []
        for answer in answers:
            answer()

    # Streams

    def owner_of(self, name: str) -> str:
        """See `StreamService.owner_of`."""
        return self.produced.owner_of(name)

    def check_share(self, owner: str) -> None:
        """See `StreamService.check_share`."""
        self.clients.check_share(owner)

    def create(self, spec: StreamSpec, on_done: Callable[[StreamView | Exception], None], owner: str = "") -> None:
        """See `StreamService.create`."""
        self.subscribing.check_stays()
        on_done = self._later(on_done)
        try:
            record = StreamRecord.of(spec, self.host.peer)
        except ValueError as error:
            raise StreamRefused("invalid", str(error)) from error

        def done(answer: StreamNode | Exception) -> None:
            on_done(answer if isinstance(answer, Exception) else self._view(answer))

        self.produced.create(record, owner, done)

    def hand_over(self, name: str, to: str, on_done: Callable[[StreamView | Exception], None]) -> None:
        """See `StreamService.hand_over`."""
        self.subscribing.check_stays()
        on_done = self._later(on_done)
        node = self.publishers.node_of(name)

        def done(why: Exception | None) -> None:
            on_done(self._view(node) if why is None else why)

        def asked(view: StreamTreeView | Exception) -> None:
            try:
                if isinstance(view, Exception):
                    raise view
                self.changes.succession.hand_over(node, node_in_tree(view, to), done)
            except (StreamRefused, Unavailable) as error:
                on_done(error)

        self.changes.succession.check_stays(node)
        self.questions.tree(node.record, asked)

    def remove(self, name: str, on_done: Callable[[StreamView | Exception], None]) -> None:
        """See `StreamService.remove`."""
        on_done = self._later(on_done)
        node = self.publishers.node_of(name)
        self.changes.succession.check_stays(node)
        view = self._view(node)
        self.changes.endings.begin(node, lambda why: on_done(view if why is None else why))

    def streams(self) -> list[StreamView]:
        """See `StreamService.streams`."""
        return [self._view(node) for node in sorted(self.nodes, key=lambda node: node.name)]

    def find(self, name: str, on_done: Callable[[StreamView | Exception], None]) -> None:
        """See `StreamService.find`."""
        on_done = self._later(on_done)

        def found(answer: StreamRecord | Exception) -> None:
            on_done(answer if isinstance(answer, Exception) else self._view_of(answer))

        self._find_now(name, found)

    def _find(self, name: str, on_found: Callable[[StreamRecord | Exception], None]) -> None:
        if (node := self.nodes.get(stream_key(name))) is not None:
            on_found(node.record)
        else:
            self.subscribing.check_stays()  # nobody answers a node that is out of the ring
            self.registry.find(name, on_found)

    def _find_now(self, name: str, on_found: Callable[[StreamRecord | Exception], None]) -> None:
        """The same, with the standbys of this moment, which a member knows only if it has looked lately."""
        node = self.nodes.get(stream_key(name))
        if node is None:
            self._find(name, on_found)
        else:
            self.nodes.refreshed(node, on_found)

    def _view_of(self, record: StreamRecord) -> StreamView:
        node = self.nodes.get(record.key)
        return view_of_record(record) if node is None else self._view(node)

    def _view(self, node: StreamNode) -> StreamView:
        return view_of_node(node, len(self.clients.of(node.name)))

    def _stream_gone(self, node: StreamNode, reason: str) -> None:
        self.exchange.stream_gone(node.record.key)
        self.subscribing.stream_gone(node, reason)
        self.publishers.let()

    # Publishing

    def _kind_of(self, name: str) -> str:
        return self.publishers.node_of(name).record.kind

    def publish(
        self,
        name: str,
        payload: bytes,
        content_type: str = "",
        published_ms: int | None = None,
        attachment: Attachment | None = None,
    ) -> ItemPublished:
        """See `StreamService.publish`."""
        return self.publishers.publish(name, payload, content_type, published_ms, attachment)

    def when_kept(self, name: str, on_done: Callable[[bool | Exception], None]) -> None:
        """See `StreamService.when_kept`."""
        self.publishers.when_kept(name, on_done)

    def is_publishable(self, name: str) -> bool:
        """See `StreamService.is_publishable`."""
        return self.publishers.is_publishable(name)

    def when_publishable(self, name: str, on_done: Callable[[bool | Exception], None]) -> None:
        """See `StreamService.when_publishable`."""
        self.publishers.when_publishable(name, on_done)

    # Subscribing

    def subscribe(self, request: StreamSubscriptionRequest, on_done: Told) -> None:
        """See `StreamService.subscribe`."""
        self.subscribing.subscribe(request, self._later(on_done))

    def subscriptions(self) -> list[StreamSubscriptionView]:
        """See `StreamService.subscriptions`."""
        return [self.subscribing.view(each) for each in self.clients]

    def unsubscribe(self, id: str) -> StreamSubscriptionView:
        """See `StreamService.unsubscribe`."""
        return self.subscribing.unsubscribe(id)

    def reading(self, id: str) -> tuple[StreamSubscriptionView, Feed[ReceivedItem]]:
        """See `StreamService.reading`."""
        found = self.clients.get(id)
        return self.subscribing.view(found), found.feed

    # Questions

    def tree(self, name: str, on_done: Callable[[StreamTreeView | Exception], None]) -> None:
        """See `StreamService.tree`."""
        self.questions.tree_of(self._find_now, name, self._later(on_done))

    def plan(self, name: str, on_done: Callable[[StreamPlanView | Exception], None]) -> None:
        """See `StreamService.plan`."""
        self.questions.moves_of(self._find, name, StreamPlanView, self._later(on_done))

    def history(self, name: str, on_done: Callable[[StreamHistoryView | Exception], None]) -> None:
        """See `StreamService.history`."""
        self.questions.moves_of(self._find, name, StreamHistoryView, self._later(on_done))
