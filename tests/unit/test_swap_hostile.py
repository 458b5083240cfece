"""What a hostile or broken peer may send on a bulk stream: each costs it the stream, and nothing else happens."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, strategies as st
from xxhash import xxh3_128

from peerd.api import AcceptSwap
from peerd.driver import StreamHandler
from peerd.errors import Bug, ProtocolError
from peerd.messages import Message, PeerRef
from peerd.swap.config import SwapConfig
from peerd.swap.messages import (
    DIGEST_BYTES,
    SwapAnswer,
    SwapCancelled,
    SwapDigest,
    SwapOffer,
    SwapPadding,
    SwapVerified,
)
from peerd.swap.session import SwapSession
from peerd.swap.transfer import chunk_header
from peerd.wire.codec import encode
from peerd.wire.frames import HEADER, MAGIC, frame_bytes
from tests.support.stream_pair import MemoryNetwork, MemoryNode, Report

CONFIG = SwapConfig(chunk_bytes=64, value_bytes_max=10_000)
OFFER = SwapOffer("echo", b"tag", 10, 0, False)
ACCEPTED = SwapAnswer(True, "accepted", 10, 0)
VALUE = b"0123456789"
GOOD_DIGEST = SwapDigest(xxh3_128(VALUE).digest())


def frame(message: Message) -> bytes:
    return frame_bytes(encode(message))


def chunk(data: bytes) -> bytes:
    return chunk_header(len(data)) + data


class RawStream:
    """A stream of which the test is the other end."""

    def __init__(self, peer: PeerRef) -> None:
        self.peer = peer
        self.sent = bytearray()
        self.is_writable = True
        self.state = "open"

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.sent += data

    def write_padding(self, size_bytes: int) -> None:
        raise AssertionError("no padding here")

    def close(self) -> None:
        self.state = "closed"

    def abort(self) -> None:
        self.state = "aborted"

    def hand_over(self, handler: StreamHandler) -> None:
        raise AssertionError("one swap only")


class Victim:
    """One side of a swap, and the bytes that a test feeds it."""

    def __init__(self, *, is_initiator: bool, config: SwapConfig = CONFIG) -> None:
        self.network = MemoryNetwork()
        self.node: MemoryNode = self.network.add(1, config)
        self.report = Report()
        self.node.respond = lambda plugin, request: AcceptSwap(b"abc", self.report.callbacks)
        peer = self.network.add(2).peer
        self.stream = RawStream(peer)
        self.session: SwapSession
        if is_initiator:
            self.node.is_dial_failing = True
            self.node.layer.swap("echo", peer, b"tag", b"abc", self.report.callbacks)
            (self.session,) = self.node.layer.sessions
        else:
            handler = self.node.layer.accept(peer)
            assert isinstance(handler, SwapSession)
            self.session = handler
        self.session.opened(self.stream)

    def feed(self, data: bytes) -> None:
        """Fill the session's buffers. Raises what it raises."""
        rest = memoryview(data)
        while rest:
            buffer = self.session.get_buffer(len(rest))
            size = min(len(buffer), len(rest))
            buffer[:size] = rest[:size]
            rest = rest[size:]
            self.session.buffer_updated(size)
        self.node.layer.validate()

    def assert_over(self) -> None:
        """Nothing is held, and the plugin had no value."""
        assert self.node.layer.sessions == ()
        assert self.node.layer.budget.memory_bytes == 0
        assert self.report.done == []


def start(*messages: Message) -> bytes:
    return b"".join(frame(message) for message in messages)


