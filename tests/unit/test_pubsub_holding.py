"""Events that others hold until they are delivered: nothing that was acknowledged is lost with a leaf's root."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings, strategies as st

from peerd.errors import ProtocolError
from peerd.messages import Message
from peerd.testing.host import Request, peer
from protocols.pubsub.delivering import holding
from protocols.pubsub.delivering.copies import HOLD_TIMEOUT_S, JOBS_MAX
from protocols.pubsub.delivering.holding import LEAF_BYTES, SENDS_MAX
from protocols.pubsub.delivering.messages import Held, HoldEvents, ReleaseEvents
from protocols.pubsub.ledger import SILENT
from protocols.pubsub.messages import CELLS_MAX, DeliveryAnswer, EventAck, EventDelivery, EventName, ProbePub, TreeCells
from protocols.pubsub.names import Tree
from protocols.pubsub.ports import Elsewhere, Here, NotMine, Unsettled
from tests.support.pubsub_leaf import SCHEMA, Desk, event, event_id, sub

TREE = Tree(SCHEMA.name, 1)
PLACES = (TreeCells(1, (1,)),)
NEIGHBOURS = (2, 3, 4, 5)


def asked(desk: Desk, kind: type[Message]) -> list[Request]:
    """Requests of a kind that wait for an answer."""
    return [each for each in desk.host.requests if isinstance(each.message, kind)]


def answer(desk: Desk, request: Request, reply: Message | None) -> None:
    """Somebody answers; ``None``: nobody does."""
    desk.host.requests.remove(request)
    if reply is None:
        request.on_timeout()
    else:
        request.on_reply(reply, request.peer)
    desk.check_law()


def copies_told(desk: Desk) -> list[int]:
    """What acknowledgements since the last call say of copies."""
    return [message.copies for _, message in desk.host.take_sent() if isinstance(message, EventAck)]


def take_all(desk: Desk) -> list[tuple[int, int]]:
    """All subscribers take what they are sent: subscriber and number of each event."""
    got: list[tuple[int, int]] = []
    while found := asked(desk, EventDelivery):
        message = found[0].message
        assert isinstance(message, EventDelivery)
        got += [(found[0].peer.id, delivery.event.sequence) for delivery in message.deliveries]
        answer(desk, found[0], DeliveryAnswer(message.number))
    return got


def test_an_event_is_acknowledged_when_so_many_hold_it() -> None:
    desk = Desk(1, NEIGHBOURS)
    desk.leaves.subs = [sub(50, 1)]
    desk.arrive(event(1), copies=2)
    assert copies_told(desk) == []
    first, second = asked(desk, HoldEvents)
    assert (first.message, first.timeout_s) == (HoldEvents(SCHEMA.name, (event(1),), PLACES), HOLD_TIMEOUT_S)
    answer(desk, first, Held(1))
    assert copies_told(desk) == []
    answer(desk, second, Held(1))
    assert copies_told(desk) == [2]
    desk.arrive(event(1), copies=2, attempt=1)
    assert copies_told(desk) == [2]
    assert asked(desk, HoldEvents) == []


def test_whoever_cannot_hold_it_is_replaced() -> None:
    desk = Desk(1, NEIGHBOURS)
    desk.leaves.subs = [sub(50, 1)]
    desk.arrive(event(1), copies=2)
    order = []
    for reply in (None, Held(0), Held(1), Held(1)):
        request = asked(desk, HoldEvents)[0]
        order.append(request.peer.id)
        answer(desk, request, reply)
    assert sorted(order) == sorted(NEIGHBOURS)
    assert copies_told(desk) == [2]


def test_an_acknowledgement_never_claims_more_than_there_is() -> None:
    for neighbours, replies, told in (((), (), [0]), ((2,), (Held(1),), [1]), ((2, 3), (None, None), [0])):
        desk = Desk(1, neighbours)
        desk.leaves.subs = [sub(50, 1)]
        desk.arrive(event(1), copies=2)
        for reply in replies:
            answer(desk, asked(desk, HoldEvents)[0], reply)
        assert copies_told(desk) == told


def test_what_nobody_can_lose_is_held_by_nobody() -> None:
    desk = Desk(1, NEIGHBOURS)
    desk.leaves.subs, desk.subscribers.filters = [sub(1, 1), sub(50, 1, "price > 7")], ["TRUE"]
    desk.arrive(event(1), event(2), copies=2)
    assert copies_told(desk) == [2]
    assert asked(desk, HoldEvents) == []
    desk.arrive(event(3), event(8), copies=2)
    assert copies_told(desk) == [2]
    assert {request.message for request in asked(desk, HoldEvents)} == {HoldEvents(SCHEMA.name, (event(8),), PLACES)}


def test_a_repeat_does_not_ask_twice_at_a_time() -> None:
    desk = Desk(1, NEIGHBOURS)
    desk.leaves.subs = [sub(50, 1)]
    desk.arrive(event(1), copies=2)
    desk.arrive(event(1), copies=2, attempt=1)
    assert len(asked(desk, HoldEvents)) == 2
    for request in asked(desk, HoldEvents):
        answer(desk, request, Held(1))
    assert copies_told(desk) == [2]


def test_it_is_released_when_everybody_has_it_and_all_copies_are_made() -> None:
    desk = Desk(1, NEIGHBOURS)
    desk.leaves.subs = [sub(50, 1), sub(51, 1)]
    desk.arrive(event(1), copies=2)
    first, second = asked(desk, HoldEvents)
    take_all(desk)
    answer(desk, first, Held(1))
    assert ("pubsub_release", None) not in desk.host.timers
    answer(desk, second, Held(1))
    desk.host.take_sent()
    desk.host.fire("pubsub_release")
    release = ReleaseEvents(SCHEMA.name, (EventName(*event_id(1)),))
    assert sorted(desk.host.take_sent(), key=str) == sorted([(first.peer, release), (second.peer, release)], key=str)


def test_what_is_too_much_to_be_held_is_acknowledged_as_received() -> None:
    desk = Desk(1, NEIGHBOURS)
    desk.leaves.subs = [sub(50, 1)]
    for number in range(JOBS_MAX):
        desk.arrive(event(number), copies=1)
    assert copies_told(desk) == []
    desk.arrive(event(JOBS_MAX), copies=1)
    assert copies_told(desk) == [0]
    answer(desk, asked(desk, HoldEvents)[0], Held(1))
    desk.arrive(event(JOBS_MAX + 1), copies=1)
    assert copies_told(desk) == [1]
    assert len(asked(desk, HoldEvents)) == JOBS_MAX


# At the replica


def replica(**settings: object) -> Desk:
    """A node that holds events for the root 1 and is not the root of anything itself."""
    desk = Desk(2, (1, 3, 4), **settings)
    desk.leaves.decision = NotMine()
    desk.leaves.subs = [sub(50, 1), sub(51, 1, "price > 2")]
    return desk


def hold(desk: Desk, *numbers: int, root: int = 1, size: int = 0) -> int:
    """Have it hold events; how many it says that it does."""
    events = tuple(event(number, payload=b"x" * size) for number in numbers)
    held = desk.host.deliver(HoldEvents(SCHEMA.name, events, PLACES), peer(root))
    assert isinstance(held, Held)
    return held.count


def test_a_replica_delivers_what_it_holds_when_it_is_the_root() -> None:
    desk = replica()
    assert hold(desk, 1, 2, 3) == 3
    desk.host.deliver(ReleaseEvents(SCHEMA.name, (EventName(*event_id(1)),)), peer(1))
    desk.desk.tree_changed(TREE, 1)
    assert asked(desk, EventDelivery) == []
    desk.leaves.decision = Unsettled()
    desk.desk.tree_changed(TREE, 1)
    assert asked(desk, EventDelivery) == []
    desk.leaves.decision = Here()
    desk.desk.tree_changed(Tree("other", 1), 1)
    desk.desk.tree_changed(Tree(SCHEMA.name, 2), 1)
    assert asked(desk, EventDelivery) == []
    desk.desk.tree_changed(TREE, 1)
    assert take_all(desk) == [(50, 2), (50, 3), (51, 3)]
    assert (len(desk.holding), desk.holding.bytes) == (0, 0)
    assert copies_told(desk) == []


def test_it_looks_itself_if_nobody_tells_it() -> None:
    desk = replica()
    hold(desk, 3)
    desk.host.fire("held_due")
    assert len(desk.holding) == 1
    desk.leaves.decision = Here()
    desk.host.fire("held_due")
    assert take_all(desk) == [(50, 3), (51, 3)]


def test_what_belongs_to_a_leaf_that_was_split_goes_to_its_halves() -> None:
    desk = replica()
    hold(desk, 3)
    desk.leaves.decision = Elsewhere((2, 3), vouched=True)
    desk.desk.tree_changed(TREE, 1)
    [(to, probe)] = desk.host.take_sent()
    assert to.id == 2
    assert isinstance(probe, ProbePub)
    assert (probe.events, probe.places, probe.vouched) == ((event(3),), (TreeCells(1, (2, 3)),), True)
    assert probe.hops > 0  # only a publisher begins with none
    assert len(desk.holding) == 0


def test_what_a_dead_root_left_goes_to_the_one_that_follows() -> None:
    desk = replica()
    hold(desk, 3)
    desk.host.fire("held_due")
    assert desk.host.take_sent() == []  # the root lives
    desk.host.neighbours = (peer(3), peer(4))
    for _ in range(SENDS_MAX):
        assert len(desk.holding) == 1
        desk.host.fire("held_due")
    probes = [probe for _, probe in desk.host.take_sent() if isinstance(probe, ProbePub)]
    assert [(probe.events, probe.places, probe.vouched) for probe in probes] == [
        ((event(3),), PLACES, False)
    ] * SENDS_MAX
    assert len({probe.attempt for probe in probes}) == SENDS_MAX  # else they would pass for repeats
    assert len(desk.holding) == 0


def test_what_a_restarted_root_has_forgotten_is_sent_to_it_again() -> None:
    """Its neighbours may not have missed it, but what it had in memory is gone."""
    desk = replica()
    hold(desk, 1)
    desk.holding.peer_down(peer(1))
    hold(desk, 2)  # this it asks for after its restart
    for _ in range(SENDS_MAX + 1):
        desk.host.fire("held_due")
    sent = [message for _, message in desk.host.take_sent() if isinstance(message, ProbePub)]
    assert [[event.sequence for event in probe.events] for probe in sent] == [[1]] * SENDS_MAX
    assert len(desk.holding) == 1


def test_what_nobody_releases_lapses() -> None:
    desk = replica(delivery_keep="10s")
    hold(desk, 1)
    while desk.host.time_s < 20.0:
        assert len(desk.holding) == 1
        desk.host.fire("held_due")
    assert (len(desk.holding), desk.holding.bytes) == (0, 0)
    assert ("held_due", None) not in desk.host.timers


def test_one_root_cannot_have_all_the_room() -> None:
    desk = replica(held_bytes="72KiB")
    assert hold(desk, *range(1, 9), size=3000) == 5
    assert hold(desk, *range(1, 9), root=3, size=3000) == 5
    assert desk.holding.bytes <= 64 * 1024
    assert desk.host.counted["peerd_pubsub_hold_refused_total", ""] == 6


def test_leaves_of_one_message_are_bounded() -> None:
    desk = replica()
    places = (TreeCells(1, tuple(range(1, CELLS_MAX + 1))), TreeCells(2, (1,)))
    with pytest.raises(ProtocolError):
        desk.host.deliver(HoldEvents(SCHEMA.name, (event(1),), places), peer(1))


def test_many_leaves_are_looked_at_in_several_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(holding, "LOOKED_MAX", 2)
    desk, turns = replica(), list[list[int]]()
    desk.host.deliver(HoldEvents(SCHEMA.name, (event(3),), (TreeCells(1, (4, 5, 6)),)), peer(1))

    def decide(tree: Tree, cell: int, *arguments: object, **options: object) -> NotMine:
        turns[-1].append(cell)
        return NotMine()

    monkeypatch.setattr(desk.leaves, "decide", decide)
    for _ in range(3):
        turns.append([])
        desk.host.fire("held_due")
    assert turns == [[4, 5], [6, 4], [5, 6]]


def test_leaves_that_somebody_made_up_take_the_room_that_they_need() -> None:
    desk, held = replica(held_bytes="1MiB"), 0
    for number in range(8):
        places = (TreeCells(1, tuple(range(CELLS_MAX * number + 1, CELLS_MAX * number + 101))),)
        answer = desk.host.deliver(HoldEvents(SCHEMA.name, (event(3),), places), peer(1))
        assert isinstance(answer, Held)
        held += answer.count
    assert held == (256 << 10) // (100 * LEAF_BYTES) == 5


def test_only_those_near_a_leaf_can_be_its_root() -> None:
    desk = replica()
    far = [1 << 126, 1 << 127]
    assert hold(desk, 1, root=far[0]) == 0
    assert len(desk.holding) == 0


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 8), min_size=1, unique=True), st.integers(0, 12), st.sets(st.sampled_from([50, 51, 52])))
def test_a_root_that_dies_at_any_moment_loses_nothing_that_it_acknowledged(
    numbers: Sequence[int], progress: int, silent: set[int]
) -> None:
    """The root does some of its work and dies; a replica becomes root. Every live subscriber gets every event."""
    subs = [sub(50, 1), sub(51, 1, "price > 3"), sub(52, 1, group="g"), sub(53, 1, group="g")]
    root, heir = Desk(1, (2,)), replica()
    root.leaves.subs = heir.leaves.subs = subs
    got: set[tuple[int, int]] = set()
    for number in numbers:
        root.arrive(event(number), copies=1)
    acknowledged: set[int] = set()
    for _ in range(progress):
        requests = [each for each in root.host.requests if each.peer.id not in silent]
        if not requests:
            break
        message = requests[0].message
        if isinstance(message, HoldEvents):
            reply = heir.host.deliver(message, peer(1))
        else:
            assert isinstance(message, EventDelivery)
            got |= {(requests[0].peer.id, each.event.sequence) for each in message.deliveries}
            reply = DeliveryAnswer(message.number)
        answer(root, requests[0], reply)
        if ("pubsub_release", None) in root.host.timers:
            root.host.fire("pubsub_release")
        for to, sent in root.host.take_sent():
            if isinstance(sent, EventAck):
                acknowledged |= set(sent.sequences)
            elif to.id == 2:
                heir.host.deliver(sent, peer(1))
    heir.leaves.decision = Here()
    heir.desk.tree_changed(TREE, 1)
    got |= set(take_all(heir))
    for number in acknowledged:
        assert (50, number) in got
        assert number <= 3 or (51, number) in got
        assert len({52, 53} & {node for node, each in got if each == number}) == 1


def test_a_subscriber_that_is_gone_is_given_up_and_its_events_released() -> None:
    desk = Desk(1, (2,), delivery_keep="10s")
    desk.leaves.subs = [sub(50, 1)]
    desk.arrive(event(1), copies=1)
    answer(desk, asked(desk, HoldEvents)[0], Held(1))
    while desk.host.time_s < 30.0 and desk.deliverer.pending():
        for request in asked(desk, EventDelivery):
            desk.host.time_s += request.timeout_s
            answer(desk, request, None)
        desk.host.fire("delivery_due")
    assert desk.ledger.drops == {SILENT: 1}
    desk.host.take_sent()
    desk.host.fire("pubsub_release")
    assert [to.id for to, _ in desk.host.take_sent()] == [2]
