"""The root of cells and what it is told, truly or not: transcripts of one node."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from peerd.api import RecordOutcome
from peerd.errors import ProtocolError
from peerd.ids import NodeId
from peerd.limits import DETAIL_LENGTH_MAX
from peerd.messages import encode_body
from peerd.testing.host import FakeHost, peer
from protocols.pubsub.messages import (
    HOPS_MAX,
    Arrived,
    CellAnswer,
    CellOrder,
    CellQuestion,
    CellState,
    EndSub,
    Established,
    InsertAnswer,
    InsertSub,
    Kept,
    LeafEntry,
    LeafUpdate,
    OrderKind,
    PieceStatus,
    ProbeSub,
    Transferred,
    TransferResult,
    TransferSub,
)
from protocols.pubsub.names import SubscriptionKey, Tree, key_of
from protocols.pubsub.ports import Elsewhere, Here, NotMine, Unsettled
from protocols.pubsub.refusals import MEMBERS_MAX
from protocols.pubsub.tree import growth, questions
from protocols.pubsub.tree.cells import SIDE, WHOLE, Target, cell_at
from protocols.pubsub.tree.installing import KEPT_DETAIL_MAX
from protocols.pubsub.tree.merging import ASK_S
from protocols.pubsub.tree.storage import CellAddress
from tests.support.pubsub_rendezvous import (
    DEEP,
    LOW,
    MEMBER,
    STRANGER,
    SUBSCRIBER,
    confirm,
    installed,
    last_question,
    matched,
    node,
    probe,
    refusals,
    routed,
    sub,
    write,
)
from tests.support.pubsub_tree import BAD_FILTER, SCHEMA, TREE, FakeIndex, FakeSchemas, TreePlugin

# Installing


def test_a_subscriber_without_a_link_hears_of_its_piece_by_routing_before_it_is_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    host, _ = node()
    host.deliver(probe(sub()), STRANGER)
    assert routed(host, Arrived) == [], "the question itself is as fast where there is a link"
    monkeypatch.setattr(host, "peer_version", lambda peer: None)
    host.deliver(probe(sub(2)), STRANGER)
    assert host.routed[-1] == (SUBSCRIBER.id, Arrived(SCHEMA, 2, 0, 1, WHOLE))
    assert isinstance(host.requests[-1].message, Established)
    confirm(host)
    write(host)
    host.deliver(probe(sub(2, version=2)), STRANGER)
    assert len(routed(host, Arrived)) == 1, "a renewal is nothing to be waited for"


def test_a_probe_that_only_a_leaf_is_to_take_ends_at_what_is_none() -> None:
    host, plugin = node()
    host.deliver(probe(sub(), DEEP, only_leaf=True), STRANGER)
    assert routed(host, ProbeSub) == [] and matched(plugin, DEEP) == []
    host.deliver(probe(sub(), DEEP), STRANGER)
    assert [message.cell for message in routed(host, ProbeSub) if isinstance(message, ProbeSub)] == [DEEP >> 6]
    host.deliver(probe(sub(2), only_leaf=True), STRANGER)
    assert matched(plugin) == [2]


def test_a_probe_matches_at_once_and_is_stored_when_its_subscriber_has_confirmed() -> None:
    host, plugin = node()
    host.deliver(probe(sub()), STRANGER)
    assert matched(plugin) == [1]
    assert not [asked for asked in host.asked if asked.what == "records.put"]
    confirm(host)
    assert host.take_sent() == [], "it is not replicated yet"
    write(host)
    assert host.take_sent() == [(SUBSCRIBER, Kept(SCHEMA, 1, 0, 1, WHOLE, PieceStatus.REPLICATED))]
    assert [each.sid for _, each in plugin.events_noted.new] == [1]


@pytest.mark.parametrize("answer", ["silence", "not mine"])
def test_a_piece_that_nobody_vouches_for_is_forgotten(answer: str) -> None:
    host, plugin = node()
    host.deliver(probe(sub()), STRANGER)
    if answer == "silence":
        host.requests.pop().on_timeout()
    else:
        confirm(host, is_wanted=False)
    assert matched(plugin) == []
    assert not plugin.rendezvous.forest.members


def test_a_forged_probe_neither_replaces_nor_ends_what_is_kept() -> None:
    host, plugin = installed()
    host.deliver(probe(sub(version=99, low=LOW + SIDE // 4)), STRANGER)
    assert matched(plugin) == [1]
    confirm(host, is_wanted=False)
    assert matched(plugin) == [1], "the subscriber does not want version 99, and nothing was said about version 1"


def test_a_subscriber_gives_renews_and_ends_its_piece_on_its_own_link() -> None:
    host, plugin = node()
    assert host.deliver(InsertSub(SCHEMA, sub(), WHOLE, 600), SUBSCRIBER) == InsertAnswer(PieceStatus.KEPT, WHOLE, True)
    assert host.requests == [], "there is nothing to be asked"
    write(host)
    renewal = InsertSub(SCHEMA, sub(version=2), WHOLE, 600)
    assert host.deliver(renewal, SUBSCRIBER) == InsertAnswer(PieceStatus.KEPT, WHOLE, False)
    write(host)
    assert [message.version for _, message in host.take_sent() if isinstance(message, Kept)] == [1, 2]
    end = EndSub(SCHEMA, 1, 0, 3, TREE.attribute, WHOLE)
    assert host.deliver(end, SUBSCRIBER) == InsertAnswer(PieceStatus.GONE, WHOLE)
    assert matched(plugin) == [] and host.asked[-1].what == "records.delete"


def test_why_a_piece_is_refused_fits_its_message_whatever_the_filter_says(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*arguments: object) -> None:
        raise ValueError("\N{GRINNING FACE}" * DETAIL_LENGTH_MAX)

    monkeypatch.setattr(FakeIndex, "add", refused)
    host, _ = node()
    host.deliver(probe(sub()), STRANGER)
    ((_, kept),) = host.take_sent()
    answer = host.deliver(InsertSub(SCHEMA, sub(), WHOLE, 600), SUBSCRIBER)
    assert isinstance(kept, Kept) and isinstance(answer, InsertAnswer)
    assert len(kept.detail.encode()) == KEPT_DETAIL_MAX and len(answer.detail.encode()) == DETAIL_LENGTH_MAX
    assert encode_body(kept) and encode_body(answer)


def test_nobody_gives_or_ends_a_piece_for_somebody_else() -> None:
    host, plugin = installed()
    with pytest.raises(ProtocolError, match="somebody else"):
        host.deliver(InsertSub(SCHEMA, sub(version=5), WHOLE, 600), STRANGER)
    with pytest.raises(ProtocolError, match="does not lie"):
        host.deliver(InsertSub(SCHEMA, sub(version=5), 0b11, 600), SUBSCRIBER)
    host.deliver(EndSub(SCHEMA, 1, 0, 9, TREE.attribute, WHOLE), STRANGER)
    assert matched(plugin) == [1]


def test_one_member_has_only_so_many_pieces() -> None:
    host, plugin = node(subscriptions_per_member=2)
    for sid in (1, 2):
        host.deliver(InsertSub(SCHEMA, sub(sid), WHOLE, 600), SUBSCRIBER)
    answer = host.deliver(InsertSub(SCHEMA, sub(3), WHOLE, 600), SUBSCRIBER)
    assert answer == InsertAnswer(PieceStatus.QUOTA, WHOLE, detail="subscriptions_per_member")
    host.deliver(probe(sub(4)), STRANGER)
    assert host.requests == [] and matched(plugin) == [1, 2]
    assert refusals(host) == {f"{MEMBER},quota,link": 1, f"{MEMBER},quota,none": 1}
    renewal = host.deliver(InsertSub(SCHEMA, sub(2, version=2), WHOLE, 600), SUBSCRIBER)
    assert isinstance(renewal, InsertAnswer) and renewal.status == PieceStatus.KEPT


def test_a_filter_that_cannot_be_read_is_refused() -> None:
    host, plugin = node()
    host.deliver(probe(sub(text=BAD_FILTER)), STRANGER)
    [(_, kept)] = host.take_sent()
    assert isinstance(kept, Kept) and kept.status == PieceStatus.REFUSED and "expected a condition" in kept.detail
    answer = host.deliver(InsertSub(SCHEMA, sub(text=BAD_FILTER), WHOLE, 600), SUBSCRIBER)
    assert isinstance(answer, InsertAnswer) and answer.status == PieceStatus.REFUSED
    assert not plugin.rendezvous.forest.members
    assert refusals(host) == {f"{MEMBER},filter,none": 1, f"{MEMBER},filter,link": 1}


def test_a_member_that_registers_without_end_takes_no_more_room() -> None:
    host, plugin = node(subscriptions_per_member=50)
    for sid in range(5_000):
        answer = host.deliver(InsertSub(SCHEMA, sub(sid), WHOLE, 600), SUBSCRIBER)
        assert isinstance(answer, InsertAnswer) and answer.status == (
            PieceStatus.KEPT if sid < 50 else PieceStatus.QUOTA
        )
    for sid in range(5_000):
        host.deliver(probe(sub(sid + 5_000)), STRANGER)
    assert sum(plugin.rendezvous.forest.members.values()) == len(matched(plugin)) == 50
    other = peer(77)
    honest = host.deliver(InsertSub(SCHEMA, replace(sub(), subscriber=other), WHOLE, 600), other)
    assert isinstance(honest, InsertAnswer) and honest.status == PieceStatus.KEPT


def test_names_of_refused_members_are_bounded() -> None:
    host, _ = node()
    members = [peer((number + 1) << 100) for number in range(MEMBERS_MAX + 9)]
    for member in members:
        host.deliver(InsertSub(SCHEMA, replace(sub(text=BAD_FILTER), subscriber=member), WHOLE, 600), member)
    counted = refusals(host)
    assert len(counted) == MEMBERS_MAX + 1 and counted["others,filter,link"] == 9


def test_what_the_store_refuses_is_taken_out_and_told() -> None:
    host, plugin = node()
    host.deliver(InsertSub(SCHEMA, sub(), WHOLE, 600), SUBSCRIBER)
    write(host, RecordOutcome.QUOTA)
    assert host.take_sent() == [(SUBSCRIBER, Kept(SCHEMA, 1, 0, 1, WHOLE, PieceStatus.QUOTA, "key_items"))]
    assert matched(plugin) == []


def test_a_write_of_unknown_outcome_is_tried_again() -> None:
    host, plugin = node()
    host.deliver(InsertSub(SCHEMA, sub(), WHOLE, 600), SUBSCRIBER)
    write(host, RecordOutcome.UNKNOWN)
    assert host.take_sent() == [] and matched(plugin) == [1]
    host.fire("tree_tick")
    write(host)
    assert [message.status for _, message in host.take_sent() if isinstance(message, Kept)] == [PieceStatus.REPLICATED]


def test_a_schema_that_is_not_known_is_looked_up_first() -> None:
    host, plugin = node(FakeSchemas(known=(), remote=(SCHEMA,)))
    host.deliver(probe(sub()), STRANGER)
    confirm(host)
    assert matched(plugin) == [1]
    lost, nothing = node(FakeSchemas(known=()))
    lost.deliver(probe(sub()), STRANGER)
    assert lost.requests == [] and not nothing.rendezvous.forest.members


def test_a_piece_lapses_that_was_not_renewed() -> None:
    host, plugin = installed()
    host.time_s = 601.0
    plugin.rendezvous.forest.lapse()
    assert matched(plugin) == []


def test_a_piece_that_its_subscriber_does_not_want_is_deleted() -> None:
    host, plugin = installed()
    plugin.rendezvous.unwanted(SubscriptionKey(SUBSCRIBER.id, 1, 0), "another schema")
    assert matched(plugin) == [1]
    plugin.rendezvous.unwanted(SubscriptionKey(SUBSCRIBER.id, 1, 0), SCHEMA)
    assert matched(plugin) == [] and host.asked[-1].what == "records.delete"


# Where to go on


def test_a_cell_that_nobody_knows_names_the_ancestor_at_half_its_level() -> None:
    host, plugin = node()
    decision = plugin.rendezvous.decide(TREE, DEEP, None, vouched=False)
    assert decision == Elsewhere((cell_at(LOW, LOW + 10, 6),), vouched=False)
    host.deliver(probe(sub(), DEEP), STRANGER)
    [message] = routed(host, ProbeSub)
    assert isinstance(message, ProbeSub) and (message.cell, message.hops) == (cell_at(LOW, LOW + 10, 6), 1)


def test_a_probe_goes_only_so_far() -> None:
    host, _ = node()
    host.deliver(replace(probe(sub(), DEEP), hops=HOPS_MAX), STRANGER)
    assert host.routed == []


def test_a_probe_for_a_cell_that_its_point_is_not_in_is_dropped() -> None:
    host, plugin = node()
    host.deliver(probe(sub(), 0b11), STRANGER)
    assert host.routed == [] and host.requests == [] and not plugin.rendezvous.forest.members


def test_a_root_that_has_not_caught_up_says_so_and_tells_when_it_has() -> None:
    host, plugin = node()
    host.records.has_caught_up = False
    assert plugin.rendezvous.decide(TREE, WHOLE, None, vouched=False) == Unsettled()
    host.deliver(probe(sub()), STRANGER)
    assert host.requests == []
    host.records.has_caught_up = True
    plugin.records_settled()
    assert plugin.events_noted.changed == [(TREE, WHOLE)]
    assert plugin.rendezvous.decide(TREE, WHOLE, None, vouched=False) == Here()
    assert len(host.requests) == 1, "and the probe goes on"


def test_a_cell_of_another_root_is_not_decided_and_is_dropped() -> None:
    host, plugin = installed()
    host.neighbours = (peer(key_of(TREE, WHOLE)),)
    assert plugin.rendezvous.decide(TREE, WHOLE, None, vouched=False) == NotMine()
    plugin.rendezvous.neighbours_changed()
    assert plugin.rendezvous.forest.cells == {} and matched(plugin) == []
    assert plugin.events_noted.changed == [(TREE, WHOLE)]


# Splitting, as others see it


def full(host: FakeHost) -> TransferSub:
    """Fill the whole cell of a node with capacity 1, and return the copies that are sent to the lower half."""
    host.deliver(InsertSub(SCHEMA, sub(2, low=LOW + 5000), WHOLE, 600), SUBSCRIBER)
    write(host)
    message = routed(host, TransferSub)[-1]
    assert isinstance(message, TransferSub) and message.cell == 0b10 and len(message.subs) == 2
    return message


def transferred(message: TransferSub, number: int) -> Transferred:
    results = tuple(
        TransferResult(each.subscriber.id, each.sid, each.piece, each.version, PieceStatus.REPLICATED)
        for each in message.subs
    )
    return Transferred(SCHEMA, TREE.attribute, message.cell, results, number)


def test_a_leaf_becomes_inner_when_its_half_has_everything_and_the_record_is_written() -> None:
    host, plugin = installed(leaf_capacity=1)
    copies = full(host)
    host.deliver(transferred(copies, copies.transfer + 2), STRANGER)
    assert plugin.rendezvous.decide(TREE, WHOLE, None, vouched=False) == Here(), (
        "who does not know the number is not heard"
    )
    host.deliver(transferred(copies, copies.transfer), STRANGER)
    assert plugin.rendezvous.decide(TREE, WHOLE, None, vouched=False) == Unsettled()
    assert matched(plugin) == [1]
    host.deliver(probe(sub(5)), STRANGER)
    assert host.requests == [], "what comes now waits"
    write(host)
    assert plugin.rendezvous.decide(TREE, WHOLE, None, vouched=False) == Elsewhere((0b10, 0b11), vouched=True)
    assert matched(plugin) == [] and plugin.events_noted.changed[-1] == (TREE, WHOLE)
    assert [message.cell for message in routed(host, CellOrder) if isinstance(message, CellOrder)] == [0b10, 0b11]
    [waited] = routed(host, ProbeSub)
    assert isinstance(waited, ProbeSub) and (waited.cell, waited.vouched) == (0b10, True)
    inside = Target(LOW + 5, SIDE)
    assert plugin.rendezvous.decide(TREE, WHOLE, inside, vouched=False, careful=True) == Elsewhere(
        (0b10,), vouched=True
    )


def test_pieces_of_one_point_are_not_split_for_ever() -> None:
    host, plugin = installed(leaf_capacity=1)
    host.deliver(InsertSub(SCHEMA, sub(2), WHOLE, 600), SUBSCRIBER)
    write(host)
    assert routed(host, TransferSub) == [] and sorted(matched(plugin)) == [1, 2]


def test_copies_count_when_the_parent_itself_has_named_their_number() -> None:
    host, plugin = node()
    copies = TransferSub(SCHEMA, TREE.attribute, 0b10, WHOLE, (sub(),), (600,), 4)
    for state, number, is_taken in ((CellState.LEAF, 6, False), (CellState.LEAF, 4, True)):
        host.deliver(copies, STRANGER)
        question = last_question(host)
        assert question.cell == WHOLE and question.is_brief
        host.deliver(CellAnswer(question.nonce ^ 1, CellState.LEAF, transfer=4), STRANGER)
        assert CellAddress(TREE, 0b10) not in plugin.rendezvous.forest.cells or number == 4
        host.deliver(CellAnswer(question.nonce, state, transfer=number), peer(3))
        assert bool(plugin.rendezvous.forest.members) is is_taken
    write(host)
    host.fire("tree_results")
    [(to, message)] = host.take_sent()
    assert to == STRANGER and isinstance(message, Transferred)
    assert (message.transfer, message.results[0].status) == (4, PieceStatus.REPLICATED)
    assert matched(plugin, 0b10) == [], "it is no leaf yet"


def test_a_copy_that_comes_again_extends_the_lease_and_never_shortens_it() -> None:
    host, plugin = node()
    for remaining_s in (5, 600, 30):
        host.deliver(TransferSub(SCHEMA, TREE.attribute, 0b10, WHOLE, (sub(),), (remaining_s,), 4), STRANGER)
        if remaining_s == 5:
            host.deliver(CellAnswer(last_question(host).nonce, CellState.LEAF, transfer=4), peer(3))
        write(host)
    [piece] = plugin.rendezvous.forest.cells[CellAddress(TREE, 0b10)].pieces.values()
    assert piece.expires_at == host.time_s + 600


@pytest.mark.parametrize("said", ["probe", "order", "event"])
def test_a_cell_becomes_a_leaf_only_if_its_parent_says_that_it_is_inner(said: str) -> None:
    host, plugin = node()
    cell = 0b10

    def claim() -> None:
        claims: dict[str, Callable[[], object]] = {
            "probe": lambda: host.deliver(probe(sub(), cell, vouched=True), STRANGER),
            "order": lambda: host.deliver(CellOrder(SCHEMA, TREE.attribute, cell, OrderKind.BE_LEAF), STRANGER),
            "event": lambda: plugin.rendezvous.decide(TREE, cell, None, vouched=True),
        }
        claims[said]()

    claim()
    host.deliver(CellAnswer(last_question(host).nonce, CellState.LEAF), peer(3))
    assert plugin.rendezvous.decide(TREE, cell, None, vouched=True) == Elsewhere((WHOLE,), vouched=False)
    host.time_s += 20.0
    host.fire("tree_tick")
    claim()
    host.deliver(CellAnswer(last_question(host).nonce, CellState.INNER), peer(3))
    write(host)
    assert plugin.rendezvous.decide(TREE, cell, None, vouched=False) == Here()


def test_a_parent_that_says_nothing_is_asked_again_and_what_waits_goes_on_waiting() -> None:
    """Swarm seed 180 of 8 nodes: a silent parent was taken for one that denies its half, which nobody served then."""
    host, plugin = node()
    cell = 0b10
    host.deliver(probe(sub(), cell, vouched=True), STRANGER)
    for asked in range(1, growth.PARENT_TRIES):
        assert len(routed(host, CellQuestion)) == asked
        assert plugin.rendezvous.decide(TREE, cell, None, vouched=True) == Unsettled()
        host.fire("tree_question", last_question(host).nonce)
    host.deliver(CellAnswer(last_question(host).nonce, CellState.INNER), peer(3))
    write(host)
    assert matched(plugin, cell) == [1], "the probe has waited until the cell became a leaf"


def test_a_parent_that_goes_on_saying_nothing_is_taken_for_one_that_knows_no_such_half() -> None:
    host, plugin = node()
    cell = 0b10
    host.deliver(probe(sub(), cell, vouched=True), STRANGER)
    for _ in range(growth.PARENT_TRIES):
        host.fire("tree_question", last_question(host).nonce)
    assert len(routed(host, CellQuestion)) == growth.PARENT_TRIES
    assert plugin.rendezvous.decide(TREE, cell, None, vouched=True) == Elsewhere((WHOLE,), vouched=False)
    assert routed(host, ProbeSub), "the probe goes up"


def test_a_claim_that_there_are_leaves_below_is_checked() -> None:
    host, plugin = installed()
    claim = LeafUpdate(SCHEMA, TREE.attribute, WHOLE, 0b1011, (LeafEntry(0b1011, 5),))
    host.deliver(claim, STRANGER)
    question = last_question(host)
    assert question.cell == 0b10
    host.deliver(CellAnswer(question.nonce, CellState.UNKNOWN), peer(3))
    assert routed(host, TransferSub) == [] and plugin.rendezvous.decide(TREE, WHOLE, None, vouched=False) == Here()
    host.deliver(claim, STRANGER)
    host.deliver(CellAnswer(last_question(host).nonce, CellState.INNER), peer(3))
    assert len(routed(host, TransferSub)) == 1, "it gives its pieces down, and will be an inner node"


def test_a_claim_that_comes_while_the_cell_becomes_a_leaf_is_checked_afterwards() -> None:
    host, _ = node()
    cell, below = 0b10, 0b101
    host.deliver(CellOrder(SCHEMA, TREE.attribute, cell, OrderKind.BE_LEAF), STRANGER)
    host.deliver(CellAnswer(last_question(host).nonce, CellState.INNER), peer(3))
    asked = len(routed(host, CellQuestion))
    for _ in range(2):
        host.deliver(LeafUpdate(SCHEMA, TREE.attribute, cell, below, (LeafEntry(below, 5),)), STRANGER)
    assert len(routed(host, CellQuestion)) == asked, "what the cell is has not been written yet"
    write(host)
    assert len(routed(host, CellQuestion)) == asked + 1, "it is checked once, and at once"
    assert last_question(host).cell == below


def test_a_leaf_is_not_retired_by_an_order_alone() -> None:
    host, plugin = node()
    host.deliver(CellOrder(SCHEMA, TREE.attribute, 0b10, OrderKind.BE_LEAF), STRANGER)
    host.deliver(CellAnswer(last_question(host).nonce, CellState.INNER), peer(3))
    write(host)
    for kind in (OrderKind.RETIRE, OrderKind.COPY_UP):
        host.deliver(CellOrder(SCHEMA, TREE.attribute, 0b10, kind), STRANGER)
        host.deliver(CellAnswer(last_question(host).nonce, CellState.INNER), peer(3))
        write(host)
        assert plugin.rendezvous.decide(TREE, 0b10, None, vouched=False) == Here()
        assert plugin.rendezvous.forest.cells[CellAddress(TREE, 0b10)].move_up is None


def half_of_a_merge() -> tuple[FakeHost, TreePlugin]:
    """A leaf that has said to its parent that it has no more pieces to give."""
    host, plugin = node()
    host.deliver(CellOrder(SCHEMA, TREE.attribute, 0b10, OrderKind.BE_LEAF), STRANGER)
    host.deliver(CellAnswer(last_question(host).nonce, CellState.INNER), peer(3))
    write(host)
    host.deliver(CellOrder(SCHEMA, TREE.attribute, 0b10, OrderKind.COPY_UP), STRANGER)
    host.deliver(CellAnswer(last_question(host).nonce, CellState.INNER, transfer=5), peer(3))
    [word] = routed(host, TransferSub)
    assert isinstance(word, TransferSub) and word.subs == () and word.transfer == 5
    return host, plugin


@pytest.mark.parametrize("is_merged", [True, False])
def test_what_is_new_at_a_half_waits_when_its_parent_may_be_the_leaf_already(is_merged: bool) -> None:
    """An event that visits the parent would not find it; an event that visits the half finds what it always had."""
    host, plugin = half_of_a_merge()
    assert plugin.rendezvous.decide(TREE, 0b10, None, vouched=False) == Here()
    host.deliver(probe(sub(5), 0b10), STRANGER)
    assert host.requests == [], "its subscriber is not asked yet"
    answer = host.deliver(InsertSub(SCHEMA, sub(6), 0b10, 600), SUBSCRIBER)
    assert answer == InsertAnswer(PieceStatus.ELSEWHERE, 0b10)
    assert host.deliver(EndSub(SCHEMA, 5, 0, 9, TREE.attribute, 0b10), SUBSCRIBER) is None
    host.time_s += ASK_S
    host.fire("tree_tick")
    if is_merged:
        host.deliver(CellAnswer(last_question(host).nonce, CellState.LEAF, transfer=5), peer(3))
        write(host)
        [waited] = routed(host, ProbeSub)
        assert isinstance(waited, ProbeSub) and waited.cell == WHOLE
    else:
        host.deliver(CellAnswer(last_question(host).nonce, CellState.INNER), peer(3))
        [request] = host.requests
        assert isinstance(request.message, Established) and request.message.sid == 5
        assert plugin.rendezvous.decide(TREE, 0b10, None, vouched=False) == Here()


# Answers


def test_a_question_is_answered_with_what_is_kept() -> None:
    host, plugin = installed()
    plugin.rendezvous.note_events(TREE, WHOLE, 30)
    host.deliver(CellQuestion(SCHEMA, TREE.attribute, WHOLE, 42), STRANGER)
    entry = LeafEntry(WHOLE, 1, 30)
    assert host.take_sent() == [(STRANGER, CellAnswer(42, CellState.LEAF, 1, 30, (entry,)))]
    assert plugin.rendezvous.entries(TREE) == [entry] and plugin.rendezvous.entries(Tree("other", 1)) == []
    host.time_s = 120.0
    host.deliver(CellQuestion(SCHEMA, TREE.attribute, WHOLE, 43, is_brief=True), STRANGER)
    assert host.take_sent() == [(STRANGER, CellAnswer(43, CellState.LEAF, 1, 4))], "the load fades"


def test_long_answers_to_questions_whose_source_may_be_made_up_are_few() -> None:
    host, _ = installed()
    for number in range(100):
        host.deliver(CellQuestion(SCHEMA, TREE.attribute, WHOLE, number), STRANGER)
    assert len(host.take_sent()) == questions.FULL_ANSWERS_A_SECOND


def test_an_answer_that_nobody_asked_for_is_dropped() -> None:
    host, plugin = node()
    host.deliver(CellAnswer(1, CellState.INNER), STRANGER)
    assert plugin.rendezvous.forest.cells == {}


def test_subscriptions_of_the_node_itself_are_confirmed_without_the_network() -> None:
    host, plugin = node()
    plugin.subscriber.subscribe(5, LOW, LOW + 10)
    [(_, message)] = host.routed
    host.deliver(replace(message, cell=WHOLE) if isinstance(message, ProbeSub) else message, host.peer)
    assert host.requests == []
    write(host)
    assert matched(plugin) == [5]
    assert [message.sid for _, message in host.take_sent() if isinstance(message, Kept)] == [5]
    assert plugin.rendezvous.forest.members == {NodeId(1): 1}
    assert list(plugin.rendezvous.forest.cells[CellAddress(TREE, WHOLE)].pieces) == [
        plugin.subscriber.pieces[5, 0].sub.key
    ]
