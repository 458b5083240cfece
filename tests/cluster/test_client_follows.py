"""A client that follows a daemon's events while the daemon is killed, restarted, stopped and cut off."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from contextlib import aclosing
from pathlib import Path

import pytest

from peerd.client import Client
from peerd.client.streams import Backoff, End, Gap, Item, StreamEntry
from tests.support.daemon_process import DaemonProcess, clean_environment, running, wait_until
from tests.support.interrupts import take_interrupts

pytestmark = pytest.mark.cluster

TOLD: list[str] = []
QUICK = Backoff(first_s=0.05, most_s=0.2, tell=TOLD.append)


def booted(entry: StreamEntry) -> bool:
    return isinstance(entry, Item) and entry.data["event"] == "node.started"


async def test_killed_daemons_are_waited_for_and_what_was_missed_is_marked(tmp_path: Path) -> None:
    """kill -9, three times: each time the same iteration goes on, with one gap and the new daemon's events."""
    directory = tmp_path / "node"
    daemon = DaemonProcess(directory)
    found: list[StreamEntry] = []
    TOLD.clear()
    try:
        daemon.ready()
        async with Client(daemon.socket) as client, asyncio.timeout(200):
            entries = client.events("node.*", after="start", backoff=QUICK)
            async with aclosing(entries):
                for _ in range(3):
                    while not booted(entry := await anext(entries)):
                        found.append(entry)
                    found.append(entry)
                    daemon.process.send_signal(signal.SIGKILL)
                    daemon.exit_code()
                    daemon = DaemonProcess(directory)
                while not booted(entry := await anext(entries)):
                    found.append(entry)
                found.append(entry)
    finally:
        daemon.stop()
    gaps = [(entry.reason, entry.count) for entry in found if isinstance(entry, Gap)]
    boots = [entry.data["boot"] for entry in found if booted(entry) and isinstance(entry, Item)]
    assert gaps == [("restarted", None)] * 3
    assert [text.partition(" (")[0] for text in TOLD] == ["connection lost, trying again", "connected again"] * 3
    assert boots == sorted(set(boots)) and len(boots) == 4
    numbers = [entry.id for entry in found if isinstance(entry, Item)]
    assert len(set(numbers)) == len(numbers), "nothing came twice"


async def test_a_daemon_that_stops_says_so(tmp_path: Path) -> None:
    with running(tmp_path / "node") as daemon:
        daemon.ready()
        async with (
            asyncio.timeout(60),
            Client(daemon.socket) as client,
            aclosing(client.events(after="start", backoff=QUICK)) as entries,
        ):
            entry = await anext(entries)
            daemon.process.send_signal(signal.SIGTERM)
            while not isinstance(entry, End):
                entry = await anext(entries)
    assert (entry.reason, entry.is_final) == ("daemon stopping", False)


def test_the_command_follows_until_it_is_interrupted(tmp_path: Path) -> None:
    with running(tmp_path / "node") as daemon:
        daemon.ready()
        output = tmp_path / "output"
        with output.open("wb") as file:
            command = [sys.executable, "-m", "peerd", "events", "--after", "start", "-o", "jsonl", "--kind", "node.*"]
            following = subprocess.Popen(
                [*command, "--socket", daemon.socket],
                stdout=file,
                stderr=file,
                env=clean_environment(),
                preexec_fn=take_interrupts,
            )
        wait_until(lambda: b"node.ready" in output.read_bytes(), "the events are printed as they come")
        following.send_signal(signal.SIGINT)
        assert following.wait(30) == 130
        lines = [json.loads(line) for line in output.read_text().splitlines()]
        assert [line["data"]["event"] for line in lines][:2] == ["node.started", "node.ready"]
        last = daemon.ask("events", "--after", lines[-1]["id"], "--no-follow", "--kind", "node.*")
        assert last.stdout == "", "nothing has happened since, and nothing comes twice"
