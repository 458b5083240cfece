"""Regular expressions of queries, and why a hostile one cannot stall a node.

Python's ``re`` backtracks and holds the interpreter lock while it does. `line_characters_max` therefore
reads a pattern with a small scanner of its own (no private modules) and refuses what can be exponential: a
repeated group that holds a variable quantifier or an alternation, as in ``(a+)+`` or ``(a|aa)*``; references to
groups; conditionals. What remains is polynomial: the scanner counts the quantifiers whose extent can move (those
not followed by a character that they cannot match) and the alternatives, and allows lines so long that the
number of ways to match stays below `PATTERN_STEPS_MAX`. It errs on the side of refusing.
"""

from __future__ import annotations

import re
import warnings
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Literal

from peerd.errors import PeerdError

PATTERN_CHARACTERS_MAX: Final = 512
PATTERN_REPEAT_MAX: Final = 1000
"""Largest number in a ``{m,n}``."""
PATTERN_STEPS_MAX: Final = 10**9
"""Most ways in which a pattern may match one line (a bound, rarely met: seconds of one core at the very worst)."""
LINE_CHARACTERS_MAX: Final = 64 * 1024
"""Longest line that any pattern sees; the rest of the line is cut off and counted."""
LINE_CHARACTERS_MIN: Final = 500
"""A pattern so ambiguous that it would be safe only on shorter lines than this is refused."""


class QueryError(PeerdError, ValueError):
    """A query that cannot be run. ``str()`` is for people; it points at the column when there is a text form."""

    def __init__(self, message: str, *, text: str | None = None, column: int | None = None) -> None:
        self.message = message
        self.text = text
        self.column = column
        shown = message if text is None or column is None else f"{message}\n  {text}\n  {' ' * column}^"
        super().__init__(shown)


_FLAGS: Final = re.compile(r"\(\?[a-zA-Z]+\)")
_GROUP: Final = re.compile(r"\((?:\?(?:P<\w+>|:|>|(=|!|<=|<!)))?")
_ATOM: Final = re.compile(
    r"\.|\[\^?\]?(?:[^\]\\]|\\.)*\]|\\(?:x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|[^0-9NxuU])|[^\\()|\[^$]", re.S
)
_QUANTIFIER: Final = re.compile(r"(?:[*+?]|\{([0-9]*)(,)([0-9]*)\}|\{([0-9]+)\})([?+]?)")
_SAMPLE: Final = "".join(map(chr, range(0x180))) + "\u0660\u20ac\u2028\u212a\u3000\u4e2d\U0001f600"
_LONG_REPEAT: Final = 16


@dataclass(slots=True)
class _Element:
    """One atom, edge, bar, opening or closing of a pattern; ``most`` is ``None`` when unbounded."""

    kind: Literal["atom", "edge", "bar", "open", "close"]
    source: str
    least: int = 1
    most: int | None = 1
    possessive: bool = False
    plain: bool = True
    """Of ``open``: always entered, one way. Of ``close``: what follows the group follows its content."""

    @property
    def variable(self) -> bool:
        return self.least != self.most


@dataclass(slots=True)
class _Group:
    opening: _Element
    look: bool = False
    variable: bool = False
    branches: int = 1
    forked: bool = False


