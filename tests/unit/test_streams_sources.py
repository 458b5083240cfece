"""Where `peerd stream publish` takes items from while they come: a file that grows, and a folder that fills."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path

import pytest
import typer

from peerd.cli.sending import paced
from protocols.dissemination.front import sources
from protocols.dissemination.front.sources import FolderWatch, line_reader, of_folder, of_growing_file
from protocols.dissemination.messages import ITEM_BYTES_MAX
from protocols.dissemination.models import WrappedItem

WAIT_S = 20.0


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "LOOK_S", 0.001)


def no_bad_line(why: str) -> None:
    raise AssertionError(why)


async def payload(items: AsyncGenerator[WrappedItem, None]) -> str:
    """The next item's."""
    async with asyncio.timeout(WAIT_S):
        return (await anext(items)).payload or ""


def append(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


async def test_lines_that_are_added_to_a_file_are_items(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("before\nhalf")
    async with aclosing(of_growing_file(log, line_reader(True, ""), True, no_bad_line)) as items:
        assert await payload(items) == '{"line":"before"}'
        append(log, " a line\n\n")
        assert await payload(items) == '{"line":"half a line"}'


async def test_what_was_there_before_is_left_out_unless_it_is_asked_for(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("before\n")
    async with aclosing(of_growing_file(log, line_reader(False, "text/plain"), False, no_bad_line)) as items:
        async with asyncio.TaskGroup() as group:
            first = group.create_task(payload(items))
            while not _is_open(log):  # noqa: ASYNC110  nothing tells when a file is opened
                await asyncio.sleep(0)
            append(log, "after\n")
        assert first.result() == "after"


def _is_open(path: Path) -> bool:
    """Whether this process has opened a file."""
    for descriptor in Path("/proc/self/fd").iterdir():
        try:
            if os.path.samefile(descriptor, path):
                return True
        except OSError:
            continue
    return False


async def test_a_file_that_is_replaced_or_cut_is_read_from_its_beginning(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("one\n")
    async with aclosing(of_growing_file(log, line_reader(False, "text/plain"), True, no_bad_line)) as items:
        assert await payload(items) == "one"
        log.rename(tmp_path / "log.1")
        append(tmp_path / "log.1", "two\n")
        log.write_text("three\n")
        assert [await payload(items), await payload(items)] == ["two", "three"]
        log.write_text("4\n")
        assert await payload(items) == "4"


@pytest.mark.parametrize("text", ["x" * (3 * ITEM_BYTES_MAX), "{no json}", "[1]"])
async def test_a_line_that_is_no_item_is_told_and_what_follows_it_is_taken(tmp_path: Path, text: str) -> None:
    log, told = tmp_path / "log", list[str]()
    log.write_text(f'{text}\n{{"n":1}}\n')
    async with aclosing(of_growing_file(log, line_reader(False, ""), True, told.append)) as items:
        assert await payload(items) == '{"n":1}'
    assert len(told) == 1 and f"{log}, line 1 " in told[0]


async def test_a_text_that_grows_too_large_as_an_item_is_told_and_what_follows_it_is_taken(tmp_path: Path) -> None:
    log, told = tmp_path / "log", list[str]()
    log.write_bytes(bytes(ITEM_BYTES_MAX // 2) + b"\nafter\n")
    async with aclosing(of_growing_file(log, line_reader(True, ""), True, told.append)) as items:
        assert await payload(items) == '{"line":"after"}'
    assert len(told) == 1 and "line 1 of those that were read, as JSON, has more than" in told[0]


READ_STDIN = """
import asyncio
from peerd.cli.lines import BadLine
from protocols.dissemination.front.sources import line_reader, of_stdin

async def read():
    async for item in of_stdin(line_reader(False, "")):
        print(item.payload, flush=True)

try:
    asyncio.run(read())
except BadLine as bad:
    print(bad.message)
"""


def test_standard_input_is_left_at_a_line_that_is_no_item_and_nobody_is_warned_of_the_rest(tmp_path: Path) -> None:
    lines = tmp_path / "lines"
    lines.write_text('{"n":1}\n' + "x" * (3 * ITEM_BYTES_MAX))
    with lines.open() as stdin:
        command = [sys.executable, "-W", "always", "-c", READ_STDIN]
        done = subprocess.run(command, stdin=stdin, capture_output=True, text=True, timeout=120, check=True)
    item, told = done.stdout.splitlines()
    assert (item, done.stderr) == ('{"n":1}', "")
    assert told.startswith("standard input, line 2 has more than")


def test_a_file_is_taken_once_it_has_stopped_changing(tmp_path: Path) -> None:
    (tmp_path / "old.xml").write_text("<old/>")
    (tmp_path / "folder").mkdir()
    watch = FolderWatch(tmp_path, False)
    assert watch.take() == []
    new = tmp_path / "new.xml"
    new.write_text("<ne")
    assert watch.take() == [], "it is seen for the first time"
    append(new, "w/>")
    assert watch.take() == [], "it has changed since"
    assert watch.take() == [new]
    assert watch.take() == [], "only once"
    new.write_text("<newer/>")
    assert watch.take() == []
    assert watch.take() == [new], "it was replaced"


def test_unfinished_files_are_passed_over_and_files_that_vanish_forgotten(tmp_path: Path) -> None:
    watch = FolderWatch(tmp_path, True)
    for name in (".hidden", "a.part", "b.tmp", "c~"):
        (tmp_path / name).write_text("x")
    assert [watch.take(), watch.take()] == [[], []]
    (tmp_path / "a.part").rename(tmp_path / "a")
    assert [watch.take(), watch.take()] == [[], [tmp_path / "a"]]
    state = (tmp_path / "a").stat()
    (tmp_path / "a").unlink()
    assert watch.take() == []
    (tmp_path / "a").write_text("x")
    os.utime(tmp_path / "a", ns=(state.st_atime_ns, state.st_mtime_ns))
    assert [watch.take(), watch.take()] == [[], [tmp_path / "a"]], "it is another one, although it looks the same"


def test_files_that_come_together_are_taken_in_the_order_of_their_times(tmp_path: Path) -> None:
    for name, at_ns in (("a", 3_000), ("b", 1_000), ("c", 2_000)):
        (tmp_path / name).write_text("x")
        os.utime(tmp_path / name, ns=(at_ns, at_ns))
    watch = FolderWatch(tmp_path, True)
    watch.take()
    assert [path.name for path in watch.take()] == ["b", "c", "a"]


async def test_a_file_that_cannot_be_an_item_is_told_and_the_rest_goes_on(tmp_path: Path) -> None:
    (tmp_path / "a.xml").write_bytes(b"x" * (ITEM_BYTES_MAX + 1))
    (tmp_path / "b.xml").write_text("<b/>")
    told: list[str] = []
    async with aclosing(of_folder(tmp_path, "", True, told.append)) as items:
        async with asyncio.timeout(WAIT_S):
            item = await anext(items)
        assert (item.payload, item.content_type) == ("<b/>", "application/xml")
    assert len(told) == 1 and "a.xml has" in told[0]


async def test_a_folder_that_goes_away_is_an_error_and_not_silence(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    async with aclosing(of_folder(folder, "", True, lambda why: None)) as items:
        folder.rmdir()
        with pytest.raises(typer.BadParameter, match="cannot read"):
            await payload(items)


async def test_a_rate_is_the_most_and_not_the_least() -> None:
    async def three() -> AsyncGenerator[WrappedItem, None]:
        for text in "abc":
            yield WrappedItem(payload=text)

    loop = asyncio.get_running_loop()
    begun = loop.time()
    async with aclosing(paced(three(), 50.0, "items", None)) as items:
        assert [item.payload async for item in items] == ["a", "b", "c"]
    assert loop.time() - begun >= 2 / 50.0
