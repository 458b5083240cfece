"""Events as log records of OpenTelemetry: over HTTP, to a collector that fails now and then."""

from __future__ import annotations

import gzip
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from peerd.errors import ConfigError
from peerd.telemetry import otlp, sinks
from peerd.telemetry.otlp import OtlpSink
from tests.support.daemon_process import wait_until

pytest.importorskip("opentelemetry.exporter", reason="the extra `otlp` is not installed")

NODE = "0123456789abcdef" * 2
STAMPS = {"schema_version": 1, "ts": 1_790_000_000.25, "mono_s": 2.0, "node": NODE, "boot": 3, "cause": None}


class Collector(HTTPServer):
    """Keeps the requests that it has taken; refuses the first ones if it is told to."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.refusals = 0
        self.records: list[tuple[str, dict[str, Any], Any]] = []
        """Service instance, attributes, and the record itself."""

    @property
    def target(self) -> str:
        return f"otlp://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest

        body = gzip.decompress(self.rfile.read(int(self.headers["content-length"])))
        if self.server.refusals:
            self.server.refusals -= 1
            self.send_response(400)
        else:
            self.send_response(200)
            for each in ExportLogsServiceRequest.FromString(body).resource_logs:
                of = {pair.key: pair.value.string_value for pair in each.resource.attributes}
                for scope in each.scope_logs:
                    for told in scope.log_records:
                        self.server.records.append(
                            (of["service.instance.id"], dict(map(_plain, told.attributes)), told)
                        )
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, format: str, *arguments: object) -> None:
        pass


def _plain(pair: Any) -> tuple[str, Any]:
    kind = pair.value.WhichOneof("value")
    return pair.key, getattr(pair.value, kind)


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_a_record_is_a_log_record_with_all_its_fields(collector: Collector) -> None:
    sink = OtlpSink(collector.target, NODE)
    sink.write({**STAMPS, "id": 1, "event": "node.ready", "duration_s": 0.5, "is_first": True, "big": 2**80})
    sink.close()
    assert sink.dropped_total == 0
    ((node, attributes, told),) = collector.records
    assert node == NODE
    assert told.event_name == told.body.string_value == "node.ready"
    assert told.time_unix_nano == 1_790_000_000_250_000_000
    wanted = {name: value for name, value in STAMPS.items() if value is not None}
    assert attributes == wanted | {
        "id": 1,
        "event": "node.ready",
        "duration_s": 0.5,
        "is_first": True,
        "big": str(2**80),
    }


def test_what_a_collector_refuses_is_sent_again(collector: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sinks, "BACKOFF_S_MAX", 0.01)
    collector.refusals = 2
    sink = OtlpSink(collector.target, NODE)
    for number in range(1, 6):
        sink.write({**STAMPS, "id": number, "event": "node.ready"})
    wait_until(lambda: len(collector.records) == 5, "all records")
    sink.close()
    assert [attributes["id"] for _, attributes, _ in collector.records] == [1, 2, 3, 4, 5]
    assert (collector.refusals, sink.dropped_total) == (0, 0)


def test_without_a_collector_it_closes_in_time_and_counts_what_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(otlp, "EXPORT_TIMEOUT_S", 0.2)
    sink = OtlpSink("otlp://127.0.0.1:1", NODE)
    sink.write({**STAMPS, "id": 1, "event": "node.ready"})
    sink.close()
    assert sink.dropped_total == 1


def test_without_the_extra_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http", None)
    with pytest.raises(ConfigError, match=r"pip install 'peerd\[otlp\]'"):
        OtlpSink("otlp://collector:4318", NODE)


def test_settings_that_opentelemetry_refuses_are_told_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the sink's thread they would end it, and all events would be dropped."""
    monkeypatch.setenv("OTEL_PYTHON_EXPORTER_OTLP_HTTP_LOGS_CREDENTIAL_PROVIDER", "nobody")
    with pytest.raises(ConfigError, match=r"OpenTelemetry refuses its settings: .*nobody"):
        OtlpSink("otlps://collector:4318", NODE)
