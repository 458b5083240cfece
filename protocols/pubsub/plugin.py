"""Content-based publish/subscribe over the DHT (Li 2008): puts the parts together, and hears what the node tells."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar, Final

from peerd.api import HistorySize, Host, NeighbourChange, Plugin, PluginConfig, RecordRole, SendRefusal
from peerd.errors import ProtocolError
from peerd.ids import NodeId
from peerd.messages import Message, PeerRef
from protocols.pubsub.config import PubSubConfig
from protocols.pubsub.delivering import ledger
from protocols.pubsub.delivering.assembly import Delivering
from protocols.pubsub.delivering.messages import COPY_MESSAGES
from protocols.pubsub.events import EVENTS, LeafMoved, LeafShared, LeafSplit, LeavesMerged
from protocols.pubsub.explaining.explainer import Explainer
from protocols.pubsub.explaining.tree_walk import TreeViews
from protocols.pubsub.matching.index import LeafIndexes
from protocols.pubsub.messages import MESSAGES, Arrived, CellOrder, CellQuestion, LeafUpdate, ProbeSub, TransferSub
from protocols.pubsub.names import Tree, key_of
from protocols.pubsub.publishing import answering, forwarding, publisher
from protocols.pubsub.publishing.answering import Answering
from protocols.pubsub.publishing.entering import Entering
from protocols.pubsub.publishing.forwarding import Forwarding
from protocols.pubsub.publishing.probing import LevelGuide
from protocols.pubsub.publishing.publisher import Publishing
from protocols.pubsub.schema.book import SCHEMA_ITEM, SchemaBook
from protocols.pubsub.subscribing import selectivity, subscriptions
from protocols.pubsub.subscribing.inbox import Inbox
from protocols.pubsub.subscribing.installer import Installer
from protocols.pubsub.subscribing.local import LocalSubscriptions
from protocols.pubsub.subscribing.samples import EventSample, SampleQuestion
from protocols.pubsub.subscribing.selectivity import Selectivity
from protocols.pubsub.subscribing.subscriptions import Subscriptions
from protocols.pubsub.tree.cells import alternate, text
from protocols.pubsub.tree.messages import LOAN_MESSAGES
from protocols.pubsub.tree.rendezvous import Rendezvous
from protocols.pubsub.tree.storage import CellAddress

ROUTED: Final = (ProbeSub, Arrived, TransferSub, CellOrder, LeafUpdate, CellQuestion)
"""What may come by routing. All else is about its sender, and is taken from the sender's own link."""