TO_ACCEPTOR = {
    "chunk before the offer": (b"", chunk(b"x"), "unexpected_message"),
    "answer before the offer": (b"", frame(ACCEPTED), "unexpected_message"),
    "cancel before the offer": (b"", frame(SwapCancelled("x")), "unexpected_message"),
    "two offers": (start(OFFER), frame(OFFER), "unexpected_message"),
    "answer to an answer": (start(OFFER), frame(ACCEPTED), "unexpected_message"),
    "a fetch with a value": (b"", frame(SwapOffer("echo", b"", 1, 0, True)), "invalid"),
    "padding in the offer": (b"", frame(SwapOffer("echo", b"", 1, 1, False)), "padding"),
    "an overlong tag": (b"", frame(SwapOffer("echo", bytes(65), 1, 0, False)), "invalid"),
    "padding": (start(OFFER) + chunk(VALUE), frame(SwapPadding(5)), "padding"),
    "more than announced": (start(OFFER), chunk(VALUE + b"x"), "overrun"),
    "more than announced, later": (start(OFFER) + chunk(VALUE[:9]), chunk(b"9x"), "overrun"),
    "more after the digest": (start(OFFER) + chunk(VALUE) + start(GOOD_DIGEST), chunk(b"x"), "unexpected_message"),
    "digest too early": (start(OFFER) + chunk(VALUE[:9]), frame(GOOD_DIGEST), "short"),
    "two digests": (start(OFFER) + chunk(VALUE) + start(GOOD_DIGEST), frame(GOOD_DIGEST), "unexpected_message"),
    "verified twice": (start(OFFER, SwapVerified()), frame(SwapVerified()), "unexpected_message"),
    "a short digest": (start(OFFER) + chunk(VALUE), frame(SwapDigest(bytes(31))), "invalid"),
    "an empty chunk": (start(OFFER), chunk_header(0), "malformed"),
    "an empty control frame": (b"", HEADER.pack(MAGIC, SwapOffer.TYPE_ID, 0, 0), "malformed"),
    "a huge chunk": (start(OFFER), chunk_header((4 << 20) + 1), "oversize"),
    "a huge control frame": (b"", HEADER.pack(MAGIC, SwapOffer.TYPE_ID, 0, 513), "oversize"),
    "over its own cap": (b"", HEADER.pack(MAGIC, SwapOffer.TYPE_ID, 0, 300) + bytes(300), "oversize"),
    "flags": (b"", HEADER.pack(MAGIC, SwapOffer.TYPE_ID, 1, 9), "bad_flags"),
    "bad magic": (b"", b"GET / HT", "bad_magic"),
    "an unknown type": (b"", HEADER.pack(MAGIC, 0x004F, 0, 1) + b"\x90", "unexpected_message"),
    "a control link's type": (b"", HEADER.pack(MAGIC, 0x0004, 0, 1) + b"\x90", "unexpected_message"),
    "no msgpack": (b"", HEADER.pack(MAGIC, SwapOffer.TYPE_ID, 0, 1) + b"\xc1", "malformed"),
}

TO_INITIATOR = {
    "an offer": (b"", frame(OFFER), "unexpected_message"),
    "a chunk before the answer": (b"", chunk(b"x"), "unexpected_message"),
    "a digest before the answer": (b"", frame(GOOD_DIGEST), "unexpected_message"),
    "padding in the answer": (b"", frame(SwapAnswer(True, "accepted", 1, 1)), "padding"),
    "a reason that is no label": (b"", frame(SwapAnswer(False, "rm -rf \n", 1, 1)), "invalid"),
    "two answers": (start(ACCEPTED), frame(ACCEPTED), "unexpected_message"),
}


@pytest.mark.parametrize("name", TO_ACCEPTOR)
def test_acceptor_cuts_off(name: str) -> None:
    before, bad, reason = TO_ACCEPTOR[name]
    victim = Victim(is_initiator=False)
    victim.feed(before)
    with pytest.raises(ProtocolError) as caught:
        victim.feed(bad)
    assert caught.value.reason == reason
    victim.assert_over()
    assert victim.node.events[0].outcome == f"protocol:{reason}"
    victim.network.run()
    assert victim.report.failed in ([], [f"protocol:{reason}"])
    assert bool(victim.report.failed) == before.startswith(frame(OFFER))


@pytest.mark.parametrize("name", TO_INITIATOR)
def test_initiator_cuts_off(name: str) -> None:
    before, bad, reason = TO_INITIATOR[name]
    victim = Victim(is_initiator=True)
    victim.feed(before)
    with pytest.raises(ProtocolError) as caught:
        victim.feed(bad)
    assert caught.value.reason == reason
    victim.assert_over()
    victim.network.run()
    assert victim.report.outcome == f"protocol:{reason}"


def test_verified_before_our_digest_went_out() -> None:
    victim = Victim(is_initiator=False)
    victim.stream.is_writable = False
    victim.feed(frame(OFFER))
    with pytest.raises(ProtocolError, match="without a digest of ours"):
        victim.feed(frame(SwapVerified()))
    victim.assert_over()


def test_the_peer_only_has_what_was_verified() -> None:
    victim = Victim(is_initiator=False)
    victim.feed(start(OFFER) + chunk(VALUE))
    victim.network.run(until_s=1)
    assert victim.report.done == []
    victim.feed(frame(GOOD_DIGEST))
    victim.network.run(until_s=1)
    assert victim.report.done == [], "our value is not confirmed yet"
    victim.feed(frame(SwapVerified()))
    victim.network.run(until_s=1)
    assert victim.report.done == [VALUE]
    assert victim.stream.state == "closed"
    answer = frame(SwapAnswer(True, "accepted", 3, 0))
    assert victim.stream.sent == answer + chunk(b"abc") + start(SwapDigest(xxh3_128(b"abc").digest()), SwapVerified())


def test_a_wrong_digest_is_told_and_fails() -> None:
    victim = Victim(is_initiator=False)
    victim.feed(start(OFFER) + chunk(VALUE) + frame(SwapDigest(bytes(DIGEST_BYTES))))
    assert victim.stream.sent.endswith(frame(SwapCancelled("digest")))
    victim.assert_over()
    victim.network.run(until_s=1)
    assert victim.report.outcome == "digest"


