"""Errors of validation are told in our words, whatever the library that finds them has to say."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, Literal

import pytest
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import PydanticCustomError
from pydantic_core._pydantic_core import list_all_errors

from peerd.errors import ConfigError
from peerd.invalid import first_reason, reason, told
from tests.support.foreign_words import foreign_words


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


class Cat(BaseModel):
    kind: Literal["cat"]


class Dog(BaseModel):
    kind: Literal["dog"]


def even(number: int) -> int:
    if number % 2:
        raise ValueError("expected an even number")
    return number


def lucky(number: int) -> int:
    if number == 13:
        raise PydanticCustomError("unlucky", "13 brings no luck")
    return number


class Model(BaseModel):
    model_config = ConfigDict(extra="forbid")

    name: Annotated[str, Field(min_length=2, max_length=4, pattern="^[a-z]+$")] = "abc"
    one: Annotated[str, Field(max_length=1)] = ""
    number: Annotated[int, Field(ge=1, le=9)] = 1
    share: Annotated[float, Field(gt=0, lt=1)] = 0.5
    both: Annotated[int, AfterValidator(lucky), AfterValidator(even)] = 2
    parts: Annotated[list[int], Field(min_length=1, max_length=2)] = [1]
    colour: Colour = Colour.RED
    is_on: bool = True
    at: datetime | None = None
    table: dict[str, int] = {}
    pet: Annotated[Cat | Dog, Field(discriminator="kind")] | None = None


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"name": "a"}, "name: expected at least 2 characters, not 'a'"),
        ({"name": "abcde"}, "name: expected at most 4 characters, not 'abcde'"),
        ({"one": "ab"}, "one: expected at most 1 character, not 'ab'"),
        ({"name": "A-"}, "name: expected text that matches ^[a-z]+$, not 'A-'"),
        ({"name": 7}, "name: expected text, not 7"),
        ({"number": "x"}, "number: expected a whole number, not 'x'"),
        ({"number": 0}, "number: expected at least 1, not 0"),
        ({"number": 10}, "number: expected at most 9, not 10"),
        ({"share": 0}, "share: expected more than 0, not 0"),
        ({"share": 1}, "share: expected less than 1, not 1"),
        ({"share": "x" * 200}, "share: expected a number, not '" + "x" * 79),
        ({"both": 3}, "both: expected an even number, not 3"),
        ({"both": 12.5}, "both: expected a whole number, not 12.5"),
        ({"parts": []}, "parts: expected at least 1 in the list, found 0"),
        ({"parts": [1, 2, 3]}, "parts: expected at most 2 in the list"),
        ({"parts": [1, "x"]}, "parts.1: expected a whole number, not 'x'"),
        ({"colour": "green"}, "colour: expected 'red' or 'blue', not 'green'"),
        ({"is_on": "perhaps"}, "is_on: expected true or false, not 'perhaps'"),
        ({"at": "noon"}, "at: expected a point in time such as 2026-01-31T12:00:00Z, not 'noon'"),
        ({"table": 3}, "table: expected an object (in TOML: a table), not 3"),
        ({"pet": {"kind": "cow"}}, "pet: expected 'cat', 'dog' as 'kind', found 'cow'"),
        ({"pet": {}}, "pet: 'kind' has to be there: it says what this is"),
        ({"strange": 1}, "strange: there is no such key"),
    ],
)
def test_what_was_expected_is_said(values: dict[str, Any], text: str) -> None:
    with pytest.raises(ValidationError) as caught:
        Model.model_validate(values)
    assert first_reason(caught.value) == text
    assert foreign_words(str(caught.value)), "the library itself says it in other words"


def test_an_error_of_our_own_stays_as_it_is() -> None:
    with pytest.raises(ValidationError) as caught:
        Model.model_validate({"both": 13})
    assert first_reason(caught.value) == "both: 13 brings no luck"


def test_a_missing_key_and_damaged_text() -> None:
    with pytest.raises(ValidationError) as caught:
        Cat.model_validate({})
    assert first_reason(caught.value) == "kind: it has to be there"
    with pytest.raises(ValidationError) as caught:
        Cat.model_validate_json("{")
    assert first_reason(caught.value, shows_value=False).startswith("not JSON: ")


@pytest.mark.parametrize("known", list_all_errors(), ids=lambda known: str(known["type"]))
def test_no_error_of_the_library_comes_through(known: Any) -> None:
    context = known["example_context"] or {}
    said = {"msg": known["message_template_python"], "input": "x", "ctx": context}
    details: Any = {"type": known["type"], "loc": ("a", 1), **said}
    text = told(details)
    assert text.startswith(f"a.1: {reason(details)}") and not foreign_words(text) and "{" not in text


def test_the_watch_on_all_errors_bites() -> None:
    with pytest.raises(AssertionError, match="quotes a library"):
        raise ConfigError("Input should be a valid integer", key="a.b")
