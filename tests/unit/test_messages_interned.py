"""References to nodes that are decoded again and again."""

from __future__ import annotations

import msgpack
import pytest

from peerd.messages import PEERS_INTERNED_MAX, PeerRef, unpack
from peerd.wire_types import decoders

DECODE = decoders[PeerRef]
ID = bytes(range(16))


def test_equal_references_decode_to_one_object() -> None:
    first = DECODE((ID, "10.0.0.1", 7420))
    assert DECODE(unpack(msgpack.packb([ID, "10.0.0.1", 7420]))) is first
    assert first == PeerRef(first.id, "10.0.0.1", 7420)
    assert DECODE((ID, "10.0.0.1", 7421)) != first


@pytest.mark.parametrize("port", [1, 7420])
def test_a_value_that_equals_a_known_one_is_validated_all_the_same(port: int) -> None:
    DECODE((ID, "10.0.0.1", port))
    for wrong in (float(port), bool(port), None, "7420"):
        with pytest.raises(ValueError):
            DECODE((ID, "10.0.0.1", wrong))
    with pytest.raises(ValueError):
        DECODE((ID, b"10.0.0.1", port))


def test_what_is_refused_is_not_remembered() -> None:
    for _ in range(2):
        with pytest.raises(ValueError):
            DECODE((ID[:15], "10.0.0.1", 7420))
        with pytest.raises(ValueError):
            DECODE((ID, "10.0.0.1", 0))


def test_it_forgets_over_its_limit() -> None:
    first = DECODE((ID, "10.0.0.1", 7420))
    for number in range(PEERS_INTERNED_MAX):
        DECODE((number.to_bytes(16, "big"), "10.0.0.1", 7420))
    again = DECODE((ID, "10.0.0.1", 7420))
    assert again == first
    assert again is not first
