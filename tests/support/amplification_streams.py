"""A ring with one stream, and the smallest message of each kind that means something there.

A stream is never silent: parents send heartbeats, and policies report. The sender is a node in the middle of the tree,
so that it says to its parent what children say, to its child what parents say, and to the producer what goes there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

from peerd.ids import NodeId
from peerd.messages import Message, PeerRef
from peerd.overlay.config import OverlayConfig
from peerd.services.records.config import RecordsConfig
from peerd.sim.simulation import Place, Simulation
from peerd.testing.simulation import ring
from protocols.dissemination import messages as tree
from protocols.dissemination.config import DisseminationConfig
from protocols.dissemination.documents import messages as documents
from protocols.dissemination.front.judging import StreamJudge, WatchedStream, plugin_of
from protocols.dissemination.interests.classes import ClassesKind
from protocols.dissemination.messages import StreamItem
from protocols.dissemination.models import StreamSpec, StreamView
from protocols.dissemination.names import START, StreamPosition, stream_key
from protocols.dissemination.plugin import Dissemination
from protocols.dissemination.policies.cost import messages as cost
from protocols.dissemination.policies.overlap import messages as overlap
from protocols.dissemination.stream_node import StreamNode

MESSAGES: Final[tuple[type[Message], ...]] = (
    *tree.MESSAGES,
    *overlap.MESSAGES,
    *cost.MESSAGES,
    *documents.MESSAGES,
)
DOCUMENT: Final = bytes(16)
"""No document has this id."""
BEAT_ID: Final = tree.TreeHeartbeat.TYPE_ID
NAME: Final = "s"
STREAM: Final = stream_key(NAME)
ITEMS: Final = 12
WANTS: Final = "a"
FAN_OUT: Final = 2
_TO_CHILD: Final = frozenset(
    {
        *(
            tree.Ready,
            tree.Declined,
            tree.ReplayItems,
            tree.Widened,
            tree.ItemBatch,
            tree.TreeHeartbeat,
            tree.StreamGap,
        ),
        tree.ItemPart,
        *(tree.Climbed, tree.Dismiss, tree.MoveAway, tree.StreamEnds, tree.TreeAnswer, tree.PlanAnswer),
        tree.Reserved,
        *(overlap.AddResult, overlap.GetOverhead, overlap.MoveOrder, overlap.RoomAbove, overlap.MoveToGrandparent),
        *(cost.CostRelatives, cost.CostToken, cost.AskToHold, cost.Yields, cost.OrderToMove, cost.PlaceOffered),
    }
)
_TO_PRODUCER: Final = frozenset({overlap.MoveReport, tree.PlanQuestion})
"""All others go to the parent."""


def policy_for(kind: type[Message]) -> str:
    """Whose message it is."""
    return "cost" if kind in cost.MESSAGES else "overlap"


@dataclass(frozen=True)
class StreamWorld:
    """The ring, and the node in the middle."""

    simulation: Simulation
    member: Place

    def victim(self, kind: type[Message]) -> Place:
        """Whom a message of this kind is sent to."""
        node = self.node
        if kind in _TO_PRODUCER:
            return self.simulation.nodes[0]
        if kind in _TO_CHILD:
            return self.simulation.find(next(iter(node.member.down.children)))
        assert node.parent is not None
        return self.simulation.find(node.parent.id)

    @property
    def node(self) -> StreamNode:
        """The stream at the member."""
        return _node_at(self.member)

    def smallest(self, kind: type[Message]) -> Message:
        """The smallest message of a kind that the victim does something about, as the member may send it."""
        return _MAKERS[kind](_Words(self, self.victim(kind)))


def _node_at(place: Place) -> StreamNode:
    [node] = plugin_of(place).nodes
    return node


def quiet_stream_ring(policy: str, count: int, overlay: OverlayConfig, settle_s: float, seed: int = 7) -> StreamWorld:
    """A settled ring in which every node subscribes to everything of one stream, and has got some items."""
    config = DisseminationConfig.model_validate({"fan_out": FAN_OUT, "lease": "1h", "replay_for": "1h"})
    services = {"records": RecordsConfig(sync_interval=3600.0)}
    simulation = ring(count, seed, plugins=lambda index: [Dissemination(config)], overlay=overlay, services=services)
    simulation.misbehaviour_is_failure = False
    judge = StreamJudge()
    told: list[StreamView | Exception] = []
    judge.create(simulation.nodes[0], StreamSpec(name=NAME, kind="classes", policy=policy), told.append)
    simulation.run_until(lambda: bool(told), limit_s=60.0)
    for place in simulation.nodes[1:]:
        watched = judge.subscribe(place, NAME, WANTS)
        simulation.run_until(partial(_has_begun, watched), limit_s=60.0)
    for _ in range(ITEMS):
        judge.publish(simulation.nodes[0], NAME, WANTS)
        simulation.run_for(0.2)
    simulation.run_for(settle_s)
    judge.read()
    assert all(each.received == ITEMS for each in judge.watched)
    inner = (place for place in simulation.nodes[1:] if _node_at(place).member.down.children)
    member = max(inner, key=lambda place: (_node_at(place).depth or 0, place.index))
    return StreamWorld(simulation, member)


def _has_begun(watched: WatchedStream) -> bool:
    return watched.reader is not None


class _Words:
    """What the messages are made of."""

    def __init__(self, world: StreamWorld, victim: Place) -> None:
        node = world.node
        self.world, self.member, self.victim = world, world.member.peer, victim.peer
        watermark = node.member.state.watermark
        self.mark = watermark
        self.start = START
        down = node.member.down.children.get(victim.id)
        up = node.member.up.parent
        assert up is not None
        self.attempt = up.attempt if down is None else down.attempt
        self.number = up.asked_number + 1 if down is None else down.number + 1
        self.next_mark = StreamPosition(watermark.epoch, watermark.sequence + 1)
        self.item = StreamItem.of(watermark.epoch, watermark.sequence + 1, 0, WANTS.encode())
        self.interest = ClassesKind().parse(WANTS).id
        self.parent = up.peer
        self.bits = overlap.ItemBits(watermark.epoch, 0, watermark.sequence, b"\xff\x0f")
        own = node.member.state.me.id
        self.own: NodeId = own
        self.figures = cost.NodeFigures(self.member, 0.0, 0.0, 0.0, 0.0, 0.0, True, ())

    def other(self) -> PeerRef:
        """A node that is neither of the two: the producer."""
        return self.world.simulation.nodes[0].peer

    def reorganise(self) -> Message:
        """The victim is to pass it on."""
        child = next(iter(self.world.node.member.down.children.values())).peer
        return overlap.Reorganise(STREAM, child, self.bits, self.bits, 0.5, 0.5, (self.own,), (0.5,))


_MAKERS: Final[Mapping[type[Message], Callable[[_Words], Message]]] = {
    documents.DocumentMeet: lambda it: documents.DocumentMeet(DOCUMENT, b"\0"),
    documents.DocumentMet: lambda it: documents.DocumentMet(DOCUMENT, b"\0"),
    documents.DocumentHave: lambda it: documents.DocumentHave(DOCUMENT, 0),
    documents.DocumentAsk: lambda it: documents.DocumentAsk(DOCUMENT, 0),
    documents.DocumentNot: lambda it: documents.DocumentNot(DOCUMENT),
    tree.Attach: lambda it: tree.Attach(STREAM, it.attempt + 1, (WANTS,), it.start, is_new=True, is_orphan=True),
    tree.Ready: lambda it: tree.Ready(STREAM, it.attempt, it.mark, it.mark),
    tree.Declined: lambda it: tree.Declined(STREAM, it.attempt, 0),
    tree.Begin: lambda it: tree.Begin(STREAM, it.attempt + 1, it.start),
    tree.DetachFromParent: lambda it: tree.DetachFromParent(STREAM, it.attempt),
    tree.Widen: lambda it: tree.Widen(STREAM, ("b",), it.start, False, it.attempt, it.number),
    tree.ReplayItems: lambda it: tree.ReplayItems(STREAM, (it.item.packed,), it.attempt, it.number),
    tree.Widened: lambda it: tree.Widened(STREAM, (it.interest,), it.start, it.mark, it.attempt, it.number),
    tree.Narrow: lambda it: tree.Narrow(STREAM, (it.interest,), it.attempt, it.number),
    tree.ItemBatch: lambda it: tree.ItemBatch(STREAM, (it.item.packed,), it.next_mark, it.attempt, it.number),
    tree.TreeHeartbeat: lambda it: tree.TreeHeartbeat(STREAM, it.mark, None, it.attempt, it.number, True),
    tree.StreamGap: lambda it: tree.StreamGap(STREAM, it.mark, it.next_mark, it.attempt, it.number),
    tree.Climb: lambda it: tree.Climb(STREAM, it.member, 1),
    tree.Climbed: lambda it: tree.Climbed(STREAM, it.attempt, True),
    tree.Dismiss: lambda it: tree.Dismiss(STREAM, it.attempt),
    tree.MoveAway: lambda it: tree.MoveAway(STREAM, it.attempt, (it.other(),)),
    tree.TreeQuestion: lambda it: tree.TreeQuestion(STREAM),
    tree.TreeAnswer: lambda it: tree.TreeAnswer(STREAM),
    tree.PlanQuestion: lambda it: tree.PlanQuestion(STREAM),
    tree.PlanAnswer: lambda it: tree.PlanAnswer(STREAM),
    tree.StreamEnds: lambda it: tree.StreamEnds(STREAM, it.attempt),
    tree.Reserve: lambda it: tree.Reserve(STREAM, it.other().id),
    tree.Reserved: lambda it: tree.Reserved(STREAM, it.parent.id, False),
    tree.Unreserve: lambda it: tree.Unreserve(STREAM),
    tree.HandOver: lambda it: tree.HandOver(STREAM, tree.HandOverStep.PREPARE, 0, it.start),
    tree.HandOverAnswer: lambda it: tree.HandOverAnswer(STREAM, tree.HandOverState.READY),
    tree.ItemPart: lambda it: tree.ItemPart(STREAM, b"x", 0, it.attempt, it.number),
    tree.ItemTaken: lambda it: tree.ItemTaken(STREAM, it.attempt, it.number),
    overlap.AddRequest: lambda it: overlap.AddRequest(STREAM, it.member, 1, it.victim.id, (WANTS,)),
    overlap.AddResult: lambda it: overlap.AddResult(STREAM, 1, it.victim.id, True),
    overlap.Reorganise: lambda it: it.reorganise(),
    overlap.GetOverhead: lambda it: overlap.GetOverhead(STREAM, 1, 1, (overlap.Sought(it.bits, 0.0, 64.0),)),
    overlap.OverheadAnswer: lambda it: overlap.OverheadAnswer(STREAM, 1, ((),)),
    overlap.MoveOrder: lambda it: overlap.MoveOrder(STREAM, 1, it.own, it.other()),
    overlap.MoveReport: lambda it: overlap.MoveReport(STREAM, 1, True, it.parent.id),
    overlap.MoveOutcome: lambda it: overlap.MoveOutcome(STREAM, 1, it.own, it.other(), it.bits),
    overlap.ChildHistory: lambda it: overlap.ChildHistory(STREAM, it.bits),
    overlap.RoomAbove: lambda it: overlap.RoomAbove(STREAM),
    overlap.MoveToGrandparent: lambda it: overlap.MoveToGrandparent(STREAM, it.parent),
    cost.CostReport: lambda it: cost.CostReport(STREAM, it.figures, (), ()),
    cost.CostRelatives: lambda it: cost.CostRelatives(STREAM, 0.0, (it.other(),)),
    cost.CostToken: lambda it: cost.CostToken(STREAM, False),
    cost.AskToHold: lambda it: cost.AskToHold(STREAM),
    cost.HoldsStill: lambda it: cost.HoldsStill(STREAM),
    cost.AskToYield: lambda it: cost.AskToYield(STREAM),
    cost.Yields: lambda it: cost.Yields(STREAM),
    cost.OrderToMove: lambda it: cost.OrderToMove(STREAM, 1, it.other()),
    cost.OrderEnded: lambda it: cost.OrderEnded(STREAM, 1, True),
    cost.AskForPlace: lambda it: cost.AskForPlace(STREAM, 1, None, None),
    cost.PlaceOffered: lambda it: cost.PlaceOffered(STREAM, 1, 0.0, 0.0, 0.0, True),
}
"""For each kind of message how to make it; a kind that is missing here fails the test that asks for it."""