def test_what_comes_after_the_end_is_ignored_and_the_stream_is_cut_at_last() -> None:
    victim = Victim(is_initiator=False)
    victim.feed(start(OFFER, SwapVerified()) + chunk(VALUE) + frame(GOOD_DIGEST))
    assert victim.stream.state == "closed"
    victim.feed(b"anything" * 10_000)
    victim.session.writable()
    victim.network.run(until_s=CONFIG.close_timeout + 1)
    assert victim.stream.state == "aborted"
    assert victim.report.outcome == "done"


def padded_victim() -> Victim:
    victim = Victim(is_initiator=False)
    victim.network.carries_padding = True
    return victim


def test_padding_out_of_the_blue() -> None:
    victim = padded_victim()
    victim.session.padding_received(5)
    victim.feed(frame(SwapOffer("echo", b"", 10, 5, False)))
    with pytest.raises(ProtocolError, match="before the end of the payload"):
        victim.feed(frame(SwapPadding(5)))
    victim = padded_victim()
    victim.feed(frame(SwapOffer("echo", b"", 0, 5, False)))
    with pytest.raises(ProtocolError, match="overrun"):
        victim.feed(frame(SwapPadding(6)))
    victim = padded_victim()
    victim.feed(start(SwapOffer("echo", b"", 0, 5, False), SwapPadding(5)))
    with pytest.raises(ProtocolError, match="5 bytes of padding are missing"):
        victim.feed(frame(GOOD_DIGEST))
    victim = padded_victim()
    victim.feed(start(SwapOffer("echo", b"", 0, 5, False), SwapPadding(4)))
    victim.session.padding_received(5)
    victim.assert_over()


def test_silence_before_the_offer_ends_the_stream() -> None:
    victim = Victim(is_initiator=False)
    victim.feed(frame(OFFER)[:-1])
    victim.network.run()
    victim.assert_over()
    assert victim.node.events[0].outcome == "offer_timeout"
    assert victim.stream.state == "aborted"
    assert victim.network.now_s == CONFIG.offer_timeout


def test_silent_connections_of_one_peer_keep_no_other_out() -> None:
    network = MemoryNetwork()
    node, silent, honest = network.add(1, SwapConfig()), network.add(2).peer, network.add(3).peer
    for _ in range(2 * SwapConfig().pending_offers_max):
        node.layer.accept(silent).opened(RawStream(silent))
    assert len(node.layer.sessions) == SwapConfig().pending_offers_max // 2 + 1
    for _ in range(SwapConfig().outbound_sessions_max):
        stream = RawStream(honest)
        node.layer.accept(honest).opened(stream)
        assert stream.state == "open"


def test_a_driver_that_overfills_a_buffer_is_our_bug() -> None:
    victim = Victim(is_initiator=False)
    with pytest.raises(Bug, match="9 bytes into a buffer of 8"):
        victim.session.buffer_updated(9)


GOOD_RUN = start(OFFER, SwapVerified()) + chunk(VALUE) + frame(GOOD_DIGEST)


@given(junk=st.binary(max_size=80), keep=st.integers(0, len(GOOD_RUN)), is_initiator=st.booleans())
def test_only_protocol_errors_come_out(junk: bytes, keep: int, is_initiator: bool) -> None:
    victim = Victim(is_initiator=is_initiator)
    prefix = GOOD_RUN if not is_initiator else start(ACCEPTED, SwapVerified()) + chunk(VALUE) + frame(GOOD_DIGEST)
    try:
        victim.feed(prefix[:keep] + junk)
    except ProtocolError:
        victim.assert_over()
    victim.session.closed("reset")
    assert victim.node.layer.sessions == ()
    victim.network.run(until_s=1)
    assert victim.report.done in ([], [VALUE])


@given(pieces=st.permutations([frame(SwapVerified()), chunk(VALUE[:4]), chunk(VALUE[4:]), frame(GOOD_DIGEST)]))
def test_only_the_right_order_is_done(pieces: list[bytes]) -> None:
    victim = Victim(is_initiator=False)
    victim.feed(frame(OFFER))
    try:
        for piece in pieces:
            victim.feed(piece)
    except ProtocolError:
        victim.assert_over()
    victim.network.run(until_s=1)
    data = [piece for piece in pieces if piece != frame(SwapVerified())]
    assert (victim.report.outcome == "done") == (data == [chunk(VALUE[:4]), chunk(VALUE[4:]), frame(GOOD_DIGEST)])


def test_every_pair_of_states_and_messages_is_decided() -> None:
    """Feeding any two control frames in any order either is in the table or is a protocol error; never a crash."""
    messages = [OFFER, ACCEPTED, GOOD_DIGEST, SwapVerified(), SwapCancelled("x"), SwapPadding(1)]
    for is_initiator, first, second in itertools.product((False, True), messages, messages):
        victim = Victim(is_initiator=is_initiator)
        try:
            victim.feed(frame(first) + frame(second))
        except ProtocolError:
            victim.assert_over()
