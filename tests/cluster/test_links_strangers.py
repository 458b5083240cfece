"""How many bytes a stranger gets for its own, before it has proved who it is."""

from __future__ import annotations

import asyncio
import socket
import ssl
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

from peerd.wire.enrolment import PREFACE, PREFACE_BYTES
from tests.cluster.test_identity_cluster import Cluster
from tests.cluster.test_links_hostile import BAD_FIRST_BYTES, HELLO
from tests.support.both_loops import both_loops

PATIENCE_S: Final = 20.0
TLS_BYTES_MAX: Final = 4096
"""The server's part of a TLS 1.3 handshake, which no server can make much smaller: its certificate is in it."""


def said_in_the_clear(port: int, data: bytes) -> int:
    """Send bytes, and nothing more; how many come back until the port closes the connection."""
    received = 0
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as sock, suppress(ConnectionResetError):
        sock.sendall(data)
        while chunk := sock.recv(65536):
            received += len(chunk)
    return received


def first_words_of_tls(port: int) -> tuple[int, int]:
    """Begin a handshake and say nothing more; bytes sent and received."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    outgoing = ssl.MemoryBIO()
    client = context.wrap_bio(ssl.MemoryBIO(), outgoing)
    with suppress(ssl.SSLWantReadError):
        client.do_handshake()
    hello = outgoing.read()
    return len(hello), said_in_the_clear(port, hello)


@both_loops
async def test_a_stranger_gets_no_more_bytes_than_it_sends_but_for_one_answer_of_tls(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    async with cluster.issuer() as one:
        context = one.links.context
        context.settings = replace(context.settings, tls_handshake_timeout_s=0.5, hello_timeout_s=0.5)
        port = one.peer.port
        for data in (HELLO, *(data for data, _ in BAD_FIRST_BYTES.values())):
            assert await asyncio.to_thread(said_in_the_clear, port, data) == 0
        assert 0 < await asyncio.to_thread(said_in_the_clear, port, PREFACE) <= len(PREFACE) == PREFACE_BYTES
        assert await asyncio.to_thread(said_in_the_clear, port, PREFACE[:-1]) == 0
        sent, received = await asyncio.to_thread(first_words_of_tls, port)
        assert 0 < received <= TLS_BYTES_MAX and sent > 0
