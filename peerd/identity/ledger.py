"""What a node believes of its cluster: the roots, and the notices that they signed.

Pure: bytes and times in, decisions out. `TrustLedger.merge` is the only way in for what others send; it verifies before
it keeps, and returns what is news, which is what the caller makes durable, acts on and passes on.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding

from peerd.errors import Bug, PeerMisbehaved, ProtocolError, Unavailable
from peerd.frozen import Frozen
from peerd.identity.authority import ClusterAuthority
from peerd.identity.roots import PARSE_ERRORS, Roots, fingerprint, is_cross, is_root
from peerd.ids import NodeId, parse_id
from peerd.messages import PeerRef, decode_body, encode_body, message_type
from peerd.wire.trust import DIGEST_BYTES, Denial, IssuerNotice, RootChange, SignedNotice, TrustNotices

NOTICES_MAX: Final = 4096
"""Most notices kept, about 1 MiB. Above it new denials are refused where they are made; a rotation removes those that
were withdrawn."""
NOTICES_NOT_DENIALS: Final = 64
"""How many places of these are not for denials, so that there is room for a change of the root."""
ISSUER_LIFE_S: Final = 7 * 86_400.0
"""An issuer that has not announced itself for this long is not asked any more."""
BATCH_BYTES_MAX: Final = 32 * 1024
BATCH_NOTICES_MAX: Final = 128
NODE_SUBJECT: Final = "node:"
SERIAL_SUBJECT: Final = "serial:"

Notice = Denial | IssuerNotice | RootChange


class BadSignature(PeerMisbehaved):
    """The signature of a notice is not of the trusted root that it names."""

    reason = "bad_signature"


class HeldNotice(Frozen):
    """A notice with the signature that came with it."""

    notice: Notice
    signed: SignedNotice


def sign_notice(authority: ClusterAuthority, notice: Notice) -> SignedNotice:
    """Sign a notice with the CA's key."""
    unsigned = SignedNotice(notice.TYPE_ID, encode_body(notice), authority.fingerprint, bytes(64))
    return SignedNotice(unsigned.type_id, unsigned.body, unsigned.signer, authority.sign(unsigned.signed_bytes()))


def parse_subject(text: str) -> str:
    """The subject of a denial: 32 hexadecimal digits are a node id, 40 a certificate's serial number.

    Raises ``ValueError``.
    """
    digits = text.removeprefix(NODE_SUBJECT).removeprefix(SERIAL_SUBJECT).lower()
    if not set(digits) <= set("0123456789abcdef") or len(digits) not in (32, 40):
        raise ValueError("expected a node id (32 hexadecimal digits) or a certificate's serial number (40)")
    return (NODE_SUBJECT if len(digits) == 32 else SERIAL_SUBJECT) + digits


