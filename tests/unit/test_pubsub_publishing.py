"""The publisher's side on one node, with answers that the test gives: order, tries, outcomes, limits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from peerd.api import LookupResult, SendRefusal
from peerd.errors import ProtocolError, Unavailable
from peerd.ids import NodeId
from peerd.messages import PeerRef
from peerd.testing.host import FakeHost, peer
from protocols.pubsub.bodies import is_proven
from protocols.pubsub.config import PubSubConfig
from protocols.pubsub.messages import EventAck, ProbePub
from protocols.pubsub.names import EVERY, EventId, Tree, key_of
from protocols.pubsub.publishing.lanes import ALLOWANCE_MAX_S, EVENT_S, FIRST_S
from protocols.pubsub.publishing.outcomes import PublishResult, PublishStatus
from protocols.pubsub.publishing.publisher import DOUBTS_MAX, UNDER_WAY_MAX, WAITERS_MAX
from protocols.pubsub.publishing.spread import AttributeCell, places_of, trees_of
from protocols.pubsub.tree.cells import WHOLE, cell_of_text, children
from tests.support.pubsub_events import SCHEMA, Events, Forest, LineSchema, acknowledgement

OTHER = peer(2)
LEFT, RIGHT = children(WHOLE)


class World:
    """One publishing node whose only neighbour is the root of every cell but those of ``own``."""

    def __init__(self, *, attributes: int = 0, **settings: Any) -> None:
        self.schema = LineSchema(attributes=attributes)
        forest = Forest({attribute: [WHOLE] for attribute in range(attributes + 1)})
        options: dict[str, Any] = {"probe_level_min": 0, "probe_probability": 1.0, "publish_retry": 1.0} | settings
        self.plugin = Events(PubSubConfig(**options), forest, self.schema)
        self.host = FakeHost(1, self.plugin)
        self.host.next_hop = lambda key: OTHER  # type: ignore[method-assign]  # every key is the neighbour's
        self.host.lookup = self._look_up  # type: ignore[method-assign]  # every way is good

    def _look_up(self, key: NodeId, on_result: Callable[[LookupResult], None], timeout_s: float = 10.0) -> None:
        """Ways that have failed are looked up before they are tried again."""
        on_result(LookupResult(key, OTHER, (), 0.0))

    def publish(self, count: int = 1, **options: Any) -> list[int]:
        """Publish events; returns their numbers."""
        return [self.plugin.publish(options.get("values", {}), **_but_values(options)).sequence for _ in range(count)]

    def sent(self) -> list[tuple[list[int], list[AttributeCell], int]]:
        """What has set out since the last call: events, cells, which try."""
        self.plugin.validate()
        return [
            ([event.sequence for event in message.events], places_of(message.places), message.attempt)
            for _, message in self.host.take_sent()
            if isinstance(message, ProbePub)
        ]

    def answer(self, numbers: list[int], *places: AttributeCell, source: PeerRef = OTHER, **fields: Any) -> None:
        """A leaf acknowledges."""
        ack = EventAck(SCHEMA, self.host.boot_epoch, tuple(numbers), trees_of(places), (1,) * len(numbers), 2)
        self.host.deliver(replace(ack, **fields), source)
        self.plugin.validate()

    def wait(self, seconds: float) -> None:
        """Let time pass, with all timers that are due until then."""
        end = self.host.time_s + seconds
        while due := [(at, timer) for timer, at in self.host.timers.items() if at <= end]:
            self.host.fire(*min(due)[1])
        self.host.time_s = end
        self.plugin.validate()

    @property
    def ended(self) -> list[tuple[int, PublishStatus]]:
        """The publishes that are over."""
        return [(outcome.event.sequence, outcome.status) for outcome in self.plugin.outcomes]


ROOT: AttributeCell = (EVERY, WHOLE)


def _but_values(options: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if name != "values"}


def test_what_matched_in_several_leaves_of_one_root_is_counted_once() -> None:
    world = World(attributes=1)
    world.publish()
    world.answer([1], (0, WHOLE), (1, WHOLE), matched=(3,), copies=2)
    [outcome] = world.plugin.outcomes
    assert (outcome.leaves, outcome.matched) == (2, 3)


def test_a_publish_is_done_when_the_leaves_that_answered_cover_its_target() -> None:
    world = World(attributes=1)
    assert world.publish() == [1]
    assert world.sent() == [([1], [(0, WHOLE), (1, WHOLE)], 0)]
    world.answer([1], (0, WHOLE), matched=(3,), copies=2)
    world.answer([1], (1, LEFT), matched=(1,), copies=1)
    world.answer([1], (1, LEFT), matched=(1,), copies=1)
    assert not world.ended
    world.host.time_s = 0.25
    world.answer([1], (1, RIGHT), matched=(0,), copies=2)
    [outcome] = world.plugin.outcomes
    assert outcome.event == EventId(world.host.id, world.host.boot_epoch, 1)
    assert outcome.status is PublishStatus.REPLICATED
    assert (outcome.leaves, outcome.matched, outcome.copies, outcome.tries) == (3, 4, 1, 1)
    assert outcome.duration_s == 0.25
    assert [(each.attribute, each.cell) for each in outcome.answers] == [(0, WHOLE), (1, LEFT), (1, RIGHT)]
    assert world.plugin.publishing.outcomes[outcome.event] == outcome
    world.wait(600)
    assert not world.host.timers


@pytest.mark.parametrize(
    ("ack", "copies", "status"),
    [
        ("received", 0, PublishStatus.RECEIVED),
        ("received", 2, PublishStatus.RECEIVED),
        ("replicated", 1, PublishStatus.REPLICATED),
        ("replicated", 0, PublishStatus.RECEIVED),
    ],
)
def test_a_client_is_told_what_its_acknowledgement_means(ack: Any, copies: int, status: PublishStatus) -> None:
    world = World(event_copies=3)
    world.publish(ack=ack)
    [(_, message)] = world.host.take_sent()
    assert isinstance(message, ProbePub)
    assert message.copies == (3 if ack == "replicated" else 0)
    world.answer([1], ROOT, copies=copies)
    assert world.ended == [(1, status)]


def test_events_that_are_published_meanwhile_go_as_one_batch_in_order() -> None:
    world = World()
    world.publish(5)
    assert world.sent() == [([1], [ROOT], 0)]
    world.answer([1], ROOT)
    assert world.sent() == [([2, 3, 4, 5], [ROOT], 0)]
    world.publish()
    world.answer([2, 3, 4, 5], ROOT)
    assert world.sent() == [([6], [ROOT], 0)]


def test_a_batch_is_no_larger_than_a_message() -> None:
    world = World()
    world.publish()
    world.publish(3, payload=bytes(20_000))
    world.sent()
    world.answer([1], ROOT)
    assert world.sent() == [([2, 3], [ROOT], 0)]


def test_what_is_not_answered_is_tried_again_after_doubling_pauses_until_it_is_given_up() -> None:
    world = World(publish_timeout=20.0, publish_retry=2.5)
    world.publish()
    assert world.sent() == [([1], [ROOT], 0)]
    for pause, attempt in ((2.5, 1), (5.0, 2), (10.0, 3)):
        world.wait(pause - 0.01)
        assert not world.sent()
        world.wait(0.01)
        assert world.sent() == [([1], [ROOT], attempt)]
    world.wait(3.0)
    [outcome] = world.plugin.outcomes
    assert outcome.status is PublishStatus.UNKNOWN
    assert (outcome.missing, outcome.reason) == ((ROOT,), "not all leaves have answered")


def test_what_was_never_sent_has_failed_for_certain() -> None:
    world = World(publish_timeout=10.0)
    world.publish(2)
    world.wait(10.0)
    assert world.ended == [(1, PublishStatus.UNKNOWN)], "the second set out later, with the next try"
    world.wait(FIRST_S)
    assert world.ended == [(1, PublishStatus.UNKNOWN), (2, PublishStatus.UNKNOWN)]
    world = World(publish_timeout=10.0, publish_retry=60.0)
    world.publish(2)
    world.wait(10.0)
    assert world.ended == [(1, PublishStatus.UNKNOWN), (2, PublishStatus.FAILED)]
    assert "has not been sent" in world.plugin.outcomes[1].reason


def test_when_an_event_is_given_up_those_behind_it_go_on() -> None:
    world = World(publish_timeout=10.0, publish_retry=60.0)
    world.publish()
    world.wait(5.0)
    world.publish()
    world.sent()
    world.wait(5.0)
    assert world.ended == [(1, PublishStatus.UNKNOWN)]
    assert world.sent() == [([2], [ROOT], 0)]


# Remembered leaves


def test_a_leaf_that_answered_gets_the_next_event_directly_from_its_root() -> None:
    world = World()
    world.publish()
    owner = peer(key_of(Tree(SCHEMA, EVERY), WHOLE) + 1)
    world.host.take_sent()
    world.answer([1], ROOT, source=owner)
    world.publish()
    [(to, message)] = world.host.take_sent()
    assert isinstance(message, ProbePub)
    assert (to, message.hops, message.remembered) == (owner, 0, True)
    world.wait(1.0)
    [(to, message)] = world.host.take_sent()
    assert isinstance(message, ProbePub)
    assert (to, message.attempt, message.remembered) == (OTHER, 1, False), "it did not answer: ask the overlay"


def test_a_root_that_cannot_be_reached_is_forgotten() -> None:
    world = World()
    world.publish()
    world.answer([1], ROOT)
    assert len(world.plugin.publishing.cache) == 1
    world.plugin.send_refused(OTHER, ProbePub, SendRefusal.PEER_DOWN, 1)
    assert len(world.plugin.publishing.cache) == 0


def test_at_most_so_many_nodes_get_an_event_directly() -> None:
    world = World(direct_max=1)
    world.publish()
    world.host.take_sent()
    roots = [peer(key_of(Tree(SCHEMA, EVERY), cell)) for cell in (LEFT, RIGHT)]
    world.answer([1], (EVERY, LEFT), source=roots[0])
    world.answer([1], (EVERY, RIGHT), source=roots[1])
    world.publish()
    sent = world.host.take_sent()
    assert [to for to, _ in sent] == [roots[0], OTHER]
    assert all(isinstance(message, ProbePub) and message.remembered for _, message in sent)


def test_of_the_roots_those_with_a_link_get_events_directly_first() -> None:
    world = World(direct_max=1)
    world.publish()
    roots = [peer(key_of(Tree(SCHEMA, EVERY), cell)) for cell in (LEFT, RIGHT)]
    world.answer([1], (EVERY, LEFT), source=roots[0])
    world.answer([1], (EVERY, RIGHT), source=roots[1])
    world.host.take_sent()
    world.host.peer_version = lambda peer: 1 if peer == roots[1] else None  # type: ignore[method-assign]  # one link is up
    world.publish()
    assert [to for to, _ in world.host.take_sent()] == [roots[1], OTHER]


def test_a_leaf_that_was_merged_sends_its_events_back_and_they_are_tried_as_guesses() -> None:
    world = World()
    world.publish()
    world.answer([1], (EVERY, LEFT))
    world.answer([1], (EVERY, RIGHT))
    world.publish()
    world.host.take_sent()
    world.answer([2], (EVERY, LEFT), failed="it lies in a larger leaf now", retry_ms=1, matched=())
    world.wait(0.01)
    assert world.sent() == [([2], [(EVERY, LEFT)], 1)]
    world.answer([2], ROOT)
    assert world.ended[-1] == (2, PublishStatus.REPLICATED)
    world.publish()
    assert world.sent() == [([3], [ROOT], 0)], "the larger leaf has taken the place of both"


def test_events_to_leaves_of_the_map_wait_only_for_earlier_ones_to_the_same_leaf() -> None:
    world = World(leaf_cache_max=0, probe_probability=0.0)
    maps = world.plugin.publishing.maps
    maps.of(Tree(SCHEMA, EVERY))
    maps.told(Tree(SCHEMA, EVERY), [LEFT, RIGHT])
    world.publish(2)
    [(_, message)] = world.host.take_sent()
    assert isinstance(message, ProbePub) and message.remembered, "no other leaf takes it, so nothing comes out of order"
    assert places_of(message.places) == [(EVERY, LEFT), (EVERY, RIGHT)]
    world.answer([1], (EVERY, LEFT))
    assert world.sent() == [([2], [(EVERY, LEFT)], 0)], "though the answer of the other leaf is still out"
    world.answer([1], (EVERY, RIGHT), failed="it lies in a larger leaf now", retry_ms=1, matched=())
    world.wait(0.01)
    [(_, message)] = world.host.take_sent()
    assert isinstance(message, ProbePub) and not message.remembered, (
        "it is a guess now, and goes to whatever leaf there is"
    )
    assert ([event.sequence for event in message.events], message.attempt) == ([1, 2], 1)


# Answers that do not count


def test_an_answer_counts_only_from_near_the_leafs_key() -> None:
    world = World()
    world.host.estimated_ring_size = lambda: 1e6  # type: ignore[method-assign]  # a large ring, so roots are near
    world.publish()
    world.answer([1], ROOT, source=peer(12345))
    assert not world.ended
    assert world.host.counted["peerd_pubsub_acks_ignored_total", ""] == 1
    assert len(world.plugin.publishing.cache) == 0
    world.answer([1], ROOT, source=peer(key_of(Tree(SCHEMA, EVERY), WHOLE) + (1 << 108)))
    assert world.ended == [(1, PublishStatus.REPLICATED)]


class Doubter(World):
    """A publisher that believes another node to be nearer to every key than any that answers."""

    def __init__(self) -> None:
        super().__init__()
        self.looked_up: list[tuple[NodeId, Callable[[LookupResult], None]]] = []
        self.host.next_hop = lambda key: peer(key)  # type: ignore[method-assign]  # somebody right at the key
        self.is_busy = False

    def _look_up(self, key: NodeId, on_result: Callable[[LookupResult], None], timeout_s: float = 10.0) -> None:
        if self.is_busy:
            raise Unavailable("too many lookups")
        self.looked_up.append((key, on_result))

    def end_lookup(self) -> None:
        """The oldest lookup is over; nobody answered."""
        key, on_result = self.looked_up.pop(0)
        on_result(LookupResult(key, None, (), 5.0))
        self.plugin.validate()


def test_an_answer_counts_once_a_lookup_has_shown_that_the_nearer_node_is_dead() -> None:
    world = Doubter()
    world.publish()
    world.answer([1], ROOT)
    world.answer([1], ROOT)
    assert not world.ended
    assert [key for key, _ in world.looked_up] == [key_of(Tree(SCHEMA, EVERY), WHOLE)], "one lookup at a time"
    world.host.next_hop = lambda key: OTHER  # type: ignore[method-assign]  # the overlay has noticed
    world.end_lookup()
    assert world.ended == [(1, PublishStatus.REPLICATED)]
    assert not world.looked_up


def test_an_answer_does_not_count_while_the_nearer_node_lives() -> None:
    world = Doubter()
    world.publish()
    for _ in range(2):
        world.answer([1], ROOT)
        world.end_lookup()
        assert not world.ended
        assert not world.looked_up, "the next answer starts the next lookup"


def test_an_answer_starts_few_lookups() -> None:
    world = Doubter()
    world.publish()
    world.answer([1], *((EVERY, cell) for cell in range(64, 128)))
    assert len(world.looked_up) == DOUBTS_MAX


def test_an_answer_in_doubt_is_left_to_the_next_try_where_nothing_can_be_looked_up() -> None:
    world = Doubter()
    world.is_busy = True
    world.publish()
    world.answer([1], ROOT)
    world.is_busy = False
    world.answer([1], ROOT)
    assert len(world.looked_up) == 1


TOO_DEEP = trees_of([(EVERY, WHOLE << PubSubConfig().level_max + 1)])


@pytest.mark.parametrize(
    "fields", [{"epoch": 99}, {"schema": "other"}, {"sequences": (7,)}, {"covered": ()}, {"covered": TOO_DEEP}]
)
def test_an_answer_about_something_else_changes_nothing(fields: dict[str, Any]) -> None:
    world = World()
    world.publish()
    world.answer([1], ROOT, **fields)
    assert not world.ended
    assert len(world.plugin.publishing.cache) == 0


@pytest.mark.parametrize(
    "fields", [{"matched": ()}, {"covered": trees_of([(0, cell) for cell in range(1, 1024)] + [(1, 1), (2, 1)])}]
)
def test_an_answer_that_no_leaf_gives_costs_the_sender_its_link(fields: dict[str, Any]) -> None:
    world = World()
    world.publish()
    with pytest.raises(ProtocolError, match="bad_ack"):
        world.answer([1], ROOT, **fields)


def test_a_node_that_takes_no_more_is_tried_later() -> None:
    world = World()
    world.publish()
    world.sent()
    world.answer([1], ROOT, failed="too much", retry_ms=2500, matched=())
    world.wait(2.4)
    assert not world.sent()
    world.wait(0.1)
    assert world.sent() == [([1], [ROOT], 1)]


def test_a_leaf_that_will_never_take_an_event_ends_its_publish() -> None:
    world = World()
    world.publish()
    world.answer([1], ROOT, failed="the proof is not the publisher's", retry_ms=0, matched=())
    [outcome] = world.plugin.outcomes
    assert (outcome.status, outcome.reason) == (PublishStatus.FAILED, "the proof is not the publisher's")


# Limits


def test_a_full_queue_refuses_events_and_tells_when_there_is_room() -> None:
    world = World(publish_queue=64 * 1024)
    world.publish(4, payload=bytes(20_000))
    assert not world.plugin.publishing.may_publish()
    with pytest.raises(Unavailable, match="wait to be published"):
        world.publish()
    told: list[str] = []
    world.plugin.publishing.when_room(lambda: told.append("room"))
    world.answer([1], ROOT)
    assert told == [], "there is room, but so little that it would be full again at once"
    world.answer([2, 3], ROOT)
    assert told == ["room"]
    world.publish()
    world.answer([4, 5], ROOT)
    assert len(world.ended) == 5


def test_who_waits_while_there_is_room_is_told_soon() -> None:
    world = World()
    told: list[str] = []
    world.plugin.publishing.when_room(lambda: told.append("room"))
    assert told == []
    world.wait(0.0)
    assert told == ["room"]


def test_only_so_many_clients_wait_for_room() -> None:
    world = World(publish_queue=64 * 1024)
    world.publish(4, payload=bytes(20_000))
    for _ in range(WAITERS_MAX):
        world.plugin.publishing.when_room(lambda: None)
    with pytest.raises(Unavailable, match="too many clients"):
        world.plugin.publishing.when_room(lambda: None)


def test_only_so_many_events_are_under_way_and_the_rest_follows() -> None:
    world = World()
    world.publish(UNDER_WAY_MAX + 50)
    done = 0
    while sent := world.sent():
        for numbers, places, _ in sent:
            assert numbers == list(range(done + 1, done + 1 + len(numbers)))
            done += len(numbers)
            world.answer(numbers, *places)
    assert done == len(world.ended) == UNDER_WAY_MAX + 50


def test_an_event_that_fits_no_message_is_refused() -> None:
    world = World()
    with pytest.raises(ValueError, match="too large"):
        world.publish(payload=bytes(32 * 1024), retain=bytes(256), content_type="x" * 64, values={"text": "x" * 13_000})


def test_a_node_outside_the_ring_publishes_nothing() -> None:
    world = World()
    world.host.outside_reason = lambda: "this node has been denied"  # type: ignore[method-assign]  # for this test
    with pytest.raises(Unavailable, match="denied"):
        world.publish()


def test_an_event_of_a_signed_schema_carries_a_proof() -> None:
    world = World()
    world.schema.is_signed = True
    world.publish()
    [(_, message)] = world.host.take_sent()
    assert isinstance(message, ProbePub) and is_proven(world.host, world.schema, message.events[0])


def test_a_client_may_publish_the_next_event_when_it_hears_of_the_last() -> None:
    world = World()
    heard: list[PublishResult] = []

    def next_one(outcome: PublishResult) -> None:
        heard.append(outcome)
        if len(heard) < 5:
            world.plugin.publish({}, on_result=next_one)

    world.plugin.publish({}, on_result=next_one)
    for number in range(1, 6):
        world.answer([number], ROOT)
    assert [outcome.event.sequence for outcome in heard] == [1, 2, 3, 4, 5]


def test_people_can_ask_what_became_of_an_event() -> None:
    world = World()
    world.publish(2)
    publishing = world.plugin.publishing
    first, second = (EventId(world.host.id, world.host.boot_epoch, number) for number in (1, 2))
    pending = publishing.pending(first)
    assert pending is not None
    assert pending.coverage.outstanding == {EVERY: {WHOLE}}
    world.answer([1], ROOT)
    assert publishing.pending(first) is None
    assert publishing.outcomes[first].status is PublishStatus.REPLICATED
    assert publishing.pending(second) is not None
    assert publishing.pending(EventId(OTHER.id, 1, 2)) is None


def test_a_cell_of_a_leaf_of_this_node_is_not_sent_to_anybody() -> None:
    world = World()
    world.host.next_hop = lambda key: None  # type: ignore[method-assign]  # this node is the root of every key
    world.publish(2)
    for to, message in world.host.take_sent():
        assert to == world.host.peer
        assert isinstance(message, EventAck)
        world.host.deliver(message, world.host.peer)
    assert world.ended == [(1, PublishStatus.REPLICATED)]
    assert [message for _, message in world.host.take_sent()] == [
        acknowledgement(SCHEMA, [world.plugin.acking.arrivals[-1].events[0]], [ROOT], 2)
    ]
    assert cell_of_text("") == WHOLE


# How long it waits


def test_slow_answers_make_it_more_patient_and_quick_ones_less() -> None:
    world = World()
    for _ in range(20):
        [number] = world.publish()
        assert world.sent() == [([number], [ROOT], 0)]
        world.wait(0.9)
        world.answer([number], ROOT)
    [number] = world.publish()
    assert world.sent() == [([number], [ROOT], 0)]
    world.wait(0.95)
    assert world.sent() == [], "answers take 0.9 s: it is not late yet"
    world.wait(0.3)
    assert world.sent() == [([number], [ROOT], 1)], "answers vary little: it is late"
    world.answer([number], ROOT)
    world.wait(0.1)
    for _ in range(30):
        [number] = world.publish()
        world.answer([number], ROOT)
    world.sent()
    [number] = world.publish()
    world.wait(1.1)
    assert world.sent() == [([number], [ROOT], 0), ([number], [ROOT], 1)], "publish_retry is the least"


def test_an_answer_to_a_second_try_says_nothing_of_how_long_answers_take() -> None:
    world = World()
    [first] = world.publish()
    world.wait(FIRST_S + 0.5)
    world.answer([first], ROOT)
    world.sent()
    [second] = world.publish()
    world.wait(FIRST_S + 0.1)
    assert world.sent() == [([second], [ROOT], 0), ([second], [ROOT], 1)], "the first try may have been lost"


def test_the_first_answers_are_given_the_time_to_open_links() -> None:
    world = World(publish_retry=0.5)
    world.publish()
    world.sent()
    world.wait(FIRST_S - 0.1)
    assert world.sent() == []
    world.answer([1], ROOT)
    for number in range(2, 30):
        world.publish()
        world.answer([number], ROOT)
    world.publish()
    world.sent()
    world.wait(0.6)
    assert [attempt for _, _, attempt in world.sent()] == [1], "from then on it is known"


def test_a_batch_of_many_events_is_given_more_time() -> None:
    world = World()
    [first] = world.publish()
    rest = world.publish(100)
    world.sent()
    world.answer([first], ROOT)
    assert world.sent() == [(rest, [ROOT], 0)]
    world.wait(1.0 + 98 * EVENT_S)
    assert world.sent() == []
    world.wait(2 * EVENT_S)
    assert world.sent() == [(rest, [ROOT], 1)]


def test_no_answer_can_make_it_wait_for_ever() -> None:
    world = World(publish_timeout=100.0, publish_retry=25.0)
    [first] = world.publish()
    world.wait(24.0)
    world.answer([first], ROOT)
    world.sent()
    world.plugin.publishing.config = replace_retry(world.plugin.publishing.config, 1.0)
    [second] = world.publish()
    world.wait(ALLOWANCE_MAX_S + 0.1)
    assert world.sent() == [([second], [ROOT], 0), ([second], [ROOT], 1)]


def replace_retry(config: PubSubConfig, publish_retry: float) -> PubSubConfig:
    """The same settings with another pause, as after a reload."""
    return config.model_copy(update={"publish_retry": publish_retry})
