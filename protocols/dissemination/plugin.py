"""Filtered dissemination: streams, each with a tree of those who want a part of it. What clients may do with them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
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
from protocols.dissemination.interests.errors import InterestError, ItemError
from protocols.dissemination.loading import policy_messages
from protocols.dissemination.messages import (
    ITEM_BYTES_MAX,
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
from protocols.dissemination.named import NamedSubscriptions
from protocols.dissemination.names import START, position_of, position_text, stream_key
from protocols.dissemination.producer.changes import ProducerChanges
from protocols.dissemination.producer.part import Streams
from protocols.dissemination.producer.produced import ProducedStreams
from protocols.dissemination.producer.publishing import Publishers, check_now, produced_elsewhere, tell_where
from protocols.dissemination.registry import EndedEarly, StreamRegistry
from protocols.dissemination.service import StreamRefused
from protocols.dissemination.stream import StreamRecord
from protocols.dissemination.stream_node import StreamNode
from protocols.dissemination.subscriptions import ClientSubscription, ClientSubscriptions, Told
from protocols.dissemination.taking_part import StreamNodes, UsedNumbers
from protocols.dissemination.views import histories, view_of_node, view_of_record

JOIN_S: Final = 20.0
"""A subscription that has not begun after this is given up, and the client is told."""
_ANSWERS: Final = "stream_answers"
_RESUME: Final = "stream_resume"
RESUME_S: Final = 1.0
"""After a restart a named subscription is made again after this; where that fails, after twice as long, and so on."""
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
        self.named = NamedSubscriptions(host)
        self.questions = TreeQuestions(host, self._settings, self._answer)
        self.registry.seeds_of = self.nodes.with_seeds
        self.nodes.on_gone = self._stream_gone
        self.nodes.on_tick = self._tick
        self.nodes.has_work = self._has_work
        self.publishers = Publishers(self.nodes, lambda: LEAVING if self._is_leaving else "")
        self._drained: Callable[[], None] | None = None
        self._is_leaving = False
        self._answers: list[Callable[[], None]] = []
        self.produced = ProducedStreams(host, self._settings, self.nodes, self.registry)
        streams = Streams(host, self._settings, self.nodes, self.registry, self.produced)
        self.changes = ProducerChanges(streams, self.questions, self.publishers.let, lambda: self._is_leaving)
        self.nodes.on_room = self.publishers.let
        self.exchange = DocumentExchange(host, self._settings, self.nodes.above, self.nodes.wake)
        self.documents = Documents(host, self._settings, self.exchange, self._kind_of, self.publish)
        self.nodes.on_document = self.exchange.begin
        self.add_parts(self.registry, self.nodes, self.produced, self.exchange, *self.changes.parts)
        for kind in _POLICY_MESSAGES:
            self.handlers.messages[kind] = self.nodes.policy_received
        host.when_over(self.clients.let_go)
        host.when_over(self.nodes.let_go)
        self.produced.produce_again()
        self._resuming = dict.fromkeys(self.named.load(), RESUME_S)
        for name in self._resuming:
            self.host.set_timer(_RESUME, RESUME_S * host.rng.uniform(0.5, 1.0), name)

    def _settings(self) -> DisseminationConfig:
        return self.config

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
        self.named.save(list(self.clients), self.host.now(), is_last=True)
        for node in self.nodes:
            node.leave()

    def histories(self) -> Sequence[HistorySize]:
        return histories(list(self.clients), list(self.nodes))

    def validate(self) -> None:
        self.nodes.validate()
        self.exchange.validate()

    def _tick(self) -> None:
        now = self.host.now()
        for each in self.clients:
            if each.on_done is not None and now - each.asked_at >= JOIN_S:
                self._forget(each)
                self._tell(each, Unavailable(f"no parent was found for {each.stream} within {JOIN_S:.0f} s"))
        for each in self.clients.unread(now):
            self._forget(each)
        self.clients.count_drops()
        self.named.save(list(self.clients), now)
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
        self._check_stays()
        on_done = self._later(on_done)
        try:
            record = StreamRecord.of(spec, self.host.peer)
        except ValueError as error:
            raise StreamRefused("invalid", str(error)) from error
        known = self.nodes.get(record.key)
        if known is not None and not known.record.says_the_same(record):
            other = known.record.differences(record) or f"node {known.record.producer.id:.8} produces it"
            raise StreamRefused("conflict", f"there is a stream {spec.name} already: {other}")
        if known is not None:
            on_done(self._view(known))
            return
        node = self.produced.make(record)  # at once: newcomers may ask before the ring has confirmed the record

        def done(why: Exception | None) -> None:
            if why is None:
                self.produced.remember(record)
                self.produced.give_to(record.name, owner)
            elif not isinstance(why, EndedEarly):  # after that another stream may have its name by now
                self._not_created(node)
                if isinstance(why, Unavailable):  # it may have been written, although nobody has said so
                    self.registry.withdraw(record)
            on_done(self._view(node) if why is None else why)

        try:
            self.registry.create(record, done)
        except Unavailable:
            self._not_created(node)
            raise

    def _not_created(self, node: StreamNode) -> None:
        self.nodes.give_up(node, "not created")
        self.produced.forget_past(node.record)

    def hand_over(self, name: str, to: str, on_done: Callable[[StreamView | Exception], None]) -> None:
        """See `StreamService.hand_over`."""
        self._check_stays()
        on_done = self._later(on_done)
        node = self._produced(name)

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
        node = self._produced(name)
        self.changes.succession.check_stays(node)
        view = self._view(node)
        self.changes.endings.begin(node, lambda why: on_done(view if why is None else why))

    def _produced(self, name: str) -> StreamNode:
        node = self.nodes.get(stream_key(name))
        if node is None:
            self._check_stays()
            self.produced.check_back(stream_key(name))
            raise StreamRefused("unknown", f"this node produces no stream {name:.64}: create it, or ask its producer")
        if not node.is_producer:
            raise produced_elsewhere(node.record)
        return node

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
            self._check_stays()  # nobody answers a node that is out of the ring
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
        for each in self.clients.of(node.name):
            if self._is_leaving and reason == "left":
                self.clients.remove(each)
                each.feed.end(LEAVING)
                self._tell(each, Unavailable(LEAVING))
            else:
                self.named.forget(each.name)
                each.end(reason)
                self._tell(each, Unavailable(f"the stream {node.name} is over: {reason}"))
        self.publishers.let()

    def _check_stays(self) -> None:
        if self._is_leaving:
            raise Unavailable(LEAVING)

    # Publishing

    def _kind_of(self, name: str) -> str:
        return self._produced(name).record.kind

    def publish(
        self,
        name: str,
        payload: bytes,
        content_type: str = "",
        published_ms: int | None = None,
        attachment: Attachment | None = None,
    ) -> ItemPublished:
        """See `StreamService.publish`."""
        node = self._produced(name)
        check_now(node)
        if len(payload) > ITEM_BYTES_MAX:
            raise StreamRefused("invalid", f"an item of {len(payload)} bytes: {ITEM_BYTES_MAX} is the limit")
        if len(content_type) > messages.CONTENT_TYPE_MAX:
            raise StreamRefused("invalid", "the content type is too long")
        at_ms = round(self.host.wall_time() * 1000) if published_ms is None else published_ms
        try:
            item = node.publish(payload, content_type, max(0, at_ms), attachment)
        except ItemError as error:
            raise StreamRefused("invalid", str(error)) from error
        self.nodes.send_soon(node)
        return ItemPublished(stream=name, id=position_text(item.position), bytes=len(payload))

    def when_kept(self, name: str, on_done: Callable[[bool | Exception], None]) -> None:
        """See `StreamService.when_kept`."""
        keeping = self._produced(name).keeping
        if keeping is None:
            on_done(False)
        else:
            keeping.when_kept(on_done)

    def is_publishable(self, name: str) -> bool:
        """See `StreamService.is_publishable`."""
        node = self.nodes.get(stream_key(name))
        return node is not None and node.is_producer and node.is_publishable

    def when_publishable(self, name: str, on_done: Callable[[bool | Exception], None]) -> None:
        """See `StreamService.when_publishable`."""
        try:
            node = self._produced(name)
        except StreamRefused as why:
            tell_where(self._find, name, why, self.nodes.is_own, self._later(on_done))
            return
        if node.is_publishable:
            on_done(True)  # at once, so that items that came together go out together
        else:
            self.publishers.wait(node, self._later(on_done))

    # Subscribing

    def subscribe(self, request: StreamSubscriptionRequest, on_done: Told) -> None:
        """See `StreamService.subscribe`."""
        self._check_stays()
        on_done = self._later(on_done)
        self.clients.check_room()
        try:
            after = None if request.after is None else position_of(request.after)
        except ValueError as error:
            raise StreamRefused("invalid", str(error)) from error
        self.clients.check_name(request)

        def found(answer: StreamRecord | Exception) -> None:
            if isinstance(answer, Exception):
                on_done(answer)
                return
            try:
                self._subscribe(request, after, answer, on_done)
            except (StreamRefused, Unavailable) as error:
                on_done(error)

        self._find(request.stream, found)

    def _subscribe(
        self,
        request: StreamSubscriptionRequest,
        after: Any,
        record: StreamRecord,
        on_done: Told,
    ) -> None:
        self.produced.check_back(record.key)
        if self.nodes.get(record.key) is None and self.nodes.is_own(record):
            raise StreamRefused("unknown", f"this node has produced {record.name}, and does so no more")
        node = self.nodes.make(record)
        try:
            interest = node.kind.parse(request.interest)
        except InterestError as error:
            raise StreamRefused("invalid", str(error)) from error
        known = self.clients.named(request.name)
        if known is not None and not known.is_ended:
            if known.interest.id != interest.id:
                raise StreamRefused("conflict", f"the subscription {request.name} wants {known.interest.text:.200}")
            on_done(self._told(known))
            return
        self.clients.check_room()
        if after is None and request.name:
            at = self.named.after(request.name, request.stream, interest.text)
            after = None if at is None else position_of(at)
        is_anew = after not in (None, START) and self.named.is_of_other(request.name, node.record)
        after = START if is_anew else after
        made = self.clients.add(record.name, interest, record.kind, request.name, after)
        made.owner = request.owner
        made.on_done, made.creator, made.is_anew = on_done, node.record.creator, is_anew
        deliver = node.with_documents(made.deliver)
        node.subscribe(made.number, interest, after, deliver, partial(self._live, made))
        if node.member.up.is_new and node.member.up.is_orphan and not node.is_producer:
            node.seeking.join()

    @on_timer(_RESUME)
    def on_resume(self, name: str) -> None:
        """Make a named subscription again that this node had before it was restarted."""
        saved = self.named.saved(name)
        if saved is None or self.clients.named(name) is not None:
            self._resuming.pop(name, None)
            return

        def done(answer: StreamSubscriptionView | Exception) -> None:
            if not isinstance(answer, Exception):
                self._resuming.pop(name, None)
            elif isinstance(answer, StreamRefused) and self.named.is_hopeless(answer):
                self._resuming.pop(name, None)
                self.named.forget(name)
            elif name in self._resuming and not self._is_leaving:
                pause_s = self._resuming[name] = min(self.config.retry_max, 2 * self._resuming[name])
                self.host.set_timer(_RESUME, pause_s * self.host.rng.uniform(0.8, 1.2), name)

        wish = {"interest": saved.interest, "after": saved.after, "name": name, "owner": saved.owner}
        request = StreamSubscriptionRequest(stream=saved.stream, **wish)
        try:
            self.subscribe(request, done)
        except (StreamRefused, Unavailable) as error:
            done(error)

    def _live(self, subscription: ClientSubscription) -> None:
        subscription.is_live = True
        node = self.nodes.get(stream_key(subscription.stream))
        if subscription.name and node is not None:
            through = node.member.subscriptions[subscription.number].through or START
            with suppress(Unavailable):  # then it ends with this daemon, which its view says
                self.named.keep(subscription, position_text(through))
                subscription.is_kept = True
            if subscription.is_anew:
                subscription.begin_anew(through)
        self._tell(subscription, self._told(subscription))

    def _told(self, subscription: ClientSubscription) -> StreamSubscriptionView:
        node = self.nodes.get(stream_key(subscription.stream))
        return subscription.view(None if node is None or node.depth is None else node.member.state.through)

    @staticmethod
    def _tell(subscription: ClientSubscription, answer: StreamSubscriptionView | Exception) -> None:
        on_done, subscription.on_done = subscription.on_done, None
        if on_done is not None:
            on_done(answer)

    def subscriptions(self) -> list[StreamSubscriptionView]:
        """See `StreamService.subscriptions`."""
        return [self._told(each) for each in self.clients]

    def unsubscribe(self, id: str) -> StreamSubscriptionView:
        """See `StreamService.unsubscribe`."""
        found = self.clients.get(id)
        self.named.forget(found.name)
        self._forget(found)
        self._tell(found, StreamRefused("unknown", "the subscription was ended"))
        return self._told(found)

    def _forget(self, subscription: ClientSubscription) -> None:
        self.clients.remove(subscription)
        subscription.end("unsubscribed")
        if (node := self.nodes.get(stream_key(subscription.stream))) is not None:
            node.unsubscribe(subscription.number)

    def reading(self, id: str) -> tuple[StreamSubscriptionView, Feed[ReceivedItem]]:
        """See `StreamService.reading`."""
        found = self.clients.get(id)
        return self._told(found), found.feed

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
