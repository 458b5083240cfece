"""What is wrong with a value that did not fit its model, in our words: one place for every error of validation.

The library that validates speaks to programmers ("Input should be a valid integer"); these sentences say what was
expected. Our own validators' texts are passed on.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, get_args

if TYPE_CHECKING:
    from pydantic import ValidationError
    from pydantic_core import ErrorDetails

MISSING: Final = "missing"
UNKNOWN_KEY: Final = "extra_forbidden"
_SHOWN_LENGTH_MAX: Final = 80
_OBJECT: Final = "expected an object (in TOML: a table)"
_TIME: Final = "expected a point in time such as 2026-01-31T12:00:00Z"
_WORDS: Final[Mapping[str, str]] = {
    MISSING: "it has to be there",
    UNKNOWN_KEY: "there is no such key",
    "value_error": "{error}",
    "assertion_error": "{error}",
    "json_invalid": "not JSON: {error}",
    "recursion_depth_exceeded": "nested too deeply",
    "recursion_loop": "it contains itself",
    "invalid_key": "expected text as each key",
    **dict.fromkeys(("model_type", "model_attributes_type", "dataclass_type", "dict_type", "mapping_type"), _OBJECT),
    "none_required": "expected nothing (null)",
    "greater_than": "expected more than {gt}",
    "greater_than_equal": "expected at least {ge}",
    "less_than": "expected less than {lt}",
    "less_than_equal": "expected at most {le}",
    "multiple_of": "expected a multiple of {multiple_of}",
    "finite_number": "expected a finite number",
    "too_short": "expected at least {min_length} in the list, found {actual_length}",
    "too_long": "expected at most {max_length} in the list",
    **dict.fromkeys(("string_type", "string_unicode"), "expected text"),
    "string_too_short": "expected at least {min_length} character{s}",
    "string_too_long": "expected at most {max_length} character{s}",
    "string_pattern_mismatch": "expected text that matches {pattern}",
    "string_not_ascii": "expected ASCII characters only",
    **dict.fromkeys(("enum", "literal_error"), "expected {expected}"),
    **dict.fromkeys(("list_type", "tuple_type", "set_type", "frozen_set_type", "iterable_type"), "expected a list"),
    **dict.fromkeys(("bool_type", "bool_parsing"), "expected true or false"),
    **dict.fromkeys(("int_type", "int_parsing", "int_from_float", "int_parsing_size"), "expected a whole number"),
    **dict.fromkeys(("float_type", "float_parsing", "decimal_type", "decimal_parsing"), "expected a number"),
    "bytes_type": "expected bytes",
    "bytes_too_short": "expected at least {min_length} byte{s}",
    "bytes_too_long": "expected at most {max_length} byte{s}",
    "bytes_invalid_encoding": "expected {encoding}",
    **dict.fromkeys(("date_type", "date_parsing", "date_from_datetime_parsing"), "expected a date such as 2026-01-31"),
    **dict.fromkeys(("datetime_type", "datetime_parsing", "datetime_from_date_parsing", "timezone_aware"), _TIME),
    "union_tag_invalid": "expected {expected_tags} as {discriminator}, found '{tag}'",
    "union_tag_not_found": "{discriminator} has to be there: it says what this is",
}
_ANYTHING_ELSE: Final = "expected another value"


def reason(details: ErrorDetails) -> str:
    """What was expected of one value, without the value and its place."""
    if _is_own(details["type"]):
        return details["msg"]
    context = {
        key: f"{value:g}" if isinstance(value, float) else value for key, value in details.get("ctx", {}).items()
    }
    plural = "" if 1 in (context.get("min_length"), context.get("max_length")) else "s"
    return _WORDS.get(details["type"], _ANYTHING_ELSE).format_map({**context, "s": plural})


def _is_own(kind: str) -> bool:
    """Whether an error of this type is made by our own code, so that its message is ours."""
    from pydantic_core.core_schema import ErrorType

    return kind not in _WORDS and kind not in get_args(ErrorType)


def first_reason(error: ValidationError, *, shows_value: bool = True) -> str:
    """The first thing that is wrong, on one line: its place, what was expected, and what was found if that is short."""
    return told(error.errors(include_url=False)[0], shows_value=shows_value)


def told(details: ErrorDetails, *, skip: int = 0, shows_value: bool = True) -> str:
    """One thing that is wrong, as `first_reason`; ``skip``: so many steps of its place are not told."""
    place = ".".join(map(str, details["loc"][skip:]))
    text = f"{place}: {reason(details)}" if place else reason(details)
    value = details.get("input")
    is_named = details["type"] in (MISSING, UNKNOWN_KEY, "union_tag_invalid") or _is_own(details["type"])
    if is_named or not shows_value or not isinstance(value, bool | int | float | str):
        return text
    return f"{text}, not {repr(value)[:_SHOWN_LENGTH_MAX]}"
