"""The decoders that are written for each message take what pydantic takes, and make the same of it."""

from __future__ import annotations

from typing import Annotated

import annotated_types
import pytest
from hypothesis import given, strategies as st

from peerd.errors import ProtocolError
from peerd.messages import BytesMax, Message, decode_body, encode_body, message, struct, unpack
from peerd.messages.field_types import Decoder, decoders, judges
from peerd.wire.handshake import HelloRefused
from tests.support.golden import all_messages, sample

MESSAGES = all_messages()
NUMBERS = st.sampled_from([0, 1, 7, -1, 255, 256, 1 << 16, 1 << 32, (1 << 64) - 1, True, False])
FRACTIONS = st.sampled_from([0.0, -1.5, 1e300, float("nan"), float("inf"), -float("inf")])
BYTES = st.sampled_from([b"", b"x", b"\0" * 16, b"\xff" * 17, b"\1" * 16 + b"\x1d\x0c\4\x0a\0\0\1", b"y" * 2000])
ATOMS = st.one_of(st.none(), NUMBERS, FRACTIONS, BYTES, st.sampled_from(["", "text", "ж" * 40, "t" * 3000]))
VALUES = st.recursive(
    st.one_of(ATOMS, st.dictionaries(st.text(max_size=2), ATOMS, max_size=2)),
    lambda inner: st.lists(inner, max_size=5).map(tuple),
    max_leaves=10,
)


def outcome(decoder: Decoder, values: object) -> object:
    """What comes of it; a refusal is ``None``."""
    try:
        return repr(decoder(values))
    except ValueError:
        return None


@given(data=st.data())
def test_each_field_of_each_message_is_judged_alike(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(MESSAGES))
    values = list(unpack(encode_body(sample(kind))))  # type: ignore[call-overload]  # an array
    assert outcome(decoders[kind], tuple(values)) == repr(sample(kind))
    if values:
        values[data.draw(st.integers(0, len(values) - 1))] = data.draw(VALUES)
    assert outcome(decoders[kind], tuple(values)) == outcome(judges[kind], tuple(values))


@given(values=VALUES)
def test_anything_at_all_is_judged_alike(values: object) -> None:
    for kind in MESSAGES:
        assert outcome(decoders[kind], values) == outcome(judges[kind], values)


@struct
class Inner:
    """A record with limits of its own."""

    size: Annotated[int, annotated_types.Gt(0), annotated_types.MultipleOf(3)]
    share: Annotated[float, annotated_types.Le(1.0)] | None = None


@message(0x7EF1)
class Outer(Message):
    """Has a limit that only pydantic knows."""

    parts: Annotated[tuple[Inner, ...], annotated_types.MinLen(1)]
    note: Annotated[str, annotated_types.MaxLen(2)] = "ok"


def test_a_limit_that_only_pydantic_knows_holds() -> None:
    assert decoders[Outer]((((3, 0.5), (6, None)), "no")) == Outer((Inner(3, 0.5), Inner(6)), "no")
    assert decoders[Outer]((((3,),),)) == Outer((Inner(3),)), "defaults for what is not there"
    assert decoders[Outer]((((3, 1), (6, None, "new")), "no", "new")) == Outer((Inner(3, 1.0), Inner(6)), "no")
    for parts in ((), ((4, None),), ((3, 1.5),), ((0, None),), (7,)):
        with pytest.raises(ValueError, match="validation error"):
            decoders[Outer]((parts, "no"))


@message(0x7EF2)
class Named(Message):
    """Has a text whose bytes are limited."""

    text: Annotated[str, BytesMax(4)]


@pytest.mark.parametrize("text", ["", "four", "жж", "\U0001f333"])
def test_a_text_may_have_so_many_bytes(text: str) -> None:
    assert decode_body(Named, encode_body(Named(text))) == Named(text)


@pytest.mark.parametrize("text", ["fives", "жжж", "\U0001f333."])
def test_a_text_may_have_no_more_bytes_however_few_its_characters(text: str) -> None:
    with pytest.raises(ProtocolError, match="more than 4 bytes"):
        decode_body(Named, encode_body(Named(text)))


def test_a_name_has_64_bytes_at_most() -> None:
    """The caps of messages are reckoned with names of so many bytes: an answer to a longer one could not be built."""
    assert decode_body(HelloRefused, encode_body(HelloRefused("n" * 64, ""))).reason == "n" * 64
    with pytest.raises(ProtocolError, match="more than 64 bytes"):
        decode_body(HelloRefused, encode_body(HelloRefused("\U0001f333" * 17, "")))


def test_a_refusal_says_which_field() -> None:
    with pytest.raises(ProtocolError, match=r"Outer: field 1: .*at most 2 characters"):
        decode_body(Outer, b"\x92\x91\x92\x03\xc0\xa3abc")


def test_a_message_is_built_like_any_dataclass() -> None:
    assert Outer(parts=(Inner(3),)).note == "ok"
    with pytest.raises(TypeError, match="parts"):
        Outer()  # type: ignore[call-arg]  # wrong on purpose
    with pytest.raises(AttributeError):
        Outer((Inner(3),)).note = "other"  # type: ignore[misc]  # wrong on purpose
