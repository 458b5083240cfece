"""What `peerd.driver.Stream` and `StreamHandler` promise, for the daemon's driver and for the simulator's."""

from __future__ import annotations

import random

from peerd.linking.rate_limit import POINTS_DEFAULT
from peerd.messages import PeerRef
from tests.support.contract import ContractNode, ContractRig, Handler, on_both_hosts

MANY_BYTES = 24 * 1024 * 1024
"""More than all buffers between two nodes on loopback hold."""


async def opened(rig: ContractRig) -> tuple[ContractNode, ContractNode, Handler, Handler]:
    """Two nodes and both ends of a stream between them, opened by the first."""
    one, two = rig.add(1), rig.add(2)
    here = one.open_stream(two)
    assert here.stream is None, "opened is told later"
    await rig.until(lambda: here.stream is not None and two.accepted and two.accepted[0].stream is not None)
    return one, two, here, two.accepted[0]


@on_both_hosts
async def test_a_stream_is_opened_at_both_ends_and_knows_its_peer(rig: ContractRig) -> None:
    one, two, here, there = await opened(rig)
    assert (here.open.peer, there.open.peer) == (two.peer, one.peer)
    assert here.open.is_writable and there.open.is_writable
    assert not one.is_linked(two), "bulk has connections of its own"


@on_both_hosts
async def test_bytes_arrive_whole_and_in_order_both_ways(rig: ContractRig) -> None:
    _, _, here, there = await opened(rig)
    generator = random.Random(1)
    forth, back = generator.randbytes(700_001), generator.randbytes(300_003)
    for start in range(0, len(forth), 100_000):
        here.open.write(memoryview(forth)[start : start + 100_000])
    there.open.write(back)
    await rig.until(lambda: len(there.received) == len(forth) and len(here.received) == len(back))
    assert there.received == forth and here.received == back
    assert here.reasons == there.reasons == []


@on_both_hosts
async def test_the_accepting_end_may_write_first(rig: ContractRig) -> None:
    _, _, here, there = await opened(rig)
    there.open.write(b"hello")
    await rig.until(lambda: here.received == b"hello")


@on_both_hosts
async def test_another_handler_gets_what_comes_after_a_stream_was_handed_over_and_its_end(rig: ContractRig) -> None:
    one, _, here, there = await opened(rig)
    there.open.write(b"first")
    await rig.until(lambda: here.received == b"first")
    next_one = Handler(one)
    here.open.hand_over(next_one)
    there.open.write(b"second")
    await rig.until(lambda: next_one.received == b"second")
    there.open.close()
    await rig.until(lambda: next_one.reasons)
    assert (next_one.stream, next_one.reasons) == (None, [None]), "it is not opened again"
    assert here.received == b"first" and here.reasons == []


@on_both_hosts
async def test_close_flushes_and_both_ends_are_told_once(rig: ContractRig) -> None:
    _, _, here, there = await opened(rig)
    data = bytes(range(256)) * 4096
    here.open.write(data)
    here.open.close()
    assert not here.open.is_writable and here.reasons == [], "told later"
    await rig.until(lambda: here.reasons and there.reasons)
    assert there.received == data
    assert here.reasons == there.reasons == [None], "a clean end of stream"


@on_both_hosts
async def test_what_is_written_after_close_is_dropped_silently(rig: ContractRig) -> None:
    _, _, here, there = await opened(rig)
    here.open.write(b"before")
    here.open.close()
    here.open.write(b"after")
    await rig.until(lambda: here.reasons and there.reasons)
    there.open.write(b"long after")
    here.open.write(b"long after")
    here.open.close()
    there.open.abort()
    assert there.received == b"before" and here.received == b""
    assert here.reasons == there.reasons == [None], "nothing is told after the end"


@on_both_hosts
async def test_close_throws_away_what_the_peer_still_sends(rig: ContractRig) -> None:
    _, _, here, there = await opened(rig)
    here.open.close()
    there.open.write(bytes(100_000))
    there.open.close()
    await rig.until(lambda: here.reasons and there.reasons)
    assert len(here.reasons) == len(there.reasons) == 1
    assert len(here.received) in (0, 100_000), "never a part of it"


@on_both_hosts
async def test_abort_drops_what_was_not_sent(rig: ContractRig) -> None:
    _, _, here, there = await opened(rig)
    here.open.write(bytes(MANY_BYTES))
    here.open.abort()
    await rig.until(lambda: here.reasons and there.reasons)
    assert here.reasons == ["aborted"] and len(there.reasons) == 1
    assert len(there.received) < MANY_BYTES
    assert not here.open.is_writable and not there.open.is_writable


@on_both_hosts
async def test_who_ends_a_stream_as_it_opens_is_told_once(rig: ContractRig) -> None:
    one, two = rig.add(1), rig.add(2)
    here = one.open_stream(two)
    here.is_unwanted = True
    await rig.until(lambda: here.reasons)
    later = one.open_stream(two)
    await rig.until(lambda: later.stream is not None and any(there.reasons == [] for there in two.accepted))
    assert here.reasons == ["aborted"] and later.reasons == []
    assert sum(there.reasons == [] for there in two.accepted) == 1


@on_both_hosts
async def test_above_the_high_water_mark_it_says_when_to_go_on(rig: ContractRig) -> None:
    _, _, here, there = await opened(rig)
    here.open.write(bytes(MANY_BYTES))
    assert not here.open.is_writable and here.writable_calls == 0
    await rig.until(lambda: here.writable_calls)
    assert here.open.is_writable
    await rig.until(lambda: len(there.received) == MANY_BYTES)
    assert here.writable_calls == 1, "once for each time that it was full"


@on_both_hosts
async def test_a_stream_that_cannot_be_opened_is_closed_with_the_reason(rig: ContractRig) -> None:
    one, two, three = rig.add(1), rig.add(2), rig.add(3)
    nobody = one.open_stream(rig.nobody())
    wrong = one.open_stream(PeerRef(three.peer.id, two.peer.host, two.peer.port))
    assert nobody.reasons == wrong.reasons == [], "never from within the call"
    await rig.until(lambda: nobody.reasons and wrong.reasons)
    assert (nobody.reasons, wrong.reasons) == (["refused"], ["wrong_callee"])
    assert nobody.stream is wrong.stream is None and three.accepted == []
    assert one.downs == [], "that is the stream's affair alone"


@on_both_hosts
async def test_bytes_that_break_the_protocol_cost_the_stream_and_a_score(rig: ContractRig) -> None:
    one, two, here, there = await opened(rig)
    there.fail_with = "bad_magic"
    here.open.write(b"garbage")
    await rig.until(lambda: here.reasons and there.reasons)
    assert there.reasons == ["bad_magic"] and two.misbehaviours == ["bad_magic"]
    assert two.policy.scores.points(one.peer.id, two.driver.now()) > 0.9 * POINTS_DEFAULT
    assert len(here.reasons) == 1 and one.misbehaviours == []


@on_both_hosts
async def test_a_crash_of_the_peer_ends_the_stream(rig: ContractRig) -> None:
    _, two, here, _ = await opened(rig)
    await rig.crash(two)
    await rig.until(lambda: here.reasons)
    assert len(here.reasons) == 1


@on_both_hosts
async def test_a_stop_ends_streams_and_opens_none(rig: ContractRig) -> None:
    one, two, here, there = await opened(rig)
    there.open.write(b"last words")
    await rig.stop(two)
    await rig.until(lambda: here.reasons)
    assert here.received == b"last words" and here.reasons == [None]
    late = one.open_stream(two)
    await rig.until(lambda: late.reasons)
    assert late.reasons == ["refused"]
