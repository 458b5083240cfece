"""READ over T, one node at a time: how a question splits, who answers, and what is refused. Transcripts."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from peerd.errors import ProtocolError
from peerd.ids import NodeId
from peerd.messages import Message, PeerRef, encode_body
from peerd.testing.host import FakeHost, peer, through_the_wire
from protocols.measurement.config import MeasurementConfig
from protocols.measurement.directory import LOST_S, by_value
from protocols.measurement.guarantee.interval import VALUE_MAX, Interval
from protocols.measurement.guarantee.messages import PATH_MAX, CacheUpdate
from protocols.measurement.guarantee.words import BoundClaim, Measurement, Sample, Want
from protocols.measurement.messages import READ_MAX, NotRead, ReadValue
from protocols.measurement.names import FULL_NAME_LENGTH_MAX
from protocols.measurement.placing.along import (
    ANSWER_S,
    DIRECT_COST,
    EXPLORE,
    FEW_OWNERS,
    TREE_WEIGHT,
    FoundAlong,
    ReadsAlong,
    WayChooser,
    statement,
)
from protocols.measurement.placing.messages import AlongRead, AlongWant, QuestionWay, ReadAlong, Subtree
from protocols.measurement.placing.subtree import BITS_MAX
from protocols.measurement.placing.tree import UP_HOPS
from protocols.measurement.readings import NodeEntry
from tests.support.measurement_spot import (
    LEFT,
    LEFT_OWNER,
    ME,
    PARENT,
    READER,
    RIGHT,
    RIGHT_OWNER,
    STRANGER,
    Spot,
    claim,
    cpu,
    measuring,
)


def question(
    owners: Sequence[int],
    path: Sequence[int] = (READER,),
    *,
    half_width: float = 0.5,
    max_age_s: float = 8.0,
    reader: int = READER,
    signer: int | None = None,
    cost: float = 0.0,
    is_by_squares: bool = False,
) -> ReadAlong:
    """As a reader, or a node on the way, asks it."""
    reading = FakeHost(signer or reader, measuring())
    wants = tuple(AlongWant(cpu(owner), half_width) for owner in owners)
    asked = ReadAlong(peer(reader), 3, max_age_s, wants, tuple(NodeId(each) for each in path), cost, b"", is_by_squares)
    return replace(asked, proof=reading.sign(statement(asked)))


# On the way


def test_a_question_splits_where_its_owners_are_below_different_nodes() -> None:
    spot = Spot()
    branches, answers = spot.deliver(question([LEFT_OWNER, RIGHT_OWNER, RIGHT, STRANGER]), peer(READER))
    assert branches == {NodeId(LEFT): {LEFT_OWNER}, NodeId(RIGHT): {RIGHT_OWNER, RIGHT}, PARENT.id: {STRANGER}}
    assert not answers


def test_it_does_not_go_back_where_it_came_from_nor_up_again_when_it_came_from_above() -> None:
    spot = Spot()
    branches, [answer] = spot.deliver(question([LEFT_OWNER, STRANGER], (READER, PARENT.id)), PARENT)
    assert branches == {NodeId(LEFT): {LEFT_OWNER}}
    assert [each.measurement for each in answer.missing] == [cpu(STRANGER)]
    branches, answers = spot.deliver(question([LEFT_OWNER, RIGHT_OWNER], (READER, LEFT)), peer(LEFT))
    assert branches == {NodeId(RIGHT): {RIGHT_OWNER}, PARENT.id: {LEFT_OWNER}}
    assert not answers


def test_the_root_says_where_t_leads_nowhere() -> None:
    spot = Spot(is_root=True)
    branches, [answer] = spot.deliver(question([STRANGER, LEFT_OWNER]), peer(READER))
    assert branches == {NodeId(LEFT): {LEFT_OWNER}}
    assert (answer.number, answer.values, [each.measurement for each in answer.missing]) == (3, (), [cpu(STRANGER)])


def test_an_owner_answers_for_itself_whatever_bounds_would_do_and_says_how_old_its_value_is() -> None:
    spot = Spot()
    spot.sample(4.0)
    spot.host.time_s += 2.0
    branches, [answer] = spot.deliver(question([ME, LEFT_OWNER], half_width=0.0), peer(READER))
    [value] = answer.values
    assert (value.measurement, value.claim.interval, value.age_s) == (cpu(ME), Interval(4.0, 4.0), 2.0)
    assert branches == {NodeId(LEFT): {LEFT_OWNER}}


def test_a_question_ends_at_its_owner_also_where_that_has_no_answer() -> None:
    spot = Spot()
    branches, [answer] = spot.deliver(question([ME]), peer(READER))
    assert not branches, "nobody beyond its owner knows it, and none may handle the question (proposition 1)"
    assert [each.measurement for each in answer.missing] == [cpu(ME)]
    spot.sample(4.0)
    spot.host.time_s += 9.0
    branches, [answer] = spot.deliver(question([ME], max_age_s=8.0), peer(READER))
    assert not branches and not answer.missing
    assert [each.age_s for each in answer.values] == [9.0], "older than was asked for, and there is nothing younger"


@pytest.mark.parametrize(
    ("half_width", "max_age_s", "is_answered"), [(1.0, 8.0, True), (0.5, 8.0, False), (1.0, 1.0, False)]
)
def test_a_cache_answers_if_its_bounds_are_narrow_and_its_value_young_enough(
    half_width: float, max_age_s: float, is_answered: bool
) -> None:
    spot = Spot()
    spot.hold(cpu(LEFT_OWNER), 1.0)
    spot.host.time_s += 2.0
    asked = question([LEFT_OWNER], half_width=half_width, max_age_s=max_age_s)
    branches, answers = spot.deliver(asked, peer(READER))
    assert [[value.measurement for value in answer.values] for answer in answers] == [[cpu(LEFT_OWNER)]] * is_answered
    assert branches == ({} if is_answered else {NodeId(LEFT): {LEFT_OWNER}})
    if is_answered:
        [value] = answers[0].values
        assert value.age_s >= 2.0


def test_a_cache_says_nothing_of_what_nobody_vouches_for_any_more() -> None:
    spot = Spot()
    spot.hold(cpu(LEFT_OWNER), 1.0)
    boot = spot.plugin.caching.boot
    gone = CacheUpdate(1, boot, 0, 0, gone=(cpu(LEFT_OWNER),))
    spot.host.deliver(gone, peer(LEFT_OWNER))
    branches, answers = spot.deliver(question([LEFT_OWNER], half_width=1.0), peer(READER))
    assert branches == {NodeId(LEFT): {LEFT_OWNER}} and not answers


def test_messages_are_shared_by_what_goes_the_same_way() -> None:
    spot = Spot()
    spot.sample(4.0)
    spot.host.deliver(question([ME, LEFT_OWNER, RIGHT_OWNER, RIGHT], cost=0.5), peer(READER))
    sent = [message for _, message in spot.host.take_sent()]
    assert {each.cost for each in sent if isinstance(each, ReadAlong)} == {0.75}
    assert [each.cost for each in sent if isinstance(each, AlongRead)] == [1.75]


@pytest.mark.parametrize(("is_by_squares", "saved"), [(False, 2.0), (True, 3.0)])
def test_what_a_reader_has_paid_less_the_way_here_and_an_answer_from_here_is_what_caching_here_would_save(
    *, is_by_squares: bool, saved: float
) -> None:
    """Experiment measurement/latency: candidates by squares that count their own answer hardly cache, and who asks them
    waits longer than who asks the owner."""
    spot = Spot()
    asked = question([LEFT_OWNER], cost=1.0, is_by_squares=is_by_squares)
    spot.deliver(replace(asked, wants=(AlongWant(cpu(LEFT_OWNER), 0.5, 5.0, 0.125),)), peer(READER))
    assert spot.plugin.decider.statistics.known(cpu(LEFT_OWNER)) == (saved, 0.125)


# What is refused


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ((), READER),
        ((READER, LEFT, READER), READER),
        ((LEFT,), LEFT),
        ((READER, LEFT), RIGHT),
        ((READER, LEFT, LEFT), LEFT),
        ((READER,), LEFT),
    ],
)
def test_a_way_that_cannot_be_is_refused(path: tuple[int, ...], source: int) -> None:
    spot = Spot()
    with pytest.raises(ProtocolError, match="the way of a question"):
        spot.deliver(question([LEFT_OWNER], path), peer(source))
    assert not spot.host.take_sent()


def test_a_question_that_has_been_here_goes_no_further() -> None:
    spot = Spot()
    branches, answers = spot.deliver(question([LEFT_OWNER, ME], (READER, ME, RIGHT)), peer(RIGHT))
    assert not branches and not answers


def test_a_way_that_has_become_too_long_ends() -> None:
    spot = Spot()
    spot.sample(4.0)
    way = (READER, *range(1000, 1000 + PATH_MAX - 3), LEFT)
    for length, goes_on in ((PATH_MAX - 2, True), (PATH_MAX - 1, False), (PATH_MAX, False)):
        path = (READER, *range(1000, 1000 + length - 2), LEFT)
        branches, answers = spot.deliver(question([ME, RIGHT_OWNER], path), peer(LEFT))
        assert bool(branches) is goes_on
        assert [value.measurement for each in answers for value in each.values] == [cpu(ME)]
        missing = [each.measurement for answer in answers for each in answer.missing]
        assert missing == ([] if goes_on else [cpu(RIGHT_OWNER)])
    assert len(way) == PATH_MAX - 1


def test_nobody_is_answered_who_has_not_asked_and_who_passes_a_forged_question_on_is_not_to_blame() -> None:
    spot = Spot()
    spot.sample(4.0)
    forged = question([ME], (READER, LEFT), signer=STRANGER)
    branches, answers = spot.deliver(forged, peer(LEFT))
    assert not branches and not answers
    with pytest.raises(ProtocolError, match="forged"):
        spot.deliver(question([ME], signer=STRANGER), peer(READER))


def test_a_question_that_its_reader_has_not_signed_is_passed_on_by_nobody() -> None:
    spot = Spot()
    with pytest.raises(ProtocolError, match="forged"):
        spot.deliver(question([LEFT_OWNER, STRANGER], signer=STRANGER), peer(READER))
    assert not spot.host.take_sent()


def test_answers_go_to_the_address_that_the_reader_has_signed() -> None:
    spot = Spot()
    spot.sample(4.0)
    asked = replace(question([ME], (READER, LEFT)), reader=PeerRef(NodeId(READER), "192.0.2.1", 80))
    branches, answers = spot.deliver(asked, peer(LEFT))
    assert not branches and not answers


def test_no_number_of_a_question_makes_this_node_say_what_others_would_refuse() -> None:
    spot = Spot()
    spot.sample(VALUE_MAX)
    asked = question([ME, *([LEFT_OWNER] * (READ_MAX - 1))], cost=1e6, max_age_s=1e9, half_width=VALUE_MAX)
    want = AlongWant(cpu(LEFT_OWNER), VALUE_MAX, 1e6, 1e6)
    branches, answers = spot.deliver(replace(asked, wants=(*asked.wants[:1], want)), peer(READER))
    assert branches and answers
    assert spot.plugin.decider.statistics.known(cpu(LEFT_OWNER))[0] <= 1e6


def test_the_largest_question_and_its_answer_and_the_largest_filter_are_no_larger_than_they_may_be() -> None:
    long = "m" * FULL_NAME_LENGTH_MAX
    wants = tuple(
        AlongWant(Measurement(NodeId((1 << 127) + number), long), 1.1, 1.1, 1.1) for number in range(READ_MAX)
    )
    path = tuple(NodeId((1 << 127) + number) for number in range(PATH_MAX))
    ends = Interval(-1.1, 1.1)
    values = tuple(
        ReadValue(want.measurement, BoundClaim(1.1, 1.1, ends, Sample(2**64 - 1, 2**64 - 1), 255), 1.1)
        for want in wants
    )
    missing = tuple(NotRead(want.measurement, "T does not lead there") for want in wants)
    largest: list[Message] = [
        ReadAlong(PARENT, 2**64 - 1, 1.1, wants, path, 1.1, b"x" * 64),
        AlongRead(2**64 - 1, 1.1, values, (1.1,) * READ_MAX, missing),
        Subtree((), b"\xff" * (BITS_MAX // 8)),
    ]
    for message in largest:
        assert through_the_wire(message) == message
        assert len(encode_body(message)) > 4096


@pytest.mark.parametrize("size", [3, 5, 12, 1000])
def test_a_filter_of_an_odd_size_is_refused(size: int) -> None:
    spot = Spot()
    with pytest.raises(ProtocolError, match="power of two"):
        spot.host.deliver(Subtree((), b"x" * size), peer(LEFT))


# As a reader


class Client:
    """A reader that has asked over T, what it was told, and what it asks of owners."""

    def __init__(self, owners: Sequence[int], *, max_age_s: float = 8.0) -> None:
        self.spot = Spot(me=READER)
        self.host, self.along = self.spot.host, self.spot.plugin.along
        self.found: list[FoundAlong] = []
        self.direct: list[Measurement] = []
        self.along.found = self.found.extend
        self.along.direct = lambda wants: self.direct.extend(
            want.measurement for each in wants.values() for want in each
        )
        statistics = self.spot.plugin.decider.statistics
        for owner in owners:
            statistics.read(Want(cpu(owner), 1.0), max_age_s)
        self.along.ask({NodeId(owner): [Want(cpu(owner), 1.0)] for owner in owners}, max_age_s, QuestionWay.TREE)
        asked = [(to, message) for to, message in self.host.take_sent() if isinstance(message, ReadAlong)]
        self.to = {to.id for to, _ in asked}
        self.numbers = {message.number for _, message in asked}

    def answer(
        self, source: int, values: Sequence[ReadValue], missing: Sequence[int] = (), *, updates: int | None = None
    ) -> None:
        """Somebody answers the question."""
        [number] = self.numbers
        not_there = tuple(NotRead(cpu(owner), "T does not lead there") for owner in missing)
        rates = (0.25,) * (len(values) if updates is None else updates)
        self.host.deliver(AlongRead(number, 2.5, tuple(values), rates, not_there), peer(source))


def value(owner: int, half_width: float = 0.5, age_s: float = 1.0) -> ReadValue:
    """As an answer has it."""
    return ReadValue(cpu(owner), claim(1.0, half_width), age_s)


def test_a_reader_asks_once_for_all_of_a_branch_and_the_owners_of_what_t_does_not_lead_to() -> None:
    client = Client([LEFT_OWNER, LEFT, RIGHT_OWNER, STRANGER])
    assert client.to == {NodeId(LEFT), NodeId(RIGHT), PARENT.id} and len(client.numbers) == 1
    client.answer(LEFT, [value(LEFT_OWNER), value(LEFT)])
    client.answer(PARENT.id, [], [STRANGER])
    assert client.direct == [cpu(STRANGER)]
    client.answer(RIGHT_OWNER, [value(RIGHT_OWNER, 5.0)])
    assert [each.measurement for each in client.found] == [cpu(LEFT_OWNER), cpu(LEFT), cpu(RIGHT_OWNER)]
    assert [each.provider for each in client.found] == [NodeId(LEFT), NodeId(LEFT), NodeId(RIGHT_OWNER)]
    assert [each.messages for each in client.found] == [5, 0, 2], "once for each answer"
    assert all(each.known.basis < client.host.time_s - 1.0 for each in client.found), "an age is rounded up"
    assert client.spot.plugin.decider.statistics.known(cpu(LEFT)) == (2.5, 0.25)
    assert not [name for name, _ in client.host.timers if name == "along"]


def test_a_reader_in_no_tree_asks_the_owners() -> None:
    spot = Spot(is_root=True, me=READER)
    direct: list[NodeId] = []
    spot.plugin.along.direct = direct.extend
    spot.plugin.along.ask({NodeId(STRANGER): [Want(cpu(STRANGER), 1.0)]}, 8.0, QuestionWay.TREE)
    assert direct == [NodeId(STRANGER)]
    assert not spot.host.take_sent() and not [name for name, _ in spot.host.timers if name == "along"]


def test_what_was_not_asked_or_is_too_wide_is_not_taken_and_the_owner_is_asked_when_it_is_late() -> None:
    client = Client([LEFT_OWNER, RIGHT_OWNER])
    client.answer(LEFT, [value(STRANGER), value(LEFT_OWNER, 1.5)])
    client.answer(STRANGER, [], [STRANGER])
    assert not client.found and client.direct == [cpu(LEFT_OWNER)]
    [number] = client.numbers
    client.host.deliver(AlongRead(number + 1, 1.0, (value(LEFT_OWNER),), (0.0,)), peer(LEFT))
    assert not client.found
    began = client.host.time_s
    client.host.fire("along", number)
    assert client.host.time_s == began + ANSWER_S
    assert client.direct == [cpu(LEFT_OWNER), cpu(RIGHT_OWNER)]
    client.answer(RIGHT_OWNER, [value(RIGHT_OWNER)])
    assert not client.found, "the owner was asked meanwhile"


def test_an_answer_that_comes_twice_counts_once() -> None:
    client = Client([LEFT_OWNER, RIGHT_OWNER])
    for _ in range(2):
        client.answer(LEFT, [value(LEFT_OWNER), value(LEFT_OWNER)], [RIGHT_OWNER, RIGHT_OWNER])
    assert [each.measurement for each in client.found] == [cpu(LEFT_OWNER)]
    assert client.direct == [cpu(RIGHT_OWNER)]


@pytest.mark.parametrize("updates", [0, 1, 3])
def test_an_answer_with_another_number_of_rates_than_values_is_refused(updates: int) -> None:
    client = Client([LEFT_OWNER, RIGHT_OWNER])
    with pytest.raises(ProtocolError, match="a rate for each value"):
        client.answer(LEFT, [value(LEFT_OWNER), value(RIGHT_OWNER)], updates=updates)
    assert not client.found


def test_many_values_are_asked_for_in_several_questions() -> None:
    client = Client(range(1000, 1000 + READ_MAX + 1))
    assert len(client.numbers) == 2
    for number in client.numbers:
        client.host.fire("along", number)
    assert len(client.direct) == READ_MAX + 1


# Over T_app, where a tag makes regions


def regional(spot: Spot, *, lost: Sequence[NodeId] = ()) -> list[NodeId]:
    """Let a node know that some others have one value of the tag, and which: the first one is their head."""
    directory, members = spot.plugin.directory, [NodeId(LEFT_OWNER), NodeId(RIGHT_OWNER), NodeId(STRANGER)]
    directory._nodes = {node: (peer(node), NodeEntry(node, "", {}, ())) for node in members}
    directory.regions = dict.fromkeys(members, "web")
    for node in lost:
        directory.lost(node)
    return by_value("web", members)


def test_a_question_goes_up_a_few_hops_then_to_the_head_for_all_owners_with_its_value() -> None:
    spot, everybody = Spot(), {LEFT_OWNER, RIGHT_OWNER, STRANGER}
    [head, *_] = regional(spot)
    path = [READER, *range(1000, 1000 + UP_HOPS)]
    for hops in range(1, UP_HOPS):
        branches, answers = spot.deliver(question(sorted(everybody), path[:hops]), peer(path[hops - 1]))
        assert branches == {PARENT.id: everybody} and not answers
    branches, _ = spot.deliver(question([*sorted(everybody), LEFT], path[:UP_HOPS]), peer(path[UP_HOPS - 1]))
    assert branches == {head: everybody, NodeId(LEFT): {LEFT}}, "who has no tag is found over T"
    root = Spot(is_root=True)
    regional(root)
    assert root.deliver(question(sorted(everybody)), peer(READER))[0] == {head: everybody}


def test_the_head_asks_the_owners_themselves() -> None:
    [head, *others] = regional(Spot())
    spot = Spot(me=int(head))
    regional(spot)
    owners = [int(owner) for owner in others]
    branches, [answer] = spot.deliver(question([int(head), *owners]), peer(READER))
    assert branches == {owner: {int(owner)} for owner in others}
    assert [each.measurement for each in answer.missing] == [cpu(int(head))], "it has no value itself"


def test_a_head_that_was_not_to_be_reached_is_none_for_a_while() -> None:
    spot = Spot(is_root=True)
    head, second, third = regional(spot, lost=regional(spot)[:1])
    asked = question([LEFT_OWNER, RIGHT_OWNER, STRANGER])
    assert set(spot.deliver(asked, peer(READER))[0]) == {second}
    spot.plugin.peer_down(peer(second), "silent")
    assert set(spot.deliver(asked, peer(READER))[0]) == {third}
    spot.host.time_s += LOST_S
    assert set(spot.deliver(asked, peer(READER))[0]) == {head}


# Which way a question goes


class Transcript:
    """What a chooser says, a question a second, where each way has a cost: what it says how often on end."""

    def __init__(self, trial_s: float) -> None:
        self.chooser, self.now = WayChooser(trial_s), 0.0

    def play(self, seconds: int, ways: Sequence[QuestionWay], **costs: float) -> list[tuple[str, int]]:
        runs: list[tuple[str, int]] = []
        for _ in range(seconds):
            way = self.chooser.choose(ways, self.now)
            name = "OWNERS" if way is None else way.name
            if way is not None:
                self.chooser.paid(way, costs[name])
            before = runs.pop() if runs and runs[-1][0] == name else (name, 0)
            runs.append((name, before[1] + 1))
            self.now += 1.0
        return runs


def test_each_way_is_tried_for_a_while_and_then_the_cheapest_goes_on_until_another_trial() -> None:
    played = Transcript(4.0)
    both = list(QuestionWay)
    assert played.play(4 + 4 + 64, both, TREE=0.5, SQUARES=0.4) == [("TREE", 4), ("SQUARES", 4 + 64)]
    assert played.play(4 + 64, both, TREE=0.2, SQUARES=0.4) == [("TREE", 4 + 64)], "it has become the cheaper one"
    assert played.play(4 + 64, both, TREE=0.2, SQUARES=0.6) == [("SQUARES", 4), ("TREE", 64)]


def test_owners_are_asked_where_no_way_is_cheaper_and_each_way_is_tried_in_its_turn() -> None:
    played = Transcript(4.0)
    rounds = [("OWNERS", 64), ("TREE", 4), ("OWNERS", 64), ("SQUARES", 4)]
    assert played.play(8 + 2 * 136, list(QuestionWay), TREE=1.5, SQUARES=3.0) == [
        ("TREE", 4),
        ("SQUARES", 4),
        *rounds,
        *rounds,
    ]


def test_a_way_that_becomes_dear_is_left_at_once() -> None:
    played = Transcript(4.0)
    assert played.play(10, [QuestionWay.TREE], TREE=0.5) == [("TREE", 10)]
    assert played.play(10, [QuestionWay.TREE], TREE=2.0) == [("TREE", 2), ("OWNERS", 8)]


def test_squares_are_tried_once_it_is_known_where_nodes_are() -> None:
    played = Transcript(4.0)
    assert played.play(10, [QuestionWay.TREE], TREE=0.5) == [("TREE", 10)]
    assert played.play(10, list(QuestionWay), TREE=0.5, SQUARES=0.25) == [("SQUARES", 10)]


def test_a_reader_that_asks_seldom_tries_a_way_with_one_question() -> None:
    played = Transcript(0.5)
    expected = [("TREE", 1), ("SQUARES", 1), ("OWNERS", EXPLORE), ("TREE", 1), ("OWNERS", EXPLORE)]
    assert played.play(3 + 2 * EXPLORE, list(QuestionWay), TREE=1.5, SQUARES=3.0) == expected


@pytest.mark.parametrize(
    ("placing", "way"), [("owners", None), ("tree", QuestionWay.TREE), ("squares", QuestionWay.SQUARES)]
)
def test_an_operator_has_the_last_word(placing: str, way: QuestionWay | None) -> None:
    spot = Spot(placing="tree")
    config = MeasurementConfig.model_validate({"placing": placing})
    along = ReadsAlong(spot.host, config, spot.plugin.caching, spot.plugin.along._tree, *[None] * 5)  # type: ignore[arg-type]  # they are not needed
    assert along.choose({NodeId(LEFT_OWNER): [Want(cpu(LEFT_OWNER), 1.0)]}) is way


def test_the_owners_of_a_few_values_are_asked_and_what_a_question_has_cost_counts() -> None:
    spot = Spot(me=READER, placing="auto")
    along, wants = spot.plugin.along, {NodeId(owner): [Want(cpu(owner), 1.0)] for owner in range(50, 51 + FEW_OWNERS)}
    assert along.choose(dict(list(wants.items())[1:])) is None, "they are few"
    assert along.choose(wants) is QuestionWay.TREE, "it is not known yet where nodes are"
    along.ask(wants, 8.0, QuestionWay.TREE)
    [question] = [message for _, message in spot.host.take_sent() if isinstance(message, ReadAlong)]
    values = tuple(value(owner) for owner in range(50, 50 + FEW_OWNERS))
    answer = AlongRead(question.number, 0.5, values, (0.0,) * FEW_OWNERS, (NotRead(cpu(54), ""),))
    spot.host.deliver(answer, PARENT)
    paid = TREE_WEIGHT * 0.5 * FEW_OWNERS + DIRECT_COST
    assert along.chooser.costs == {QuestionWay.TREE: pytest.approx(paid / (DIRECT_COST * (FEW_OWNERS + 1)))}
