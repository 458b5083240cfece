"""Interests that were once taken and could not be used, or could not be refused: found by ``make fuzz``."""

from __future__ import annotations

import pytest

from protocols.dissemination.interests.errors import InterestError
from protocols.dissemination.loading import load_kind
from protocols.dissemination.messages import StreamItem

DOCUMENT = StreamItem.of(1, 1, 0, b"<a><b>x</b><c>2</c></a>")


@pytest.mark.parametrize(
    "text",
    [
        "1e999/a[not(b) or contains(c, 'x')][2]",
        "'x'[1]",
        "/a[1/b]",
        "//a[position() + 1]|3",
        "(1 = 1)/a",
        "count(//a)/b",
        "name(3) = 'a'",
        "count(1) > 0",
    ],
)
def test_a_step_below_a_number_or_a_text_is_refused_and_a_function_of_nodes_that_is_asked_of_one(text: str) -> None:
    with pytest.raises(InterestError):
        load_kind("xpath").parse(text)


@pytest.mark.parametrize("text", ["/a[position() * 2 = last()]", "(//b)[1]", "//b | /a/c[. > 1]", "/a[count(b/c) = 0]"])
def test_steps_below_steps_are_as_good_as_before(text: str) -> None:
    kind = load_kind("xpath")
    interest = kind.parse(text)
    assert kind.matches(interest, kind.content(DOCUMENT)) is ("position" not in text)


def test_half_a_character_is_refused_wherever_it_stands() -> None:
    for text in ("\ud800", "'a\udfff' WITHIN 1", "a WITHIN \ud800"):
        with pytest.raises(InterestError, match="half of one"):
            load_kind("coherency").parse(text)


@pytest.mark.parametrize("kind", ["classes", "attributes", "coherency", "xpath"])
def test_an_interest_covers_itself(kind: str) -> None:
    language = load_kind(kind)
    assert language.covers(language.parse(""), language.parse(""))
