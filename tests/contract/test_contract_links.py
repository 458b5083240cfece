"""What `peerd.driver.Transport` promises about control links, for the daemon's driver and for the simulator's."""

from __future__ import annotations

from dataclasses import replace

from peerd.api import Priority
from peerd.errors import ProtocolError
from peerd.linking.rate_limit import SCORE_LIMIT
from peerd.messages import PeerRef
from peerd.overlay.messages import Heartbeat
from peerd.wire.codec import encode
from peerd.wire.frames import Frame
from tests.support.contract import ContractNode, ContractRig, on_both_hosts
from tests.support.link_rig import FAST

ATTEMPTS_MAX = 40


async def linked(rig: ContractRig, one: ContractNode, two: ContractNode) -> None:
    """A link that ``one`` dialled."""
    one.note(two, 0)
    await rig.until(lambda: two.numbers(one) and one.is_linked(two))
    two.received.clear()


# Sending


@on_both_hosts
async def test_send_dials_where_there_is_no_link(rig: ContractRig) -> None:
    one, two = rig.add(1), rig.add(2)
    assert not one.is_linked(two)
    one.note(two, 1)
    assert not one.is_linked(two), "what is sent now waits for the dial"
    await rig.until(lambda: two.numbers(one) == [1])
    assert one.is_linked(two) and two.is_linked(one)


@on_both_hosts
async def test_frames_of_one_priority_arrive_once_and_in_order(rig: ContractRig) -> None:
    one, two = rig.add(1), rig.add(2)
    for number in range(100):
        one.note(two, number)
    await rig.until(lambda: len(two.received) >= 100)
    for number in range(100, 200):
        one.note(two, number)
    one.note(two, 200)
    await rig.until(lambda: 200 in two.numbers(one))
    assert two.numbers(one) == list(range(201))
    assert {peer for peer, _ in two.received} == {one.peer}


@on_both_hosts
async def test_urgent_frames_overtake_what_waits_and_background_gives_way(rig: ContractRig) -> None:
    rig.settings = replace(FAST, send_queue_bytes_max=200_000)
    one, two = rig.add(1), rig.add(2)
    for number in range(10):
        one.note(two, number, Priority.BACKGROUND, 50_000)
    for number in range(100, 103):
        one.note(two, number, Priority.NORMAL, 50_000)
    one.note(two, 200, Priority.URGENT)
    await rig.until(lambda: len(two.received) == 4)
    assert two.numbers(one) == [200, 100, 101, 102]
    assert rig.dropped(one, "queue_full") == 10, "and each drop is counted"


@on_both_hosts
async def test_an_urgent_frame_overtakes_on_a_link_that_is_busy(rig: ContractRig) -> None:
    one, two = rig.add(1), rig.add(2)
    await linked(rig, one, two)
    for number in range(60):
        one.note(two, number, Priority.BACKGROUND, 50_000)
    one.note(two, 100, Priority.URGENT)
    await rig.until(lambda: len(two.received) == 61)
    numbers = two.numbers(one)
    assert numbers.index(100) < 30
    assert [number for number in numbers if number != 100] == list(range(60))


@on_both_hosts
async def test_both_sides_dial_at_once_and_nothing_is_lost_or_doubled(rig: ContractRig) -> None:
    one, two = rig.add(1), rig.add(2)
    for number in range(50):
        one.note(two, number)
        two.note(one, number)
    await rig.until(lambda: len(one.received) >= 50 and len(two.received) >= 50)
    await rig.until(lambda: len(one.policy.up()) == len(two.policy.up()) == 1)
    one.note(two, 50)
    two.note(one, 50)
    await rig.until(lambda: 50 in two.numbers(one) and 50 in one.numbers(two))
    assert one.numbers(two) == two.numbers(one) == list(range(51))
    assert one.policy.up()[0].dialled and not two.policy.up()[0].dialled, "the dial of the smaller id stays"
    assert one.downs == two.downs == []


@on_both_hosts
async def test_a_handler_may_send(rig: ContractRig) -> None:
    one, two = rig.add(1), rig.add(2)

    def echo(peer: PeerRef, frame: Frame) -> None:
        two.note(peer, 7)

    two.on_frame = echo
    one.note(two, 1)
    await rig.until(lambda: one.numbers(two) == [7])


