"""docs/http-api.md: every example on the page is run, and does what the page says; its numbers are the code's."""

from __future__ import annotations

import asyncio
import importlib.util
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest

from peerd.client import streams as client_streams
from peerd.config import load_config
from peerd.daemon.admin import event_feed
from peerd.daemon.admin.server import start_admin
from peerd.daemon.http import guard as admin_guard, ingest, listener as http_listener, paying, protocol, streaming
from peerd.daemon.service import Daemon
from peerd.lib import feed as feeds
from tests.support.daemon_process import clean_environment
from tests.support.pages import blocks

pytestmark = pytest.mark.cluster

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "http-api.md").read_text()
EVENT_SOURCE = ROOT / "tests" / "support" / "event_source.mjs"
BLOCKS = [(block.language, block.text) for block in blocks(ROOT / "docs" / "http-api.md")]
NO_ERROR = 0
TIME_OVER = 28
"""curl's exit code for --max-time."""
NODE_WITH_WEBSOCKET = 22


@dataclass(frozen=True)
class Example:
    """A block of the page, told by words that stand in it, and what its output has to contain, in this order."""

    words: str
    output: tuple[str, ...]
    exit_code: int = NO_ERROR


EXAMPLES = [
    Example("--unix-socket", ('"is_ready":', '"board"')),
    Example("after=yesterday", ('"status":422', "id of an item")),
    Example("--max-time 3", ('{"type":"item","id":"', '"event":"node.started"', '"event":"node.ready"'), TIME_OVER),
    Example('client.events("node.*"', ("node.started", "node.ready")),
    Example("async function* follow", ("node.started", "node.ready")),
    Example("new EventSource", ("node.started", "node.ready")),
    Example("new WebSocket", ("item node.started", "item node.ready")),
    Example('{"text": "second"}', ('{"accepted":2,"refused":0,"errors":[],"is_complete":true,"detail":""}',)),
    Example('{"txt": "typo"}', ('"accepted":1,"refused":2', '"line":2,"detail":"we want no spam"', '"line":3')),
    Example("client.send_lines", ("1 line refused and accepted: 2",)),
    Example('"sixth", "seventh"', ("200 2",)),
]


@pytest.fixture(scope="module")
def board() -> ModuleType:
    spec = importlib.util.spec_from_file_location("board", ROOT / "docs" / "examples" / "board.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["board"] = module  # get_type_hints looks here for the annotations' names
    spec.loader.exec_module(module)
    return module


@pytest.fixture
async def daemon(board: ModuleType, tmp_path: Path) -> AsyncIterator[Daemon]:
    settings = {
        "node.listen": "127.0.0.1:0",
        "node.profile": "local",
        "node.state_dir": str(tmp_path / "state"),
        "tls.mode": "off",
        "admin.socket": str(tmp_path / "admin.sock"),
        "admin.http": "127.0.0.1:0",
        "data.http": "127.0.0.1:0",
        "data.socket": "",
    }
    loaded = load_config(environment={}, flags=settings)
    async with Daemon(
        loaded, plugins=[board.Board()], fronts={"board": board.BoardFront()}, start_admin=start_admin
    ) as running:
        async with asyncio.timeout(30):
            while not running.node.is_ready:
                await asyncio.sleep(0.01)
        yield running


def command(language: str, file: Path) -> list[str]:
    """Return the command that runs an example; skip the test where the machine lacks the program."""
    if language == "python":
        return [sys.executable, str(file)]
    if language == "sh":
        if shutil.which("curl") is None:
            pytest.skip("curl is not installed: the shell examples of the page need it")
        return ["sh", str(file)]
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not installed: the JavaScript examples of the page need it (20 or newer)")
    version = int(
        subprocess.run([node, "--version"], capture_output=True, text=True, check=True).stdout[1:].split(".")[0]
    )
    if version < 20:
        pytest.skip(f"node {version} is installed: the JavaScript examples of the page need 20 or newer")
    flags = ["--experimental-websocket"] if version < NODE_WITH_WEBSOCKET else []
    return [node, "--no-warnings", *flags, "--import", EVENT_SOURCE.as_uri(), str(file)]


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.words)
async def test_the_example_does_what_the_page_says(example: Example, daemon: Daemon, tmp_path: Path) -> None:
    [(language, text)] = [block for block in BLOCKS if example.words in block[1] and block[0] != "text"]
    assert daemon._admin is not None
    text = text.replace("127.0.0.1:7421", f"127.0.0.1:{daemon._admin.http_port}")
    text = text.replace("127.0.0.1:7422", f"127.0.0.1:{daemon._admin.data_http_port}")
    text = text.replace("/run/peerd/admin.sock", daemon.config.admin.socket)
    suffix = {"python": ".py", "javascript": ".mjs", "sh": ".sh"}[language]
    file = tmp_path / f"example{suffix}"
    file.write_text(text)
    environment = clean_environment() | {"PYTHONPATH": str(ROOT)}
    process = await asyncio.create_subprocess_exec(
        *command(language, file), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, env=environment
    )
    try:
        output, errors = await asyncio.wait_for(process.communicate(), 40)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == example.exit_code, errors.decode()
    rest = output.decode()
    for words in example.output:
        assert words in rest, output.decode()
        rest = rest.partition(words)[2]


def test_every_example_of_the_page_is_run() -> None:
    runnable = [text for language, text in BLOCKS if language != "text"]
    assert len(runnable) == len(EXAMPLES)
    for text in runnable:
        assert sum(example.words in text for example in EXAMPLES) == 1


def test_the_page_shows_the_board_as_it_is() -> None:
    source = (ROOT / "docs" / "examples" / "board.py").read_text()
    (shown,) = [text for language, text in BLOCKS if language == "text" and "class Board" in text]
    for line in shown.splitlines():
        assert line in source, f"docs/http-api.md shows a line that the example has not: {line}"


def test_the_page_has_the_limits_of_the_code() -> None:
    table = PAGE.partition("## Limits")[2]
    held = f"{event_feed.EVENTS_HELD_MAX:,} and {event_feed.EVENTS_HELD_BYTES_MAX >> 20} MiB"
    expected = {
        "request head, and headers behind a body": f"{protocol.REQUEST_HEAD_BYTES_MAX // 1024} KiB",
        "requests sent ahead of their answers": f"{protocol.PIPELINED_MAX}",
        "request body": f"{admin_guard.REQUEST_BODY_BYTES_MAX // 1024} KiB, unless",
        "line of such a body": f"{ingest.LINE_BYTES_MAX // 1024} KiB",
        "work for one token, user or address": f"{ {0.5: 'half a'}[paying.WORK_PER_S] } processor, and "
        f"{paying.WORK_BURST_S:g} s of it at once",
        "refused lines before the daemon gives up": f"{ingest.REFUSED_MAX:,}; all are",
        "silence in the middle of such a body": f"{ingest.IDLE_MAX_S:g} s",
        "readers of one stream": f"{feeds.READERS_MAX}, of `/v1/events` {event_feed.FOLLOWERS_MAX}",
        "events held for `/v1/events`": held,
        "heartbeat": f"{streaming.HEARTBEAT_S:g} s; `peerd.client` gives a connection up after "
        f"{client_streams.SILENCE_MAX_S:g} s",
        "client that takes nothing": f"cut off after {streaming.STALL_MAX_S:g} s",
        "WebSocket message from a client": f"{http_listener.WEBSOCKET_MESSAGE_BYTES_MAX // 1024} KiB",
    }
    for limit, value in expected.items():
        assert f"| {limit} | {value}" in table
    assert table.count("\n| ") == len(expected) + 2
