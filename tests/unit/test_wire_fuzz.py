"""Whatever bytes come in: a message, or `ProtocolError`. Nothing else, ever (A02)."""

from __future__ import annotations

import msgpack
import pytest
from hypothesis import example, given, strategies as st

from peerd.errors import ProtocolError
from peerd.messages import Message, decode_body, encode_body, unpack
from peerd.wire.codec import decode, encode
from peerd.wire.frames import HEADER, MAGIC, FrameDecoder, frame_bytes
from tests.support.golden import all_messages, sample

MESSAGES = all_messages()
KINDS = st.sampled_from(MESSAGES)

# What msgpack can say, and a bit more than any of our messages does
SCALARS = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text(max_size=8)
KEYS = st.text(max_size=4) | st.integers(0, 9)
VALUES = st.recursive(
    SCALARS | st.binary(max_size=20),
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=20,
)


def decodes_or_refuses(kind: type[Message], body: bytes) -> None:
    try:
        message = decode_body(kind, body)
    except ProtocolError:
        return
    assert decode_body(kind, encode_body(message)) == message


@given(kind=KINDS, body=st.binary(max_size=200))
@example(kind=MESSAGES[0], body=b"\xc1")
@example(kind=MESSAGES[0], body=b"\xdd\xff\xff\xff\xff")
@example(kind=MESSAGES[0], body=b"\x91" * 1025)
@example(kind=MESSAGES[0], body=b"\xc7\x0c\xff" + bytes(12))
@example(kind=MESSAGES[0], body=b"\x91\xa2\xc3\x28")
def test_any_bytes(kind: type[Message], body: bytes) -> None:
    decodes_or_refuses(kind, body)


@given(kind=KINDS, values=st.lists(VALUES, max_size=12))
def test_any_array_of_values(kind: type[Message], values: list[object]) -> None:
    decodes_or_refuses(kind, msgpack.packb(values))


@given(kind=KINDS, data=st.data())
def test_any_damage_to_a_valid_body(kind: type[Message], data: st.DataObject) -> None:
    body = bytearray(encode_body(sample(kind)))
    for _ in range(data.draw(st.integers(1, 3))):
        if body:
            body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    decodes_or_refuses(kind, bytes(body[: data.draw(st.integers(0, len(body)))]))


@pytest.mark.parametrize("kind", MESSAGES, ids=lambda kind: kind.__name__)
def test_unknown_trailing_fields_are_ignored(kind: type[Message]) -> None:
    fields = msgpack.unpackb(encode_body(sample(kind)), use_list=True, strict_map_key=False)
    body = msgpack.packb([*fields, {"from": "the future"}, 7])
    if len(body) <= kind.BYTES_MAX:
        assert decode_body(kind, body) == sample(kind)


def test_duplicate_keys_and_nan_are_refused() -> None:
    with pytest.raises(ProtocolError, match="duplicate"):
        unpack(b"\x82\xa1a\x01\xa1a\x02")


@given(
    frames=st.lists(st.tuples(st.integers(1, 65535), st.sampled_from([0, 1, 2]), st.binary(max_size=50)), max_size=6),
    cuts=st.lists(st.integers(0, 400), max_size=8),
)
def test_chunking_does_not_matter(frames: list[tuple[int, int, bytes]], cuts: list[int]) -> None:
    stream = b"".join(frame_bytes(frame) for frame in frames)
    decoder, seen, start = FrameDecoder(), [], 0
    for cut in [*sorted(cuts), len(stream)]:
        seen += decoder.feed(stream[start:cut])
        start = max(start, cut)
    assert seen == frames
    assert not decoder.is_mid_frame


@given(stream=st.binary(max_size=300), flags=st.integers(0, 255))
def test_any_stream(stream: bytes, flags: int) -> None:
    for head in (b"", HEADER.pack(MAGIC, 2, flags, len(stream))):
        try:
            frames = FrameDecoder(1000).feed(head + stream)
        except ProtocolError:
            continue
        for frame in frames:
            try:
                decode(frame)
            except ProtocolError:
                continue


@pytest.mark.parametrize("length", [2**32 - 1, 65537])
def test_an_oversize_header_is_refused_before_its_body(length: int) -> None:
    with pytest.raises(ProtocolError, match="oversize"):
        FrameDecoder(65536).feed(HEADER.pack(MAGIC, 2, 0, length))


def test_an_unknown_type_is_not_an_error() -> None:
    assert decode((0x7EEE, 0, b"\xff\xff")) is None


@pytest.mark.parametrize("kind", MESSAGES, ids=lambda kind: kind.__name__)
def test_an_oversize_body_is_refused(kind: type[Message]) -> None:
    with pytest.raises(ProtocolError, match="oversize"):
        decode((kind.TYPE_ID, 0, bytes(kind.BYTES_MAX + 1)))


@pytest.mark.parametrize("kind", MESSAGES, ids=lambda kind: kind.__name__)
def test_round_trip(kind: type[Message]) -> None:
    decoded = decode(encode(sample(kind)))
    assert decoded is not None
    assert decoded[0] == sample(kind)
