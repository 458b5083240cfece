"""Values in filters and events, and the views through which a condition reads an attribute.

An event is a mapping from names to what JSON knows (and, from Python, decimals, datetimes and addresses). A condition
reads an attribute through one *view*: as a number, as text, as a time, and so on. What cannot be read through
the view (another type, NaN, text that is no timestamp) is *unknown* to the condition, as a missing attribute is.
Through each view a value becomes a key, and the keys of one view have a total order:

========  =====================================================  ================================================
view      reads                                                  key
========  =====================================================  ================================================
BOOLEAN   true, false                                            0, 1
NUMBER    int, float (not NaN), Decimal (not NaN)                the number itself: Python compares them exactly
TEXT      valid Unicode                                          the text, by code points (the order of UTF-8)
ENDING    as TEXT                                                the text reversed: endings become beginnings
TIME      RFC 3339 text, datetime with an offset                 nanoseconds since 1970
ADDRESS   text of an IPv4 or IPv6 address, Python's addresses    a whole number, IPv4 before IPv6
========  =====================================================  ================================================
"""

from __future__ import annotations

import ipaddress
import math
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from enum import StrEnum
from functools import lru_cache
from typing import Any, Final, TypeAlias

from peerd.frozen import Frozen


class View(StrEnum):
    """The ways in which a condition can read an attribute. The members' values are words for messages."""

    BOOLEAN = "boolean"
    NUMBER = "number"
    TEXT = "string"
    ENDING = "ending"
    TIME = "timestamp"
    ADDRESS = "address"


Key: TypeAlias = Any
"""A value as a view reads it: int, float, Decimal or str. Only keys of the same view can be compared."""
Reader: TypeAlias = Mapping[View, Callable[[Any], Key | None]]
"""For each view, the key of a value, or ``None`` when the value cannot be read so."""


class Timestamp(Frozen, order=True):
    """A point in time, in nanoseconds since 1970-01-01T00:00:00Z."""

    nanoseconds: int

    def __str__(self) -> str:
        seconds, fraction = divmod(self.nanoseconds, 1_000_000_000)
        shown = (_EPOCH + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%S").rjust(19, "0")
        return f"{shown}.{fraction:09d}".rstrip("0").rstrip(".") + "Z" if fraction else f"{shown}Z"


class Address(Frozen, order=True):
    """An IP address as its key; see the module's table."""

    key: int

    def __str__(self) -> str:
        if self.key < V6_FIRST:
            return str(ipaddress.IPv4Address(self.key))
        return str(ipaddress.IPv6Address(self.key - V6_FIRST))


Literal: TypeAlias = bool | int | float | Decimal | str | Timestamp | Address

V6_FIRST: Final = 1 << 32
"""Key of the first IPv6 address: all IPv4 addresses come before it."""
ADDRESS_END: Final = V6_FIRST + (1 << 128)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_TIMESTAMP: Final = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2})[Tt ]([0-9]{2}:[0-9]{2}:[0-9]{2})(?:\.([0-9]{1,9}))?"
    r"(?:([Zz])|([+-])([0-9]{2}):([0-9]{2}))",
    re.ASCII,
)


class _Other:
    """The class of `OTHER`: equal to itself only, neither below nor above anything."""

    def _never(self, other: object) -> bool:
        return False

    __lt__ = __le__ = __gt__ = __ge__ = _never

    def __repr__(self) -> str:
        return "OTHER"


OTHER: Final = _Other()
"""Key for "present, but not of this view": unequal to every value, neither below nor above any.

Only readers of loosely typed records use it, such as lines of CSV: there ``status != 200`` holds for the text "-".
"""


def view_of(literal: Literal) -> View:
    """Return the view that compares values with the literal."""
    return _VIEWS[type(literal)]


def key_of(literal: Literal) -> Key:
    """Return the literal's key in its view."""
    if isinstance(literal, Timestamp):
        return literal.nanoseconds
    if isinstance(literal, Address):
        return literal.key
    return int(literal) if isinstance(literal, bool) else literal


_VIEWS: Final[dict[type, View]] = {
    bool: View.BOOLEAN,
    int: View.NUMBER,
    float: View.NUMBER,
    Decimal: View.NUMBER,
    str: View.TEXT,
    Timestamp: View.TIME,
    Address: View.ADDRESS,
}


