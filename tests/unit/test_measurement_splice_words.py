"""Splices, one node at a time: what is refused, what nobody is to blame for, and what is left afterwards. Transcripts.

`tests/unit/test_measurement_splicing.py` has what comes of several together.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from peerd.errors import ProtocolError
from peerd.ids import NodeId
from peerd.lib.proof_ends import is_short
from peerd.messages import Message, PeerRef
from peerd.testing.host import FakeHost, peer
from protocols.measurement.guarantee.effects import ProviderLost
from protocols.measurement.guarantee.holder import STOP_S
from protocols.measurement.guarantee.interval import Interval
from protocols.measurement.guarantee.messages import PATH_MAX, CacheAsk, CacheEntry, CacheUpdate, StandingPromises
from protocols.measurement.guarantee.words import BoundClaim, Measurement, Sample, Want
from protocols.measurement.messages import READ_MAX
from protocols.measurement.names import FULL_NAME_LENGTH_MAX
from protocols.measurement.placing import splicing as splicing_module
from protocols.measurement.placing.messages import AlongWant, MoveCaches, MovedCache, SpliceIn, Subtree
from protocols.measurement.placing.splicing import LEAVING_S, PARKED_S, statement
from protocols.measurement.placing.wants import Why
from protocols.measurement.plugin import TICK_S
from tests.support.measurement_spot import (
    LEFT,
    LEFT_OWNER,
    ME,
    PARENT,
    READER as HOLDER,
    RIGHT,
    RIGHT_OWNER,
    STRANGER,
    Spot,
    claim,
    cpu,
    measuring,
)

HOLDER_BOOT = 5


def splice(
    measurements: Sequence[Measurement], path: Sequence[int] = (HOLDER,), *, number: int = 1, half_width: float = 1.0
) -> SpliceIn:
    """As a holder, or a node on the way, asks for it."""
    wants = tuple(AlongWant(each, half_width, 0.0, 0.25) for each in measurements)
    way = tuple(NodeId(each) for each in path)
    asked = SpliceIn(peer(path[0]), HOLDER_BOOT, number, 30.0, 5.0, wants, way, b"")
    return replace(asked, proof=FakeHost(path[0], measuring()).sign(statement(asked)))


def sent(spot: Spot, kind: type[Message]) -> list[tuple[PeerRef, Message]]:
    """What a node has sent of one kind since the last time; the rest is forgotten."""
    return [(to, message) for to, message in spot.host.take_sent() if isinstance(message, kind)]


def test_who_provides_answers_with_the_way_and_others_pass_the_question_on() -> None:
    spot = Spot()
    spot.sample(4.0)
    spot.host.deliver(splice([cpu(ME), cpu(LEFT_OWNER)], (HOLDER, RIGHT)), peer(RIGHT))
    [(holder, update), (child, question)] = spot.host.take_sent()
    assert isinstance(update, CacheUpdate) and holder == peer(HOLDER)
    assert update.path == (HOLDER, RIGHT, ME) and [entry.measurement for entry in update.entries] == [cpu(ME)]
    assert isinstance(question, SpliceIn) and child == peer(LEFT)
    assert question.path == (HOLDER, RIGHT, ME) and [want.measurement for want in question.wants] == [cpu(LEFT_OWNER)]


def test_a_question_for_what_this_node_asks_for_itself_waits_for_that() -> None:
    """Where many begin to watch at once, owners provided for all of them first, and moved them one by one."""
    spot = Spot()
    spot.plugin.wants.hold("watched", [(Want(cpu(LEFT_OWNER), 1.0), 5.0), (Want(cpu(RIGHT_OWNER), 1.0), 5.0)])
    own = [message for _, message in sent(spot, SpliceIn) if isinstance(message, SpliceIn)]
    spot.host.deliver(splice([cpu(LEFT_OWNER), cpu(RIGHT_OWNER)]), peer(HOLDER))
    assert not spot.host.take_sent()
    answer(spot, own[0], (LEFT, LEFT_OWNER))
    spot.host.fire("splice_parked")
    [(holder, update)] = spot.host.take_sent()
    assert holder == peer(HOLDER) and isinstance(update, CacheUpdate) and update.path == (HOLDER, ME)
    assert [entry.measurement for entry in update.entries] == [cpu(LEFT_OWNER)]
    spot.host.time_s += PARKED_S
    spot.host.fire("splice_parked")
    [(child, question)] = sent(spot, SpliceIn)
    assert isinstance(question, SpliceIn) and child == peer(RIGHT) and question.path == (HOLDER, ME)
    assert [want.measurement for want in question.wants] == [cpu(RIGHT_OWNER)], "it goes on, late"
    assert not spot.plugin.splicing._parked


def test_of_too_many_questions_that_wait_the_last_ones_go_on_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(splicing_module, "PARKED_MAX", 1)
    spot = Spot()
    spot.plugin.wants.hold("watched", [(Want(cpu(LEFT_OWNER), 1.0), 5.0)])
    sent(spot, SpliceIn)
    for number in (1, 2):
        spot.host.deliver(splice([cpu(LEFT_OWNER)], number=number), peer(HOLDER))
    [(_, question)] = sent(spot, SpliceIn)
    assert isinstance(question, SpliceIn) and question.number == 2


def test_news_of_the_provider_before_are_no_answer_to_who_provides_now() -> None:
    """Bounds that broke while a holder was being moved left it with its old provider for ever."""
    spot = Spot()
    measurement = cpu(LEFT_OWNER)
    spot.plugin.wants.hold("watched", [(Want(measurement, 1.0), 5.0)])
    [(_, question)] = sent(spot, SpliceIn)
    assert isinstance(question, SpliceIn)
    boot, owner = spot.plugin.caching.boot, peer(LEFT_OWNER)

    def tell(provider: int, number: int, asked: int, way: Sequence[int] = ()) -> None:
        entry = CacheEntry(number, 0, False, claim(), measurement)
        path, standing = tuple(NodeId(each) for each in way), StandingPromises((number,), (0,))
        spot.host.deliver(CacheUpdate(1, boot, asked, 0, (entry,), standing, path=path), peer(provider))

    tell(LEFT_OWNER, 1, question.number, (ME, LEFT, LEFT_OWNER))
    spot.host.deliver(MoveCaches(peer(LEFT), (MovedCache(measurement, (NodeId(ME), NodeId(LEFT))),)), owner)
    [(_, moved)] = sent(spot, SpliceIn)
    assert isinstance(moved, SpliceIn) and moved.is_move
    tell(LEFT_OWNER, 2, question.number)
    assert spot.plugin.caching.holder.wanted[measurement].provider == LEFT_OWNER
    tell(LEFT, 1, moved.number, (ME, LEFT))
    assert spot.plugin.caching.holder.wanted[measurement].provider == LEFT
    assert spot.plugin.caching.holder.held[measurement].provider == LEFT


def test_a_provider_that_is_lost_is_replaced_at_once_and_not_when_its_word_is_too_old() -> None:
    spot = Spot()
    measurement = cpu(LEFT_OWNER)
    spot.plugin.wants.hold("cached", [(Want(measurement, 1.0), 5.0)])
    [(_, question)] = sent(spot, SpliceIn)
    assert isinstance(question, SpliceIn)
    answer(spot, question, (LEFT,))
    spot.plugin.peer_down(peer(LEFT), "gone")
    spot.host.fire("splice_again")
    assert len(sent(spot, SpliceIn)) == 1


def test_a_question_ends_at_its_owner_also_where_that_has_no_value() -> None:
    spot = Spot()
    spot.host.deliver(splice([cpu(ME)]), peer(HOLDER))
    assert not sent(spot, SpliceIn)


def test_the_answer_to_the_longest_way_is_one_that_its_holder_can_read() -> None:
    spot = Spot()
    spot.sample(4.0)
    others = range(1000, 1000 + PATH_MAX - 2)
    spot.host.deliver(splice([cpu(ME)], (HOLDER, *others)), peer(others[-1]))
    [(_, answer)] = sent(spot, CacheUpdate)
    assert isinstance(answer, CacheUpdate) and len(answer.path) == PATH_MAX
    with pytest.raises(ProtocolError, match="the way of a question"):
        spot.host.deliver(splice([cpu(ME)], (HOLDER, *others, 5000)), peer(5000))
    assert not spot.host.take_sent()


def test_where_t_leads_no_further_the_owner_is_asked() -> None:
    spot = Spot()
    spot.plugin._know(peer(STRANGER))
    spot.host.deliver(splice([cpu(STRANGER)], (HOLDER, PARENT.id)), PARENT)
    [(to, question)] = sent(spot, SpliceIn)
    assert to == peer(STRANGER) and isinstance(question, SpliceIn) and question.path == (HOLDER, PARENT.id, ME)


@pytest.mark.parametrize(
    "path", [(), (HOLDER, LEFT, HOLDER), (LEFT, HOLDER), (HOLDER, LEFT, LEFT), (HOLDER, RIGHT), (HOLDER,)], ids=str
)
def test_a_way_that_cannot_be_is_refused(path: tuple[int, ...]) -> None:
    spot = Spot()
    way = tuple(NodeId(each) for each in path)
    with pytest.raises(ProtocolError, match="the way of a question"):
        spot.host.deliver(replace(splice([cpu(LEFT_OWNER)]), path=way), peer(LEFT))
    assert not spot.host.take_sent()


@pytest.mark.parametrize(
    "change",
    [{"boot": 1 << 60}, {"number": 1 << 60}, {"max_age_s": 1e9}, {"holder": PeerRef(NodeId(HOLDER), "192.0.2.1", 80)}],
    ids=lambda change: next(iter(change)),
)
def test_what_a_holder_has_not_said_is_believed_by_nobody_and_teaches_nothing(change: dict[str, object]) -> None:
    spot = Spot()
    spot.sample(4.0)
    forged = replace(splice([cpu(ME), cpu(LEFT_OWNER)], (HOLDER, LEFT)), **change)
    spot.host.deliver(forged, peer(LEFT))
    assert not spot.host.take_sent()
    assert not len(spot.plugin.decider.statistics) and not spot.plugin.caching.provider.edges
    spot.host.deliver(CacheAsk(HOLDER_BOOT, 2, 30.0, 5.0, (Want(cpu(ME), 1.0),)), peer(HOLDER))
    assert sent(spot, CacheUpdate), "its own word counts"


def asked_of(spot: Spot, name: Measurement) -> SpliceIn:
    """The question that a node that wants to hold a value has sent."""
    [(_, question)] = sent(spot, SpliceIn)
    assert isinstance(question, SpliceIn) and [want.measurement for want in question.wants] == [name]
    return question


def hold_over_tree(spot: Spot, owner: int = LEFT_OWNER) -> None:
    """Have a node hold a value that it has sought over T, and that its owner provides, LEFT or below it."""
    spot.plugin.splicing.seek([Want(cpu(owner), 1.0)], 5.0)
    answer(spot, asked_of(spot, cpu(owner)), (LEFT,) if owner == LEFT else (LEFT, owner))
    assert cpu(owner) in spot.plugin.caching.holder.held


def answer(spot: Spot, question: SpliceIn, way: Sequence[int]) -> None:
    """The last node of the way provides what was asked for."""
    [want] = question.wants
    entry = CacheEntry(1, 0, False, claim(), want.measurement)
    path = (NodeId(ME), *map(NodeId, way))
    boot, standing = spot.plugin.caching.boot, StandingPromises((1,), (0,))
    spot.host.deliver(CacheUpdate(1, boot, question.number, 0, (entry,), standing, path=path), peer(way[-1]))
    spot.host.take_sent()


def test_a_place_is_renewed_less_often_while_that_finds_nothing_new() -> None:
    spot = Spot()
    hold_over_tree(spot)

    def renewals(times: int, way: Sequence[int]) -> list[int]:
        found = []
        for time in range(times):
            spot.host.fire("splice_renew")
            for _, question in sent(spot, SpliceIn):
                assert isinstance(question, SpliceIn)
                found.append(time)
                answer(spot, question, way)
        return found

    assert renewals(20, (LEFT, LEFT_OWNER)) == [7, 15]
    assert renewals(4, (LEFT,)) == [3], "so long it may take until a nearer one is found"
    assert renewals(8, (LEFT,)) == [7], "counted from then on"
    spot.host.deliver(Subtree((NodeId(RIGHT), NodeId(RIGHT_OWNER), NodeId(LEFT_OWNER))), peer(RIGHT))
    spot.host.deliver(Subtree((NodeId(LEFT),)), peer(LEFT))
    assert renewals(2, (RIGHT, LEFT_OWNER)) == [0], "T leads elsewhere now"


def test_no_nearer_provider_is_sought_than_the_owner_beside_this_node() -> None:
    """Experiment measurement/traffic: the root of a T like a star sent two messages for each owner every 128 s."""
    spot = Spot()
    hold_over_tree(spot, LEFT)
    for _ in range(8):
        spot.host.fire("splice_renew")
    assert not sent(spot, SpliceIn)
    spot.host.deliver(Subtree((NodeId(RIGHT), NodeId(RIGHT_OWNER), NodeId(LEFT))), peer(RIGHT))
    spot.host.deliver(Subtree(), peer(LEFT))
    spot.host.take_sent()
    for _ in range(4):
        spot.host.fire("splice_renew")
    assert {to for to, _ in sent(spot, SpliceIn)} == {peer(RIGHT)}, "T has changed"


def test_who_answers_is_asked_to_go_on_by_a_node_that_held_nothing_before() -> None:
    spot = Spot()
    hold_over_tree(spot)
    until = spot.host.time_s + spot.plugin.config.ask_interval + 2 * TICK_S
    while spot.host.time_s < until:
        spot.host.fire("tick")
    [(to, _)] = sent(spot, CacheAsk)
    assert to == peer(LEFT_OWNER)


@pytest.mark.parametrize(
    "path",
    [(ME,), (HOLDER, ME), (ME, LEFT, LEFT, RIGHT), (ME, LEFT), (ME, RIGHT, LEFT), (ME, LEFT, ME, RIGHT)],
    ids=str,
)
def test_a_way_to_a_provider_that_cannot_be_is_refused_and_not_passed_on(path: tuple[int, ...]) -> None:
    spot = Spot()
    hold_over_tree(spot)
    moved = MovedCache(cpu(LEFT_OWNER), tuple(NodeId(each) for each in path))
    with pytest.raises(ProtocolError, match="the way to a provider"):
        spot.host.deliver(MoveCaches(peer(RIGHT), (moved,)), peer(LEFT_OWNER))
    assert not spot.host.take_sent()


def test_a_holder_moves_only_when_its_provider_says_so() -> None:
    spot = Spot()
    hold_over_tree(spot)
    word = MoveCaches(peer(RIGHT), (MovedCache(cpu(LEFT_OWNER), (NodeId(ME), NodeId(LEFT), NodeId(RIGHT))),))
    spot.host.deliver(word, peer(STRANGER))
    assert not spot.host.take_sent()
    spot.host.deliver(word, peer(LEFT_OWNER))
    question = asked_of(spot, cpu(LEFT_OWNER))
    assert question.is_move and question.path == (ME, LEFT)
    assert cpu(LEFT_OWNER) in spot.plugin.caching.holder.held, "until the new one vouches"


def test_a_holder_asks_a_named_provider_itself_without_a_signature_and_over_t_when_that_one_does_not_answer() -> None:
    spot = Spot()
    hold_over_tree(spot)
    word = MoveCaches(peer(RIGHT), (MovedCache(cpu(LEFT_OWNER), (NodeId(ME), NodeId(LEFT), NodeId(RIGHT))),))
    spot.host.deliver(word, peer(LEFT_OWNER))
    [(to, named)] = sent(spot, SpliceIn)
    assert isinstance(named, SpliceIn) and to == peer(RIGHT) and named.is_move and not named.proof
    spot.host.fire("splice", named.number)
    [(to, along)] = sent(spot, SpliceIn)
    assert isinstance(along, SpliceIn) and to == peer(LEFT) and not along.is_move and is_short(along.proof)
    spot.host.fire("splice", along.number)
    [(_, again)] = sent(spot, SpliceIn)
    assert isinstance(again, SpliceIn) and again.proof and not is_short(again.proof)


def test_a_named_provider_hears_of_it_from_the_holder_alone_and_passes_nothing_on() -> None:
    spot = Spot()
    spot.sample(4.0)
    asked = replace(splice([cpu(ME), cpu(LEFT_OWNER)], (HOLDER, RIGHT)), is_move=True, proof=b"")
    with pytest.raises(ProtocolError, match="the way of a question"):
        spot.host.deliver(asked, peer(RIGHT))
    assert not spot.host.take_sent()
    spot.host.deliver(asked, peer(HOLDER))
    [(holder, update)] = spot.host.take_sent()
    assert isinstance(update, CacheUpdate) and holder == peer(HOLDER) and update.path == (HOLDER, RIGHT, ME)
    assert [entry.measurement for entry in update.entries] == [cpu(ME)], "the other one its holder seeks itself"


def test_ways_as_long_as_may_be_are_told_in_words_no_larger_than_may_be() -> None:
    spot = Spot()
    names = [("m" * FULL_NAME_LENGTH_MAX)[len(str(number)) :] + str(number) for number in range(READ_MAX)]
    spot.plugin.sampled(dict.fromkeys(names, 1.0), spot.host.time_s)
    spot.host.take_sent()
    measurements = [Measurement(NodeId(ME), name) for name in names]
    below = [(1 << 127) + number for number in range(PATH_MAX - 1)]
    spot.host.deliver(splice(measurements, below), peer(below[-1]))
    assert sent(spot, CacheUpdate)
    spot.host.deliver(splice(measurements, below[-1:]), peer(below[-1]))
    moved = [each for _, word in sent(spot, MoveCaches) if isinstance(word, MoveCaches) for each in word.moved]
    assert [each.measurement for each in moved] == measurements


def test_two_providers_are_lost_soon_after_each_other_and_what_was_sought_of_the_first_is_not_wanted_any_more() -> None:
    spot = Spot()
    for owner in (LEFT_OWNER, RIGHT_OWNER):
        spot.plugin.decider._wants.hold("watched", [(Want(cpu(owner), 1.0), 5.0)])
    spot.plugin._carry_out([ProviderLost(cpu(LEFT_OWNER), NodeId(STRANGER))])
    spot.plugin.decider._wants.let_go("watched", [cpu(LEFT_OWNER)])
    spot.host.take_sent()
    spot.plugin._carry_out([ProviderLost(cpu(RIGHT_OWNER), NodeId(STRANGER))])
    spot.host.fire("splice_again")
    asked_of(spot, cpu(RIGHT_OWNER))


def test_what_is_watched_here_goes_on_to_be_provided_when_it_is_not_cached_any_more() -> None:
    spot = Spot()
    wants, splicing = spot.plugin.decider._wants, spot.plugin.splicing
    spot.hold(cpu(LEFT_OWNER), 1.0)
    whys: tuple[Why, ...] = ("watched", "cached")
    for why in whys:
        wants.hold(why, [(Want(cpu(LEFT_OWNER), 1.0), 5.0)])
    spot.plugin.decider.statistics.read(Want(cpu(LEFT_OWNER), 1.0), 10.0)
    spot.host.fire("decide")
    spot.host.deliver(splice([cpu(LEFT_OWNER)], half_width=2.0), peer(HOLDER))
    [(holder, _)] = sent(spot, CacheUpdate)
    assert holder == peer(HOLDER)
    for _ in range(3):
        spot.host.fire("decide")
        spot.host.time_s += LEAVING_S
    assert not wants.cached() and not splicing.left(spot.host.time_s)
    spot.host.take_sent()
    spot.plugin._carry_out([ProviderLost(cpu(LEFT_OWNER), NodeId(STRANGER))])
    spot.host.fire("splice_again")
    asked_of(spot, cpu(LEFT_OWNER))


def test_who_goes_on_to_provide_what_a_node_at_rest_does_not_want_is_told_so() -> None:
    """Its promise was made anew while the word that it is not wanted was under way, and went on for ever: the node had
    nothing else to do, and its timer was not running."""
    spot = Spot()
    source, measurement = peer(LEFT_OWNER), cpu(LEFT_OWNER)
    told = BoundClaim(1.0, 1.0, Interval(0.0, 2.0), Sample(7, 3), 1)
    entry = CacheEntry(9, 8, True, told, measurement)
    spot.host.deliver(CacheUpdate(7, spot.plugin.caching.boot, 0, 0, (entry,)), source)
    spot.host.time_s += STOP_S + TICK_S
    spot.host.fire("tick")
    [(to, ask)] = [(to, message) for to, message in spot.host.take_sent() if isinstance(message, CacheAsk)]
    assert to == source and ask.unwanted == (measurement,)
