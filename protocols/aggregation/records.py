"""The ways in which fields of records are read: as group keys, as numbers, and by the conditions of ``where``.

Records are typed loosely, the values of CSV not at all, so ``where`` reads them more kindly than filters of events are:
every scalar has a text (so ``code = "404"`` finds the number 404, too), and in CSV and text a number is what is written
like one. What is there but no number differs from every number and is neither below nor above it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, cast

from peerd.lib.filter.values import OTHER, Key, Reader, View, is_unicode, parse_address, parse_timestamp
from protocols.aggregation.calls import Call
from protocols.aggregation.functions import Input
from protocols.aggregation.listings import VECTOR_MAX
from protocols.aggregation.numbers import Number, check_number, parse_number
from protocols.aggregation.registry import function_of

_TRUTHS: Final = {"true": 1, "false": 0}


def text_of(value: object) -> str | None:
    """The text of a scalar, as group key and for comparisons with text; ``None`` for null, arrays and objects."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return repr(value)
    return None


def number_reader(textual: bool) -> Callable[[object], Number | None]:
    """The function that reads a number. ``textual``: CSV and text, where it is written out; in JSON "1" is none."""
    return _written_number if textual else check_number


def _written_number(value: object) -> Number | None:
    return parse_number(value.strip()) if isinstance(value, str) else None


def input_reader(call: Call, textual: bool) -> Callable[[object], object]:
    """The function that reads what a query's call takes of a field; it returns ``None`` for what it does not take."""
    function = function_of((call,))
    if function.takes is Input.NOTHING:
        return lambda value: 0
    if function.takes is Input.NUMBER:
        return number_reader(textual)
    if function.takes is Input.VECTOR:
        return _vector_of

    def text(value: object) -> str | None:
        found = text_of(value)
        return found if found is not None and function.accepts(found) else None

    return text


def _vector_of(value: object) -> tuple[Number, ...] | None:
    """The numbers of a JSON array; ``None`` for anything else, or when one is none."""
    if not isinstance(value, list) or len(value) > VECTOR_MAX:
        return None
    numbers = tuple(map(check_number, value))
    return None if None in numbers else cast(tuple[Number, ...], numbers)


def reader(textual: bool) -> Reader:
    """Return the function with which conditions read fields; ``textual`` is as in `number_reader`."""
    read = number_reader(textual)

    def number(value: object) -> Key | None:
        found = read(value)
        if found is not None:
            return found
        return None if text_of(value) is None or value != value else OTHER  # NaN matches nothing

    return {
        View.BOOLEAN: _boolean,
        View.NUMBER: number,
        View.TEXT: _text,
        View.ENDING: _ending,
        View.TIME: _time,
        View.ADDRESS: _address,
    }


def _text(value: object) -> str | None:
    text = text_of(value)
    return text if text is None or text.isascii() or is_unicode(text) else None


def _boolean(value: object) -> int | None:
    text = text_of(value)
    return None if text is None else _TRUTHS.get(text.lower())


def _ending(value: object) -> str | None:
    text = _text(value)
    return None if text is None else text[::-1]


def _time(value: object) -> int | None:
    return parse_timestamp(value) if isinstance(value, str) else None


def _address(value: object) -> int | None:
    return parse_address(value) if isinstance(value, str) else None
