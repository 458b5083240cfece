"""A simulated network of nodes that only note what happens to them, for tests of the network itself."""

from __future__ import annotations

from typing import Any

import pytest

from peerd.api import Priority, SendRefusal
from peerd.driver import Stream, StreamHandler
from peerd.errors import Bug
from peerd.linking.settings import LinkSettings
from peerd.messages import Message, PeerRef
from peerd.overlay.proximity import OPENING_ROUND_TRIPS
from peerd.sim.driver import SimDriver
from peerd.sim.latency import ConstantLatency, LatencyModel
from peerd.sim.network import NetworkConfig
from peerd.sim.world import SimNode, World
from peerd.wire.codec import decode, encode
from peerd.wire.frames import Frame

LATENCY_S = 0.01
RTT_S = 2 * LATENCY_S
OPENING_S = OPENING_ROUND_TRIPS * RTT_S
FIRST_FRAME_ONE_WAYS = 2 * OPENING_ROUND_TRIPS + 1
"""One-way latencies from a dial to the arrival of the first frame at the other end."""
EXACT = NetworkConfig(up_bytes_per_s=None, down_bytes_per_s=None, jitter=0.0)
"""No bandwidth limit and no jitter: arrival times can be computed by hand."""


def about(seconds: float) -> Any:
    """``pytest.approx``, typed so that it may stand inside a tuple that is compared."""
    return pytest.approx(seconds)


class NotingHandler:
    """Takes whatever a stream brings."""

    def __init__(self, driver: SimDriver, buffer_bytes: int = 4096) -> None:
        self._driver = driver
        self._buffer = bytearray(buffer_bytes)
        self.stream: Stream | None = None
        self.received = bytearray()
        self.padding_bytes = 0
        self.opened_at: float | None = None
        self.closings: list[tuple[float, str | None]] = []
        self.writable_calls = 0
        self.last_at = 0.0

    def opened(self, stream: Stream) -> None:
        """Note when."""
        self.stream = stream
        self.opened_at = self._driver.now()

    def get_buffer(self, size_hint: int) -> memoryview:
        """A small buffer, so that pieces must be cut."""
        return memoryview(self._buffer)

    def buffer_updated(self, size_bytes: int) -> None:
        """Keep the bytes."""
        self.received += self._buffer[:size_bytes]
        self.last_at = self._driver.now()

    def padding_received(self, size_bytes: int) -> None:
        """Count."""
        self.padding_bytes += size_bytes
        self.last_at = self._driver.now()

    def writable(self) -> None:
        """Count."""
        self.writable_calls += 1

    def closed(self, reason: str | None) -> None:
        """Note when and why."""
        self.closings.append((self._driver.now(), reason))

    @property
    def open_stream(self) -> Stream:
        """The stream. Raises `Bug` before it is open."""
        if self.stream is None:
            raise Bug("the stream is not open")
        return self.stream


class NotingNode:
    """Notes messages, lost peers and streams, with their times."""

    def __init__(self, driver: SimDriver) -> None:
        self.driver = driver
        self.messages: list[tuple[float, PeerRef, Message]] = []
        self.downs: list[tuple[float, PeerRef, str]] = []
        self.accepted: list[NotingHandler] = []
        self.refused: list[tuple[PeerRef, Frame, SendRefusal]] = []
        self.writables: list[tuple[float, PeerRef]] = []

    def frame_received(self, peer: PeerRef, frame: Frame) -> None:
        """Decode, as a node does."""
        decoded = decode(frame)
        assert decoded is not None
        self.messages.append((self.driver.now(), peer, decoded[0]))

    def peer_down(self, peer: PeerRef, reason: str) -> None:
        """Note it."""
        self.downs.append((self.driver.now(), peer, reason))

    def frame_refused(self, peer: PeerRef, frame: Frame, reason: SendRefusal) -> None:
        """Note it."""
        self.refused.append((peer, frame, reason))

    def writable(self, peer: PeerRef) -> None:
        """Note it."""
        self.writables.append((self.driver.now(), peer))

    def stream_accepted(self, peer: PeerRef) -> StreamHandler:
        """Read it."""
        handler = NotingHandler(self.driver)
        self.accepted.append(handler)
        return handler

    def send(self, peer: PeerRef, message: Message) -> None:
        """One message."""
        self.driver.send(peer, encode(message), Priority.NORMAL)

    def texts(self) -> list[str]:
        """The ``text`` of every message, in order of arrival."""
        return [str(getattr(message, "text", "")) for _, _, message in self.messages]


class TrivialWorld(World[NotingNode]):
    """A world of `NotingNode`."""

    def boot(self, place: SimNode[NotingNode], driver: SimDriver) -> NotingNode:
        """The node has nothing to start."""
        return NotingNode(driver)


def trivial_world(
    count: int,
    seed: int = 0,
    *,
    network: NetworkConfig = EXACT,
    latency: LatencyModel | None = None,
    links: LinkSettings | None = None,
) -> TrivialWorld:
    """A running world of ``count`` nodes, 10 ms apart, at virtual time 0."""
    world = TrivialWorld(seed, network=network, latency=latency or ConstantLatency(LATENCY_S), links=links)
    for _ in range(count):
        world.add_node()
    world.run_for(0.0)
    return world
