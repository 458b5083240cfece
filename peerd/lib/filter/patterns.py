"""Patterns over text that are not ranges: LIKE with more than one part, CONTAINS, MATCHES.

All of them take time in proportion to the text: CONTAINS and LIKE search for their fixed parts from left to right and
never go back, MATCHES is RE2. A pattern is compiled when it is first used and then kept.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import StrEnum
from functools import lru_cache
from types import ModuleType
from typing import Any, Final

from peerd.frozen import Frozen
from peerd.lib.filter.errors import FilterError, FilterTooLarge
from peerd.lib.filter.limits import (
    LIKE_CHARACTERS_MAX,
    LIKE_WILDCARDS_MAX,
    REGEX_CHARACTERS_MAX,
    REGEX_MEMORY_BYTES_MAX,
    REGEX_REPEAT_MAX,
)
from peerd.lib.filter.ranges import FULL, Ranges, between, beyond
from peerd.lib.filter.values import View
from peerd.lib.regex import EngineAbsent, engine_options, error_reason, load_engine

COMPILED_MAX: Final = 4096
"""How many compiled patterns are kept for reuse."""
_RANGE_BYTES: Final = 24
"""How long the bounds are that RE2 is asked for, in bytes: of the range of texts that an expression can match."""


class EngineMissing(FilterError):
    """This installation cannot run MATCHES. The filter is valid, and other nodes may be able to run it."""


class PatternKind(StrEnum):
    """The operators that look into the text, so that the order of keys is not enough for them."""

    CONTAINS = "CONTAINS"
    LIKE = "LIKE"
    MATCHES = "MATCHES"


class Pattern(Frozen, order=True):
    """One pattern; of LIKE, ``text`` has ``\\`` before every wildcard that is meant literally, and before itself."""

    kind: PatternKind
    text: str

    def matches(self, text: str) -> bool:
        """Whether the text (valid Unicode) fits."""
        return _tester(self)(text)

    def tester(self) -> Callable[[str], bool]:
        """A function for `matches`. Raises `EngineMissing` for MATCHES without its engine."""
        return _tester(self)

    def bounds(self) -> Ranges:
        """Ranges of TEXT that hold every text that fits, and some that do not."""
        if self.kind is PatternKind.MATCHES:
            return _regex_bounds(self.text)
        if self.kind is PatternKind.LIKE and (start := like_parts(self.text)[0]):
            fixed = _leading(start)
            return between(View.TEXT, (fixed, 0), beyond(fixed)) if fixed else FULL
        return FULL


ANY_CHARACTER: Final = None
"""Stands for ``_`` in the parts of a LIKE pattern."""
Part = tuple[str | None, ...]
"""The characters between two ``%`` of a LIKE pattern."""


def normalise_like(pattern: str, escape: str | None) -> str:
    """The pattern with ``\\`` as its escape character. Raises `FilterError`."""
    if len(pattern) > LIKE_CHARACTERS_MAX:
        raise FilterTooLarge(
            "LIKE_CHARACTERS_MAX", f"a pattern of LIKE has at most {LIKE_CHARACTERS_MAX} characters, not {len(pattern)}"
        )
    if escape is not None and len(escape) != 1:
        raise FilterError(f"ESCAPE takes one character, not {escape!r:.20}")
    written, position, wildcards = [], 0, 0
    while position < len(pattern):
        character = pattern[position]
        if character == escape:
            position += 1
            if position == len(pattern) or pattern[position] not in ("%", "_", escape):
                raise FilterError(f"{escape!r} in a pattern of LIKE stands before %, _ or itself")
            written.append(_literal(pattern[position]))
        elif character == "%":
            if not written or written[-1] != "%":
                written.append("%")
                wildcards += 1
        else:
            written.append("_" if character == "_" else _literal(character))
        position += 1
    if wildcards > LIKE_WILDCARDS_MAX:
        raise FilterTooLarge("LIKE_WILDCARDS_MAX", f"a pattern of LIKE has at most {LIKE_WILDCARDS_MAX} %")
    return "".join(written)


def _literal(character: str) -> str:
    return f"\\{character}" if character in "%_\\" else character


@lru_cache(maxsize=COMPILED_MAX)
def like_parts(pattern: str) -> tuple[Part, ...]:
    """The parts between the ``%`` of a normalised pattern: one more than there are ``%``."""
    parts: list[list[str | None]] = [[]]
    characters = iter(pattern)
    for character in characters:
        if character == "%":
            parts.append([])
        else:
            parts[-1].append(
                ANY_CHARACTER if character == "_" else next(characters) if character == "\\" else character
            )
    return tuple(map(tuple, parts))


def fixed_text(part: Part) -> str | None:
    """Return the text of a part that has no ``_``, else ``None``."""
    return "".join(character or "" for character in part) if ANY_CHARACTER not in part else None


def _leading(part: Part) -> str:
    """Return the characters before the first ``_``."""
    end = part.index(ANY_CHARACTER) if ANY_CHARACTER in part else len(part)
    return "".join(character or "" for character in part[:end])


@lru_cache(maxsize=COMPILED_MAX)
def _tester(pattern: Pattern) -> Callable[[str], bool]:
    if pattern.kind is PatternKind.CONTAINS:
        wanted = pattern.text
        return lambda text: wanted in text
    if pattern.kind is PatternKind.MATCHES:
        fullmatch = compile_regex(pattern.text).fullmatch
        return lambda text: fullmatch(text.encode()) is not None
    matching = _like_expression(pattern.text).fullmatch
    return lambda text: matching(text) is not None


def _like_expression(pattern: str) -> re.Pattern[str]:
    """LIKE as an expression of ``re`` that cannot backtrack: each inner part is taken where it first fits, for good."""

    def written(part: Part) -> str:
        return "".join("." if character is ANY_CHARACTER else re.escape(character) for character in part)

    first, *inner = map(written, like_parts(pattern))
    if not inner:
        return re.compile(f"(?s){first}")
    last = inner.pop()
    middle = "".join(f"(?>.*?{part})" for part in inner if part)
    return re.compile(f"(?s){first}{middle}.*{last}" if last else f"(?s){first}{middle}.*")


# --- RE2 ------------------------------------------------------------------------------------------------------------


def engine() -> ModuleType:
    """Google's RE2, or an `EngineMissing` that says what to install. Imported when the first MATCHES is met."""
    try:
        return load_engine()
    except EngineAbsent:
        raise EngineMissing(
            "MATCHES needs the package google-re2, which is not installed here: pip install google-re2"
        ) from None


