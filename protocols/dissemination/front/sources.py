"""Where ``peerd stream publish`` takes items from: files, standard input, a file that grows, a folder that fills."""

from __future__ import annotations

import asyncio
import json
import mimetypes
import os
import sys
import threading
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Final

import typer

from peerd.cli.lines import BadLine, object_of
from peerd.models.admin import JSON_TYPE
from protocols.dissemination.front.client import wrapped
from protocols.dissemination.messages import ITEM_BYTES_MAX
from protocols.dissemination.models import WrappedItem

LOOK_S: Final = 0.2
"""How often a file that grows, or a folder, is looked at."""
CHUNK_BYTES: Final = 64 * 1024
TYPES: Final = {".xml": "application/xml", ".json": "application/json", ".txt": "text/plain"}
UNFINISHED: Final = (".part", ".tmp", "~")
"""Files in a folder with such an end, or with a dot before their name, are passed over."""

Items = AsyncGenerator[WrappedItem, None]
ReadLine = Callable[[bytes, str], WrappedItem]
"""Makes an item of a line; the text names its place. Raises `BadLine`."""


def type_of(path: Path) -> str:
    """What a file holds, by its name; empty where that says nothing."""
    return TYPES.get(path.suffix.lower()) or mimetypes.guess_type(path.name)[0] or ""


# Files


def checked_files(paths: Sequence[Path]) -> None:
    """Every file can be published. Raises ``typer.BadParameter`` before anything has been."""
    for path in paths:
        try:
            size_bytes = path.stat().st_size
            with path.open("rb"):
                pass
        except OSError as error:
            raise typer.BadParameter(f"cannot read {path}: {error.strerror}") from error
        if not 0 < size_bytes <= ITEM_BYTES_MAX:
            raise typer.BadParameter(
                f"{path} has {size_bytes} bytes; an item has 1 to {ITEM_BYTES_MAX}, and a larger file is attached "
                "to one (--attach)"
            )


def of_file(path: Path, content_type: str) -> WrappedItem:
    """The item that a file is."""
    return wrapped(path.read_bytes(), content_type or type_of(path))


async def of_files(paths: Sequence[Path], content_type: str) -> Items:
    """Each file is an item."""
    for path in paths:
        yield of_file(path, content_type)


# Lines


def line_reader(is_text: bool, content_type: str) -> ReadLine:
    """How lines become items: JSON objects as they are, texts as the attribute ``line``, or bytes of a stated type."""
    if content_type:
        return lambda line, place: wrapped(line, content_type)
    if is_text:
        return _text_item
    return _json_item


def _text_item(line: bytes, place: str) -> WrappedItem:
    text = json.dumps({"line": line.decode(errors="replace")}, ensure_ascii=False, separators=(",", ":"))
    _short_enough(text.encode(), f"{place}, as JSON,")  # a control character has six bytes there
    return WrappedItem(payload=text, content_type=JSON_TYPE)


def _json_item(line: bytes, place: str) -> WrappedItem:
    try:
        text = line.decode()
    except UnicodeDecodeError as error:
        raise BadLine(f"{place} is not UTF-8") from error
    object_of(text, place)
    return WrappedItem(payload=text.strip(), content_type=JSON_TYPE)


async def of_stdin(read: ReadLine) -> Items:
    """Each line of standard input is an item, as soon as it comes."""
    async with aclosing(_stdin_chunks()) as chunks, aclosing(_lines(chunks)) as lines:
        number = 0
        async for line in lines:
            number += 1
            if line.strip():
                place = f"standard input, line {number}"
                yield read(_short_enough(line, place), place)


async def _stdin_chunks() -> AsyncGenerator[bytes, None]:
    """A thread reads, because standard input may be a file, which an event loop cannot wait for.

    It is left behind when the command ends: nothing but a line would wake it. So it uses the descriptor itself, because
    an interpreter that ends must not find the lock of ``sys.stdin`` taken.
    """
    loop = asyncio.get_running_loop()
    chunks: asyncio.Queue[bytes] = asyncio.Queue()
    room = threading.Semaphore(1)  # one chunk is read ahead
    descriptor = sys.stdin.fileno()

    def read() -> None:
        while True:
            chunk = os.read(descriptor, CHUNK_BYTES)
            try:
                loop.call_soon_threadsafe(chunks.put_nowait, chunk)
            except RuntimeError:  # the loop is closed: the command has ended
                return
            if not chunk:
                return
            room.acquire()

    threading.Thread(target=read, daemon=True).start()
    while chunk := await chunks.get():
        room.release()
        yield chunk


