"""Parameters of the swap layer: the table ``[swap]``; docs/swap.md has them all."""

from __future__ import annotations

from typing import Annotated, Final, Self

from pydantic import Field, model_validator

from peerd import limits
from peerd.quantities import ConfigSection, Duration, Interval, Size, between_durations, between_sizes, setting

PADDING_PIECE_BYTES: Final = 1 * limits.MIB
"""Simulator only: padding goes out in pieces of this size, so that a slow modelled link still shows progress."""

Sessions = Annotated[int, Field(ge=1, le=1024)]
ValueSize = Annotated[Size, between_sizes("1B", "1TiB")]


class SwapConfig(ConfigSection):
    """Bulk transfers: how much they may hold at once, and their time limits."""

    outbound_sessions_max: Sessions = setting(
        limits.SWAP_SESSIONS_MAX,
        "Swaps that this node may have started at once; its plugins are told `busy` above it. Raise it for many small "
        "values.",
        reloads=True,
    )
    inbound_sessions_max: Sessions = setting(
        limits.SWAP_SESSIONS_MAX,
        "Swaps of peers that this node serves at once; more are refused as `busy`.",
        reloads=True,
    )
    inbound_peer_sessions_max: Sessions = setting(8, "Of those, how many may be of the same peer.", reloads=True)
    pending_offers_max: Sessions = setting(
        limits.TRANSIENT_LINKS_MAX, "Accepted bulk connections that have not made an offer yet.", reloads=True
    )
    chunk_bytes: Annotated[Size, between_sizes("64B", "4MiB")] = setting(
        "256KiB",
        "Payload of one chunk that this node sends; a peer's may differ. Larger moves big values faster; smaller "
        "cancels and shares sooner.",
        reloads=True,
    )
    chunks_per_turn_max: Sessions = setting(
        8, "Chunks that one swap writes before other work gets its turn.", reloads=True
    )
    value_bytes_max: ValueSize = setting(
        "1GiB",
        "Largest value accepted or sent. A peer that announces more is refused before a byte moves.",
        reloads=True,
    )
    memory_bytes_max: ValueSize = setting(
        "256MiB",
        "Receive buffers in memory, all swaps together; what would pass it is refused as `busy`. Lower it on small "
        "machines.",
        reloads=True,
    )
    spill_bytes: Annotated[Size, between_sizes("0B", "1TiB")] = setting(
        "64MiB", "A received value larger than this goes to a file in node.state_dir. Lower it to save memory."
    )
    spilled_bytes_max: ValueSize = setting("2GiB", "Receive buffers in files, all swaps together.", reloads=True)
    stall_timeout: Interval = setting(
        "30s",
        "No byte in either direction for this long, or for half of the deadline, ends a swap. Raise it on slow or "
        "lossy networks.",
        reloads=True,
    )
    deadline: Annotated[Duration, between_durations("1s", "7d")] = setting(
        "10m",
        "Longest swap, unless its caller says otherwise: above value_bytes_max / bandwidth, if the largest values are "
        "to arrive.",
        reloads=True,
    )
    offer_timeout: Interval = setting("5s", "From accepting a bulk connection to having the whole offer.", reloads=True)
    close_timeout: Interval = setting(
        "5s", "From closing a stream to cutting it off when it does not drain.", reloads=True
    )
    progress_bytes: ValueSize = setting("1MiB", "Progress is reported at most once per this many bytes.", reloads=True)

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.spill_bytes > self.memory_bytes_max:
            raise ValueError("spill_bytes must not exceed memory_bytes_max: such a value would never be admitted")
        if self.value_bytes_max > max(self.spill_bytes, self.spilled_bytes_max):
            raise ValueError("value_bytes_max must not exceed spilled_bytes_max: such a value would never be admitted")
        return self
