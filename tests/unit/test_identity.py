"""Identities: how ids follow from keys, what the authority issues, which certificates are refused and why."""

from __future__ import annotations

import hashlib
import stat
import time
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from peerd.errors import ConfigError, HandshakeRefused
from peerd.identity.authority import (
    CA_LIFETIME,
    CLOCK_SKEW,
    ClusterAuthority,
    create_node_files,
)
from peerd.identity.node_identity import (
    ISSUER_SALT_OID,
    derive_node_id,
    load_certificate,
    load_node_identity,
    load_or_create_private_key,
    load_private_key,
    node_uri,
    public_key_der,
    read_identity,
    verify_peer_certificate,
)
from peerd.ids import NodeId, id_to_bytes
from peerd.system.durable_files import write_new_file

CLUSTER = "test.cluster"


def issue(authority: ClusterAuthority, lifetime: timedelta = timedelta(days=1)) -> x509.Certificate:
    pem = authority.issue(Ed25519PrivateKey.generate().public_key(), lifetime)
    return x509.load_pem_x509_certificate(pem)


def der(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(Encoding.DER)


@pytest.fixture(scope="module")
def authority() -> ClusterAuthority:
    return ClusterAuthority.create(CLUSTER)


def refusal(content: bytes, expected: NodeId | None = None, denied: frozenset[NodeId] = frozenset()) -> str:
    with pytest.raises(HandshakeRefused) as caught:
        verify_peer_certificate(content, cluster=CLUSTER, expected=expected, denied=denied)
    return caught.value.reason


def test_the_id_is_the_hash_of_tag_key_and_salt() -> None:
    expected = hashlib.sha256(b"peerd-id-v1" + b"key" + b"s" * 16).digest()[:16]
    assert id_to_bytes(derive_node_id(b"key", b"s" * 16)) == expected


def test_an_issued_certificate_is_accepted_and_says_who_it_is(authority: ClusterAuthority) -> None:
    key = Ed25519PrivateKey.generate().public_key()
    certificate = x509.load_pem_x509_certificate(authority.issue(key, timedelta(days=1)))
    identity = verify_peer_certificate(der(certificate), cluster=CLUSTER, expected=None, denied=frozenset())
    salt = certificate.extensions.get_extension_for_oid(ISSUER_SALT_OID).value.public_bytes()
    assert identity.node_id == derive_node_id(public_key_der(key), salt)
    assert identity.cluster == CLUSTER
    assert identity.not_after == certificate.not_valid_after_utc
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert [name.value for name in names] == [node_uri(CLUSTER, identity.node_id)]
    certificate.verify_directly_issued_by(authority.certificate)


def test_the_expected_callee_is_accepted(authority: ClusterAuthority) -> None:
    content = der(issue(authority))
    node_id = read_identity(content).node_id
    other = frozenset({NodeId(node_id ^ 1)})
    assert verify_peer_certificate(content, cluster=CLUSTER, expected=node_id, denied=other).node_id == node_id


def test_the_same_key_gets_a_new_id_each_time(authority: ClusterAuthority) -> None:
    key = Ed25519PrivateKey.generate().public_key()
    certificates = [x509.load_pem_x509_certificate(authority.issue(key)) for _ in range(8)]
    assert len({read_identity(der(certificate)).node_id for certificate in certificates}) == 8


def test_validity_allows_for_clock_skew_and_ends_with_the_authority(authority: ClusterAuthority) -> None:
    certificate = issue(authority, lifetime=timedelta(hours=1))
    now = datetime.now(UTC)
    assert abs(certificate.not_valid_before_utc - (now - CLOCK_SKEW)) < timedelta(seconds=10)
    assert abs(certificate.not_valid_after_utc - (now + timedelta(hours=1))) < timedelta(seconds=10)
    longest = issue(authority, lifetime=CA_LIFETIME * 2)
    assert longest.not_valid_after_utc == authority.certificate.not_valid_after_utc


def test_wrong_cluster_callee_and_denied() -> None:
    content = der(issue(ClusterAuthority.create("other")))
    assert refusal(content) == "wrong_cluster"
    content = der(issue(ClusterAuthority.create(CLUSTER)))
    node_id = read_identity(content).node_id
    assert refusal(content, expected=NodeId(node_id ^ 1)) == "wrong_callee"
    assert refusal(content, expected=node_id, denied=frozenset({node_id})) == "denied"


def test_a_denied_serial_number_is_refused(authority: ClusterAuthority) -> None:
    certificate = issue(authority)
    denied = frozenset({certificate.serial_number})
    with pytest.raises(HandshakeRefused, match=f"denied: certificate {certificate.serial_number:040x}"):
        verify_peer_certificate(
            der(certificate), cluster=CLUSTER, expected=None, denied=frozenset(), denied_serials=denied
        )


@pytest.mark.parametrize("content", [b"", b"\x30\x03\x02\x01\x00", b"\x00" * 9000], ids=["empty", "integer", "huge"])
def test_bytes_that_are_no_certificate(content: bytes) -> None:
    assert refusal(content) == "malformed_certificate"


@dataclass(frozen=True)
class Forgery:
    """A certificate of the right authority with something wrong in it; ``None`` leaves an extension out."""

    ca: bool | None = False
    signs_certificates: bool = False
    purposes: tuple[x509.ObjectIdentifier, ...] | None = (
        ExtendedKeyUsageOID.CLIENT_AUTH,
        ExtendedKeyUsageOID.SERVER_AUTH,
    )
    names: tuple[x509.GeneralName, ...] | None = None
    extra_name: bool = False
    salt: bytes | None = b"s" * 16
    hashed_salt: bytes = b"s" * 16
    units: tuple[str, ...] = ()
    elliptic_curve: bool = False

    def der(self) -> bytes:
        key = ec.generate_private_key(ec.SECP256R1()) if self.elliptic_curve else Ed25519PrivateKey.generate()
        public_key = key.public_key()
        spki = b"" if isinstance(public_key, ec.EllipticCurvePublicKey) else public_key_der(public_key)
        uri = x509.UniformResourceIdentifier(node_uri(CLUSTER, derive_node_id(spki, self.hashed_salt)))
        names = (uri,) if self.names is None else self.names
        names += (x509.DNSName("victim.example"),) if self.extra_name else ()
        units = [x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, unit) for unit in self.units]
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "forged"), *units])
        now = datetime.now(UTC)
        builder = x509.CertificateBuilder().subject_name(subject).issuer_name(subject).public_key(public_key)
        builder = builder.serial_number(1).not_valid_before(now).not_valid_after(now + timedelta(hours=1))
        if self.ca is not None:
            builder = builder.add_extension(x509.BasicConstraints(self.ca, None), critical=True)
        usage = [True, False, False, False, False, self.signs_certificates, False, False, False]
        builder = builder.add_extension(x509.KeyUsage(*usage), critical=True)
        if self.purposes is not None:
            builder = builder.add_extension(x509.ExtendedKeyUsage(self.purposes), critical=False)
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        if self.salt is not None:
            builder = builder.add_extension(x509.UnrecognizedExtension(ISSUER_SALT_OID, self.salt), critical=False)
        return builder.sign(key, hashes.SHA256() if self.elliptic_curve else None).public_bytes(Encoding.DER)


