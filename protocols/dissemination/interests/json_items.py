"""JSON objects from the network: parsed once, within limits, and only what all readers of JSON understand alike."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any, Final, NoReturn

from protocols.dissemination.interests.errors import ItemError
from protocols.dissemination.messages import ITEM_BYTES_MAX

DEPTH_MAX: Final = 32
"""Objects and lists inside each other."""
MEMBERS_MAX: Final = 10_000
"""Members of all objects, and elements of all lists, together."""
NUMBER_CHARACTERS_MAX: Final = 64
"""The longest number, as it is written."""


def parse_object(data: bytes) -> dict[str, Any]:
    """Parse an item. Raises `ItemError` for what is not one JSON object in UTF-8, or is above a limit."""
    if len(data) > ITEM_BYTES_MAX:
        raise ItemError(f"an item of {len(data)} bytes is too large: at most {ITEM_BYTES_MAX}")
    _check_commas(data)
    try:
        found = _DECODER.decode(data.decode())
    except UnicodeDecodeError as error:
        raise ItemError(f"not UTF-8: byte {error.start} cannot be read") from error
    except RecursionError as error:
        raise ItemError(_TOO_DEEP) from error
    except json.JSONDecodeError as error:
        raise ItemError(f"no valid JSON: {error}") from error
    if not isinstance(found, dict):
        raise ItemError(f"an item is a JSON object, not {_WORDS.get(type(found), 'a number')}")
    _check(found)
    return found


_TOO_DEEP: Final = f"the item is nested deeper than {DEPTH_MAX}"
_TOO_MANY: Final = f"the item has more than {MEMBERS_MAX} members"
_TOO_MANY_COMMAS: Final = re.compile(rb'(?:(?:[^",]++|"(?:[^"\\]++|\\.)*+"?)*+,){%d}' % (MEMBERS_MAX + 1), re.DOTALL)
"""So many commas outside texts. It never looks at a byte twice, whatever there is."""
_WORDS: Final = {list: "a list", str: "a text", bool: "true or false", type(None): "null"}


def _check_commas(data: bytes) -> None:
    """Refuse what has too many members before all of them are made: a daemon does nothing else for so long."""
    if data.count(b",") > MEMBERS_MAX and _TOO_MANY_COMMAS.match(data):
        raise ItemError(_TOO_MANY)


def _check(root: Mapping[str, Any]) -> None:
    """Level by level, so that the depth of an item is never that of a recursion."""
    level: list[Any] = [root]
    members = depth = 0
    while level:
        depth += 1
        if depth > DEPTH_MAX:
            raise ItemError(_TOO_DEEP)
        inside: list[Any] = []
        for each in level:
            members += len(each)
            inside += each.values() if isinstance(each, dict) else each
        if members > MEMBERS_MAX:
            raise ItemError(_TOO_MANY)
        level = [each for each in inside if isinstance(each, dict | list)]


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise ItemError(f"the member {name!r:.60} is there twice")
            seen.add(name)
    return found


def _float(text: str) -> float:
    _check_digits(text)
    value = float(text)
    if not math.isfinite(value):
        raise ItemError(f"the number {text:.60} is not in the range of a double")
    return value


def _int(text: str) -> int:
    _check_digits(text)
    return int(text)


def _check_digits(text: str) -> None:
    if len(text) > NUMBER_CHARACTERS_MAX:
        raise ItemError(f"a number has at most {NUMBER_CHARACTERS_MAX} characters")


def _no_constant(word: str) -> NoReturn:
    raise ItemError(f"{word} is no JSON")


_DECODER: Final = json.JSONDecoder(
    object_pairs_hook=_members, parse_float=_float, parse_int=_int, parse_constant=_no_constant
)
