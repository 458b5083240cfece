"""Matches one text against many regular expressions at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from peerd.lib.filter.meaning import Fits
from peerd.lib.filter.patterns import engine, regex_options

REGEX_SET_MIN: Final = 8
"""An RE2 set is made when one attribute has at least this many expressions."""
REGEX_SET_SIZE: Final = 128
"""Expressions in one RE2 set. Larger sets have automata that fill their memory."""
REGEX_SET_BYTES_MAX: Final = 8 * 1024 * 1024
"""The memory that one RE2 set may take, its automaton included."""


class RegexSet:
    """The truth of many tests with MATCHES for a text."""

    def __init__(self, tests: Sequence[Fits]) -> None:
        chunks = [tests[start : start + REGEX_SET_SIZE] for start in range(0, len(tests), REGEX_SET_SIZE)]
        self._chunks = [(chunk, _compiled(chunk)) for chunk in chunks]

    def match(self, text: str) -> dict[Fits, bool] | None:
        """Whether each test is true; ``None`` when a set ran out of memory: then they have to be tried one by one."""
        data, found = text.encode(), {}
        for tests, compiled in self._chunks:
            matched = set() if compiled is None else set(compiled.Match(data) or ())
            # The last expression matches everything: if even that one is missing, RE2 has run out of memory.
            if len(tests) not in matched:
                return None
            for index, test in enumerate(tests):
                found[test] = (index in matched) is not test.negated
        return found


def _compiled(tests: Sequence[Fits]) -> Any | None:
    """The RE2 set, with one expression more that matches every text; ``None`` when it is too large."""
    library = engine()
    compiled = library.Set.FullMatchSet(regex_options(REGEX_SET_BYTES_MAX))
    try:
        for test in tests:
            compiled.Add(test.pattern.text.encode())
        compiled.Add(b".*")
        compiled.Compile()
    except library.error:
        return None
    return compiled
