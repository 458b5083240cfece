"""Event records as log records of OpenTelemetry, to a collector that speaks OTLP over HTTP (the extra ``otlp``).

A record is delivered at least once: where an answer is lost, it comes again, with the same ``node``, ``boot`` and
``id``.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec

from peerd.errors import ConfigError
from peerd.limits import EVENT_QUEUE_RECORDS_MAX
from peerd.telemetry.sinks import Medium, QueuedSink, back_off_s

if TYPE_CHECKING:
    from opentelemetry._logs import LogRecord

LOGS_PATH: Final = "/v1/logs"
SERVICE: Final = "peerd"
EXPORT_TIMEOUT_S: Final = 3.0
"""Of a request, with what the exporter tries again by itself: less than a sink has for closing."""
INT_MIN: Final = -(2**63)
INT_MAX: Final = 2**63 - 1


class OtlpSink(QueuedSink):
    """The records of ``node`` to a collector at ``otlp://host:port`` (HTTP), or ``otlps://host:port`` (HTTPS).

    What else a collector asks for is set as for any program that uses OpenTelemetry: ``OTEL_EXPORTER_OTLP_HEADERS``,
    ``OTEL_EXPORTER_OTLP_CERTIFICATE`` and their like. Raises `ConfigError` without the extra, or where these are wrong.
    """

    def __init__(self, target: str, node: str, *, queue_records_max: int = EVENT_QUEUE_RECORDS_MAX) -> None:
        try:
            medium = _OtlpMedium(target.replace("otlp", "http", 1) + LOGS_PATH, node)
        except ImportError as error:
            advice = f"{target} needs OpenTelemetry: pip install 'peerd[otlp]'"
            raise ConfigError(advice, key="telemetry.sink") from error
        except (ValueError, RuntimeError) as error:
            raise ConfigError(f"{target}: OpenTelemetry refuses its settings: {error}", key="telemetry.sink") from error
        super().__init__(medium, queue_records_max=queue_records_max, retry_s=back_off_s)


class _OtlpMedium(Medium):
    """Posts a batch at a time."""

    def __init__(self, url: str, node: str) -> None:
        from opentelemetry.exporter.otlp.proto.http import Compression
        from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
        from opentelemetry.sdk.resources import Resource

        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)  # the queue tells of failures, once
        self._url = url
        self._exporter = OTLPLogExporter(url, timeout=EXPORT_TIMEOUT_S, compression=Compression.Gzip)
        self._resource = Resource({"service.name": SERVICE, "service.instance.id": node})

    def put(self, lines: list[bytes]) -> None:
        from opentelemetry.sdk._logs import ReadableLogRecord
        from opentelemetry.sdk._logs.export import LogRecordExportResult

        told = [ReadableLogRecord(_log_record(msgspec.json.decode(line)), self._resource) for line in lines]
        if self._exporter.export(told) is not LogRecordExportResult.SUCCESS:
            raise OSError(f"{self._url} has not taken {len(told)} records")

    def finish(self) -> None:
        self._exporter.shutdown()


def _log_record(record: Mapping[str, Any]) -> LogRecord:
    from opentelemetry._logs import LogRecord, SeverityNumber

    at_ns = 1000 * round(1e6 * float(record.get("ts") or 0.0))  # a float has no more digits
    return LogRecord(
        timestamp=at_ns,
        observed_timestamp=at_ns,
        severity_text="INFO",
        severity_number=SeverityNumber.INFO,
        body=record["event"],
        attributes={name: _attribute(value) for name, value in record.items() if value is not None},
        event_name=record["event"],
    )


def _attribute(value: Any) -> Any:
    """An integer of more than 64 bits, which OTLP has not, becomes a text."""
    return str(value) if isinstance(value, int) and not INT_MIN <= value <= INT_MAX else value