def regex_options(memory: int = REGEX_MEMORY_BYTES_MAX) -> Any:
    """Options for compiling patterns: no log output, no groups, bounded memory, and a dot that matches everything."""
    engine()
    return engine_options(memory_bytes=memory, captures=False, dot_matches_newline=True)


def check_regex(pattern: str) -> None:
    """Raises `FilterError` for a pattern that nobody can run; without RE2 installed only its length is checked."""
    try:
        compile_regex(pattern)
    except EngineMissing:
        return


@lru_cache(maxsize=COMPILED_MAX)
def compile_regex(pattern: str) -> Any:
    """The compiled pattern, for bytes. Raises `FilterError`, `FilterTooLarge`, `EngineMissing`."""
    if len(pattern) > REGEX_CHARACTERS_MAX:
        raise FilterTooLarge(
            "REGEX_CHARACTERS_MAX",
            f"a pattern of MATCHES has at most {REGEX_CHARACTERS_MAX} characters, not {len(pattern)}",
        )
    library = engine()
    try:
        return library.compile(pattern.encode(), regex_options())
    except library.error as error:
        reason = error_reason(error)
        if "repetition size" in reason or "bad repetition" in reason:
            detail = f"a repeat in a pattern of MATCHES counts to at most {REGEX_REPEAT_MAX}, nested ones multiplied"
            raise FilterTooLarge("REGEX_REPEAT_MAX", f"{detail}: {reason}") from None
        if "too large" in reason:
            detail = f"a pattern of MATCHES takes at most {REGEX_MEMORY_BYTES_MAX // 1024} KiB compiled"
            raise FilterTooLarge("REGEX_MEMORY_BYTES_MAX", f"{detail}: {reason}") from None
        raise FilterError(f"the pattern of MATCHES is not valid: {reason}") from None


@lru_cache(maxsize=COMPILED_MAX)
def _regex_bounds(pattern: str) -> Ranges:
    try:
        compiled = compile_regex(pattern)
    except EngineMissing:
        return FULL
    try:
        low, high = compiled.possiblematchrange(_RANGE_BYTES)
    except engine().error:  # RE2 found no bound
        return FULL
    return between(View.TEXT, (_whole_characters(low), 0), _above(high))


def _whole_characters(data: bytes) -> str:
    """Return the longest beginning that is valid UTF-8. In the order of texts it never comes after the bytes."""
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        return data[: error.start].decode()


def _above(data: bytes) -> tuple[str, int] | None:
    """A cut that lies above every text up to the bytes."""
    return beyond(_whole_characters(data))
