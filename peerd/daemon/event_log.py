"""Opens the destination of the event log that the table ``[telemetry]`` names."""

from __future__ import annotations

from pathlib import Path

from peerd.config import TCP_SINK, TelemetryConfig, split_address
from peerd.errors import ConfigError
from peerd.ids import format_id
from peerd.messages import PeerRef
from peerd.telemetry.event_files import FileLimits, FileSink
from peerd.telemetry.sinks import EventSink, NullSink, QueuedSink, StdoutSink, TcpSink


def open_sink(telemetry: TelemetryConfig, peer: PeerRef, epoch: int) -> EventSink:
    """The destination that ``telemetry.sink`` names. Raises `ConfigError` for a directory that cannot be used."""
    target, queue_max = telemetry.sink, telemetry.queue_records_max
    if not target:
        return NullSink()
    if target == "stdout":
        return StdoutSink(queue_records_max=queue_max)
    if target.startswith(TCP_SINK):
        return TcpSink(*split_address(target.removeprefix(TCP_SINK)), queue_records_max=queue_max)
    try:
        return FileSink(
            Path(target),
            format_id(peer.id),
            boot=epoch,
            limits=_file_limits(telemetry),
            queue_records_max=queue_max,
        )
    except OSError as error:
        raise ConfigError(f"cannot be used: {error.strerror}", file=target, key="telemetry.sink") from error


def limit_sink(sink: EventSink, telemetry: TelemetryConfig) -> None:
    """Give a destination that is in use the limits of ``telemetry``."""
    if isinstance(sink, QueuedSink):
        sink.limit(telemetry.queue_records_max)
    if isinstance(sink, FileSink):
        sink.files.limit(_file_limits(telemetry))


def _file_limits(telemetry: TelemetryConfig) -> FileLimits:
    is_packed = telemetry.compression == "gzip"
    return FileLimits(telemetry.rotate_size, telemetry.rotate_age, telemetry.budget, is_packed)
