"""A quiet ring with publish/subscribe, and the smallest message of each kind that means something there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from peerd.ids import NodeId
from peerd.messages import Message, PeerRef, encode_body
from peerd.overlay.config import OverlayConfig
from peerd.services.records.config import RecordsConfig
from peerd.sim.simulation import Place, Simulation
from peerd.testing.simulation import ring
from protocols.pubsub.config import PubSubConfig
from protocols.pubsub.delivering.messages import ForgetKept, Held, HoldEvents, KeepEvents, KeptEvent, ReleaseEvents
from protocols.pubsub.front.judging import Judge, plugin_of
from protocols.pubsub.messages import (
    MESSAGES,
    Arrived,
    CarriedAck,
    CellAnswer,
    CellOrder,
    CellQuestion,
    Confirm,
    DeliveredEvent,
    DeliveryAnswer,
    DeliveryNote,
    EndSub,
    Established,
    EventAck,
    EventBody,
    EventDelivery,
    EventName,
    ExplainAnswer,
    ExplainQuestion,
    GroupDelivery,
    InsertAnswer,
    InsertSub,
    Kept,
    LeafEntry,
    LeafUpdate,
    LoadAnswer,
    LoadQuestion,
    NodeDelivery,
    OrderKind,
    PastForgotten,
    PieceStatus,
    ProbePub,
    ProbeSub,
    SubObject,
    Transferred,
    TransferResult,
    TransferSub,
    TreeCells,
)
from protocols.pubsub.names import EventId, Tree, key_of
from protocols.pubsub.plugin import PubSub
from protocols.pubsub.subscribing.samples import EventSample, SampleQuestion
from protocols.pubsub.tree.cells import WHOLE, children

__all__ = ["MESSAGES", "key_for", "owner_of", "quiet_pubsub_ring", "smallest"]

SCHEMA: Final = "t"
TREE: Final = Tree(SCHEMA, 1)
SUBSCRIBERS: Final = 5
DOCUMENT: Final = {"name": SCHEMA, "attributes": [{"name": "a", "type": "int", "low": 0, "high": 100}]}
FILTER: Final = "a > 1"


def quiet_pubsub_ring(count: int, overlay: OverlayConfig, settle_s: float, seed: int = 7) -> tuple[Simulation, EventId]:
    """A settled ring with a schema that all know, subscriptions to one leaf, and an event that all of them got."""
    config = PubSubConfig.model_validate(
        {"lease": "1h", "update_interval": "1h", "merge_share": 0.0, "unread_for": "1h", "delivery_keep": "10m"}
    )
    services = {"records": RecordsConfig(sync_interval=3600.0)}
    simulation = ring(count, seed, plugins=lambda index: [PubSub(config)], overlay=overlay, services=services)
    simulation.misbehaviour_is_failure = False
    told: list[Any] = []
    plugin_of(simulation.nodes[0]).schemas.declare(DOCUMENT, told.append)
    simulation.run_until(lambda: bool(told), limit_s=60.0)
    for place in simulation.nodes:
        plugin_of(place).schemas.fetch(SCHEMA, lambda schema, why: None)
    simulation.run_for(5.0)
    judge = Judge(lambda: simulation.now)
    watched = [judge.subscribe(place, SCHEMA, FILTER) for place in simulation.nodes[:SUBSCRIBERS]]
    simulation.run_until(lambda: all(each.established_at is not None for each in watched), limit_s=60.0)
    published = judge.publish(simulation.nodes[SUBSCRIBERS], SCHEMA, {"a": 5})
    simulation.run_for(settle_s)
    judge.read()
    assert all(published.event in each.seen for each in watched)
    return simulation, published.event


def owner_of(simulation: Simulation) -> Place:
    """The root of the only leaf."""
    return simulation.find(simulation.oracle().root(key_of(TREE, WHOLE)))


def key_for(message: Message) -> NodeId | None:
    """The key that a message is routed to; ``None`` for those that go to a node's own id, and those of others."""
    if type(message) not in MESSAGES or isinstance(message, Arrived):
        return None
    return key_of(TREE, getattr(message, "cell", WHOLE))


def smallest(kind: type[Message], member: Place, victim: PeerRef, past: EventId) -> Message:
    """The smallest message of a kind that the victim does something about, as the member may send it."""
    return _MAKERS[kind](_Words(member, victim, past))


