"""A change of the root, over TLS in memory: who gets through to whom, before, during and after the overlap."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from peerd.errors import ConfigError
from peerd.identity.authority import ClusterAuthority, create_node_files
from peerd.identity.roots import Roots, fingerprint
from tests.unit.test_tls_contexts import Node, handshake

OLD = ClusterAuthority.create("test")
NEW = OLD.successor(timedelta(days=7))


def node(folder: Path, name: str, authority: ClusterAuthority, roots: Roots | None = None) -> Node:
    """A node with a certificate of ``authority`` that trusts ``roots``."""
    made = Node(folder / name, create_node_files(authority, folder / name))
    if roots is not None:
        (folder / name / "ca.crt").write_bytes(roots.pem())
    return made


def test_nodes_before_and_after_the_change_meet_during_the_overlap(tmp_path: Path) -> None:
    asleep = node(tmp_path, "asleep", OLD)
    told = node(tmp_path, "told", OLD, NEW.roots)
    renewed = node(tmp_path, "renewed", NEW)
    for client, server in ((asleep, told), (asleep, renewed), (told, renewed), (told, asleep), (renewed, asleep)):
        handshake(client.client(), server.server())


def test_after_the_overlap_the_old_root_is_refused(tmp_path: Path) -> None:
    asleep = node(tmp_path, "asleep", OLD)
    renewed = node(tmp_path, "renewed", NEW, Roots(NEW.certificate))
    for client, server in ((asleep, renewed), (renewed, asleep)):
        with pytest.raises(ssl.SSLCertVerificationError):
            handshake(client.client(), server.server())


def test_the_chain_to_the_old_root_ends_with_the_overlap(tmp_path: Path) -> None:
    over = OLD.successor(timedelta(minutes=-1))
    asleep, renewed = node(tmp_path, "asleep", OLD), node(tmp_path, "renewed", over)
    with pytest.raises(ssl.SSLCertVerificationError, match=r"expired|unable to get"):
        handshake(asleep.client(), renewed.server())


def test_roots_read_back_and_end_when_they_should(tmp_path: Path) -> None:
    path = tmp_path / "ca.crt"
    path.write_bytes(NEW.roots.pem())
    roots = Roots.load(path)
    assert roots == NEW.roots
    assert roots.trusted == (NEW.certificate, OLD.certificate)
    assert roots.by_fingerprint(fingerprint(OLD.certificate)) == OLD.certificate
    assert roots.by_fingerprint(bytes(16)) is None
    ends = roots.overlap_ends
    assert ends is not None
    assert roots.at(ends - timedelta(seconds=1)) is roots
    assert roots.at(ends) == Roots(NEW.certificate)
    assert roots.at(datetime.now(UTC)).chain == (roots.cross,)


@pytest.mark.parametrize("what", ["three roots", "cross alone", "foreign cross", "nothing", "leaf"])
def test_other_bundles_are_refused(tmp_path: Path, what: str) -> None:
    assert NEW.roots.cross is not None
    other = ClusterAuthority.create("test")
    stray = other.successor(timedelta(days=1)).roots
    create_node_files(OLD, tmp_path / "node")
    content = {
        "three roots": NEW.roots.pem() + other.certificate_pem(),
        "cross alone": Roots(NEW.certificate, None, NEW.roots.cross).pem(),
        "foreign cross": Roots(NEW.certificate, OLD.certificate, stray.cross).pem(),
        "nothing": b"",
        "leaf": (tmp_path / "node" / "node.crt").read_bytes(),
    }[what]
    (tmp_path / "ca.crt").write_bytes(content)
    with pytest.raises(ConfigError):
        Roots.load(tmp_path / "ca.crt")
