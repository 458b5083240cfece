"""Opens the destination of the event log that the table ``[telemetry]`` names."""

from __future__ import annotations

from pathlib import Path

from peerd.config import COLLECTOR_SINK, OTLP_SINKS, TCP_SINK, PeerdConfig, TelemetryConfig, split_address
from peerd.errors import ConfigError
from peerd.ids import format_id
from peerd.messages import PeerRef
from peerd.telemetry.event_files import FileLimits, FileSink
from peerd.telemetry.sinks import EventSink, NullSink, QueuedSink, StdoutSink, TcpSink


def open_sink(config: PeerdConfig, peer: PeerRef, epoch: int) -> EventSink:
    """The destination that ``telemetry.sink`` names. Raises `ConfigError` for one that cannot be used."""
    telemetry = config.telemetry
    target, queue_max = telemetry.sink, telemetry.queue_records_max
    if not target:
        return NullSink()
    if target == "stdout":
        return StdoutSink(queue_records_max=queue_max)
    if target.startswith(TCP_SINK):
        return TcpSink(*split_address(target.removeprefix(TCP_SINK)), queue_records_max=queue_max)
    if target.startswith(OTLP_SINKS):
        from peerd.telemetry.otlp import OtlpSink

        return OtlpSink(target, format_id(peer.id), queue_records_max=queue_max)
    if target.startswith(COLLECTOR_SINK):
        from peerd.daemon.collector.client import CollectorSink, SinkMembership

        address, node = split_address(target.removeprefix(COLLECTOR_SINK)), format_id(peer.id)
        membership = SinkMembership(config.tls_files(), config.node.cluster) if config.tls.mode == "mutual" else None
        return CollectorSink(*address, node, boot=epoch, membership=membership, queue_records_max=queue_max)
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
