"""A daemon's sink that sends to a collector (`peerd.daemon.collector.server`)."""

from __future__ import annotations

import contextlib
import socket
import ssl
from io import BufferedRWPair
from typing import Final, NamedTuple

from peerd.config import TlsFiles
from peerd.daemon.collector.words import VERSION, WORD_BYTES_MAX, BatchStored, EventBatch, LastStored, SinkHello
from peerd.errors import ConfigError, HandshakeRefused
from peerd.limits import EVENT_QUEUE_RECORDS_MAX
from peerd.telemetry.sinks import BACKOFF_S_MAX, CONNECT_TIMEOUT_S, Medium, QueuedSink

ANSWER_TIMEOUT_S: Final = 60.0
"""A collector has to wait for its disk, and lets who sends much wait."""


class SinkMembership(NamedTuple):
    """How a sink shows who it is, and knows a collector of its cluster."""

    files: TlsFiles
    cluster: str


class CollectorMedium(Medium):
    """For the sink's thread: one connection, dialled when there is something to send. A batch goes out when the one
    before is on the disk."""

    def __init__(self, host: str, port: int, hello: SinkHello, membership: SinkMembership | None) -> None:
        self._address, self._hello, self._membership = (host, port), hello, membership
        self._socket: socket.socket | None = None
        self._stream: BufferedRWPair | None = None

    def put(self, lines: list[bytes]) -> None:
        """Send lines and wait until they are stored. Raises ``OSError``: then they may be, and are told apart there."""
        try:
            stream = self._stream or self._connected()
            data = b"".join(lines)
            stream.write(EventBatch(len(data)).line() + data)
            stream.flush()
            answer = BatchStored.read(self._line(stream))
            if answer.refused:
                raise ConnectionError(f"the collector refuses: {answer.refused}")
        except (OSError, ValueError, HandshakeRefused, ConfigError) as error:
            self.finish()
            raise error if isinstance(error, OSError) else ConnectionError(str(error)) from error

    def finish(self) -> None:
        """Close the connection."""
        stream, self._stream = self._stream, None
        connection, self._socket = self._socket, None
        if connection is not None:
            connection.close()
        if stream is not None:
            with contextlib.suppress(OSError):  # what it still had to send is sent again
                stream.close()

    def _connected(self) -> BufferedRWPair:
        connection = socket.create_connection(self._address, CONNECT_TIMEOUT_S)
        self._socket = connection
        connection.settimeout(ANSWER_TIMEOUT_S)
        if self._membership is not None:
            connection = self._socket = _secured(connection, self._membership)
        stream = self._stream = connection.makefile("rwb")
        stream.write(self._hello.line())
        stream.flush()
        line = self._line(stream)
        try:
            LastStored.read(line)
        except ValueError:
            raise ConnectionError(f"the collector refuses: {BatchStored.read(line).refused}") from None
        return stream

    def _line(self, stream: BufferedRWPair) -> bytes:
        line = stream.readline(WORD_BYTES_MAX)
        if not line.endswith(b"\n"):
            raise ConnectionError("the collector has closed the connection")
        return line


def _secured(connection: socket.socket, membership: SinkMembership) -> ssl.SSLSocket:
    """TLS over a connection to a member of the cluster. The certificate is read each time: it may have been renewed."""
    from peerd.identity.node_identity import verify_peer_certificate
    from peerd.identity.tls import client_context, peer_certificate

    ca_file, cert_file, key_file = membership.files
    context = client_context(ca_file=ca_file, cert_file=cert_file, key_file=key_file)
    secured = context.wrap_socket(connection)
    try:
        verify_peer_certificate(
            peer_certificate(secured), cluster=membership.cluster, expected=None, denied=frozenset()
        )
    except HandshakeRefused:
        secured.close()
        raise
    return secured


class CollectorSink(QueuedSink):
    """Events to a collector: each at least once on the way, and once on its disk."""

    def __init__(
        self,
        host: str,
        port: int,
        node: str,
        *,
        boot: int,
        membership: SinkMembership | None,
        queue_records_max: int = EVENT_QUEUE_RECORDS_MAX,
    ) -> None:
        super().__init__(
            CollectorMedium(host, port, SinkHello(VERSION, node, boot), membership),
            queue_records_max=queue_records_max,
            retry_s=lambda failures: float(min(2**failures, BACKOFF_S_MAX)),
        )