# Who cannot be reached


@on_both_hosts
async def test_peer_down_is_told_once_for_all_that_was_queued(rig: ContractRig) -> None:
    one = rig.add(1)
    nobody = rig.nobody()
    for number in range(3):
        one.note(nobody, number)
    assert one.downs == [], "never from within the call"
    await rig.until(lambda: one.downs)
    one.note(nobody, 3)
    await rig.until(lambda: len(one.downs) == 2)
    assert one.downs == [(nobody, "refused")] * 2
    assert rig.dropped(one, "peer_down") == 4


@on_both_hosts
async def test_dials_back_off_until_sending_fails_at_once(rig: ContractRig) -> None:
    rig.settings = replace(FAST, backoff_min_s=0.01, backoff_wait_s=0.05)
    one = rig.add(1)
    nobody = rig.nobody()
    for number in range(ATTEMPTS_MAX):  # pauses are drawn by chance, and grow
        one.note(nobody, number)
        expected = number + 1
        await rig.until(lambda expected=expected: len(one.downs) == expected)  # type: ignore[misc]  # bound early
        if one.downs[-1] == (nobody, "backoff"):
            break
    reasons = [reason for _, reason in one.downs]
    assert reasons[0] == "refused" and reasons[-1] == "backoff"
    assert rig.dropped(one, "backoff") == reasons.count("backoff")
    before = len(one.downs)
    for number in range(3):
        one.note(nobody, number)
    await rig.until(lambda: len(one.downs) > before)
    assert len(one.downs) == before + 1, "once for all frames refused in one handler"


@on_both_hosts
async def test_an_address_with_another_node_is_not_the_peer(rig: ContractRig) -> None:
    one, two, three = rig.add(1), rig.add(2), rig.add(3)
    stranger = PeerRef(three.peer.id, two.peer.host, two.peer.port)
    one.note(stranger, 1)
    await rig.until(lambda: one.downs)
    assert one.downs == [(stranger, "wrong_callee")] and two.received == three.received == []


# Links that are lost


@on_both_hosts
async def test_a_lost_link_is_dialled_again_before_anybody_is_told(rig: ContractRig) -> None:
    rig.settings = replace(FAST, backoff_reset_s=0.0)
    one, two = rig.add(1), rig.add(2)
    await linked(rig, one, two)
    lost = one.policy.up()[0]
    lost.abort("cable")
    await rig.until(lambda: one.is_linked(two) and two.is_linked(one) and one.policy.up()[0] is not lost)
    one.note(two, 5)
    two.note(one, 6)
    await rig.until(lambda: two.numbers(one) == [5] and one.numbers(two) == [6])
    assert one.downs == two.downs == []


@on_both_hosts
async def test_a_link_that_keeps_breaking_backs_off(rig: ContractRig) -> None:
    rig.settings = replace(FAST, backoff_reset_s=60.0, backoff_min_s=1.0, backoff_wait_s=0.2)
    one, two = rig.add(1), rig.add(2)
    await linked(rig, one, two)
    one.policy.up()[0].abort("cable")
    await rig.until(lambda: one.is_linked(two) and two.is_linked(one))
    for node in (one, two):
        node.downs.clear()
    one.policy.up()[0].abort("cable")
    await rig.until(lambda: one.downs)
    assert one.downs[0][0] == two.peer, "its pause is longer than a frame may wait"


@on_both_hosts
async def test_a_crashed_peer_is_told_once_and_found_again(rig: ContractRig) -> None:
    rig.settings = replace(FAST, backoff_reset_s=0.0)
    one, two = rig.add(1), rig.add(2)
    await linked(rig, one, two)
    await rig.crash(two)
    await rig.until(lambda: one.downs)
    assert one.downs == [(two.peer, "refused")], "lost, dialled again, refused"
    reborn = rig.again(two)
    reborn.note(one, 1)
    await rig.until(lambda: one.numbers(reborn) == [1])
    one.note(reborn, 2)
    await rig.until(lambda: reborn.numbers(one) == [2])
    assert len(one.downs) == 1


