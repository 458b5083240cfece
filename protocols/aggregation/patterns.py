"""Regular expressions of queries, and why a hostile one cannot stall a node.

A pattern comes from whoever may ask, and runs on every node. By default RE2 runs it: its time grows with the length of
the line times the size of the compiled pattern, never exponentially, and it does not hold the interpreter lock while it
searches. Two limits bound that product: `PATTERN_MEMORY_BYTES_MAX` and `LINE_CHARACTERS_MAX`. Finding *all* matches
starts a search after every match, and a search may look at the rest of the line in vain, so the steps of all searches
of one line are bounded as well, by `LINE_STEPS_MAX`.

Python's ``re`` backtracks and holds the lock while it does. An operator who trusts all who may ask can choose it for
what RE2 lacks: references to groups, look-around.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator
from enum import StrEnum
from functools import lru_cache
from typing import Any, Final, TypeAlias

from peerd.errors import PeerdError, Unavailable
from peerd.lib.regex import EngineAbsent, engine_options, error_reason, load_engine

PATTERN_CHARACTERS_MAX: Final = 512
PATTERN_MEMORY_BYTES_MAX: Final = 256 * 1024
"""What RE2 may use for one compiled pattern, some 10,000 instructions; a pattern that needs more is refused."""
LINE_CHARACTERS_MAX: Final = 64 * 1024
"""Longest line, in bytes, that a pattern sees; the rest of the line is cut off and counted."""
LINE_STEPS_MAX: Final = 10**10
"""Steps of RE2 (characters times instructions) that the searches in one line may take at the very worst, about a
nanosecond each. The matches beyond are left out, and the line is counted as cut. It is so high that simple patterns,
which hardly ever take their worst, find all that is in the longest line."""
COMPILED_MAX: Final = 64
"""Compiled patterns that are kept."""

SETTING: Final = 'regex_engine = "python" in [protocols.aggregation]'


class QueryError(PeerdError, ValueError):
    """A query that cannot be run. ``str()`` is for people; it points at the column when there is a text form."""

    def __init__(self, message: str, *, text: str | None = None, column: int | None = None) -> None:
        self.message = message
        self.text = text
        self.column = column
        shown = message if text is None or column is None else f"{message}\n  {text}\n  {' ' * column}^"
        super().__init__(shown)


class RegexEngine(StrEnum):
    """What runs the patterns of queries on this node."""

    RE2 = "re2"
    PYTHON = "python"


class Re2Pattern:
    """A pattern that RE2 runs. See `compile_pattern`."""

    def __init__(self, pattern: str) -> None:
        try:
            options = engine_options(memory_bytes=PATTERN_MEMORY_BYTES_MAX, captures=True, dot_matches_newline=False)
        except EngineAbsent:
            raise Unavailable(
                "a pattern needs the package google-re2, which is not installed here: pip install google-re2, or, "
                f"where all who may ask are trusted, set {SETTING}"
            ) from None
        library = load_engine()
        try:
            self._compiled: Any = library.compile(pattern.encode(), options)
        except library.error as error:
            raise _refused(pattern, error_reason(error)) from None
        self._groups = {name.decode(): number for name, number in self._compiled.groupindex.items()}
        self.names = tuple(sorted(self._groups, key=self._groups.__getitem__))
        """Its named groups."""
        self._steps = max(1, self._compiled.programsize)

    def rows(self, line: bytes, names: tuple[str, ...], on_cut: Callable[[], None]) -> Iterator[list[str | None]]:
        """The groups ``names`` of every match in a line. ``on_cut`` is called when the search was given up.

        Bytes that are not UTF-8 count as U+FFFD.
        """
        is_ascii = line.isascii()
        text = line if is_ascii else line.decode("utf-8", "replace").encode()
        groups = [self._groups[name] for name in names]
        steps = 0
        for match in self._compiled.finditer(text):
            start, end = match.span()
            if not is_ascii and text[start : start + 1] and text[start] & 0xC0 == 0x80:
                continue  # after an empty match RE2 goes on with the next byte, which may lie within a character
            spans = map(match.span, groups)  # a `group` takes three times as long
            yield [None if first < 0 else text[first:last].decode() for first, last in spans]
            # The next search begins here, and may look at all the rest of the line.
            steps += (len(text) - end) * self._steps
            if steps > LINE_STEPS_MAX:
                on_cut()
                return


class PythonPattern:
    """A pattern that Python's ``re`` runs, without any bound on its time. See `compile_pattern`."""

    def __init__(self, pattern: str) -> None:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                self._compiled = re.compile(pattern)
        except re.error as error:
            raise QueryError(f"the pattern is not valid: {error.msg}", text=pattern, column=error.pos) from error
        except (Warning, ValueError, OverflowError, RecursionError) as error:
            raise QueryError(f"the pattern is not valid: {error}") from error
        self.names = tuple(self._compiled.groupindex)

    def rows(self, line: bytes, names: tuple[str, ...], on_cut: Callable[[], None]) -> Iterator[list[str | None]]:
        """See `Re2Pattern.rows`. The search is never given up."""
        for match in self._compiled.finditer(line.decode("utf-8", "replace")):
            yield [match[name] for name in names]


LinePattern: TypeAlias = Re2Pattern | PythonPattern
"""A compiled pattern."""


def check_pattern_text(pattern: str) -> None:
    """What every engine asks of a pattern. Raises `QueryError`."""
    if not 0 < len(pattern) <= PATTERN_CHARACTERS_MAX:
        raise QueryError(f"a pattern has 1 to {PATTERN_CHARACTERS_MAX} characters, not {len(pattern)}")
    try:
        pattern.encode()
    except UnicodeEncodeError as error:
        raise QueryError(f"the pattern is not valid: {error.reason}") from error


@lru_cache(maxsize=COMPILED_MAX)
def compile_pattern(pattern: str, engine: RegexEngine = RegexEngine.RE2) -> LinePattern:
    """The pattern, ready to run.

    Raises `QueryError` for one that the engine refuses, and `Unavailable` when the engine is not installed here.
    """
    check_pattern_text(pattern)
    return Re2Pattern(pattern) if engine is RegexEngine.RE2 else PythonPattern(pattern)


def _refused(pattern: str, reason: str) -> QueryError:
    """RE2's reason, pointing at the piece that it names, and what to do where only RE2 refuses."""
    if "too large" in reason:
        return QueryError(f"the pattern takes more than {PATTERN_MEMORY_BYTES_MAX // 1024} KiB compiled: repeat less")
    _, _, piece = reason.partition(": ")
    column = pattern.find(piece) if piece else -1
    if reason.startswith(("invalid perl operator", "invalid escape sequence", "bad repetition operator")):
        reason += (
            ". RE2, which runs patterns in linear time, has neither look-around nor references to groups nor "
            f"possessive repeats: do without, or, on nodes where all who may ask are trusted, set {SETTING}"
        )
    return QueryError(f"the pattern is not valid: {reason}", text=pattern, column=max(0, column))
