"""A real daemon, its operators, its data clients, and another user of the machine."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from tests.support.daemon_process import DaemonProcess, peerd, running
from tests.support.http_site import UNFINISHED_BODY

pytestmark = pytest.mark.cluster

STRANGER = 54321
FLOOD = 80
AS_ANOTHER_USER = """
import os, socket, sys
path, user_id, method, target, body = sys.argv[1], int(sys.argv[2]), *sys.argv[3:]
os.setgroups([]), os.setgid(user_id), os.setuid(user_id)
with socket.socket(socket.AF_UNIX) as sock:
    try:
        sock.connect(path)
    except PermissionError:
        sys.exit("permission denied")
    head = f"{method} {target} HTTP/1.1\\r\\nhost: localhost\\r\\nconnection: close\\r\\n"
    head += f"content-type: application/json\\r\\ncontent-length: {len(body)}\\r\\n\\r\\n"
    sock.sendall((head + body).encode())
    while received := sock.recv(65536):
        sys.stdout.write(received.decode())
"""
SUM = ("POST", "/v1/aggregate", '{"query": "sum(bytes)"}')


@pytest.fixture
def folder() -> Iterator[Path]:
    """Every user can look into it, unlike into a test's own."""
    path = Path(tempfile.mkdtemp(prefix="peerd-", dir="/tmp"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


@pytest.fixture
def daemon(folder: Path, tmp_path: Path) -> Iterator[DaemonProcess]:
    """Alone in its ring, with all four listeners, over one small file."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "log.ndjson").write_text('{"bytes": 40}\n{"bytes": 2}\n')
    sets = (
        "admin.http=127.0.0.1:0",
        "data.http=127.0.0.1:0",
        "data.tokens=required",
        f"protocols.aggregation.data_root={tmp_path / 'data'}",
        f"admin.operators={STRANGER + 1}",
    )
    with running(folder, *sets) as daemon:
        daemon.ready()
        yield daemon


def as_user(user_id: int, path: str, method: str, target: str, body: str = "") -> subprocess.CompletedProcess[str]:
    """One request of another user of this machine, over a unix socket."""
    command = [sys.executable, "-c", AS_ANOTHER_USER, path, str(user_id), method, target, body]
    return subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can ask as another user")
def test_another_user_may_not_command_the_daemon(daemon: DaemonProcess) -> None:
    drain = ("POST", "/v1/drain", '{"timeout_s": 1, "stop": true}')
    data = str(daemon.ports["data_socket"])
    for path in (daemon.socket, data):
        assert as_user(STRANGER, path, "GET", "/readyz").stderr.strip() == "permission denied"

    os.chmod(daemon.socket, 0o666)  # the kernel lets them in; the daemon still knows who they are
    os.chmod(data, 0o666)
    assert "200 OK" in as_user(STRANGER, daemon.socket, "GET", "/v1/status").stdout
    answer = as_user(STRANGER, daemon.socket, *drain).stdout
    assert "403 Forbidden" in answer and f"you are user {STRANGER}" in answer
    assert "404 Not Found" in as_user(STRANGER, data, *drain).stdout
    assert '"value":42' in as_user(STRANGER, data, *SUM).stdout
    over_tcp = httpx.post(
        f"http://127.0.0.1:{daemon.ports['admin_http_port']}/v1/drain", json=json.loads(drain[2]), trust_env=False
    )
    assert over_tcp.status_code == 403 and daemon.socket in over_tcp.json()["detail"]
    assert daemon.process.poll() is None and "node.draining" not in daemon.log()

    assert '"unfinished":[]' in as_user(STRANGER + 1, daemon.socket, *drain).stdout, "a configured operator may"
    assert daemon.exit_code() == 0
    [line] = [line for line in map(json.loads, daemon.log().splitlines()) if line["event"] == "admin.call"]
    assert line["path"] == "/v1/drain" and line["uid"] == STRANGER + 1 and line["pid"] > 0


def test_unfinished_requests_keep_nobody_from_probes_and_commands(daemon: DaemonProcess) -> None:
    ports = daemon.ports
    with ExitStack() as stack:
        for port in (ports["admin_http_port"], ports["data_http_port"]):
            for _ in range(FLOOD):
                sock = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
                sock.sendall(UNFINISHED_BODY)
        for _ in range(FLOOD):
            sock = stack.enter_context(socket.socket(socket.AF_UNIX))
            sock.connect(ports["data_socket"])
            sock.sendall(UNFINISHED_BODY.replace(b"/v1/numbers/sum", b"/v1/aggregate"))
        assert daemon.ask("healthcheck").returncode == 0
        assert daemon.ask("status").returncode == 0
        for port in (ports["admin_http_port"], ports["data_http_port"]):
            assert httpx.get(f"http://127.0.0.1:{port}/readyz", trust_env=False).status_code == 200
        metrics = httpx.get(f"http://127.0.0.1:{ports['admin_http_port']}/metrics", trust_env=False).text
        assert 'peerd_http_refused_total{listener="data_socket"' in metrics


def test_tokens_open_the_data_port_until_they_are_revoked(daemon: DaemonProcess, tmp_path: Path) -> None:
    url, file = f"http://127.0.0.1:{daemon.ports['data_http_port']}", tmp_path / "token"
    assert f"{daemon.ports['data_socket']}, 127.0.0.1:{daemon.ports['data_http_port']}" in daemon.ask("status").stdout
    made = daemon.ask("access", "create", "sums", "--scope", "aggregation:read", "--out", str(file))
    assert made.returncode == 0, made.stderr

    def total() -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "peerd", "aggregate", "sum(bytes)", "--socket", url]
        environment = {**os.environ, "PEERD_ACCESS_TOKEN": file.read_text().strip()}
        return subprocess.run(command, capture_output=True, text=True, timeout=30, env=environment, check=False)

    assert total().stdout.splitlines()[0].strip() == "42", total().stderr
    without = peerd("aggregate", "sum(bytes)", "--socket", url)
    assert without.returncode == 1 and "show an access token" in without.stderr
    assert "sums" in daemon.ask("access", "list").stdout
    assert daemon.ask("access", "revoke", "sums").returncode == 0
    assert "was revoked" in total().stderr
    assert file.read_text().strip() not in daemon.log()
