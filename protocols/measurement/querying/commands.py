"""The commands of the paper's query client (section 6.1), line by line, as statements. Sans-IO.

    bound 0.1
    r1 = region()                       all nodes; also region('host', 50): within 50 ms; region(role = 'web');
                                        region(100, 60, 150, 50): within 50 ms of these coordinates
    r2 = select(r1, CPU_LOAD($1) < 0.5)
    r3 = iplist(10.0.0.1, 10.0.0.2)
    bound 10
    r4 = join(r2, r3, LATENCY($1,$2) < 100)
    r5 = topk(r2, MEMORY($1), 3)
    print r4 orderby LATENCY($1,$2)
    sleep 10
    execute FILE
    quit

A table is a view: it is asked when it is printed, all at once, which costs less than a question for each command.
``bound`` holds for what the commands after it measure. LATENCY is in milliseconds, as in the paper.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from msgspec.structs import replace

from peerd.errors import nearest
from peerd.frozen import Frozen
from peerd.lib.filter.errors import FilterError
from peerd.lib.filter.write import write_text
from protocols.measurement.querying.statement import OF_THE_PAPER, Statement, parse_statement

LINE_CHARACTERS_MAX: Final = 4096
"""The longest line."""
HOSTS_MAX: Final = 64
"""Most nodes of an iplist."""
NAMES_MAX: Final = 256
"""Most tables of a session."""
COMMANDS: Final = ("region", "iplist", "select", "topk", "join", "bound", "print", "sleep", "execute", "quit")
_LINE: Final = re.compile(r"\s*(?:(?P<name>\w+)\s*=\s*)?(?P<word>\w+)\s*(?:\((?P<inside>.*)\)|(?P<rest>.*))", re.DOTALL)
_CALL: Final = re.compile(r"\b(\w+)\(\s*\$([12])\s*(?:,\s*\$([12])\s*)?\)")
_LATENCY: Final = re.compile(r"\b(LATENCY\([^()]*\)\s*[<>=!]+\s*[0-9.]+)(?![\w.])", re.IGNORECASE)


class NodeTable(Frozen):
    """A view. ``sides``: the conditions of each side, in terms of ``$1``; ``pairs``: those of both, also of ``$2``."""

    sides: tuple[tuple[str, ...], ...]
    pairs: tuple[str, ...] = ()
    within: Mapping[str, str] = {}
    top: str = ""


class Doing(Frozen):
    """What is to be done: "nothing", "ask" the statement, "sleep" so many seconds, "execute" the file, or "quit"."""

    word: str
    statement: Statement | None = None
    argument: str = ""


class QuerySession:
    """The tables of one client, and the bound that it has set."""

    def __init__(self) -> None:
        self._tables: dict[str, NodeTable] = {}
        self._bound = ""

    def line(self, text: str) -> Doing:
        """Take one line. Raises `FilterError` for what is none."""
        if len(text) > LINE_CHARACTERS_MAX:
            raise FilterError(f"a line has at most {LINE_CHARACTERS_MAX} characters")
        match = _LINE.fullmatch(text.rstrip().removesuffix(";").rstrip())
        if match is None or match["word"].lower() not in COMMANDS:
            word = match["word"] if match else text.strip()
            raise FilterError(f"no command {word!r:.60}{nearest(word[:60], COMMANDS)}", text=text, column=0)
        word, name = match["word"].lower(), match["name"]
        rest = (match["inside"] if match["inside"] is not None else match["rest"]).strip()
        if word in ("region", "iplist", "select", "topk", "join"):
            if name is None or len(self._tables.keys() | {name}) > NAMES_MAX:
                raise FilterError(f"{word} makes a table, at most {NAMES_MAX}: r = {word}(...)", text=text, column=0)
            self._tables[name] = getattr(self, f"_{word}")(rest)
            self._statement(self._tables[name], "")  # so that what is wrong is said at once
        elif word == "print":
            table, _, order = rest.partition(" ")
            return Doing("ask", self._statement(self._table(table), order))
        elif word == "bound":
            self._bound = rest
        else:
            return Doing(word, None, rest)
        return Doing("nothing")

    def _table(self, name: str) -> NodeTable:
        table = self._tables.get(name.strip())
        if table is None:
            raise FilterError(f"no table {name.strip()!r:.60}{nearest(name.strip()[:60], list(self._tables))}")
        return table

    def _condition(self, text: str) -> tuple[str, Mapping[str, str]]:
        """A condition or column in which LATENCY has its unit, and the bounds of what it measures."""
        measured = [match[1].lower() for match in _CALL.finditer(text)] if self._bound else []
        bounds = {OF_THE_PAPER.get(each, each): self._bound + "ms" * (each == "latency") for each in measured}
        return _LATENCY.sub(r"\1ms", text.strip()), bounds

    def _narrowed(self, table: NodeTable, text: str) -> NodeTable:
        condition, bounds = self._condition(text)
        if table.top or not condition:
            raise FilterError("what topk made is only printed" if table.top else "expected a condition, found the end")
        within = {**table.within, **bounds}
        if len(table.sides) > 1:
            return replace(table, pairs=(*table.pairs, condition), within=within)
        return replace(table, sides=((*table.sides[0], condition),), within=within)

    def _region(self, inside: str) -> NodeTable:
        near = re.fullmatch(r"('[^']*')\s*,\s*([0-9.]+)", inside)
        condition = f"$1.rtt TO {near[1]} < {near[2]}ms" if near else inside
        if place := re.fullmatch(r"(-?\d+)\s*,\s*(-?\d+)\s*,\s*(-?\d+)\s*,\s*([0-9.]+)", inside):
            condition = f"$1.coordinates TO '{place[1]} {place[2]} {place[3]}' < {place[4]}ms"
        return self._narrowed(NodeTable(((),)), condition) if inside else NodeTable(((),))

    def _iplist(self, inside: str) -> NodeTable:
        hosts = [host.strip(" '") for host in inside.split(",", HOSTS_MAX)]
        if len(hosts) > HOSTS_MAX:
            raise FilterError(f"a list has at most {HOSTS_MAX} nodes")
        without_port = [host for host in hosts if ":" not in host]
        same = [f"$1.address IN ({', '.join(map(write_text, hosts))})"]
        same += [f"$1.address STARTS WITH {write_text(f'{host}:')}" for host in without_port]
        return self._narrowed(NodeTable(((),)), " OR ".join(same))

    def _select(self, inside: str) -> NodeTable:
        name, _, condition = inside.partition(",")
        return self._narrowed(self._table(name), condition)

    def _topk(self, inside: str) -> NodeTable:
        name, _, rest = inside.partition(",")
        column, _, count = rest.rpartition(",")
        column, bounds = self._condition(column)
        table = self._table(name)
        return replace(table, top=f"ORDER BY {column} DESC LIMIT {count.strip()}", within={**table.within, **bounds})

    def _join(self, inside: str) -> NodeTable:
        left, right, condition = (*inside.split(",", 2), "", "")[:3]
        tables = self._table(left), self._table(right)
        if any(len(table.sides) > 1 or table.top for table in tables):
            raise FilterError("two tables of single nodes are joined")
        sides = tuple(side for table in tables for side in table.sides)
        return self._narrowed(NodeTable(sides, (), {**tables[0].within, **tables[1].within}), condition)

    def _statement(self, table: NodeTable, order: str) -> Statement:
        """The statement that asks a table."""
        names = "ab"[: len(table.sides)]
        own = [each.replace("$1", name) for name, side in zip(names, table.sides, strict=True) for each in side]
        order = re.sub(r"(?i)^\s*orderby\s", "ORDER BY ", f"{table.top or order}")
        pairs, order = (each.replace("$1", "a").replace("$2", "b") for each in (") AND (".join(table.pairs), order))
        where = ") AND (".join([*own, *([pairs] if pairs else [])])
        measured = re.findall(r"\b\w+\(\s*[ab]\s*(?:,\s*[ab]\s*)?\)", f"{where} {order}")
        shown = ", ".join([*(f"{name}.node" for name in names), *dict.fromkeys(measured)])
        tables = ", ".join(f"nodes {name}" for name in names)
        within = ", ".join(f"{name} {bound}" for name, bound in table.within.items())
        clauses = (f"WHERE ({where})" if where else "", order, f"WITHIN {within}" if within else "")
        return parse_statement(f"SELECT {shown} FROM {tables} {' '.join(clauses)}")
