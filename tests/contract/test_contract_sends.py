"""What `peerd.driver.Transport` promises about frames that wait and frames that are refused, for both drivers."""

from __future__ import annotations

from dataclasses import replace

from peerd.api import Priority, SendRefusal
from peerd.limits import MIB, SEND_HIGH_WATER_BYTES, SEND_LOW_WATER_SHARE, SEND_QUEUE_BYTES_MAX
from tests.support.contract import ContractNode, ContractRig, on_both_hosts
from tests.support.link_rig import FAST

PIECE_BYTES = 50_000
PATIENT = replace(FAST, write_deadline_s=60.0, silence_s=60.0)
LOW_BYTES = SEND_HIGH_WATER_BYTES // SEND_LOW_WATER_SHARE


async def linked(rig: ContractRig) -> tuple[ContractNode, ContractNode]:
    """Two nodes with a link."""
    one, two = rig.add(1), rig.add(2)
    one.note(two, 0)
    await rig.until(lambda: two.numbers(one) and one.is_linked(two))
    two.received.clear()
    return one, two


def load(one: ContractNode, two: ContractNode, size_bytes: int) -> int:
    """Send so much, and return in how many frames, which are numbered."""
    count = size_bytes // PIECE_BYTES
    for number in range(count):
        one.note(two, number, size=PIECE_BYTES)
    return count


# What waits


@on_both_hosts
async def test_queued_bytes_are_those_that_wait_for_a_link_too(rig: ContractRig) -> None:
    one, two = rig.add(1), rig.add(2)
    assert one.driver.queued_bytes(two.peer) == 0, "of a stranger"
    one.note(two, 1, size=1000)
    assert 1000 < one.driver.queued_bytes(two.peer) < 1100
    assert one.driver.queued_bytes(rig.nobody()) == 0
    await rig.until(lambda: two.numbers(one) == [1])
    assert one.driver.queued_bytes(two.peer) == 0


@on_both_hosts
async def test_what_a_disconnect_drops_no_longer_waits(rig: ContractRig) -> None:
    one, two = rig.add(1), rig.add(2)
    load(one, two, 2 * SEND_HIGH_WATER_BYTES)
    with one.calling() as driver:
        driver.disconnect(two.peer, "changed its mind")
    assert one.driver.queued_bytes(two.peer) == 0
    await rig.until(lambda: one.writables)
    assert one.writables == [two.peer], "dropped is not waiting either"


@on_both_hosts
async def test_a_peer_that_stands_still_is_seen_and_writable_is_told_once_when_it_has_caught_up(
    rig: ContractRig,
) -> None:
    rig.settings = PATIENT
    one, two = await linked(rig)
    rig.stand_still(two)
    waiting: list[int] = []
    two.on_frame = lambda peer, frame: waiting.append(one.driver.queued_bytes(two.peer))
    count = load(one, two, SEND_QUEUE_BYTES_MAX - MIB)
    assert one.driver.queued_bytes(two.peer) > SEND_HIGH_WATER_BYTES
    assert one.writables == [], "never from within the call"
    rig.go_on(two)
    await rig.until(lambda: len(two.received) == count and one.writables)
    assert one.writables == [two.peer] and one.refused == []
    assert two.numbers(one) == list(range(count)) and waiting[-1] == 0
    assert one.driver.queued_bytes(two.peer) == 0
    one.note(two, count)
    await rig.until(lambda: len(two.received) == count + 1)
    assert len(one.writables) == 1, "it was not slow again"


@on_both_hosts
async def test_writable_is_told_at_the_low_water_mark(rig: ContractRig) -> None:
    rig.settings = PATIENT
    one, two = await linked(rig)
    told: list[int] = []
    note_it = one.writable

    def writable(peer: object) -> None:
        told.append(one.driver.queued_bytes(two.peer))
        note_it(two.peer)

    one.writable = writable  # type: ignore[method-assign]  # to look at the queue at that time
    load(one, two, 2 * SEND_HIGH_WATER_BYTES)
    await rig.until(lambda: told)
    assert len(told) == 1 and told[0] <= LOW_BYTES


