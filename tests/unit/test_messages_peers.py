"""References to nodes on the wire: short, strict, and decoded to one object when they come again and again."""

from __future__ import annotations

import msgpack
import pytest
from hypothesis import given, strategies as st

from peerd import limits
from peerd.errors import ProtocolError
from peerd.ids import NodeId
from peerd.messages import INTERNED_MAX, PeerRef, Struct, decode_struct, encode_struct

ID = bytes(range(16))
PORT = b"\x1c\xfc"
LOOPBACK = ID + PORT + b"\x04\x7f\x00\x00\x01"


class Holder(Struct):
    """Holds a reference."""

    peer: PeerRef


def packed(peer: PeerRef) -> bytes:
    [data] = msgpack.unpackb(encode_struct(Holder(peer)))
    assert isinstance(data, bytes)
    return data


def unpacked(data: object) -> PeerRef:
    return decode_struct(Holder, msgpack.packb([data])).peer


hosts = st.one_of(
    st.ip_addresses().map(str),
    st.text(min_size=1, max_size=limits.HOST_LENGTH_MAX).filter(
        lambda text: len(text.encode()) <= limits.HOST_LENGTH_MAX
    ),
    st.sampled_from(["node", "10.1", "010.0.0.1", "::ffff:10.0.0.1", "fe80::1%eth0", "FE80::1", "0:0::1", "n" * 16]),
)


@given(st.integers(0, (1 << 128) - 1).map(NodeId), hosts, st.integers(1, (1 << 16) - 1))
def test_a_reference_comes_back_as_it_was(node_id: NodeId, host: str, port: int) -> None:
    peer = PeerRef(node_id, host, port)
    assert unpacked(packed(peer)) == peer


def test_addresses_are_short() -> None:
    peer = PeerRef(NodeId(int.from_bytes(ID, "big")), "127.0.0.1", 7420)
    assert packed(peer) == LOOPBACK
    assert len(packed(PeerRef(peer.id, "192.168.100.200", 65535))) == 23
    assert len(packed(PeerRef(peer.id, "2001:db8::7", 7420))) == 35
    assert packed(PeerRef(peer.id, "node", 7420)) == ID + PORT + b"\x00node"


def test_equal_references_decode_to_one_object() -> None:
    assert unpacked(LOOPBACK) is unpacked(bytes(bytearray(LOOPBACK)))
    assert unpacked(LOOPBACK) != unpacked(LOOPBACK[:-1] + b"\x02")


@pytest.mark.parametrize(
    "wrong",
    [
        (ID, "127.0.0.1", 7420),
        LOOPBACK.hex(),
        None,
        b"",
        ID[:15],
        ID + PORT,
        ID + PORT + b"\x04",
        ID + PORT + b"\x04abc",
        ID + PORT + b"\x04abcde",
        ID + PORT + b"\x06abcd",
        ID + PORT + b"\x05abcd",
        ID + PORT + b"\x00",
        ID + PORT + b"\x00\xff",
        ID + PORT + b"\x00" + b"n" * (limits.HOST_LENGTH_MAX + 1),
        ID + PORT + b"\x00" + "ж".encode() * (limits.HOST_LENGTH_MAX // 2 + 1),
        ID + b"\x00\x00\x04\x7f\x00\x00\x01",
    ],
)
def test_what_is_refused_is_not_remembered(wrong: object) -> None:
    for _ in range(2):
        with pytest.raises(ProtocolError, match="invalid"):
            unpacked(wrong)


@given(st.binary(max_size=60))
def test_any_bytes_decode_or_are_refused(data: bytes) -> None:
    try:
        peer = unpacked(data)
    except ProtocolError:
        return
    assert unpacked(packed(peer)) == peer


def test_it_forgets_over_its_limit() -> None:
    first = unpacked(LOOPBACK)
    for number in range(INTERNED_MAX):
        unpacked(number.to_bytes(16, "big") + LOOPBACK[16:])
    again = unpacked(LOOPBACK)
    assert again == first
    assert again is not first
