"""Which daemons a question of Spark goes to, for which table, with which options; and their answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Final, TypeVar

from peerd.client import Client, DaemonUnreachable
from peerd.errors import Bug, ConfigError, Unavailable, nearest
from peerd.front import RingFeed, RingTable, Row
from peerd.plugins import find_fronts, gather
from peerd.spark.events import EVENTS
from peerd.spark.feeds import LostRows, items_between, newest_position

OPTIONS: Final = ("path", "cluster", "token", "startingOffsets", "failOnDataLoss")
"""Of every table; Spark's own is ``path``, what is given to ``load``."""
STARTS: Final = {"latest": "now", "earliest": "start"}
ROWS_AT_ONCE: Final = 1000

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class RingQuestion:
    """What a user asks for. It can be pickled: Spark's tasks make the table of its name anew."""

    name: str
    addresses: tuple[str, ...]
    """Of daemons, as `peerd.client.Client` takes them; never empty."""
    token: str | None
    starts: str
    """Where a new stream begins, "now" or "start"."""
    fails_on_loss: bool
    options: Mapping[str, str]
    """Those of the table."""

    @property
    def table(self) -> RingTable:
        """What is read."""
        return ring_tables()[self.name]

    def ask(self, address: str, question: Callable[[Client], Awaitable[Result]]) -> Result:
        """Ask one daemon."""

        async def asked() -> Result:
            async with Client(address, token=self.token) as client:
                return await question(client)

        return asyncio.run(asked())

    def ask_first(self, question: Callable[[Client], Awaitable[Result]]) -> tuple[str, Result]:
        """Ask the first daemon that can be reached; returns its address as well. Raises `DaemonUnreachable`."""
        for address in self.addresses[:-1]:
            try:
                return address, self.ask(address, question)
            except DaemonUnreachable:
                continue
        return self.addresses[-1], self.ask(self.addresses[-1], question)

    def columns(self) -> str:
        """The table's columns."""
        return self.ask_first(lambda client: self.table.columns(client, self.options))[1]

    def rows(self) -> Sequence[Row]:
        """The ring's answer, of a table that has no feed."""
        rows = self.table.rows
        if rows is None:
            raise Bug(f"{self.name} has a feed")
        return self.ask_first(lambda client: rows(client, self.options))[1]

    def newest(self, address: str) -> str:
        """The position of the newest item of a daemon's feed."""
        return self.ask(address, lambda client: newest_position(client, self._feed(client)))

    def newest_of_first(self) -> tuple[str, str]:
        """The first daemon that can be reached, and the position of the newest item of its feed."""
        return self.ask_first(lambda client: newest_position(client, self._feed(client)))

    async def items(self, address: str, start: str, end: str | None) -> AsyncGenerator[list[Row], None]:
        """Rows of a daemon's feed from a position to another one, some at a time; without ``end`` all that is held.

        Raises `Unavailable` where some are missing, unless that is no error.
        """
        async with Client(address, token=self.token) as client:
            rows: list[Row] = []
            row = self.table.row
            async for item in items_between(client, await self._feed(client), start, end):
                if not isinstance(item, LostRows):
                    rows.append(row(item))
                elif self.fails_on_loss:
                    raise Unavailable(f"{address}: {item}; with the option failOnDataLoss=false this is no error")
                if len(rows) >= ROWS_AT_ONCE:
                    yield rows
                    rows = []
            if rows:
                yield rows

    async def _feed(self, client: Client) -> RingFeed:
        feed = self.table.feed
        if feed is None:
            raise Bug(f"{self.name} has no feed")
        return await feed(client, self.options)

    def wanting(self, option: str, values: str) -> RingQuestion:
        """The same question with one more option."""
        return replace(self, options={**self.options, option: values})


@cache
def ring_tables() -> dict[str, RingTable]:
    """All tables by name: the core's, and those of the installed plugins."""
    fronts, taken = find_fronts(), [EVENTS.name]
    found = gather(fronts, "ring table", lambda front: [(each.name, each) for each in front.ring_tables()], taken)
    return {EVENTS.name: EVENTS, **found}


def question_of(given: Mapping[str, str]) -> RingQuestion:
    """Read the options of a data source. Raises `ConfigError` for wrong ones."""
    tables = ring_tables()
    name = given.get("path", "")
    if name not in tables:
        raise ConfigError(f"a ring has no table {name!r} for load(){nearest(name, list(tables))}")
    own = {each.lower(): each for each in tables[name].options}
    known = {each.lower(): each for each in OPTIONS} | own
    for option in given:
        if option.lower() not in known:
            raise ConfigError(f"{name} has no option {option!r}{nearest(option, list(known.values()))}")
    chosen = {known[option.lower()]: value for option, value in given.items()}
    starts = _one_of(chosen, "startingOffsets", STARTS, "latest")
    default = "false" if tables[name].is_numbered else "true"
    fails = _one_of(chosen, "failOnDataLoss", {"true": "1", "false": ""}, default)
    options = {option: value for option, value in chosen.items() if option not in OPTIONS}
    addresses = addresses_of(chosen.get("cluster", ""))
    return RingQuestion(name, addresses, chosen.get("token"), starts, bool(fails), options)


def _one_of(chosen: Mapping[str, str], option: str, words: Mapping[str, str], default: str) -> str:
    word = chosen.get(option, default).lower()
    if word not in words:
        raise ConfigError(f"{option}={chosen[option]}: expected one of {', '.join(words)}")
    return words[word]


def addresses_of(cluster: str) -> tuple[str, ...]:
    """The daemons that are meant: addresses with commas, or the name of a cluster of `peerd cluster up`, whose running
    nodes they are; nothing: this machine's daemon. Raises `Unavailable` where no such cluster is up."""
    if not cluster:
        from peerd.client import default_socket

        return (default_socket(),)
    if "/" in cluster:
        return tuple(address.strip() for address in cluster.split(",") if address.strip())
    from peerd.cluster.layout import socket_file
    from peerd.cluster.local import LocalCluster
    from peerd.cluster.processes import is_alive

    record = LocalCluster(name=cluster).record()
    found = [str(socket_file(record, node.index)) for node in record.nodes if is_alive(node.process)]
    if not found:
        raise Unavailable(f"none of the {len(record.nodes)} nodes of the cluster {cluster} is running")
    return tuple(found)
