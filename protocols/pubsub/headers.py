"""Headers of events: texts under names that travel with an event's payload, and that no filter looks at. Pure.

A name may occur more than once, and the order is kept: programs that speak MQTT, Kafka or HTTP rely on both.
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias

from protocols.pubsub.messages import HEADER_NAME_MAX, HEADERS_BYTES_MAX, HEADERS_MAX, EventHeader
from protocols.pubsub.values import EventError, shown

Headers: TypeAlias = tuple[EventHeader, ...]
HEADER_OVERHEAD_BYTES: Final = 7
"""What a header takes in a message besides its texts, at most."""


def headers_bytes(headers: Headers) -> int:
    """How much headers take in a message, at most."""
    return sum(HEADER_OVERHEAD_BYTES + len(each.name.encode()) + len(each.value.encode()) for each in headers)


def read_headers(given: Any) -> Headers:
    """Read what a client gives: an object of texts, or a list of pairs. Raises `EventError`."""
    pairs = list(given.items()) if isinstance(given, dict) else given
    if not isinstance(pairs, list) or not all(_is_header(pair) for pair in pairs):
        raise EventError(f"_headers is an object of texts, or a list of pairs of texts, not {shown(given)}")
    headers = tuple(EventHeader(name, value) for name, value in pairs)
    if len(headers) > HEADERS_MAX or headers_bytes(headers) > HEADERS_BYTES_MAX:
        raise EventError(f"an event has at most {HEADERS_MAX} headers, together at most {HEADERS_BYTES_MAX} bytes")
    return headers


def _is_header(pair: object) -> bool:
    if not isinstance(pair, list | tuple) or len(pair) != 2:
        return False
    return all(isinstance(text, str) for text in pair) and 0 < len(pair[0]) <= HEADER_NAME_MAX
