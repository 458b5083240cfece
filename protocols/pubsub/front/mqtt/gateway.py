"""The listener, and the sessions of its clients."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from peerd.cli.files import write_text
from peerd.errors import ConfigError, Unavailable
from protocols.pubsub.front.mqtt.connection import Connection
from protocols.pubsub.front.mqtt.packets import Connect
from protocols.pubsub.front.mqtt.ring import Notice, Ring
from protocols.pubsub.front.mqtt.session import SESSIONS_MAX, Session, load, save

SAVE_S: Final = 1.0
"""Between two times that sessions are written to the file: so much may come twice after a crash."""
STATE_MODE: Final = 0o600
STATE_BYTES_MAX: Final = 64 << 20
STOP_S: Final = 10.0


class Gateway:
    """Implements `protocols.pubsub.front.mqtt.connection.Book`."""

    def __init__(self, ring: Ring, notice: Notice, clients_max: int, state: Path | None = None) -> None:
        self._ring, self._notice, self._clients_max, self._state = ring, notice, clients_max, state
        self._connections: dict[Connection, None] = {}
        self._by_client: dict[str, Connection] = {}
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
                self._save()
        server.close()
        await self._close_all()
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

    async def _close_all(self) -> None:
        open_ones = list(self._connections)
        for connection in open_ones:
            connection.close()
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
            older.close()
            await older.ended.wait()
        if client_id:
            self._by_client[client_id] = connection
        known = self._sessions.get(client_id)
        if known is not None and not connect.is_clean:
            return known, True
        if known is not None:
            del self._sessions[client_id]
            for held in known.held.values():
                await self._ring.end(held)
        session = Session(client_id, connect.is_clean)
        if not connect.is_clean:
            if len(self._sessions) >= SESSIONS_MAX:
                return None
            self._sessions[client_id] = session
        return session, False

    async def over(self, connection: Connection) -> None:
        """See `Book.over`: what is not durable ends at the daemon as well."""
        for held in connection.session.held.values():
            if not held.name:
                await self._ring.end(held)
                held.id = ""
        if self._by_client.get(connection.session.client_id) is connection:
            del self._by_client[connection.session.client_id]


def _loaded(state: Path) -> dict[str, Session]:
    try:
        if state.stat().st_size > STATE_BYTES_MAX:
            raise ConfigError(f"larger than {STATE_BYTES_MAX} bytes", file=str(state))
        return load(state.read_text(), str(state))
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
