"""Content-based publish/subscribe over the DHT (Li 2008): puts the parts together, and offers them to clients."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Final

from peerd.api import (
    HistorySize,
    Host,
    NeighbourChange,
    Plugin,
    PluginConfig,
    RecordRole,
    SendRefusal,
)
from peerd.errors import ConfigError, ProtocolError, Unavailable
from peerd.ids import NodeId, format_id
from peerd.lib.feed import Feed
from peerd.lib.filter import FilterError, Node
from peerd.messages import Message, PeerRef
from protocols.pubsub import answering, forwarding, ledger, publishing
from protocols.pubsub.cells import SIDE, WHOLE, Area, alternate, text
from protocols.pubsub.config import PubSubConfig
from protocols.pubsub.delivering.assembly import Delivering
from protocols.pubsub.delivering.messages import COPY_MESSAGES
from protocols.pubsub.entering import Entering
from protocols.pubsub.events import (
    EVENTS,
    EventPublished,
    LeafMoved,
    LeafSplit,
    LeavesMerged,
    SubscriptionEnded,
    SubscriptionInstalled,
)
from protocols.pubsub.explain import FilterCheck, LeafPlace as ToldPlace, PublisherReport, SubscriberReport
from protocols.pubsub.forwarding import Forwarding
from protocols.pubsub.matching import LeafIndex
from protocols.pubsub.messages import (
    MESSAGES,
    Arrived,
    CellOrder,
    CellQuestion,
    EndSub,
    InsertSub,
    LeafUpdate,
    ProbeSub,
    SubObject,
    TransferSub,
)
from protocols.pubsub.models import (
    AckWord,
    Declared,
    Published,
    ReceivedEvent,
    SchemaEnded,
    SchemaSummary,
    SubscriptionRequest,
    SubscriptionView,
    TreeView,
)
from protocols.pubsub.names import EVERY, EventId, SubscriptionKey, Tree, key_of, node_meant
from protocols.pubsub.once import OnceWindow
from protocols.pubsub.outcomes import PublishResult
from protocols.pubsub.pieces import pieces_of
from protocols.pubsub.ports import Here, PiecePoint, SchemaView
from protocols.pubsub.probing import LevelGuide
from protocols.pubsub.publishing import Publishing
from protocols.pubsub.samples import EventSample, SampleQuestion
from protocols.pubsub.schema import EventSchema
from protocols.pubsub.schemas import SCHEMA_ITEM, SchemaBook
from protocols.pubsub.service import NotDone
from protocols.pubsub.statements import event_statement
from protocols.pubsub.subscribing import selectivity, subscriptions
from protocols.pubsub.subscribing.inbox import Inbox, is_proven
from protocols.pubsub.subscribing.installer import Installed, Installer
from protocols.pubsub.subscribing.local import LocalSubscriptions
from protocols.pubsub.subscribing.subscription import Subscription
from protocols.pubsub.subscribing.subscriptions import Subscriptions
from protocols.pubsub.tree.keeper import Keeper
from protocols.pubsub.tree.storage import CellAddress
from protocols.pubsub.tree_walk import Bounds, TreeWalk

ROUTED: Final = (ProbeSub, Arrived, TransferSub, CellOrder, LeafUpdate, CellQuestion)
"""What may come by routing. All else is about its sender, and is taken from the sender's own link."""
EVERY_NAME: Final = "*"


