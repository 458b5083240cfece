"""Durations, sizes and the base of every configuration table.

In a file a setting is written with its unit ("500ms", "30s", "64MiB"), and a bare number is refused. In Python a
`Duration` is float seconds and a `Size` is int bytes, and code may give numbers. `peerd.config` and every plugin's
configuration are built of these.
"""

from __future__ import annotations

import re
from decimal import Decimal
from ipaddress import ip_network
from typing import Annotated, Any, Final

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    ValidationInfo,
    WithJsonSchema,
)
from pydantic.fields import FieldInfo
from pydantic_core import PydanticCustomError

FROM_TEXT: Final = "from_text"
"""Key of pydantic's validation context that says: a person wrote these values, so each needs its unit."""

_DURATION_UNITS: Final = {"us": "1e-6", "ms": "1e-3", "s": "1", "m": "60", "h": "3600", "d": "86400"}
_SIZE_UNITS: Final = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
_QUANTITY: Final = r"([0-9]{1,20}(?:\.[0-9]{1,9})?) ?"
_DURATION: Final = re.compile(_QUANTITY + f"({'|'.join(_DURATION_UNITS)})")
_SIZE: Final = re.compile(_QUANTITY + f"({'|'.join(_SIZE_UNITS)})")


def parse_duration(text: object) -> float:
    """Read "500ms", "30s" or "1.5h" as seconds. Raises ``ValueError``, also for a number without a unit."""
    match = _DURATION.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise ValueError('expected a duration with its unit, such as "500ms", "30s", "5m", "1h"')
    return float(Decimal(match[1]) * Decimal(_DURATION_UNITS[match[2]]))


def format_duration(seconds: float) -> str:
    """Write the shortest text that `parse_duration` reads as the same duration (to a microsecond)."""
    micros = round(seconds * 1_000_000)
    for unit, size in (("d", 86_400_000_000), ("h", 3_600_000_000), ("m", 60_000_000), ("s", 1_000_000)):
        if micros and micros % size == 0:
            return f"{micros // size}{unit}"
    if micros % 1000 == 0:
        return f"{micros // 1000}ms" if micros else "0s"
    return f"{micros}us"


def parse_size(text: object) -> int:
    """Read "64KiB" or "512B" as bytes. Raises ``ValueError``, also without a unit, and for KB (1000 or 1024?)."""
    match = _SIZE.fullmatch(text) if isinstance(text, str) else None
    size = Decimal(match[1]) * _SIZE_UNITS[match[2]] if match else Decimal("0.5")
    if size != size.to_integral_value():
        raise ValueError('expected a size with its unit (B, KiB, MiB, GiB, TiB), such as "64KiB", "128MiB"')
    return int(size)


def format_size(size: int) -> str:
    """Write the shortest text that `parse_size` reads as the same size."""
    unit = max(
        (name for name, unit in _SIZE_UNITS.items() if size % unit == 0 and size),
        key=_SIZE_UNITS.__getitem__,
        default="B",
    )
    return f"{size // _SIZE_UNITS[unit]}{unit}"


def _is_text(value: object, info: ValidationInfo) -> bool:
    """Whether a person wrote this value. Code may leave the unit out, which the field states; a file may not."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return not is_number or (isinstance(info.context, dict) and bool(info.context.get(FROM_TEXT)))


def _duration(value: object, info: ValidationInfo) -> object:
    return parse_duration(value) if _is_text(value, info) else value


def _size(value: object, info: ValidationInfo) -> object:
    return parse_size(value) if _is_text(value, info) else value


Duration = Annotated[
    float,
    BeforeValidator(_duration),
    PlainSerializer(format_duration, return_type=str),
    WithJsonSchema({"type": "string", "pattern": f"^{_DURATION.pattern}$"}),
]
"""A duration: seconds in Python, "30s" in a file."""
Size = Annotated[
    int,
    BeforeValidator(_size),
    PlainSerializer(format_size, return_type=str),
    WithJsonSchema({"type": "string", "pattern": f"^{_SIZE.pattern}$"}),
]
"""A size: bytes in Python, "64KiB" in a file."""


def between_durations(low: str, high: str) -> AfterValidator:
    """Bound a `Duration`, both ends included: ``Annotated[Duration, between_durations("10ms", "1h")]``."""
    low_s, high_s = parse_duration(low), parse_duration(high)

    def check(seconds: float) -> float:
        if not low_s <= seconds <= high_s:
            raise ValueError(f"expected a duration from {low} to {high}")
        return seconds

    return AfterValidator(check)


def between_sizes(low: str, high: str) -> AfterValidator:
    """Bound a `Size`, both ends included."""
    low_bytes, high_bytes = parse_size(low), parse_size(high)

    def check(size: int) -> int:
        if not low_bytes <= size <= high_bytes:
            raise ValueError(f"expected a size from {low} to {high}")
        return size

    return AfterValidator(check)


Interval = Annotated[Duration, between_durations("10ms", "1h")]
Age = Annotated[Duration, between_durations("1s", "365d")]
Count = Annotated[int, Field(ge=1, le=1_000_000)]


def _network(text: str) -> str:
    try:
        ip_network(text)
    except ValueError as error:
        raise ValueError(f'expected a network such as "10.0.0.0/8" or "fd00::/8" ({error})') from error
    return text


Network = Annotated[str, AfterValidator(_network)]
"""An IPv4 or IPv6 network with its prefix length, or one address."""


class ConfigSection(BaseModel):
    """Base of every table, also of plugins: immutable, without unknown keys, its defaults written as in a file."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True, defer_build=True)


_RELOADS: Final = "x-peerd-reloads"
_SECRET: Final = "x-peerd-secret"
_AT_MOST: Final = "x-peerd-at-most"


def setting(default: Any, description: str, *, reloads: bool = False, secret: bool = False, at_most: str = "") -> Any:
    """Declare a field: its default as in a file ("30s"), and its meaning, formula, and which way to move it.

    ``reloads`` promises that a running daemon works with a new value from `peerd reload` on, without a restart: the
    code reads the field where it uses it, or acts when it is told. ``secret``: its value is never shown.
    ``at_most``, of a plugin's duration: the dotted key of the kernel's setting that it may not exceed.
    """
    marks: dict[str, Any] = {name: True for name, holds in ((_RELOADS, reloads), (_SECRET, secret)) if holds}
    marks |= {_AT_MOST: at_most} if at_most else {}
    return Field(default, description=description, json_schema_extra=marks or None)


def reloads(field: FieldInfo) -> bool:
    """Whether a running daemon takes a new value of this setting."""
    return isinstance(field.json_schema_extra, dict) and _RELOADS in field.json_schema_extra


def is_secret(field: FieldInfo) -> bool:
    """Whether the value of this setting must not be shown."""
    return isinstance(field.json_schema_extra, dict) and _SECRET in field.json_schema_extra


def limiting_key(field: FieldInfo) -> str:
    """The key of the setting that this one may not exceed; empty where there is none."""
    return str(field.json_schema_extra.get(_AT_MOST, "")) if isinstance(field.json_schema_extra, dict) else ""


def misfit(key: str, message: str) -> PydanticCustomError:
    """Make the error for a setting that does not fit another one; ``key`` is dotted, as in a file."""
    return PydanticCustomError("peerd_key", "{message}", {"key": key, "message": message})
