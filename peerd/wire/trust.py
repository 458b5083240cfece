"""What the cluster's CA says to every node, signed: who is denied, who issues certificates, which root comes next.

A notice is small, versioned, and verified by each node that gets it before it is used, kept or passed on. Nodes compare
digests when a link comes up (`TrustSummary`) and give each other what differs (`TrustNotices`), so a node that was down
learns what it missed from the first neighbour that it meets.
"""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta

from peerd.limits import SIGNATURE_BYTES
from peerd.messages import U16, U64, Message, Name, PeerRef, Struct, Text, message

NOTICE_TAG: Final = b"peerd-record-v1"
"""It is signed in front of each notice, so that a signature of the CA's key for another purpose is no notice."""
NOTICE_BODY_BYTES_MAX: Final = 5 * 1024
CERTIFICATE_DER_BYTES_MAX: Final = 2048
FINGERPRINT_BYTES: Final = 16
DIGEST_BYTES: Final = 32


CertificateDer = Annotated[bytes, Meta(max_length=CERTIFICATE_DER_BYTES_MAX)]


@message(0x000B, bytes_max=1024)
class Denial(Message):
    """A node id or a certificate that must not be let in, or is let in again."""

    cluster: Name
    version: U64
    """When it was made, in Unix milliseconds. Of several denials of one subject the largest version counts."""
    subject: Name
    """``node:`` and 32 hexadecimal digits, or ``serial:`` and 40."""
    is_withdrawn: bool
    reason: Text


@message(0x000C, bytes_max=1024)
class IssuerNotice(Message):
    """A node that holds the CA key and renews certificates."""

    cluster: Name
    version: U64
    node: PeerRef


@message(0x000D, bytes_max=NOTICE_BODY_BYTES_MAX)
class RootChange(Message):
    """The next root of the cluster, and the same key certified by the root before it until the overlap ends."""

    cluster: Name
    version: U64
    root: CertificateDer
    cross: CertificateDer


class SignedNotice(Struct):
    """One of the messages above, encoded, and the root that signs it (SHA-256 of its public key, 16 bytes)."""

    type_id: U16
    body: Annotated[bytes, Meta(max_length=NOTICE_BODY_BYTES_MAX)]
    signer: Annotated[bytes, Meta(min_length=FINGERPRINT_BYTES, max_length=FINGERPRINT_BYTES)]
    signature: Annotated[bytes, Meta(min_length=SIGNATURE_BYTES, max_length=SIGNATURE_BYTES)]

    def signed_bytes(self) -> bytes:
        """The bytes that are signed."""
        return NOTICE_TAG + self.type_id.to_bytes(2, "big") + self.body


@message(0x000E, bytes_max=128)
class TrustSummary(Message):
    """A digest over every notice that the sender holds."""

    digest: Annotated[bytes, Meta(min_length=DIGEST_BYTES, max_length=DIGEST_BYTES)]


@message(0x000F)
class TrustNotices(Message):
    """Notices that the receiver may not have."""

    notices: Annotated[tuple[SignedNotice, ...], Meta(max_length=256)]
