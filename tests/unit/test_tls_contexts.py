"""TLS contexts, handshaking over memory buffers: who gets through OpenSSL, and what it negotiates."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from peerd.errors import ConfigError, HandshakeRefused
from peerd.identity.authority import ClusterAuthority, create_node_files
from peerd.identity.node_identity import private_key_pem, read_identity, verify_peer_certificate
from peerd.identity.tls import (
    client_context,
    enrolment_server_context,
    peer_certificate,
    pinned_client_context,
    reload_certificate,
    server_context,
)
from peerd.ids import NodeId

CLUSTER = "tls.test"
FLIGHTS_MAX = 10


@dataclass
class Side:
    """One end of a connection: the TLS object and the buffers under it."""

    tls: ssl.SSLObject
    incoming: ssl.MemoryBIO
    outgoing: ssl.MemoryBIO
    finished: bool = False

    def step(self, action: Callable[[], object]) -> bool:
        """Run a TLS call that may need more input; whether it finished."""
        try:
            action()
        except ssl.SSLWantReadError:
            return False
        return True


def side(context: ssl.SSLContext, *, server: bool) -> Side:
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    return Side(context.wrap_bio(incoming, outgoing, server_side=server), incoming, outgoing)


def handshake(client: Side, server: Side) -> None:
    """Carry bytes both ways until both sides are done. Raises ``ssl.SSLError`` of the side that refuses."""
    for _ in range(FLIGHTS_MAX):
        for this, other in ((client, server), (server, client)):
            if not this.finished:
                this.finished = this.step(this.tls.do_handshake)
            other.incoming.write(this.outgoing.read())
        if client.finished and server.finished:
            return
    raise AssertionError("the handshake did not end")


def files(directory: Path) -> dict[str, Path]:
    return {
        "ca_file": directory / "ca.crt",
        "cert_file": directory / "node.crt",
        "key_file": directory / "node.key",
    }


@dataclass(frozen=True)
class Node:
    directory: Path
    node_id: NodeId

    def client(self) -> Side:
        return side(client_context(**files(self.directory)), server=False)

    def server(self) -> Side:
        return side(server_context(**files(self.directory)), server=True)


@pytest.fixture(scope="module")
def authority() -> ClusterAuthority:
    return ClusterAuthority.create(CLUSTER)


@pytest.fixture(scope="module")
def nodes(authority: ClusterAuthority, tmp_path_factory: pytest.TempPathFactory) -> tuple[Node, Node]:
    first, second = tmp_path_factory.mktemp("first"), tmp_path_factory.mktemp("second")
    return Node(first, create_node_files(authority, first)), Node(second, create_node_files(authority, second))


def leaf(
    authority: ClusterAuthority,
    *,
    starts: timedelta = timedelta(minutes=-5),
    ends: timedelta = timedelta(hours=1),
    purposes: tuple[x509.ObjectIdentifier, ...] = (ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH),
) -> tuple[bytes, bytes]:
    """Certificate and key in PEM as the authority would never issue them."""
    key = Ed25519PrivateKey.generate()
    now = datetime.now(UTC)
    root = authority.certificate.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    certificate = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "odd")]))
        .issuer_name(authority.certificate.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now + starts)
        .not_valid_after(now + ends)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
        .add_extension(
            x509.SubjectAlternativeName([x509.UniformResourceIdentifier("peerd://x/node/y")]), critical=False
        )
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(root), critical=False)
        .sign(authority._key, None)
    )
    return certificate.public_bytes(Encoding.PEM), private_key_pem(key)


def write_node(directory: Path, authority: ClusterAuthority, pems: tuple[bytes, bytes]) -> Path:
    directory.mkdir(parents=True)
    (directory / "ca.crt").write_bytes(authority.certificate_pem())
    (directory / "node.crt").write_bytes(pems[0])
    (directory / "node.key").write_bytes(pems[1])
    return directory


def test_two_nodes_of_a_cluster_meet_and_know_each_other(nodes: tuple[Node, Node]) -> None:
    client, server = nodes[0].client(), nodes[1].server()
    handshake(client, server)
    assert client.tls.version() == server.tls.version() == "TLSv1.3"
    seen_by_client = verify_peer_certificate(
        peer_certificate(client.tls), cluster=CLUSTER, expected=nodes[1].node_id, denied=frozenset()
    )
    seen_by_server = read_identity(peer_certificate(server.tls))
    assert (seen_by_client.node_id, seen_by_server.node_id) == (nodes[1].node_id, nodes[0].node_id)


def test_data_flows_and_no_session_ticket_is_sent(nodes: tuple[Node, Node]) -> None:
    client, server = nodes[0].client(), nodes[1].server()
    handshake(client, server)
    assert server.outgoing.pending == 0
    client.tls.write(b"hello")
    server.incoming.write(client.outgoing.read())
    assert server.tls.read() == b"hello"
    server.tls.write(b"welcome")
    client.incoming.write(server.outgoing.read())
    assert client.tls.read() == b"welcome"
    session = client.tls.session
    assert session is None or not session.has_ticket


def test_a_valid_member_at_another_address_is_the_wrong_callee(nodes: tuple[Node, Node]) -> None:
    client, server = nodes[0].client(), nodes[1].server()
    handshake(client, server)
    with pytest.raises(HandshakeRefused) as caught:
        verify_peer_certificate(
            peer_certificate(client.tls), cluster=CLUSTER, expected=nodes[0].node_id, denied=frozenset()
        )
    assert caught.value.reason == "wrong_callee"


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2])
def test_older_tls_is_refused(nodes: tuple[Node, Node], version: ssl.TLSVersion) -> None:
    context = client_context(**files(nodes[0].directory))
    context.minimum_version = context.maximum_version = version
    with pytest.raises(ssl.SSLError, match=r"(?i)protocol"):
        handshake(side(context, server=False), nodes[1].server())


def test_a_client_without_a_certificate_is_refused(nodes: tuple[Node, Node]) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.load_verify_locations(nodes[0].directory / "ca.crt")
    with pytest.raises(ssl.SSLError, match="PEER_DID_NOT_RETURN_A_CERTIFICATE"):
        handshake(side(context, server=False), nodes[1].server())


@pytest.mark.parametrize("stranger_dials", [True, False])
def test_another_authority_is_refused_on_both_sides(
    nodes: tuple[Node, Node], tmp_path: Path, authority: ClusterAuthority, stranger_dials: bool
) -> None:
    """The other node has the same cluster name and trusts our CA, so only its own certificate is wrong."""
    stranger = Node(tmp_path, create_node_files(ClusterAuthority.create(CLUSTER), tmp_path))
    (tmp_path / "ca.crt").write_bytes(authority.certificate_pem())
    client, server = (
        (stranger.client(), nodes[0].server()) if stranger_dials else (nodes[0].client(), stranger.server())
    )
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(client, server)


@pytest.mark.parametrize("stranger_dials", [True, False])
def test_a_self_signed_node_is_refused_on_both_sides(
    nodes: tuple[Node, Node], tmp_path: Path, authority: ClusterAuthority, stranger_dials: bool
) -> None:
    """The node has made a root of its own under the cluster's name, and sends it along as an intermediate."""
    own = ClusterAuthority.create(CLUSTER)
    pem, key_pem = leaf(own)
    stranger = Node(write_node(tmp_path / "odd", authority, (pem + own.certificate_pem(), key_pem)), NodeId(0))
    client, server = (
        (stranger.client(), nodes[0].server()) if stranger_dials else (nodes[0].client(), stranger.server())
    )
    with pytest.raises(ssl.SSLCertVerificationError, match="self-signed"):
        handshake(client, server)


