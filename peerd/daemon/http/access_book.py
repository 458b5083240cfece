"""Access tokens of data clients: what they say, and the daemon's book of them.

``peerda1.<id>.<secret>``: 64 and 256 random bits, both in hexadecimal. The id finds the entry; of the secret only a
hash is kept, and the two hashes are compared in constant time. The secret is as long as the hash, so there is nothing
to guess and no need for a slow one. The book is pure: times are given, and the caller makes each change durable.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Iterable
from dataclasses import astuple, dataclass
from typing import Final

from peerd.errors import PeerdError, Unavailable

ACCESS_TOKENS_MAX: Final = 1024
ACCESS_SCOPES_MAX: Final = 64
"""Most scopes that one token may have."""
ACCESS_LIFE_S_MAX: Final = 366 * 86_400.0
ACCESS_MEMORY_S: Final = 86_400.0
"""A token that has expired is listed this long, so that operators can see why a client is refused."""
ID_BYTES: Final = 8
SECRET_BYTES: Final = 32
EVERYTHING: Final = "*"
NAME_PATTERN: Final = r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}"
SCOPE_PATTERN: Final = r"\*|[a-z][a-z0-9_-]{0,63}:(read|write)"

_TEXT: Final = re.compile(rf"peerda1\.([0-9a-f]{{{2 * ID_BYTES}}})\.([0-9a-f]{{{2 * SECRET_BYTES}}})")
_NOBODY: Final = "0" * 64
"""A hash to compare with when the id is unknown, so that the answer takes equally long."""


class AccessRefused(PeerdError):
    """A client's token is not accepted; ``reason`` is the metric's label, the text is for the client."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class AccessToken:
    """One entry of the book. Times are Unix seconds."""

    id: str
    name: str
    digest: str
    """SHA-256 of the secret, hexadecimal."""
    scopes: tuple[str, ...]
    created_at: float
    expires_at: float

    def allows(self, scope: str) -> bool:
        """Whether the token has the scope, ``plugin:read`` or ``plugin:write``. To write does not include to read."""
        return EVERYTHING in self.scopes or scope in self.scopes

    def row(self) -> tuple[str, str, str, str, float, float]:
        """The token as a row of the daemon's database; `from_row` reads it."""
        identifier, name, digest, scopes, created_at, expires_at = astuple(self)
        return identifier, name, digest, " ".join(scopes), float(created_at), float(expires_at)

    @classmethod
    def from_row(cls, row: tuple[object, ...]) -> AccessToken:
        """Read a row. Raises ``ValueError``."""
        match row:
            case (str(identifier), str(name), str(digest), str(scopes), float(created_at), float(expires_at)) if (
                re.fullmatch(rf"[0-9a-f]{{{2 * ID_BYTES}}}", identifier)
                and re.fullmatch(NAME_PATTERN, name)
                and re.fullmatch(r"[0-9a-f]{64}", digest)
                and all(re.fullmatch(SCOPE_PATTERN, scope) for scope in scopes.split(" "))
            ):
                return cls(identifier, name, digest, tuple(scopes.split(" ")), created_at, expires_at)
        raise ValueError("an access token is id, name, digest, scopes and two times")


class AccessBook:
    """Every token that clients may use, by id, in the order in which they were made."""

    def __init__(self, tokens: Iterable[AccessToken] = ()) -> None:
        self._tokens = {token.id: token for token in sorted(tokens, key=lambda token: token.created_at)}

    def tokens(self) -> list[AccessToken]:
        """Oldest first; expired ones stay for `ACCESS_MEMORY_S`."""
        return list(self._tokens.values())

    def create(
        self, name: str, scopes: Iterable[str], life_s: float, now: float, identifier: bytes, secret: bytes
    ) -> tuple[str, AccessToken]:
        """Enter a token; returns the text that its holder sends. ``identifier`` and ``secret`` are random bytes.

        Raises ``ValueError`` for what cannot be granted, `Unavailable` for a full book.
        """
        granted = tuple(sorted(set(scopes)))
        if re.fullmatch(NAME_PATTERN, name) is None:
            raise ValueError("a name has 1 to 64 letters, digits and . _ @ -, and begins with a letter or a digit")
        if not granted or len(granted) > ACCESS_SCOPES_MAX:
            raise ValueError(f"a token has 1 to {ACCESS_SCOPES_MAX} scopes")
        if wrong := [scope for scope in granted if re.fullmatch(SCOPE_PATTERN, scope) is None]:
            raise ValueError(f'{wrong[0]!r} is no scope: "<protocol>:read", "<protocol>:write", or "*" for everything')
        if not 0 < life_s <= ACCESS_LIFE_S_MAX:
            raise ValueError(f"a token lives at most {ACCESS_LIFE_S_MAX / 86_400:g} days")
        self._forget(now)
        if any(token.name == name and now < token.expires_at for token in self._tokens.values()):
            raise ValueError(f"there is a token named {name}: revoke it, or choose another name")
        if len(self._tokens) >= ACCESS_TOKENS_MAX:
            raise Unavailable(f"there are {ACCESS_TOKENS_MAX} access tokens: revoke some, or wait until they expire")
        digest = hashlib.sha256(secret).hexdigest()
        token = AccessToken(identifier.hex(), name, digest, granted, now, now + life_s)
        self._tokens[token.id] = token
        return f"peerda1.{identifier.hex()}.{secret.hex()}", token

    def find(self, text: str, now: float) -> AccessToken:
        """Find the token that a client sent. Raises `AccessRefused`, which does not quote the (maybe secret) text."""
        match = _TEXT.fullmatch(text)
        if match is None:
            raise AccessRefused("token_malformed", "not an access token: one line peerda1.<id>.<secret>")
        token = self._tokens.get(match[1])
        given = hashlib.sha256(bytes.fromhex(match[2])).hexdigest()
        is_right = hmac.compare_digest(given, _NOBODY if token is None else token.digest)
        if token is None or not is_right:
            raise AccessRefused(
                "token_unknown", "this daemon does not know the token: it was revoked, or made elsewhere"
            )
        if now >= token.expires_at:
            raise AccessRefused("token_expired", f"the token {token.name} has expired")
        return token

    def named(self, name: str) -> list[AccessToken]:
        """Return the tokens with this name or id. If there are several, all but one have expired."""
        return [token for token in self._tokens.values() if name in (token.name, token.id)]

    def remove(self, token: AccessToken) -> None:
        """Take a token out of the book."""
        self._tokens.pop(token.id, None)

    def restore(self, token: AccessToken) -> None:
        """Put one back, after a removal that could not be made durable."""
        self._tokens[token.id] = token

    def _forget(self, now: float) -> None:
        for token in self.tokens():
            if now - token.expires_at > ACCESS_MEMORY_S:
                self.remove(token)
