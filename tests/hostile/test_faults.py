"""No lie, but what the world does: a process that stands still, a member that has gone deaf, a disk without room."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import aclosing, contextmanager
from pathlib import Path

import pytest

from peerd.ids import format_id
from protocols.aggregation.answer import Answer
from protocols.aggregation.figures import GroupedAnswer
from protocols.aggregation.front.client import AggregationClient
from tests.hostile.ring import NODES, Ring, data_folder, eventually, honest_ring, knows
from tests.test_tidy import ROOT

pytestmark = pytest.mark.cluster

SYSTEM_S = 60.0
NOTICED_S = 60.0
GROUPS = 3_000
DISK = "256k"
"""Less than must stay free where a value is to be written: no room at all."""


@pytest.mark.long
async def test_half_open_links_are_given_up_and_come_back(own_ring: Ring) -> None:
    """A daemon is stopped: its links stay, its kernel acknowledges what it is sent, and it says nothing any more."""
    ring, victim = own_ring, 4
    process = ring.cluster.node(victim).process
    assert process is not None
    ids = {format_id(ring.ids[victim])}
    async with ring.attacked(spared=victim) as (_, work):
        os.kill(process.pid, signal.SIGSTOP)
        try:

            async def is_noticed() -> bool:
                return not any([await knows(client, ids) for client in ring.clients])

            await eventually(is_noticed, "that it is gone is noticed everywhere", NOTICED_S)
            await work.enough()
        finally:
            os.kill(process.pid, signal.SIGCONT)

        async def is_back() -> bool:
            return all([await knows(client, ids) for client in ring.clients])

        await eventually(is_back, "it is back in everybody's leaf set", NOTICED_S)


@pytest.mark.long
async def test_a_member_that_hears_nothing_while_its_links_live_holds_nobody_up(ring: Ring) -> None:
    """It keeps its links alive and reads what comes, and its node gets none of it."""
    async with ring.attacked() as (attacker, work):
        attacker.listen = lambda peer, frame: True
        await work.enough()


@contextmanager
def no_room(folder: Path) -> Iterator[None]:
    """Inside, what is made in the folder is made on a file system without room."""
    mount = shutil.which("mount")
    command = [str(mount), "-t", "tmpfs", "-o", f"size={DISK},mode=0700", "tmpfs", str(folder)]
    if mount is None or subprocess.run(command, capture_output=True, timeout=SYSTEM_S).returncode:
        pytest.skip("mounting a file system takes root")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True, timeout=SYSTEM_S)


@pytest.fixture
def spilling_ring(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ring]:
    """Daemons with many groups each, that have no value in memory that they are sent."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    with honest_ring(tmp_path, swap={"spill_bytes": "0B"}) as found:
        for index in range(NODES):
            rows = (json.dumps({"k": f"{index}-{number:064}", "bytes": 0}) for number in range(GROUPS))
            (data_folder(tmp_path, index) / "groups.ndjson").write_text("\n".join(rows))
        yield found


async def groups_of_all(ring: Ring, asked: int) -> Answer:
    """Ask for the groups of all nodes. The answer has all of each node that it names, and none of the others."""
    query = AggregationClient(ring.clients[asked]).aggregate("count by k", groups_max=2 * NODES * GROUPS, deadline=5.0)
    async with aclosing(query) as lines:
        answer = [line async for line in lines if isinstance(line, Answer)][-1]
    assert isinstance(answer.value, GroupedAnswer)
    found = Counter(int(key.partition("-")[0]) for key in answer.value.groups if "-" in key)
    said = [index for index, node_id in enumerate(ring.ids) if node_id in answer.contributor_ids]
    assert found == dict.fromkeys(said, GROUPS)
    assert (answer.outcome == "complete") == (len(said) == NODES)
    return answer


@pytest.mark.long
async def test_a_disk_without_room_for_what_an_aggregation_spills_spoils_no_answer(spilling_ring: Ring) -> None:
    """All that is swapped goes to the disk, of which one daemon has no more. Afterwards all is as before."""
    ring, full = spilling_ring, 1
    async with ring.attacked() as (_, work):
        with no_room(ring.cluster.layout.node(full) / "state"):
            answers = [await groups_of_all(ring, asked) for asked in range(NODES)]
            assert answers[full].outcome == "partial"
            assert all("no_space" in each.reason for each in answers[full].missing)
            await work.enough()
        for asked in range(NODES):
            assert (await groups_of_all(ring, asked)).outcome == "complete"
