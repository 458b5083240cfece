"""What it costs to open a connection between two nodes that have none, in round trips.

One after the other: TCP's SYN and its answer, the TLS 1.3 handshake (its last flight carries Hello), Hello and its
answer. The first frame arrives half a round trip after that. docs/simulator.md has the numbers, and the least that
any design needs.
"""

from __future__ import annotations

from typing import Final

TCP_ROUND_TRIPS: Final = 1.0
TLS_ROUND_TRIPS: Final = 1.0
HELLO_ROUND_TRIPS: Final = 1.0
OPENING_ROUND_TRIPS: Final = TCP_ROUND_TRIPS + TLS_ROUND_TRIPS + HELLO_ROUND_TRIPS
FIRST_FRAME_ONE_WAYS: Final = 2 * OPENING_ROUND_TRIPS + 1
"""One-way latencies from the dial to the arrival of the first frame at the other end."""
