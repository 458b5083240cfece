"""How fields travel: how each type is encoded, which values are plainly valid, and how pydantic checks all others.

For each declared class three functions are generated, as `dataclasses` does it, because they run for every message:
one builds it, one encodes it, and one decodes it. The decoder accepts what is plainly valid: a value of the declared
type, within its limits. All else goes to pydantic, which refuses it with a reason, or accepts it (a whole number where
a float belongs). So pydantic alone defines what is valid, and generated code must never accept more.

The encoder and the decoder of a class are generated when it is first sent or received: a daemon knows more than a
hundred classes, and at rest uses a dozen of them. What a class declares is checked when it is declared.

Others get what they need of it from `peerd.messages`.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Callable
from functools import cache, lru_cache
from typing import Annotated, Any, Final, NamedTuple, Optional, TypeVar

import annotated_types
from pydantic import AllowInfNan, GetCoreSchemaHandler, PlainValidator, TypeAdapter
from pydantic_core import CoreSchema, core_schema

from peerd.errors import Bug
from peerd.ids import ID_BYTES, NodeId, id_from_bytes

Encoder = Callable[[Any], object]
Decoder = Callable[[Any], Any]


class _GeneratedLater(dict[type, Callable[[Any], Any]]):
    """Functions by class. Those of a declared class come when they are first asked for."""

    def __missing__(self, cls: type) -> Callable[[Any], Any]:
        if cls not in _declared:
            raise KeyError(cls)
        _generate(cls)
        return self[cls]


NOT_SENT: Final = {"is_sent": False}
"""Metadata of a field, one of the last of its class, that only this node keeps. It needs a default."""
_declared: Final[set[type]] = set()
encoders: Final = _GeneratedLater()
decoders: Final = _GeneratedLater()
judges: Final = _GeneratedLater()
"""By class, the pydantic decoder that has the last word; tests compare generated decoders with it."""

C = TypeVar("C")


@dataclasses.dataclass(frozen=True)
class BytesMax:
    """A limit for texts: the most bytes that one has in UTF-8.

    `annotated_types.MaxLen` counts characters, of which each may have four bytes, while the caps of messages are bytes.
    """

    most: int

    def check(self, text: str) -> str:
        """Return the text. Raises `ValueError` if it is longer."""
        if len(text.encode()) > self.most:
            raise ValueError(f"a text of more than {self.most} bytes")
        return text

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self.check, handler(source))


AS_IT_IS: Final = "{v}"


class _Wire(NamedTuple):
    """How one field type travels. The expressions are Python's.

    ``kind`` is what pydantic validates. ``packed`` makes what msgpack gets of the field ``{v}``. With ``{v}`` for what
    comes off the wire, ``check`` is true only for what is valid; ``value`` makes the field of it, and may raise
    `ValueError` or `TypeError` for what is not valid.
    """

    kind: Any
    packed: str
    check: str
    value: str = AS_IT_IS


class _Names:
    """The names that generated code refers to. A plain dict, because looking names up in another mapping is slow."""

    def __init__(self, *, are_for_a_check: bool = False) -> None:
        self.known: dict[str, Any] = {}
        self.are_for_a_check = are_for_a_check
        """Whether no code will be generated with them."""

    def of(self, value: object) -> str:
        """Return a name for an object."""
        name = f"_{len(self.known)}"
        self.known[name] = value
        return name


def compile_dataclass(cls: type[C]) -> type[C]:
    """Take one dataclass on when it is declared. Raises `Bug` for a field of a type that does not travel."""
    _wire_types(cls, _Names(are_for_a_check=True))
    _quicken_init(cls, _all_fields(cls))
    _declared.add(cls)
    return cls


def _all_fields(cls: type) -> tuple[dataclasses.Field[Any], ...]:
    return dataclasses.fields(cls)  # the decorators of `peerd.messages` have made it a dataclass


def sent_fields(cls: type) -> tuple[dataclasses.Field[Any], ...]:
    """Those that travel."""
    return tuple(field for field in _all_fields(cls) if field.metadata != NOT_SENT)


def _wire_types(cls: type, names: _Names) -> list[_Wire]:
    hints = typing.get_type_hints(cls, include_extras=True)
    return [_wire_type(hints[field.name], names) for field in sent_fields(cls)]


def _generate(cls: type) -> None:
    """Generate the encoder and the decoders of one declared class."""
    names = _Names()
    fields, wire = sent_fields(cls), _wire_types(cls, names)
    items = [each.packed.format(v=f"value.{field.name}") for field, each in zip(fields, wire, strict=True)]
    encoders[cls] = _function_of("value", f"[{', '.join(items)}]", names)
    defaults = tuple(_default_of(field, each.packed, names) for field, each in zip(fields, wire, strict=True))
    judges[cls] = _make_judge(cls, [each.kind for each in wire], defaults)
    decoders[cls] = _make_decoder(cls, fields, wire, names, judges[cls])


def _quicken_init(cls: type, fields: tuple[dataclasses.Field[Any], ...]) -> None:
    """Fill the slots directly: a frozen dataclass goes through ``object.__setattr__``, which takes twice as long."""
    if not fields or hasattr(cls, "__post_init__"):
        return
    names = _Names()
    parameters: list[str] = []
    for field in fields:
        is_given = field.default is dataclasses.MISSING
        parameters.append(field.name if is_given else f"{field.name}={names.of(field.default)}")
    steps = [f"{names.of(getattr(cls, field.name).__set__)}(self, {field.name})" for field in fields]
    exec(f"def __init__(self, {', '.join(parameters)}):\n    {'; '.join(steps)}", names.known)
    init = names.known["__init__"]
    init.__qualname__ = f"{cls.__qualname__}.__init__"
    type.__setattr__(cls, "__init__", init)


_MISSING: Final = object()


def _default_of(field: dataclasses.Field[Any], packed: str, names: _Names) -> object:
    if field.default is dataclasses.MISSING:
        return _MISSING
    return _as_unpacked(_function_of("v", packed.format(v="v"), names)(field.default))


def _as_unpacked(value: object) -> object:
    """Return the value as msgpack would decode it: arrays are tuples."""
    return tuple(map(_as_unpacked, value)) if isinstance(value, list | tuple) else value


def _function_of(variable: str, expression: str, names: _Names) -> Encoder:
    """Generate a function of one variable for one class; it runs for every message that is sent."""
    compiled: Encoder = eval(f"lambda {variable}: {expression}", names.known)
    return compiled


def _make_judge(cls: type, kinds: list[Any], defaults: tuple[object, ...]) -> Decoder:
    """Return the decoder that uses pydantic; it is built when it is first called."""
    count = len(kinds)
    if count == 0:
        return lambda values: cls()

    @cache
    def validator() -> Callable[..., tuple[Any, ...]]:
        adapter: TypeAdapter[tuple[Any, ...]] = TypeAdapter(_subscript(tuple, *kinds))
        return adapter.validator.validate_python

    def judge(values: Any) -> Any:
        if type(values) is not tuple:
            raise ValueError(f"{cls.__name__} is not an array")
        if len(values) != count:
            values = values[:count] + defaults[len(values) :]
            if _MISSING in values:
                raise ValueError(f"{cls.__name__} misses fields")
        return cls(*validator()(values, strict=True))

    return judge


def _make_decoder(
    cls: type, fields: tuple[dataclasses.Field[Any], ...], wire: list[_Wire], names: _Names, judge: Decoder
) -> Decoder:
    """The decoder of what is plainly right; all else goes to ``judge``."""
    count = len(wire)
    if count == 0:
        return judge
    variables = [f"v{number}" for number in range(count)]
    checks = [each.check.format(v=variable) for each, variable in zip(wire, variables, strict=True)]
    values = [each.value.format(v=variable) for each, variable in zip(wire, variables, strict=True)]
    local = {field.name: names.of(field.default) for field in _all_fields(cls) if field.metadata == NOT_SENT}
    making = _making(cls, {**{field.name: value for field, value in zip(fields, values, strict=True)}, **local}, names)
    code = f"""
