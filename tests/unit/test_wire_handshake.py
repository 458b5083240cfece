"""The handshake, both sides, without a socket."""

from __future__ import annotations

import pytest

from peerd.errors import HandshakeRefused, ProtocolError
from peerd.ids import NodeId
from peerd.limits import HELLO_PLUGINS_MAX
from peerd.messages import PeerRef
from peerd.wire.codec import decode, encode
from peerd.wire.frames import FrameDecoder
from peerd.wire.handshake import Handshake, Hello, HelloAck, LinkHeartbeat, LocalNode, PluginVersions, Purpose

ALICE = PeerRef(NodeId(0xA << 124), "127.0.0.1", 7001)
BOB = PeerRef(NodeId(0xB << 124), "127.0.0.1", 7002)
OLD_HELLO = "510001000000002697010203a57465787434c4180100000000000000000000000000000100030074657874320607"
OLD_ACK = "5100020000000024950102a57465787433c41801000000000000000000000000000001000300746578743205"
"""Handshakes as they were sent before they named plugins."""


def side(
    node: PeerRef,
    certified: PeerRef | None,
    *,
    cluster: str = "test",
    versions: tuple[int, int] = (1, 1),
    expected: PeerRef | None = None,
) -> Handshake:
    local = LocalNode(node, cluster, 1, protocol_min=versions[0], protocol_max=versions[1])
    return Handshake(
        local,
        certified_id=None if certified is None else certified.id,
        expected_id=None if expected is None else expected.id,
        purpose=Purpose.CONTROL,
    )


def shake(dialler: Handshake, acceptor: Handshake) -> None:
    try:
        answer = acceptor.receive(dialler.hello())
    except HandshakeRefused:
        assert acceptor.refusal is not None
        answer = acceptor.refusal
    assert answer is not None
    assert dialler.receive(answer) is None


def test_both_sides_learn_who_the_other_is() -> None:
    dialler, acceptor = side(ALICE, BOB, expected=BOB), side(BOB, ALICE)
    shake(dialler, acceptor)
    assert dialler.established is not None
    assert acceptor.established is not None
    assert dialler.established.peer == BOB
    assert acceptor.established.peer == ALICE


def test_the_highest_common_version_is_chosen() -> None:
    dialler, acceptor = side(ALICE, BOB, versions=(1, 5)), side(BOB, ALICE, versions=(2, 3))
    shake(dialler, acceptor)
    assert dialler.established is not None
    assert dialler.established.protocol == 3


def test_no_common_version_names_both_ranges_and_both_nodes() -> None:
    with pytest.raises(HandshakeRefused) as caught:
        shake(side(ALICE, BOB, versions=(1, 2)), side(BOB, ALICE, versions=(3, 4)))
    for part in ("1..2", "3..4", str(ALICE), str(BOB)):
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("dialler", "acceptor", "reason"),
    [
        (side(ALICE, BOB, cluster="other"), side(BOB, ALICE), "wrong_cluster"),
        (side(ALICE, BOB), side(BOB, BOB), "id_mismatch"),
        (side(BOB, None), side(BOB, None), "duplicate_identity"),
        (side(ALICE, None, expected=ALICE), side(BOB, None), "wrong_callee"),
    ],
)
def test_refusals_say_why(dialler: Handshake, acceptor: Handshake, reason: str) -> None:
    with pytest.raises(HandshakeRefused) as caught:
        shake(dialler, acceptor)
    assert caught.value.reason == reason


def test_anything_else_first_is_a_protocol_error() -> None:
    with pytest.raises(ProtocolError, match="unexpected_message"):
        side(BOB, ALICE).receive(encode(LinkHeartbeat()))


def test_both_sides_learn_which_versions_of_plugins_the_other_speaks() -> None:
    ours, theirs = (PluginVersions("pubsub", 1, 3),), (PluginVersions("pubsub", 2, 4), PluginVersions("other", 1, 1))
    dialler = Handshake(LocalNode(ALICE, "test", 1, plugins=ours), certified_id=BOB.id, purpose=Purpose.CONTROL)
    acceptor = Handshake(LocalNode(BOB, "test", 1, plugins=theirs), certified_id=ALICE.id, purpose=Purpose.CONTROL)
    shake(dialler, acceptor)
    assert dialler.established is not None and acceptor.established is not None
    assert (dialler.established.plugins, acceptor.established.plugins) == (theirs, ours)


@pytest.mark.parametrize("frame", [OLD_HELLO, OLD_ACK], ids=["Hello", "HelloAck"])
def test_a_peer_that_says_nothing_about_plugins_is_understood(frame: str) -> None:
    [old] = FrameDecoder().feed(bytes.fromhex(frame))
    decoded = decode(old)
    assert decoded is not None and isinstance(decoded[0], Hello | HelloAck)
    assert decoded[0].plugins == ()


def test_more_plugins_than_the_limit_are_refused() -> None:
    versions = tuple(PluginVersions(f"plugin{number}", 1, 1) for number in range(HELLO_PLUGINS_MAX + 1))
    with pytest.raises(ProtocolError):
        decode(encode(Hello(1, 1, 0, "test", ALICE, 1, 0, versions)))
    assert decode(encode(Hello(1, 1, 0, "test", ALICE, 1, 0, versions[1:]))) is not None
