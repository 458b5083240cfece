"""The replay of the publish/subscribe demo: its data, its filters, and that it sees what is wrong."""

from __future__ import annotations

import io
import lzma
import tarfile
from decimal import Decimal
from pathlib import Path

import pytest

from peerd.errors import Unavailable
from protocols.pubsub.front.demo.data import SAMPLE, load
from protocols.pubsub.front.demo.part import NUMBER, DemoReader
from protocols.pubsub.front.demo.wishes import DemoWish, schemas_for, wishes_for
from protocols.pubsub.models import ReceivedEvent
from protocols.pubsub.schema.event_schema import EventSchema

BARS = "symbol,date,open,high,low,close,volume\nB,2004-01-06,5,6,4,5.5,70\nA,2004-01-05,1.0,2,0.5,1.5,9\n"


def folder(path: Path) -> Path:
    """Data as a user has it: one packed file of prices, one archive of series."""
    (path / "stocks").mkdir()
    (path / "stocks" / "bars.csv.xz").write_bytes(lzma.compress(BARS.encode()))
    (path / "timeseries").mkdir()
    with tarfile.open(path / "timeseries" / "all.tar.xz", "w:xz") as archive:
        for name in ("ec2_cpu_utilization_b2", "ec2_network_in_b2", "ec2_cpu_utilization_a1"):
            data = b"timestamp,value\n2014-02-14 14:30:00,3.5\n2014-02-14 14:35:00,4\n"
            member = tarfile.TarInfo(f"data/aws/{name}.csv")
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return path


def test_a_folder_is_replayed_in_the_order_of_its_time(tmp_path: Path) -> None:
    replay = load(folder(tmp_path), 7, 3)
    assert [(trade["symbol"], trade["price"]) for trade in replay.trades] == [
        *[("A", price) for price in ("1.0", "2", "0.5", "1.5")],
        *[("B", price) for price in ("5", "6", "4")],
    ]
    assert [(each["host"], each["metric"], each["value"]) for each in replay.metrics] == [
        ("a1", "ec2_cpu_utilization", 3.5),
        ("b2", "ec2_cpu_utilization", 3.5),
        ("a1", "ec2_cpu_utilization", 4.0),
    ]
    assert "bars.csv.xz and all.tar.xz" in replay.source


def test_the_newest_prices_are_replayed(tmp_path: Path) -> None:
    assert [trade["symbol"] for trade in load(folder(tmp_path), 4, 1).trades] == ["B"] * 4


def test_a_folder_without_data_is_refused_in_words(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match=r"has no stocks/\*.csv .* replays its sample"):
        load(tmp_path, 1, 1)


def test_the_sample_is_small_and_says_that_it_is_made_up() -> None:
    assert "synthetic" in load(None, 1, 1).source
    assert "Synthetic" in (SAMPLE / "README.md").read_text()
    assert sum(path.stat().st_size for path in SAMPLE.rglob("*") if path.is_file()) < 200_000


def test_filters_and_conditions_agree_and_every_price_is_in_one_part() -> None:
    replay = load(None, 1500, 500)
    wishes = wishes_for(replay.trades, replay.metrics, nodes=4)
    schemas = {document["name"]: EventSchema.read(document) for document in schemas_for(replay.trades)}
    events = {"stocks": replay.trades, "servers": replay.metrics}
    parts = [0] * len(replay.trades)
    for wish in wishes:
        schema = schemas[wish.schema]
        matches, read = schema.matcher(schema.parse_filter(wish.filter)), schema.read_values
        expected = [wish.wanted(event) for event in events[wish.schema]]
        assert [bool(matches(read(event))) for event in events[wish.schema]] == expected
        assert wish.label or 0 < sum(expected) < len(expected)
        if wish.label:
            parts = [count + is_in for count, is_in in zip(parts, expected, strict=True)]
    assert set(parts) == {1}
    assert {wish.node for wish in wishes} == {0, 1, 2, 3}


@pytest.mark.parametrize(
    ("came", "missing", "wrong"),
    [([1, 2], 0, 0), ([2, 1], 0, 0), ([1], 1, 0), ([1, 2, 3], 0, 1), ([1, 2, 2], 0, 1), ([3, 3], 2, 2), ([], 2, 0)],
)
def test_what_is_missing_and_what_is_wrong_is_seen(came: list[int], missing: int, wrong: int) -> None:
    reader = DemoReader(DemoWish("stocks", 0, "TRUE", lambda event: Decimal(event["price"]) > 0), frozenset({1, 2}))
    for number in came:
        event = ReceivedEvent(event="e", publisher="p", published_at=0.0, values={}, headers=((NUMBER, str(number)),))
        reader.events.append(event)
    assert (reader.missing, reader.wrong) == (missing, wrong)
