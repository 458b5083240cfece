"""HTTP over a daemon's unix socket without a client library, so that the daemons are measured and not their clients."""

from __future__ import annotations

import socket
from typing import Final

from bench.measure import BenchFailure

ANSWER_S: Final = 120.0
"""What has not come for so long does not come."""
_END: Final = b"\r\n\r\n"


def request(method: str, path: str, body: bytes = b"", kind: str = "application/json") -> bytes:
    """What a client sends."""
    about = f"Content-Type: {kind}\r\nContent-Length: {len(body)}\r\n" if body else ""
    return f"{method} {path} HTTP/1.1\r\nHost: peerd\r\n{about}\r\n".encode() + body


def connect(place: str, first: bytes = b"") -> socket.socket:
    """A connection to a daemon, with a request on its way."""
    sock = socket.socket(socket.AF_UNIX)
    sock.settimeout(ANSWER_S)
    sock.connect(place)
    sock.sendall(first)
    return sock


def received(sock: socket.socket) -> bytes:
    """What has come. Raises `BenchFailure` at the end of the connection, or of patience."""
    try:
        data = sock.recv(1 << 16)
    except TimeoutError as error:
        raise BenchFailure(f"a daemon says nothing for {ANSWER_S:g} s") from error
    if not data:
        raise BenchFailure("a daemon closed the connection")
    return data


def take_answer(data: bytearray) -> bytes | None:
    """Take the body of an answer from the front of what has come; ``None``: it is not all there yet.

    Raises `BenchFailure` for a refusal.
    """
    end = data.find(_END)
    if end < 0:
        return None
    status, *lines = bytes(data[:end]).lower().split(b"\r\n")
    lengths = [int(line.partition(b":")[2]) for line in lines if line.startswith(b"content-length:")]
    if not lengths:
        raise BenchFailure(f"an answer without a length: {status!r}")
    begin, length = end + len(_END), lengths[0]
    if len(data) < begin + length:
        return None
    body = bytes(data[begin : begin + length])
    del data[: begin + length]
    if not status.startswith(b"http/1.1 2"):
        raise BenchFailure(f"a daemon refuses: {body.decode(errors='replace'):.300}")
    return body


def answer(sock: socket.socket) -> bytes:
    """Wait for the body of an answer."""
    data = bytearray()
    while (body := take_answer(data)) is None:
        data += received(sock)
    return body
