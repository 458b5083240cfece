"""Nonsense and too much of everything: floods, malformed frames, recorded frames again, streams that say nothing."""

from __future__ import annotations

from collections import deque
from typing import ClassVar, Final

from peerd.driver import Stream
from peerd.ids import NodeId
from peerd.messages import PeerRef, encode_body
from peerd.overlay.messages import KEYS_MAX, EntriesRequest, JoinRequest, Route, ViewRequest
from peerd.sim.hostile.member import Behaviour, HostileNode
from peerd.sim.rng import random_id
from peerd.sim.workload import SimulationProbe
from peerd.wire.codec import Decoded
from peerd.wire.frames import CORRELATION, FLAG_REPLY, FLAG_REQUEST, Frame

BURST: Final = 30
"""Requests of each kind in one burst to one node; each is answered with more bytes than it has."""
MULTICASTS: Final = 20
"""Messages to `KEYS_MAX` keys each, in one burst. Each counts as so many messages: together they are over the limit."""
RECORDED_MAX: Final = 64
BODY_BYTES_MAX: Final = 300


class Flood(Behaviour):
    """Bursts of joins, questions and messages to very many keys, each burst at one victim."""

    name = "flood"
    gap_s: ClassVar[float] = 10.0

    def act(self) -> None:
        node, rng, others = self.node, self.rng, self.node.others()
        if not others:
            return
        victim = rng.choice(others)
        for number in range(BURST):
            node.ask(victim, JoinRequest())
            node.ask(victim, EntriesRequest())
            node.ask(victim, ViewRequest())
            if number < MULTICASTS:
                node.ask(victim, self._multicast(number))

    def _multicast(self, number: int) -> Route:
        keys: tuple[NodeId, ...] = tuple(random_id(self.rng) for _ in range(KEYS_MAX))
        body = encode_body(SimulationProbe(self.rng.getrandbits(62)))
        epoch = self.rng.getrandbits(62)
        return Route(keys, SimulationProbe.TYPE_ID, body, self.node.peer, epoch, number, 0)


class Malformed(Behaviour):
    """Frames of every type that its node knows, whose bodies are cut short, damaged or made up."""

    name = "malformed"
    gap_s: ClassVar[float] = 2.0

    def __init__(self, node: HostileNode) -> None:
        super().__init__(node)
        self._types = sorted(kind.TYPE_ID for plugin in node.plugins.values() for kind in plugin.messages)
        self._last = (JoinRequest.TYPE_ID, 0, b"")

    def hears(self, peer: PeerRef, frame: Frame, decoded: Decoded | None) -> bool:
        self._last = frame
        return True

    def act(self) -> None:
        rng, others = self.rng, self.node.others()
        if not others:
            return
        type_id, flags, body = self._last
        match rng.randrange(3):
            case 0:
                body = body[: rng.randint(0, len(body))]
            case 1:
                position = rng.randint(0, len(body))
                body = body[:position] + rng.randbytes(1) + body[position + 1 :]
            case _:
                type_id, flags = rng.choice(self._types), rng.choice((0, FLAG_REQUEST, FLAG_REPLY))
                body = CORRELATION.pack(rng.getrandbits(8)) + rng.randbytes(rng.randint(0, BODY_BYTES_MAX))
        self.node.throw(rng.choice(others), (type_id, flags, body))


class Replay(Behaviour):
    """What it was told by one node, it says to others, unchanged."""

    name = "replay"
    gap_s: ClassVar[float] = 0.3

    def __init__(self, node: HostileNode) -> None:
        super().__init__(node)
        self._recorded: deque[Frame] = deque(maxlen=RECORDED_MAX)

    def hears(self, peer: PeerRef, frame: Frame, decoded: Decoded | None) -> bool:
        self._recorded.append(frame)
        return True

    def act(self) -> None:
        others = self.node.others()
        if others and self._recorded:
            self.node.throw(self.rng.choice(others), self.rng.choice(self._recorded))


class SilentStreams(Behaviour):
    """Opens streams for large values, says a little that is no beginning of a swap or nothing, and keeps them."""

    name = "silent streams"
    gap_s: ClassVar[float] = 3.0

    def act(self) -> None:
        others = self.node.others()
        if others:
            text = b"" if self.rng.random() < 0.5 else self.rng.randbytes(self.rng.randint(1, BODY_BYTES_MAX))
            self.node.driver.open_stream(self.rng.choice(others), _Mute(text))


class _Mute:
    """Reads whatever comes."""

    def __init__(self, text: bytes) -> None:
        self._text = text
        self._room = memoryview(bytearray(1 << 12))

    def opened(self, stream: Stream) -> None:
        if self._text:
            stream.write(self._text)

    def get_buffer(self, size_hint: int) -> memoryview:
        return self._room

    def buffer_updated(self, size_bytes: int) -> None: ...

    def padding_received(self, size_bytes: int) -> None: ...

    def writable(self) -> None: ...

    def closed(self, reason: str | None) -> None: ...