@on_both_hosts
async def test_disconnect_tells_neither_node_and_the_next_frame_dials_again(rig: ContractRig) -> None:
    one, two = rig.add(1), rig.add(2)
    await linked(rig, one, two)
    one.note(two, 1)
    with one.calling() as driver:
        driver.disconnect(two.peer, "no neighbour")
        assert not driver.is_linked(two.peer)
    await rig.until(lambda: not two.is_linked(one))
    assert two.numbers(one) == [1], "what was sent before goes out"
    two.note(one, 2)
    await rig.until(lambda: one.numbers(two) == [2])
    assert one.downs == two.downs == []
    with one.calling() as driver:
        driver.disconnect(rig.nobody(), "a stranger: harmless")


@on_both_hosts
async def test_what_waits_for_a_dial_goes_with_a_disconnect(rig: ContractRig) -> None:
    one, two = rig.add(1), rig.add(2)
    one.note(two, 1)
    with one.calling() as driver:
        driver.disconnect(two.peer, "changed its mind")
    assert rig.dropped(one, "disconnect") == 1
    one.note(two, 2)
    await rig.until(lambda: two.received)
    assert two.numbers(one) == [2] and one.downs == []


@on_both_hosts
async def test_a_stop_sends_what_is_queued_and_peers_hear_of_it_once(rig: ContractRig) -> None:
    one, two = rig.add(1), rig.add(2)
    await linked(rig, one, two)
    for number in range(100):
        one.note(two, number, size=1000)
    await rig.stop(one)
    await rig.until(lambda: two.downs)
    assert two.numbers(one) == list(range(100))
    assert two.downs == [(one.peer, "stopping")]
    assert one.downs == [], "who stops is told nothing more"


# Limits


@on_both_hosts
async def test_a_newcomer_is_refused_when_all_links_are_in_use(rig: ContractRig) -> None:
    rig.settings = replace(FAST, links_max=2)
    hub, *others = (rig.add(number) for number in (1, 2, 3, 4))
    for other in others[:2]:
        await linked(rig, other, hub)
    others[2].note(hub, 1)
    await rig.until(lambda: others[2].downs)
    assert others[2].downs == [(hub.peer, "links_max")] and len(hub.policy.up()) == 2


@on_both_hosts
async def test_the_link_unused_for_longest_makes_room(rig: ContractRig) -> None:
    rig.settings = replace(FAST, links_max=2, evictable_s=0.0)
    hub, unused, used, newcomer = (rig.add(number) for number in (1, 2, 3, 4))
    await linked(rig, unused, hub)
    await linked(rig, used, hub)
    hub.note(newcomer, 1)  # what a node wants itself it gets
    await rig.until(lambda: newcomer.numbers(hub) == [1] and not unused.is_linked(hub))
    assert {link.peer for link in hub.policy.up()} == {used.peer, newcomer.peer}
    assert hub.downs == unused.downs == [], "nobody is told: it comes back when it is needed"


# Those who break the protocol


@on_both_hosts
async def test_misbehaviour_is_counted_and_costs_the_link(rig: ContractRig) -> None:
    one, two = rig.add(1), rig.add(2)
    await linked(rig, one, two)
    lost = one.policy.up()[0]
    with two.calling() as driver:
        driver.misbehaved(one.peer, ProtocolError("malformed", "not what it said"))
    await rig.until(lambda: two.downs)
    assert two.downs == [(one.peer, "misbehaved")]
    assert two.misbehaviours == ["malformed"]
    assert 0 < two.policy.scores.points(one.peer.id, two.driver.now()) < SCORE_LIMIT
    await rig.until(lambda: one.is_linked(two) and one.policy.up()[0] is not lost)
    one.note(two, 1)
    await rig.until(lambda: two.numbers(one) == [1])


@on_both_hosts
async def test_who_goes_on_misbehaving_is_banned(rig: ContractRig) -> None:
    one, two = rig.add(1), rig.add(2)
    await linked(rig, one, two)
    for _ in range(12):
        with two.calling() as driver:
            driver.misbehaved(one.peer, ProtocolError("malformed"))
    assert two.policy.scores.is_banned(one.peer.id, two.driver.now())
    one.note(two, 1)
    await rig.until(lambda: one.downs)
    assert one.downs[0] == (two.peer, "banned")
    handler = one.open_stream(two)
    await rig.until(lambda: handler.reasons)
    assert handler.reasons == ["banned"] and two.accepted == [] and two.numbers(one) == []


