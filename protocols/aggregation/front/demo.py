"""The part of ``peerd demo`` about aggregation: rounds over real files, before, while and after a daemon is killed."""

from __future__ import annotations

import asyncio
import shutil
import sysconfig
from collections.abc import Callable, Collection, Mapping
from contextlib import aclosing
from pathlib import Path
from typing import Any, ClassVar, Final

from peerd.client import Client
from peerd.cluster.demo import DemoComparison, DemoPart, DemoStage
from peerd.cluster.layout import Tables
from peerd.errors import Bug, Unavailable
from peerd.ids import format_id
from protocols.aggregation.answer import Answer
from protocols.aggregation.config import FileSelection, Share
from protocols.aggregation.figures import GroupedAnswer
from protocols.aggregation.front.client import AggregationClient
from protocols.aggregation.query import Query, parse_query
from protocols.aggregation.reference import plain

QUERY: Final = "count by module"
FILES: Final = "**/*.py"
PATTERN: Final = r"^\s*(?:from|import)\s+(?P<module>[\w.]+)"
SOURCE_FOLDERS: Final = (".", "asyncio", "collections", "concurrent/futures", "email", "http", "importlib", "json",
                         "logging", "multiprocessing", "sqlite3", "unittest", "urllib", "xml/etree")  # fmt: skip
"""Of Python's own library: some 300 files, so that a round takes about a second on a slow machine."""
SETTLED_WITHIN_S: Final = 60.0
"""So soon an answer has to be complete, and, after the kill, to say that the node is lost."""


class AggregationDemo(DemoPart):
    """Counts which modules are imported in the source of Python's standard library."""

    title: ClassVar[str] = "aggregation: imports by module in the source files of Python's standard library"
    next_steps: ClassVar[tuple[tuple[str, str], ...]] = (
        (r"peerd aggregate 'count by word' --pattern '(?P<word>\w+)'", "ask all daemons about your files"),
    )

    def settings(self, work: Path, index: int, count: int) -> Tables:
        """See `DemoPart.settings`."""
        root = work / "input"
        if not root.exists():
            _copy_sources(root)
        return {"aggregation": {"data_root": str(root), "share": f"{index}/{count}"}}

    async def run(self, stage: DemoStage) -> list[DemoComparison]:
        """See `DemoPart.run`."""
        query = parse_query(QUERY, files=FILES, pattern=PATTERN)
        dead, client = stage.cluster.node(stage.victim).id, stage.clients[0]
        whole = await _ask_until(client, query, lambda answer: answer.outcome == "complete")
        found = [await _compared(stage, query, whole, "before the kill")]
        stage.is_under_way()
        while not stage.killed.is_set():
            # On a starved machine a round may end before anybody has read its files.
            answer = await _ask_until(client, query, lambda answer: answer.outcome != "failed")
        found.append(await _compared(stage, query, answer, "while one was killed"))
        answer = await _ask_until(client, query, lambda answer: _names(answer) == [(dead, True)])
        found.append(await _compared(stage, query, answer, "after the kill"))
        reasons = "; ".join(f"node {stage.victim}: {missing.reason}" for missing in answer.missing)
        found.append(DemoComparison("who is missing, and why", reasons or "nobody", _names(answer) == [(dead, True)]))
        return found


def _copy_sources(target: Path) -> None:
    """A snapshot, so that the daemons and the plain computation read the same bytes."""
    source = Path(sysconfig.get_path("stdlib"))
    for folder in SOURCE_FOLDERS:
        (target / folder).mkdir(parents=True, exist_ok=True)
        for file in sorted((source / folder).glob("*.py")):
            shutil.copyfile(file, target / folder / file.name)


async def _ask(client: Client, query: Query) -> Answer:
    lines = AggregationClient(client).aggregate(str(query), files=query.files, pattern=query.pattern)
    async with aclosing(lines):
        async for line in lines:
            if isinstance(line, Answer):
                return line
    raise Bug("the round ended without an answer and without an error")


async def _ask_until(client: Client, query: Query, is_it: Callable[[Answer], bool]) -> Answer:
    """Ask again until an answer is as it has to become; the last one if none is in time."""
    over = asyncio.get_running_loop().time() + SETTLED_WITHIN_S
    while True:
        answer = await _ask(client, query)
        if is_it(answer) or asyncio.get_running_loop().time() > over:
            return answer


def _names(answer: Answer) -> list[tuple[str, bool]]:
    """Who is missing, and whether the ring has noticed that it is gone."""
    return [(format_id(missing.node), missing.reason.startswith("lost ")) for missing in answer.missing]


async def _compared(stage: DemoStage, query: Query, answer: Answer, what: str) -> DemoComparison:
    """Compare with a plain computation over the files of exactly the nodes that the answer names."""
    numbers = {stage.cluster.node(index).id: index for index in range(len(stage.clients))}
    of = [numbers[format_id(node)] for node in answer.contributor_ids]
    expected = await asyncio.to_thread(_plain, query, stage.work / "input", of, len(numbers))
    if not isinstance(answer.value, GroupedAnswer):
        raise Unavailable(f"the round had no groups: {answer.outcome}")
    shown = f"{answer.contributors} of {answer.expected} daemons, {len(answer.value.groups):,} groups"
    return DemoComparison(what, shown, is_same(answer, expected))


def _plain(query: Query, root: Path, of: Collection[int], count: int) -> Any:
    return plain(query, root, [FileSelection(share=Share(index, count)) for index in of])


def is_same(answer: Answer, expected: Mapping[str, int | float] | int | float | None) -> bool:
    """Whether both are equal in every count: the same groups, and nothing folded into the remainder."""
    value = answer.value
    if isinstance(value, GroupedAnswer):
        return isinstance(expected, Mapping) and value.exact and value.groups == dict(expected)
    return value == expected
