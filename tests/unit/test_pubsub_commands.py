"""The commands of publish/subscribe: what they ask, what they print, and their exit codes."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from peerd.cli.main import main
from protocols.pubsub.front.tree_drawing import as_svg, as_text
from protocols.pubsub.models import SubscriptionRequest, TreeLeaf
from protocols.pubsub.service import NotDone
from tests.support.fake_daemon import FakeDaemon, answer_commands
from tests.support.fake_pubsub import TREE, FakePubSub, published, received

Captured = pytest.CaptureFixture[str]


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> FakePubSub:
    found = FakePubSub()
    answer_commands(monkeypatch, FakeDaemon({"pubsub": found}).client)
    return found


def test_one_event_from_arguments(service: FakePubSub, capsys: Captured) -> None:
    assert main(["publish", "stocks", "symbol=IBM", "price=20.5", "note=a=b", "--payload", "hello"]) == 0
    assert capsys.readouterr().out == "e1  replicated  matched 2 at 1 leaf, 2 ms\n"
    event = {"symbol": "IBM", "price": 20.5, "note": "a=b", "_payload": "hello"}
    assert service.calls == [("publish", (event, None))]


def test_one_event_as_json(service: FakePubSub, capsys: Captured) -> None:
    assert main(["publish", "stocks", '{"symbol": "IBM", "price": 20.5}', "--payload", "hello"]) == 0
    assert service.calls == [("publish", ({"symbol": "IBM", "price": 20.5, "_payload": "hello"}, None))]
    assert main(["publish", "stocks", '{"symbol": ']) == 2
    assert "the event is not JSON" in capsys.readouterr().err
    assert main(["publish", "stocks", '["IBM"]']) == main(["publish", "stocks", '{"a": 1}', "b=2"]) == 2
    assert "neither NAME=VALUE nor, alone, a JSON object" in capsys.readouterr().err
    assert len(service.calls) == 1


def test_headers_of_an_event(service: FakePubSub, capsys: Captured) -> None:
    assert main(["publish", "stocks", "a=1", "-H", "trace=x=y", "--header", "trace=z"]) == 0
    assert service.calls == [("publish", ({"a": 1, "_headers": [["trace", "x=y"], ["trace", "z"]]}, None))]
    assert main(["publish", "stocks", "a=1", "--header", "=z"]) == 2
    assert "is not NAME=TEXT" in capsys.readouterr().err


@pytest.mark.parametrize("option", [["--payload", "x"], ["--header", "a=b"]])
def test_what_is_for_one_event_is_refused_with_a_file(service: FakePubSub, option: list[str], capsys: Captured) -> None:
    assert main(["publish", "stocks", "--file", "-", *option]) == 2
    assert "for one event" in capsys.readouterr().err
    assert not service.calls


def test_an_uncertain_outcome_exits_with_3(service: FakePubSub, capsys: Captured) -> None:
    service.outcome = lambda number: published(number, "unknown", "a leaf is silent")
    assert main(["publish", "stocks", "a=1"]) == 3
    assert "unknown" in capsys.readouterr().out


@pytest.mark.parametrize(
    "words", [["a"], ["=1"], [], ["a=1", "-f", "x"], ["a=1", "--ack", "perhaps"], ["-f", "/nowhere/x.jsonl"]]
)
def test_publishing_nonsense_is_a_usage_error(service: FakePubSub, words: list[str]) -> None:
    assert main(["publish", "stocks", *words]) == 2
    assert service.calls == []


def test_many_events_from_a_file(service: FakePubSub, tmp_path: Path, capsys: Captured) -> None:
    file = tmp_path / "events.jsonl"
    file.write_text('{"n": 1}\n\n{"n": 2}\n')
    assert main(["publish", "stocks", "-f", str(file), "--ack", "received"]) == 0
    assert capsys.readouterr().out.startswith("2 events in ")
    assert service.calls == [("publish", ({"n": 1}, "received")), ("publish", ({"n": 2}, "received"))]


def test_events_without_a_certain_outcome_are_named(service: FakePubSub, tmp_path: Path, capsys: Captured) -> None:
    file = tmp_path / "events.jsonl"
    file.write_text('{"n": 1}\n' * 4)
    service.outcome = lambda number: published(number, "unknown" if number > 2 else "replicated", "a leaf is silent")
    assert main(["publish", "stocks", "-f", str(file)]) == 3
    told = capsys.readouterr()
    assert "0 refused, 2 without a certain outcome" in told.out
    assert "events 3 to 4: outcome unknown, who sends it again may have it come twice: a leaf is silent" in told.err


@pytest.mark.parametrize(("line", "words"), [("rubbish", "line 2 is not JSON"), ("[1]", "line 2 is not a JSON object")])
def test_a_line_that_is_no_event_is_named(
    service: FakePubSub, tmp_path: Path, capsys: Captured, line: str, words: str
) -> None:
    file = tmp_path / "events.jsonl"
    file.write_text(f'{{"n": 1}}\n{line}\n')
    assert main(["publish", "stocks", "-f", str(file)]) == 2
    told = " ".join(capsys.readouterr().err.split())
    assert words in told and "the events before it may have been published" in told


def test_events_reach_the_terminal_without_its_commands(service: FakePubSub, capsys: Captured) -> None:
    service.feed.push(received(1).model_copy(update={"payload": "\x1b[2J"}), 100)
    service.feed.end("finished", is_final=True)
    assert main(["subscribe", "stocks", "price > 20", "-n", "1", "--since", "10m", "--policy", "block"]) == 0
    told = capsys.readouterr().out
    assert 'symbol="IBM" price="1"' in told and "\x1b" not in told
    request = next(what for name, what in service.calls if name == "subscribe")
    assert isinstance(request, SubscriptionRequest)
    assert (request.filter, request.since_s, request.policy) == ("price > 20", 600.0, "block")
    assert ("end", "0a") in service.calls


@pytest.mark.parametrize("words", [["--after", "fake.1-1"], ["--name", "audit", "--after", "yesterday"]])
def test_a_place_that_cannot_be_resumed_subscribes_to_nothing(service: FakePubSub, words: list[str]) -> None:
    assert main(["subscribe", "stocks", *words]) == 2
    assert service.calls == []


def test_a_wish_that_the_daemon_refuses_is_one_line(service: FakePubSub, capsys: Captured) -> None:
    assert main(["subscribe", "stocks", "--name", "no name"]) == 1
    told = capsys.readouterr().err
    assert told.startswith("peerd: error: name: ") and told.count("\n") == 1


def test_an_error_in_a_schema_names_its_file(service: FakePubSub, tmp_path: Path, capsys: Captured) -> None:
    file = tmp_path / "stocks.toml"
    file.write_text('name = "stocks"')
    service.refusal = NotDone("invalid", "attributes: it has to be there")
    assert main(["schema", "declare", str(file)]) == 1
    assert capsys.readouterr().err == f"peerd: error: {file}: attributes: it has to be there\n"


def test_a_filter_that_matches_nothing_is_pointed_out(service: FakePubSub, capsys: Captured) -> None:
    service.feed.end("finished", is_final=True)
    service.view = service.view.model_copy(update={"detail": "no event can match this filter"})
    assert main(["subscribe", "stocks", "price > 2 AND price < 1"]) == 0
    assert "note: no event can match this filter\n" in capsys.readouterr().err


def test_a_filter_in_json(service: FakePubSub) -> None:
    assert main(["subs", "change", "0a", '{"price": [1]}']) == 0
    assert service.calls == [("change", ("0a", {"price": [1]}))]
    assert main(["subs", "change", "0a", '{"price": ']) == 2
    assert main(["subscribe", "stocks", "[1, "]) == 2


def test_subscriptions_are_listed_and_those_that_are_covered(service: FakePubSub, capsys: Captured) -> None:
    assert main(["subs", "list"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 3
    assert main(["subs", "list", "--covered", "-o", "json"]) == 0
    [covered] = json.loads(capsys.readouterr().out)
    assert (covered["id"], covered["covered_by"], covered["schema"]) == ("0b", "0a", "stocks")
    assert main(["subs", "end", "0a"]) == 0
    assert capsys.readouterr().out.startswith("0a  ending")


@pytest.mark.parametrize(("verdict", "code"), [("arrived", 0), ("did not arrive", 1), ("unknown", 3)])
def test_an_explanation_and_its_exit_codes(service: FakePubSub, capsys: Captured, verdict: str, code: int) -> None:
    service.verdict["verdict"] = verdict
    assert main(["explain", "e-1-2", "ab"]) == code
    assert capsys.readouterr().out == f"{verdict}\n  it does not match\n  publisher: replicated\n"


def test_schemas(service: FakePubSub, tmp_path: Path, capsys: Captured) -> None:
    file = tmp_path / "stocks.toml"
    file.write_text('name = "stocks"\n[[attributes]]\nname = "symbol"\ntype = "string"\n')
    assert main(["schema", "declare", str(file)]) == 0
    assert capsys.readouterr().out == "stocks version 1\n"
    assert main(["schema", "list"]) == 0
    assert "stocks" in capsys.readouterr().out
    assert main(["schema", "declare", str(tmp_path / "none.json")]) == 78


def test_a_schema_is_inferred_without_a_daemon(tmp_path: Path, capsys: Captured) -> None:
    file = tmp_path / "events.jsonl"
    file.write_text('{"symbol": "IBM", "volume": 7}\n{"symbol": "A", "volume": 9}\n')
    assert main(["schema", "infer", str(file), "--name", "stocks"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["name"], [each["name"] for each in document["attributes"]]) == ("stocks", ["symbol", "volume"])


# --- drawings -------------------------------------------------------------------------------------------------------


def test_a_tree_as_text() -> None:
    assert as_text(TREE).splitlines() == [
        "stocks.price",
        "whole  inner",
        "  0  leaf: 1 piece, 10 events a minute, at bbbbbbbb; ranges from [0, 50) to [0, 100)",
        "  1  leaf: 7 pieces, 0 events a minute, at cccccccc; ranges from [50, 100) to [0, 100)",
        "2 leaves, 8 pieces of subscriptions",
    ]
    silent = TREE.model_copy(update={"is_complete": False})
    assert as_text(silent).splitlines()[-1] == "some cells did not answer: the tree is not shown whole"


def test_a_picture_has_a_rectangle_a_leaf_darker_with_its_load() -> None:
    name = "{http://www.w3.org/2000/svg}"
    picture = ElementTree.fromstring(as_svg(TREE))
    boxes = [
        group.find(f"{name}rect") for group in picture.findall(f"{name}g") if group.find(f"{name}rect") is not None
    ]
    assert [(box.get("x"), box.get("width")) for box in boxes if box is not None] == [
        ("40.0", "320.0"),
        ("360.0", "320.0"),
    ]
    assert [box.get("fill") for box in boxes if box is not None] == ["rgb(125,130,255)", "rgb(245,250,255)"]


def test_names_cannot_break_a_picture() -> None:
    odd = TREE.model_copy(update={"attribute": "<script>", "cells": [TreeLeaf(bits="", state="leaf", owner="<&>")]})
    assert "<script>" not in as_svg(odd)
    ElementTree.fromstring(as_svg(odd))


@pytest.mark.parametrize("drawing", ["text", "dot", "json", "svg"])
def test_every_drawing_is_printed(service: FakePubSub, capsys: Captured, drawing: str) -> None:
    assert main(["tree", "stocks", "price", "-o", drawing]) == 0
    assert "price" in capsys.readouterr().out or drawing == "dot"
    assert service.calls == [("tree", ("stocks", "price"))]