def decode(values):
    if type(values) is tuple and len(values) == {count}:
        {", ".join(variables)}, = values
        try:
            if {" and ".join(checks)}:
                {making}
        except (TypeError, ValueError):
            pass
    return judge(values)
"""
    names.known |= {"cls": cls, "judge": judge, "inf": float("inf")}
    exec(code, names.known)
    decoder: Decoder = names.known["decode"]
    return decoder


def _making(cls: type, values: dict[str, str], names: _Names) -> str:
    """A line that returns an object with these values.

    To call the class takes as long as all else that a decoder does. So an object of another class is filled, one that
    has the same slots and is not frozen, and then told that it is of the real class.
    """
    blank = type(cls.__name__, cls.__bases__, {"__slots__": vars(cls)["__slots__"]})
    if hasattr(cls, "__post_init__") or any("__setattr__" in vars(base) for base in blank.__mro__[:-1]):
        return f"return cls({', '.join(values.values())})"
    steps = [f"made.{name} = {value}" for name, value in values.items()]
    return "; ".join([f"made = {names.of(blank)}()", *steps, "made.__class__ = cls", "return made"])


class Packed:
    """Base of records that travel as one byte string, and remember it."""

    __slots__ = ("_packed",)
    _packed: bytes


P = TypeVar("P", bound=Packed)


def travel_as_bytes(cls: type[P], pack: Callable[[P], bytes], unpack: Callable[[bytes], P], values_max: int) -> None:
    """Let a record travel as one byte string, which it remembers, and keep the ``values_max`` that came last.

    Equal byte strings decode to one object, which also saves memory. ``unpack`` raises `ValueError` for what is no such
    record; that is not kept.
    """

    def encode(value: P) -> bytes:
        try:
            return value._packed
        except AttributeError:  # this record has not been packed before
            packed = pack(value)
            object.__setattr__(value, "_packed", packed)
            return packed

    @lru_cache(values_max)
    def decode(value: object) -> P:
        if type(value) is not bytes:
            raise ValueError(f"{cls.__name__} is not a byte string")
        return unpack(value)

    def decode_any(value: object) -> P:
        if type(value) is not bytes:  # a map, for example, is not hashable
            raise ValueError(f"{cls.__name__} is not a byte string")
        return decode(value)

    _declared.add(cls)
    encoders[cls] = encode
    decoders[cls] = decode_any
    _recalls[cls] = decode


_recalls: dict[type, Decoder] = {}
"""Decoders of byte strings by class, for generated code that handles their `TypeError`."""


def _wire_type(annotation: Any, names: _Names) -> _Wire:
    if annotation is NodeId:
        check = f"type({{v}}) is bytes and len({{v}}) == {ID_BYTES}"
        value = f"{names.of(int.from_bytes)}({{v}}, 'big')"
        return _Wire(Annotated[Any, PlainValidator(_decode_id)], f"{{v}}.to_bytes({ID_BYTES}, 'big')", check, value)
    if annotation is float:
        return _Wire(Annotated[float, AllowInfNan(False)], AS_IT_IS, "type({v}) is float and -inf < {v} < inf")
    if isinstance(annotation, type) and annotation in _declared:
        if names.are_for_a_check:  # then the functions of the inner class need not be generated yet
            return _Wire(Any, AS_IT_IS, "True")
        decoder = _recalls.get(annotation) or decoders[annotation]
        kind = Annotated[Any, PlainValidator(decoders[annotation])]
        return _Wire(kind, f"{names.of(encoders[annotation])}({{v}})", "True", f"{names.of(decoder)}({{v}})")
    origin = typing.get_origin(annotation)
    if origin is Annotated:
        inner, *constraints = typing.get_args(annotation)
        return _constrained(_wire_type(inner, names), constraints)
    if origin is tuple:
        return _tuple_type(typing.get_args(annotation), names)
    if origin in (types.UnionType, typing.Union):
        return _optional_type(typing.get_args(annotation), names)
    if annotation in (int, bool, str, bytes):
        return _Wire(annotation, AS_IT_IS, f"type({{v}}) is {annotation.__name__}")
    raise Bug(f"{annotation!r} is not a wire type; see peerd.messages")


def _constrained(wire: _Wire, constraints: list[Any]) -> _Wire:
    checks = [wire.check]
    for rule in constraints:
        match rule:
            case annotated_types.Ge(int() | float() as bound):
                checks.append(f"{{v}} >= {bound!r}")
            case annotated_types.Gt(int() | float() as bound):
                checks.append(f"{{v}} > {bound!r}")
            case annotated_types.Le(int() | float() as bound):
                checks.append(f"{{v}} <= {bound!r}")
            case annotated_types.Lt(int() | float() as bound):
                checks.append(f"{{v}} < {bound!r}")
            case annotated_types.MinLen(length):
                checks.append(f"len({{v}}) >= {length}")
            case annotated_types.MaxLen(length):
                checks.append(f"len({{v}}) <= {length}")
            case BytesMax(most):
                checks.append(f"len({{v}}) <= {most} and ({{v}}.isascii() or len({{v}}.encode()) <= {most})")
            case _:
                checks.append("False")  # never plainly valid: pydantic decides
    kind = _subscript(Annotated, wire.kind, *constraints)
    return wire._replace(kind=kind, check=" and ".join(checks))


def _tuple_type(arguments: tuple[Any, ...], names: _Names) -> _Wire:
    if len(arguments) != 2 or arguments[1] is not Ellipsis:
        raise Bug("a tuple on the wire is tuple[X, ...]; use a struct for a fixed record")
    item = _wire_type(arguments[0], names)
    kind = _subscript(tuple, item.kind, ...)
    check = "type({v}) is tuple"
    if item.check != "True":
        check += f" and not [x for x in {{v}} if not ({item.check.format(v='x')})]"
    function = item.value.removesuffix("({v})")
    if item.value == AS_IT_IS:
        value = AS_IT_IS
    elif function.isidentifier():
        value = f"tuple(map({function}, {{v}}))"
    else:
        value = f"tuple([{item.value.format(v='x')} for x in {{v}}])"
    return _Wire(kind, _pack_each(arguments[0], item.packed, names), check, value)


def _pack_each(item: Any, packed: str, names: _Names) -> str:
    if packed == AS_IT_IS:
        return AS_IT_IS
    if not (isinstance(item, type) and issubclass(item, Packed)):
        return f"[{packed.format(v='x')} for x in {{v}}]"
    encoder = encoders[item]

    def encode_packed(values: tuple[Packed, ...]) -> list[object]:
        try:  # leaf sets are long, and their members mostly known
            return [value._packed for value in values]
        except AttributeError:
            return list(map(encoder, values))

    return f"{names.of(encode_packed)}({{v}})"


def _optional_type(arguments: tuple[Any, ...], names: _Names) -> _Wire:
    inner = [argument for argument in arguments if argument is not type(None)]
    if len(inner) != 1 or len(arguments) != 2:
        raise Bug("the only union on the wire is X | None")
    item = _wire_type(inner[0], names)
    packed, value = (
        expression if expression == AS_IT_IS else f"(None if {{v}} is None else {expression})"
        for expression in (item.packed, item.value)
    )
    return _Wire(_subscript(Optional, item.kind), packed, f"({{v}} is None or {item.check})", value)


def _decode_id(value: object) -> NodeId:
    if type(value) is not bytes:
        raise ValueError(f"an id is {ID_BYTES} bytes")
    return id_from_bytes(value)


def _subscript(form: Any, *arguments: Any) -> Any:
    """``form[arguments]`` for types known only at run time."""
    return form[arguments if len(arguments) > 1 else arguments[0]]
