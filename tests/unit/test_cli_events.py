"""``peerd events`` on a daemon that the test controls, and the feed that it reads."""

from __future__ import annotations

import json

import pytest

from peerd.cli.main import main
from peerd.daemon.admin.event_feed import EVENTS_HELD_MAX, RECORD_BYTES_MAX, EventFeed, encode_event
from peerd.ids import NodeId
from peerd.lib.feed import Feed
from tests.support.fake_daemon import FakeDaemon, answer_commands
from tests.support.sinks import ListSink


def record(number: int, kind: str, **fields: object) -> dict[str, object]:
    stamps = {"schema_version": 1, "ts": 1.8e9 + number, "mono_s": 1.0, "node": "aa", "boot": 1}
    return {**stamps, "id": number, "cause": None, "event": kind, **fields}


@pytest.fixture
def daemon(monkeypatch: pytest.MonkeyPatch) -> FakeDaemon:
    """Whoever asks a daemon asks this one; it holds four events of five."""
    fake = FakeDaemon()
    fake.events = Feed("fake.1", items_max=4)
    for number, kind in enumerate(("node.started", "overlay.a", "node.ready", "overlay.b", "overlay.c"), 1):
        fake.events.push(record(number, kind, detail="x\x1b[31m", size=number))

    answer_commands(monkeypatch, fake.client)
    return fake


def test_what_is_held_for_people(daemon: FakeDaemon, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["events", "--no-follow", "--kind", "overlay.*", "--kind", "none"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[1:] for line in lines] == [
        [f"overlay.{name}", "detail=x?[31m", f"size={number}"] for name, number in (("a", 2), ("b", 4), ("c", 5))
    ]


def test_json_lines_can_be_resumed(daemon: FakeDaemon, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["events", "--no-follow", "-o", "jsonl", "--after", "fake.1-3"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(line["type"], line["id"], line["data"]["event"]) for line in lines] == [
        ("item", "fake.1-4", "overlay.b"),
        ("item", "fake.1-5", "overlay.c"),
    ]


@pytest.mark.parametrize(("after", "words"), [("fake.1-0", "-- missing here: 1 event,"), ("fake.0-7", "began anew")])
def test_what_is_missing_is_said(
    daemon: FakeDaemon, capsys: pytest.CaptureFixture[str], after: str, words: str
) -> None:
    assert main(["events", "--no-follow", "--after", after]) == 0
    first, *others = capsys.readouterr().out.splitlines()
    assert words in first and len(others) == 4


def test_a_wrong_id_is_a_failure_that_says_so(daemon: FakeDaemon, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["events", "--no-follow", "--after", "yesterday"]) == 1
    assert "id of an item" in capsys.readouterr().err


# --- the feed -------------------------------------------------------------------------------------------------------


def test_events_pass_on_and_the_newest_are_held() -> None:
    sink = ListSink()
    events = EventFeed(sink, NodeId(0xAB << 120), 7)
    for number in range(1, EVENTS_HELD_MAX + 11):
        events.write(record(number, "node.started"))
    assert len(sink.records) == EVENTS_HELD_MAX + 10
    assert (events.feed.epoch, events.feed.first, events.feed.last) == ("ab000000.7", 11, EVENTS_HELD_MAX + 10)


def test_long_events_are_bounded_in_bytes_and_never_refused() -> None:
    events = EventFeed(ListSink(), NodeId(1), 7)
    for number in range(1, 101):
        events.write(record(number, "x", text="y" * (2 * RECORD_BYTES_MAX)))
    assert len(events.feed) == 16 and events.feed.held_bytes <= events.feed.bytes_max


def test_after_the_end_events_still_reach_the_log() -> None:
    sink = ListSink()
    events = EventFeed(sink, NodeId(1), 7)
    events.feed.end("daemon stopping")
    events.write(record(1, "node.stopped"))
    assert len(sink.records) == 1 and events.feed.last == 0


def test_what_json_cannot_say_is_told_as_dropped() -> None:
    told = json.loads(encode_event(record(3, "x", value=float("nan"))))
    assert (told["event"], told["records"], told["id"]) == ("sink.dropped", 1, 3)
