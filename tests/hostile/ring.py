"""Honest real daemons, one attacker among them, and the judgement of both from outside: HTTP and /proc."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from typing import Final

from peerd.client import Client, RequestRefused
from peerd.cluster.layout import LOOPBACK
from peerd.cluster.local import LocalCluster
from peerd.cluster.processes import is_alive
from peerd.ids import NodeId, format_id, parse_id
from peerd.messages import PeerRef
from peerd.system.proc import resident_bytes
from tests.hostile.attacker import Attacker
from tests.hostile.work import PATIENCE_S, Work

NODES: Final = 4
NODE_MODULE: Final = "tests.hostile.bystander_node"
MEMORY_GROWTH_BYTES_MAX: Final = 64 * 1024 * 1024
"""After an attack a daemon may have so much more than before it."""
DESCRIPTORS_GROWTH_MAX: Final = 24
"""Links, streams and clients come and go: so many descriptors more are no leak."""
POLL_S: Final = 0.1
HEAL_S: Final = 60.0
"""How long it may take until a word reaches everybody again."""
ORIGIN_RECORDS_MAX: Final = 2_000
FAN_OUT: Final = 2
"""Children of an honest node in a stream: so few that some are below the attacker, and find room elsewhere."""
LIAR_BIT: Final = 40
"""The attacker's own number in a sum, as a power of two: above those of all honest nodes."""


@dataclass(frozen=True, slots=True)
class Use:
    """What a process occupies."""

    memory_bytes: int
    descriptors: int


class Ring:
    """The honest daemons."""

    def __init__(self, cluster: LocalCluster) -> None:
        self.cluster = cluster
        self.record = cluster.record()
        self.ids = [parse_id(node.id) for node in self.record.nodes]
        self.clients: list[Client] = []
        self._attackers = 0
        self._words = count(1)
        self._scores_before: dict[str, float] = {}
        self.guests: set[NodeId] = set()
        """Members that nobody asks anything: attackers, newcomers, and those that a script kills."""
        self.wiped: set[int] = set()
        """Daemons that a script kills."""

    def use(self, index: int) -> Use:
        """What a daemon occupies now. Raises ``OSError`` when it is gone."""
        process = self.cluster.node(index).process
        assert process is not None
        return Use(resident_bytes(process.pid) or 0, len(os.listdir(f"/proc/{process.pid}/fd")))

    # An attack

    @asynccontextmanager
    async def attacked(
        self, *, spared: int | None = None, blame_max: float = 0.0
    ) -> AsyncIterator[tuple[Attacker, Work]]:
        """Inside, the attacker is a member and honest work has been going on for a while; afterwards all is judged.

        ``spared``: a daemon that the script kills; nobody asks it anything. ``blame_max``: the highest score that
        honest nodes may have of each other, when it is known that they suffer for what they pass on.
        """
        self.wiped = set() if spared is None else {spared}
        self.guests = {self.ids[index] for index in self.wiped}
        async with AsyncExitStack() as stack:
            self.clients = [await stack.enter_async_context(self.cluster.client(index)) for index in self.indexes()]
            before = [self.use(index) for index in self.indexes()]
            self._scores_before = await self._scores()
            async with self.newcomer() as attacker:
                work = Work(self.clients, [self.ids[index] for index in self.indexes()], self.guests, self._words)
                async with work.going_on():
                    yield attacker, work
                    if work.phases < 2:
                        await work.enough()
                blamed = await self.blamed(blame_max)
                assert not blamed, blamed
                assert not attacker.failures, attacker.failures
            await self._forget()
            blamed = await self.blamed(blame_max)
            assert not blamed, blamed
            await self._judge(work, before)

    async def _forget(self) -> None:
        """What an operator does about a member that went for good: those whom it left do not expect it any more."""
        for client in self.clients:
            await client.forget(all_missing=True)

    def indexes(self) -> list[int]:
        """The numbers of the daemons that no script kills."""
        return [index for index in range(len(self.ids)) if index not in self.wiped]

    def newcomer(self, *, watermark: PeerRef | None = None) -> Attacker:
        """One more member, which is honest as long as no script says otherwise; ``watermark``: its only seed."""
        self._attackers += 1
        directory = self.cluster.layout.directory.parent
        root = data_folder(directory, LIAR_BIT)
        nodes = [self.record.nodes[index] for index in self.indexes()]
        honest = [PeerRef(parse_id(node.id), LOOPBACK, node.port) for node in nodes]
        newcomer = Attacker(self.cluster.layout, f"member-{self._attackers}", root, honest, watermark=watermark)
        self.guests.add(newcomer.id)
        return newcomer

    # The judgement

    async def _judge(self, work: Work, before: list[Use]) -> None:
        ids = {format_id(self.ids[index]) for index in self.indexes()}
        for index in self.indexes():
            assert is_alive(self.cluster.node(index).process), f"daemon {index} has ended"
        for number, client in enumerate(self.clients):
            await eventually(partial(is_well, client), f"node {number} is ready and all checks pass")
            await eventually(partial(knows, client, ids), f"node {number} has all others as neighbours")
        await eventually(work.hears_everybody, "a word reaches every node", HEAL_S)
        await eventually(lambda: self._all_data(work), "an answer has the data of all honest nodes")
        await work.judge_words()
        unread = await work.read_all()
        assert not work.wrong, "\n".join([*work.wrong, str(dict(work.outcomes))])
        assert not unread, unread
        assert not work.is_slow, work.is_slow
        for index, use in zip(self.indexes(), before, strict=True):
            await eventually(partial(self._has_returned, index, use), f"node {index} is as before")

    async def _all_data(self, work: Work) -> bool:
        answer = await work.aggregate(0)
        work.judge_answer(answer)
        return work.has_all(answer)

    async def _has_returned(self, index: int, before: Use) -> bool:
        now = self.use(index)
        return (
            now.memory_bytes <= before.memory_bytes + MEMORY_GROWTH_BYTES_MAX
            and now.descriptors <= before.descriptors + DESCRIPTORS_GROWTH_MAX
        )

    async def blamed(self, most: float) -> dict[str, float]:
        """The honest nodes whose misbehaviour others have scored higher since the attack began, if above ``most``."""
        scores, before = await self._scores(), self._scores_before
        return {pair: score for pair, score in scores.items() if score > max(most, before.get(pair, 0.0))}

    async def _scores(self) -> dict[str, float]:
        """Scores of misbehaviour that the honest nodes have of each other; they decay."""
        numbers = {format_id(node_id): index for index, node_id in enumerate(self.ids)}
        found = {}
        for index, client in zip(self.indexes(), self.clients, strict=True):
            for node_id, score in (await scored(client)).items():
                if node_id in numbers:
                    found[f"{numbers[node_id]} by {index}"] = score
        return found

    async def names(self, attacker: Attacker) -> list[str]:
        """What the honest nodes have against the attacker: scores, and verdicts of ``peerd peers --history``."""
        name, found = format_id(attacker.peer.id), []
        for index, client in zip(self.indexes(), self.clients, strict=True):
            if name in await scored(client):
                found.append(f"{index}: score")
            with suppress(RequestRefused):  # it has forgotten the attacker
                verdicts = (await client.history(name)).verdicts
                found += [f"{index}: {each.verdict}, {each.evidence}" for each in verdicts if each.verdict == "doubted"]
        return found

    async def is_named(self, attacker: Attacker) -> None:
        """Wait until some honest node can say who it was."""
        await eventually(lambda: self.names(attacker), "somebody names the attacker")


