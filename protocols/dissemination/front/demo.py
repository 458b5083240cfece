"""The part of ``peerd demo`` about streams: a filtered stream to all daemons, one of which is killed in the middle."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Final

from peerd.client.streams import StreamEntry
from peerd.cluster.demo import DemoComparison, DemoPart, DemoStage
from peerd.cluster.layout import Tables
from peerd.words import counted
from protocols.dissemination.front.client import DisseminationClient, wrapped
from protocols.dissemination.models import ReceivedItem, StreamWish, WrappedItem

STREAM: Final = "readings"
ITEMS: Final = 600
PAUSE_S: Final = 0.015
BEFORE_THE_KILL: Final = ITEMS // 4
ARRIVE_S: Final = 60.0
"""What has not arrived so long after the last item counts as missing."""
FAN_OUT: Final = 2
"""Small, so that the tree has inner nodes."""
PLACES: Final = ("hall", "roof", "cellar")


@dataclass(slots=True)
class _Reader:
    """A subscription at a daemon, the same condition as plain Python, and what came."""

    node: int
    interest: str
    wanted: Callable[[dict[str, Any]], bool]
    came: list[int] = field(default_factory=list)
    gaps: int = 0
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def take(self, entry: ReceivedItem | StreamEntry) -> None:
        if isinstance(entry, ReceivedItem) and entry.type == "item":
            self.came.append(json.loads(entry.payload or "null")["number"])
        elif entry.type in ("lost", "gap", "dropped"):
            self.gaps += 1
        self.changed.set()


class StreamDemo(DemoPart):
    """A producer at daemon 0, a reader with a filter of its own at each of the others."""

    title: ClassVar[str] = f"a filtered stream: {ITEMS} readings from one daemon, through a tree of the others"
    next_steps: ClassVar[tuple[tuple[str, str], ...]] = (
        (
            "peerd stream create log",
            "then `peerd stream subscribe log \"level = 'ERROR'\"` with another daemon's --socket",
        ),
    )

    def settings(self, work: Path, index: int, count: int) -> Tables:
        """See `DemoPart.settings`."""
        return {"dissemination": {"fan_out": FAN_OUT}}

    async def run(self, stage: DemoStage) -> list[DemoComparison]:
        """See `DemoPart.run`."""
        streams = [DisseminationClient(client) for client in stage.clients]
        await streams[0].create(STREAM)
        items = [_reading(number) for number in range(ITEMS)]
        readers = [*_readers(stage), _Reader(stage.victim, "degrees > 10", lambda item: item["degrees"] > 10)]
        async with asyncio.TaskGroup() as group:
            tasks = []
            for reader in readers:
                view = await streams[reader.node].install(STREAM, StreamWish(interest=reader.interest))
                tasks.append(group.create_task(_read(streams[reader.node], view.id, reader)))
            await streams[0].publish_many(STREAM, _paced(stage, items))
            for reader in readers[:-1]:
                await _arrived(reader, [item["number"] for item in items if reader.wanted(item)])
            for task in tasks:
                task.cancel()
        return [_verdict(reader, items) for reader in readers[:-1]]


def _reading(number: int) -> dict[str, Any]:
    return {"number": number, "place": PLACES[number % len(PLACES)], "degrees": number * 7 % 40 - 10}


def _readers(stage: DemoStage) -> list[_Reader]:
    """One at each daemon that stays, but the producer's; each with another filter."""
    wishes: list[tuple[str, Callable[[dict[str, Any]], bool]]] = [
        ("place = 'roof' AND degrees > 5", lambda item: item["place"] == "roof" and item["degrees"] > 5),
        ("degrees < 0", lambda item: item["degrees"] < 0),
        ("NOT place = 'cellar'", lambda item: item["place"] != "cellar"),
    ]
    others = [index for index in stage.survivors if index != 0]
    return [_Reader(node, *wishes[place % len(wishes)]) for place, node in enumerate(others)]


async def _read(streams: DisseminationClient, id: str, reader: _Reader) -> None:
    async with aclosing(streams.read(STREAM, id)) as entries:
        async for entry in entries:
            reader.take(entry)


async def _paced(stage: DemoStage, items: list[dict[str, Any]]) -> AsyncGenerator[WrappedItem, None]:
    """The items, a quarter of them before the kill may come."""
    for item in items:
        if item["number"] == BEFORE_THE_KILL:
            stage.is_under_way()
            stage.say(f"{STREAM}: {BEFORE_THE_KILL} of {ITEMS} items are out")
        if item["number"] == ITEMS - BEFORE_THE_KILL:
            await stage.killed.wait()
        await asyncio.sleep(PAUSE_S)
        yield wrapped(json.dumps(item).encode(), "application/json")


async def _arrived(reader: _Reader, expected: list[int]) -> None:
    """Until everything has come that should, or nothing more will."""
    try:
        async with asyncio.timeout(ARRIVE_S):
            while len(reader.came) < len(expected):
                reader.changed.clear()
                await reader.changed.wait()
    except TimeoutError:
        return


def _verdict(reader: _Reader, items: list[dict[str, Any]]) -> DemoComparison:
    expected = [item["number"] for item in items if reader.wanted(item)]
    shown = f"{len(reader.came)} of {len(expected)} items, in order, {counted(reader.gaps, 'gap')}"
    return DemoComparison(f"daemon {reader.node}: {reader.interest}", shown, reader.came == expected)