@on_both_hosts
async def test_a_flood_is_misbehaviour(rig: ContractRig) -> None:
    rig.settings = replace(FAST, messages_per_second=10.0, messages_burst=200)
    one, two = rig.add(1), rig.add(2)
    await linked(rig, one, two)
    for number in range(1000):
        one.note(two, number)
    await rig.until(lambda: two.misbehaviours)
    assert two.misbehaviours[0] == "flood" and len(two.received) < 1000
    await rig.until(lambda: two.downs)
    assert two.downs[0] == (one.peer, "misbehaved")


@on_both_hosts
async def test_no_type_of_message_is_exempt_from_the_message_rate(rig: ContractRig) -> None:
    """The overlay's own neither: unlimited heartbeats would be a flood as any other."""
    rig.settings = replace(FAST, messages_per_second=10.0, messages_burst=200)
    one, two = rig.add(1), rig.add(2)
    await linked(rig, one, two)
    for _ in range(1000):
        one.driver.send(two.peer, encode(Heartbeat()), Priority.URGENT)
    await rig.until(lambda: two.misbehaviours)
    assert two.misbehaviours[0] == "flood" and len(two.others) < 1000


@on_both_hosts
async def test_a_message_that_stands_for_many_counts_as_many(rig: ContractRig) -> None:
    rig.settings = replace(FAST, messages_per_second=10.0, messages_burst=200)
    one, two = rig.add(1), rig.add(2)
    await linked(rig, one, two)
    refused: list[str] = []

    def handled(peer: PeerRef, frame: Frame) -> None:
        try:
            two.driver.charge(peer, 63)
        except ProtocolError as error:
            refused.append(error.reason)

    two.on_frame = handled
    for number in range(5):
        one.note(two, number)
    await rig.until(lambda: len(two.numbers(one)) == 5)
    assert refused == ["flood", "flood"], "three times 64 are within the burst"


# Dialling addresses


@on_both_hosts
async def test_dial_tells_once_and_later_who_answers_and_keeps_the_link(rig: ContractRig) -> None:
    one, two = rig.add(1), rig.add(2)
    answers: list[PeerRef | None] = []
    with one.calling() as driver:
        driver.dial(two.peer.host, two.peer.port, answers.append)
    assert answers == []
    await rig.until(lambda: answers)
    assert answers == [two.peer] and one.is_linked(two)
    with one.calling() as driver:
        driver.dial(two.peer.host, two.peer.port, answers.append)
    assert len(answers) == 1, "not from within the call, even where a link is up"
    await rig.until(lambda: len(answers) == 2)
    assert answers == [two.peer] * 2 and len(one.policy.up()) == 1


@on_both_hosts
async def test_dial_to_nobody_and_to_oneself(rig: ContractRig) -> None:
    one, nobody = rig.add(1), rig.nobody()
    answers: dict[str, PeerRef | None] = {}
    with one.calling() as driver:
        driver.dial(nobody.host, nobody.port, lambda peer: answers.update(nobody=peer))
        driver.dial(one.peer.host, one.peer.port, lambda peer: answers.update(own=peer))
    assert answers == {}
    await rig.until(lambda: len(answers) == 2)
    assert answers == {"nobody": None, "own": one.peer}
    assert one.policy.up() == []


@on_both_hosts
async def test_dials_of_addresses_from_both_sides_end_in_one_link(rig: ContractRig) -> None:
    one, two = rig.add(1), rig.add(2)
    answers: list[PeerRef | None] = []
    for node, other in ((one, two), (two, one)):
        with node.calling() as driver:
            driver.dial(other.peer.host, other.peer.port, answers.append)
    await rig.until(lambda: len(answers) == 2)
    assert set(answers) == {one.peer, two.peer}
    one.note(two, 1)
    two.note(one, 2)
    await rig.until(lambda: two.numbers(one) == [1] and one.numbers(two) == [2])
    await rig.until(lambda: len(one.policy.up()) == len(two.policy.up()) == 1)
    assert one.downs == two.downs == []
