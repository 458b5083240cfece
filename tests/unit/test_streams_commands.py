"""The commands `peerd stream ...`: what they ask for, what they print, and their exit codes."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from peerd.cli.main import main
from peerd.errors import ClientRefusal
from peerd.lib.feed import Feed
from protocols.dissemination.messages import ITEM_BYTES_MAX
from protocols.dissemination.models import AttachedDocument, ItemPublished
from protocols.dissemination.policies.cost.settings import read_settings
from protocols.dissemination.service import StreamRefused
from tests.support.fake_daemon import FakeDaemon, answer_commands
from tests.support.fake_streams import PRODUCER, TREE, FakeStreams, item

Captured = pytest.CaptureFixture[str]
XML = "application/xml"


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> FakeStreams:
    found = FakeStreams()
    answer_commands(monkeypatch, FakeDaemon({"dissemination": found}).client)
    return found


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Callable[[bytes], None]]:
    """Gives the commands something on standard input."""
    with ExitStack() as files:

        def type_it(content: bytes) -> None:
            file = tmp_path / "typed"
            file.write_bytes(content)
            monkeypatch.setattr("sys.stdin", files.enter_context(file.open()))

        yield type_it


# --- streams --------------------------------------------------------------------------------------------------------


def test_a_stream_is_created_with_settings_of_its_policy(service: FakeStreams, capsys: Captured) -> None:
    words = [
        "--kind",
        "xpath",
        "--policy",
        "cost",
        "--set",
        "period_s=5",
        "--set",
        "mode=slow",
        "--producer-gone",
        "end",
        "--durable",
    ]
    assert main(["stream", "create", "news", *words]) == 0
    assert capsys.readouterr().out == "news  xpath  shaped by cost; this daemon publishes it\n"
    [spec] = service.asked("create")
    assert (spec.kind, spec.settings, spec.producer_gone) == ("xpath", {"period_s": 5, "mode": "slow"}, "end")
    assert spec.durable


def test_a_stream_is_handed_over_and_shown_so(service: FakeStreams, capsys: Captured) -> None:
    assert main(["stream", "hand-over", "news", "--to", "192.0.2.7:7420"]) == 0
    assert capsys.readouterr().out == "news  is published by 192.0.2.7:7420 from now on\n"
    assert service.asked("hand_over") == [("news", "192.0.2.7:7420")]
    service.view = service.view.model_copy(update={"term": 2})
    assert main(["stream", "show", "news"]) == 0
    assert "(term 2)" in capsys.readouterr().out
    assert main(["stream", "hand-over", "nonesuch", "--to", "x"]) == 1
    assert "there is no stream nonesuch" in capsys.readouterr().err


def test_a_stream_that_standbys_take_over_is_created_and_shown_with_them(
    service: FakeStreams, capsys: Captured
) -> None:
    words = ["--producer-gone", "hand-over", "--successor", "192.0.2.7:7420", "--successor", "5ea2"]
    assert main(["stream", "create", "news", *words]) == 0
    [spec] = service.asked("create")
    assert (spec.producer_gone, spec.successors) == ("hand-over", ("192.0.2.7:7420", "5ea2"))
    service.view = service.view.model_copy(update={"producer_gone": "hand-over", "standbys": ["5ea2" * 8]})
    assert main(["stream", "show", "news"]) == 0
    assert f"goes on at {'5ea2' * 8}" in capsys.readouterr().out
    assert main(["stream", "create", "news", "--successor", "5ea2"]) == 2
    assert "it needs --producer-gone hand-over" in capsys.readouterr().err
    assert main(["stream", "create", "news", "--producer-gone", "cry"]) == 2


@pytest.mark.parametrize(
    ("durable", "is_kept", "told"),
    [(False, None, "no: a restart"), (True, True, "yes\n"), (True, False, "yes, but the disk refuses")],
)
def test_whether_a_stream_is_durable_is_shown(
    service: FakeStreams, capsys: Captured, durable: bool, is_kept: bool | None, told: str
) -> None:
    service.view = service.view.model_copy(update={"durable": durable, "is_kept": is_kept})
    assert main(["stream", "show", "news"]) == 0
    assert told in capsys.readouterr().out


def test_the_settings_in_the_examples_of_create_are_some(capsys: Captured) -> None:
    assert main(["stream", "create", "--help"]) == 0
    told = " ".join(capsys.readouterr().out.replace("│", " ").split())
    [example] = re.findall(r"--policy cost --set (\w+)=(\w+)", told)
    assert read_settings(dict([example])).round == 30.0


@pytest.mark.parametrize(
    "words",
    [
        ["--set", "period"],
        ["--set", "=5"],
        ["--set", "window=1", "--set", "window=3000"],
        ["--producer-gone", "cry"],
    ],
)
def test_creating_nonsense_is_a_usage_error(service: FakeStreams, words: list[str]) -> None:
    assert main(["stream", "create", "news", *words]) == 2
    assert service.calls == []


def test_what_the_daemon_refuses_is_one_line(service: FakeStreams, capsys: Captured) -> None:
    assert main(["stream", "create", "9lives"]) == 1
    assert capsys.readouterr().err.startswith(
        "peerd: error: name: '9lives' is no name of a stream: expected a letter, and up to 63 more letters"
    )
    assert main(["stream", "show", "nowhere"]) == 1
    assert capsys.readouterr().err == "peerd: error: there is no stream nowhere\n"


def test_streams_are_listed_shown_and_removed(service: FakeStreams, capsys: Captured) -> None:
    assert main(["stream", "list"]) == 0
    told = capsys.readouterr().out
    assert "news" in told and "overlap" in told and "7-3" in told
    assert main(["stream", "list", "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["producer"] == PRODUCER
    service.feed.end("finished", is_final=True)
    assert main(["stream", "subscribe", "news", "price > 20", "--name", "audit"]) == 0
    assert main(["stream", "show", "news"]) == 0
    told = capsys.readouterr().out
    assert "overlap (fan_out = 6)" in told and "audit" in told and "price > 20" in told
    assert main(["stream", "show", "news", "-o", "yaml"]) == 0
    assert "own_subscriptions:\n- id: s1" in capsys.readouterr().out
    assert main(["stream", "unsubscribe", "news", "audit"]) == 0
    assert capsys.readouterr().out == "s1  ended  price > 20\n"
    assert main(["stream", "remove", "news"]) == 0
    assert capsys.readouterr().out == "news  ended\n"


def test_plan_and_history_show_what_was_expected_beside_what_came(service: FakeStreams, capsys: Captured) -> None:
    assert main(["stream", "plan", "news"]) == 0
    assert "0.125 spurious share" in capsys.readouterr().out
    assert main(["stream", "history", "news"]) == 0
    head, row = capsys.readouterr().out.splitlines()
    assert head.split()[-3:] == ["predicted", "measured", "unit"] and " 0.5 " in row and " - " in row
    assert main(["stream", "history", "news", "-o", "csv"]) == 0
    assert capsys.readouterr().out.startswith("at_ms,what,node,from_parent,to_parent,predicted,measured,unit\n")
    service.moves = ([], [])
    assert main(["stream", "plan", "news"]) == 0
    assert capsys.readouterr().out == "overlap would change nothing now\n"
    assert main(["stream", "history", "news"]) == 0
    assert capsys.readouterr().out == "overlap has changed nothing lately\n"


@pytest.mark.parametrize("output", ["text", "dot", "mermaid", "svg", "json"])
def test_the_tree_is_drawn(service: FakeStreams, capsys: Captured, output: str) -> None:
    assert main(["stream", "tree", "news", "-o", output]) == 0
    told = capsys.readouterr().out
    assert "aaaaaaaa" in told and "cccccccc" in told
    service.answered_tree = TREE.model_copy(update={"missing": ["ee" * 16]})
    assert main(["stream", "tree", "news", "-o", output]) == 3, "some nodes did not answer"


# --- publishing -----------------------------------------------------------------------------------------------------


def test_one_item_of_attributes(service: FakeStreams, capsys: Captured) -> None:
    assert main(["stream", "publish", "news", "symbol=IBM", "price=20.5", "note=a=b"]) == 0
    assert capsys.readouterr().out == "news  7-1  42 B\n"
    [(payload, kind)] = service.items
    assert (json.loads(payload), kind) == ({"symbol": "IBM", "price": 20.5, "note": "a=b"}, "application/json")


def test_one_item_as_json(service: FakeStreams, capsys: Captured) -> None:
    assert main(["stream", "publish", "news", '{"symbol": "IBM", "price": 20.5}']) == 0
    [(payload, kind)] = service.items
    assert (json.loads(payload), kind) == ({"symbol": "IBM", "price": 20.5}, "application/json")
    assert main(["stream", "publish", "news", '{"symbol": ']) == 2
    assert "the item is not JSON" in capsys.readouterr().err


def test_each_file_is_an_item(service: FakeStreams, tmp_path: Path, capsys: Captured) -> None:
    for name, text in (("a.xml", "<a/>"), ("b=b.xml", "<b/>"), ("c", "c")):
        (tmp_path / name).write_text(text)
    assert main(["stream", "publish", "news", *(str(tmp_path / name) for name in ("a.xml", "b=b.xml", "c"))]) == 0
    assert capsys.readouterr().out.startswith("3 items in ")
    assert service.items == [(b"<a/>", XML), (b"<b/>", XML), (b"c", "")]


def test_no_file_is_published_when_one_cannot_be(service: FakeStreams, tmp_path: Path, capsys: Captured) -> None:
    (good := tmp_path / "a.xml").write_text("<a/>")
    (large := tmp_path / "b.xml").write_bytes(b"x" * (ITEM_BYTES_MAX + 1))
    (empty := tmp_path / "c.xml").write_text("")
    for bad in (large, empty, tmp_path / "none.xml", tmp_path):
        assert main(["stream", "publish", "news", str(good), str(bad)]) == 2
    assert service.items == []


def test_lines_of_standard_input(service: FakeStreams, typed: Callable[[bytes], None], capsys: Captured) -> None:
    typed(b'{"n": 1}\n\n{"n": 2}')
    assert main(["stream", "publish", "news"]) == 0
    assert service.items == [(b'{"n": 1}', "application/json"), (b'{"n": 2}', "application/json")]
    typed("héllo\r\n".encode() + b"\xff\n")
    assert main(["stream", "publish", "news", "-", "--text", "-o", "json"]) == 0
    assert '"accepted": 2' in capsys.readouterr().out
    assert service.items[2:] == [
        ('{"line":"héllo"}'.encode(), "application/json"),
        ('{"line":"\ufffd"}'.encode(), "application/json"),
    ]
    typed(b"<a/>\n<b/>\n")
    assert main(["stream", "publish", "news", "--type", XML]) == 0
    assert service.items[4:] == [(b"<a/>", XML), (b"<b/>", XML)]


@pytest.mark.parametrize("line", [b"rubbish", b"[1]", b"\xff"])
def test_a_line_that_is_no_object_is_named_and_what_came_before_it_published(
    service: FakeStreams, typed: Callable[[bytes], None], capsys: Captured, line: bytes
) -> None:
    typed(b'{"n": 1}\n' + line + b'\n{"n": 3}\n')
    assert main(["stream", "publish", "news"]) == 2
    told = " ".join(capsys.readouterr().err.replace("│", " ").split())
    assert "standard input, line 2" in told and "published before it: 1 item" in told
    assert service.items == [(b'{"n": 1}', "application/json")]


def test_refused_items_are_named_and_counted(service: FakeStreams, tmp_path: Path, capsys: Captured) -> None:
    def no_spam(payload: bytes) -> ClientRefusal | None:
        return StreamRefused("invalid", "no spam") if payload == b"spam" else None

    service.refused_item = no_spam
    for name, text in (("a", "good"), ("b", "spam")):
        (tmp_path / name).write_text(text)
    assert main(["stream", "publish", "news", str(tmp_path / "a"), str(tmp_path / "b")]) == 1
    told = capsys.readouterr()
    assert f"{tmp_path / 'b'}: no spam\n" in told.err and "1 item in" in told.out and "1 refused" in told.out


@pytest.mark.parametrize(
    "words",
    [
        ["a.xml", "--watch", "."],
        ["--follow", "a.log", "--watch", "."],
        ["--follow", "none.log"],
        ["--watch", "none"],
        ["--everything"],
        ["-", "a.xml"],
        ["a=1", "none.xml"],
        ["a=NaN"],
        ["a=-Infinity"],
        ["a=1e999"],
        ['a={"b": NaN}'],
        ["a=1", "--type", "text/plaén"],
        ["a=1", "--type", "application/x-ndjson"],
        ["a=1", "b=1", "a=2"],
        ["--attach", "a.xml", "a=1", "a=1"],
        ["a.xml", "--type", "x" * 200],
    ],
)
def test_publishing_nonsense_is_a_usage_error(
    service: FakeStreams, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, words: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a.xml", "a.log"):
        Path(name).write_text("x")
    assert main(["stream", "publish", "news", *words]) == 2
    assert service.items == []


@pytest.mark.parametrize(
    "words", [["publish", "log", "a=\udcff"], ["show", "a\udcff"], ["subscribe", "log", "--name", "\udcff"]]
)
def test_an_argument_that_is_no_text_is_a_usage_error(service: FakeStreams, capsys: Captured, words: list[str]) -> None:
    assert main(["stream", *words]) == 2
    told = capsys.readouterr().err
    assert told.startswith("peerd: error: the argument ") and told.endswith("\\xff is not UTF-8\n")
    assert service.calls == []


def test_a_file_may_have_a_name_that_is_no_text(service: FakeStreams, tmp_path: Path, capsys: Captured) -> None:
    path = tmp_path / "caf\udce9.xml"
    try:
        path.write_text("<a/>")
    except OSError:
        pytest.skip("this file system takes texts only")
    assert main(["stream", "publish", "news", str(path)]) == 0
    assert service.items == [(b"<a/>", XML)]
    assert main(["stream", "publish", "news", "--attach", str(path)]) == 1
    assert "there is no room" in capsys.readouterr().err, "the daemon was asked, and takes no documents here"


def test_an_attribute_may_be_any_text(service: FakeStreams) -> None:
    assert main(["stream", "publish", "news", 'a="NaN"', "b=[", "c=" + "[" * 10_000]) == 0
    ((payload, _),) = service.items
    assert json.loads(payload) == {"a": "NaN", "b": "[", "c": "[" * 10_000}


def test_a_stream_that_ends_meanwhile_ends_publishing(
    service: FakeStreams, typed: Callable[[bytes], None], monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    monkeypatch.setattr("peerd.client.batches.REQUEST_LINES_MAX", 1)
    gone = StreamRefused("unknown", "this node produces no stream news")
    publish = service.publish

    def once(name: str, payload: bytes, content_type: str = "") -> ItemPublished:
        service.refusal = gone
        return publish(name, payload, content_type)

    monkeypatch.setattr(service, "publish", once)
    typed(b'{"n": 1}\n{"n": 2}\n{"n": 3}\n')
    assert main(["stream", "publish", "news"]) == 1
    told = capsys.readouterr().err
    assert "1 item published, 0 refused" in told and "this node produces no stream news" in told


# --- subscribing ----------------------------------------------------------------------------------------------------


def test_items_are_printed_as_they_are(service: FakeStreams, capfd: pytest.CaptureFixture[str]) -> None:
    for number, payload in enumerate(("<a/>", "two\nlines\n"), 1):
        service.feed.push(item(number, payload))
    service.feed.end("finished", is_final=True)
    assert main(["stream", "subscribe", "news", "//a", "--after", "start"]) == 0
    assert capfd.readouterr().out == "<a/>\ntwo\nlines\n"
    [asked] = service.asked("subscribe")
    assert (asked.interest, asked.after, asked.name) == ("//a", "start", "")
    assert service.asked("unsubscribe") == ["s1"]


def test_items_as_rows_have_their_ids(service: FakeStreams, capsys: Captured) -> None:
    service.feed.push(item(1))
    service.feed.push(item(2))
    service.feed.end("finished", is_final=True)
    assert main(["stream", "subscribe", "news", "-n", "1", "-o", "jsonl"]) == 0
    [row] = map(json.loads, capsys.readouterr().out.splitlines())
    assert (row["id"], row["payload"]) == ("7-1", "item 1")


def test_rows_have_the_columns_of_a_document_whether_the_first_item_has_one_or_not(
    service: FakeStreams, capsys: Captured
) -> None:
    document = AttachedDocument(id="d1", name="film.mp4", size=7, content_type="video/mp4")
    for each in (item(1), item(2, document=document), item(3)):
        service.feed.push(each)
    service.feed.end("finished", is_final=True)
    assert main(["stream", "subscribe", "news", "--after", "start", "-o", "csv"]) == 0
    rows = list(csv.DictReader(capsys.readouterr().out.splitlines()))
    names = ["document.id", "document.name", "document.size", "document.content_type"]
    found = [[row[name] for name in names] for row in rows]
    assert found == [[""] * 4, ["d1", "film.mp4", "7", "video/mp4"], [""] * 4]
    assert [row["payload"] for row in rows] == ["item 1", "item 2", "item 3"] and "document" not in rows[0]


def test_what_is_lost_is_told_and_the_exit_code_says_so(service: FakeStreams, capsys: Captured) -> None:
    service.feed.push(item(5, type="lost", since="7-1", reason="nobody remembers it"))
    service.feed.push(item(6, type="stale"))
    service.feed.push(item(7, type="fresh"))
    service.feed.push(item(7, type="ended", reason="ended"))
    service.feed.end("finished", is_final=True)
    assert main(["stream", "subscribe", "news"]) == 3
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.splitlines() == [
        "GAP after 7-1 up to 7-5: nobody remembers it",
        "STALE since 7-6: no news of its source",
        "FRESH from 7-7 on: its source is heard again",
        "-- the stream has ended",
    ]


def test_a_beginning_that_is_not_there_yet_is_told(service: FakeStreams, capsys: Captured) -> None:
    service.note = "the stream is at 7-3, before 7-9"
    service.feed.end("finished", is_final=True)
    assert main(["stream", "subscribe", "news", "--after", "7-9"]) == 0
    assert "-- the stream is at 7-3, before 7-9\n" in capsys.readouterr().err


def test_items_that_nobody_read_in_time_are_a_gap(service: FakeStreams, capsys: Captured) -> None:
    service.feed = Feed("fake.1", items_max=1)
    for number in range(1, 4):
        service.feed.push(item(number))
    service.feed.end("finished", is_final=True)
    assert main(["stream", "subscribe", "news", "--name", "audit", "--after", "7-1"]) == 3
    assert "GAP 2 items not read in time\n" in capsys.readouterr().err


def test_each_item_into_a_file_of_its_own(service: FakeStreams, tmp_path: Path) -> None:
    pushed = [
        item(1, "<a/>").model_copy(update={"content_type": "application/xml; charset=utf-8"}),
        item(2, type="lost"),
        item(3).model_copy(update={"payload": None, "payload_base64": "/w==", "content_type": ""}),
        item(4, "x").model_copy(update={"content_type": ""}),
    ]
    for each in pushed:
        service.feed.push(each)
    service.feed.end("finished", is_final=True)
    folder = tmp_path / "new" / "news"
    assert main(["stream", "subscribe", "news", "--into", str(folder)]) == 3
    found = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert found == {"news-7-1.xml": b"<a/>", "news-7-3.bin": b"\xff", "news-7-4.txt": b"x"}


def test_a_place_that_is_none_subscribes_to_nothing(service: FakeStreams, tmp_path: Path) -> None:
    assert main(["stream", "subscribe", "news", "--after", "yesterday"]) == 2
    (tmp_path / "file").write_text("")
    assert main(["stream", "subscribe", "news", "--into", str(tmp_path / "file" / "x")]) == 2
    assert service.calls == []


def test_a_file_that_cannot_be_written_is_one_line_and_leaves_nothing_unfinished(
    service: FakeStreams, tmp_path: Path, capsys: Captured
) -> None:
    (tmp_path / "news-7-2.txt").mkdir()
    for number in (1, 2, 3):
        service.feed.push(item(number))
    service.feed.end("finished", is_final=True)
    assert main(["stream", "subscribe", "news", "--into", str(tmp_path)]) == 1
    told = capsys.readouterr().err
    assert f"cannot write {tmp_path / 'news-7-2.txt'}: " in told and "nothing from 7-2 on is there" in told
    assert sorted(path.name for path in tmp_path.iterdir()) == ["news-7-1.txt", "news-7-2.txt"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no device that is always full")
@pytest.mark.parametrize("output", ["table", "jsonl", "json", "csv"])
def test_a_full_disk_below_the_output_is_one_line(
    service: FakeStreams, monkeypatch: pytest.MonkeyPatch, capsys: Captured, output: str
) -> None:
    service.feed.push(item(1))
    service.feed.end("finished", is_final=True)
    for words in (["subscribe", "news"], ["list"]):  # item by item, and all in one go
        with Path("/dev/full").open("w") as full:
            monkeypatch.setattr("sys.stdout", full)
            assert main(["stream", *words, "-o", output]) == 1
        assert capsys.readouterr().err == "peerd: error: the output cannot be written: No space left on device\n"
