"""Swaps over real connections, on both event loops, with and without TLS: nothing is lost at the close."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from peerd.api import AcceptSwap, RefuseSwap, SwapRequest
from peerd.driver import StreamHandler, TimerHandle
from peerd.messages import PeerRef
from peerd.swap.config import SwapConfig
from peerd.swap.layer import SwapLayer
from tests.support.both_loops import both_loops
from tests.support.link_rig import Peer, Rig, until
from tests.support.stream_pair import MemoryNetwork, MemoryNode, Report

ROUNDS = 4
SIZES = ((0, 0), (1, 700_000), (3_000_000, 2_000_000), (600_000, 0))
TIMEOUT_S = 20.0


class SocketNode(MemoryNode):
    """A swap layer's node whose streams, clock and timers are real."""

    def __init__(self, rig_peer: Peer, config: SwapConfig | None = None) -> None:
        super().__init__(MemoryNetwork(), rig_peer.ref, config or SwapConfig())
        self._links = rig_peer.links
        self._loop = asyncio.get_running_loop()
        rig_peer.node.stream_accepted = self.layer.accept  # type: ignore[method-assign]  # the rig's seam

    def now(self) -> float:
        return self._loop.time()

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> TimerHandle:
        return self._loop.call_later(delay_s, callback)

    def call_soon(self, callback: Callable[[], None]) -> None:
        self._loop.call_soon(callback)

    def open_stream(self, peer: PeerRef, handler: StreamHandler) -> None:
        self._links.open_stream(peer, handler)


def value(size_bytes: int, seed: int) -> bytes:
    """Bytes that differ from one value to the next."""
    return bytes((seed + index) % 251 for index in range(251)) * (size_bytes // 251) + bytes(size_bytes % 251)


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
@both_loops
async def test_many_swaps_both_ways_at_once(tls: bool) -> None:
    async with Rig(tls=tls) as rig:
        one, two = rig.pair()
        nodes = (SocketNode(one), SocketNode(two))
        reports: list[tuple[Report, bytes]] = []

        def respond(plugin: str, request: SwapRequest) -> AcceptSwap | RefuseSwap:
            report = Report()
            number = request.tag[0]
            reports.append((report, value(request.size_bytes, number)))
            return AcceptSwap(value(SIZES[number % len(SIZES)][1], 100 + number), report.callbacks)

        for number in range(ROUNDS * len(SIZES)):
            offer_bytes, answer_bytes = SIZES[number % len(SIZES)]
            source, target = nodes[number % 2], nodes[1 - number % 2]
            source.respond = target.respond = respond
            report = Report()
            reports.append((report, value(answer_bytes, 100 + number)))
            source.layer.swap("echo", target.peer, bytes([number]), value(offer_bytes, number), report.callbacks)
            if number % len(SIZES) == 3:
                await until(lambda: all(report.done or report.failed for report, _ in reports), TIMEOUT_S)
        await until(lambda: all(report.done or report.failed for report, _ in reports), TIMEOUT_S)
        assert len(reports) == 2 * ROUNDS * len(SIZES)
        assert [report.outcome for report, _ in reports] == ["done"] * len(reports)
        assert all(report.done == [expected] for report, expected in reports)
        assert_idle(nodes)


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
@both_loops
async def test_refused_cancelled_and_unreachable(tls: bool) -> None:
    async with Rig(tls=tls) as rig:
        one, two = rig.pair()
        nodes = (SocketNode(one), SocketNode(two))
        refused, cancelled, unreachable, there = Report(), Report(), Report(), Report()
        nodes[0].layer.swap("echo", two.ref, b"", bytes(1_000_000), refused.callbacks)
        await until(lambda: refused.failed, TIMEOUT_S)
        assert refused.outcome == "refused:no_answer"
        nodes[1].respond = lambda plugin, request: AcceptSwap(bytes(1 << 24), there.callbacks)
        handle = nodes[0].layer.swap("echo", two.ref, b"", bytes(1 << 24), cancelled.callbacks)
        await until(lambda: any(session.is_active for session in nodes[1].layer.sessions), TIMEOUT_S)
        handle.cancel()
        await until(lambda: cancelled.failed and there.failed, TIMEOUT_S)
        assert cancelled.outcome == "cancelled"
        assert there.outcome in ("peer_cancelled:cancelled", "peer_down")
        nobody = PeerRef(two.ref.id, "127.0.0.1", 1)
        nodes[0].layer.fetch("echo", nobody, b"", unreachable.callbacks)
        await until(lambda: unreachable.failed, TIMEOUT_S)
        assert unreachable.outcome == "peer_down"
        assert_idle(nodes)


def assert_idle(nodes: tuple[SocketNode, ...]) -> None:
    """Assert that no slot, buffer or byte is held any more."""
    for node in nodes:
        layer: SwapLayer = node.layer
        layer.validate()
        assert layer.sessions == ()
        assert layer.budget.memory_bytes == 0
