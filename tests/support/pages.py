"""Reads the pages of the documentation: their blocks of code, the marks on a block, and the commands in it.

The words after the language of a block say what the tests do with it (docs/contributing.md, *Pages*):

- nothing: a block of ``sh`` or ``console`` is run, in order with the others of its page;
- ``not-run: REASON``: it needs what a test machine has not; its commands are only compared with those that exist;
- ``tested-by: FILE``: that test runs it;
- ``long: REASON``: it is run by `make test-long`;
- ``file: NAME``: its text is written to that file before the next block is run.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from markdown_it import MarkdownIt

from tests.test_tidy import ROOT

SHELL = frozenset({"sh", "console"})
MARKS = frozenset({"not-run", "tested-by", "long", "file"})
PROMPT, CONTINUATION = "$ ", "> "
SEPARATORS = frozenset({"&&", "||", "|", ";", "&", "(", ")"})
GOES_ON = ("\\", "|", "&&")
"""A line of shell that ends with one of these goes on in the next line."""


@dataclass(frozen=True)
class Step:
    """One command of a block; ``shown`` is the output that the page prints below it, None where it prints none."""

    command: str
    line: int
    shown: tuple[str, ...] | None


@dataclass(frozen=True)
class Block:
    """A fenced block; ``line`` is where its text begins."""

    page: str
    line: int
    language: str
    mark: str
    note: str
    text: str

    @property
    def place(self) -> str:
        """``page:line``, for messages."""
        return f"{self.page}:{self.line}"

    def steps(self) -> list[Step]:
        """The commands of a shell block, in order."""
        return list(_console_steps(self) if self.language == "console" else _plain_steps(self))


def pages() -> list[Path]:
    """README.md and every page under docs/."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


@cache
def blocks(page: Path) -> list[Block]:
    """The fenced blocks of one page. An indented block is a mistake: it has no language and no mark."""
    name, found = page.relative_to(ROOT).as_posix(), []
    for token in MarkdownIt().parse(page.read_text("utf-8")):
        line = token.map[0] + 1 if token.map else 0
        assert token.type != "code_block", f"{name}:{line}: indented code; put it between ``` with its language"
        if token.type == "fence":
            language, _, rest = token.info.partition(" ")
            mark, _, note = rest.partition(": ")
            found.append(Block(name, line + 1, language, mark, note, token.content))
    return found


def inline_code(page: Path) -> Iterator[tuple[int, str]]:
    """What stands between backticks in the text of a page, each with the line where its paragraph begins."""
    for token in MarkdownIt().enable("table").parse(page.read_text("utf-8")):
        for child in token.children or ():
            if child.type == "code_inline":
                yield (token.map[0] + 1 if token.map else 0), child.content


def _console_steps(block: Block) -> Iterator[Step]:
    command, begun, shown = "", 0, list[str]()
    for number, line in enumerate(block.text.splitlines(), block.line):
        if line.startswith(PROMPT):
            if command:
                yield Step(command, begun, tuple(shown))
            command, begun, shown = line.removeprefix(PROMPT), number, []
        elif line.startswith(CONTINUATION) and not shown:
            command += "\n" + line.removeprefix(CONTINUATION)
        else:
            assert command, f"{block.page}:{number}: a block of `console` begins with a command behind `$ `"
            shown.append(line)
    yield Step(command, begun, tuple(shown))


def _plain_steps(block: Block) -> Iterator[Step]:
    command, begun = "", 0
    for number, line in enumerate(block.text.splitlines(), block.line):
        command, begun = (f"{command}\n{line}", begun) if command else (line, number)
        if is_whole(command):
            if words_of(command):
                yield Step(command, begun, None)
            command = ""
    assert not command, f"{block.page}:{begun}: a quote that is opened here is never closed"


def is_whole(command: str) -> bool:
    """Whether a shell would run this, and not wait for the next line."""
    if command.rstrip().endswith(GOES_ON):
        return False
    try:
        words_of(command)
    except ValueError:
        return False
    return True


def words_of(command: str) -> list[str]:
    """The words and separators of a line of shell, without quotes and comments. Raises `ValueError` for open quotes."""
    lexer = shlex.shlex(command.replace("\\\n", " "), posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    return list(lexer)


def simple_commands(command: str) -> Iterator[list[str]]:
    """The programs that a line starts, each with its arguments; without assignments, redirections and `--` before."""
    words: list[str] = []
    for word in [*words_of(command), ";"]:
        if word not in SEPARATORS:
            words.append(word)
            continue
        while words and re.match(r"[A-Z_a-z]+=", words[0]):
            words.pop(0)
        if words:
            yield _without_redirections(words)
        words = []


def _without_redirections(words: list[str]) -> list[str]:
    kept, skip = [], False
    for word in words:
        if skip:
            skip = False
        elif word in {"<", ">", ">>", "2>", "2>&1"}:
            skip = word != "2>&1"
        else:
            kept.append(word)
    return kept
