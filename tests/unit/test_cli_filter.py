"""``peerd filter``: answers, exit codes, forms."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from peerd.cli.main import main

EVENTS = '{"price": 15, "sym": "IBM"}\n\n{"price": 25, "sym": "IBM"}\n{"sym": "IBM"}\n'


@pytest.fixture
def schema(tmp_path: Path) -> Path:
    path = tmp_path / "schema.toml"
    path.write_text('price = "decimal"\nsym = "string"\n')
    return path


def output(capsys: pytest.CaptureFixture[str]) -> str:
    return capsys.readouterr().out


def test_check_says_what_a_filter_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["filter", "check", "price in [10, 20) and sym = 'IBM'"]) == 0
    text = output(capsys)
    assert "price IN [10, 20) AND sym = 'IBM'" in text and "price, sym" in text
    assert main(["filter", "check", '{"sym": [{"prefix": "IB"}]}', "--to", "cloudevents", "-o", "json"]) == 0
    assert json.loads(output(capsys)) == {
        "filter": [{"prefix": {"sym": "IB"}}],
        "attributes": ["sym"],
        "conditions": 1,
        "alternatives": 1,
        "normal_form_refused": None,
    }
    wide = " AND ".join(f"(a{i} = 1 OR b{i} = 1)" for i in range(20))
    assert main(["filter", "check", wide]) == 0
    assert "CONJUNCTS_MAX" in output(capsys)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["check", "price ~ 3"], "price ~ 3\n        ^"),
        (["check", "{nonsense"], "not valid JSON"),
        (["check", '{"a": 1}'], "takes a list"),
        (["check", "a = '" + "x" * 9000 + "'"], "TEXT_BYTES_MAX"),
        (["explain", "a = 1", "[1]"], "an event is a JSON object"),
        (["explain", "a = 1", "{"], "not valid JSON"),
        (["covers", "a =", "b = 1"], "expected a value"),
        (["normalize", " AND ".join(f"(a{i} = 1 OR b{i} = 1)" for i in range(20))], "CONJUNCTS_MAX"),
    ],
)
def test_what_cannot_be_used_is_a_usage_error(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["filter", *arguments]) == 2
    assert words in capsys.readouterr().err


def test_a_schema_makes_wrong_types_errors(schema: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["filter", "check", "price > 'x'", "--schema", str(schema)]) == 2
    assert "price is decimal" in capsys.readouterr().err
    assert main(["filter", "check", '{"sym": [1]}', "--schema", str(schema)]) == 2
    assert "sym is string" in capsys.readouterr().err
    assert main(["filter", "explain", "price = 0.1", '{"price": 0.10}', "--schema", str(schema)]) == 0
    policy = '{"$or": [{"price": [0.1]}, {"sym": [{"anything-but": ["a"]}]}]}'
    assert main(["filter", "explain", policy, '{"price": 0.10}', "--schema", str(schema)]) == 0
    (tmp_path / "bad.json").write_text('{"a": "money"}')
    assert main(["filter", "check", "a = 1", "--schema", str(tmp_path / "bad.json")]) == 2
    assert "bad.json: the type of 'a'" in capsys.readouterr().err


def test_explain(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert main(["filter", "explain", "a = 1 AND b > 2", '{"a": 1, "b": 1}']) == 1
    text = output(capsys)
    assert "b > 2" in text and "a = 1" not in text
    monkeypatch.setattr("sys.stdin", io.StringIO('{"a": 1}'))
    assert main(["filter", "explain", "a = 1 AND b > 2", "-", "-o", "json"]) == 1
    assert json.loads(output(capsys)) == {
        "matches": False,
        "truth": None,
        "reasons": [{"condition": "b > 2", "truth": None, "value": "missing"}],
    }


def test_normalize(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["filter", "normalize", "NOT (a < 1 OR s NOT LIKE 'x%y') AND t ENDS WITH 'z'", "-o", "json"]) == 0
    [alternative] = json.loads(output(capsys))["alternatives"]
    assert [(test["condition"], test["mark"]) for test in alternative] == [
        ("a >= 1", "routable"),
        ("s LIKE 'x%y' ESCAPE '\\'", "approximate"),
        ("t ENDS WITH 'z'", "residual"),
    ]
    assert main(["filter", "normalize", "a = 1 AND a = 2"]) == 0
    assert output(capsys) == "matches nothing\n"
    assert main(["filter", "normalize", "a = 1 OR TRUE"]) == 0
    assert output(capsys) == "matches everything\n"
    assert main(["filter", "normalize", "a = 1 OR b = 2"]) == 0
    assert "a = 1" in output(capsys)


@pytest.mark.parametrize(
    ("command", "left", "right", "code", "word"),
    [
        ("covers", "a > 1", "a > 2", 0, "yes"),
        ("covers", "a > 2", "a > 1", 1, "no"),
        ("overlaps", "a > 2", "a > 1", 0, "yes"),
        ("overlaps", "a > 2", '{"a": [1]}', 1, "no"),
    ],
)
def test_two_filters(
    command: str, left: str, right: str, code: int, word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["filter", command, left, right]) == code
    assert output(capsys) == f"{word}\n"
    assert main(["filter", command, left, right, "-o", "json"]) == code
    assert json.loads(output(capsys)) == {command: code == 0}


def test_events_from_standard_input(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def run(*arguments: str) -> int:
        monkeypatch.setattr("sys.stdin", io.StringIO(EVENTS))
        return main(["filter", "test", *arguments])

    assert run("price < 20") == 0
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ('{"price": 15, "sym": "IBM"}\n', "1 of 3 events match\n")
    assert run("price > 100") == 1
    assert run("price < 20", "--why") == 0
    assert "price is missing" in output(capsys)
    assert run("price < 20", "-o", "json") == 0
    assert [json.loads(line)["truth"] for line in output(capsys).splitlines()] == [True, False, None]
    monkeypatch.setattr("sys.stdin", io.StringIO("{}\nnonsense\n"))
    assert main(["filter", "test", "a = 1"]) == 2
    assert "line 2: the event is not valid JSON" in capsys.readouterr().err
