"""The commands of the paper's query client."""

from __future__ import annotations

import time

import pytest
from msgspec.structs import replace

from peerd.lib.filter import FilterError
from peerd.lib.filter.write import write
from protocols.measurement.placing.squares import Spot
from protocols.measurement.querying.commands import QuerySession
from protocols.measurement.querying.statement import Statement, parse_statement
from tests.support.queried_nodes import QueriedNodes, node, rtt, running


def asked(*lines: str) -> Statement:
    """What the last of these lines asks."""
    session = QuerySession()
    for line in lines[:-1]:
        assert session.line(line).word == "nothing"
    doing = session.line(lines[-1])
    assert doing.word == "ask" and doing.statement is not None
    return doing.statement


MODEL = (
    "bound 0.1",
    "r1 = region()",
    "r2 = select(r1, CPU_LOAD($1) < 0.5)",
    "r3 = region()",
    "r4 = select(r3, CPU_LOAD($1) < 0.8)",
    "bound 10",
    "r5 = join(r2, r4, LATENCY($1,$2) < 100)",
    "print r5",
)


def test_the_commands_of_the_model_query_ask_what_the_query_asks() -> None:
    """Both as they are written in section 6.2.1, with the bounds of the commands."""
    query = parse_statement(
        "select a.node, b.node from region a, region b where cpu_load(a.node) < 0.5 and cpu_load(b.node) < 0.8 "
        "and latency(a.node, b.node) < 100ms within cpu 0.1, rtt 10ms"
    )
    commands = asked(*MODEL)
    assert (commands.where, commands.tables, commands.within) == (query.where, query.tables, query.within)
    nodes = [node(number, {}, ["cpu", "rtt@"]) for number in (1, 2, 3)]
    values = {(1, "cpu"): 0.2, (2, "cpu"): 0.7, (3, "cpu"): 0.95, (1, rtt(2)): 0.05}
    plans = []
    for statement in (query, commands):
        world = QueriedNodes(values)
        answer = world.run(running(statement.text, nodes))
        assert [(str(row.values[0])[-1], str(row.values[1])[-1]) for row in answer.rows] == [("1", "2")]
        plans.append([(want.measurement, want.half_width) for want in world.wants])
    assert plans[0] == plans[1]


def test_regions_lists_and_top_k() -> None:
    found = asked("r = region('10.0.0.1', 50)", "print r")
    assert write(found.where) == """"rtt TO '10.0.0.1'" < 0.05"""
    found = asked("r = region($1.role = 'web')", "s = select(r, MEMORY($1) >= 0.5)", "print s orderby MEMORY($1) desc")
    assert write(found.where) == "role = 'web' AND memory >= 0.5"
    assert [(key.selected.label, key.descending) for key in found.sort_by] == [("memory", True)]
    found = asked("r = iplist(10.0.0.1, '10.0.0.2:7000')", "t = topk(r, CPU_LOAD($1), 3)", "print t")
    assert write(found.where) == "address IN ('10.0.0.1', '10.0.0.2:7000') OR address STARTS WITH '10.0.0.1:'"
    assert (found.limit, found.sort_by[0].descending, [each.label for each in found.selected]) == (
        3,
        True,
        ["node", "cpu"],
    )


def test_a_region_around_coordinates_as_in_the_paper_costs_no_message() -> None:
    found = asked("r = region(100, 60, -150, 50)", "print r")
    assert write(found.where) == """"coordinates TO '100 60 -150'" < 0.05"""
    spots = [Spot(100, 60, -150), Spot(100, 90, -150, 19), Spot(100, 90, -150, 21), None]
    nodes = [replace(node(number, {}, []), spot=spot) for number, spot in enumerate(spots, 1)]
    world = QueriedNodes({})
    answer = world.run(running(found.text, nodes))
    assert [row.values for row in answer.rows] == [("00000000000000000000000000000001",), (f"{2:032x}",)]
    assert not world.wants
    shown = world.run(running("SELECT coordinates FROM nodes ORDER BY node", nodes))
    assert [row.values[0] for row in shown.rows] == ["100 60 -150", "100 90 -150", "100 90 -150", None]
    for wrong in ("1 2", "a b c", "1 2 3 4", "123456 1 1"):
        with pytest.raises(FilterError, match="three whole numbers"):
            running(f"SELECT node FROM nodes WHERE coordinates TO '{wrong}' < 50ms", nodes)


@pytest.mark.parametrize(
    ("line", "word", "argument"),
    [("sleep 10", "sleep", "10"), ("execute a.txt", "execute", "a.txt"), ("QUIT", "quit", "")],
)
def test_what_others_do(line: str, word: str, argument: str) -> None:
    doing = QuerySession().line(line)
    assert (doing.word, doing.argument) == (word, argument)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("selekt(r)", "no command 'selekt', did you mean \"select\"?"),
        ("", "no command"),
        ("region()", "makes a table"),
        ("x = select(q, CPU_LOAD($1) < 1)", "no table 'q'"),
        ("print q", "no table 'q'"),
        ("x = select(r, CPU_LOAD($1) <)", "expected a value"),
        ("x = select(t, CPU_LOAD($1) < 1)", "only printed"),
        ("x = join(t, r, LATENCY($1,$2) < 1)", "single nodes are joined"),
        ("x = join(r, r)", "expected a condition"),
        ("bound x", "expected"),
        ("x = topk(r, CPU_LOAD($1), many)", "expected"),
    ],
)
def test_refusals(line: str, message: str) -> None:
    session = QuerySession()
    session.line("r = region()")
    session.line("t = topk(r, CPU_LOAD($1), 3)")
    with pytest.raises(FilterError) as refused:
        session.line(line)
        session.line("y = select(r, CPU_LOAD($1) < 1)")
    assert message in str(refused.value)


def test_a_session_has_so_many_tables() -> None:
    session = QuerySession()
    for number in range(256):
        session.line(f"r{number} = region()")
    session.line("r7 = region()")
    with pytest.raises(FilterError, match="at most 256"):
        session.line("one = region()")


@pytest.mark.parametrize(
    "line",
    [
        *(
            "x" * 100_000,
            "print " + " " * 4000 + "y",
            "x = select(r," + "CPU_LOAD(" * 400 + ")",
            "x = iplist(" + "," * 4000 + ")",
        ),
        *("x = region(" + "(" * 4000 + ")", "x = select(r, LATENCY($1) < " + "9" * 4000 + "x)", "x =" + " " * 4000),
    ],
    ids=range(7),
)
def test_hostile_lines_are_refused_at_once(line: str) -> None:
    """In a few milliseconds; ten times as much is for machines that do much else."""
    session, times = QuerySession(), []
    session.line("r = region()")
    for _ in range(3):
        began = time.process_time()
        with pytest.raises(FilterError):
            session.line(line)
        times.append(time.process_time() - began)
    assert min(times) < 0.1
