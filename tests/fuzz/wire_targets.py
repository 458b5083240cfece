"""Decoders of what other nodes send: frames, the handshake, every message, and what messages carry."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from random import Random

from cryptography.hazmat.primitives.serialization import Encoding

from peerd.errors import HandshakeRefused, PeerMisbehaved, ProtocolError
from peerd.identity.authority import ClusterAuthority
from peerd.identity.ledger import TrustLedger
from peerd.ids import NodeId
from peerd.messages import Message, PeerRef, decode_body, encode_body
from peerd.wire.codec import decode
from peerd.wire.frames import FLAG_REPLY, FLAG_REQUEST, Frame, FrameDecoder, frame_bytes
from peerd.wire.handshake import Handshake, Hello, HelloAck, HelloRefused, LocalNode, Purpose
from peerd.wire.trust import Denial, IssuerNotice, RootChange, SignedNotice
from tests.fuzz import mutate
from tests.fuzz.instances import encoded_instance
from tests.fuzz.target import Target
from tests.support.golden import all_messages

CLUSTER = "fuzz"
OWN = PeerRef(NodeId(1 << 100), "127.0.0.1", 7420)
NOW = 2_000_000_000.0


def wire_targets() -> Iterator[Target]:
    """Every target of this module."""
    for kind in all_messages():
        yield Target(f"message {kind.__name__}", _body_of(kind), _decodes(kind), (ProtocolError,))
    yield Target("frames", _frames, _read_frames, (ProtocolError,), weight=8)
    yield Target("handshake", _first_frame, _shake_hands, (ProtocolError, HandshakeRefused), weight=8)
    yield _ledger_target()


def _body_of(kind: type[Message]) -> Callable[[Random], bytes]:
    return lambda rng: mutate.packed(rng, encoded_instance(rng, kind))


def _decodes(kind: type[Message]) -> Callable[[bytes], None]:
    def run(body: bytes) -> None:
        message = decode_body(kind, body)
        again = decode_body(kind, encode_body(message))
        assert again == message, f"{message!r:.200} came back as {again!r:.200}"

    return run


def _frames(rng: Random) -> list[bytes]:
    """A stream of a few frames, damaged at most in one, in chunks."""
    kinds = _all_kinds()
    content = bytearray()
    for _ in range(rng.randrange(1, 4)):
        kind = rng.choice(kinds)
        flags = rng.choice((0, 0, FLAG_REQUEST, FLAG_REPLY))
        body = (rng.randbytes(4) if flags else b"") + encoded_instance(rng, kind)
        content += frame_bytes((kind.TYPE_ID, flags, body))
    stream = mutate.damaged(rng, bytes(content)) if rng.random() < 0.8 else bytes(content)
    cuts = sorted(rng.randrange(len(stream) + 1) for _ in range(rng.randrange(4)))
    return [stream[start:end] for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True)]


@functools.cache
def _all_kinds() -> tuple[type[Message], ...]:
    return tuple(all_messages())


def _read_frames(chunks: list[bytes]) -> None:
    decoder = FrameDecoder()
    for chunk in chunks:
        for frame in decoder.feed(chunk):
            decode(frame)


def _first_frame(rng: Random) -> tuple[bool, Frame]:
    kinds: list[type[Message]] = [Hello, HelloAck, HelloRefused, Hello, HelloAck, *_all_kinds()[:8]]
    kind = rng.choice(kinds)
    if kind is Hello and rng.random() < 0.7:
        peer = PeerRef(NodeId(2 << 100), "10.0.0.2", 7420)
        valid = encode_body(Hello(1, 1, 0, CLUSTER, peer, 1, 0))
    else:
        valid = encoded_instance(rng, kind)
    return rng.random() < 0.5, (kind.TYPE_ID, 0, mutate.packed(rng, valid))


def _shake_hands(case: tuple[bool, Frame]) -> None:
    has_certificate, frame = case
    certified = NodeId(2 << 100) if has_certificate else None
    Handshake(LocalNode(OWN, CLUSTER, 1), certified_id=certified, purpose=Purpose.CONTROL).receive(frame)


def _ledger_target() -> Target:
    """Notices that the CA signed as they stand, so that what is wrong in them comes to be read."""
    authority = ClusterAuthority.create(CLUSTER)

    def make(rng: Random) -> list[SignedNotice]:
        notices = []
        for _ in range(rng.randrange(1, 3)):
            kind = rng.choice((Denial, IssuerNotice, RootChange))
            body = _notice(rng, kind, authority)
            body = mutate.packed(rng, body) if rng.random() < 0.9 else body
            type_id = kind.TYPE_ID if rng.random() < 0.95 else rng.randrange(1 << 16)
            unsigned = SignedNotice(type_id, body, authority.fingerprint, bytes(64))
            signature = authority.sign(unsigned.signed_bytes()) if rng.random() < 0.9 else rng.randbytes(64)
            notices.append(SignedNotice(type_id, body, authority.fingerprint, signature))
        return notices

    def run(notices: list[SignedNotice]) -> None:
        ledger = TrustLedger(CLUSTER, authority.roots)
        ledger.merge(notices, NOW)
        ledger.denied_ids(), ledger.denied_serials(), ledger.issuers(NOW), ledger.digest(), ledger.expire(NOW)

    return Target("notices of the CA", make, run, (PeerMisbehaved,), weight=2)


def _notice(rng: Random, kind: type[Denial | IssuerNotice | RootChange], authority: ClusterAuthority) -> bytes:
    if kind is Denial:
        subject = rng.choice((f"node:{rng.getrandbits(128):032x}", f"serial:{rng.getrandbits(159):040x}"))
        return encode_body(Denial(CLUSTER, rng.getrandbits(60), subject, rng.random() < 0.3, "stolen"))
    if kind is IssuerNotice:
        node = PeerRef(NodeId(rng.getrandbits(128)), "10.0.0.1", 1 + rng.randrange(65535))
        return encode_body(IssuerNotice(CLUSTER, int(NOW * 1000), node))
    root = authority.certificate.public_bytes(Encoding.DER)
    return encode_body(RootChange(CLUSTER, rng.getrandbits(60), mutate.der(rng, root), mutate.der(rng, root)))