class _Words:
    """What the messages are made of."""

    def __init__(self, member: Place, victim: PeerRef, past: EventId) -> None:
        own = member.peer
        schema = plugin_of(member).schemas.get(SCHEMA)
        assert schema is not None
        encoded = schema.pack(schema.read_values({"a": 5}))
        self.member, self.victim = own, victim
        self.sub = SubObject(own, 1, 0, 1, TREE.attribute, 0, 1 << 31, FILTER)
        self.event = EventBody(own, 1, 1, 1, encoded)
        self.past = EventName(past.publisher, past.epoch, past.sequence)
        self.places = (TreeCells(TREE.attribute, (WHOLE,)),)

    def carried(self) -> CarriedAck:
        """An answer that is not the victim's to take: it has to find the way to somebody else."""
        ack = EventAck(SCHEMA, self.past.epoch, (self.past.sequence,), self.places, (1,), 0)
        return CarriedAck(self.past.publisher, self.member, encode_body(ack), b"")


_CHILD: Final = children(WHOLE)[0]
_MAKERS: Final[Mapping[type[Message], Callable[[_Words], Message]]] = {
    ProbeSub: lambda it: ProbeSub(SCHEMA, it.sub, WHOLE, 600),
    Established: lambda it: Established(SCHEMA, 1, 0, 1, WHOLE, True, 0),
    Confirm: lambda it: Confirm(1, 0, 1, True),
    Kept: lambda it: Kept(SCHEMA, 1, 0, 1, WHOLE, PieceStatus.KEPT),
    InsertSub: lambda it: InsertSub(SCHEMA, it.sub, WHOLE, 600),
    InsertAnswer: lambda it: InsertAnswer(PieceStatus.KEPT, WHOLE),
    EndSub: lambda it: EndSub(SCHEMA, 1, 0, 1, TREE.attribute, WHOLE),
    TransferSub: lambda it: TransferSub(*TREE, _CHILD, WHOLE, (it.sub,), (600,), 1),
    Transferred: lambda it: Transferred(
        *TREE, _CHILD, (TransferResult(it.member.id, 1, 0, 1, PieceStatus.REPLICATED),), 1
    ),
    CellOrder: lambda it: CellOrder(*TREE, WHOLE, OrderKind.RETIRE),
    LeafUpdate: lambda it: LeafUpdate(*TREE, WHOLE, _CHILD, (LeafEntry(_CHILD, 1),)),
    CellQuestion: lambda it: CellQuestion(*TREE, WHOLE, 1),
    CellAnswer: lambda it: CellAnswer(1, 0),
    ProbePub: lambda it: ProbePub(SCHEMA, it.member, (it.event,), it.places, 2),
    EventAck: lambda it: EventAck(SCHEMA, 1, (1,), it.places, (1,), 0),
    CarriedAck: lambda it: it.carried(),
    EventDelivery: lambda it: EventDelivery(SCHEMA, 1, 1, (DeliveredEvent(it.event),)),
    DeliveryAnswer: lambda it: DeliveryAnswer(1),
    GroupDelivery: lambda it: GroupDelivery(SCHEMA, it.member, it.event, (NodeDelivery(it.victim.id),)),
    PastForgotten: lambda it: PastForgotten(SCHEMA, 1),
    DeliveryNote: lambda it: DeliveryNote(SCHEMA, (it.past,)),
    HoldEvents: lambda it: HoldEvents(SCHEMA, (it.event,), it.places),
    Held: lambda it: Held(1),
    KeepEvents: lambda it: KeepEvents(SCHEMA, it.sub.subscriber, 1 << 20, (KeptEvent(1, 1 << 60, it.event),)),
    ForgetKept: lambda it: ForgetKept(it.sub.subscriber.id, it.member.id, 1),
    ReleaseEvents: lambda it: ReleaseEvents(SCHEMA, (it.past,)),
    ExplainQuestion: lambda it: ExplainQuestion(
        SCHEMA, it.past.publisher, it.past.epoch, it.past.sequence, it.victim.id
    ),
    ExplainAnswer: lambda it: ExplainAnswer(b"{}"),
    Arrived: lambda it: Arrived(SCHEMA, 1, 0, 1, WHOLE),
    SampleQuestion: lambda it: SampleQuestion(SCHEMA),
    EventSample: lambda it: EventSample(SCHEMA, 0),
    LoadQuestion: lambda it: LoadQuestion(),
    LoadAnswer: lambda it: LoadAnswer(1),
}
"""For each kind of message how to make it; a kind that is missing here fails the test that asks for it."""
