"""The listener, and the sessions of its clients."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from peerd.cli.files import write_text
from peerd.errors import ConfigError, PeerdError, Unavailable
from protocols.pubsub.front.mqtt.connection import Connection
from protocols.pubsub.front.mqtt.packets import ApplicationMessage, Connect, Reason
from protocols.pubsub.front.mqtt.ring import Notice, RingAccess
from protocols.pubsub.front.mqtt.session import SESSIONS_MAX, Session, load, save

SAVE_S: Final = 1.0
"""Between two times that sessions are written to the file: so much may come twice after a crash."""
STATE_MODE: Final = 0o600
STATE_BYTES_MAX: Final = 64 << 20
STOP_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class DelayedWill:
    """A will that is published later, unless its client comes back before (section 3.1.3.2.2)."""

    will: ApplicationMessage
    sender: str
    at: float


class Gateway:
    """Implements `protocols.pubsub.front.mqtt.connection.Book`."""

    def __init__(self, ring: RingAccess, notice: Notice, clients_max: int, state: Path | None = None) -> None:
        self._ring, self._notice, self._clients_max, self._state = ring, notice, clients_max, state
        self._connections: dict[Connection, None] = {}
        self._by_client: dict[str, Connection] = {}
        self._wills: dict[str, DelayedWill] = {}
        self._sessions = {} if state is None else _loaded(state)
        self._written = save(self._sessions)

    async def serve(self, host: str, port: int, stop: asyncio.Event, on_ready: Callable[[int], None]) -> None:
        """Serve clients until ``stop`` is set. ``on_ready`` gets the port. Raises `ConfigError`."""
        try:
            server = await asyncio.start_server(self._accept, host, port)
        except OSError as error:
            raise ConfigError(f"cannot listen on {host}:{port}: {error.strerror}", key="--listen") from error
        on_ready(server.sockets[0].getsockname()[1])
        while not stop.is_set():
            try:
                async with asyncio.timeout(SAVE_S):
                    await stop.wait()
            except TimeoutError:
                await self._tidy(time.time())
                self._save()
        server.close()
        await self._close_all()
        for client_id in list(self._wills):
            await self._publish_delayed(client_id)
        self._save()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._connections) >= self._clients_max:
            self._notice(f"a client was refused: there are {self._clients_max} already")
            writer.close()
            return
        connection = Connection(self._ring, self, reader, writer)
        self._connections[connection] = None
        try:
            await connection.run()
        finally:
            self._connections.pop(connection, None)
            if connection.why:
                self._notice(f"client {connection.session.client_id!r:.80}: {connection.why}")

    async def _tidy(self, now: float) -> None:
        """End sessions that were kept as long as their clients wanted; publish the wills whose time has come."""
        for client_id in [each for each, delayed in self._wills.items() if now >= delayed.at]:
            await self._publish_delayed(client_id)
        for session in [each for each in self._sessions.values() if each.is_over(now)]:
            await self._forget(session)

    async def _forget(self, session: Session) -> None:
        del self._sessions[session.client_id]
        for held in session.held.values():
            await self._ring.end(held)

    async def _publish_delayed(self, client_id: str) -> None:
        delayed = self._wills.pop(client_id)
        await self._publish_will(delayed.will, delayed.sender)

    async def _publish_will(self, will: ApplicationMessage, sender: str) -> None:
        try:
            await self._ring.publish(will, sender)
        except PeerdError as error:
            self._notice(f"a will could not be published: {error}")

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

    async def begin(self, connection: Connection, connect: Connect) -> tuple[Session, bool] | None:
        """See `Book.begin`. An older connection of the same client is closed (section 3.1.4)."""
        client_id = connect.client_id
        while client_id and (older := self._by_client.get(client_id)) is not None:
            older.close(Reason.SessionTakenOver)
            await older.ended.wait()
        if client_id:
            self._by_client[client_id] = connection
        known = self._sessions.get(client_id)
        if known is not None and (connect.is_clean or known.is_over(time.time())):
            await self._forget(known)
            known = None
        if known is not None:
            self._wills.pop(client_id, None)
            known.expires_s = connect.expires_s
            return known, True
        if client_id in self._wills:
            await self._publish_delayed(client_id)
        session = Session(client_id, connect.expires_s)
        if not session.is_clean:
            if len(self._sessions) >= SESSIONS_MAX:
                return None
            self._sessions[client_id] = session
        return session, False

    async def over(self, connection: Connection, will: ApplicationMessage | None, delay_s: int) -> None:
        """See `Book.over`: what is not durable ends at the daemon as well."""
        session, now = connection.session, time.time()
        session.left_at = now
        delay_s = min(delay_s, session.expires_s)
        if will is not None and delay_s:
            self._wills[session.client_id] = DelayedWill(will, session.sender, now + delay_s)
        elif will is not None:
            await self._publish_will(will, session.sender)
        for held in session.held.values():
            if session.is_clean or not held.name:
                await self._ring.end(held)
                held.id = ""
        if session.is_clean and self._sessions.get(session.client_id) is session:
            del self._sessions[session.client_id]
        for client_id in [each for each, known in self._by_client.items() if known is connection]:
            del self._by_client[client_id]  # where the client was refused, the session does not say its name


def _loaded(state: Path) -> dict[str, Session]:
    try:
        if state.stat().st_size > STATE_BYTES_MAX:
            raise ConfigError(f"larger than {STATE_BYTES_MAX} bytes", file=str(state))
        return load(state.read_text(), str(state), time.time())
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
