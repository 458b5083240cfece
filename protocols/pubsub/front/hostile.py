"""How a hostile node of the simulator misbehaves in publish/subscribe.

It knows more than a real one could: every subscription with its secret number, every cell, every event under way.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Final

from msgspec.structs import replace

from peerd.ids import NodeId
from peerd.messages import PeerRef, encode_body
from peerd.sim.hostile.member import Behaviour, Decoded, Frame, HostileNode
from protocols.pubsub.bodies import id_of
from protocols.pubsub.delivering.messages import HoldEvents, ReleaseEvents
from protocols.pubsub.front.hostile_base import SOME, PubSubBehaviour, plugin_at, spoilt
from protocols.pubsub.messages import (
    EVENTS_MAX,
    SUBS_MAX,
    CarriedAck,
    CellAnswer,
    CellOrder,
    CellQuestion,
    Confirm,
    DeliveredEvent,
    EndSub,
    Established,
    EventAck,
    EventDelivery,
    EventName,
    ExplainQuestion,
    GroupDelivery,
    InsertSub,
    Kept,
    LeafEntry,
    LeafUpdate,
    NodeDelivery,
    OrderKind,
    PieceStatus,
    ProbePub,
    ProbeSub,
    SubObject,
    Transferred,
    TransferResult,
    TransferSub,
    TreeCells,
)
from protocols.pubsub.names import Tree
from protocols.pubsub.publishing.answering import ack_statement
from protocols.pubsub.publishing.outcomes import PendingPublish
from protocols.pubsub.tree.cell_node import CellNode
from protocols.pubsub.tree.cells import (
    LEVEL_LIMIT,
    SIDE,
    WHOLE,
    alternate,
    cell_at,
    children,
    home,
    is_alternate,
    level,
    parent,
)
from protocols.pubsub.tree.messages import LeafHelper, LendLeaf, LoanQuestion
from protocols.pubsub.tree.storage import CellAddress

FEW: Final = 4
"""Of what is said to everybody several times: more at once shows nothing more, and takes long to simulate."""
MANY: Final = 100
LONG_MS: Final = 2**32 - 1


class ForgedSubscriptions(PubSubBehaviour):
    """Installs pieces in the name of others, and new versions of theirs that match nothing."""

    name = "forges subscriptions"

    def strike(self) -> int:
        pieces = self.pieces()
        for cell, piece in pieces:
            for sub in (spoilt(piece.sub), replace(piece.sub, sid=piece.sub.sid ^ 1)):
                self.route(cell.place, ProbeSub(cell.place.tree.schema, sub, cell.cell, 600, vouched=True))
        return len(pieces)


class ForgedTransfers(PubSubBehaviour):
    """Gives cells copies that nobody has asked for, as their parent or child would."""

    name = "forges transfers"

    def strike(self) -> int:
        pieces = self.pieces()
        for cell, piece in pieces:
            tree, subs = cell.place.tree, (spoilt(piece.sub), replace(piece.sub, sid=piece.sub.sid ^ 1))
            above = [parent(cell.cell)] if cell.cell != WHOLE else []
            below = list(children(cell.cell)) if level(cell.cell) < LEVEL_LIMIT else []
            for giver in (*above, *below):
                for number in (0, self.rng.getrandbits(63)):
                    self.route(cell.place, TransferSub(*tree, cell.cell, giver, subs, (600, 600), number))
            for half in below:
                place = CellAddress(tree, half)
                self.route(place, TransferSub(*tree, half, cell.cell, subs, (600, 600), 0))
        return len(pieces)


class LearnsTransfers(PubSubBehaviour):
    """Asks cells for the number of their split or merge; with it, says that all was copied and gives false copies."""

    name = "learns transfers"
    gap_s: ClassVar[float] = 0.3

    def __init__(self, node: HostileNode) -> None:
        super().__init__(node)
        self.learnt = 0
        self._asked: dict[int, tuple[CellNode, list[SubObject]]] = {}

    def strike(self) -> int:
        for cell in self.cells():
            if cell.transfer and not self._is_concerned(cell):
                nonce = self.rng.getrandbits(63)
                self._asked[nonce] = cell, [piece.sub for piece in cell.pieces.values()]
                self.route(cell.place, CellQuestion(*cell.place.tree, cell.cell, nonce, True))
        return 1

    def _is_concerned(self, cell: CellNode) -> bool:
        """Whether it is the root of a half: then it is told the number, and may do with its own cell what it likes."""
        oracle = self.node.party.simulation.oracle()
        return any(
            oracle.root(CellAddress(cell.place.tree, half).key) == self.node.peer.id for half in children(cell.cell)
        )

    def hears(self, peer: PeerRef, frame: Frame, decoded: Decoded | None) -> bool:
        message = None if decoded is None else decoded[0]
        if isinstance(message, CellAnswer) and message.nonce in self._asked:
            cell, subs = self._asked.pop(message.nonce)
            if message.transfer:
                self.learnt += 1
                self._use(peer, cell, subs[:SUBS_MAX], message.transfer)
            return False
        return True

    def _use(self, root: PeerRef, cell: CellNode, subs: list[SubObject], number: int) -> None:
        tree = cell.place.tree
        for half in children(cell.cell):
            inside = [sub for sub in subs if cell_at(sub.low, sub.high, level(half)) == half]
            results = (
                TransferResult(sub.subscriber.id, sub.sid, sub.piece, sub.version, PieceStatus.REPLICATED)
                for sub in inside
            )
            self.node.say(root, Transferred(*tree, half, tuple(results), number))
            false = tuple(map(spoilt, inside))
            self.route(CellAddress(tree, half), TransferSub(*tree, half, cell.cell, false, (600,) * len(false), number))


class EndsForOthers(PubSubBehaviour):
    """Ends and changes other nodes' subscriptions at their leaves, and says that leaves have done so."""

    name = "ends for others"

    def strike(self) -> int:
        pieces = self.pieces()
        for cell, piece in pieces:
            sub, schema = piece.sub, cell.place.tree.schema
            self.node.ask(
                self.root_of(cell.place), EndSub(schema, sub.sid, sub.piece, sub.version + 1, sub.attribute, cell.cell)
            )
            for status in (PieceStatus.GONE, PieceStatus.QUOTA, PieceStatus.REPLICATED):
                told = Kept(schema, sub.sid, sub.piece, sub.version, cell.cell, status)
                self.node.say(sub.subscriber, told)
        return len(pieces)


