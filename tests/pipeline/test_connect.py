"""Spark Connect: a store that needs no JVM, and servers that are none. tests/deploy has a job on a real one."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from peerd.errors import ExitCode, PeerdError, Unavailable
from peerd.pipeline.requirements import CONNECT_NEEDS
from tests.pipeline.test_pipeline_cli import run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytest.importorskip("pyspark", reason="the extra `spark` is not installed")
pytestmark = pytest.mark.spark


def test_a_store_without_a_jvm(spark: SparkSession, tmp_path: Path) -> None:
    """It has the rows that the other one has; what it cannot remove has none."""
    from peerd.pipeline.store import ConnectStore

    store = ConnectStore(spark, str(tmp_path))
    table = store.write("numbers", store.frame([(1,), (2,), (3,)], "number bigint"))
    table = store.rewrite("numbers", table.where("number > 1"))
    assert sorted(row["number"] for row in table.collect()) == [2, 3]
    assert store.read("_new_numbers").count() == 0
    store.remove("numbers")
    assert store.read("numbers").columns == ["number"] and store.read("numbers").count() == 0
    store.remove("never written")
    assert not (tmp_path / "never written").exists()


def test_where_it_writes_is_where_its_server_is(spark: SparkSession, tmp_path: Path) -> None:
    from peerd.pipeline.store import ConnectStore

    with pytest.raises(Unavailable, match="out: Spark Connect writes where its server is: give the whole path"):
        ConnectStore(spark, "out")
    ConnectStore(spark, "/ring/tables").check_apart(["file:///ring/events/x.ndjson"], ["events"])
    for out, file in (
        ("/ring", "file:///ring/events/x.ndjson"),
        ("/ring", "hdfs://name/ring/events/x.ndjson"),
        ("s3a://ring", "s3a://ring/events/x.ndjson"),
        ("file:/ring", "file:///ring/events/x.ndjson"),
    ):
        with pytest.raises(Unavailable, match="would be written over the event file"):
            ConnectStore(spark, out).check_apart([file], ["events"])


def test_nobody_listens() -> None:
    from peerd.pipeline.session import spark_session

    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
        with (
            pytest.raises(Unavailable, match=f"no Spark Connect at 127.0.0.1:{port}"),
            spark_session(f"sc://127.0.0.1:{port}"),
        ):
            pass
    with pytest.raises(Unavailable, match="sc://host:much") as failure, spark_session("sc://host:much/;token=secret"):
        pass
    assert "secret" not in str(failure.value)


def test_another_server_is_told_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in CONNECT_NEEDS:
        pytest.importorskip(module, reason="the extra `connect` is not installed")
    from peerd.pipeline import connect
    from peerd.pipeline.session import spark_session

    monkeypatch.setattr(connect, "RETRIES_MAX", 1)
    with (
        answering(b"HTTP/1.1 400 Bad Request\r\n\r\n") as port,
        pytest.raises(PeerdError, match=r"Spark failed: .") as failure,
        spark_session(f"sc://127.0.0.1:{port}"),
    ):
        pass
    assert "\n" not in str(failure.value) and "_InactiveRpcError" not in str(failure.value)
    with answering(b"") as port, pytest.raises(Unavailable, match="no address such as sc://host:15002") as failure:
        address = f"sc://127.0.0.1:{port}/;token=secret;user_id"
        with spark_session(address):
            pass
    assert "secret" not in str(failure.value)


@contextmanager
def answering(text: bytes) -> Iterator[int]:
    """A server that says this to everybody; its port."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection:
                    connection.sendall(text)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)
    thread.join()


def test_nothing_is_followed_over_it(tmp_path: Path) -> None:
    for module in CONNECT_NEEDS:
        pytest.importorskip(module, reason="the extra `connect` is not installed")
    result = run(str(tmp_path), "--out", str(tmp_path / "out"), "--follow", "--master", "sc://host")
    assert result.exit_code == ExitCode.UNAVAILABLE
    assert "--follow runs in the program that begins it" in " ".join(result.output.split())


def test_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    """No Java, but gRPC."""
    from peerd.pipeline import requirements

    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    found = {"pyspark", *CONNECT_NEEDS}
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name if name in found else None)
    requirements.check_requirements("sc://host")
    with pytest.raises(Unavailable, match="Java"):
        requirements.check_requirements("spark://host:7077")
    found.remove("grpc_status")
    with pytest.raises(Unavailable, match=r"pip install 'peerd\[connect\]'"):
        requirements.check_requirements("sc://host")
