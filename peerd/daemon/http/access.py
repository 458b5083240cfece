"""The daemon's access tokens at work: kept on disk, checked at each request, and ended while they are in use."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Final

import structlog

from peerd.daemon.http.access_book import (
    ID_BYTES,
    SECRET_BYTES,
    AccessBook,
    AccessRefused,
    AccessToken,
)
from peerd.daemon.storage.state_table import StateRows
from peerd.errors import Unavailable
from peerd.lib.admission import TokenBucket
from peerd.linking.join_limits import REFUSAL_FORGOTTEN_S, RefusedHosts

REFUSALS_LOGGED_PER_SECOND: Final = 0.2
REFUSALS_LOGGED_BURST: Final = 10
STREAM_END_GRACE_S: Final = 1.0
"""How long a stream has to tell its client that its token is over, before the connection is cut."""
REVOKED: Final = "access token revoked"
EXPIRED: Final = "access token expired"
TOKEN_ENDS: Final = (REVOKED, EXPIRED)
"""The reasons why a stream ends when its client's token does."""
USE_KEY: Final = "peerd_token_use"
"""The key in a request's ``state`` under which its `TokenUse` is."""
RETRY_AFTER_S: Final = int(REFUSAL_FORGOTTEN_S)

_log = structlog.get_logger("peerd.daemon")


class TokenUse:
    """One request that a token admitted. A stream sets ``on_end``, so that it can tell its client why it ends."""

    def __init__(self, limit: asyncio.Timeout) -> None:
        self.limit = limit
        self.on_end: Callable[[str], None] | None = None
        self.is_over = False

    def end(self, reason: str) -> None:
        """Tell this request that its token has expired or was revoked; a stream then says so, anything else is cut."""
        if self.is_over or self.limit.expired():
            return
        self.is_over = True
        grace_s = 0.0
        if self.on_end is not None:
            self.on_end(reason)
            grace_s = STREAM_END_GRACE_S
        self.limit.reschedule(asyncio.get_running_loop().time() + grace_s)


class Access:
    """The tokens of one daemon, kept in ``table``. ``wall_time`` gives Unix seconds, ``now`` monotonic ones."""

    def __init__(
        self,
        table: StateRows,
        *,
        wall_time: Callable[[], float] = time.time,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._table = table
        self._wall_time = wall_time
        self._now = now
        self._book = AccessBook(table.load(AccessToken.from_row))
        self._hosts = RefusedHosts()
        self._logged = TokenBucket(REFUSALS_LOGGED_PER_SECOND, REFUSALS_LOGGED_BURST, now())
        self._uses: dict[str, dict[TokenUse, None]] = {}

    # For the operator

    def tokens(self) -> list[AccessToken]:
        """All access tokens, the oldest first."""
        return self._book.tokens()

    def is_expired(self, token: AccessToken) -> bool:
        """Whether the token has expired."""
        return self._wall_time() >= token.expires_at

    def create(self, name: str, scopes: Iterable[str], life_s: float) -> tuple[str, AccessToken]:
        """Make a token; returns its text, which is not kept, and its entry. Raises ``ValueError``, `Unavailable`."""
        text, token = self._book.create(
            name, scopes, life_s, self._wall_time(), secrets.token_bytes(ID_BYTES), secrets.token_bytes(SECRET_BYTES)
        )
        try:
            self._save()
        except Unavailable:
            self._book.remove(token)
            raise
        _log.info("access.created", name=name, id=token.id, scopes=list(token.scopes))
        return text, token

    def revoke(self, name: str) -> AccessToken:
        """End the tokens of a name (or an id), and every request that uses them; returns the latest.

        Raises ``KeyError``, and `Unavailable` when it cannot be made durable; then they stay.
        """
        found = self._book.named(name)
        if not found:
            raise KeyError(name)
        for token in found:
            self._book.remove(token)
        try:
            self._save()
        except Unavailable:
            for token in found:
                self._book.restore(token)
            raise
        for token in found:
            for use in list(self._uses.get(token.id, {})):
                use.end(REVOKED)
        _log.info("access.revoked", name=found[-1].name, id=found[-1].id)
        return found[-1]

    # For every request

    def check(self, authorization: str, host: str) -> AccessToken:
        """The token of an ``Authorization`` header. Raises `AccessRefused`.

        A right token is accepted however many wrong ones came from its address: all clients may be behind one proxy,
        and a secret of 256 bits cannot be guessed. Clients with wrong ones are told to wait.
        """
        scheme, _, text = authorization.partition(" ")
        try:
            if scheme.lower() != "bearer":
                raise AccessRefused("token_malformed", "expected Authorization: Bearer TOKEN")
            return self._book.find(text.strip(), self._wall_time())
        except AccessRefused as error:
            must_wait = self._hosts.must_wait(host, self._now())
            self._hosts.refused(host, self._now())
            if self._logged.take(self._now()):
                _log.warning("access.refused", host=host, reason=error.reason)
            if must_wait:
                detail = f"too many wrong tokens from {host}; try again in {RETRY_AFTER_S} s"
                raise AccessRefused("too_many_wrong_tokens", detail) from error
            raise

    @asynccontextmanager
    async def while_valid(self, token: AccessToken) -> AsyncIterator[TokenUse]:
        """Run a request. When the token expires or is revoked, it is ended, or cancelled with ``TimeoutError``."""
        async with asyncio.timeout(None) as limit:
            use = TokenUse(limit)
            left_s = max(0.0, token.expires_at - self._wall_time())
            expiry = asyncio.get_running_loop().call_later(left_s, use.end, EXPIRED)
            uses = self._uses.setdefault(token.id, {})
            uses[use] = None
            try:
                yield use
            finally:
                expiry.cancel()
                del uses[use]
                if not uses:
                    self._uses.pop(token.id, None)

    def _save(self) -> None:
        self._table.replace(token.row() for token in self._book.tokens())