# What is refused


@on_both_hosts
async def test_what_a_full_queue_drops_is_told_frame_by_frame(rig: ContractRig) -> None:
    rig.settings = replace(PATIENT, send_queue_bytes_max=4 * PIECE_BYTES + 1000)
    one, two = rig.add(1), rig.add(2)
    for number in range(4):
        one.note(two, number, Priority.BACKGROUND, PIECE_BYTES)
    one.note(two, 4, Priority.BACKGROUND, PIECE_BYTES)
    one.note(two, 5, Priority.URGENT, PIECE_BYTES)
    full = SendRefusal.QUEUE_FULL
    assert one.refused == [(two.peer, 4, full), (two.peer, 0, full)], "itself, or the oldest that gives way"
    assert rig.dropped(one, "queue_full") == 2
    await rig.until(lambda: len(two.received) == 4)
    assert two.numbers(one) == [5, 1, 2, 3], "and all others arrive"


@on_both_hosts
async def test_frames_for_a_peer_that_cannot_be_reached_are_refused_and_peer_down_follows(rig: ContractRig) -> None:
    one, nobody = rig.add(1), rig.nobody()
    for number in range(3):
        one.note(nobody, number)
    assert one.refused == [], "a dial is under way"
    await rig.until(lambda: one.downs)
    assert one.refused == [(nobody, number, SendRefusal.PEER_DOWN) for number in range(3)]


@on_both_hosts
async def test_frames_are_refused_at_once_while_the_back_off_is_long(rig: ContractRig) -> None:
    rig.settings = replace(FAST, backoff_min_s=5.0, backoff_wait_s=0.1)
    one, nobody = rig.add(1), rig.nobody()
    one.note(nobody, 0)
    await rig.until(lambda: one.downs)
    one.refused.clear()
    one.note(nobody, 1)
    assert one.refused == [(nobody, 1, SendRefusal.PEER_DOWN)], "before the call has returned"
    await rig.until(lambda: len(one.downs) == 2)
    assert one.downs[1] == (nobody, "backoff")


@on_both_hosts
async def test_what_waits_at_a_disconnect_is_refused_and_what_was_sent_is_not(rig: ContractRig) -> None:
    one, two = await linked(rig)
    one.note(two, 1)
    one.driver.disconnect(two.peer, "no neighbour")
    await rig.until(lambda: two.numbers(one) == [1])
    assert one.refused == []
    one.note(two, 2)
    one.driver.disconnect(two.peer, "changed its mind")
    assert one.refused == [(two.peer, 2, SendRefusal.PEER_DOWN)]


@on_both_hosts
async def test_a_node_that_stops_is_told_of_no_refusals(rig: ContractRig) -> None:
    one, nobody = rig.add(1), rig.nobody()
    rig.settings = replace(FAST, backoff_min_s=5.0)
    one.note(nobody, 1)
    await rig.stop(one)
    assert one.refused == [] and one.writables == [] and one.downs == []
    assert rig.dropped(one, "stopping") == 1


# What is said in the handshake


@on_both_hosts
async def test_what_was_introduced_is_known_at_the_other_end_while_there_is_a_link(rig: ContractRig) -> None:
    one, two, three = rig.add(1), rig.add(2), rig.add(3)
    one.driver.introduce({"notes": (1, 2), "records": (3, 3)})
    assert two.driver.introduced(one.peer) is None, "no link"
    one.note(two, 1)
    three.note(one, 1)
    await rig.until(lambda: two.numbers(one) and one.numbers(three))
    assert two.driver.introduced(one.peer) == {"notes": (1, 2), "records": (3, 3)}
    await rig.until(lambda: three.is_linked(one) and one.is_linked(two))
    assert three.driver.introduced(one.peer) == {"notes": (1, 2), "records": (3, 3)}
    assert one.driver.introduced(two.peer) == {}, "it said nothing"
    one.driver.disconnect(two.peer, "no neighbour")
    assert one.driver.introduced(two.peer) is None
