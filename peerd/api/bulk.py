"""Large values as plugins see them: what a swap moves, how it reports, and how a plugin answers one.

Plugins import it from `peerd.api`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from peerd.frozen import Frozen
from peerd.messages import PeerRef


class SizedBlob(Frozen):
    """Counts as ``len(payload) + padding_bytes`` on the wire but holds only ``payload``. Simulator only."""

    payload: bytes
    padding_bytes: int = 0


Value = bytes | bytearray | memoryview | SizedBlob
"""What the swap layer moves. Received values are ``bytes``-like (``memoryview``), or `SizedBlob` in the simulator."""


def value_size_bytes(value: Value) -> int:
    """Return how many bytes a value occupies on the wire."""
    return len(value.payload) + value.padding_bytes if isinstance(value, SizedBlob) else len(value)


class SwapProgress(Frozen):
    """How far a swap has come, in bytes."""

    sent_bytes: int
    send_total_bytes: int
    received_bytes: int
    receive_total_bytes: int | None
    """``None`` until the peer has said how much it sends."""


class SwapCallbacks(Frozen):
    """How a swap reports. Exactly one of ``done`` and ``failed`` is called, once, and nothing after it."""

    done: Callable[[Value], None]
    """The peer's whole value, length and digest verified, and the peer has confirmed ours."""
    failed: Callable[[str], None]
    """A stable reason label ("refused:...", "stalled", "deadline", "peer_down", "digest", "cancelled", "busy", ...)."""
    progress: Callable[[SwapProgress], None] | None = None
    received: Callable[[Value], None] | None = None
    """The peer's whole value, length and digest verified. Called before the peer has confirmed ours: ``done`` or
    ``failed``, which follows, says whether it has. For whoever need not know that to go on."""
    accepted: Callable[[], None] | None = None
    """The peer has accepted the swap that this node opened."""


class SwapRequest(Frozen):
    """A peer opened a swap with this node, for the plugin that the tag belongs to."""

    peer: PeerRef
    tag: bytes
    size_bytes: int
    is_fetch: bool
    ask_again: Callable[[], bool] = lambda: False
    """After `HoldSwap`: have `Plugin.swap_requested` asked once more, soon. Returns whether the offer still stands."""


class AcceptSwap(Frozen):
    """The answer that accepts, and gives ``value`` in exchange for the peer's value."""

    value: Value
    callbacks: SwapCallbacks
    deadline_s: float | None = None
    silence_s: float | None = None
    """How long the peer may say nothing while its value is due; by default, and at most, ``[swap] stall_timeout``. For
    whoever can do without it."""


class RefuseSwap(Frozen):
    """The answer that declines, with a stable reason label."""

    reason: str


class HoldSwap(Frozen):
    """The answer that puts the decision off: the peer's value may come meanwhile, as far as it fits the first window.

    The offer is refused as ``late`` when it is not decided within ``deadline_s`` (default: ``[swap] deadline``). A
    plugin that raises when it is asked again ends the swap, and not the peer's link.
    """

    deadline_s: float | None = None


SwapDecision = AcceptSwap | RefuseSwap | HoldSwap


class SwapHandle(Protocol):
    """A swap under way."""

    def cancel(self) -> None:
        """Abort it; ``failed("cancelled")`` follows. Harmless when it has ended."""


class PreparedSwap(SwapHandle, Protocol):
    """A swap whose connection is being opened, or open, while it is not decided yet."""

    def offer(self, value: Value, *, may_wait: bool = False) -> None:
        """Begin, as soon as the connection is open. Harmless when it has ended.

        ``may_wait``: the peer may put its answer off, so that ``silence_s`` counts until the connection
        is open, and then after the answer only.
        """