async def eventually(condition: Callable[[], Awaitable[object]], what: str, timeout_s: float = PATIENCE_S) -> None:
    """Ask again and again until the answer is true; fails with ``what``."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s
    while not await condition():
        assert loop.time() < deadline, f"not within {timeout_s:g} s: {what}"
        await asyncio.sleep(POLL_S)


async def is_well(client: Client) -> bool:
    """Whether /readyz and every health check say so."""
    return (await client.ready()).status == "ok" and (await client.health()).status == "ok"


async def scored(client: Client) -> dict[str, float]:
    """The nodes with a score of misbehaviour at a daemon, by id."""
    known = await client.known()
    scores = {peer.id: peer.misbehaviour for peer in known.peers}
    scores |= {peer.id: peer.misbehaviour for peer in known.departed}
    return {node_id: score for node_id, score in scores.items() if score}


async def knows(client: Client, ids: set[str]) -> bool:
    """Whether all these nodes but itself are in its leaf set."""
    ring = await client.ring()
    return ids <= {ring.id, *(peer.id for peer in (*ring.smaller, *ring.larger))}


def data_folder(directory: Path, bit: int) -> Path:
    """A folder with one file of one record, whose number is that power of two."""
    folder = directory / f"data-{bit}"
    folder.mkdir(exist_ok=True)
    (folder / "one.ndjson").write_text(json.dumps({"bytes": 1 << bit}) + "\n")
    return folder


@contextmanager
def honest_ring(directory: Path, nodes: int = NODES, **tables: object) -> Iterator[Ring]:
    """Real daemons with one record each. ``tables``: of their configuration, besides those of all rings."""
    folders = [data_folder(directory, bit) for bit in range(nodes)]
    with LocalCluster(directory / "ring", name="hostile", keep=True) as cluster:
        cluster.up(
            nodes,
            settings=lambda index: {
                "protocols": {
                    "aggregation": {"data_root": str(folders[index])},
                    "dissemination": {"fan_out": FAN_OUT},
                },
                "records": {"origin_records_max": ORIGIN_RECORDS_MAX},
                **tables,
            },
            node_module=NODE_MODULE,
        )
        yield Ring(cluster)
