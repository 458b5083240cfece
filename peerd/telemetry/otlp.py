"""Event records as log records of OpenTelemetry, to a collector that speaks OTLP over HTTP (the extra ``otlp``).

A record is delivered at least once: where an answer is lost, it comes again, with the same ``node``, ``boot`` and
``id``.
"""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec

from peerd.errors import ConfigError
from peerd.limits import EVENT_QUEUE_RECORDS_MAX
from peerd.telemetry.sinks import Medium, QueuedSink, back_off_s

if TYPE_CHECKING:
    from opentelemetry.sdk._logs import ReadableLogRecord
    from opentelemetry.sdk.resources import Resource

LOGS_PATH: Final = "/v1/logs"
SERVICE: Final = "peerd"
EXPORT_TIMEOUT_S: Final = 3.0
"""Of a request, with what the exporter tries again by itself: less than a sink has for closing."""
INT_MIN: Final = -(2**63)
INT_MAX: Final = 2**63 - 1


class OtlpSink(QueuedSink):
    """Records to a collector at ``otlp://host:port`` (HTTP), or ``otlps://host:port`` (HTTPS).

    What else a collector asks for is set as for any program that uses OpenTelemetry: ``OTEL_EXPORTER_OTLP_HEADERS``,
    ``OTEL_EXPORTER_OTLP_CERTIFICATE`` and their like. Raises `ConfigError` without the extra.
    """

    def __init__(self, target: str, *, queue_records_max: int = EVENT_QUEUE_RECORDS_MAX) -> None:
        if importlib.util.find_spec("opentelemetry") is None:
            raise ConfigError(f"{target} needs OpenTelemetry: pip install 'peerd[otlp]'", key="telemetry.sink")
        url = target.replace("otlp", "http", 1) + LOGS_PATH
        super().__init__(_OtlpMedium(url), queue_records_max=queue_records_max, retry_s=back_off_s)


class _OtlpMedium(Medium):
    """Posts a batch at a time. Its packages are imported with the first one: they take a tenth of a second."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._exporter: Any = None
        self._resources: dict[object, Resource] = {}

    def put(self, lines: list[bytes]) -> None:
        from opentelemetry.exporter.otlp.proto.http import Compression
        from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
        from opentelemetry.sdk._logs.export import LogRecordExportResult

        if self._exporter is None:
            logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)  # the queue tells of failures, once
            self._exporter = OTLPLogExporter(self._url, timeout=EXPORT_TIMEOUT_S, compression=Compression.Gzip)
        records = [self._log_record(msgspec.json.decode(line)) for line in lines]
        if self._exporter.export(records) is not LogRecordExportResult.SUCCESS:
            raise OSError(f"{self._url} has not taken {len(records)} records")

    def finish(self) -> None:
        if self._exporter is not None:
            self._exporter.shutdown()

    def _log_record(self, record: Mapping[str, Any]) -> ReadableLogRecord:
        from opentelemetry._logs import LogRecord, SeverityNumber
        from opentelemetry.sdk._logs import ReadableLogRecord
        from opentelemetry.sdk.resources import Resource

        node = record.get("node")
        if node not in self._resources:
            self._resources[node] = Resource({"service.name": SERVICE, "service.instance.id": str(node)})
        at_ns = 1000 * round(1e6 * float(record.get("ts") or 0.0))  # a float has no more digits
        told = LogRecord(
            timestamp=at_ns,
            observed_timestamp=at_ns,
            severity_text="INFO",
            severity_number=SeverityNumber.INFO,
            body=record["event"],
            attributes={name: _attribute(value) for name, value in record.items() if value is not None},
            event_name=record["event"],
        )
        return ReadableLogRecord(told, self._resources[node])


def _attribute(value: Any) -> Any:
    """An integer of more than 64 bits, which OTLP has not, becomes a text."""
    return str(value) if isinstance(value, int) and not INT_MIN <= value <= INT_MAX else value