class TrustLedger:
    """The roots and notices of one node. ``cluster``: notices of another one are refused."""

    def __init__(self, cluster: str, roots: Roots) -> None:
        self.cluster = cluster
        self.roots = roots
        self._held: dict[str, HeldNotice] = {}

    # Reading

    def signed(self) -> list[SignedNotice]:
        """Every notice as it travels; changes of the root first, since the others may need them."""
        ordered = sorted(self._held.items(), key=lambda item: (not isinstance(item[1].notice, RootChange), item[0]))
        return [held.signed for _, held in ordered]

    def denials(self) -> list[Denial]:
        """Every denial that is in force, by subject."""
        notices = [self._held[key].notice for key in sorted(self._held)]
        return [notice for notice in notices if isinstance(notice, Denial) and not notice.is_withdrawn]

    def stale_denials(self) -> list[Denial]:
        """Every denial in force that ends with an old root, because the newest root has not signed it."""
        if self.roots.previous is None:
            return []
        newest = fingerprint(self.roots.newest)
        return [denial for denial in self.denials() if self._held[key_of_notice(denial)].signed.signer != newest]

    def denied_ids(self) -> frozenset[NodeId]:
        """The ids of nodes that must not be let in."""
        return frozenset(
            parse_id(denial.subject.removeprefix(NODE_SUBJECT))
            for denial in self.denials()
            if denial.subject.startswith(NODE_SUBJECT)
        )

    def denied_serials(self) -> frozenset[int]:
        """The serial numbers of certificates that must not be let in."""
        return frozenset(
            int(denial.subject.removeprefix(SERIAL_SUBJECT), 16)
            for denial in self.denials()
            if denial.subject.startswith(SERIAL_SUBJECT)
        )

    def issuers(self, now: float) -> list[PeerRef]:
        """Nodes that renew certificates, the one that announced itself last first. ``now``: Unix seconds."""
        return [notice.node for notice, _ in self._notices(now)]

    def issuer_notices(self, now: float) -> list[SignedNotice]:
        """The issuers' signed notices, in the same order."""
        return [signed for _, signed in self._notices(now)]

    def _notices(self, now: float) -> list[tuple[IssuerNotice, SignedNotice]]:
        denied = self.denied_ids()
        found = [
            (held.notice, held.signed)
            for held in self._held.values()
            if isinstance(held.notice, IssuerNotice)
            and is_fresh(held.notice, now)
            and held.notice.node.id not in denied
        ]
        return sorted(found, key=lambda each: (-each[0].version, each[0].node.id))

    def digest(self) -> bytes:
        """Equal on two nodes when they hold the same notices."""
        content = hashlib.sha256()
        for key in sorted(self._held):
            content.update(f"{key} {self._held[key].notice.version}\n".encode())
        return content.digest()[:DIGEST_BYTES]

    def next_version(self, record_key: str, now: float) -> int:
        """Return the version for a new notice of this key: the time, but always larger than the version held."""
        held = self._held.get(record_key)
        return max(int(now * 1000), 0 if held is None else held.notice.version + 1)

    # Changing

    def merge(self, notices: Sequence[SignedNotice], now: float) -> list[SignedNotice]:
        """Take over the notices that are new and correctly signed, and return them. ``now``: Unix seconds.

        Raises `ProtocolError` or `BadSignature` for what no honest node passes on, and then takes over nothing; a root
        that this node does not know (yet, or any more) is not held against the peer.
        """
        news = []
        held, roots = dict(self._held), self.roots
        try:
            # A change of the root may be what the other notices in the same message are signed by.
            for signed in sorted(notices, key=lambda each: each.type_id != RootChange.TYPE_ID):
                notice = self._decode(signed)
                if notice is not None and self._is_news(notice) and self._accept(notice, signed, now):
                    news.append(signed)
        except PeerMisbehaved:
            self._held, self.roots = held, roots
            raise
        return news

    def put(self, authority: ClusterAuthority, notice: Notice, now: float) -> SignedNotice:
        """Sign a notice of our own making and take it over. Raises `Unavailable` when the ledger is full."""
        signed = sign_notice(authority, notice)
        if not self.merge([signed], now):
            raise Unavailable(
                f"the notice was not kept: {len(self._held)} of {NOTICES_MAX} are held, or its root is not trusted"
            )
        return signed

    def expire(self, now: float) -> bool:
        """If an overlap has ended, remove the old root and what only it signed. Returns whether one has ended."""
        roots = self.roots.at(datetime.fromtimestamp(now, UTC))
        if roots is self.roots:
            return False
        self.roots = roots
        for key in [key for key, held in self._held.items() if roots.by_fingerprint(held.signed.signer) is None]:
            del self._held[key]
        return True

    # Persistence

    def rows(self) -> list[tuple[str, int, bytes, bytes, bytes]]:
        """The notices as rows of the daemon's database; `restore` reads them."""
        return [
            (key, held.signed.type_id, held.signed.body, held.signed.signer, held.signed.signature)
            for key, held in sorted(self._held.items())
        ]

    def restore(self, notices: Iterable[SignedNotice], now: float) -> None:
        """Take over what was kept, verified anew. Raises ``ValueError`` when some of it is not of this cluster's CA."""
        problems: list[str] = []
        for signed in sorted(notices, key=lambda each: each.type_id != RootChange.TYPE_ID):
            try:
                self.merge([signed], now)
            except PeerMisbehaved as error:
                problems.append(str(error))
        if problems:
            raise ValueError(f"{len(problems)} cannot be used: {problems[0]}")

    # Inside

    def _decode(self, signed: SignedNotice) -> Notice | None:
        """The notice; ``None`` for a kind that this version does not know. Raises `ProtocolError`."""
        kind = message_type(signed.type_id)
        if kind not in (Denial, IssuerNotice, RootChange):
            return None
        notice = decode_body(kind, signed.body)
        if not isinstance(notice, Denial | IssuerNotice | RootChange):
            return None
        if notice.cluster != self.cluster:
            raise ProtocolError("invalid", f"a notice of cluster {notice.cluster!r}, this is {self.cluster!r}")
        if isinstance(notice, Denial) and not _is_subject(notice.subject):
            return None  # perhaps of a newer version; this one could not act on it
        return notice

    def _is_news(self, notice: Notice) -> bool:
        held = self._held.get(key_of_notice(notice))
        return held is None or notice.version > held.notice.version

    def _accept(self, notice: Notice, signed: SignedNotice, now: float) -> bool:
        signer = self.roots.by_fingerprint(signed.signer)
        if signer is None:
            return False
        if not is_signed_by(signed, signer):
            raise BadSignature(f"{type(notice).__name__} is not signed by the root that it names")
        key = key_of_notice(notice)
        limit = NOTICES_MAX - NOTICES_NOT_DENIALS if isinstance(notice, Denial) else NOTICES_MAX
        if key not in self._held and len(self._held) >= limit:
            return False
        if isinstance(notice, RootChange) and not self._adopt(notice, signer, now):
            return False
        self._held[key] = HeldNotice(notice, signed)
        return True

    def _adopt(self, change: RootChange, signer: x509.Certificate, now: float) -> bool:
        """Trust the next root, if the newest one says so. Whether the change is one that this node may keep."""
        try:
            root, cross = x509.load_der_x509_certificate(change.root), x509.load_der_x509_certificate(change.cross)
        except PARSE_ERRORS as error:
            raise ProtocolError("invalid", f"RootChange: {error}") from None
        if not is_root(root) or not is_cross(cross, root, signer):
            raise ProtocolError("invalid", "RootChange: the certificates do not lead from one root to the next")
        roots = Roots(root, signer, cross)
        if roots.at(datetime.fromtimestamp(now, UTC)) is not roots:
            return False  # the overlap is over: a node that was away for all of it has to join anew
        if root == self.roots.newest:
            return True
        if signer != self.roots.newest:
            return False  # only the newest root names the next one: a stolen old key must not undo a rotation
        self.roots = roots
        return True