class InsertsForOthers(PubSubBehaviour):
    """Gives leaves, on its own link, pieces of others: that is seen at once."""

    name = "inserts for others"

    def strike(self) -> int:
        pieces = self.pieces()
        for cell, piece in pieces[:1]:
            self.node.ask(
                self.root_of(cell.place), InsertSub(cell.place.tree.schema, spoilt(piece.sub), cell.cell, 600)
            )
        return len(pieces)


class ManySubscriptions(PubSubBehaviour):
    """Installs more and more pieces of its own, and confirms them all."""

    name = "subscribes without end"
    gap_s: ClassVar[float] = 0.5

    def strike(self) -> int:
        schemas = [cell.place.tree.schema for cell in self.cells()]
        for _ in range(MANY if schemas else 0):
            low = self.rng.randrange(SIDE - 1)
            sid, high = self.rng.getrandbits(63), self.rng.randrange(low, SIDE)
            sub = SubObject(self.node.peer, sid, 0, 1, 1, low, high, "attr1 > 1")
            place = CellAddress(Tree(schemas[0], 1), WHOLE)
            self.route(place, ProbeSub(schemas[0], sub, WHOLE, 600, vouched=True))
        return len(schemas)

    def hears(self, peer: PeerRef, frame: Frame, decoded: Decoded | None) -> bool:
        if decoded is None or not isinstance(message := decoded[0], Established):
            return True
        self.node.answer(peer, Confirm(message.sid, message.piece, message.version, True, 600), decoded[1])
        return False


class Strangers(PubSubBehaviour):
    """Installs pieces of nodes that do not exist."""

    name = "subscribes for strangers"

    def strike(self) -> int:
        cells = [cell for cell in self.some_cells() if cell.place.tree.attribute]
        for cell in cells:
            for low in range(SOME):
                stranger = self.node.stranger(NodeId(self.rng.getrandbits(128)), 100)
                sub = SubObject(stranger, self.rng.getrandbits(63), 0, 1, cell.place.tree.attribute, low, SIDE - 1, "")
                message = ProbeSub(cell.place.tree.schema, replace(sub, filter="attr1 > 1"), WHOLE, 600, vouched=True)
                self.route(CellAddress(cell.place.tree, WHOLE), message)
        return len(cells)


