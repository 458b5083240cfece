"""What the benchmark sends: one small control message, and the plugin that sends it and swaps large values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from peerd.api import AcceptSwap, Plugin, RefuseSwap, SwapCallbacks, SwapRequest, Value, handles
from peerd.ids import NodeId
from peerd.messages import U32, U64, Message, PeerRef, message

WINDOW: Final = 4096
"""Probes under way from one node to another."""
SEEN_EVERY: Final = 512
"""The receiver reports once in so many probes how many it has handled."""


@message(0x7F01, bytes_max=1024)
class Probe(Message):
    """A typical small control message: two ids and some numbers."""

    round_id: NodeId
    sender: NodeId
    number: U64
    level: U32
    hops: U32
    sizes: tuple[U32, ...]


@message(0x7F03, bytes_max=64)
class Token(Message):
    """A very small message: two numbers."""

    number: U64
    level: U32


@message(0x7F02, bytes_max=64)
class ProbesSeen(Message):
    """How many probes the receiver has handled."""

    count: U64


def probe(sender: NodeId, number: int) -> Probe:
    """About 70 bytes on the wire."""
    return Probe(NodeId((1 << 127) + 12345), sender, number, 7, 3, (1000, 200_000, 3, 70_000))


def token(sender: NodeId, number: int) -> Token:
    """A few bytes on the wire."""
    return Token(number, 7)


MakeMessage = Callable[[NodeId, int], Message]
MESSAGES: Final[dict[str, MakeMessage]] = {"small": token, "larger": probe}


class Pump(Plugin):
    """Sends probes in a pipeline and swaps values, when told to."""

    name = "bench"
    messages = (Probe, ProbesSeen)

    value: Value = b""
    """The value that it gives in every swap."""

    _received = 0
    _sent = 0
    _seen = 0
    _count = 0

    def pump(self, target: PeerRef, count: int, done: Callable[[], None]) -> None:
        """Send ``count`` probes (a multiple of `SEEN_EVERY`), `WINDOW` under way; ``done`` once all were handled."""
        self._target, self._count, self._done = target, count, done
        self._sent = self._seen = 0
        self._send_more()

    def _send_more(self) -> None:
        upto = min(self._count, self._seen + WINDOW)
        while self._sent < upto:
            self._sent += 1
            self.host.send(self._target, probe(self.host.id, self._sent))

    @handles(Probe)
    def on_probe(self, message: Probe, source: PeerRef) -> None:
        """Count it."""
        self._received += 1
        if self._received % SEEN_EVERY == 0:
            self.host.send(source, ProbesSeen(self._received))

    @handles(ProbesSeen)
    def on_seen(self, message: ProbesSeen, source: PeerRef) -> None:
        """Send as many more."""
        self._seen += SEEN_EVERY
        self._send_more()
        if self._seen == self._count:
            self._done()

    def swap_requested(self, request: SwapRequest) -> AcceptSwap | RefuseSwap:
        """Give the value for the peer's, and drop that."""
        return AcceptSwap(self.value, SwapCallbacks(done=_ignore, failed=_ignore))


def _ignore(result: object) -> None:
    """Ignore the end of a swap at the acceptor: the initiator measures it."""
