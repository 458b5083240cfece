"""The state directory under kill -9 in the middle of writes: what was acknowledged is there, and nothing is damaged."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest

from peerd.daemon.storage.state_directory import StateDirectory
from peerd.daemon.storage.tables import JOIN_TOKENS, Row

pytestmark = [pytest.mark.cluster]

ROUNDS = 15
WRITER = """
import sys
from pathlib import Path
from peerd.daemon.storage import database
from peerd.daemon.storage.state_directory import StateDirectory
from peerd.daemon.storage.tables import JOIN_TOKENS

database.WAL_BYTES_MAX = 64 * 1024  # so that the log is written into the file every few changes
state = StateDirectory(Path(sys.argv[1]))
store, tokens = state.plugin_store("demo"), state.table(JOIN_TOKENS)
number = int(sys.argv[2])
while True:
    number += 1
    store.put(f"key{number % 5}", number.to_bytes(8, "big") + bytes(number % 9000))
    print(number, flush=True)
    tokens.replace([("f" * 64, 1.5, 2.5, 10**6, number, 0)])
    print(number, flush=True)
"""


def killed_while_writing(folder: Path, first: int, acknowledged: int) -> tuple[int, int]:
    """Let another process write, and kill it after so many acknowledged changes; what it had acknowledged by then."""
    command = [sys.executable, "-c", WRITER, str(folder), str(first)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        told = [int(writer.stdout.readline()) for _ in range(acknowledged)]
        writer.kill()
        told += [int(line) for line in writer.stdout.read().split("\n")[:-1]]
    return max(told), told.count(max(told))


@pytest.mark.timeout(180)
def test_kills_lose_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    folder, number, rng = tmp_path / "state", 0, random.Random(7)
    for _ in range(ROUNDS):
        number, changes = killed_while_writing(folder, number, rng.randint(1, 60))
        with StateDirectory(folder) as state:
            store = state.plugin_store("demo")
            values = {key: store.get(key) or b"" for key in [f"key{place}" for place in range(5)]}
            newest = max(int.from_bytes(value[:8], "big") for value in values.values())
            assert newest in (number, number + 1)
            assert all(len(value) == 8 + int.from_bytes(value[:8], "big") % 9000 for value in values.values() if value)
            [row] = state.table(JOIN_TOKENS).load(lambda row: row) or [no_token()]
            assert row[4] in ((number, number + 1) if changes == 2 else (number - 1, number))
            assert all("no whole change" in warning for warning in state.warnings), state.warnings
            number = newest


def no_token() -> Row:
    """Before the first one was written."""
    return ("", 0.0, 0.0, 0, 0, "", 0)