class LyingAcks(PubSubBehaviour):
    """Acknowledges events for cells that it is not the root of, also in their roots' names, refuses them, and puts
    them off."""

    name = "lies in acknowledgements"
    gap_s: ClassVar[float] = 0.01

    def strike(self) -> int:
        events = self.under_way()
        for event in events:
            self._lie(event)
        return len(events)

    def _lie(self, event: PendingPublish) -> None:
        body, schema = event.body, event.schema.name
        outstanding = sorted(event.coverage.outstanding.items())
        everything = [TreeCells(attribute, self._not_own(schema, attribute, [WHOLE])) for attribute, _ in outstanding]
        rest = [
            TreeCells(attribute, self._not_own(schema, attribute, sorted(cells))) for attribute, cells in outstanding
        ]
        for places in (tuple(everything), tuple(rest)):
            about = schema, body.epoch, (body.sequence,), places
            self.node.say(body.publisher, EventAck(*about, (0,), 2))
            self.node.say(body.publisher, EventAck(*about, (), 0, "no", 0))
            self.node.say(body.publisher, EventAck(*about, (), 0, "later", LONG_MS))
            self._carry_a_lie(body.publisher, EventAck(*about, (0,), 2))

    def _carry_a_lie(self, publisher: PeerRef, ack: EventAck) -> None:
        """Bring an answer as if a leaf's root had said it, with a proof of its own."""
        plugin = plugin_at(self.node)
        claimed = [(each.attribute, cell) for each in ack.covered for cell in each.cells]
        if plugin is None or not claimed:
            return
        attribute, cell = claimed[0]
        root = self.root_of(CellAddress(Tree(ack.schema, attribute), cell))
        body = encode_body(ack)
        proof = plugin.host.sign(ack_statement(publisher.id, root, body))
        self.node.say(publisher, CarriedAck(publisher.id, root, body, proof))

    def _not_own(self, schema: str, attribute: int, cells: list[int]) -> tuple[int, ...]:
        """Those that it is not the root of: of its own it may say what it likes."""
        oracle, tree = self.node.party.simulation.oracle(), Tree(schema, attribute)
        return tuple(cell for cell in cells if oracle.root(CellAddress(tree, cell).key) != self.node.peer.id)


class FalseLoans(PubSubBehaviour):
    """Lends leaves of others, takes loans back, wants to serve, and names itself as the helper of roots."""

    name = "shares leaves of others"

    def strike(self) -> int:
        cells = self.some_cells()
        for cell in cells:
            place, number = (*cell.place.tree, cell.cell), self.rng.getrandbits(62) + 1
            subs = tuple(spoilt(piece.sub) for piece in [*cell.pieces.values()][:SOME])
            for peer in self.node.others():
                self.node.ask(peer, LendLeaf(*place, number, True, subs))
                self.node.ask(peer, LendLeaf(*place, 0))
                self.node.say(peer, LeafHelper(*place, self.node.peer))
            for known in (number, *(loan.number for loan in (cell.loans.of.values() if cell.loans else ()))):
                self.node.ask(self.root_of(cell.place), LoanQuestion(*place, known, 0))
        return len(cells)


class FalseOrders(PubSubBehaviour):
    """Orders cells to be leaves, to be merged and to retire, as if it were their parent."""

    name = "gives false orders"
    gap_s: ClassVar[float] = 0.3

    def strike(self) -> int:
        cells = self.some_cells()
        for cell in cells:
            below = list(children(cell.cell)) if level(cell.cell) < LEVEL_LIMIT else []
            for target in (cell.cell, *below):
                place = CellAddress(cell.place.tree, target)
                for kind in OrderKind:
                    self.route(place, CellOrder(*place.tree, target, kind))
        return len(cells)


