"""``peerd aggregate``: what it asks, what it prints, and its exit codes."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from functools import reduce

import pytest

import protocols.aggregation.front.commands
from peerd.cli.main import main
from protocols.aggregation.answer import Answer, Shares
from protocols.aggregation.collector import Missing
from protocols.aggregation.figures import Estimate, Figures, GroupedAnswer, HistogramFigure, Listing
from protocols.aggregation.partial import ExtractionReport, Partial, merge
from protocols.aggregation.query import QUERY_HELP, parse_query
from tests.support.fake_aggregation import ANSWER, PROGRESS, Call, FakeAggregation
from tests.support.fake_daemon import FakeDaemon, peer

COMPLETE = replace(
    ANSWER, missing=(), missing_count=0, contributors=3, contributor_ids=(peer(1).id, peer(2).id, peer(3).id)
)


class Asked:
    """A daemon whose aggregation answers with `answer`."""

    def __init__(self) -> None:
        self.answer = ANSWER
        plugin = FakeAggregation()
        self.service = plugin.fake
        self.service.on_call = self._reply
        self.daemon = FakeDaemon({"aggregation": plugin})

    def _reply(self, call: Call) -> None:
        assert call.listener.progress is not None
        call.listener.progress(PROGRESS)
        call.listener.progress(replace(PROGRESS, enrolled=3))
        call.answer(self.answer)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    found = Asked()
    monkeypatch.setattr(protocols.aggregation.front.commands, "Client", lambda address: found.daemon.client())
    return found


WORDS = ["aggregate", "count by word", "--pattern", r"(?P<word>\w+)"]


def test_a_complete_answer(asked: Asked, capsys: pytest.CaptureFixture[str]) -> None:
    asked.answer = COMPLETE
    assert main(WORDS) == 0
    captured = capsys.readouterr()
    assert captured.out.splitlines()[0].split() == ["group", "value"]
    assert [line.split() for line in captured.out.splitlines()[1:4]] == [["a", "3"], ["b", "2"], ["c", "1"]]
    assert "complete: 3 of 3 nodes (100.0%), 500 ms" in captured.out
    assert "missing" not in captured.err
    (call,) = asked.service.calls
    assert (str(call.query), call.query.format) == ("count by word", "text")


def test_a_partial_answer_names_the_missing_and_exits_with_3(asked: Asked, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(WORDS) == 3
    captured = capsys.readouterr()
    assert "partial: 2 of 3 nodes (66.7%)" in captured.out
    assert "1 node is missing:\n  03000000  127.0.0.1:7003  no answer\n" in captured.err


def test_who_is_missing_is_on_the_line_of_the_verdict(asked: Asked, capsys: pytest.CaptureFixture[str]) -> None:
    lost = Missing(peer(3).id, "10.0.0.4:7420", "lost 3 s ago", 3.2)
    asked.answer = replace(ANSWER, missing=(lost,))
    assert main(WORDS) == 3
    line = "partial: 2 of 3 nodes (66.7%), 500 ms; missing 03000000 (10.0.0.4:7420): lost 3 s ago"
    assert line in capsys.readouterr().out.splitlines()
    main([*WORDS, "-o", "json"])
    assert json.loads(capsys.readouterr().out)["missing"][0]["lost_s"] == 3.2


def test_many_missing_are_counted_there(asked: Asked, capsys: pytest.CaptureFixture[str]) -> None:
    missing = tuple(Missing(peer(number).id, None, "lost 1 h ago", 3600.0) for number in range(3, 8))
    asked.answer = replace(ANSWER, missing=missing, missing_count=5, expected=7)
    assert main(WORDS) == 3
    captured = capsys.readouterr()
    assert "; 5 missing\n" in captured.out
    assert captured.err.count("lost 1 h ago") == 5


def test_a_glob_that_matches_nothing_is_warned_of(asked: Asked, capsys: pytest.CaptureFixture[str]) -> None:
    asked.answer = replace(COMPLETE, files="*.lgo", report=ExtractionReport(), shares=Shares(without_files=3))
    assert main(WORDS) == 0
    captured = capsys.readouterr()
    assert "warning: no file on any of the 3 nodes in this answer matches '*.lgo'" in captured.err
    assert "each node: 0 files, 0 records; 3 without any file" in captured.out
    main([*WORDS, "-o", "json"])
    assert json.loads(capsys.readouterr().out)["warnings"] == list(asked.answer.warnings)


def test_what_each_node_read(asked: Asked, capsys: pytest.CaptureFixture[str]) -> None:
    query = parse_query("count")
    partials = [
        Partial.of(query, peer(number).id, 0, ExtractionReport(files_read=number - 1, records=1000 * number))
        for number in (1, 2, 3)
    ]
    asked.answer = replace(COMPLETE, files="*", shares=Shares.of(reduce(merge, partials)))
    assert main([*WORDS, "--shares"]) == 0
    captured = capsys.readouterr()
    assert "warning" not in captured.err
    assert (
        "each node: 0 to 2 files (median 1), 1,000 to 3,000 records (median 2,000); 1 without any file" in captured.out
    )
    rows = [line.split() for line in captured.out.splitlines()[-3:]]
    assert [row[1:] for row in rows] == [["0", "1,000"], ["1", "2,000"], ["2", "3,000"]]


@pytest.mark.parametrize(
    ("answer", "require", "code"),
    [
        (ANSWER, "0.99", 3),
        (ANSWER, "0.67", 3),
        (ANSWER, "0.66", 0),
        (ANSWER, "0", 0),
        (ANSWER, "1", 3),
        (COMPLETE, "1", 0),
        (COMPLETE, "0.99", 0),
        (replace(ANSWER, contributors=0, contributor_ids=(), value=None), "0.5", 3),
    ],
)
def test_require(asked: Asked, answer: Answer, require: str, code: int) -> None:
    asked.answer = answer
    assert main([*WORDS, "--require", require]) == code


def test_json_is_the_whole_answer_and_nothing_else(asked: Asked, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*WORDS, "-o", "json"]) == 3
    answer = json.loads(capsys.readouterr().out)
    assert answer["value"]["groups"] == {"a": 3, "b": 2, "c": 1}
    assert answer["missing"][0]["reason"] == "no answer" and answer["outcome"] == "partial"


def test_progress_is_for_terminals(
    asked: Asked, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    main(WORDS)
    assert "enrolled" not in capsys.readouterr().err, "in a pipe there is none"
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    main(WORDS)
    assert capsys.readouterr().err.count("nodes enrolled") == 2
    main([*WORDS, "--no-progress"])
    assert "enrolled" not in capsys.readouterr().err


def test_top_is_said(asked: Asked, capsys: pytest.CaptureFixture[str]) -> None:
    main([*WORDS, "--top", "1"])
    assert "and 2 groups more (--top)" in capsys.readouterr().out


def test_what_was_folded_away_is_said(asked: Asked, capsys: pytest.CaptureFixture[str]) -> None:
    asked.answer = replace(COMPLETE, value=GroupedAnswer({"a": 3}, 1, remainder_groups_max=5, remainder=1200))
    main(WORDS)
    assert "not exact: up to 5 groups folded away, together 1,200" in capsys.readouterr().out


def test_a_single_value(asked: Asked, capsys: pytest.CaptureFixture[str]) -> None:
    asked.answer = replace(COMPLETE, value=2.5)
    assert main(["aggregate", "mean(x)"]) == 0
    assert capsys.readouterr().out.startswith("2.5\n")


FIGURES = Figures(
    {
        "count": 1200,
        "p99(ms)": Estimate(103.123456, 102.0, 104.0),
        "values(user, 2)": Listing(("ann", "bob"), more=True),
        "histogram(ms, 1, 10)": HistogramFigure((1, 10), (5, 20, 0)),
        "mean(ms)": None,
    }
)


def test_several_functions_are_a_table(asked: Asked, capsys: pytest.CaptureFixture[str]) -> None:
    asked.answer = replace(COMPLETE, value=FIGURES)
    text = ", ".join(FIGURES.figures)
    assert main(["aggregate", text]) == 0
    lines = {line.split("  ")[0]: line for line in capsys.readouterr().out.splitlines()}
    assert lines["count"].endswith("1,200")
    assert lines["p99(ms)"].endswith("103.1 (102 to 104)")
    assert lines["values(user, 2)"].endswith("ann, bob, and more")
    assert lines["histogram(ms, 1, 10)"].endswith("5 below 1, 20 from 1 to 10, 0 from 10")
    assert lines["mean(ms)"].endswith("-")
    main(["aggregate", text, "-o", "json"])
    figures = json.loads(capsys.readouterr().out)["value"]["figures"]
    assert figures["p99(ms)"] == {"estimate": 103.123456, "low": 102.0, "high": 104.0}
    assert figures["values(user, 2)"] == {"values": ["ann", "bob"], "more": True}
    main(["aggregate", text, "-o", "csv"])
    head, row = csv.reader(capsys.readouterr().out.splitlines())
    assert [name.split(".")[0] for name in head][:3] == list(FIGURES.figures)[:3]
    assert row[:2] == ["1200", "103.123456"]


def test_groups_of_several_keys_have_columns_for_them(asked: Asked, capsys: pytest.CaptureFixture[str]) -> None:
    groups = {'["a","x y"]': Figures({"count": 3, "max(ms)": 7.5}), "not keys": Figures({"count": 1, "max(ms)": None})}
    asked.answer = replace(COMPLETE, value=GroupedAnswer(groups, 2, 4, Figures({"count": 9, "max(ms)": 1})))
    query = "count, max(ms) by host, path"
    assert main(["aggregate", query]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["host", "path", "count", "max(ms)"]
    assert [line.split() for line in lines[1:4] if "a  " in line] == [["a", "x", "y", "3", "7.5"]]
    assert any(line.startswith("not keys") for line in lines), "a hostile key is shown as it came"
    assert "not exact: up to 4 groups folded away, together count 9, max(ms) 1 (--groups-max)" in lines
    main(["aggregate", query, "-o", "jsonl"])
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert rows[0] == {"host": "a", "path": "x y", "count": 3, "max(ms)": 7.5}


def test_a_histogram_is_drawn(asked: Asked, capsys: pytest.CaptureFixture[str]) -> None:
    asked.answer = replace(COMPLETE, value=HistogramFigure((1, 10), (5, 20, 0)))
    assert main(["aggregate", "histogram(ms, 1, 10)"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("from 1 to 10") and line.endswith("20  " + "#" * 40) for line in lines)
    assert any(line.startswith("below 1") and line.endswith("5  " + "#" * 10) for line in lines)


def test_rounds_are_asked_again_and_again(asked: Asked, capsys: pytest.CaptureFixture[str]) -> None:
    asked.answer = replace(COMPLETE, value=7)
    assert main(["aggregate", "count", "--every", "100ms", "--rounds", "3"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines.count("7") == 3 == sum(line.startswith("--- 20") for line in lines)
    assert [call.deadline_s for call in asked.service.calls] == [0.1] * 3
    assert main(["aggregate", "count", "--every", "2m", "--rounds", "1", "-o", "jsonl"]) == 0
    (row,) = map(json.loads, capsys.readouterr().out.splitlines())
    assert (row["value"], row["at"][-6:], asked.service.calls[-1].deadline_s) == (7, "+00:00", 60.0)


def test_one_partial_answer_of_many_is_told_by_the_exit_code(asked: Asked) -> None:
    answers = iter([replace(COMPLETE, value=7), ANSWER, replace(COMPLETE, value=8)])

    def reply(call: Call) -> None:
        call.listener.finished(next(answers))

    asked.service.on_call = reply
    assert main(["aggregate", "count", "--every", "100ms", "--rounds", "3", "-o", "csv"]) == 3


@pytest.mark.parametrize("wrong", [["--every", "0s"], ["--every", "soon"], ["--rounds", "2"], ["--rounds", "0"]])
def test_mistakes_of_repetition(wrong: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["aggregate", "count", *wrong]) == 2
    assert wrong[0] in capsys.readouterr().err


def test_troubles_with_files_are_noted(asked: Asked, capsys: pytest.CaptureFixture[str]) -> None:
    asked.answer = replace(
        COMPLETE, report=ExtractionReport(files_unreadable=2, records_rejected=1000, notes=("a: \x1b[31mbad",))
    )
    assert main(WORDS) == 0
    err = capsys.readouterr().err
    assert "note: 2 files not readable, 1,000 records rejected" in err
    assert "\x1b" not in err, "text of a file reached the terminal as a command"


@pytest.mark.parametrize(("rejected", "is_told"), [(1000, True), (999, False)])
def test_who_had_every_record_rejected_is_told_what_to_check(
    rejected: int, is_told: bool, asked: Asked, capsys: pytest.CaptureFixture[str]
) -> None:
    asked.answer = replace(COMPLETE, report=ExtractionReport(records=1000, records_rejected=rejected))
    main(WORDS)
    assert ("plain text needs a --pattern" in capsys.readouterr().err) is is_told


def test_names_of_groups_cannot_command_the_terminal(asked: Asked, capsys: pytest.CaptureFixture[str]) -> None:
    asked.answer = replace(COMPLETE, value=GroupedAnswer({"\x1b[2J[red]": 1}, 1, 0, None))
    main(WORDS)
    out = capsys.readouterr().out
    assert "\x1b" not in out and "[red]" in out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["count bye x"], "count bye x\n        ^"),
        (["count", "--pattern", "a" * 600], "1 to 512 characters"),
        (["count", "--format", "xml"], "not one of ndjson, csv, text"),
        (["count", "--deadline", "30"], "expected a duration with its unit"),
        (["count", "--require", "1.5"], "--require"),
        ([], "QUERY"),
    ],
)
def test_a_mistake_is_found_without_a_daemon(
    capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    assert main(["aggregate", *arguments]) == 2
    assert words in capsys.readouterr().err


def test_without_a_daemon(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["aggregate", "count", "--socket", "/nonexistent/admin.sock"]) == 69
    assert "no daemon answers at /nonexistent/admin.sock" in capsys.readouterr().err


def test_the_help_explains_the_query_in_one_screen(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["aggregate", "--help"]) == 0
    text = capsys.readouterr().out
    for line in QUERY_HELP.splitlines():
        assert line.strip() in text
    assert len(text.splitlines()) <= 60
