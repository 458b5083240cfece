"""The values of attributes: what clients may give, what filters read, and what travels. Pure.

=========  ===========================================  ==============================  =======================
type       clients give                                 filters read                    on the wire
=========  ===========================================  ==============================  =======================
int        a whole number of 64 bits                    int                             the number
float      any finite number                            float                           a double
decimal    a number, or its text                        Decimal                         its text
string     text                                         str                             the text
bool       true, false                                  bool                            the same
timestamp  RFC 3339 text with an offset, a datetime     text, in UTC                    nanoseconds since 1970
ip         the text of an address, Python's addresses   text, in the shortest form      its 4 or 16 bytes
=========  ===========================================  ==============================  =======================
"""

from __future__ import annotations

import ipaddress
import math
import re
from decimal import Decimal
from typing import Any, Final

from peerd.errors import PeerdError
from peerd.lib.filter.schema import Type
from peerd.lib.filter.values import STRICT, Address, Key, Timestamp, View, is_unicode, read_address, read_time

INT_MIN: Final = -(1 << 63)
INT_MAX: Final = (1 << 63) - 1
DECIMAL_CHARACTERS_MAX: Final = 64
"""The longest decimal, as it is written."""
EXPONENT_MAX: Final = 128
"""Decimals lie between 10 to minus this and 10 to this."""
STRING_CHARACTERS_MAX: Final = 4096
"""The longest string in an event."""
SHOWN_CHARACTERS: Final = 60
"""How much of a wrong value is shown in an error."""

VIEWS: Final[dict[Type, View]] = {
    Type.INT: View.NUMBER,
    Type.FLOAT: View.NUMBER,
    Type.DECIMAL: View.NUMBER,
    Type.STRING: View.TEXT,
    Type.BOOL: View.BOOLEAN,
    Type.TIMESTAMP: View.TIME,
    Type.IP: View.ADDRESS,
}
_DECIMAL: Final = re.compile(r"[+-]?[0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]{1,4})?", re.ASCII)


class EventError(PeerdError, ValueError):
    """An event that cannot be published. ``attribute`` is the one that is wrong; empty where it is none of them."""

    def __init__(self, message: str, attribute: str = "") -> None:
        super().__init__(f"{attribute}: {message}" if attribute else message)
        self.attribute = attribute
        self.message = message


def canonical(kind: Type, value: object) -> Any:
    """Return a client's value in the form that filters read. Raises ``ValueError``, saying what was expected."""
    found = CANONICAL[kind](value)
    if found is None:
        raise ValueError(f"expected {_EXPECTED[kind]}, not {shown(value)}")
    return found


def to_wire(kind: Type, value: Any) -> Any:
    """Return what travels for a value that `canonical` has returned."""
    if kind is Type.DECIMAL:
        return str(value)
    if kind is Type.TIMESTAMP:
        return read_time(value)
    return ipaddress.ip_address(value).packed if kind is Type.IP else value


def from_wire(kind: Type, data: object) -> Any:
    """Return the value that travelled. Raises ``ValueError`` for what `to_wire` never returns."""
    if type(data) is _ON_THE_WIRE.get(kind):
        return canonical(kind, data)
    if kind is Type.TIMESTAMP and type(data) is int and INT_MIN <= data <= INT_MAX:
        return str(Timestamp(data))
    if kind is Type.IP and isinstance(data, bytes) and len(data) in (4, 16):
        return str(ipaddress.ip_address(data))
    if kind is Type.DECIMAL and isinstance(data, str):
        return canonical(kind, data)
    raise ValueError(f"expected {_EXPECTED[kind]}, not {shown(data)}")


def key_of(kind: Type, value: Any) -> Key:
    """Return the key by which filters compare a value that `canonical` has returned."""
    return STRICT[VIEWS[kind]](value)


def said(kind: Type, key: Key) -> str:
    """Write a key for people."""
    if kind is Type.TIMESTAMP:
        return str(Timestamp(key))
    return str(Address(key)) if kind is Type.IP else str(key)


def shown(value: object) -> str:
    """Write a wrong value for people, shortened."""
    if isinstance(value, dict | list | tuple):
        return "an object" if isinstance(value, dict) else "a list"
    text = {None: "null", True: "true", False: "false"}[value] if value is None or isinstance(value, bool) else ""
    if isinstance(value, int) and not text:
        text = str(value) if value.bit_length() < 1024 else "a very large number"
    text = text or (str(value) if isinstance(value, Decimal) else repr(value))
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}..."


# --- by type; None: it is no such value -----------------------------------------------------------------------------


def _int(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and INT_MIN <= value <= INT_MAX else None


def _float(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def _decimal(value: object) -> Decimal | None:
    if isinstance(value, float):
        value = repr(value)
    if isinstance(value, int) and not isinstance(value, bool) and INT_MIN <= value <= INT_MAX:
        return Decimal(value)
    if isinstance(value, str):
        if len(value) > DECIMAL_CHARACTERS_MAX or not _DECIMAL.fullmatch(value):
            return None
        value = Decimal(value)
    if not isinstance(value, Decimal) or not value.is_finite() or len(str(value)) > DECIMAL_CHARACTERS_MAX:
        return None
    return value if not value or abs(value.adjusted()) <= EXPONENT_MAX else None


def _string(value: object) -> str | None:
    return value if isinstance(value, str) and len(value) <= STRING_CHARACTERS_MAX and is_unicode(value) else None


def _bool(value: object) -> bool | None:
    return value if isinstance(value, bool) else None


def _timestamp(value: object) -> str | None:
    nanoseconds = read_time(value)
    return None if nanoseconds is None or not INT_MIN <= nanoseconds <= INT_MAX else str(Timestamp(nanoseconds))


def _address(value: object) -> str | None:
    key = read_address(value)
    return None if key is None else str(Address(key))


CANONICAL: Final = {
    Type.INT: _int,
    Type.FLOAT: _float,
    Type.DECIMAL: _decimal,
    Type.STRING: _string,
    Type.BOOL: _bool,
    Type.TIMESTAMP: _timestamp,
    Type.IP: _address,
}
_EXPECTED: Final = {
    Type.INT: "a whole number of 64 bits",
    Type.FLOAT: "a finite number",
    Type.DECIMAL: f"a decimal of at most {DECIMAL_CHARACTERS_MAX} characters",
    Type.STRING: f"a string of at most {STRING_CHARACTERS_MAX} characters",
    Type.BOOL: "true or false",
    Type.TIMESTAMP: "a time from 1678 to 2262 such as 2024-01-31T12:00:00Z",
    Type.IP: "an IP address",
}
_ON_THE_WIRE: Final = {Type.INT: int, Type.FLOAT: float, Type.STRING: str, Type.BOOL: bool}
