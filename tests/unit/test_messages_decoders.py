"""Messages are validated as their classes declare it, and a class that cannot be validated is refused."""

from __future__ import annotations

import math
from typing import Annotated, Any

import annotated_types
import msgpack
import pytest
from hypothesis import given, strategies as st
from msgspec import Meta

from peerd.errors import Bug, ProtocolError
from peerd.ids import NodeId
from peerd.messages import (
    U8,
    U64,
    BytesMax,
    Finite,
    Message,
    Name,
    PeerRef,
    Struct,
    decode_body,
    decode_struct,
    encode_body,
    encode_struct,
    message,
    registered,
)
from peerd.wire.handshake import HelloRefused

WRONG: tuple[object, ...] = (None, True, -1, 1, 1 << 63, 1.5, "text", b"\1" * 16, (), (1,), {}, {"a": 1}, math.nan)


class Inner(Struct):
    """A record with limits of its own."""

    size: Annotated[int, Meta(gt=0, multiple_of=3)]
    share: Annotated[float, Meta(ge=0.0, le=1.0)] | None = None


@message(0x7EF1)
class Outer(Message):
    """Has records, and a text whose characters are limited."""

    parts: Annotated[tuple[Inner, ...], Meta(min_length=1)]
    note: Annotated[str, Meta(max_length=2)] = "ok"


def outer(*values: object) -> Outer:
    """Decode an array of these values."""
    return decode_body(Outer, msgpack.packb(values))


def test_limits_of_records_in_records_hold() -> None:
    assert outer(((3, 0.5), (6, None)), "no") == Outer((Inner(3, 0.5), Inner(6)), "no")
    assert outer(((3,),)) == Outer((Inner(3),)), "defaults for what is not there"
    assert outer(((3, 1), (6, None, "new")), "no", "new") == Outer((Inner(3, 1.0), Inner(6)), "no")
    wrong: tuple[object, ...] = ((), ((4, None),), ((3, 1.5),), ((0, None),), (7,), ((),), {}, None)
    for parts in wrong:
        with pytest.raises(ProtocolError, match="invalid"):
            outer(parts, "no")


@message(0x7EF3)
class Every(Message):
    """Has a field of each kind."""

    flag: bool
    small: U8
    large: U64
    number: Finite
    text: str
    data: bytes
    key: NodeId
    peer: PeerRef
    numbers: tuple[U64, ...]
    inner: Inner | None


VALUES: dict[str, object] = {
    "flag": False,
    "small": 255,
    "large": (1 << 64) - 1,
    "number": -1.5,
    "text": "",
    "data": b"",
    "key": bytes(16),
    "peer": bytes(16) + b"\1\2\4\1\2\3\4",
    "numbers": (),
    "inner": None,
}
FITTING: dict[str, set[int]] = {
    "flag": {1},
    "small": {3},
    "large": {3, 4},
    "number": {2, 3, 4, 5},
    "text": {6},
    "data": {7},
    "key": {7},
    "peer": set(),
    "numbers": {8, 9},
    "inner": {0},
}
"""By field, which of `WRONG` are right there."""


@pytest.mark.parametrize("name", VALUES)
def test_each_kind_of_field_takes_what_is_its_own_and_nothing_else(name: str) -> None:
    """A bool is no int, a text no bytes, NaN no number; an integer is a float, which it becomes."""
    fitting = set()
    for number, value in enumerate(WRONG):
        try:
            decoded = decode_body(Every, msgpack.packb(list({**VALUES, name: value}.values())))
        except ProtocolError as error:
            assert error.reason == "invalid"
        else:
            fitting.add(number)
            assert decode_body(Every, encode_body(decoded)) == decoded
    assert fitting == FITTING[name]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_numbers_are_finite(value: float) -> None:
    with pytest.raises(ProtocolError, match="invalid"):
        decode_body(Every, msgpack.packb(list({**VALUES, "number": value}.values())))


@given(st.binary(max_size=40))
def test_an_id_is_16_bytes(data: bytes) -> None:
    body = msgpack.packb(list({**VALUES, "key": data}.values()))
    if len(data) == 16:
        assert decode_body(Every, body).key == NodeId(int.from_bytes(data, "big"))
    else:
        with pytest.raises(ProtocolError, match="16 bytes"):
            decode_body(Every, body)


