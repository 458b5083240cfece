"""What commands print: for people within the width of their terminal, and for programs in four formats."""

from __future__ import annotations

import csv
import io
import json
from typing import Any

import pytest
import yaml
from hypothesis import given, strategies as st

from peerd.cli.output import Output, RowWriter, print_data, seconds
from peerd.cli.terminal import PIPE_WIDTH, Terminal, Waiting, print_facts, print_table, width
from peerd.models.admin import VerdictView

IDS = ["0123456789abcdef" * 2, "fedcba9876543210" * 2]
PROGRAMS = [Output.JSON, Output.JSONL, Output.CSV, Output.YAML]
DOCUMENT: dict[str, list[dict[str, Any]]] = {
    "peers": [
        {"id": IDS[0], "rtt_s": 0.5, "links": 3, "is_linked": True, "tags": ["a", "b"], "made_at": 1.8e9},
        {"id": IDS[1], "rtt_s": None, "links": 0, "is_linked": False, "tags": [], "made_at": 1.8e9 + 0.25},
    ]
}


class Screen(io.StringIO):
    """A terminal."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


def screen(columns: int, monkeypatch: pytest.MonkeyPatch) -> Terminal:
    monkeypatch.setenv("NO_COLOR", "1")
    return Terminal(Screen(), columns)


def written(terminal: Terminal) -> str:
    stream = terminal._stream
    assert isinstance(stream, Screen)
    return stream.getvalue()


# For programs


def printed(output: Output, capsys: pytest.CaptureFixture[str]) -> str:
    print_data(output, DOCUMENT, DOCUMENT["peers"])
    return capsys.readouterr().out


def test_json_and_yaml_are_the_document(capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(printed(Output.JSON, capsys))
    assert found == yaml.safe_load(printed(Output.YAML, capsys))
    assert found["peers"][0] == {
        "id": IDS[0],
        "rtt_s": 0.5,
        "links": 3,
        "is_linked": True,
        "tags": ["a", "b"],
        "made_at": "2027-01-15T08:00:00.000Z",
    }


def test_yaml_is_in_blocks(capsys: pytest.CaptureFixture[str]) -> None:
    assert printed(Output.YAML, capsys).splitlines()[:3] == ["peers:", f"- id: {IDS[0]}", "  rtt_s: 0.5"]


def test_jsonl_and_csv_are_the_rows(capsys: pytest.CaptureFixture[str]) -> None:
    lines = [json.loads(line) for line in printed(Output.JSONL, capsys).splitlines()]
    assert [line["id"] for line in lines] == IDS and lines[0]["links"] == 3
    table = list(csv.DictReader(io.StringIO(printed(Output.CSV, capsys))))
    assert table[0] == {
        "id": IDS[0],
        "rtt_s": "0.5",
        "links": "3",
        "is_linked": "true",
        "tags": '["a", "b"]',
        "made_at": "2027-01-15T08:00:00.000Z",
    }
    assert table[1]["rtt_s"] == ""


def test_csv_without_a_row_has_its_header_and_nothing_else_has(capsys: pytest.CaptureFixture[str]) -> None:
    for output, printed_text in (
        (Output.CSV, f"id,{','.join(VerdictView.model_fields)}\n"),
        (Output.JSONL, ""),
        (Output.JSON, "{}\n"),
    ):
        print_data(output, {}, [], VerdictView, before=("id",))
        assert capsys.readouterr().out == printed_text


def test_csv_has_the_columns_of_all_rows(capsys: pytest.CaptureFixture[str]) -> None:
    print_data(Output.CSV, [{"a": 1, "in": {"x": 2}}, {"a": 3, "b": "one, two\n"}])
    assert capsys.readouterr().out == 'a,in.x,b\n1,2,\n3,,"one, two\n"\n'


def test_rows_that_come_one_by_one(capsys: pytest.CaptureFixture[str]) -> None:
    for output in PROGRAMS:
        writer = RowWriter(output)
        for number in range(2):
            writer.write({"n": number, "state": Output.JSON})  # a member of an enumeration is a text
    *lines, _, _ = capsys.readouterr().out.splitlines()
    assert lines[:4] == 2 * ['{"n": 0, "state": "json"}', '{"n": 1, "state": "json"}']
    assert lines[4:7] == ["n,state", "0,json", "1,json"]
    assert lines[7] == "- n: 0"


@pytest.mark.parametrize("output", PROGRAMS)
def test_there_are_no_colours_for_programs(
    output: Output, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert "\x1b" not in printed(output, capsys)


def test_times_of_a_simulation_stay_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    print_data(Output.JSON, {"at": 12.5, "ends_at": 1800.0, "rate": 1.8e9})
    assert json.loads(capsys.readouterr().out) == {"at": 12.5, "ends_at": 1800.0, "rate": 1.8e9}


# For people


HEADINGS = ("node", "address", "state", "score")
ROWS = [(IDS[0], "127.0.0.1:7420", "suspected: no heartbeat came", 3), (IDS[1], "127.0.0.1:7421", "ok", "-")]


def shown(columns: int, monkeypatch: pytest.MonkeyPatch, *, is_wide: bool = False) -> list[str]:
    terminal = screen(columns, monkeypatch)
    print_table(terminal, HEADINGS, ROWS, optional=("score",), is_wide=is_wide)
    return written(terminal).splitlines()


def test_a_wide_terminal_shows_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = shown(120, monkeypatch)
    assert IDS[0] in lines[1] and lines[0].endswith("score") and lines[1].endswith("    3") and len(lines) == 3


def test_a_narrow_terminal_shortens_ids_first(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = shown(80, monkeypatch)
    assert lines[1].startswith("01234567  127.0.0.1:7420  suspected: no heartbeat came") and "score" in lines[0]


def test_a_narrower_one_leaves_columns_out_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = shown(58, monkeypatch)
    assert "score" not in lines[0] and lines[-1] == "(no room for: score; --wide shows everything)"


def test_the_narrowest_folds_text_between_words(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = shown(42, monkeypatch)
    assert lines[1].split() == ["01234567", "127.0.0.1:7420", "suspected:", "no"]
    assert lines[2].strip() == "heartbeat came"


def test_a_command_without_the_option_does_not_name_it(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = screen(58, monkeypatch)
    print_table(terminal, HEADINGS, ROWS, optional=("score",))
    assert written(terminal).splitlines()[-1] == "(no room for: score; -o json has everything)"


def test_wide_shows_everything_anyway(monkeypatch: pytest.MonkeyPatch) -> None:
    assert IDS[0] in shown(40, monkeypatch, is_wide=True)[1]


def test_a_long_table_is_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = 0

    def counted(text: str) -> int:
        nonlocal asked
        asked += 1
        return width(text)

    monkeypatch.setattr("peerd.cli.terminal.width", counted)
    terminal = screen(60, monkeypatch)
    print_table(terminal, HEADINGS, ROWS * 500)
    assert len(written(terminal).splitlines()) > 1000
    cells = 1001 * len(HEADINGS)
    assert asked < 12 * cells, "not once more for each cell of a column with each of its cells"


def test_ids_that_begin_alike_keep_more_digits(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = screen(30, monkeypatch)
    alike = ["0" * 32, "0" * 9 + "1" * 23]
    print_table(terminal, ("node",), [(each,) for each in alike])
    assert written(terminal).split() == ["node", "0" * 10, "0" * 9 + "1"]


@given(
    rows=st.lists(st.tuples(st.sampled_from(IDS), st.text(max_size=90), st.integers()), max_size=5),
    columns=st.integers(20, 200),
)
def test_a_table_never_breaks_a_word(rows: list[tuple[str, str, int]], columns: int) -> None:
    terminal = Terminal(Screen(), columns)
    terminal._has_colours = False
    print_table(terminal, ("node", "text", "number"), rows)
    lines = written(terminal).splitlines()
    assert all("\x1b" not in line for line in lines)
    for node, text, number in rows:
        assert any(line.startswith(node[:8]) for line in lines)
        assert any(str(number) in line for line in lines)
        words = "".join(each if each.isprintable() else "?" for each in text).split(" ")
        assert all(any(word in line for line in lines) for word in words)


def test_a_pipe_gets_whole_lines_without_colours() -> None:
    stream = io.StringIO()
    terminal = Terminal(stream)
    assert terminal.width == PIPE_WIDTH
    print_table(terminal, HEADINGS, ROWS, optional=("score",))
    assert len(stream.getvalue().splitlines()) == 3 and "\x1b" not in stream.getvalue()


def test_facts_fold_below_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = screen(40, monkeypatch)
    print_facts(terminal, [("node", IDS[0]), ("state", "not ready: nobody has answered yet")])
    assert written(terminal).splitlines() == [
        f"node    {IDS[0]}",
        "state   not ready: nobody has answered",
        "        yet",
    ]


def test_control_characters_do_not_reach_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = screen(40, monkeypatch)
    terminal.print("evil\x1b[2J\rname")
    print_facts(terminal, [("a\x07", "b\x1b")])
    assert written(terminal) == "evil?[2J?name\na?   b?\n"


def test_wide_characters_take_two_places() -> None:
    assert (width("ab"), width("日本"), width("e\u0301")) == (2, 4, 1)


def test_progress_is_one_line_on_a_terminal_and_nothing_in_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = screen(60, monkeypatch)
    with terminal.status("starting") as status:
        status.update("half", 1, 2)
    text = written(terminal)
    assert "starting" in text and "[############------------] half" in text
    assert text.endswith("\r\x1b[2K") and "\n" not in text
    stream = io.StringIO()
    with Waiting(Terminal(stream), "starting") as status:
        status.update("half", 1, 2)
    assert stream.getvalue() == ""


def test_durations() -> None:
    values = (None, 4e-5, 0.002, 65.0, 7300.0)
    assert [seconds(value) for value in values] == ["-", "40 us", "2 ms", "65 s", "2 h 1 min"]
