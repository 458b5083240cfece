"""What a node says through others in the daemon: whose certificates count, and for how long."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import count

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding
from hypothesis import given, settings, strategies as st

from peerd.errors import ConfigError
from peerd.identity import statements as module
from peerd.identity.authority import ClusterAuthority
from peerd.identity.node_identity import PeerIdentity, read_identity
from peerd.identity.roots import Roots
from peerd.identity.statements import Denied, Statements, signed_bytes
from peerd.limits import PROOF_BYTES_MAX, SIGNATURE_BYTES

CLUSTER = "here"
AUTHORITY = ClusterAuthority.create(CLUSTER)
SAID = b"something"


class Node:
    """A node with its key, and what it trusts."""

    def __init__(
        self, authority: ClusterAuthority = AUTHORITY, cluster: str = CLUSTER, lifetime: timedelta = timedelta(days=1)
    ) -> None:
        self.key = Ed25519PrivateKey.generate()
        self.roots = authority.roots
        self.denied = Denied(frozenset(), frozenset())
        self.der = self.certificate(authority, lifetime)
        self.statements = Statements(cluster, self.key, self.der, roots=lambda: self.roots, denied=lambda: self.denied)

    def certificate(
        self, authority: ClusterAuthority, lifetime: timedelta = timedelta(days=1), salt: bytes | None = None
    ) -> bytes:
        pem = authority.issue(self.key.public_key(), lifetime, salt=salt)
        return x509.load_pem_x509_certificate(pem).public_bytes(Encoding.DER)

    @property
    def identity(self) -> PeerIdentity:
        return read_identity(self.der)

    def says(self) -> bytes:
        return self.statements.sign("test", SAID)

    def believes(self, other: Node, proof: bytes) -> bool:
        return self.statements.verify(other.identity.node_id, "test", SAID, proof)


def test_a_denied_node_or_certificate_proves_nothing_from_then_on() -> None:
    one, two = Node(), Node()
    proof = one.says()
    assert two.believes(one, proof)
    two.denied = Denied(frozenset({one.identity.node_id}), frozenset())
    assert not two.believes(one, proof)
    two.denied = Denied(frozenset(), frozenset({one.identity.serial}))
    assert not two.believes(one, proof)
    two.denied = Denied(frozenset(), frozenset())
    assert two.believes(one, proof), "the denial was withdrawn"


def test_the_end_of_a_certificate_is_not_the_end_of_what_was_signed_with_it() -> None:
    one, two = Node(lifetime=timedelta(microseconds=1)), Node()
    assert read_identity(one.der).not_after <= datetime.now(UTC)
    assert two.believes(one, one.says())


def test_a_renewed_certificate_is_of_the_same_signer() -> None:
    one, two = Node(), Node()
    before = one.says()
    one.statements.use(one.certificate(AUTHORITY, salt=one.identity.salt))
    assert one.says() != before
    assert two.believes(one, before) and two.believes(one, one.says())


def test_a_key_needs_no_certificate_and_stays_the_same_in_all_of_a_node() -> None:
    one, stranger, two = Node(), Node(ClusterAuthority.create(CLUSTER)), Node()
    for node in (one, stranger):
        signature, me = node.says()[:64], node.identity.node_id
        key = node.statements.public_key()
        assert two.statements.verify_by_key(me, "test", SAID, signature, key), "membership is not shown"
        two.denied = Denied(frozenset({me}), frozenset())
        assert not two.statements.verify_by_key(me, "test", SAID, signature, key)
        two.denied = Denied(frozenset(), frozenset())
    before = one.statements.public_key()
    one.statements.use(one.certificate(AUTHORITY, salt=one.identity.salt))
    assert one.statements.public_key() == before


def test_a_certificate_of_another_root_proves_nothing() -> None:
    stranger = Node(ClusterAuthority.create(CLUSTER))
    two = Node()
    assert not two.believes(stranger, stranger.says())
    assert stranger.believes(stranger, stranger.says())


def test_a_certificate_for_another_cluster_proves_nothing_even_from_the_same_root() -> None:
    other = ClusterAuthority("there", AUTHORITY.certificate, AUTHORITY._key)
    guest, two = Node(other, CLUSTER), Node()
    assert two.roots.issued(x509.load_der_x509_certificate(guest.der))
    assert not two.believes(guest, guest.says())


def test_two_roots_count_while_the_root_changes_and_then_one() -> None:
    successor = AUTHORITY.successor(timedelta(days=7))
    old, new, reader = Node(), Node(successor), Node()
    said = {node: node.says() for node in (old, new)}
    assert reader.believes(old, said[old]) and not reader.believes(new, said[new]), "it has not heard of the change"
    reader.roots = successor.roots
    assert reader.believes(old, said[old]) and reader.believes(new, said[new])
    reader.roots = Roots(successor.certificate)
    assert reader.believes(new, said[new]) and not reader.believes(old, said[old]), "remembered, and not trusted"


def test_a_root_signs_nothing_as_a_node() -> None:
    two = Node()
    root = AUTHORITY.certificate.public_bytes(Encoding.DER)
    proof = AUTHORITY.sign(signed_bytes(CLUSTER, "test", SAID)) + root
    assert not two.statements.verify(two.identity.node_id, "test", SAID, proof)


def test_a_checked_certificate_is_remembered_and_those_that_strangers_make_up_are_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one, two, three = Node(), Node(), Node()
    checks = count()
    check = module._issued_identity

    def counted(der: bytes, roots: Roots) -> PeerIdentity | None:
        next(checks)
        return check(der, roots)

    monkeypatch.setattr(module, "_issued_identity", counted)
    monkeypatch.setattr(module, "CERTIFICATES_KEPT_MAX", 1)
    for _ in range(5):
        assert two.believes(one, one.says())
    assert next(checks) == 1
    stranger = Node(ClusterAuthority.create(CLUSTER))
    assert not two.believes(stranger, stranger.says())
    assert two.believes(one, one.says())
    assert next(checks) == 3, "the stranger's was looked at, the member's still known"
    assert two.believes(three, three.says()) and two.believes(one, one.says())
    assert next(checks) == 6, "there is room for one"


def test_a_certificate_that_fits_into_no_proof_is_an_error_of_the_configuration() -> None:
    one = Node()
    with pytest.raises(ConfigError, match="at most 1984 are usable"):
        one.statements.use(bytes(PROOF_BYTES_MAX - SIGNATURE_BYTES + 1))
    wordy = ClusterAuthority.create("a" * 63)
    pem = wordy.issue(one.key.public_key())
    one.statements.use(x509.load_pem_x509_certificate(pem).public_bytes(Encoding.DER))
    assert len(one.says()) < PROOF_BYTES_MAX / 2


MEMBER, READER = Node(), Node()


@given(st.binary(max_size=64), st.binary(max_size=PROOF_BYTES_MAX))
@settings(deadline=None)
def test_garbage_is_no_proof_and_raises_nothing(signature: bytes, certificate: bytes) -> None:
    assert not READER.believes(MEMBER, signature + certificate)
    assert not READER.believes(MEMBER, signature.ljust(64, b"\0") + MEMBER.der)
    assert not READER.believes(MEMBER, MEMBER.says()[:64] + certificate)


@given(st.text(max_size=9), st.text(max_size=9), st.binary(max_size=30), st.text(max_size=9), st.text(max_size=9))
def test_no_statement_can_be_read_as_another(cluster: str, purpose: str, said: bytes, other: str, another: str) -> None:
    whole = signed_bytes(cluster, purpose, said)
    assert (signed_bytes(other, another, said) == whole) == ((cluster, purpose) == (other, another))