SOUND = Forgery()
URI = x509.UniformResourceIdentifier
FORGERIES = {
    "ca": (replace(SOUND, ca=True), "not_leaf"),
    "no basic constraints": (replace(SOUND, ca=None), "not_leaf"),
    "signs certificates": (replace(SOUND, signs_certificates=True), "key_usage"),
    "server only": (replace(SOUND, purposes=(ExtendedKeyUsageOID.SERVER_AUTH,)), "key_usage"),
    "client only": (replace(SOUND, purposes=(ExtendedKeyUsageOID.CLIENT_AUTH,)), "key_usage"),
    "no purposes": (replace(SOUND, purposes=None), "key_usage"),
    "no name": (replace(SOUND, names=()), "uri_san"),
    "two uris": (
        replace(SOUND, names=(URI(node_uri(CLUSTER, NodeId(1))), URI(node_uri(CLUSTER, NodeId(2))))),
        "uri_san",
    ),
    "uri and host name": (replace(SOUND, extra_name=True), "uri_san"),
    "host name": (replace(SOUND, names=(x509.DNSName("peer.example"),)), "uri_san"),
    "other scheme": (replace(SOUND, names=(URI("https://test.cluster/node/" + "0" * 32),)), "uri_san"),
    "trailing newline": (replace(SOUND, names=(URI(node_uri(CLUSTER, NodeId(1)) + "\n"),)), "uri_san"),
    "path": (replace(SOUND, names=(URI(node_uri(CLUSTER, NodeId(1)) + "/x"),)), "uri_san"),
    "stolen id": (replace(SOUND, names=(URI(node_uri(CLUSTER, NodeId(1))),)), "id_mismatch"),
    "another salt": (replace(SOUND, hashed_salt=b"t" * 16), "id_mismatch"),
    "no salt": (replace(SOUND, salt=None), "issuer_salt"),
    "short salt": (replace(SOUND, salt=b"s" * 15), "issuer_salt"),
    "elliptic curve key": (replace(SOUND, elliptic_curve=True), "key_type"),
}


