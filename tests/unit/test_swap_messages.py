"""The swap layer's wire form, labels, configuration and budget."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st
from pydantic import ValidationError

from peerd.errors import Bug, ProtocolError
from peerd.messages import Message, message_type, registered
from peerd.swap.config import SwapConfig
from peerd.swap.layer import ReceiveBudget
from peerd.swap.messages import (
    CHUNK_TYPE_ID,
    CONTROL_BYTES_MAX,
    SwapAnswer,
    SwapCancelled,
    SwapDigest,
    SwapOffer,
    SwapPadding,
    SwapVerified,
    reason_label,
)
from peerd.swap.transfer import chunk_header
from peerd.wire.codec import decode, encode
from peerd.wire.frames import frame_bytes

GOLDEN = {
    SwapOffer("aggregation", b"\x01\x02", 300, 0, False, True): (
        "51004000" + "00000017" + "96" + "ab" + b"aggregation".hex() + "c4020102" + "cd012c" + "00" + "c2" + "c3"
    ),
    SwapAnswer(False, "busy", 0, 0): "51004100" + "00000009" + "94c2a4" + b"busy".hex() + "0000",
    SwapDigest(bytes(range(16))): "51004200" + "00000013" + "91c410" + bytes(range(16)).hex(),
    SwapVerified(): "51004300" + "00000001" + "90",
    SwapCancelled("deadline"): "51004400" + "0000000a" + "91a8" + b"deadline".hex(),
    SwapPadding(1 << 20): "51004500" + "00000006" + "91ce00100000",
}


@pytest.mark.parametrize("message", GOLDEN, ids=lambda message: type(message).__name__)
def test_golden_bytes(message: Message) -> None:
    frame = encode(message)
    assert frame_bytes(frame).hex() == GOLDEN[message]
    decoded = decode(frame)
    assert decoded is not None
    assert decoded[0] == message


def test_chunk_frames_have_a_type_id_of_their_own() -> None:
    assert chunk_header(256 * 1024).hex() == "5100480000040000"
    assert message_type(CHUNK_TYPE_ID) is None


def test_every_message_fits_the_control_cap() -> None:
    kinds = [kind for type_id, kind in registered().items() if 0x0040 <= type_id <= 0x004F]
    assert len(kinds) == len(GOLDEN)
    assert all(kind.BYTES_MAX <= CONTROL_BYTES_MAX for kind in kinds)
    assert len(encode(SwapOffer("p" * 64, bytes(64), 2**64 - 1, 2**64 - 1, True))[2]) <= SwapOffer.BYTES_MAX
    assert len(encode(SwapAnswer(True, "r" * 48, 2**64 - 1, 2**64 - 1))[2]) <= SwapAnswer.BYTES_MAX


@given(st.text())
def test_a_label_is_always_a_reason(text: str) -> None:
    decoded = decode(encode(SwapCancelled(reason_label(text))))
    assert decoded is not None


@pytest.mark.parametrize("reason", ["", "Busy", "a b", "x\n", "r" * 49, "é"])
def test_a_reason_is_a_label(reason: str) -> None:
    with pytest.raises(ProtocolError, match="invalid"):
        decode(encode(SwapCancelled(reason)))


@pytest.mark.parametrize(
    "fields",
    [
        {"spill_bytes": 2, "memory_bytes_max": 1, "value_bytes_max": 1},
        {"value_bytes_max": 10, "spill_bytes": 5, "spilled_bytes_max": 9},
        {"chunk_bytes": 5 << 20},
        {"chunk_bytes": 0},
        {"stall_timeout": 0},
        {"unknown": 1},
    ],
)
def test_a_configuration_that_cannot_work_is_refused(fields: dict[str, int]) -> None:
    with pytest.raises(ValidationError):
        SwapConfig.model_validate(fields)


@given(st.lists(st.integers(0, 300), max_size=30))
def test_the_budget_never_exceeds_its_limits_and_comes_back(sizes: list[int]) -> None:
    config = SwapConfig(memory_bytes_max=200, spill_bytes=100, spilled_bytes_max=500, value_bytes_max=300)
    budget = ReceiveBudget(config)
    held = [size for size in sizes if budget.reserve(size)]
    assert budget.memory_bytes == sum(size for size in held if size <= 100) <= 200
    assert budget.spilled_bytes == sum(size for size in held if size > 100) <= 500
    for size in held:
        budget.release(size)
    assert (budget.memory_bytes, budget.spilled_bytes) == (0, 0)
    with pytest.raises(Bug, match="released twice"):
        budget.release(1)