class PubSub(Plugin):
    """Implements `protocols.pubsub.service.PubSubService`."""

    name: ClassVar[str] = "pubsub"
    messages: ClassVar[tuple[type[Message], ...]] = (*MESSAGES, *COPY_MESSAGES, SampleQuestion, EventSample)
    metrics = tuple(
        metric
        for part in (ledger, publishing, answering, forwarding, subscriptions, selectivity)
        for metric in part.METRICS
    )
    events = EVENTS
    Config: ClassVar[type[PluginConfig]] = PubSubConfig
    takes_owned_records: ClassVar[bool] = False
    config: PubSubConfig

    def start(self, host: Host) -> None:
        super().start(host)
        self._make_parts(host)
        self._connect_parts()
        own = self.schemas, self.forwarding, self.publishing, self.installer, self.subscriptions, self.inbox
        self.add_parts(*self.keeper.parts, *self.delivering.parts, *own, self.answering, self.selectivity)
        self.schemas.start()
        self.keeper.start()
        self.delivering.ledger.start()
        self.delivering.keeping.start()
        self.delivering.replays.start()
        self.subscriptions.start()

    def _make_parts(self, host: Host) -> None:
        config = self.config
        self.schemas = SchemaBook(host, config)
        self._indexes: dict[str, _TreeIndex] = {}
        self.keeper = Keeper(host, config, self.schemas, self._index_of)
        self.local = LocalSubscriptions(host, config, _local_index)
        self.delivering = Delivering(
            host, config, self.schemas, self.keeper, self.local, lambda schema, event: is_proven(host, schema, event)
        )
        self.guide = LevelGuide(config)
        self.forwarding = Forwarding(host, config, self.schemas)
        self.answering = answering.Answering(host)
        self.once = OnceWindow()
        self.publishing = Publishing(host, config, self.forwarding, self.guide, event_statement)
        self.entering = Entering(host, self.schemas, self.publishing, self.once)
        self.installer = Installer(host, config, self._levels)
        self.inbox = Inbox(host, self.schemas, self.local)
        self.subscriptions = Subscriptions(host, config, self.schemas, self.installer, self.local, self._points)
        self.selectivity = selectivity.Selectivity(
            host, config, self.installer, self.delivering.history, self._seen_whole, self._points_now
        )
        self.selectivity.subscriptions = self.subscriptions
        self.local.on_failed = self.subscriptions.end_failed

    def _connect_parts(self) -> None:
        self.keeper.events = self.forwarding.events = self.delivering.desk
        self.forwarding.leaves = self.keeper
        self.forwarding.on_sent = self.keeper.heat.note_sent
        self.forwarding.handing_over = self.keeper.heat.handing_over
        self.forwarding.came = self.answering.came
        self.forwarding.answer = self.delivering.desk.answer = self.answering.answer
        self.answering.take, self.answering.awaits = self.publishing.on_ack, self.publishing.awaits
        self.delivering.desk.tree_listeners.append(self.forwarding.tree_changed)
        self.delivering.multicast.received = self.inbox.received_group
        self.publishing.on_outcome = self._published
        self.publishing.ask_leaves = self.keeper.ask_leaves
        self.installer.on_installed = self._installed
        self.subscriptions.ended = self._ended
        self.keeper.growth.told = self._tree_told
        self.installer.ask_self = self._answer_self
        self.keeper.installing.is_own = lambda sub: self.installer.knows(sub.sid, sub.piece)
        self.keeper.subscribers.ask_self = self.installer.on_established
        self.delivering.ledger.tree_size = self._tree_size
        self.schemas.changed = self.schemas.learnt = self._schema_changed
        self.schemas.forgotten = self._schema_forgotten
        self.delivering.explainer.publisher_view = self._publisher_view
        self.delivering.explainer.subscriber_view = self._subscriber_view
        self.delivering.explainer.pieces_of = self._pieces_of
        self.delivering.explainer.names_of = self._attribute_names

    # Upcalls

    def deliver(self, key: NodeId, message: Message, source: PeerRef) -> None:
        if not isinstance(message, ROUTED):
            raise ProtocolError("not_direct", f"a {type(message).__name__} comes from its sender's own link only")
        if isinstance(message, Arrived):
            if key == self.host.id:  # else its subscriber is gone, and this node has become the root of its id
                super().deliver(key, message, source)
            return
        attribute = message.sub.attribute if isinstance(message, ProbeSub) else message.attribute
        if key != key_of(Tree(message.schema, attribute), message.cell):
            # In a broadcast it would have every node of the ring route it to the cell, or answer.
            raise ProtocolError("wrong_key", f"a {type(message).__name__} goes to the key of its cell only")
        super().deliver(key, message, source)

    def neighbours_changed(self, change: NeighbourChange) -> None:
        self.keeper.neighbours_changed()

    def record_allowed(self, key: NodeId, item: bytes, value: bytes | None, writer: NodeId) -> bool:
        if item == SCHEMA_ITEM:
            return self.schemas.may_write(key, value)
        return self.keeper.record_allowed(key, item, value, writer)

    def record_changed(self, key: NodeId, role: RecordRole, item: bytes) -> None:
        if item != SCHEMA_ITEM:
            self.keeper.record_changed(key, role, item)

    def records_settled(self) -> None:
        self.keeper.records_settled()

    def peer_down(self, peer: PeerRef, reason: str) -> None:
        self.delivering.holding.peer_down(peer)

    def send_refused(self, peer: PeerRef, message_type: type[Message], reason: SendRefusal, count: int) -> None:
        self.publishing.send_refused(peer, message_type, reason)  # first: it forgets who is gone, and asks others
        self.forwarding.send_refused(peer, message_type, reason, count)
        self.answering.send_refused(peer, message_type, reason, count)

    def stop(self) -> None:
        self.publishing.end("this daemon stops")

    def inherit(self, failed: PubSub) -> None:
        failed.publishing.end("publish/subscribe was restarted in this daemon")

    def reconfigured(self) -> None:
        self.keeper.reconfigured(self.config)
        self.delivering.reconfigured(self.config)
        self.forwarding.config = self.publishing.config = self.config
        self.publishing.cache.entries_max = self.config.leaf_cache_max

    def histories(self) -> Sequence[HistorySize]:
        feeds = [each.feed for each in self.subscriptions.all() if each.has_feed]
        held = sum(len(feed) for feed in feeds), sum(feed.held_bytes for feed in feeds)
        return (
            HistorySize("events for readers", *held, sum(feed.bytes_max for feed in feeds)),
            *(part.history() for part in (self.publishing, self.once, self.forwarding, self.answering)),
            *(part.history() for part in (self.delivering.desk, self.delivering.ledger, self.delivering.history)),
            self.local.window.history(),
        )

    def drain(self, done: Callable[[], None]) -> None:
        self.delivering.deliverer.drain(done)

    def validate(self) -> None:
        self.keeper.validate()
        self.forwarding.validate()
        self.answering.validate()
        self.publishing.validate()
        self.delivering.validate()

    # Schemas

    def declare(
        self,
        document: Mapping[str, Any],
        on_done: Callable[[Declared | Exception], None],
        if_version: int | None = None,
    ) -> None:
        before = self.schemas.get(str(document.get("name", "")))
        old = 0 if before is None else before.version

        def done(schema: EventSchema | None, why: str) -> None:
            if schema is None:
                on_done(NotDone("conflict", why))
            else:
                on_done(Declared(name=schema.name, version=schema.version, is_new=schema.version != old))

        try:
            self.schemas.declare(dict(document), if_version, done)
        except ConfigError as error:
            raise NotDone("invalid", str(error)) from error

    def schemas_known(self) -> list[SchemaSummary]:
        """See `PubSubService.schemas_known`."""
        found = (self.schemas.get(name) for name in self.schemas.known())
        return [
            SchemaSummary(
                name=schema.name,
                version=schema.version,
                attributes=len(schema.document.attributes),
                absent=schema.document.absent,
                creator=format_id(self.schemas.creator_of(schema.name) or self.host.id),
            )
            for schema in found
            if schema is not None
        ]

    def end_schema(self, name: str, on_done: Callable[[SchemaEnded | Exception], None]) -> None:
        def done(schema: EventSchema | None, why: str) -> None:
            on_done(NotDone("conflict", why) if schema is None else SchemaEnded(name=name, version=schema.version))

        self.schemas.end(name, done)

    def schema_document(self, name: str, on_done: Callable[[dict[str, Any] | Exception], None]) -> None:
        def done(schema: EventSchema | None, why: str) -> None:
            on_done(NotDone("unknown", why) if schema is None else schema.document.model_dump(mode="json"))

        self.schemas.refresh(name, done)

    # Events

    def publish(
        self,
        schema: str,
        event: Mapping[str, Any],
        on_done: Callable[[Published | Exception], None],
        ack: AckWord | None = None,
        once: str = "",
    ) -> EventId:
        return self.entering.publish(schema, event, on_done, ack, once)

    def publish_many(
        self,
        schema: str,
        events: Sequence[Mapping[str, Any]],
        told: Callable[[int, Published | Exception | None], None],
        ack: AckWord | None = None,
    ) -> int:
        return self.entering.publish_many(schema, events, told, ack)

    def when_publishable(
        self, schema: str, event: Mapping[str, Any], on_done: Callable[[bool | Exception], None]
    ) -> None:
        self.entering.when_publishable(schema, event, on_done)

    def _published(self, outcome: PublishResult) -> None:
        self.delivering.ledger.published(outcome.event, outcome.schema)
        self.host.emit(
            EventPublished(
                publication=str(outcome.event),
                outcome=outcome.status.value,
                leaves=outcome.leaves,
                matched=outcome.matched,
                duration_s=outcome.duration_s,
                value_bytes=outcome.bytes,
            )
        )

    # Subscriptions

    def subscribe(
        self,
        request: SubscriptionRequest,
        on_done: Callable[[SubscriptionView | Exception], None],
        owner: str = "",
        *,
        is_bounded: bool = False,
    ) -> SubscriptionView:
        return self.subscriptions.subscribe(request, on_done, owner, is_bounded=is_bounded)

    def charge(self, owner: str, filter: object) -> None:
        self.subscriptions.charge(owner, filter)

    def continued(self, request: SubscriptionRequest, epoch: str) -> str | None:
        return self.subscriptions.continued(request, epoch)

    def subscriptions_held(self) -> list[SubscriptionView]:
        """See `PubSubService.subscriptions_held`."""
        return self.subscriptions.views()

    def subscription_held(self, id: str) -> SubscriptionView:
        return self.subscriptions.view(self.subscriptions.get(id))

    def change(self, id: str, filter: object, on_done: Callable[[SubscriptionView | Exception], None]) -> None:
        self.subscriptions.change(id, filter, on_done)

    def end(self, id: str) -> SubscriptionView:
        return self.subscriptions.end(id)

    def reading(self, id: str) -> tuple[SubscriptionView, Feed[ReceivedEvent]]:
        return self.subscriptions.reading(id)

    def _points(self, schema: SchemaView, node: Node, group: str) -> Sequence[PiecePoint]:
        assert isinstance(schema, EventSchema)
        shares = None if group else self.selectivity.shares(schema.name)
        share = None if shares is None else shares.of
        return pieces_of(schema, node, self.config, self.host.rng.randrange, group, share)

    def _points_now(self, schema: SchemaView, subscription: Subscription) -> Sequence[PiecePoint]:
        return [] if subscription.current is None else self._points(schema, subscription.current.node, "")

    def _seen_whole(self, schema: str) -> SchemaView | None:
        """A schema all of whose events come by here, because this node is the root of a leaf that they all visit."""
        tree = Tree(schema, EVERY)  # the whole square is a leaf also where nothing is kept in it
        is_leaf = self.keeper.entries(tree) or self.keeper.decide(tree, WHOLE, None, vouched=False) == Here()
        return self.schemas.get(schema) if is_leaf else None

    def _answer_self(self, message: InsertSub | EndSub, source: PeerRef) -> Message | None:
        """Where this node is the leaf of its own client's subscription."""
        installing = self.keeper.installing
        return installing.insert(message, source) if isinstance(message, InsertSub) else installing.end(message, source)

    def _levels(self, tree: Tree, attempt: int) -> Sequence[int]:
        return self.guide.install_levels(tree, attempt, self.host.rng)

    def _installed(self, installed: Installed) -> None:
        self.guide.saw(Tree(installed.schema, installed.attribute), installed.level)
        self.host.emit(
            SubscriptionInstalled(
                subscription=f"{installed.sid:016x}-{installed.piece}",
                latency_s=installed.latency_s,
                level=installed.level,
                hops=installed.tries,
            )
        )

    def _ended(self, subscription: Subscription, reason: str) -> None:
        outcome = {subscriptions.ENDED: "ended", subscriptions.UNREAD: "expired"}.get(reason, "refused")
        self.host.emit(SubscriptionEnded(subscription=f"{subscription.number:016x}", outcome=outcome))

    def _tree_told(self, what: str, place: CellAddress, pieces: int, duration_s: float) -> None:
        kind = {"split": LeafSplit, "merged": LeavesMerged}.get(what, LeafMoved)
        tree, cell = f"{place.tree.schema}/{place.tree.attribute}", place.cell
        where = text(alternate(cell) if what == "moved" else cell)
        self.host.emit(kind(tree=tree, cell=where, pieces=pieces, duration_s=duration_s))

    # Questions

    def explain(
        self,
        event: str,
        subscriber: str,
        on_done: Callable[[dict[str, Any] | Exception], None],
        *,
        shows_filters: bool = True,
    ) -> None:
        try:
            asked = EventId.parse(event)
            known = {self.host.id, asked.publisher, *(each.id for each in self.host.leaf_set().members())}
            whose = node_meant(subscriber, known) if subscriber else self.host.id
        except ValueError as error:
            raise NotDone("invalid", str(error)) from error
        told = self.delivering.explainer.explain
        told("", asked, whose, lambda verdict: on_done(verdict.model_dump(mode="json")), shows_filters=shows_filters)

    def tree(self, schema: str, attribute: str, on_done: Callable[[TreeView | Exception], None]) -> None:
        def found(known: EventSchema | None, why: str) -> None:
            if known is None:
                on_done(NotDone("unknown", why))
                return
            try:
                self._walk(known, attribute, on_done)
            except (NotDone, Unavailable) as error:
                on_done(error)

        self.schemas.fetch(schema, found)

    def _walk(self, schema: EventSchema, attribute: str, on_done: Callable[[TreeView | Exception], None]) -> None:
        wanted = attribute or schema.document.attributes[0].name
        known = schema.attributes.get(wanted)
        number = EVERY if known is None else known.number
        if known is None and wanted != EVERY_NAME:
            names = ", ".join(each.name for each in schema.document.attributes)
            raise NotDone("unknown", f"{schema.name} has no attribute {wanted!r:.60}; it has {names}")
        TreeWalk(self.keeper.questions, Tree(schema.name, number), wanted, _bounds_of(schema, wanted), on_done).begin()

    def _publisher_view(self, schema: str, event: EventId) -> PublisherReport | None:
        done = self.publishing.outcomes.get(event)
        if done is None:
            waiting = self.publishing.pending(event)
            return None if waiting is None else PublisherReport(schema_name=waiting.schema.name, outcome="pending")
        return PublisherReport(
            schema_name=done.schema,
            outcome=done.status.value,
            visited=tuple(
                ToldPlace(attribute=each.attribute, cell=text(each.cell), owner=format_id(each.owner.id))
                for each in done.answers
            ),
            missing=tuple(ToldPlace(attribute=attribute, cell=text(cell)) for attribute, cell in done.missing),
        )

    def _attribute_names(self, schema: str) -> Callable[[int], str]:
        known = self.schemas.get(schema)
        named = {} if known is None else {number: each.name for number, each in known.by_number.items()}
        return lambda number: named.get(number, EVERY_NAME)

    def _subscriber_view(self, schema: str, event: EventId) -> SubscriberReport | None:
        given = self.local.window.given(event)
        if given is None and not schema:  # nobody who was asked knows the event, so which subscriptions are meant?
            return None
        checks, places = [], []
        for subscription in self.subscriptions.of_schema(schema):
            checks.append(
                FilterCheck(sid=subscription.number, filter=subscription.view(0).filter, group=subscription.group)
            )
            places += [
                ToldPlace(
                    attribute=piece.sub.attribute, cell=text(piece.place.cell), owner=format_id(piece.place.owner.id)
                )
                for piece in self.subscriptions.pieces(subscription)
                if piece.place is not None
            ]
        fate = "taken" if given else "unseen" if given is None else "filtered"
        return SubscriberReport(fate=fate, subscriptions=tuple(checks), places=tuple(places))

    def _pieces_of(self, schema: str, subscriber: NodeId) -> list[tuple[int, SubObject]]:
        return [
            (node.place.cell, piece.sub)
            for node in self.keeper.forest.nodes()
            if node.place.tree.schema == schema
            for key, piece in node.pieces.items()
            if key.subscriber == subscriber
        ]

    # Inside

    def _index_of(self, name: str) -> _TreeIndex | None:
        """The filters of one schema in this node's leaves; ``None`` while the schema is not known here."""
        found = self._indexes.get(name)
        if found is None and (schema := self.schemas.get(name)) is not None:
            found = self._indexes[name] = _TreeIndex(LeafIndex(schema))
        return found

    def _schema_changed(self, schema: EventSchema) -> None:
        if schema.name in self._indexes:
            self._indexes[schema.name].index.schema = schema

    def _schema_forgotten(self, name: str) -> None:
        if name in self._indexes and not self._indexes[name].index:
            del self._indexes[name]

    def _tree_size(self) -> tuple[int, int]:
        leaves = [node for node in self.keeper.forest.nodes() if node.is_leaf]
        return len(leaves), sum(len(node.pieces) for node in leaves)


