"""How one field type travels: what pydantic validates, and how it is encoded.

The machinery behind `peerd.messages`; nothing else needs it.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Callable
from functools import lru_cache
from typing import Annotated, Any, Final, Optional, TypeVar

from pydantic import AllowInfNan, PlainValidator, TypeAdapter

from peerd.errors import Bug
from peerd.ids import ID_BYTES, NodeId, id_from_bytes, id_to_bytes

Encoder = Callable[[Any], object]
Decoder = Callable[[Any], Any]

encoders: dict[type, Encoder] = {}
decoders: dict[type, Decoder] = {}

C = TypeVar("C")


def compile_dataclass(cls: type[C]) -> type[C]:
    """Build the encoder and the validating decoder of one dataclass, once, at declaration."""
    fields = dataclasses.fields(cls)  # type: ignore[arg-type]  # the decorator above made it a dataclass
    hints = typing.get_type_hints(cls, include_extras=True)
    wire = [_wire_type(hints[field.name]) for field in fields]
    names = [field.name for field in fields]
    encoders[cls] = _make_encoder(names, [encoder for _, encoder in wire])
    defaults = tuple(_default_of(field, encoder) for field, (_, encoder) in zip(fields, wire, strict=True))
    decoders[cls] = _make_decoder(cls, [kind for kind, _ in wire], defaults)
    return cls


_MISSING: Final = object()


def _default_of(field: dataclasses.Field[Any], encoder: Encoder | None) -> object:
    if field.default is dataclasses.MISSING:
        return _MISSING
    return field.default if encoder is None or field.default is None else _as_unpacked(encoder(field.default))


def _as_unpacked(value: object) -> object:
    """As it comes out of msgpack: arrays are tuples."""
    return tuple(map(_as_unpacked, value)) if isinstance(value, list | tuple) else value


def _make_encoder(names: list[str], encoders: list[Encoder | None]) -> Encoder:
    """A function written for the class, as `dataclasses` does it: every message that is sent pays for this."""
    items = [
        f"value.{name}" if encoder is None else f"encode_{number}(value.{name})"
        for number, (name, encoder) in enumerate(zip(names, encoders, strict=True))
    ]
    inner = {f"encode_{number}": encoder for number, encoder in enumerate(encoders)}
    compiled: Encoder = eval(f"lambda value: [{', '.join(items)}]", inner)
    return compiled


def _make_decoder(cls: type, kinds: list[Any], defaults: tuple[object, ...]) -> Decoder:
    count = len(kinds)
    if count == 0:
        return lambda values: cls()
    adapter: TypeAdapter[tuple[Any, ...]] = TypeAdapter(_subscript(tuple, *kinds))
    validate = adapter.validator.validate_python

    def decode(values: Any) -> Any:
        if type(values) is not tuple:
            raise ValueError(f"{cls.__name__} is not an array")
        if len(values) != count:
            values = values[:count] + defaults[len(values) :]
            if _MISSING in values:
                raise ValueError(f"{cls.__name__} misses fields")
        return cls(*validate(values, strict=True))

    return decode


def travel_as_bytes(cls: type[C], pack: Callable[[C], bytes], unpack: Callable[[bytes], C], values_max: int) -> None:
    """Let a record travel as one byte string, and keep the ``values_max`` that were packed, and unpacked, last.

    Equal byte strings decode to one object, which also saves memory. ``unpack`` raises `ValueError` for what is no such
    record; that is not kept.
    """
    recall = lru_cache(values_max)(unpack)

    def decode(value: object) -> C:
        if type(value) is not bytes:
            raise ValueError(f"{cls.__name__} is not a byte string")
        return recall(value)

    encoders[cls] = lru_cache(values_max)(pack)
    decoders[cls] = decode


def _wire_type(annotation: Any) -> tuple[Any, Encoder | None]:
    """(what pydantic validates, how to encode or ``None`` for "as it is") of one field type."""
    if annotation is NodeId:
        return Annotated[Any, PlainValidator(_decode_id)], id_to_bytes
    if annotation is float:
        return Annotated[float, AllowInfNan(False)], None
    if isinstance(annotation, type) and annotation in encoders:
        return Annotated[Any, PlainValidator(decoders[annotation])], encoders[annotation]
    origin = typing.get_origin(annotation)
    if origin is Annotated:
        inner, *constraints = typing.get_args(annotation)
        kind, encoder = _wire_type(inner)
        return _subscript(Annotated, kind, *constraints), encoder
    if origin is tuple:
        return _tuple_type(typing.get_args(annotation))
    if origin in (types.UnionType, typing.Union):
        return _optional_type(typing.get_args(annotation))
    if annotation in (int, bool, str, bytes):
        return annotation, None
    raise Bug(f"{annotation!r} is not a wire type; see peerd.messages")


def _tuple_type(arguments: tuple[Any, ...]) -> tuple[Any, Encoder | None]:
    if len(arguments) != 2 or arguments[1] is not Ellipsis:
        raise Bug("a tuple on the wire is tuple[X, ...]; use a struct for a fixed record")
    kind, encoder = _wire_type(arguments[0])
    if encoder is None:
        return _subscript(tuple, kind, ...), None
    return _subscript(tuple, kind, ...), lambda values: [encoder(value) for value in values]


def _optional_type(arguments: tuple[Any, ...]) -> tuple[Any, Encoder | None]:
    inner = [argument for argument in arguments if argument is not type(None)]
    if len(inner) != 1 or len(arguments) != 2:
        raise Bug("the only union on the wire is X | None")
    kind, encoder = _wire_type(inner[0])
    optional = _subscript(Optional, kind)
    if encoder is None:
        return optional, None
    return optional, lambda value: None if value is None else encoder(value)


def _decode_id(value: object) -> NodeId:
    if type(value) is not bytes:
        raise ValueError(f"an id is {ID_BYTES} bytes")
    return id_from_bytes(value)


def _subscript(form: Any, *arguments: Any) -> Any:
    """``form[arguments]`` for types known only at run time."""
    return form[arguments if len(arguments) > 1 else arguments[0]]