async def _lines(chunks: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    """Lines without their ends; the last one may lack it. Of one that is too long for an item so much that it shows."""
    rest = b""
    async for chunk in chunks:
        *whole, rest = (rest + chunk).split(b"\n")
        for line in whole:
            yield line.removesuffix(b"\r")
        rest = rest[: ITEM_BYTES_MAX + 1]
    if rest:
        yield rest


def _short_enough(line: bytes, place: str) -> bytes:
    if len(line) > ITEM_BYTES_MAX:
        raise BadLine(f"{place} has more than {ITEM_BYTES_MAX:,} bytes, which is the most for an item")
    return line


async def of_growing_file(path: Path, read: ReadLine, from_start: bool, on_bad: Callable[[str], None]) -> Items:
    """Each line that is added to a file is an item, as with ``tail -F``: a file that is replaced is opened again.

    ``on_bad`` is told of a line that cannot be one: others write the file, and what follows may be fine.
    """
    number = 0
    async with aclosing(_growth(path, from_start)) as chunks, aclosing(_lines(chunks)) as lines:
        async for line in lines:
            number += 1
            place = f"{path}, line {number} of those that were read"
            try:
                if line.strip():
                    yield read(_short_enough(line, place), place)
            except BadLine as error:
                on_bad(error.message)


async def _growth(path: Path, from_start: bool) -> AsyncGenerator[bytes, None]:
    """What is added to a file, for ever."""
    file = path.open("rb")
    try:
        if not from_start:
            file.seek(0, os.SEEK_END)
        while True:
            if chunk := file.read(CHUNK_BYTES):
                yield chunk
                continue
            await asyncio.sleep(LOOK_S)
            try:
                now = path.stat()
            except FileNotFoundError:  # it is being replaced
                continue
            opened = os.fstat(file.fileno())
            if (now.st_dev, now.st_ino) != (opened.st_dev, opened.st_ino):
                if chunk := file.read(CHUNK_BYTES):
                    yield chunk
                    continue
                file.close()
                file = path.open("rb")
            elif now.st_size < file.tell():
                file.seek(0)
    finally:
        file.close()


# A folder


class FolderWatch:
    """Which files of a folder are new, or have been replaced, and are whole: nothing about them changes any more."""

    def __init__(self, folder: Path, is_everything_new: bool) -> None:
        self._folder = folder
        self._taken: dict[str, tuple[int, int]] = {}
        self._seen: dict[str, tuple[int, int]] = {}
        if not is_everything_new:
            self._taken = dict(self._look())

    def take(self) -> list[Path]:
        """Those that have not changed since the last look, oldest first."""
        now = dict(self._look())
        ready = [name for name, state in now.items() if self._seen.get(name) == state != self._taken.get(name)]
        self._seen = now
        self._taken = {name: state for name, state in self._taken.items() if name in now}
        self._taken |= {name: now[name] for name in ready}
        return [self._folder / name for name in sorted(ready, key=lambda name: (now[name][1], name))]

    def _look(self) -> Iterator[tuple[str, tuple[int, int]]]:
        try:
            opened = os.scandir(self._folder)
        except OSError as error:
            raise typer.BadParameter(f"cannot read {self._folder}: {error.strerror}") from error
        with opened as entries:
            for entry in entries:
                if entry.name.startswith(".") or entry.name.endswith(UNFINISHED):
                    continue
                try:
                    if entry.is_file():
                        state = entry.stat()
                        yield entry.name, (state.st_size, state.st_mtime_ns)
                except FileNotFoundError:  # it was taken away meanwhile
                    continue


async def of_folder(
    folder: Path,
    content_type: str,
    is_everything_new: bool,
    on_bad: Callable[[str], None],
    labels: dict[int, str] | None = None,
) -> Items:
    """Each file that comes into a folder is an item, for ever. ``on_bad`` is told of one that cannot be.

    In ``labels`` stand the files' names, by the numbers of their items from 1.
    """
    watch, count = FolderWatch(folder, is_everything_new), 0
    while True:
        for path in watch.take():
            try:
                checked_files([path])
                item = of_file(path, content_type)
            except (OSError, typer.BadParameter) as error:
                on_bad(str(error))
                continue
            count += 1
            if labels is not None:
                labels[count] = str(path)
            yield item
        await asyncio.sleep(LOOK_S)


# How fast