# --- reading --------------------------------------------------------------------------------------------------------


def read_boolean(value: object) -> int | None:
    """Return 1 for ``True`` and 0 for ``False``."""
    return int(value) if isinstance(value, bool) else None


def read_number(value: object) -> int | float | Decimal | None:
    """The number, unless it is NaN. A boolean is no number."""
    kind = type(value)
    if kind is int:
        return value  # type: ignore[return-value]  # its type was just looked at
    if kind is float:
        return None if value != value else value  # type: ignore[return-value]  # its type was just looked at
    if isinstance(value, Decimal):
        return None if value.is_nan() else value
    return None if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value) else value


def read_text(value: object) -> str | None:
    """The text, if it is valid Unicode (JSON can hold half a surrogate pair)."""
    if not isinstance(value, str):
        return None
    return value if value.isascii() or is_unicode(value) else None


def is_unicode(text: str) -> bool:
    """Whether the text can be written as UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def read_ending(value: object) -> str | None:
    """Return the text reversed, so that its ending comes first."""
    text = read_text(value)
    return None if text is None else text[::-1]


def read_time(value: object) -> int | None:
    """Nanoseconds since 1970 of an RFC 3339 text or of a datetime that knows its offset."""
    if isinstance(value, str):
        return parse_timestamp(value)
    if isinstance(value, datetime) and value.tzinfo is not None:
        return (value - _EPOCH) // timedelta(microseconds=1) * 1000
    return None


def read_address(value: object) -> int | None:
    """The key of an address, from its text or from Python's address objects."""
    if isinstance(value, str):
        return parse_address(value)
    if isinstance(value, ipaddress.IPv4Address | ipaddress.IPv6Address):
        return _address_key(value)
    return None


STRICT: Final[Reader] = {
    View.BOOLEAN: read_boolean,
    View.NUMBER: read_number,
    View.TEXT: read_text,
    View.ENDING: read_ending,
    View.TIME: read_time,
    View.ADDRESS: read_address,
}
"""Values are what their types say; only times and addresses are read from text."""


@lru_cache(maxsize=1024)
def parse_timestamp(text: str) -> int | None:
    """Nanoseconds since 1970 of ``2024-01-31T12:00:00.5Z`` or ``2024-01-31 12:00:00+02:00``, else ``None``."""
    match = _TIMESTAMP.fullmatch(text)
    if match is None:
        return None
    date, clock, fraction, zulu, sign, hours, minutes = match.groups()
    try:
        offset = (
            timedelta(0) if zulu else timedelta(hours=int(hours), minutes=int(minutes)) * (-1 if sign == "-" else 1)
        )
        timezone(offset)  # `timezone` refuses an offset of a day and more
        moment = datetime.fromisoformat(f"{date}T{clock}").replace(tzinfo=UTC) - offset
    except (ValueError, OverflowError):
        return None
    seconds = (moment - _EPOCH) // timedelta(seconds=1)
    return seconds * 1_000_000_000 + int((fraction or "0").ljust(9, "0"))


@lru_cache(maxsize=1024)
def parse_address(text: str) -> int | None:
    """The key of an IPv4 or IPv6 address without a zone, else ``None``."""
    if len(text) > 45 or "%" in text:
        return None
    try:
        return _address_key(ipaddress.ip_address(text))
    except ValueError:
        return None


def _address_key(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> int:
    return int(address) + (V6_FIRST if address.version == 6 else 0)


def parse_network(text: str) -> tuple[int, int] | None:
    """First key and the one after the last of ``10.0.0.0/8`` (or of a single address), else ``None``.

    Host bits may be set: ``10.1.2.3/8`` is the network that 10.1.2.3 lies in.
    """
    if len(text) > 49 or "%" in text:
        return None
    try:
        network = ipaddress.ip_network(text, strict=False)
    except ValueError:
        return None
    first = _address_key(network.network_address)
    return first, first + network.num_addresses


# --- finding --------------------------------------------------------------------------------------------------------


def find(event: Mapping[str, Any], name: str) -> Any:
    """Return the member with exactly this name, else the nested one that the name's dots lead to, else ``None``."""
    if name in event:
        return event[name]
    value: Any = event
    for part in name.split("."):
        if not isinstance(value, Mapping) or part not in value:
            return None
        value = value[part]
    return value