class PubSub(Plugin):
    """What clients do goes to its parts: ``schemas``, ``entering``, ``subscriptions``, ``explainer``, ``trees``."""

    name: ClassVar[str] = "pubsub"
    messages: ClassVar[tuple[type[Message], ...]] = (
        *MESSAGES,
        *LOAN_MESSAGES,
        *COPY_MESSAGES,
        SampleQuestion,
        EventSample,
    )
    metrics = tuple(
        metric
        for part in (ledger, publisher, answering, forwarding, subscriptions, selectivity)
        for metric in part.METRICS
    )
    events = EVENTS
    Config: ClassVar[type[PluginConfig]] = PubSubConfig
    takes_owned_records: ClassVar[bool] = False
    config: PubSubConfig

    def start(self, host: Host) -> None:
        super().start(host)
        own = host, self.config
        schemas = self.schemas = SchemaBook(*own)
        rendezvous = self.rendezvous = Rendezvous(*own, schemas, LeafIndexes(schemas).of, self._tree_told)
        self.local = LocalSubscriptions(*own)
        self.inbox = Inbox(host, schemas, self.local)
        self.answering = Answering(host)
        received, answer = self.inbox.received_group, self.answering.answer
        self.delivering = Delivering(*own, schemas, rendezvous, self.local, received, answer)
        self.forwarding = Forwarding(*own, schemas, rendezvous, self.delivering.broker, self.answering)
        self.guide = LevelGuide(self.config)
        self.publishing = Publishing(*own, self.forwarding, self.guide, rendezvous, self.delivering.ledger)
        self.entering = Entering(host, schemas, self.publishing)
        self.installer = Installer(*own, self.guide, rendezvous.installing)
        self.selectivity = Selectivity(*own, schemas, rendezvous, self.installer, self.delivering.history)
        self.subscriptions = Subscriptions(*own, schemas, self.installer, self.local, self.selectivity.points)
        sides = self.delivering, self.publishing, self.subscriptions
        self.explainer = Explainer(host, schemas, rendezvous, *sides)
        self.trees = TreeViews(schemas, rendezvous.questions)
        self._introduce()
        self.add_parts(
            *rendezvous.parts, *self.delivering.parts, schemas, self.forwarding, self.publishing, self.explainer
        )
        self.add_parts(self.installer, self.subscriptions, self.inbox, self.answering, self.selectivity)
        for part in (schemas, rendezvous, self.delivering, self.subscriptions):
            part.start()

    def _introduce(self) -> None:
        """Tell parts of those that were made after them, because these need them, too."""
        self.rendezvous.events = self.delivering.broker
        self.rendezvous.subscribers.own = self.installer
        self.delivering.broker.tree_listeners.append(self.forwarding.tree_changed)
        self.answering.take, self.answering.awaits = self.publishing.on_ack, self.publishing.awaits
        self.selectivity.subscriptions = self.subscriptions

    def _tree_told(self, what: str, place: CellAddress, pieces: int, duration_s: float) -> None:
        kind = {"split": LeafSplit, "merged": LeavesMerged}.get(what, LeafMoved)
        tree, cell = f"{place.tree.schema}/{place.tree.attribute}", place.cell
        where = text(alternate(cell) if what == "moved" else cell)
        if what == "shared":
            self.host.emit(LeafShared(tree=tree, cell=where, pieces=pieces))
            return
        self.host.emit(kind(tree=tree, cell=where, pieces=pieces, duration_s=duration_s))

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
        self.rendezvous.neighbours_changed()

    def record_allowed(self, key: NodeId, item: bytes, value: bytes | None, writer: NodeId) -> bool:
        if item == SCHEMA_ITEM:
            return self.schemas.may_write(key, value)
        return self.rendezvous.record_allowed(key, item, value, writer)

    def record_changed(self, key: NodeId, role: RecordRole, item: bytes) -> None:
        if item != SCHEMA_ITEM:
            self.rendezvous.record_changed(key, role, item)

    def records_settled(self) -> None:
        self.rendezvous.records_settled()

    def peer_down(self, peer: PeerRef, reason: str) -> None:
        self.rendezvous.sharing.peer_down(peer)
        self.delivering.holding.peer_down(peer)

    def send_refused(self, peer: PeerRef, message_type: type[Message], reason: SendRefusal, count: int) -> None:
        self.publishing.send_refused(peer, message_type, reason)  # first: it forgets who is gone, and asks others
        self.forwarding.send_refused(peer, message_type, reason, count)
        self.answering.send_refused(peer, message_type, reason, count)

    def stop(self) -> None:
        self.publishing.end("this daemon stops")
        self.delivering.ledger.report()

    def inherit(self, failed: PubSub) -> None:
        failed.publishing.end("publish/subscribe was restarted in this daemon")

    def reconfigured(self) -> None:
        self.rendezvous.reconfigured(self.config)
        self.delivering.reconfigured(self.config)
        self.forwarding.config = self.publishing.config = self.config
        self.publishing.cache.entries_max = self.config.leaf_cache_max

    def histories(self) -> Sequence[HistorySize]:
        feeds = [each.feed for each in self.subscriptions.all()]
        held = sum(len(feed) for feed in feeds), sum(feed.held_bytes for feed in feeds)
        return (
            HistorySize("events for readers", *held, sum(feed.bytes_max for feed in feeds)),
            *(part.history() for part in (self.publishing, self.entering.once, self.forwarding, self.answering)),
            *(part.history() for part in (self.delivering.broker, self.delivering.ledger, self.delivering.history)),
            self.local.window.history(),
        )

    def drain(self, done: Callable[[], None]) -> None:
        self.delivering.deliverer.drain(done)

    def validate(self) -> None:
        for part in (self.rendezvous, self.forwarding, self.answering, self.publishing, self.delivering):
            part.validate()
