"""Join tokens: what they say, and the issuer's book of them.

``peerd1.<cluster>.<fingerprint>.<secret>``: the cluster's name, SHA-256 of the CA's public key (16 bytes) and 128
random bits, both in hexadecimal. The fingerprint lets a newcomer know the cluster before it sends the secret; the
issuer keeps a hash of the secret only. The book is pure: times are given, and the caller makes each change durable
before it acts.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Iterable
from dataclasses import astuple, dataclass, replace
from typing import Final

from peerd.config import CLUSTER_NAME_PATTERN
from peerd.errors import PeerdError, Unavailable
from peerd.wire.enrolment import SECRET_BYTES
from peerd.wire.trust import FINGERPRINT_BYTES

TOKENS_MAX: Final = 1024
TOKEN_USES_MAX: Final = 10_000
TOKEN_LIFE_S_MAX: Final = 30 * 86_400.0
TOKEN_MEMORY_S: Final = 86_400.0
"""A token that has ended is remembered this long, so that a machine that comes late is told why."""
TOKEN_LENGTH_MAX: Final = 256

_TOKEN: Final = re.compile(
    rf"peerd1\.(?P<cluster>{CLUSTER_NAME_PATTERN})"
    rf"\.(?P<fingerprint>[0-9a-f]{{{2 * FINGERPRINT_BYTES}}})\.(?P<secret>[0-9a-f]{{{2 * SECRET_BYTES}}})"
)


class TokenRefused(PeerdError):
    """A newcomer is not admitted. ``reason``: unknown_token, token_expired, token_used_up, token_revoked, ..."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason
        self.detail = detail


@dataclass(frozen=True, slots=True)
class JoinToken:
    """A token with its secret, as the machine that joins holds it."""

    cluster: str
    fingerprint: bytes
    secret: bytes

    def __repr__(self) -> str:
        return f"JoinToken({self.cluster}, id {token_id(self.secret)})"

    def text(self) -> str:
        """The line of text that is copied to the newcomer."""
        return f"peerd1.{self.cluster}.{self.fingerprint.hex()}.{self.secret.hex()}"

    @classmethod
    def parse(cls, text: str) -> JoinToken:
        """Read a token. Raises ``ValueError``, which does not quote the text, since that may be a secret."""
        match = _TOKEN.fullmatch(text.strip()) if len(text) <= TOKEN_LENGTH_MAX else None
        if match is None:
            raise ValueError(
                "expected one line peerd1.<cluster>.<fingerprint>.<secret>, as `peerd token create` prints"
            )
        return cls(match["cluster"], bytes.fromhex(match["fingerprint"]), bytes.fromhex(match["secret"]))


def token_id(secret: bytes) -> str:
    """The public name of a token: eight hexadecimal digits of its secret's hash."""
    return hashlib.sha256(secret).hexdigest()[:8]


@dataclass(frozen=True, slots=True)
class TokenEntry:
    """What the issuer remembers of one token. Times are Unix seconds."""

    digest: str
    """SHA-256 of the secret, hexadecimal; it begins with the token's id."""
    created_at: float
    expires_at: float
    uses_max: int
    uses: int
    is_revoked: bool = False

    @property
    def id(self) -> str:
        """See `token_id`."""
        return self.digest[:8]

    def state(self, now: float) -> str:
        """One of: usable, revoked, used_up, expired."""
        if self.is_revoked:
            return "revoked"
        if self.uses >= self.uses_max:
            return "used_up"
        return "expired" if now >= self.expires_at else "usable"

    def row(self) -> tuple[str, float, float, int, int, int]:
        """The token as a row of the issuer's database; `from_row` reads it."""
        digest, created_at, expires_at, uses_max, uses, is_revoked = astuple(self)
        return digest, float(created_at), float(expires_at), uses_max, uses, int(is_revoked)

    @classmethod
    def from_row(cls, row: tuple[object, ...]) -> TokenEntry:
        """Read a row. Raises ``ValueError``."""
        match row:
            case (str(digest), float(made), float(ends), int(uses_max), int(uses), int(is_revoked)) if re.fullmatch(
                r"[0-9a-f]{64}", digest
            ) and is_revoked in (0, 1):
                return cls(digest, made, ends, uses_max, uses, bool(is_revoked))
        raise ValueError("a token is digest, times, uses and whether it is revoked")


class TokenBook:
    """Every token that the issuer remembers, in the order of their making."""

    def __init__(self, entries: Iterable[TokenEntry] = ()) -> None:
        self._entries = {entry.digest: entry for entry in sorted(entries, key=lambda entry: entry.created_at)}

    def entries(self) -> list[TokenEntry]:
        """Every token that the issuer remembers, oldest first."""
        return list(self._entries.values())

    def create(self, secret: bytes, now: float, life_s: float, uses: int) -> TokenEntry:
        """Enter a new token. Raises ``ValueError`` for what cannot be granted, `Unavailable` for a full book."""
        if not 0 < life_s <= TOKEN_LIFE_S_MAX:
            raise ValueError(f"a token lives at most {TOKEN_LIFE_S_MAX / 86_400:g} days")
        if not 1 <= uses <= TOKEN_USES_MAX:
            raise ValueError(f"a token has 1 to {TOKEN_USES_MAX} uses")
        self._forget(now)
        if len(self._entries) >= TOKENS_MAX:
            raise Unavailable(f"there are {TOKENS_MAX} tokens: revoke some, or wait until they expire")
        entry = TokenEntry(hashlib.sha256(secret).hexdigest(), now, now + life_s, uses, 0)
        self._entries[entry.digest] = entry
        return entry

    def redeem(self, secret: bytes, now: float) -> TokenEntry:
        """Take one use, and return the token as it is then. Raises `TokenRefused`."""
        given = hashlib.sha256(secret).hexdigest()
        # All are compared in constant time: the time must not reveal how much of a hash was right.
        found = [entry for entry in self._entries.values() if hmac.compare_digest(entry.digest, given)]
        if not found:
            raise TokenRefused(
                "unknown_token",
                "this issuer does not know the token: it is not copied whole, another issuer made it, or it ended more "
                "than a day ago",
            )
        entry = found[0]
        match entry.state(now):
            case "revoked":
                raise TokenRefused("token_revoked", f"the token {entry.id} was revoked")
            case "used_up":
                raise TokenRefused(
                    "token_used_up", f"the token {entry.id} was used {entry.uses} of {entry.uses_max} times"
                )
            case "expired":
                ago_s = now - entry.expires_at
                raise TokenRefused("token_expired", f"the token {entry.id} expired {ago_s:.0f} s ago")
        taken = self._entries[entry.digest] = replace(entry, uses=entry.uses + 1)
        return taken

    def revoke(self, identifier: str) -> TokenEntry:
        """End a token by its id. Raises ``KeyError``."""
        for digest, entry in self._entries.items():
            if entry.id == identifier:
                revoked = self._entries[digest] = replace(entry, is_revoked=True)
                return revoked
        raise KeyError(identifier)

    def restore(self, entry: TokenEntry) -> None:
        """Put an entry back as it was, after a change that could not be made durable."""
        self._entries[entry.digest] = entry

    def remove(self, entry: TokenEntry) -> None:
        """Take a new entry out again, for the same reason."""
        self._entries.pop(entry.digest, None)

    def _forget(self, now: float) -> None:
        for digest in [key for key, entry in self._entries.items() if now - entry.expires_at > TOKEN_MEMORY_S]:
            del self._entries[digest]
