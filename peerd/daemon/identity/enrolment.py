"""Admits newcomers at the peer port; `peerd.wire.enrolment` describes the conversation.

A newcomer has proven nothing until its token is redeemed, so it gets no more than any stranger: a connection within the
listener's limits, one small frame, a few seconds, and a share of a few requests a second for all strangers together.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable
from typing import Protocol

from peerd.daemon.links.settings import LinkContext
from peerd.errors import ProtocolError, Unavailable
from peerd.identity.issuer import refusal_of
from peerd.identity.tokens import TokenRefused
from peerd.limits import FRAME_HEADER_BYTES, PREAUTH_FRAME_BYTES_MAX
from peerd.linking.join_limits import JoinLimits, host_of
from peerd.messages import Message
from peerd.wire.codec import decode, encode
from peerd.wire.enrolment import PREFACE, EnrolmentRequest, JoinGranted, JoinOffer
from peerd.wire.frames import Frame, frame_bytes, parse_header


class EnrolmentAuthority(Protocol):
    """Decides who is admitted: `peerd.daemon.identity.manager.IdentityManager`."""

    def offer(self) -> JoinOffer: ...

    def enrolment_context(self) -> ssl.SSLContext | None:
        """The TLS settings for newcomers; ``None`` on a node that does not issue certificates."""

    def enrol(self, request: EnrolmentRequest, address: str) -> JoinGranted:
        """Issue a certificate. Raises `TokenRefused`, `Unavailable`."""

    def turned_away(self, address: str, why: str) -> None:
        """A request was refused unread, because a limit was reached."""


class Enrolment:
    """Serves one newcomer at a time per connection; the listener owns the tasks and the limits."""

    def __init__(self, authority: EnrolmentAuthority, context: LinkContext) -> None:
        self._authority = authority
        self._context = context
        self._limits = JoinLimits(context.now())

    async def serve(self, sock: socket.socket, address: str) -> None:
        """Hold the conversation from the preface on, then close the socket.

        Raises ``TimeoutError``, `ProtocolError` or ``OSError`` for what ended it before an answer was given.
        """
        settings = self._context.settings
        async with asyncio.timeout(settings.tls_handshake_timeout_s + settings.hello_timeout_s):
            await self._serve(sock, address)

    async def _greet(self, sock: socket.socket) -> ssl.SSLContext | None:
        """Do the part without TLS. Returns ``None``, having closed the socket, when the conversation ends there."""
        context = None
        try:
            if await _receive_exactly(sock, len(PREFACE)) != PREFACE:
                raise ProtocolError("malformed", "neither TLS nor the preface of a newcomer")
            await asyncio.get_running_loop().sock_sendall(sock, frame_bytes(encode(self._authority.offer())))
            context = self._authority.enrolment_context()
        finally:
            if context is None:
                sock.close()
        return context

    async def _serve(self, sock: socket.socket, address: str) -> None:
        context = await self._greet(sock)
        if context is None:
            return
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=PREAUTH_FRAME_BYTES_MAX + FRAME_HEADER_BYTES)
        protocol = asyncio.StreamReaderProtocol(reader)
        transport, _ = await loop.connect_accepted_socket(
            lambda: protocol,
            sock,
            ssl=context,
            ssl_handshake_timeout=self._context.settings.tls_handshake_timeout_s,
            ssl_shutdown_timeout=self._context.settings.tls_shutdown_timeout_s,
        )
        writer = asyncio.StreamWriter(transport, protocol, reader, loop)
        try:
            answer = self._answer(await _read_frame(reader), address)
            writer.write(frame_bytes(encode(answer)))
            await writer.drain()
        except asyncio.IncompleteReadError:
            pass  # the newcomer refused our certificate, or died
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    def _answer(self, frame: Frame, address: str) -> Message:
        decoded = decode(frame)
        if decoded is None or not isinstance(decoded[0], EnrolmentRequest):
            raise ProtocolError("unexpected_message", f"type {frame[0]:#06x} in place of a request to join")
        host, now = host_of(address), self._context.now()
        if why := self._limits.admit(host, now):
            self._authority.turned_away(address, why)
            return refusal_of(Unavailable(why))
        try:
            return self._authority.enrol(decoded[0], address)
        except Unavailable as error:
            return refusal_of(error)
        except TokenRefused as error:
            self._limits.refused(host, now)
            return refusal_of(error)


async def first_byte(sock: socket.socket) -> bytes:
    """Look at the first byte without taking it; empty when the peer closed. Raises ``OSError``."""
    loop = asyncio.get_running_loop()
    while True:
        try:
            return sock.recv(1, socket.MSG_PEEK)
        except (BlockingIOError, InterruptedError):
            pass
        readable: asyncio.Future[None] = loop.create_future()
        loop.add_reader(sock.fileno(), _resolve(readable))
        try:
            await readable
        finally:
            loop.remove_reader(sock.fileno())


def _resolve(future: asyncio.Future[None]) -> Callable[[], None]:
    def resolve() -> None:
        if not future.done():
            future.set_result(None)

    return resolve


async def _receive_exactly(sock: socket.socket, size: int) -> bytes:
    loop, received = asyncio.get_running_loop(), b""
    while len(received) < size:
        chunk = await loop.sock_recv(sock, size - len(received))
        if not chunk:
            raise ConnectionResetError("closed during the preface")
        received += chunk
    return received


async def _read_frame(reader: asyncio.StreamReader) -> Frame:
    """Read one frame. Raises `ProtocolError`, ``asyncio.IncompleteReadError``, ``OSError``."""
    type_id, flags, length = parse_header(await reader.readexactly(FRAME_HEADER_BYTES), 0, PREAUTH_FRAME_BYTES_MAX)
    return (type_id, flags, await reader.readexactly(length))