class _Scanner:
    """Flattens a pattern that ``re`` accepts, refusing what could take exponential time."""

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self.elements: list[_Element] = []
        self.groups = [_Group(_Element("open", ""))]
        self.ways = 1
        flags = _FLAGS.match(pattern)
        self.flags = flags[0] if flags else ""
        if "x" in self.flags or "L" in self.flags:
            raise QueryError("a pattern may not use the flags x and L")
        self.position = len(self.flags)
        while self.position < len(pattern):
            self._step()

    def _step(self) -> None:
        character, group = self.pattern[self.position], self.groups[-1]
        if character == "(":
            self._open()
        elif character == ")":
            self._close()
        elif character == "|":
            group.branches += 1
            group.forked = True
            self.position += 1
            self.elements.append(_Element("bar", "top" if len(self.groups) == 1 else ""))
        elif character in "^$" or self.pattern[self.position : self.position + 2] in {"\\b", "\\B", "\\A", "\\Z"}:
            source = character if character in "^$" else self.pattern[self.position : self.position + 2]
            self.position += len(source)
            self._quantify(_Element("edge", source))
        else:
            match = _ATOM.match(self.pattern, self.position)
            if match is None:
                raise self._refused("an escape that is not supported (references to groups, \\N)")
            self.position = match.end()
            group.variable |= self._quantify(_Element("atom", match[0]))

    def _refused(self, what: str) -> QueryError:
        return QueryError(f"the pattern has {what}", text=self.pattern, column=self.position)

    def _open(self) -> None:
        match = _GROUP.match(self.pattern, self.position)
        if match is None or (self.pattern.startswith("(?", self.position) and match.end() == self.position + 1):
            raise self._refused("a kind of group that is not supported; use ( (?: (?P<name> (?= (?! (?<= (?<!")
        self.position = match.end()
        opening = _Element("open", match[0])
        self.elements.append(opening)
        self.groups.append(_Group(opening, look=match[1] is not None))

    def _close(self) -> None:
        group, start = self.groups.pop(), self.position
        self.position += 1
        closing = _Element("close", ")", plain=not group.look)
        variable = self._quantify(closing)
        if closing.most != 1 and (group.variable or group.forked):
            self.position = start
            raise self._refused(
                "a repeated group that holds a variable repeat or an alternation, which can take exponential time; "
                "repeat a single character or class instead, such as [\\w.]+"
            )
        group.opening.plain = not (group.look or group.forked or variable)
        self.ways *= group.branches
        self.groups[-1].variable |= group.variable or variable
        self.groups[-1].forked |= group.forked

    def _quantify(self, element: _Element) -> bool:
        """Appends the element with the quantifier that follows it. Whether its extent varies."""
        self.elements.append(element)
        match = _QUANTIFIER.match(self.pattern, self.position)
        if match is None:
            return False
        if match[0][0] == "{":
            least, most = (match[4], match[4]) if match[4] else (match[1] or "0", match[3] or None)
            element.least, element.most = int(least), None if most is None else int(most)
            if max(element.least, element.most or 0) > PATTERN_REPEAT_MAX:
                raise self._refused(f"a repeat of more than {PATTERN_REPEAT_MAX}")
        else:
            element.least, element.most = {"*": (0, None), "+": (1, None), "?": (0, 1)}[match[0][0]]
        element.possessive = match[5] == "+"
        self.position = match.end()
        return element.variable

    def _characters(self, atom: str) -> frozenset[str]:
        matches = re.compile(self.flags + atom).fullmatch
        return frozenset(character for character in _SAMPLE + self.pattern if matches(character))

    def _extent(self, index: int) -> Literal["fixed", "moves", "last"]:
        """Whether what follows fixes where the variable atom ends, lets it move, or is nothing at all."""
        own = self._characters(self.elements[index].source)
        for element in self.elements[index + 1 :]:
            if element.kind == "bar":
                return "last" if element.source else "moves"
            if element.kind == "edge" and element.source in {"$", "\\Z"}:
                return "fixed"
            if element.kind in {"open", "close"} and not element.plain:
                return "moves"
            if element.kind == "atom":
                other = self._characters(element.source)
                if not own or not other or own & other:
                    return "moves"
                if element.least:
                    return "fixed"
        return "last"

    def line_characters(self) -> int:
        """See `line_characters_max`; before its lower bound is applied."""
        moving, scans, ways = 0, False, self.ways * self.groups[0].branches
        for index, element in enumerate(self.elements):
            scans |= element.least > _LONG_REPEAT
            if not element.variable or element.possessive:
                continue
            extent = self._extent(index) if element.kind == "atom" else "moves"
            if extent == "fixed":
                scans |= element.most is None
            elif extent == "moves" and element.most is None:
                moving += 1
            elif extent == "moves" and element.most is not None:
                ways *= element.most - element.least + 1
        first = self.elements[0] if self.elements else None
        anchored = first is not None and first.source in {"^", "\\A"} and self.groups[0].branches == 1
        degree = max(1, (not anchored) + moving + scans)
        if ways >= PATTERN_STEPS_MAX:
            return 0
        return min(LINE_CHARACTERS_MAX, int((PATTERN_STEPS_MAX / ways) ** (1 / degree)))


@lru_cache(maxsize=64)
def line_characters_max(pattern: str) -> int:
    """How many characters of a line the pattern may see; at least `LINE_CHARACTERS_MIN`.

    Raises `QueryError` for a pattern that ``re`` refuses, that could take exponential time, or that is so
    ambiguous that only shorter lines would be safe. See the module's docstring for the rule.
    """
    if not 0 < len(pattern) <= PATTERN_CHARACTERS_MAX:
        raise QueryError(f"a pattern has 1 to {PATTERN_CHARACTERS_MAX} characters, not {len(pattern)}")
    try:
        pattern.encode()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            re.compile(pattern)
    except re.error as error:
        raise QueryError(f"the pattern is not valid: {error.msg}", text=pattern, column=error.pos) from error
    except (Warning, ValueError, OverflowError, RecursionError) as error:
        raise QueryError(f"the pattern is not valid: {error}") from error
    characters = _Scanner(pattern).line_characters()
    if characters < LINE_CHARACTERS_MIN:
        raise QueryError(
            f"the pattern can match one line in too many ways (safe only up to {characters} characters): replace .* "
            "by a class that excludes the character that follows, such as [^ ]*"
        )
    return characters
