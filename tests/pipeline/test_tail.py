"""What is new in event files that grow, without Spark."""

from __future__ import annotations

import gzip
import random
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="the extra `spark` is not installed")

from hypothesis import given, settings, strategies as st

from peerd.errors import Unavailable
from peerd.pipeline import tail
from peerd.pipeline.sources import FolderHours
from peerd.pipeline.tail import CUT_OFF, WHOLE, EventFileTail, Positions, advance, check_of_this_machine, chunks, tasks

pytestmark = pytest.mark.spark


def read(start: Positions, end: Positions) -> list[str]:
    return [line for ranges in tasks(start, end) for part in ranges for lines in chunks(part) for line in lines]


def step(paths: list[str], start: Positions, bytes_max: int | None = None) -> tuple[Positions, list[str]]:
    end = advance(start, EventFileTail(paths).ends(), bytes_max)
    return end, read(start, end)


def test_a_file_is_read_once_through_all_its_names(tmp_path: Path) -> None:
    part, paths = tmp_path / "events-a-1-1.ndjson.part", [str(tmp_path)]
    part.write_text("1\n2\n3")
    position, lines = step(paths, {})
    assert lines == ["1", "2"], "the third line is still being written"
    with part.open("a") as file:
        file.write("3\n4\n")
    position, lines = step(paths, position)
    assert lines == ["33", "4"]
    assert step(paths, position) == (position, [])
    with part.open("a") as file:
        file.write("5\n")
    with gzip.open(tmp_path / "events-a-1-1.ndjson.gz", "wb") as packed:
        packed.write(part.read_bytes())
    before, (position, lines) = position, step(paths, position)
    assert lines == ["5"] and list(position.values()) == [WHOLE]
    part.unlink()
    assert read(before, position) == ["5"], "the same batch, read again by a process that was started anew"
    assert step(paths, position) == (position, [])
    (tmp_path / "events-a-1-1.ndjson.gz").unlink()
    assert step(paths, position) == ({}, []), "a file that was removed is forgotten"
    assert read(before, position) == []


def test_a_torn_last_line_is_told_when_the_file_is_finished(tmp_path: Path) -> None:
    part = tmp_path / "events-a-1-1.ndjson.part"
    part.write_text('1\n{"ev')
    position, lines = step([str(tmp_path)], {})
    assert lines == ["1"]
    part.rename(part.with_suffix(""))
    assert step([str(tmp_path)], position)[1] == ['{"ev']


def test_a_damaged_compressed_file_ends_in_a_corrupt_line(tmp_path: Path) -> None:
    whole = gzip.compress("".join(f"{number}\n" for number in range(100_000)).encode())
    (tmp_path / "cut.ndjson.gz").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "none.ndjson.gz").write_bytes(b"no gzip")
    (tmp_path / "good.ndjson").write_text("1\n")
    _, lines = step([str(tmp_path)], {})
    assert lines.count(CUT_OFF) == 2 and lines[:2] == ["0", "1"] and lines.count("1") == 2


def test_a_batch_is_bounded_and_the_oldest_hours_come_first(tmp_path: Path) -> None:
    for hour, name in (("10", "b-1-2"), ("10", "b-1-10"), ("09", "c-1-1")):
        folder = tmp_path / f"dt=2026-11-27/hr={hour}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"events-{name}.ndjson").write_text(f"{name}\n" * 10)
    position: Positions = {}
    seen = []
    for _ in range(3):
        position, lines = step([str(tmp_path)], position, bytes_max=1)
        seen.append(lines)
    assert seen == [["c-1-1"] * 10, ["b-1-2"] * 10, ["b-1-10"] * 10]
    assert step([str(tmp_path)], {}, bytes_max=75)[1] == [*seen[0], *seen[1]]
    assert step([str(tmp_path)], position)[1] == []
    hours = FolderHours("2026-11-2710")
    assert all("hr=10" in file for file in EventFileTail([str(tmp_path)], hours=hours).ends())
    assert len(EventFileTail([str(tmp_path)], hours=FolderHours("", "2026-11-2709")).ends()) == 1


def test_what_is_read(tmp_path: Path) -> None:
    for name in ("a.ndjson", "b.ndjson.part", "c.ndjson.gz.tmp", "d.json", "e.ndjson.zst"):
        (tmp_path / name).write_text("1\n")
    folder, pattern = str(tmp_path), str(tmp_path / "[ab].*")
    assert [Path(file).name for file in EventFileTail([folder]).ends()] == ["a.ndjson", "b.ndjson"]
    assert [Path(file).name for file in EventFileTail([folder], has_parts=False).ends()] == ["a.ndjson"]
    assert len(EventFileTail([pattern, folder, str(tmp_path / "a.ndjson")]).ends()) == 2, "each once"
    check_of_this_machine([folder, pattern, str(tmp_path / "*.none")])
    for path in ("hdfs://host/logs", str(tmp_path / "none")):
        with pytest.raises(Unavailable, match=path):
            check_of_this_machine([path])


def test_invalid_utf8_costs_its_line_only(tmp_path: Path) -> None:
    (tmp_path / "a.ndjson").write_bytes(b"1\n\xff\xfe\n2\n")
    assert step([str(tmp_path)], {})[1] == ["1", "\ufffd\ufffd", "2"]


@given(seed=st.integers(0, 10**6))
@settings(max_examples=60)
def test_each_line_is_read_once_in_order(tmp_path_factory: pytest.TempPathFactory, seed: int) -> None:
    """A daemon writes, finishes and compresses; a follower reads, is killed, and reads a batch again; lines longer and
    shorter than what is read at once."""
    chosen = random.Random(seed)
    folder = tmp_path_factory.mktemp("tail")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tail, "CHUNK_BYTES", 7)
        written: dict[int, list[str]] = {}
        position: Positions = {}
        told: list[str] = []
        number = 1
        for turn in range(30):
            part = folder / f"events-a-1-{number}.ndjson.part"
            lines = [f"{turn}-{each}-" + "x" * chosen.randrange(20) for each in range(chosen.randrange(4))]
            with part.open("a") as file:
                file.write("".join(f"{line}\n" for line in lines))
            written.setdefault(number, []).extend(lines)
            if chosen.random() < 0.3:
                whole = part.with_suffix("")
                if chosen.random() < 0.5:
                    with gzip.open(f"{whole}.gz", "wb") as packed:
                        packed.write(part.read_bytes())
                    part.unlink()
                else:
                    part.rename(whole)
                number += 1
            if chosen.random() < 0.5:
                end = advance(position, EventFileTail([str(folder)]).ends(), chosen.choice([None, 1, 40]))
                if chosen.random() < 0.8:  # else it was killed before it knew that it was done
                    told += read(position, end)
                    position = end
        _, lines = step([str(folder)], position)
        assert told + lines == [line for lines in written.values() for line in lines]