def is_signed_by(signed: SignedNotice, root: x509.Certificate) -> bool:
    """Whether the signature verifies."""
    public_key = root.public_key()
    try:
        if not isinstance(public_key, Ed25519PublicKey):
            return False
        public_key.verify(signed.signature, signed.signed_bytes())
    except InvalidSignature:
        return False
    return True


def is_fresh(notice: IssuerNotice, now: float) -> bool:
    """Whether the issuer announced itself recently. ``now``: Unix seconds.

    A notice from the future counts: its clock was ahead, or ours is behind, and its versions only ever grow.
    """
    return now - notice.version / 1000 < ISSUER_LIFE_S


def known_issuers(
    notices: Iterable[SignedNotice], roots: Iterable[x509.Certificate], cluster: str, now: float
) -> list[PeerRef]:
    """Return the issuers named by notices that one of the roots signed; for newcomers, who have no ledger yet."""
    by_fingerprint = {fingerprint(root): root for root in roots}
    found = []
    for signed in notices:
        root = by_fingerprint.get(signed.signer)
        if root is None or signed.type_id != IssuerNotice.TYPE_ID or not is_signed_by(signed, root):
            continue
        try:
            notice = decode_body(IssuerNotice, signed.body)
        except ProtocolError:
            continue
        if notice.cluster == cluster and is_fresh(notice, now):
            found.append(notice.node)
    return found


def key_of_notice(notice: Notice) -> str:
    """Return the key of a notice: of several notices with the same key the one with the highest version counts."""
    match notice:
        case Denial(subject=subject):
            return f"deny {subject}"
        case IssuerNotice(node=node):
            return f"issuer {node.id:032x}"
        case RootChange(root=root):
            return f"root {hashlib.sha256(root).hexdigest()}"


def root_change(roots: Roots, cluster: str, now: float) -> RootChange:
    """The notice that tells every node of the next root. ``roots`` are those of the successor."""
    der = Encoding.DER
    if roots.cross is None:
        raise Bug("a change of the root needs the certificate between the two")
    return RootChange(cluster, int(now * 1000), roots.newest.public_bytes(der), roots.cross.public_bytes(der))


def batches(notices: Iterable[SignedNotice]) -> list[tuple[SignedNotice, ...]]:
    """Split notices into groups, each of which fits into one frame."""
    found: list[tuple[SignedNotice, ...]] = []
    batch: list[SignedNotice] = []
    size = 0
    for notice in notices:
        cost = len(notice.body) + 128
        if batch and (size + cost > BATCH_BYTES_MAX or len(batch) >= BATCH_NOTICES_MAX):
            found.append(tuple(batch))
            batch, size = [], 0
        batch.append(notice)
        size += cost
    return [*found, tuple(batch)] if batch else found


def _is_subject(text: str) -> bool:
    try:
        return parse_subject(text) == text
    except ValueError:
        return False


def kept_notice(row: tuple[object, ...]) -> SignedNotice:
    """The notice that a row of `TrustLedger.rows` holds. Raises ``ValueError``."""
    match row:
        case (str(), int(type_id), bytes(body), bytes(signer), bytes(signature)):
            return SignedNotice(type_id, body, signer, signature)
    raise ValueError("a notice is subject, type id, body, signer and signature")


def notice_text(signed: SignedNotice) -> str:
    """Return a notice as one line of text, to be carried by hand from an offline CA to any daemon."""
    return base64.b64encode(encode_body(TrustNotices((signed,)))).decode()


def parse_notice_text(text: str) -> SignedNotice:
    """Read what `notice_text` wrote. Raises ``ValueError``."""
    try:
        notices = decode_body(TrustNotices, base64.b64decode(text.strip(), validate=True)).notices
    except ProtocolError as error:
        raise ValueError(f"not a signed notice: {error}") from error
    if len(notices) != 1:
        raise ValueError("not one signed notice")
    return notices[0]
