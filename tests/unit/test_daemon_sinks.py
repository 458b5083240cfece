"""``telemetry.sink`` names the destination of the event log."""

from __future__ import annotations

import gzip
import json
import socket
from pathlib import Path

import pytest

from peerd.config import PeerdConfig, TelemetryConfig
from peerd.daemon.event_log import open_sink
from peerd.ids import NodeId
from peerd.messages import PeerRef
from peerd.telemetry.sinks import NullSink

PEER = PeerRef(NodeId(1 << 120), "127.0.0.1", 7420)


def to(sink: str) -> PeerdConfig:
    return PeerdConfig(telemetry=TelemetryConfig(sink=sink))


RECORD: dict[str, object] = {"id": 1, "event": "test"}


def test_nowhere() -> None:
    assert isinstance(open_sink(PeerdConfig(), PEER, 1), NullSink)


def test_a_directory(tmp_path: Path) -> None:
    sink = open_sink(to(str(tmp_path)), PEER, 1)
    sink.write(RECORD)
    sink.close()
    [file] = tmp_path.glob("dt=*/hr=*/events-01000000-1-1.ndjson.gz")
    assert json.loads(gzip.decompress(file.read_bytes())) == RECORD


def test_standard_output(capfd: pytest.CaptureFixture[str]) -> None:
    sink = open_sink(to("stdout"), PEER, 1)
    sink.write(RECORD)
    sink.close()
    assert json.loads(capfd.readouterr().out) == RECORD


def test_a_collector() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(20)
        sink = open_sink(to(f"tcp://127.0.0.1:{server.getsockname()[1]}"), PEER, 1)
        sink.write(RECORD)
        connection, _ = server.accept()
        with connection, connection.makefile() as lines:
            assert json.loads(lines.readline()) == RECORD
        sink.close()


@pytest.mark.parametrize("wrong", ["udp://127.0.0.1:1", "tcp://nowhere", "tcp://"])
def test_what_is_no_destination(wrong: str) -> None:
    with pytest.raises(ValueError, match="expected"):
        TelemetryConfig(sink=wrong)
