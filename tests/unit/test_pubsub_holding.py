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
from protocols.pubsub.delivering.ledger import SILENT
from protocols.pubsub.delivering.messages import Held, HoldEvents, ReleaseEvents
from protocols.pubsub.messages import CELLS_MAX, DeliveryAnswer, EventAck, EventDelivery, EventName, ProbePub, TreeCells
from protocols.pubsub.names import Tree
from protocols.pubsub.ports import Elsewhere, Here, NotMine, Unsettled
from tests.support.pubsub_leaf import SCHEMA, BrokerRig, event, event_id, sub

TREE = Tree(SCHEMA.name, 1)
PLACES = (TreeCells(1, (1,)),)
NEIGHBOURS = (2, 3, 4, 5)


def asked(rig: BrokerRig, kind: type[Message]) -> list[Request]:
    """Requests of a kind that wait for an answer."""
    return [each for each in rig.host.requests if isinstance(each.message, kind)]


def answer(rig: BrokerRig, request: Request, reply: Message | None) -> None:
    """Somebody answers; ``None``: nobody does."""
    rig.host.requests.remove(request)
    if reply is None:
        request.on_timeout()
    else:
        request.on_reply(reply, request.peer)
    rig.check_law()


def copies_told(rig: BrokerRig) -> list[int]:
    """What acknowledgements since the last call say of copies."""
    return [message.copies for _, message in rig.host.take_sent() if isinstance(message, EventAck)]


def take_all(rig: BrokerRig) -> list[tuple[int, int]]:
    """All subscribers take what they are sent: subscriber and number of each event."""
    got: list[tuple[int, int]] = []
    while found := asked(rig, EventDelivery):
        message = found[0].message
        assert isinstance(message, EventDelivery)
        got += [(found[0].peer.id, delivery.event.sequence) for delivery in message.deliveries]
        answer(rig, found[0], DeliveryAnswer(message.number))
    return got


def test_an_event_is_acknowledged_when_so_many_hold_it() -> None:
    rig = BrokerRig(1, NEIGHBOURS)
    rig.leaves.subs = [sub(50, 1)]
    rig.arrive(event(1), copies=2)
    assert copies_told(rig) == []
    first, second = asked(rig, HoldEvents)
    assert (first.message, first.timeout_s) == (HoldEvents(SCHEMA.name, (event(1),), PLACES), HOLD_TIMEOUT_S)
    answer(rig, first, Held(1))
    assert copies_told(rig) == []
    answer(rig, second, Held(1))
    assert copies_told(rig) == [2]
    rig.arrive(event(1), copies=2, attempt=1)
    assert copies_told(rig) == [2]
    assert asked(rig, HoldEvents) == []


def test_whoever_cannot_hold_it_is_replaced() -> None:
    rig = BrokerRig(1, NEIGHBOURS)
    rig.leaves.subs = [sub(50, 1)]
    rig.arrive(event(1), copies=2)
    order = []
    for reply in (None, Held(0), Held(1), Held(1)):
        request = asked(rig, HoldEvents)[0]
        order.append(request.peer.id)
        answer(rig, request, reply)
    assert sorted(order) == sorted(NEIGHBOURS)
    assert copies_told(rig) == [2]


def test_an_acknowledgement_never_claims_more_than_there_is() -> None:
    for neighbours, replies, told in (((), (), [0]), ((2,), (Held(1),), [1]), ((2, 3), (None, None), [0])):
        rig = BrokerRig(1, neighbours)
        rig.leaves.subs = [sub(50, 1)]
        rig.arrive(event(1), copies=2)
        for reply in replies:
            answer(rig, asked(rig, HoldEvents)[0], reply)
        assert copies_told(rig) == told


def test_what_nobody_can_lose_is_held_by_nobody() -> None:
    rig = BrokerRig(1, NEIGHBOURS)
    rig.leaves.subs, rig.subscribers.filters = [sub(1, 1), sub(50, 1, "price > 7")], ["TRUE"]
    rig.arrive(event(1), event(2), copies=2)
    assert copies_told(rig) == [2]
    assert asked(rig, HoldEvents) == []
    rig.arrive(event(3), event(8), copies=2)
    assert copies_told(rig) == [2]
    assert {request.message for request in asked(rig, HoldEvents)} == {HoldEvents(SCHEMA.name, (event(8),), PLACES)}


def test_a_repeat_does_not_ask_twice_at_a_time() -> None:
    rig = BrokerRig(1, NEIGHBOURS)
    rig.leaves.subs = [sub(50, 1)]
    rig.arrive(event(1), copies=2)
    rig.arrive(event(1), copies=2, attempt=1)
    assert len(asked(rig, HoldEvents)) == 2
    for request in asked(rig, HoldEvents):
        answer(rig, request, Held(1))
    assert copies_told(rig) == [2]