class _TreeIndex:
    """The index as the tree uses it: it names leaves by attribute and cell, and a wrong filter is a ``ValueError``."""

    def __init__(self, index: LeafIndex) -> None:
        self.index = index

    def add(self, key: SubscriptionKey, cell: tuple[int, int], sub: SubObject) -> None:
        try:
            self.index.add(key, cell[1], sub)
        except FilterError as error:
            raise ValueError(str(error)) from error

    def has_filter(self, text: str) -> bool:
        return self.index.has_filter(text)

    def remove(self, key: SubscriptionKey, cell: tuple[int, int]) -> None:
        self.index.remove(key, *cell)

    def match(self, values: dict[str, Any], cells: Sequence[tuple[int, int]]) -> list[SubObject]:
        return self.index.match(values, cells)


def _local_index(schema: SchemaView) -> LeafIndex:
    assert isinstance(schema, EventSchema)
    return LeafIndex(schema)


def _bounds_of(schema: EventSchema, name: str) -> Bounds:
    """How the ends of a rectangle are written: as values, or as shares of the square where these mean nothing."""
    attribute = schema.attributes.get(name)

    def end(coordinate: int) -> str:
        if attribute is None:
            return f"{coordinate / SIDE:.4g}"
        return attribute.shown_at(coordinate)

    def bounds(area: Area) -> tuple[tuple[str, str], tuple[str, str]]:
        return (end(area.x_low), end(area.x_high)), (end(area.y_low), end(area.y_high))

    return bounds