HOUR = timedelta(hours=1)
VALIDITIES = {"expired": (-2 * HOUR, -HOUR), "not yet valid": (HOUR, 2 * HOUR)}


@pytest.mark.parametrize("odd_dials", [True, False])
@pytest.mark.parametrize("problem", VALIDITIES)
def test_validity_is_checked_on_both_sides(
    nodes: tuple[Node, Node], tmp_path: Path, authority: ClusterAuthority, problem: str, odd_dials: bool
) -> None:
    starts, ends = VALIDITIES[problem]
    odd = Node(write_node(tmp_path / "odd", authority, leaf(authority, starts=starts, ends=ends)), NodeId(0))
    client, server = (odd.client(), nodes[0].server()) if odd_dials else (nodes[0].client(), odd.server())
    with pytest.raises(ssl.SSLCertVerificationError, match=problem):
        handshake(client, server)


@pytest.mark.parametrize("odd_dials", [True, False])
def test_a_certificate_for_the_other_direction_only_is_refused(
    nodes: tuple[Node, Node], tmp_path: Path, authority: ClusterAuthority, odd_dials: bool
) -> None:
    purpose = ExtendedKeyUsageOID.SERVER_AUTH if odd_dials else ExtendedKeyUsageOID.CLIENT_AUTH
    odd = Node(write_node(tmp_path / "odd", authority, leaf(authority, purposes=(purpose,))), NodeId(0))
    client, server = (odd.client(), nodes[0].server()) if odd_dials else (nodes[0].client(), odd.server())
    with pytest.raises(ssl.SSLCertVerificationError, match=r"(?i)purpose"):
        handshake(client, server)