def test_it_is_released_when_everybody_has_it_and_all_copies_are_made() -> None:
    rig = BrokerRig(1, NEIGHBOURS)
    rig.leaves.subs = [sub(50, 1), sub(51, 1)]
    rig.arrive(event(1), copies=2)
    first, second = asked(rig, HoldEvents)
    take_all(rig)
    answer(rig, first, Held(1))
    assert ("pubsub_release", None) not in rig.host.timers
    answer(rig, second, Held(1))
    rig.host.take_sent()
    rig.host.fire("pubsub_release")
    release = ReleaseEvents(SCHEMA.name, (EventName(*event_id(1)),))
    assert sorted(rig.host.take_sent(), key=str) == sorted([(first.peer, release), (second.peer, release)], key=str)


def test_what_is_too_much_to_be_held_is_acknowledged_as_received() -> None:
    rig = BrokerRig(1, NEIGHBOURS)
    rig.leaves.subs = [sub(50, 1)]
    for number in range(JOBS_MAX):
        rig.arrive(event(number), copies=1)
    assert copies_told(rig) == []
    rig.arrive(event(JOBS_MAX), copies=1)
    assert copies_told(rig) == [0]
    answer(rig, asked(rig, HoldEvents)[0], Held(1))
    rig.arrive(event(JOBS_MAX + 1), copies=1)
    assert copies_told(rig) == [1]
    assert len(asked(rig, HoldEvents)) == JOBS_MAX


# At the replica


def replica(**settings: object) -> BrokerRig:
    """A node that holds events for the root 1 and is not the root of anything itself."""
    rig = BrokerRig(2, (1, 3, 4), **settings)
    rig.leaves.decision = NotMine()
    rig.leaves.subs = [sub(50, 1), sub(51, 1, "price > 2")]
    return rig


def hold(rig: BrokerRig, *numbers: int, root: int = 1, size: int = 0) -> int:
    """Have it hold events; how many it says that it does."""
    events = tuple(event(number, payload=b"x" * size) for number in numbers)
    held = rig.host.deliver(HoldEvents(SCHEMA.name, events, PLACES), peer(root))
    assert isinstance(held, Held)
    return held.count


def test_a_replica_delivers_what_it_holds_when_it_is_the_root() -> None:
    rig = replica()
    assert hold(rig, 1, 2, 3) == 3
    rig.host.deliver(ReleaseEvents(SCHEMA.name, (EventName(*event_id(1)),)), peer(1))
    rig.broker.tree_changed(TREE, 1)
    assert asked(rig, EventDelivery) == []
    rig.leaves.decision = Unsettled()
    rig.broker.tree_changed(TREE, 1)
    assert asked(rig, EventDelivery) == []
    rig.leaves.decision = Here()
    rig.broker.tree_changed(Tree("other", 1), 1)
    rig.broker.tree_changed(Tree(SCHEMA.name, 2), 1)
    assert asked(rig, EventDelivery) == []
    rig.broker.tree_changed(TREE, 1)
    assert take_all(rig) == [(50, 2), (50, 3), (51, 3)]
    assert (len(rig.holding), rig.holding.bytes) == (0, 0)
    assert copies_told(rig) == []


def test_it_looks_itself_if_nobody_tells_it() -> None:
    rig = replica()
    hold(rig, 3)
    rig.host.fire("held_due")
    assert len(rig.holding) == 1
    rig.leaves.decision = Here()
    rig.host.fire("held_due")
    assert take_all(rig) == [(50, 3), (51, 3)]


def test_what_belongs_to_a_leaf_that_was_split_goes_to_its_halves() -> None:
    rig = replica()
    hold(rig, 3)
    rig.leaves.decision = Elsewhere((2, 3), vouched=True)
    rig.broker.tree_changed(TREE, 1)
    [(to, probe)] = rig.host.take_sent()
    assert to.id == 2
    assert isinstance(probe, ProbePub)
    assert (probe.events, probe.places, probe.vouched) == ((event(3),), (TreeCells(1, (2, 3)),), True)
    assert probe.hops > 0  # only a publisher begins with none
    assert len(rig.holding) == 0


def test_what_a_dead_root_left_goes_to_the_one_that_follows() -> None:
    rig = replica()
    hold(rig, 3)
    rig.host.fire("held_due")
    assert rig.host.take_sent() == []  # the root lives
    rig.host.neighbours = (peer(3), peer(4))
    for _ in range(SENDS_MAX):
        assert len(rig.holding) == 1
        rig.host.fire("held_due")
    probes = [probe for _, probe in rig.host.take_sent() if isinstance(probe, ProbePub)]
    assert [(probe.events, probe.places, probe.vouched) for probe in probes] == [
        ((event(3),), PLACES, False)
    ] * SENDS_MAX
    assert len({probe.attempt for probe in probes}) == SENDS_MAX  # else they would pass for repeats
    assert len(rig.holding) == 0


