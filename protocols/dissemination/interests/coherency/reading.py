"""Reads interests in values of objects, and items that bring them. Pure.

interest  = [ need { "," need } ]                    empty: every change of every object
need      = object [ tolerance ]                     no tolerance: every change
object    = "*" | a name | "'" any text "'"          two quotes within it stand for one
tolerance = "WITHIN" number [ "PERCENT" | "EDITS" ] | "AT MOST EVERY" duration | "CHANGES" number
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable
from typing import Any, Final, NoReturn

from protocols.dissemination.interests.coherency.tolerance import (
    EDITS_MAX,
    EXACT,
    Divergence,
    ObjectValue,
    Tolerance,
)
from protocols.dissemination.interests.errors import InterestError, ItemError
from protocols.dissemination.messages import INTEREST_BYTES_MAX, StreamItem

ANY_OBJECT: Final = "*"
NEEDS_MAX: Final = 256
"""Needs in one interest."""
OBJECT_CHARACTERS_MAX: Final = 128
CHANGES_MAX: Final = 1_000_000
AGE_MAX_MS: Final = 7 * 86_400_000
INTEGER_MAX: Final = 2**63
"""Numbers of items lie below this, either way."""

Needs = dict[str, tuple[Tolerance, ...]]
"""By object. Each tolerance is one that the others there, and those for all objects, do not cover."""

_TOKEN: Final = re.compile(
    r"\s*(?:(?P<quoted>'(?:[^']|'')*')|(?P<star>\*)|(?P<comma>,)|(?P<word>[^\s,'*]+)|(?P<end>$))", re.DOTALL
)
_BARE: Final = re.compile(r"\w[\w.:/-]*", re.ASCII)
_NUMBER: Final = re.compile(r"\d+(?:\.\d+)?(?:[eE][+-]?\d{1,3})?", re.ASCII)
_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h)", re.ASCII)
_UNIT_MS: Final = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000}


def read_interest(text: str) -> Needs:
    """Read an interest. Raises `InterestError` that says at which character, and what was expected."""
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:
        raise InterestError(f"character {error.start + 1} is half of one") from error
    if size > INTEREST_BYTES_MAX:
        raise InterestError(f"an interest has at most {INTEREST_BYTES_MAX} bytes")
    return simplest(_Reader(text).needs()) if text.strip() else {ANY_OBJECT: (EXACT,)}


class _Reader:
    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens: list[tuple[str, str, int]] = []
        at = 0
        while not self._tokens or self._tokens[-1][0] != "end":
            found = _TOKEN.match(text, at)
            if found is None or found.lastgroup is None:
                begin = text.index("'", at)
                raise InterestError(f"character {begin + 1}: a quote that is not closed")
            self._tokens.append((found.lastgroup, found[found.lastgroup], found.start(found.lastgroup)))
            at = found.end()
        self._next = 0

    def needs(self) -> list[tuple[str, Tolerance]]:
        found = [self._need()]
        while self._kind == "comma":
            self._take()
            found.append(self._need())
            if len(found) > NEEDS_MAX:
                raise InterestError(f"an interest has at most {NEEDS_MAX} needs")
        if self._kind != "end":
            self._fail("a comma or the end")
        return found

    @property
    def _kind(self) -> str:
        return self._tokens[self._next][0]

    def _take(self) -> str:
        token = self._tokens[self._next]
        self._next += 1
        return token[1]

    def _fail(self, expected: str) -> NoReturn:
        kind, text, at = self._tokens[self._next]
        raise InterestError(f"character {at + 1}: {'the end' if kind == 'end' else text[:40]!r}, expected {expected}")

    def _need(self) -> tuple[str, Tolerance]:
        name = self._object()
        return name, EXACT if self._kind in ("comma", "end") else self._tolerance()

    def _object(self) -> str:
        kind, text, _ = self._tokens[self._next]
        if kind == "star":
            return self._take()
        is_name = kind == "quoted" or (kind == "word" and _BARE.fullmatch(text))
        name = text[1:-1].replace("''", "'") if kind == "quoted" else text
        if not is_name or not 0 < len(name) <= OBJECT_CHARACTERS_MAX or name == ANY_OBJECT:
            self._fail(f"an object: a name of at most {OBJECT_CHARACTERS_MAX} characters, in quotes if need be, or *")
        self._take()
        return name

    def _is_word(self, word: str) -> bool:
        kind, text, _ = self._tokens[self._next]
        return kind == "word" and text.upper() == word

    def _tolerance(self) -> Tolerance:
        if self._is_word("WITHIN"):
            self._take()
            return self._within()
        if self._is_word("CHANGES"):
            self._take()
            return Tolerance(Divergence.CHANGES, self._whole(1, CHANGES_MAX) - 1)
        if not self._is_word("AT"):
            self._fail("WITHIN, AT MOST EVERY, CHANGES, a comma or the end")
        self._take()
        for word in ("MOST", "EVERY"):
            if not self._is_word(word):
                self._fail(word)
            self._take()
        return Tolerance(Divergence.AGE, self._duration_ms() - 1)

    def _within(self) -> Tolerance:
        begin = self._next
        number = self._number()
        if self._is_word("PERCENT"):
            self._take()
            return Tolerance(Divergence.PERCENT if number else Divergence.VALUE, number)
        if self._is_word("EDITS"):
            self._next = begin
            found = Tolerance(Divergence.EDITS, self._whole(0, EDITS_MAX))
            self._take()
            return found
        return Tolerance(Divergence.VALUE, number)

    def _number(self) -> float:
        kind, text, _ = self._tokens[self._next]
        if kind != "word" or not _NUMBER.fullmatch(text) or not math.isfinite(float(text)):
            self._fail("a number that is not negative")
        return float(self._take())

    def _whole(self, least: int, most: int) -> int:
        kind, text, _ = self._tokens[self._next]
        is_whole = kind == "word" and text.isascii() and text.isdecimal() and len(text) < 12
        if not is_whole or not least <= int(text) <= most:
            self._fail(f"a whole number from {least} to {most}")
        return int(self._take())

    def _duration_ms(self) -> int:
        kind, text, _ = self._tokens[self._next]
        found = _DURATION.fullmatch(text) if kind == "word" else None
        length_ms = round(float(found[1]) * _UNIT_MS[found[2]]) if found is not None and len(found[1]) < 12 else 0
        if not 1 <= length_ms <= AGE_MAX_MS:
            self._fail("a duration such as 5s, 200ms or 1m, of at most a week")
        self._take()
        return length_ms


def simplest(needs: Iterable[tuple[str, Tolerance]]) -> Needs:
    """Leave out what others cover."""
    found: dict[str, list[Tolerance]] = {}
    for name, tolerance in sorted(set(needs)):
        _put(found.setdefault(name, []), tolerance)
    wide = found.get(ANY_OBJECT, [])
    for name in list(found):
        if name != ANY_OBJECT:
            found[name] = [each for each in found[name] if not any(other.covers(each) for other in wide)]
    return {name: tuple(sorted(found[name])) for name in sorted(found) if found[name]}


def _put(some: list[Tolerance], tolerance: Tolerance) -> None:
    if not any(other.covers(tolerance) for other in some):
        some[:] = [*(other for other in some if not tolerance.covers(other)), tolerance]


def interest_text(needs: Needs) -> str:
    """The canonical text."""
    return ", ".join(f"{_object_text(name)} {each}" for name, some in needs.items() for each in some)


def _object_text(name: str) -> str:
    if name == ANY_OBJECT or _BARE.fullmatch(name):
        return name
    return "'" + name.replace("'", "''") + "'"


def read_item(item: StreamItem) -> ObjectValue:
    """Read an item: a JSON object with ``object``, ``value``, and ``time`` if it is not the time of publication.

    ``time`` is in seconds since 1970. Other members are carried and not looked at. Raises `ItemError`.
    """
    try:
        found = json.loads(item.payload, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise ItemError(f"no JSON: {error}") from error
    if not isinstance(found, dict):
        raise ItemError("a value comes as a JSON object with the members object and value")
    name = found.get("object")
    if not isinstance(name, str) or not 0 < len(name) <= OBJECT_CHARACTERS_MAX or name == ANY_OBJECT:
        raise ItemError(f"object is a text of 1 to {OBJECT_CHARACTERS_MAX} characters, and not *")
    if "value" not in found:
        raise ItemError("there is no value")
    return ObjectValue(name, _scalar("value", found["value"]), _time_ms(found.get("time"), item.published_ms))


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")


def _scalar(member: str, value: Any) -> Any:
    if isinstance(value, (list, dict)):
        raise ItemError(f"{member} is a number, a text, true, false or null")
    is_numeric = isinstance(value, (int, float)) and not isinstance(value, bool)
    if is_numeric and not -INTEGER_MAX < value < INTEGER_MAX:
        raise ItemError(f"{member} is too large a number")
    return value


def _time_ms(time_s: Any, published_ms: int) -> int:
    if time_s is None:
        return published_ms
    if isinstance(time_s, bool) or not isinstance(time_s, (int, float)) or not 0 <= time_s < 1e12:
        raise ItemError("time is a number of seconds since 1970")
    return round(time_s * 1000)
