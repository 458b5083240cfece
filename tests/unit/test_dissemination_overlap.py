"""CoDD's policies, part by part: what a node says to whom, and what it does not let others talk it into."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import pytest

from peerd.errors import ProtocolError
from peerd.ids import NodeId
from peerd.messages import Message, PeerRef, decode_body, encode_body
from peerd.telemetry.schema import Event, union
from protocols.dissemination.front.lab.net import STREAM
from protocols.dissemination.front.lab.workloads import MembersKind
from protocols.dissemination.interests.xpath.kind import XPathKind
from protocols.dissemination.messages import AttachRefusal, StreamItem
from protocols.dissemination.policies.overlap.events import EVENTS
from protocols.dissemination.policies.overlap.item_bits import from_bits, to_bits
from protocols.dissemination.policies.overlap.joining import ADDS_A_SECOND_MAX
from protocols.dissemination.policies.overlap.messages import (
    AddRequest,
    AddResult,
    ChildHistory,
    MoveOrder,
    MoveOutcome,
    MoveReport,
    OverheadAnswer,
    Reorganise,
)
from protocols.dissemination.policies.overlap.policy import OverlapFactory, OverlapPolicy
from protocols.dissemination.ports import ChildInfo, Interest, InterestKind, ItemWork, ParsedItem
from protocols.dissemination.statistics.summary_tree import SUMMARY_EVERY
from tests.unit.test_dissemination_statistics import item_set

FACTORY = OverlapFactory()
PEERS = [PeerRef(NodeId(i), "127.0.0.1", 1000 + i) for i in range(1, 12)]
ROOT, ME, ABOVE, X, Y, Z = PEERS[:6]
KIND = MembersKind()


class FakeTree:
    """Implements `TreeAccess`, and remembers what was asked of it."""

    def __init__(self, me: PeerRef = ME, parent: PeerRef | None = ABOVE, room: bool = False) -> None:
        self.me = me
        self.stream = STREAM
        self.kind: InterestKind = KIND
        self.producer = ROOT
        self.is_producer = me == ROOT
        self.parent = parent
        self.path: Sequence[NodeId] = () if parent is None else (ROOT.id, parent.id)
        self.interests: Sequence[Interest] = ()
        self.wants: Sequence[Interest] = (KIND.parse("me"),)
        self.seeds: Sequence[PeerRef] = (ROOT,)
        self.at_s = 100.0
        self.free = int(room)
        self.child_refs: list[PeerRef] = []
        self.rtts: dict[NodeId, float] = {}
        self.sent: list[tuple[PeerRef, Message]] = []
        self.moves: list[PeerRef] = []
        self.events: list[Event] = []
        self.may_move = True

    def children(self) -> Sequence[ChildInfo]:
        return [ChildInfo(peer, (KIND.parse(f"m{peer.id}"),), 0.0, 0) for peer in self.child_refs]

    def room(self) -> int:
        return self.free

    def now(self) -> float:
        return self.at_s

    def random(self) -> float:
        return 0.5

    def rtt_s(self, peer: PeerRef) -> float | None:
        return self.rtts.get(peer.id)

    def work(self) -> ItemWork | None:
        return None

    def send(self, peer: PeerRef, message: Message) -> None:
        body = encode_body(message)
        assert len(body) <= message.BYTES_MAX and decode_body(type(message), body) == message
        self.sent.append((peer, message))

    def move_to(self, peer: PeerRef) -> bool:
        if self.may_move:
            self.moves.append(peer)
        return self.may_move

    def emit(self, event: Event) -> None:
        self.events.append(event)

    def take(self, kind: type[Message]) -> list[tuple[PeerRef, Message]]:
        """What was sent of one kind, once."""
        found = [each for each in self.sent if isinstance(each[1], kind)]
        self.sent = [each for each in self.sent if not isinstance(each[1], kind)]
        return found


def policy_at(tree: FakeTree, below: Sequence[PeerRef] = (), **settings: object) -> OverlapPolicy:
    policy = FACTORY.make(tree, FACTORY.settings(settings))
    for peer in below:
        tree.child_refs.append(peer)
        policy.child_came(peer.id)
    return policy


def feed(policy: OverlapPolicy, tree: FakeTree, count: int, own: int, to: dict[PeerRef, int], begin: int = 1) -> None:
    """Items: own those that ``own`` divides (0: none), each child those that its number divides. Then wait 2 s."""
    for number in range(begin, begin + count):
        item = ParsedItem(StreamItem.of(1, number, number, b""), frozenset())
        children = [peer.id for peer, each in to.items() if number % each == 0]
        policy.passed(item, bool(own) and number % own == 0, children)
    for _ in range(8):
        policy.overlaps.tick(tree.at_s)
        tree.at_s += 0.25


def every(number: int, watermark: int = 400) -> set[int]:
    return set(range(number, watermark + 1, number))


# Settings


def test_wrong_settings_are_refused_by_name() -> None:
    assert FACTORY.settings({}).batch_interval == 0.5
    for given_, key in (
        ({"top": 0}, "top"),
        ({"delta": 2}, "delta"),
        ({"answer_timeout": "x"}, "answer_timeout"),
        ({"nonsense": 1}, "nonsense"),
    ):
        with pytest.raises(ValueError, match=key):
            FACTORY.settings(given_)


# Joining


def test_a_newcomer_takes_the_offer_with_the_least_overhead() -> None:
    tree = FakeTree(parent=None)
    tree.seeds = (ROOT, X)
    policy = policy_at(tree)
    policy.look_for_parent()
    asked = tree.take(AddRequest)
    assert [(peer, message.joiner) for peer, message in asked if isinstance(message, AddRequest)] == [
        (ROOT, ME),
        (X, ME),
    ]
    policy.received(Y, AddResult(STREAM, 1, ROOT.id, True, 0.3, 1, 1))
    assert not tree.moves
    policy.received(Z, AddResult(STREAM, 1, X.id, True, 0.1, 5, 3))
    assert tree.moves == [Z]
    policy.move_ended(Z, "declined", int(AttachRefusal.FULL), [PEERS[8]])
    assert tree.moves == [Z, Y]
    policy.move_ended(Y, "silent", None, [])
    assert tree.moves == [Z, Y, PEERS[8]]
    policy.move_ended(PEERS[8], "moved", None, [])
    assert [type(event).__name__ for event in tree.events] == ["OverlapJoined"]


def test_a_newcomer_with_many_interests_tells_what_fits_into_a_request() -> None:
    tree = FakeTree(parent=None)
    tree.wants = [KIND.parse(f"{number:04}" + "x" * 4000) for number in range(300)]
    policy_at(tree).look_for_parent()
    ((_, request),) = tree.take(AddRequest)
    assert isinstance(request, AddRequest) and 5 <= len(request.wants) <= 10


def test_ties_go_to_the_nearer_then_to_the_less_loaded() -> None:
    for rtts, expected in (({Y.id: 0.1, Z.id: 0.02}, Z), ({Y.id: 0.1, Z.id: 0.1}, Y), ({}, Y)):
        tree = FakeTree(parent=None)
        tree.seeds, tree.rtts = (ROOT, X), rtts
        policy = policy_at(tree)
        policy.look_for_parent()
        policy.received(Y, AddResult(STREAM, 1, ROOT.id, True, 0.11, 1, 1))
        policy.received(Z, AddResult(STREAM, 1, X.id, True, 0.1, 5, 3))
        assert tree.moves == [expected]


def test_a_seed_that_is_silent_is_not_waited_for_for_ever() -> None:
    tree = FakeTree(parent=None)
    tree.seeds = (ROOT, X)
    policy = policy_at(tree)
    policy.look_for_parent()
    policy.received(Y, AddResult(STREAM, 1, ROOT.id, True))
    policy.received(Z, AddResult(STREAM, 1, ROOT.id, True))  # this seed has answered already
    policy.received(Z, AddResult(STREAM, 7, X.id, True))  # nobody asked that
    tree.at_s += 2.5
    policy.tick()
    assert tree.moves == [Y]
    policy.look_for_parent()
    assert len(tree.take(AddRequest)) == 2, "a move is under way: nothing new is begun"


def test_no_offer_means_asking_again() -> None:
    tree = FakeTree(parent=None)
    policy = policy_at(tree)
    policy.look_for_parent()
    policy.received(ROOT, AddResult(STREAM, 1, ROOT.id, False))
    assert not tree.moves
    policy.look_for_parent()
    assert [m.attempt for _, m in tree.take(AddRequest) if isinstance(m, AddRequest)] == [1, 2]


def request_of(joiner: PeerRef, items: set[int] | None = None, hops: int = 0, attempt: int = 1) -> AddRequest:
    bits = None if items is None else to_bits(item_set(items, 0, 400))
    return AddRequest(STREAM, joiner, attempt, ROOT.id, ("new",), bits, hops)


def test_a_node_with_room_offers_itself_to_the_joiner() -> None:
    tree = FakeTree(room=True)
    policy = policy_at(tree)
    feed(policy, tree, 400, own=2, to={})
    policy.received(ABOVE, request_of(Z, every(4) | {1, 3, 5, 7}, hops=1))
    ((to, answer),) = tree.take(AddResult)
    assert to == Z and isinstance(answer, AddResult)
    assert answer.is_offer and answer.missing == pytest.approx(4 / 400) and answer.depth == 2


def test_a_full_node_hands_on_to_the_child_of_maximal_overlap() -> None:
    tree = FakeTree()
    policy = policy_at(tree, [X, Y])
    feed(policy, tree, 400, own=0, to={X: 3, Y: 4})
    for attempt, expected in ((1, Y), (2, X), (3, Y)):
        policy.received(ABOVE, request_of(Z, every(8), hops=1, attempt=attempt))
        ((to, handed),) = tree.take(AddRequest)
        assert to == expected and isinstance(handed, AddRequest) and handed.hops == 2


def test_the_first_node_looks_up_what_the_newcomer_would_have_wanted() -> None:
    tree = FakeTree(me=ROOT, parent=None)
    policy = policy_at(tree, [X, Y], young=10)
    publish_some(policy, range(1, 101))
    policy.received(Z, request_of(Z))
    ((to, handed),) = tree.take(AddRequest)
    assert to == Y and isinstance(handed, AddRequest) and handed.items is not None
    assert set(from_bits(handed.items).items) == every(4, 100)


def publish_some(policy: OverlapPolicy, numbers: range) -> None:
    """Items of which a newcomer wants every fourth, which only one of two children gets."""
    new = KIND.parse("new")
    for number in numbers:
        item = StreamItem.of(1, number, 0, str(number).encode())
        content = KIND.met[item.payload] = frozenset({new.id} if number % 4 == 0 else ())
        policy.passed(ParsedItem(item, content), False, [X.id] if number % 2 else [Y.id])


def test_a_child_of_the_producer_at_which_newcomers_begin_looks_it_up_from_then_on() -> None:
    for path, expected in (((ROOT.id,), every(4, 200) - every(4, 100)), ((ROOT.id, ABOVE.id), None)):
        tree = FakeTree()
        tree.path = path
        policy = policy_at(tree, [X, Y], young=10)
        publish_some(policy, range(1, 101))
        policy.received(Z, request_of(Z))
        assert [message.items for _, message in tree.take(AddRequest) if isinstance(message, AddRequest)] == [None]
        publish_some(policy, range(101, 201))
        policy.received(Z, request_of(Z, attempt=2))
        ((_, handed),) = tree.take(AddRequest)
        assert isinstance(handed, AddRequest)
        assert (None if handed.items is None else set(from_bits(handed.items).items)) == expected


def test_newcomers_to_streams_of_xml_are_placed_by_the_summary_tree() -> None:
    tree = FakeTree(me=ROOT, parent=None)
    xpath = XPathKind()
    tree.kind = cast("InterestKind", xpath)
    policy = policy_at(tree, [X, Y], young=5)
    for number in range(1, 401):
        item = StreamItem.of(1, number, 0, b"<a><b/></a>" if number % 8 == 0 else b"<a><c/></a>")
        policy.passed(ParsedItem(item, xpath.content(item)), False, [X.id] if number % 8 else [Y.id])
    policy.received(Z, AddRequest(STREAM, Z, 1, ROOT.id, ("/a/b",)))
    ((to, handed),) = tree.take(AddRequest)
    assert to == Y and isinstance(handed, AddRequest) and handed.items is not None
    told = from_bits(handed.items)
    assert set(told.items) == every(8) and told.every == SUMMARY_EVERY


def test_while_statistics_are_young_the_texts_decide() -> None:
    tree = FakeTree(me=ROOT, parent=None)
    policy = policy_at(tree, [X, Y, Z])
    request = AddRequest(STREAM, PEERS[9], 1, ROOT.id, (f"m{Y.id}",))
    policy.received(PEERS[9], request)
    assert tree.take(AddRequest)[0][0] == Y


def test_a_full_leaf_and_an_orphan_say_that_there_is_nothing() -> None:
    for tree in (FakeTree(), FakeTree(parent=None, room=True)):
        policy = policy_at(tree)
        policy.received(Z, request_of(Z))
        ((_, answer),) = tree.take(AddResult)
        assert isinstance(answer, AddResult) and not answer.is_offer


def test_nobody_asks_in_the_name_of_others() -> None:
    tree = FakeTree(room=True)
    policy = policy_at(tree)
    with pytest.raises(ProtocolError, match="bad_joiner"):
        policy.received(X, request_of(Z))
    policy.received(X, request_of(Z, hops=3))  # not through this node's parent
    assert not tree.sent


def test_newcomers_are_helped_at_a_bounded_rate() -> None:
    tree = FakeTree(room=True)
    policy = policy_at(tree)
    newcomers = [PeerRef(NodeId(100 + number), "127.0.0.1", 9) for number in range(300)]
    for each in newcomers:
        policy.received(each, request_of(each))
    assert len(tree.take(AddResult)) == ADDS_A_SECOND_MAX
    tree.at_s += 0.5
    for each in newcomers:
        policy.received(each, request_of(each))
    assert len(tree.take(AddResult)) == ADDS_A_SECOND_MAX / 2


# Leaving


def test_the_child_of_maximal_overlap_takes_the_place() -> None:
    tree = FakeTree()
    policy = policy_at(tree, [X, Y, Z])
    feed(policy, tree, 400, own=4, to={X: 3, Y: 2, Z: 5})
    assert policy.successor() == Y.id
    assert policy_at(FakeTree()).successor() is None


# Asking for a move


def test_a_node_asks_for_the_child_with_the_least_overlap() -> None:
    tree = FakeTree()
    policy = policy_at(tree, [X, Y], children=1)
    feed(policy, tree, 400, own=2, to={X: 4, Y: 5})
    policy.tick()
    ((to, request),) = tree.take(Reorganise)
    assert to == ABOVE and isinstance(request, Reorganise)
    assert request.child == Y and request.path == (ME.id,)
    assert set(from_bits(request.items).items) == every(5)
    assert set(from_bits(request.rest).items) == {n for n in every(5) if n % 2}
    assert list(request.costs) == pytest.approx([40 / 400])
    policy.tick()
    assert not tree.take(Reorganise), "the next one only after so many items"


def test_after_a_change_only_the_items_since_decide() -> None:
    """X cost the node nothing until item 300, and costs it half of all items since."""
    tree = FakeTree()
    policy = policy_at(tree, [X], children=1)
    feed(policy, tree, 300, own=1, to={X: 2})
    feed(policy, tree, 100, own=0, to={X: 2}, begin=301)
    policy.tick()
    ((_, request),) = tree.take(Reorganise)
    assert isinstance(request, Reorganise)
    assert from_bits(request.items).since == 300 and list(request.costs) == pytest.approx([0.5])


def test_a_child_that_stayed_is_asked_for_again_when_it_costs_more() -> None:
    tree = FakeTree()
    policy = policy_at(tree, [X, Y], children=1)
    asked = []
    for begin, to in ((1, {X: 5, Y: 7}), (401, {X: 5, Y: 7}), (801, {X: 2, Y: 7})):
        feed(policy, tree, 400, own=0, to=to, begin=begin)
        policy.tick()
        asked += [message.child for _, message in tree.take(Reorganise) if isinstance(message, Reorganise)]
    assert asked == [X, Y, X]


def test_a_node_that_gets_little_in_vain_asks_for_nothing() -> None:
    for settings in ({"threshold": 0.5}, {"reorganise": False}, {"request_items": 500}):
        tree = FakeTree()
        policy = policy_at(tree, [X], **settings)
        feed(policy, tree, 400, own=2, to={X: 5})
        policy.tick()
        assert not tree.take(Reorganise)


def test_two_children_that_need_the_same_are_each_asked_for() -> None:
    """Neither alone costs anything, as the other needs the same; so what they cost is shared between them."""
    tree = FakeTree()
    policy = policy_at(tree, [X, Y], children=2)
    feed(policy, tree, 400, own=2, to={X: 5, Y: 5})
    policy.tick()
    assert [move.node for move in policy.plan()] == [f"{peer.id:032x}" for peer in (X, Y)]
    assert [move.gain for move in policy.plan()] == pytest.approx([20 / 400] * 2)


def reorganise(child: PeerRef, items: set[int], path: Sequence[PeerRef], costs: Sequence[float]) -> Reorganise:
    bits = to_bits(item_set(items, 0, 400))
    return Reorganise(
        STREAM, child, bits, bits, 0.5, costs[0] if costs else 0.0, tuple(p.id for p in path), tuple(costs)
    )


def test_a_request_gathers_what_the_mover_costs_on_the_way_up() -> None:
    tree = FakeTree()
    policy = policy_at(tree, [X, Y])
    feed(policy, tree, 400, own=10, to={X: 5, Y: 4})
    policy.received(X, reorganise(Z, every(5), [X], [0.1]))
    ((to, request),) = tree.take(Reorganise)
    assert to == ABOVE and isinstance(request, Reorganise)
    assert request.path == (X.id, ME.id)
    assert set(from_bits(request.rest).items) == {n for n in every(5) if n % 10 and n % 4}
    assert list(request.costs) == pytest.approx([0.1, 40 / 400])


def test_requests_that_did_not_come_up_the_tree_are_refused() -> None:
    tree = FakeTree()
    policy = policy_at(tree, [X])
    for bad in (reorganise(Z, {1}, [Y], [0.1]), reorganise(Z, {1}, [X], []), reorganise(Z, {1}, [], [])):
        with pytest.raises(ProtocolError, match="bad_request"):
            policy.received(X, bad)
    policy.received(Y, reorganise(Z, {1}, [Y], [0.1]))  # no child
    for _ in range(500):
        policy.received(X, reorganise(Z, {1}, [X], [0.1]))
    assert 0 < len(tree.take(Reorganise)) <= 64


# At the other nodes


def test_orders_are_taken_from_nodes_above_alone_and_only_when_they_fit() -> None:
    tree = FakeTree()
    policy = policy_at(tree)
    policy.received(X, MoveOrder(STREAM, 1, ABOVE.id, Y))
    assert not tree.moves and not tree.take(MoveReport)
    policy.received(ROOT, MoveOrder(STREAM, 1, X.id, Y))  # somebody asked for a child that it does not have
    assert not tree.moves and tree.take(MoveReport) == [(ROOT, MoveReport(STREAM, 1, False, Y.id))]
    policy.received(ABOVE, MoveOrder(STREAM, 2, ABOVE.id, Y, (Z,)))
    assert tree.moves == [Y]
    policy.move_ended(Y, "declined", None, [])
    assert tree.moves == [Y, Z], "where else it may go"
    policy.move_ended(Z, "moved", None, [])
    assert tree.take(MoveReport) == [(ABOVE, MoveReport(STREAM, 2, True, Z.id))]
    for message in (OverheadAnswer(STREAM, 1, ((),)), MoveReport(STREAM, 1, True, Y.id)):
        policy.received(X, message)  # this node has not asked
    assert tree.moves == [Y, Z] and not tree.sent


def test_a_node_does_not_move_again_before_some_items_have_come() -> None:
    """Whoever is above it, and however often it is told to."""
    tree = FakeTree()
    policy = policy_at(tree, request_items=100)
    for number in range(1, 4):
        policy.received(ROOT, MoveOrder(STREAM, number, ABOVE.id, Y))
        policy.move_ended(Y, "moved", None, [])
    assert tree.moves == [Y]
    feed(policy, tree, 100, own=1, to={})
    policy.received(ROOT, MoveOrder(STREAM, 9, ABOVE.id, Z))
    assert tree.moves == [Y, Z]


def test_an_order_that_the_network_repeats_is_reported_once_and_another_one_is_refused() -> None:
    tree = FakeTree()
    policy = policy_at(tree)
    for number in (1, 1, 2):
        policy.received(ROOT, MoveOrder(STREAM, number, ABOVE.id, Y))
    assert tree.take(MoveReport) == [(ROOT, MoveReport(STREAM, 2, False, Y.id))]
    policy.move_ended(Y, "moved", None, [])
    assert tree.moves == [Y] and tree.take(MoveReport) == [(ROOT, MoveReport(STREAM, 1, True, Y.id))]


def test_a_node_that_must_stay_for_a_while_moves_afterwards() -> None:
    for patience_s in (1.0, 2.5):
        tree = FakeTree()
        policy = policy_at(tree)
        tree.may_move = False
        policy.received(ROOT, MoveOrder(STREAM, 1, ABOVE.id, Y))
        tree.at_s += patience_s
        policy.tick()
        tree.may_move = True
        policy.tick()
        assert tree.moves == ([Y] if patience_s < 2 else [])
        assert len(tree.take(MoveReport)) == (patience_s > 2)


def test_what_a_child_tells_of_its_past_goes_up_the_tree_once_a_second() -> None:
    tree = FakeTree()
    policy = policy_at(tree, [X])
    feed(policy, tree, 400, own=2, to={})
    told = ChildHistory(STREAM, to_bits(item_set(every(5), 0, 400)))
    policy.received(X, told)
    policy.received(Y, told)  # no child
    for _ in range(100):
        policy.received(X, ChildHistory(STREAM, to_bits(item_set({1}, 0, 400))))  # too soon
    policy.tick()
    policy.tick()
    ((to, history),) = tree.take(ChildHistory)
    assert to == ABOVE and isinstance(history, ChildHistory)
    assert set(from_bits(history.needed).items) == every(2) | every(5)


def test_a_mover_has_its_old_and_its_new_parent_judge_what_came_of_it() -> None:
    tree = FakeTree()
    policy = policy_at(tree, request_items=100)
    feed(policy, tree, 400, own=2, to={})
    policy.received(ROOT, MoveOrder(STREAM, 5, ABOVE.id, Y))
    tree.parent = Y
    policy.move_ended(Y, "moved", None, [])
    policy.tick()
    assert not tree.take(MoveOutcome)
    feed(policy, tree, 100, own=4, to={}, begin=401)
    policy.tick()
    (there, outcome), (here, same) = tree.take(MoveOutcome)
    assert (there, here) == (ABOVE, Y) and outcome == same and isinstance(outcome, MoveOutcome)
    assert outcome.items is not None and set(from_bits(outcome.items).items) == set(range(404, 501, 4))


def test_a_parent_tells_the_granter_what_a_mover_would_cost_it() -> None:
    tree = FakeTree()
    policy = policy_at(tree, [X])
    feed(policy, tree, 400, own=2, to={X: 5})
    needed = to_bits(item_set(every(5), 0, 400))
    for mover in (X, Z):
        policy.received(mover, MoveOutcome(STREAM, 5, mover.id, ROOT, needed))
    told = [message.cost for _, message in tree.take(MoveOutcome) if isinstance(message, MoveOutcome)]
    assert told == [pytest.approx(40 / 400), pytest.approx(20 / 400)], "shared with X, where it is not X itself"
    policy.received(X, MoveOutcome(STREAM, 5, X.id, ROOT, None, 0.1))  # this node may have been the granter
    policy.received(X, MoveOutcome(STREAM, 5, X.id, PEERS[9], needed))  # nobody can have it write to whom he likes
    assert not tree.sent
    with pytest.raises(ProtocolError):
        policy.received(X, MoveOutcome(STREAM, 5, Z.id, ROOT, needed))


def test_the_events_fit_into_the_table_of_all_events() -> None:
    assert {event.KIND for event in EVENTS} <= union({"dissemination": EVENTS}).keys()
