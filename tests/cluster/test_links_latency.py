"""What opening costs on a long path, counted in one-way latencies; tests/sim/test_sim_latency.py counts the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from peerd.daemon import loops
from peerd.daemon.links.settings import monotonic_s
from peerd.daemon.service import Daemon
from peerd.messages import PeerRef
from peerd.system.sockets import listening_socket
from tests.support.both_loops import both_loops
from tests.support.link_rig import FAST, Rig, until
from tests.support.long_cases import cases
from tests.support.relay import LongPath
from tests.support.site import Site, is_complete
from tests.support.swapper import OPENING_LATENCIES, Swapper
from tests.support.trivial_world import FIRST_FRAME_ONE_WAYS

LATENCY_S = 0.1
PATIENCE_S = 40.0


@both_loops
async def test_the_first_frame_arrives_after_tcp_tls_and_hello() -> None:
    async with Rig(tls=True) as rig:
        one, two = rig.pair()
        async with LongPath(lambda: two.listener.address, LATENCY_S) as path:
            two.ref = PeerRef(two.ref.id, two.ref.host, path.port)
            two.context.local = replace(two.context.local, node=two.ref)
            heard: list[int] = []
            two.node.on_frame = lambda peer, frame: heard.append(path.passages[0].target)
            begun = monotonic_s()
            one.note(two.ref, 1)
            await until(lambda: heard, PATIENCE_S)
            print(f"the first frame: {(monotonic_s() - begun) / LATENCY_S:.2f} one-way latencies")
            assert heard == [FIRST_FRAME_ONE_WAYS]
            one.note(two.ref, 2)
            await until(lambda: two.node.numbers() == [1, 2])
            assert heard == [FIRST_FRAME_ONE_WAYS] * 2, "the next one needs nothing before it"


@both_loops
async def test_a_peer_is_reached_that_needs_nearly_the_time_limit_for_each_answer() -> None:
    """All answers together take longer than the limit. The relay answers TCP's handshake at once, TLS's late."""
    limit_s = 5 * LATENCY_S
    async with Rig(tls=True, settings=replace(FAST, dial_timeout_s=limit_s)) as rig:
        one, two = rig.pair()
        async with LongPath(lambda: two.listener.address, LATENCY_S) as path:
            two.ref = PeerRef(two.ref.id, two.ref.host, path.port)
            two.context.local = replace(two.context.local, node=two.ref)

            def is_linked_now() -> bool:
                one.note(two.ref, 1)  # again and again: on a busy machine an answer may come too late, but not always
                return one.links.is_linked(two.ref)

            await until(is_linked_now, PATIENCE_S)
            assert limit_s < (FIRST_FRAME_ONE_WAYS - 1) * LATENCY_S


@pytest.mark.parametrize("loop", cases(["uvloop"], ["asyncio"]))
def test_a_swap_with_a_peer_that_has_a_link(
    loop: loops.LoopName, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """Two daemons as shipped; every byte to the second one takes the long path."""
    counts, took = loops.run(swap_counts(Site(tmp_path)), loop=loop)
    print(f"swap done here after {took:.2f} one-way latencies: {counts}")
    record_property("swap_one_way_latencies", round(took, 2))
    assert counts == {what: OPENING_LATENCIES[what] for what in counts}
    assert set(counts) == {"offered", "done there", "done here"}


async def swap_counts(site: Site) -> tuple[dict[str, int], float]:
    """What each step of a swap took, and all of it by the clock."""
    sock = listening_socket("127.0.0.1", 0)
    here, there = Swapper(), Swapper()
    async with LongPath(sock.getsockname, LATENCY_S) as path:
        two = Daemon(site.config("2", node__advertise=path.address), plugins=[there], listening=sock)
        async with two:
            one = Daemon(site.config("1", bootstrap=[path.address]), plugins=[here])
            async with one:
                await until(lambda: is_complete(one, two) and one.links.is_linked(two.peer), PATIENCE_S)
                counts: dict[str, int] = {}
                opened = len(path.passages)

                def note(what: str) -> None:
                    passage = path.passages[opened]
                    counts[what] = passage.dialler if what == "done here" else passage.target

                here.told = there.told = note
                begun = monotonic_s()
                here.begin(two.peer)
                await until(lambda: len(counts) == 3, PATIENCE_S)
                return counts, (monotonic_s() - begun) / LATENCY_S
