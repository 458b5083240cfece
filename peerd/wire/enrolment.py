"""How a machine without a certificate gets one, and how a node renews its own.

The peer port asks every TLS client for a certificate, so a newcomer first says in the clear that it is one. It pins the
root that its token names before it sends the secret::

    newcomer                                     any node
      | ---- PREFACE -----------------------------> |
      | <--- JoinOffer ---------------------------- |   in the clear: roots to compare with the token, issuers
                                                 an issuer
      | ==== TLS 1.3, server authentication only == |   under the root that the token names, and no other
      | ---- EnrolmentRequest ------------------------> |
      | <--- JoinGranted | HelloRefused ----------- |

A TLS record starts with 0x16 and a frame with 0x51, so the first byte tells which of the three a connection is.
A node that has a certificate asks for the next one on an ordinary link: `RenewRequest`, `RenewAnswer`.
"""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta

from peerd.messages import U8, Message, Name, PeerRef, Text, message
from peerd.wire.trust import CertificateDer, SignedNotice

PREFACE_BYTES: Final = 4096
PREFACE: Final = b"peerd-join 1".ljust(PREFACE_BYTES - 1) + b"\n"
"""The first bytes that a newcomer sends. They name the version of the enrolment protocol.

The spaces are there so that nobody gets more bytes than it has sent before it has proved anything: an offer has some
500 bytes, and about 3 KiB with three roots and eight issuers.
"""
SECRET_BYTES: Final = 16
REQUEST_DER_BYTES_MAX: Final = 2048
CHAIN_LENGTH_MAX: Final = 3
OFFERED_PEERS_MAX: Final = 8

Chain = Annotated[tuple[CertificateDer, ...], Meta(max_length=CHAIN_LENGTH_MAX)]
Notices = Annotated[tuple[SignedNotice, ...], Meta(max_length=OFFERED_PEERS_MAX)]
Peers = Annotated[tuple[PeerRef, ...], Meta(max_length=OFFERED_PEERS_MAX)]


@message(0x0006, bytes_max=15 * 1024)
class JoinOffer(Message):
    """What a node tells a newcomer in the clear. Only what the pinned root signed is believed.

    ``roots``: newest first, with the certificate that links an older one to it. ``issuers``: the signed notices of
    issuers, because a member that merely claims to be one must not get to see a secret.
    """

    cluster: Name
    roots: Chain
    is_issuer: bool
    issuers: Notices
    version: U8 = 1


@message(0x0007, bytes_max=5 * 1024)
class EnrolmentRequest(Message):
    """The secret of a token, and a PKCS #10 request that proves possession of the key. Over pinned TLS only.

    A node whose certificate ended while it was off gives that certificate in place of a secret, and keeps its id.
    """

    secret: Annotated[bytes, Meta(max_length=SECRET_BYTES)]
    request: Annotated[bytes, Meta(max_length=REQUEST_DER_BYTES_MAX)]
    certificate: CertificateDer = b""

    def __repr__(self) -> str:
        return f"EnrolmentRequest({'certificate' if self.certificate else 'secret'}, not shown)"


@message(0x0008, bytes_max=15 * 1024)
class JoinGranted(Message):
    """The certificate chain (leaf first, up to an older root), the roots to trust, and nodes to join through."""

    chain: Chain
    roots: Chain
    bootstrap: Peers


@message(0x0009, bytes_max=64)
class RenewRequest(Message):
    """Asks an issuer to renew the certificate that this link was made with: same key, salt, node id and roles."""


@message(0x000A, bytes_max=8 * 1024)
class RenewAnswer(Message):
    """The renewed certificate, leaf first; or no certificate and why."""

    chain: Chain
    refusal: Text = ""
