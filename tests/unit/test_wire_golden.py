"""The bytes of every message are fixed: N and N-1 must understand each other."""

from __future__ import annotations

import pytest

from peerd.messages import Message
from peerd.wire.codec import decode
from peerd.wire.frames import FrameDecoder
from tests.support.golden import all_messages, golden_line, load, sample

MESSAGES = all_messages()
GOLDEN = load()
RETIRED = range(0x0050, 0x005F)
"""Ids of messages that are gone: of the multicast groups."""


@pytest.mark.parametrize("kind", MESSAGES, ids=lambda kind: kind.__name__)
def test_bytes_are_the_golden_ones(kind: type[Message]) -> None:
    line = GOLDEN.get(f"{kind.TYPE_ID:#06x}")
    assert line is not None, f"{kind.__name__} has no golden bytes yet: python -m tests.support.golden"
    assert golden_line(kind) == line, f"the wire format of {kind.__name__} changed; fields may only be appended"


@pytest.mark.parametrize("type_id", sorted(GOLDEN))
def test_golden_bytes_decode_to_the_sample(type_id: str) -> None:
    kinds = {f"{kind.TYPE_ID:#06x}": kind for kind in MESSAGES}
    assert type_id in kinds, f"{GOLDEN[type_id]['message']} is gone, but other nodes still send it"
    [frame] = FrameDecoder().feed(bytes.fromhex(GOLDEN[type_id]["frame"]))
    decoded = decode(frame)
    assert decoded is not None
    assert decoded[0] == sample(kinds[type_id])


def test_the_ids_of_messages_that_are_gone_are_not_given_again() -> None:
    assert not [kind.__name__ for kind in MESSAGES if kind.TYPE_ID in RETIRED]