def test_what_a_restarted_root_has_forgotten_is_sent_to_it_again() -> None:
    """Its neighbours may not have missed it, but what it had in memory is gone."""
    rig = replica()
    hold(rig, 1)
    rig.holding.peer_down(peer(1))
    hold(rig, 2)  # this it asks for after its restart
    for _ in range(SENDS_MAX + 1):
        rig.host.fire("held_due")
    sent = [message for _, message in rig.host.take_sent() if isinstance(message, ProbePub)]
    assert [[event.sequence for event in probe.events] for probe in sent] == [[1]] * SENDS_MAX
    assert len(rig.holding) == 1


def test_what_nobody_releases_lapses() -> None:
    rig = replica(delivery_keep="10s")
    hold(rig, 1)
    while rig.host.time_s < 20.0:
        assert len(rig.holding) == 1
        rig.host.fire("held_due")
    assert (len(rig.holding), rig.holding.bytes) == (0, 0)
    assert ("held_due", None) not in rig.host.timers


def test_one_root_cannot_have_all_the_room() -> None:
    rig = replica(held_bytes="72KiB")
    assert hold(rig, *range(1, 9), size=3000) == 5
    assert hold(rig, *range(1, 9), root=3, size=3000) == 5
    assert rig.holding.bytes <= 64 * 1024
    assert rig.host.counted["peerd_pubsub_hold_refused_total", ""] == 6


def test_leaves_of_one_message_are_bounded() -> None:
    rig = replica()
    places = (TreeCells(1, tuple(range(1, CELLS_MAX + 1))), TreeCells(2, (1,)))
    with pytest.raises(ProtocolError):
        rig.host.deliver(HoldEvents(SCHEMA.name, (event(1),), places), peer(1))


def test_many_leaves_are_looked_at_in_several_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(holding, "LOOKED_MAX", 2)
    rig, turns = replica(), list[list[int]]()
    rig.host.deliver(HoldEvents(SCHEMA.name, (event(3),), (TreeCells(1, (4, 5, 6)),)), peer(1))

    def decide(tree: Tree, cell: int, *arguments: object, **options: object) -> NotMine:
        turns[-1].append(cell)
        return NotMine()

    monkeypatch.setattr(rig.leaves, "decide", decide)
    for _ in range(3):
        turns.append([])
        rig.host.fire("held_due")
    assert turns == [[4, 5], [6, 4], [5, 6]]


def test_leaves_that_somebody_made_up_take_the_room_that_they_need() -> None:
    rig, held = replica(held_bytes="1MiB"), 0
    for number in range(8):
        places = (TreeCells(1, tuple(range(CELLS_MAX * number + 1, CELLS_MAX * number + 101))),)
        answer = rig.host.deliver(HoldEvents(SCHEMA.name, (event(3),), places), peer(1))
        assert isinstance(answer, Held)
        held += answer.count
    assert held == (256 << 10) // (100 * LEAF_BYTES) == 5


def test_only_those_near_a_leaf_can_be_its_root() -> None:
    rig = replica()
    far = [1 << 126, 1 << 127]
    assert hold(rig, 1, root=far[0]) == 0
    assert len(rig.holding) == 0


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 8), min_size=1, unique=True), st.integers(0, 12), st.sets(st.sampled_from([50, 51, 52])))
def test_a_root_that_dies_at_any_moment_loses_nothing_that_it_acknowledged(
    numbers: Sequence[int], progress: int, silent: set[int]
) -> None:
    """The root does some of its work and dies; a replica becomes root. Every live subscriber gets every event."""
    subs = [sub(50, 1), sub(51, 1, "price > 3"), sub(52, 1, group="g"), sub(53, 1, group="g")]
    root, heir = BrokerRig(1, (2,)), replica()
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
    heir.broker.tree_changed(TREE, 1)
    got |= set(take_all(heir))
    for number in acknowledged:
        assert (50, number) in got
        assert number <= 3 or (51, number) in got
        assert len({52, 53} & {node for node, each in got if each == number}) == 1


def test_a_subscriber_that_is_gone_is_given_up_and_its_events_released() -> None:
    rig = BrokerRig(1, (2,), delivery_keep="10s")
    rig.leaves.subs = [sub(50, 1)]
    rig.arrive(event(1), copies=1)
    answer(rig, asked(rig, HoldEvents)[0], Held(1))
    while rig.host.time_s < 30.0 and rig.deliverer.pending():
        for request in asked(rig, EventDelivery):
            rig.host.time_s += request.timeout_s
            answer(rig, request, None)
        rig.host.fire("delivery_due")
    assert rig.ledger.drops == {SILENT: 1}
    rig.host.take_sent()
    rig.host.fire("pubsub_release")
    assert [to.id for to, _ in rig.host.take_sent()] == [2]
