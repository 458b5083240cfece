"""The listener, and the sessions of its clients."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

from peerd.cli.files import write_text
from peerd.client import RequestRefused
from peerd.errors import ConfigError, PeerdError, Unavailable
from peerd.system.sockets import peer_credentials
from protocols.pubsub.front.mqtt.connection import Begun, Connection
from protocols.pubsub.front.mqtt.packets import ApplicationMessage, Connect, PacketOutcome, Reason
from protocols.pubsub.front.mqtt.ring import Notice, RingAccess
from protocols.pubsub.front.mqtt.session import (
    SESSIONS_MAX,
    SESSIONS_PER_USER_MAX,
    GatewaySettings,
    Session,
    SessionKey,
    load,
    save,
)
from protocols.pubsub.front.mqtt.users import NOBODY, User, greediest, user_of

SAVE_S: Final = 1.0
"""Between two times that sessions are written to the file: so much may come twice after a crash."""
STATE_MODE: Final = 0o600
STATE_BYTES_MAX: Final = 64 << 20
STOP_S: Final = 10.0
SILENT_S: Final = 5.0
"""A connection gives way to another one of its own user once it has been silent for so long; to others at once."""
SOCKET_MODE: Final = 0o666
"""Every user of the machine may connect to a unix socket: each has a quota."""
Address: TypeAlias = tuple[str, int] | Path
"""Host and port, or the path of a unix socket."""


@dataclass(frozen=True, slots=True)
class DelayedWill:
    """A will that is published later, unless its client comes back before (section 3.1.3.2.2)."""

    will: ApplicationMessage
    sender: str
    at: float
    user: User = NOBODY


class Gateway:
    """Implements `protocols.pubsub.front.mqtt.connection.Book`."""

    def __init__(self, ring: RingAccess, notice: Notice, settings: GatewaySettings, state: Path | None = None) -> None:
        self._ring, self._notice, self.settings, self._state = ring, notice, settings, state
        self._rings: dict[str, RingAccess] = {}
        """By token: what the daemon does for those who show it, while one of them is connected."""
        self._connections: dict[Connection, None] = {}
        self._by_client: dict[SessionKey, Connection] = {}
        self._wills: dict[SessionKey, DelayedWill] = {}
        self._sessions = {} if state is None else _loaded(state, settings.expires_max_s)
        self._written = save(self._sessions)

    async def serve(self, address: Address, stop: asyncio.Event, on_ready: Callable[[str], None]) -> None:
        """Serve clients until ``stop`` is set. ``on_ready`` gets the address. Raises `ConfigError`."""
        try:
            server = await self._listen(address)
        except OSError as error:
            raise ConfigError(f"cannot listen on {address}: {error.strerror}", key="--listen") from error
        name = server.sockets[0].getsockname()
        on_ready(str(address) if isinstance(address, Path) else f"{name[0]}:{name[1]}")
        while not stop.is_set():
            try:
                async with asyncio.timeout(SAVE_S):
                    await stop.wait()
            except TimeoutError:
                await self._tidy(time.time())
                self._save()
        server.close()
        await self._close_all()
        for key in list(self._wills):
            await self._publish_delayed(key)
        self._save()

    async def _listen(self, address: Address) -> asyncio.Server:
        if isinstance(address, Path):
            server = await asyncio.start_unix_server(self._accept, address)
            address.chmod(SOCKET_MODE)
            return server
        return await asyncio.start_server(self._accept, *address)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            uid, _ = peer_credentials(writer.get_extra_info("socket"))
        except OSError:  # it has gone already
            uid = None
        connection = Connection(self._ring, self, reader, writer, uid)
        if len(self._connections) >= self.settings.clients_max and not self._make_room(connection):
            self._notice(f"a client of {connection.user.pays} was refused: there are {len(self._connections)} already")
            writer.close()
            return
        self._connections[connection] = None
        self._ring.counts.clients = len(self._connections)
        try:
            await connection.run()
        finally:
            self._connections.pop(connection, None)
            self._ring.counts.clients = len(self._connections)
            await self._let_go(connection.user.token)
            if connection.why:
                self._notice(f"client {connection.session.client_id!r:.80}: {connection.why}")

    def _make_room(self, newcomer: Connection) -> bool:
        """End the connection that has been silent for longest, of the user with most of them; whether there is one."""
        pays = greediest((each.user.pays for each in self._connections), newcomer.user.pays)
        theirs = [each for each in self._connections if each.user.pays == pays]
        quietest = min(theirs, key=lambda each: (each.is_begun, each.heard_at), default=None)
        now = asyncio.get_running_loop().time()
        if quietest is None or (pays == newcomer.user.pays and now - quietest.heard_at < SILENT_S):
            return False
        self._notice(f"a client of {pays} gave way: it was silent for {now - quietest.heard_at:.0f} s")
        self._connections.pop(quietest)
        quietest.close(Reason.QuotaExceeded)
        return True

    async def _let_go(self, token: str) -> None:
        """Close the connections to the daemon for a token that nobody shows any more."""
        if token in self._rings and all(each.user.token != token for each in self._connections):
            await self._rings.pop(token).close()

    async def _tidy(self, now: float) -> None:
        """End sessions that were kept as long as their clients wanted; publish the wills whose time has come."""
        for key in [each for each, delayed in self._wills.items() if now >= delayed.at]:
            await self._publish_delayed(key)
        for session in [each for each in self._sessions.values() if each.is_over(now)]:
            await self._forget(session)

    async def _forget(self, session: Session) -> None:
        del self._sessions[session.key]
        for held in session.held.values():
            await self._ring.end(held)

    async def _publish_delayed(self, key: SessionKey) -> None:
        delayed = self._wills.pop(key)
        await self._publish_will(delayed.will, delayed.sender, delayed.user)

    async def _publish_will(self, will: ApplicationMessage, sender: str, user: User) -> None:
        ring = self._ring_of(user)
        try:
            (verdict,) = await ring.publish([will], sender)
            if isinstance(verdict, Unavailable):
                raise verdict
        except PeerdError as error:
            self._notice(f"a will could not be published: {error}")
        await self._let_go(user.token)

    def _ring_of(self, user: User) -> RingAccess:
        if not user.token:
            return self._ring
        if user.token not in self._rings:
            self._rings[user.token] = self._ring.shown(user.token)
        return self._rings[user.token]

    async def _close_all(self) -> None:
        open_ones = list(self._connections)
        for connection in open_ones:
            connection.close(Reason.ServerShuttingDown)
        try:
            async with asyncio.timeout(STOP_S):
                for connection in open_ones:
                    await connection.ended.wait()
        except TimeoutError:
            self._notice("some clients could not be ended in order")

    def _save(self) -> None:
        text = save(self._sessions)
        if self._state is None or text == self._written:
            return
        try:
            write_text(self._state, text, STATE_MODE)
            self._written = text
        except Unavailable as error:
            self._notice(str(error))

    # Sessions

    async def begin(self, connection: Connection, connect: Connect) -> Begun | PacketOutcome:
        """See `Book.begin`. An older connection of the same client is closed (section 3.1.4)."""
        user = user_of(connection.uid, connect, self.settings.wants_tokens)
        if user is None:
            return PacketOutcome(Reason.BadUserNameOrPassword, "show an access token of the daemon as the password")
        connection.user = user
        ring = self._ring_of(user)
        if user.token:
            try:
                await ring.check()
            except RequestRefused as error:
                return PacketOutcome(Reason.NotAuthorized, str(error))
        key = user.owner, connect.client_id
        while connect.client_id and (older := self._by_client.get(key)) is not None:
            older.close(Reason.SessionTakenOver)
            await older.ended.wait()
        if connect.client_id:
            self._by_client[key] = connection
        known = self._sessions.get(key)
        if known is not None and (connect.is_clean or known.is_over(time.time())):
            await self._forget(known)
            known = None
        expires_s = min(connect.expires_s, self.settings.expires_max_s)
        if known is not None:
            self._wills.pop(key, None)
            known.expires_s, known.user = expires_s, user
            return Begun(known, True, ring)
        if key in self._wills:
            await self._publish_delayed(key)
        session = Session(connect.client_id, expires_s, user)
        if not session.is_clean:
            if not await self._has_room(user):
                return PacketOutcome(Reason.QuotaExceeded, f"there are too many kept sessions of {user.pays}")
            self._sessions[key] = session
        return Begun(session, False, ring)

    async def _has_room(self, user: User) -> bool:
        """Whether another session may be kept. Where there are too many in all, one of whoever has most is ended."""
        if sum(each.user.pays == user.pays for each in self._sessions.values()) >= SESSIONS_PER_USER_MAX:
            return False
        if len(self._sessions) < SESSIONS_MAX:
            return True
        pays = greediest((each.user.pays for each in self._sessions.values()), user.pays)
        away = [each for each in self._sessions.values() if each.user.pays == pays and each.left_at is not None]
        if pays == user.pays or not away:
            return False
        oldest = min(away, key=lambda each: each.left_at or 0.0)
        self._notice(f"the session of client {oldest.client_id!r:.80} of {pays} gave way to one of {user.pays}")
        await self._forget(oldest)
        return True

    async def over(self, connection: Connection, will: ApplicationMessage | None, delay_s: int) -> None:
        """See `Book.over`: what is not durable ends at the daemon as well."""
        session, now = connection.session, time.time()
        session.left_at = now
        delay_s = min(delay_s, session.expires_s)
        if will is not None and delay_s:
            self._wills[session.key] = DelayedWill(will, session.sender, now + delay_s, session.user)
        elif will is not None:
            await self._publish_will(will, session.sender, session.user)
        for held in session.held.values():
            if session.is_clean or not held.name:
                await self._ring.end(held)
                held.id = ""
        if session.is_clean and self._sessions.get(session.key) is session:
            del self._sessions[session.key]
        for key in [each for each, known in self._by_client.items() if known is connection]:
            del self._by_client[key]  # where the client was refused, the session does not say its name


def _loaded(state: Path, expires_max_s: int) -> dict[SessionKey, Session]:
    try:
        if state.stat().st_size > STATE_BYTES_MAX:
            raise ConfigError(f"larger than {STATE_BYTES_MAX} bytes", file=str(state))
        return load(state.read_text(), str(state), time.time(), expires_max_s)
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read it: {error}", file=str(state)) from error


class Notices:
    """Says things on standard error, not more than one in a while: clients must not fill the disk with them."""

    def __init__(self, write: Notice, every_s: float = 0.2) -> None:
        self._write, self._every_s = write, every_s
        self._last_s = -every_s
        self._hidden = 0

    def __call__(self, text: str) -> None:
        now_s = time.monotonic()
        if now_s - self._last_s < self._every_s:
            self._hidden += 1
            return
        more = f" ({self._hidden} more were not shown)" if self._hidden else ""
        self._last_s, self._hidden = now_s, 0
        self._write(f"{text}{more}")
