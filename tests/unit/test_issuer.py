"""The issuer and the newcomer without a network: tokens, renewals, rotation, crashes in between, an offline CA."""

from __future__ import annotations

import random
from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding

from peerd.cli.join import _warn_of_clock
from peerd.errors import ConfigError, Unavailable
from peerd.identity.authority import CLOCK_SKEW, ClusterAuthority, make_request, read_request
from peerd.identity.issuer import Issuer, OverlapUnderWay, rotate_authority
from peerd.identity.joining import JoinFailed, NotOurCluster, admitted, write_identity
from peerd.identity.ledger import TrustLedger
from peerd.identity.node_identity import derive_node_id, load_node_identity, load_private_key, read_identity
from peerd.identity.offline import accept_answer, read_answer, sign_request, write_request
from peerd.identity.roots import Roots
from peerd.identity.tokens import TokenBook, TokenEntry, TokenRefused
from peerd.wire.enrolment import EnrolmentRequest, JoinGranted

CLUSTER = "test"


class Desk:
    """An issuer whose disk can fail."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.saved: list[list[TokenEntry]] = []
        self.is_disk_full = False
        authority = ClusterAuthority.create(CLUSTER)
        authority.save(folder)
        self.now = authority.certificate.not_valid_before_utc.timestamp() + 600
        self.issuer = self.start()

    def start(self) -> Issuer:
        """Make an issuer as the daemon does at its start."""
        book = TokenBook(self.saved[-1] if self.saved else ())
        authority = ClusterAuthority.load(self.folder)
        day = timedelta(days=1)
        return Issuer(authority, self.folder, day, 30 * day, book, self.save, lambda: self.now)

    def save(self, tokens: Iterable[TokenEntry]) -> None:
        if self.is_disk_full:
            raise Unavailable("disk full")
        self.saved.append(list(tokens))

    def request(self, key: Ed25519PrivateKey, uses: int = 1) -> EnrolmentRequest:
        token, _ = self.issuer.create_token(3600, uses)
        return EnrolmentRequest(token.secret, make_request(key).public_bytes(Encoding.DER))


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path / "ca")


def test_a_token_becomes_a_certificate_of_the_newcomers_key(desk: Desk) -> None:
    key = Ed25519PrivateKey.generate()
    issued, token = desk.issuer.enrol(desk.request(key))
    assert issued.identity == read_identity(issued.chain[0])
    assert issued.identity.public_key == key.public_key()
    assert token.uses == 1
    leaf = x509.load_der_x509_certificate(issued.chain[0])
    assert desk.issuer.authority.roots.issued(leaf)


def test_uses_are_on_disk_before_the_certificate_exists(desk: Desk) -> None:
    request = desk.request(Ed25519PrivateKey.generate())
    desk.issuer.enrol(request)
    with pytest.raises(TokenRefused, match="1 of 1"):
        desk.start().enrol(request)


def test_a_full_disk_issues_nothing_and_makes_no_token(desk: Desk) -> None:
    request = desk.request(Ed25519PrivateKey.generate())
    desk.is_disk_full = True
    with pytest.raises(Unavailable):
        desk.issuer.enrol(request)
    with pytest.raises(Unavailable):
        desk.issuer.create_token(60, 1)
    assert desk.issuer.book.entries()[0].uses == 0
    assert len(desk.issuer.book.entries()) == 1
    assert len(desk.start().book.entries()) == 1


def test_a_bad_request_costs_no_use(desk: Desk) -> None:
    token, _ = desk.issuer.create_token(60, 1)
    good = make_request(Ed25519PrivateKey.generate()).public_bytes(Encoding.DER)
    forged = good[:-1] + bytes([good[-1] ^ 1])
    for bad in (b"", b"\x30\x00", forged):
        with pytest.raises(TokenRefused) as caught:
            desk.issuer.enrol(EnrolmentRequest(token.secret, bad))
        assert caught.value.reason == "bad_request"
    assert desk.issuer.book.entries()[0].uses == 0
    assert read_request(good) is not None


def test_a_renewal_keeps_key_salt_and_id(desk: Desk) -> None:
    before = desk.issuer.enrol(desk.request(Ed25519PrivateKey.generate()))[0].identity
    after = desk.issuer.renew(before).identity
    assert after.serial != before.serial
    assert (after.node_id, after.salt, after.public_key) == (before.node_id, before.salt, before.public_key)


def returning(desk: Desk, key: Ed25519PrivateKey, certificate: bytes, asker: Ed25519PrivateKey | None = None) -> str:
    """ "back", or the reason why not."""
    request = make_request(asker or key).public_bytes(Encoding.DER)
    try:
        desk.issuer.readmit(EnrolmentRequest(b"", request, certificate))
    except TokenRefused as error:
        return error.reason
    return "back"


def test_a_certificate_that_ended_is_good_for_a_renewal_for_a_while(desk: Desk) -> None:
    key = Ed25519PrivateKey.generate()
    issued, _ = desk.issuer.enrol(desk.request(key))
    leaf = issued.chain[0]
    assert returning(desk, key, leaf) == "back"
    assert returning(desk, key, leaf, Ed25519PrivateKey.generate()) == "bad_request"
    assert returning(desk, key, b"") == "bad_request"
    foreign = Desk(desk.folder.parent / "other")
    other, _ = foreign.issuer.enrol(foreign.request(key))
    assert returning(desk, key, other.chain[0]) == "bad_request"
    desk.now = issued.identity.not_after.timestamp() + 29 * 86_400
    assert returning(desk, key, leaf) == "back"
    desk.now += 2 * 86_400
    assert returning(desk, key, leaf) == "too_late"


def test_after_a_rotation_the_old_root_lets_nobody_back(desk: Desk) -> None:
    key = Ed25519PrivateKey.generate()
    leaf = desk.issuer.enrol(desk.request(key))[0].chain[0]
    desk.issuer.rotate(timedelta(days=1))
    assert returning(desk, key, leaf) == "back"
    desk.now += 2 * 86_400
    assert returning(desk, key, leaf) == "bad_request"


def test_the_issuers_salt_spreads_the_ids_of_one_key_over_the_ring() -> None:
    """Whoever makes a thousand keys, or asks a thousand times, lands anywhere (Kolmogorov-Smirnov, p > 0.001)."""
    salts = random.Random(1)
    count = 10_000
    places = sorted(derive_node_id(b"one key", salts.randbytes(16)) / 2**128 for _ in range(count))
    distance = max(max((rank + 1) / count - place, place - rank / count) for rank, place in enumerate(places))
    assert distance < 1.95 / count**0.5


# Rotation


def test_rotation_issues_under_the_new_root_with_a_way_to_the_old_one(desk: Desk) -> None:
    old = desk.issuer.authority
    signed = desk.issuer.rotate(timedelta(days=1))
    ledger = TrustLedger(CLUSTER, old.roots)
    assert ledger.merge([signed], desk.now) == [signed]
    assert ledger.roots == desk.issuer.authority.roots
    issued, _ = desk.issuer.enrol(desk.request(Ed25519PrivateKey.generate()))
    assert len(issued.chain) == 2
    assert ledger.roots.issued(x509.load_der_x509_certificate(issued.chain[0]))
    desk.now += 2 * 86_400
    assert len(desk.issuer.renew(issued.identity).chain) == 1


def test_one_rotation_at_a_time_and_within_bounds(desk: Desk) -> None:
    for overlap in (timedelta(0), timedelta(days=1000)):
        with pytest.raises(ValueError, match="overlap"):
            desk.issuer.rotate(overlap)
    desk.issuer.rotate(timedelta(days=1))
    with pytest.raises(OverlapUnderWay):
        desk.issuer.rotate(timedelta(days=1))
    with pytest.raises(OverlapUnderWay):
        desk.start().rotate(timedelta(days=1))
    desk.now += 86_400 + 1
    desk.issuer.rotate(timedelta(days=1))


def test_a_crash_before_the_new_key_is_there_leaves_the_old_ca(desk: Desk) -> None:
    old_key = (desk.folder / "ca.key").read_bytes()
    before = desk.issuer.authority.certificate
    desk.issuer.rotate(timedelta(days=1))
    (desk.folder / "ca.key").write_bytes(old_key)
    again = desk.start()
    assert again.authority.certificate == before
    assert again.last_change() is None
    again.rotate(timedelta(days=1))


def test_a_crash_before_anybody_was_told_is_made_up_for(desk: Desk) -> None:
    signed = desk.issuer.rotate(timedelta(days=1))
    assert desk.start().last_change() == signed
    (desk.folder / "ca.change").write_text("damaged")
    with pytest.raises(ConfigError, match=r"ca\.change"):
        desk.start().last_change()
    desk.now += 2 * 86_400
    assert desk.start().last_change() is None


# The newcomer


def granted(desk: Desk, key: Ed25519PrivateKey) -> JoinGranted:
    issued, _ = desk.issuer.enrol(desk.request(key))
    roots = tuple(root.public_bytes(Encoding.DER) for root in desk.issuer.authority.roots.trusted)
    return JoinGranted(issued.chain, roots, ())


@pytest.mark.parametrize("is_rotated", [False, True])
def test_what_an_issuer_grants_is_what_a_daemon_starts_with(desk: Desk, tmp_path: Path, is_rotated: bool) -> None:
    if is_rotated:
        desk.issuer.rotate(timedelta(days=1))
    key = Ed25519PrivateKey.generate()
    granted_identity = admitted(key, granted(desk, key), CLUSTER, [desk.issuer.authority.fingerprint])
    folder = tmp_path / "node"
    write_identity(folder, granted_identity)
    files = {"ca_file": folder / "ca.crt", "cert_file": folder / "node.crt", "key_file": folder / "node.key"}
    assert load_node_identity(cluster=CLUSTER, **files) == granted_identity.identity
    assert (folder / "node.key").stat().st_mode & 0o777 == 0o600
    assert Roots.load(folder / "ca.crt") == desk.issuer.authority.roots


def test_a_newcomer_learns_that_its_clock_is_off(desk: Desk, capsys: pytest.CaptureFixture[str]) -> None:
    key = Ed25519PrivateKey.generate()
    granted_identity = admitted(key, granted(desk, key), CLUSTER, [desk.issuer.authority.fingerprint])
    issued_at = (granted_identity.chain[0].not_valid_before_utc + CLOCK_SKEW).timestamp()
    _warn_of_clock(granted_identity.clock_ahead_s(issued_at + 60))
    assert capsys.readouterr().err == ""
    _warn_of_clock(granted_identity.clock_ahead_s(issued_at - 3600))
    assert "clock is 60 min behind the issuer's" in capsys.readouterr().err


def test_a_request_to_join_does_not_show_its_secret() -> None:
    secret = bytes(range(16))
    assert repr(secret)[2:-1] not in repr(EnrolmentRequest(secret, b""))


def test_a_ca_that_has_ended_says_so(desk: Desk) -> None:
    ends = desk.issuer.authority.certificate.not_valid_after_utc.timestamp()
    assert not desk.issuer.has_ended(ends - 1)
    assert desk.issuer.has_ended(ends)


def test_a_newcomer_takes_only_what_is_its_own(desk: Desk) -> None:
    key, pinned = Ed25519PrivateKey.generate(), [desk.issuer.authority.fingerprint]
    good = granted(desk, key)
    other = Desk(desk.folder.parent / "other")
    for bad in (
        granted(desk, Ed25519PrivateKey.generate()),
        JoinGranted((), good.roots, ()),
        JoinGranted(good.chain, (), ()),
        JoinGranted(good.chain, granted(other, key).roots, ()),
        JoinGranted((b"x",), good.roots, ()),
    ):
        with pytest.raises(JoinFailed):
            admitted(key, bad, CLUSTER, pinned)
    with pytest.raises(JoinFailed, match="wrong_cluster"):
        admitted(key, good, "other", pinned)
    with pytest.raises(NotOurCluster):
        admitted(key, good, CLUSTER, [bytes(16)])


# An offline CA


def signed_offline(desk: Desk, node: Path) -> str:
    request = node.parent / "request"
    request.write_text(write_request(node))
    return sign_request(desk.folder, request, timedelta(days=90))[0]


def test_a_node_joins_and_renews_by_files_and_keeps_its_id(desk: Desk, tmp_path: Path) -> None:
    node = tmp_path / "node"
    first = read_answer(signed_offline(desk, node), "answer")
    key_pem = (node / "node.key").read_bytes()
    key = load_private_key(node / "node.key")
    granted_identity = accept_answer(key, first, "answer")
    write_identity(node, granted_identity)
    rotate_authority(ClusterAuthority.load(desk.folder), desk.folder, timedelta(days=1), desk.now)
    second = accept_answer(key, read_answer(signed_offline(desk, node), "answer"), "answer")
    assert second.identity.node_id == granted_identity.identity.node_id
    assert second.identity.serial != granted_identity.identity.serial
    assert second.roots == ClusterAuthority.load(desk.folder).roots
    assert (node / "node.key").read_bytes() == key_pem


def test_an_offline_ca_refuses_what_is_not_right(desk: Desk, tmp_path: Path) -> None:
    node = tmp_path / "node"
    other = Desk(tmp_path / "other")
    request = tmp_path / "request"
    for content in ("", "garbage", other.issuer.authority.certificate_pem().decode()):
        request.write_text(content)
        with pytest.raises(ConfigError, match="request"):
            sign_request(desk.folder, request, timedelta(days=1))
    foreign = other.issuer.authority.issue(Ed25519PrivateKey.generate().public_key())
    request.write_text(write_request(node) + foreign.decode())
    with pytest.raises(ConfigError, match="another"):
        sign_request(desk.folder, request, timedelta(days=1))
    with pytest.raises(ConfigError, match="PEM"):
        read_answer("", "answer")
    with pytest.raises(ConfigError, match="peerd ca sign"):
        read_answer(desk.issuer.authority.certificate_pem().decode(), "answer")
    answer = read_answer(signed_offline(desk, node), "answer")
    with pytest.raises(ConfigError, match="another key"):
        accept_answer(Ed25519PrivateKey.generate(), answer, "answer")