def test_a_leaf_cannot_issue(nodes: tuple[Node, Node], tmp_path: Path, authority: ClusterAuthority) -> None:
    """A member that signs a certificate for another key gets nowhere: the root's path length is 0."""
    create_node_files(authority, tmp_path / "member")
    member = x509.load_pem_x509_certificate((tmp_path / "member" / "node.crt").read_bytes())
    key = ClusterAuthority.create(CLUSTER)._key
    rogue = ClusterAuthority(CLUSTER, member, key)
    pem, key_pem = leaf(rogue)
    odd = Node(
        write_node(tmp_path / "odd", authority, (pem + (tmp_path / "member" / "node.crt").read_bytes(), key_pem)),
        NodeId(0),
    )
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(odd.client(), nodes[0].server())


def test_a_renewed_certificate_is_used_without_a_new_context(
    nodes: tuple[Node, Node], tmp_path: Path, authority: ClusterAuthority
) -> None:
    context = server_context(**files(nodes[0].directory))
    renewed = create_node_files(authority, tmp_path)
    reload_certificate(context, cert_file=tmp_path / "node.crt", key_file=tmp_path / "node.key")
    client, server = nodes[1].client(), side(context, server=True)
    handshake(client, server)
    assert read_identity(peer_certificate(client.tls)).node_id == renewed


def test_no_certificate_has_its_own_reason(nodes: tuple[Node, Node]) -> None:
    """Our own contexts never get there; the check must not depend on how the context was made."""
    client_side = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client_side.check_hostname = False
    client_side.load_verify_locations(nodes[0].directory / "ca.crt")
    server_side = server_context(**files(nodes[1].directory))
    server_side.verify_mode = ssl.CERT_NONE
    client, server = side(client_side, server=False), side(server_side, server=True)
    handshake(client, server)
    with pytest.raises(HandshakeRefused, match="no_certificate"):
        peer_certificate(server.tls)


@pytest.mark.parametrize("make", [server_context, client_context])
@pytest.mark.parametrize("broken", ["ca.crt", "node.crt", "node.key"])
@pytest.mark.parametrize("content", [None, b"", b"garbage"], ids=["missing", "empty", "garbage"])
def test_unusable_files_are_configuration_errors(
    tmp_path: Path, authority: ClusterAuthority, make: Callable[..., ssl.SSLContext], broken: str, content: bytes | None
) -> None:
    create_node_files(authority, tmp_path)
    if content is None:
        (tmp_path / broken).unlink()
    else:
        (tmp_path / broken).write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        make(**files(tmp_path))
    assert str(tmp_path / broken) in str(caught.value)


def newcomer(root: ClusterAuthority) -> Side:
    return side(pinned_client_context(root.certificate.public_bytes(Encoding.DER)), server=False)


def desk(node: Node) -> Side:
    names = {"cert_file": node.directory / "node.crt", "key_file": node.directory / "node.key"}
    return side(enrolment_server_context(**names), server=True)


def test_a_newcomer_without_a_certificate_meets_a_node_of_the_pinned_root(
    nodes: tuple[Node, Node], authority: ClusterAuthority
) -> None:
    client = newcomer(authority)
    handshake(client, desk(nodes[0]))
    assert client.tls.version() == "TLSv1.3"
    assert read_identity(peer_certificate(client.tls)).node_id == nodes[0].node_id


def test_a_newcomer_refuses_every_other_root_and_a_certificate_that_has_ended(
    nodes: tuple[Node, Node], tmp_path: Path, authority: ClusterAuthority
) -> None:
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(newcomer(ClusterAuthority.create(CLUSTER)), desk(nodes[0]))
    ended = Node(write_node(tmp_path / "odd", authority, leaf(authority, starts=-2 * HOUR, ends=-HOUR)), NodeId(0))
    with pytest.raises(ssl.SSLCertVerificationError, match="expired"):
        handshake(newcomer(authority), desk(ended))