def test_an_id_comes_back_as_an_id() -> None:
    body = msgpack.packb(list({**VALUES, "key": b"\xff" * 16}.values()))
    assert type(decode_body(Every, body).key) is NodeId
    assert encode_body(decode_body(Every, body)) == body


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
        decode_body(Named, msgpack.packb([text]))
    with pytest.raises(ValueError, match="more than 4 bytes"):
        Named(text)


class Checked(Struct):
    """Has a text whose bytes are limited, and a check of its own."""

    text: Annotated[str, BytesMax(4)]
    number: U8

    def __post_init__(self) -> None:
        if self.number % 2:
            raise ValueError("an odd number")


def test_a_record_that_checks_itself_has_its_texts_checked_as_well() -> None:
    assert decode_struct(Checked, msgpack.packb(["four", 2])) == Checked("four", 2)
    for values, why in ((["fives", 2], "more than 4 bytes"), (["four", 1], "an odd number")):
        with pytest.raises(ProtocolError, match=why):
            decode_struct(Checked, msgpack.packb(values))


def test_a_name_has_64_bytes_at_most() -> None:
    """The caps of messages are reckoned with names of so many bytes: an answer to a longer one could not be built."""
    assert decode_body(HelloRefused, encode_body(HelloRefused("n" * 64, ""))).reason == "n" * 64
    with pytest.raises(ProtocolError, match="more than 64 bytes"):
        decode_body(HelloRefused, msgpack.packb(["\U0001f333" * 17, ""]))


def test_a_refusal_says_which_field_and_not_what_was_in_it() -> None:
    with pytest.raises(ProtocolError, match=r"Outer: .*length <= 2 - at `\$\[1\]`"):
        decode_body(Outer, b"\x92\x91\x92\x03\xc0\xa3abc")
    with pytest.raises(ProtocolError, match="Named: text: a text of more") as caught:
        decode_body(Named, msgpack.packb(["secret"]))
    assert "secret" not in str(caught.value)


def test_a_record_without_a_type_id_is_decoded_alike() -> None:
    assert decode_struct(Inner, encode_struct(Inner(3, 0.5))) == Inner(3, 0.5)
    for data in (b"", b"\x91\x04", b"\x91\xa1\xff", b"\x91" * 5000, b"\xdd\xff\xff\xff\xff", b"\x92\x03\xc0\x00"):
        with pytest.raises(ProtocolError):
            decode_struct(Inner, data)


def test_a_message_is_built_like_any_dataclass() -> None:
    assert Outer(parts=(Inner(3),)).note == "ok"
    with pytest.raises(TypeError, match="parts"):
        Outer()  # type: ignore[call-arg]  # wrong on purpose
    with pytest.raises(AttributeError):
        Outer((Inner(3),)).note = "other"  # type: ignore[misc]  # wrong on purpose


def test_a_type_id_is_given_once() -> None:
    class Other(Message):
        number: U8

    before = dict(registered())
    with pytest.raises(Bug, match="0x7ef2 is Named's"):
        message(0x7EF2)(Other)
    with pytest.raises(Bug, match="16 bits"):
        message(1 << 16)(Other)
    assert registered() == before


Nested = Annotated[tuple[Annotated[str, BytesMax(4)], ...], Meta(max_length=2)]
OLD_LIMIT = Annotated[int, annotated_types.Ge(0)]


@pytest.mark.parametrize(
    "kind", [float, Annotated[float, Meta(ge=0.0)], dict[str, int], list[int], tuple[int, int], Any, int | str, Nested]
)
def test_a_field_that_would_not_be_validated_is_refused_when_it_is_declared(kind: Any) -> None:
    declared: Any = type("Odd", (Message,), {"__annotations__": {"odd": kind}, "__module__": __name__})
    with pytest.raises(Bug, match=r"Odd\.odd"):
        message(0x7EF4)(declared)


def test_a_limit_of_another_library_is_refused() -> None:
    """Msgspec passes over it."""
    declared: Any = type("Odd", (Message,), {"__annotations__": {"odd": OLD_LIMIT}, "__module__": __name__})
    with pytest.raises(Bug, match="does not count"):
        message(0x7EF4)(declared)


def test_a_name_in_a_message_is_refused_by_who_makes_it() -> None:
    """A sender that errs finds it out itself; its peers would close their links to it."""
    with pytest.raises(ValueError, match="64 bytes"):
        HelloRefused("n" * 65, "")
    assert Name.__metadata__ == (BytesMax(64),)  # type: ignore[attr-defined]  # of an Annotated