class FalseReports(PubSubBehaviour):
    """Reports leaves that there are not, and that leaves are empty or gone."""

    name = "reports false leaves"
    gap_s: ClassVar[float] = 0.3

    def strike(self) -> int:
        cells = self.some_cells()
        for cell in cells:
            if level(cell.cell) + 2 > LEVEL_LIMIT or is_alternate(cell.cell):
                continue
            for part in (*children(cell.cell), alternate(cell.cell)):
                deep = children(home(part))[0]  # an alternate has no halves
                for entries in ((LeafEntry(part, 0),), (LeafEntry(deep, 9),), ()):
                    self.route(cell.place, LeafUpdate(*cell.place.tree, cell.cell, part, entries))
        return len(cells)


class FalseEvents(PubSubBehaviour):
    """Forges events of others: on their way, at leaves, and as deliveries by both ways."""

    name = "forges events"

    def strike(self) -> int:
        events = self.past_events(FEW)
        for schema, event in events:
            false = replace(event, sequence=event.sequence + 1, payload=b"forged")
            changed = replace(event, payload=b"changed")
            everywhere = tuple(TreeCells(attribute, (WHOLE,)) for attribute in range(5))
            for body in (false, changed):
                stream = self.rng.getrandbits(63)
                probe = ProbePub(schema, event.publisher, (body,), everywhere, 0, self.rng.randrange(200), hops=1)
                group = tuple(NodeDelivery(peer.id) for peer in self.node.others())
                leaf = self.rng.choice(self.node.others())
                self.everybody_in_turn(probe)
                self.everybody_in_turn(GroupDelivery(schema, leaf, body, group))
                for peer in self.node.others():
                    self.node.ask(peer, EventDelivery(schema, stream, 1, (DeliveredEvent(body),)))
        return len(events)


class OthersBegin(PubSubBehaviour):
    """Begins to publish in somebody else's name: that is seen at once."""

    name = "publishes for others"

    def strike(self) -> int:
        events = self.past_events()[:1]
        for schema, event in events:
            self.everybody_in_turn(ProbePub(schema, event.publisher, (event,), (TreeCells(0, (WHOLE,)),), 0))
        return len(events)


class WrongBatches(PubSubBehaviour):
    """Numbers batches as nobody does, and sends the same ones again."""

    name = "numbers batches wrongly"

    def strike(self) -> int:
        events = self.past_events()
        for schema, event in events:
            for number in (0, 2, 2**64 - 1, 1, 1):
                for peer in self.node.sample(self.node.others(), 3):
                    self.node.ask(peer, EventDelivery(schema, 7, number, (DeliveredEvent(event),)))
        return len(events)


class RepeatedEvents(PubSubBehaviour):
    """Brings true events of others again and again: on their way, at leaves, and as deliveries by both ways."""

    name = "repeats events"

    def strike(self) -> int:
        events = self.past_events(FEW)
        for schema, event in events:
            everywhere = tuple(TreeCells(attribute, (WHOLE,)) for attribute in range(5))
            attempt, stream = self.rng.randrange(200), self.rng.getrandbits(63)
            group = tuple(NodeDelivery(peer.id) for peer in self.node.others())
            self.everybody_in_turn(ProbePub(schema, event.publisher, (event,), everywhere, 0, attempt, hops=1))
            self.everybody_in_turn(GroupDelivery(schema, self.rng.choice(self.node.others()), event, group))
            for peer in self.node.others():
                self.node.ask(
                    peer, EventDelivery(schema, stream, 1, (DeliveredEvent(event), DeliveredEvent(event, (), True)))
                )
        return len(events)


class FalseLeaves(PubSubBehaviour):
    """Tells subscribers that it is the leaf of their pieces, and that leaves refuse them or have lost them."""

    name = "answers in leaves' place"

    def strike(self) -> int:
        pieces = self.pieces()
        for cell, piece in pieces:
            schema, sub = cell.place.tree.schema, piece.sub
            which = schema, sub.sid, sub.piece
            for version in (sub.version, sub.version + 1):
                for claimed in (cell.cell, WHOLE, children(cell.cell)[0]):
                    self.node.ask(sub.subscriber, Established(*which, version, claimed, True, 3))
                    for status in PieceStatus:
                        self.node.say(
                            sub.subscriber, Kept(*which, version, claimed, status, "subscriptions_per_member")
                        )
        return len(pieces)


