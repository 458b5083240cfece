"""What the cluster's CA says to every node, signed: who is denied, who issues certificates, which root comes next.

A record is small, versioned, and verified by each node that gets it before it is used, kept or passed on. Nodes compare
digests when a link comes up (`TrustSummary`) and give each other what differs (`TrustRecords`), so a node that was down
learns what it missed from the first neighbour that it meets.
"""

from __future__ import annotations

from typing import Annotated, Final

import annotated_types

from peerd.messages import U16, U64, Message, Name, PeerRef, Text, message, struct

RECORD_TAG: Final = b"peerd-record-v1"
"""Signed in front of each record: a signature of the CA key means nothing else than what it was made for."""
RECORD_BODY_BYTES_MAX: Final = 5 * 1024
CERTIFICATE_DER_BYTES_MAX: Final = 2048
FINGERPRINT_BYTES: Final = 16
DIGEST_BYTES: Final = 32
SIGNATURE_BYTES: Final = 64


CertificateDer = Annotated[bytes, annotated_types.MaxLen(CERTIFICATE_DER_BYTES_MAX)]


@message(0x000B, bytes_max=1024)
class Denial(Message):
    """A node id or a certificate that must not be let in, or is let in again."""

    cluster: Name
    version: U64
    """Unix milliseconds when it was made; the largest of a subject counts."""
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


@message(0x000D, bytes_max=RECORD_BODY_BYTES_MAX)
class RootChange(Message):
    """The next root of the cluster, and the same key certified by the root before it until the overlap ends."""

    cluster: Name
    version: U64
    root: CertificateDer
    cross: CertificateDer


@struct
class SignedRecord:
    """One of the messages above, encoded, and the root that signs it (SHA-256 of its public key, 16 bytes)."""

    type_id: U16
    body: Annotated[bytes, annotated_types.MaxLen(RECORD_BODY_BYTES_MAX)]
    signer: Annotated[bytes, annotated_types.Len(FINGERPRINT_BYTES, FINGERPRINT_BYTES)]
    signature: Annotated[bytes, annotated_types.Len(SIGNATURE_BYTES, SIGNATURE_BYTES)]

    def signed_bytes(self) -> bytes:
        """What the signature is over."""
        return RECORD_TAG + self.type_id.to_bytes(2, "big") + self.body


@message(0x000E, bytes_max=128)
class TrustSummary(Message):
    """A digest over every record that the sender holds."""

    digest: Annotated[bytes, annotated_types.Len(DIGEST_BYTES, DIGEST_BYTES)]


@message(0x000F)
class TrustRecords(Message):
    """Records that the receiver may not have."""

    records: Annotated[tuple[SignedRecord, ...], annotated_types.MaxLen(256)]