def test_the_forger_can_make_a_sound_certificate() -> None:
    """Otherwise every forgery below might be refused for the forger's own mistake."""
    identity = verify_peer_certificate(SOUND.der(), cluster=CLUSTER, expected=None, denied=frozenset())
    assert identity.salt == SOUND.salt


def test_what_another_version_adds_to_a_subject_keeps_nobody_out(authority: ClusterAuthority) -> None:
    """Versions before 0.1.0 named roles there."""
    other = replace(SOUND, units=("role:member", "of-version-2"))
    identity = verify_peer_certificate(other.der(), cluster=CLUSTER, expected=None, denied=frozenset())
    pem = authority.issue(identity.public_key, timedelta(days=1), salt=identity.salt)
    renewed = read_identity(x509.load_pem_x509_certificate(pem).public_bytes(Encoding.DER))
    assert renewed.node_id == identity.node_id


@pytest.mark.parametrize("name", FORGERIES)
def test_a_forged_certificate_is_refused_with_its_reason(name: str) -> None:
    forgery, reason = FORGERIES[name]
    assert refusal(forgery.der()) == reason


@pytest.mark.filterwarnings("ignore")  # cryptography warns of odd but legal values, such as a negative serial number
def test_any_flipped_bit_is_refused_or_leaves_the_id_alone(authority: ClusterAuthority) -> None:
    """Even without the CA's signature, which protects everything else too."""
    content = der(issue(authority))
    genuine = read_identity(content)
    for bit in range(len(content) * 8):
        damaged = bytearray(content)
        damaged[bit // 8] ^= 1 << bit % 8
        try:
            identity = read_identity(bytes(damaged))
        except HandshakeRefused:
            continue
        assert identity.node_id == genuine.node_id


def test_authority_survives_saving_and_is_never_overwritten(tmp_path: Path, authority: ClusterAuthority) -> None:
    directory = tmp_path / "ca"
    authority.save(directory)
    assert stat.S_IMODE((directory / "ca.key").stat().st_mode) == 0o600
    loaded = ClusterAuthority.load(directory)
    assert loaded.cluster == CLUSTER
    issue(loaded).verify_directly_issued_by(authority.certificate)
    with pytest.raises(ConfigError, match="already"):
        ClusterAuthority.create("another").save(directory)
    assert ClusterAuthority.load(directory).certificate == authority.certificate


def test_a_mixed_up_authority_is_refused(tmp_path: Path, authority: ClusterAuthority) -> None:
    authority.save(tmp_path)
    (tmp_path / "ca.crt").write_bytes(ClusterAuthority.create(CLUSTER).certificate_pem())
    with pytest.raises(ConfigError, match="not of the key"):
        ClusterAuthority.load(tmp_path)


@pytest.mark.parametrize("name", ["", "Upper", "-x", "a b", "a/b", "x" * 64, "ok\n"])
def test_bad_cluster_names(name: str) -> None:
    with pytest.raises(ConfigError, match="cluster name"):
        ClusterAuthority.create(name)


def load(directory: Path, cluster: str = CLUSTER) -> NodeId:
    paths = {
        f"{kind}_file": directory / name for kind, name in (("ca", "ca.crt"), ("cert", "node.crt"), ("key", "node.key"))
    }
    return load_node_identity(cluster=cluster, **paths).node_id


def test_node_files_load_as_the_identity_that_was_issued(tmp_path: Path, authority: ClusterAuthority) -> None:
    node_id = create_node_files(authority, tmp_path)
    assert load(tmp_path) == node_id
    assert stat.S_IMODE((tmp_path / "node.key").stat().st_mode) == 0o600
    assert read_identity(der(load_certificate(tmp_path / "node.crt"))).cluster == CLUSTER
    with pytest.raises(ConfigError, match="already"):
        create_node_files(authority, tmp_path)
    assert load(tmp_path) == node_id


def test_own_files_that_do_not_fit_together_name_the_file(tmp_path: Path, authority: ClusterAuthority) -> None:
    create_node_files(authority, tmp_path / "a")
    create_node_files(authority, tmp_path / "b")
    with pytest.raises(ConfigError, match="not a node certificate of this cluster: wrong_cluster"):
        load(tmp_path / "a", cluster="other")
    (tmp_path / "a" / "ca.crt").write_bytes(ClusterAuthority.create(CLUSTER).certificate_pem())
    with pytest.raises(ConfigError, match="not signed by"):
        load(tmp_path / "a")
    (tmp_path / "b" / "node.crt").write_bytes((tmp_path / "a" / "node.crt").read_bytes())
    with pytest.raises(ConfigError, match="not of the key") as caught:
        load(tmp_path / "b")
    assert caught.value.file == str(tmp_path / "b" / "node.crt")
    (tmp_path / "b" / "node.crt").write_text("garbage")
    with pytest.raises(ConfigError, match="not a PEM certificate"):
        load(tmp_path / "b")


def test_a_key_is_made_once_and_kept(tmp_path: Path) -> None:
    path = tmp_path / "node.key"
    first = load_or_create_private_key(path)
    assert load_or_create_private_key(path).private_bytes_raw() == first.private_bytes_raw()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize("damage", ["empty", "truncated", "garbage", "flipped"])
def test_a_damaged_key_is_refused_and_never_replaced(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "node.key"
    load_or_create_private_key(path)
    content = path.read_bytes()
    damaged = {
        "empty": b"",
        "truncated": content[: len(content) // 2],
        "garbage": b"\xff\x00" * 60,
        "flipped": content.replace(b"MC4CAQAw", b"MC4CAQBw"),
    }[damage]
    assert damaged != content
    path.write_bytes(damaged)
    with pytest.raises(ConfigError, match="damaged private key"):
        load_or_create_private_key(path)
    assert path.read_bytes() == damaged


@pytest.mark.parametrize("mode", [0o604, 0o640, 0o660, 0o666])
def test_a_key_that_others_can_read_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "node.key"
    load_or_create_private_key(path)
    path.chmod(mode)
    with pytest.raises(ConfigError, match="chmod 600"):
        load_private_key(path)


def test_a_missing_key_and_a_key_of_another_kind(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read the private key"):
        load_private_key(tmp_path / "missing.key")
    pem = ec.generate_private_key(ec.SECP256R1()).private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    write_new_file(tmp_path / "curve.key", pem, 0o600)
    with pytest.raises(ConfigError, match="expected an Ed25519"):
        load_private_key(tmp_path / "curve.key")


def test_sixty_four_identities_take_well_under_a_second(tmp_path: Path, authority: ClusterAuthority) -> None:
    """In processor time, so that a busy machine or a slow disk does not decide it."""
    started = time.process_time()
    ids = {create_node_files(authority, tmp_path / str(index)) for index in range(64)}
    assert len(ids) == 64
    assert time.process_time() - started < 0.8