class HeldForOthers(PubSubBehaviour):
    """Has forged events held for leaves of others, in their roots' place, and releases what is held for others."""

    name = "has forged events held"

    def strike(self) -> int:
        events, cells = self.past_events(), self.some_cells()
        for (schema, event), cell in zip(events, cells, strict=False):
            names = (EventName(*id_of(event)),)
            places = (TreeCells(cell.place.tree.attribute, (cell.cell,)),)
            self.everybody_in_turn(ReleaseEvents(schema, names))
            false = replace(event, sequence=event.sequence + 1, payload=b"held")
            for peer in self.node.others():
                self.node.ask(peer, HoldEvents(schema, (false,), places))
        return len(events)


class FullSpeed(PubSubBehaviour):
    """Publishes as much as fits on its links, under its own name, to every node and leaf."""

    name = "publishes at full speed"
    gap_s: ClassVar[float] = 0.2

    def __init__(self, node: HostileNode) -> None:
        super().__init__(node)
        self.sequence = 1 << 40

    def strike(self) -> int:
        past = self.past_events()[:1]
        for schema, event in past:
            own = replace(event, publisher=self.node.peer, retain=b"", values=b"\x80", proof=b"", payload=b"")
            for peer in self.node.others():
                bodies = []
                for _ in range(EVENTS_MAX):
                    self.sequence += 1
                    bodies.append(replace(own, sequence=self.sequence))
                probe = ProbePub(schema, self.node.peer, tuple(bodies), (TreeCells(1, (WHOLE,)),), 0)
                self.node.say(peer, probe)
        return len(past)


class QuestionFlood(PubSubBehaviour):
    """Asks for explanations and for all leaves of trees, as fast as it can."""

    name = "asks without end"
    gap_s: ClassVar[float] = 0.2

    def strike(self) -> int:
        cells = self.some_cells()
        for cell in cells:
            for _ in range(SOME):
                self.route(cell.place, CellQuestion(*cell.place.tree, cell.cell, self.rng.getrandbits(63)))
        for peer in self.node.sample(self.node.others(), SOME):
            question = ExplainQuestion("thesis", peer.id, 1, self.rng.randrange(50), self.node.peer.id)
            for _ in range(SOME):
                self.node.ask(peer, question)
        return len(cells)


class FilterBombs(PubSubBehaviour):
    """Sends filters that are as costly as can be, in probes and transfers, in its own name."""

    name = "sends filter bombs"

    def strike(self) -> int:
        cells = [cell for cell in self.some_cells() if cell.place.tree.attribute == 1]
        for cell in cells:
            for bomb in BOMBS:
                sub = SubObject(self.node.peer, self.rng.getrandbits(63), 0, 1, 1, 0, SIDE - 1, bomb)
                schema = cell.place.tree.schema
                self.route(CellAddress(cell.place.tree, WHOLE), ProbeSub(schema, sub, WHOLE, 600, vouched=True))
                given = TransferSub(*cell.place.tree, WHOLE, children(WHOLE)[0], (sub,), (600,), 0)
                self.route(CellAddress(cell.place.tree, WHOLE), given)
        return len(cells)


BOMBS: Final = (
    "(" * 3000 + "attr1 > 1" + ")" * 3000,
    "NOT " * 1800 + "attr1 > 1",
    " AND ".join(f"(attr1 < {number} OR attr2 > {number})" for number in range(200)),
    " OR ".join(f"attr1 = {number}" for number in range(500)),
    "attr1 LIKE '" + "%a" * 2000 + "'",
    "attr1 MATCHES '" + "(a{1,200}){1,200}" * 20 + "'",
    "attr1 IN (" + ", ".join(map(str, range(1500))) + ")",
    "attr1 > " + "9" * 7000,
)
"""Filters of at most 8 KiB that a careless reader takes seconds for, or dies of."""
KINDS: Final[tuple[type[PubSubBehaviour], ...]] = (
    *(ForgedSubscriptions, ForgedTransfers, LearnsTransfers, EndsForOthers, InsertsForOthers, ManySubscriptions),
    *(
        Strangers,
        LyingAcks,
        FalseLoans,
        FalseOrders,
        FalseReports,
        FalseEvents,
        OthersBegin,
        WrongBatches,
        HeldForOthers,
    ),
    *(RepeatedEvents, FalseLeaves, FullSpeed, QuestionFlood, FilterBombs),
)
BEHAVIOURS: Final[Mapping[str, type[Behaviour]]] = {kind.name: kind for kind in KINDS}
