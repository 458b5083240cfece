"""The numbers of attempts to attach: they fit into a message where boots are told by the clock, as in the daemon."""

from __future__ import annotations

from datetime import UTC, datetime

from protocols.dissemination.taking_part import ATTEMPT_BITS, BOOT_BITS

U64_MAX = (1 << 64) - 1


def test_the_number_of_an_attempt_has_64_bits_for_decades() -> None:
    boot_ms = int(datetime(2100, 1, 1, tzinfo=UTC).timestamp() * 1000)
    assert (boot_ms << BOOT_BITS) + ((1 << BOOT_BITS) - 1) <= U64_MAX
    assert 0 < ATTEMPT_BITS < BOOT_BITS, "there is room for several streams in one boot"
