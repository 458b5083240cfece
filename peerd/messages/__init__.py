"""Message declaration, and the registry of type ids.

A message is a frozen, slotted dataclass with a fixed integer type id and an encoded-size cap::

    @message(0x0101, bytes_max=256)
    class Greeting(Message):
        "Says hello."

        text: Text

On the wire it is a msgpack array of its fields, in declaration order. **Only append**: type ids and field positions
are part of the protocol. A new field goes last and has a default; a decoder ignores trailing fields that it does not
know and fills missing ones from their defaults, so N and N-1 always understand each other.

Field types: ``int`` (or `U8`, `U16`, `U32`, `U64`), ``float`` (NaN and infinities refused), ``bool``, `Text`,
``str``, ``bytes``, `NodeId` (16 bytes), `PeerRef`, a `@struct` class, ``tuple[X, ...]``, ``X | None``, and
``Annotated`` forms of these with `annotated_types` constraints or `BytesMax`. A field at the end with the metadata
`NOT_SENT` stays on this node. Decoded values are validated strictly, by
pydantic, before any handler.
"""

from __future__ import annotations

import dataclasses
import ipaddress
import types
import typing
from collections.abc import Callable, Mapping
from typing import Annotated, ClassVar, TypeVar, dataclass_transform

import annotated_types
import msgpack
from pydantic import ValidationError

from peerd import limits
from peerd.errors import Bug, ProtocolError
from peerd.ids import ID_BYTES, NodeId, format_id, id_from_bytes, id_to_bytes, short_id
from peerd.invalid import first_reason
from peerd.messages.field_types import (
    NOT_SENT as NOT_SENT,
    BytesMax as BytesMax,
    Packed,
    compile_dataclass,
    decoders,
    encoders,
    sent_fields as sent_fields,
    travel_as_bytes,
)

U8 = Annotated[int, annotated_types.Ge(0), annotated_types.Lt(1 << 8)]
U16 = Annotated[int, annotated_types.Ge(0), annotated_types.Lt(1 << 16)]
U32 = Annotated[int, annotated_types.Ge(0), annotated_types.Lt(1 << 32)]
U64 = Annotated[int, annotated_types.Ge(0), annotated_types.Lt(1 << 64)]
Port = Annotated[int, annotated_types.Ge(1), annotated_types.Lt(1 << 16)]
Name = Annotated[str, BytesMax(limits.NAME_LENGTH_MAX)]
Text = Annotated[str, annotated_types.MaxLen(limits.DETAIL_LENGTH_MAX)]
PEERS_INTERNED_MAX: typing.Final = 1 << 14
"""How many references decoded lately are kept, about 350 bytes each: messages name the same few peers all the time."""
_ADDRESSES: typing.Final[Mapping[int, type[ipaddress.IPv4Address | ipaddress.IPv6Address]]] = {
    4: ipaddress.IPv4Address,
    6: ipaddress.IPv6Address,
}
_HOST_NAME: typing.Final = 0


class Message:
    """Base of every message; `message` fills in the class attributes."""

    __slots__ = ()
    TYPE_ID: ClassVar[int]
    BYTES_MAX: ClassVar[int]


M = TypeVar("M", bound=Message)
S = TypeVar("S")

_registry: dict[int, type[Message]] = {}


def registered() -> Mapping[int, type[Message]]:
    """All known messages by type id, in id order."""
    return types.MappingProxyType(dict(sorted(_registry.items())))


def message_type(type_id: int) -> type[Message] | None:
    """The class of a type id; ``None`` for an id that this node does not know."""
    return _registry.get(type_id)


@dataclass_transform(frozen_default=True)
def struct(cls: type[S]) -> type[S]:
    """Declare a record that messages nest. It has no type id of its own."""
    return compile_dataclass(dataclasses.dataclass(frozen=True, slots=True)(cls))


@dataclass_transform(frozen_default=True)
def message(type_id: int, *, bytes_max: int = limits.CONTROL_FRAME_BYTES_MAX) -> Callable[[type[M]], type[M]]:
    """Declare a message. ``bytes_max`` caps its encoded body; both ends enforce it.

    Raises `Bug` for a type id that is taken or out of range.
    """

    def declare(cls: type[M]) -> type[M]:
        if not 0 < type_id < 1 << 16:
            raise Bug(f"{cls.__name__}: type id {type_id:#x} does not fit 16 bits")
        known = _registry.get(type_id)
        if known is not None and (known.__module__, known.__name__) != (cls.__module__, cls.__name__):
            raise Bug(f"type id {type_id:#06x} is {known.__name__}'s; {cls.__name__} needs one of its own")
        declared = compile_dataclass(dataclasses.dataclass(frozen=True, slots=True)(cls))
        declared.TYPE_ID = type_id
        declared.BYTES_MAX = bytes_max
        _registry[type_id] = declared
        return declared

    return declare


@dataclasses.dataclass(frozen=True, slots=True)
class PeerRef(Packed):
    """A node and where it listens. Two references to one node at two addresses differ: compare ids.

    Leaf sets are lists of them, so they are short on the wire, one byte string: id, port (2 bytes, big endian), how the
    host follows (4: IPv4, 6: IPv6, 0: UTF-8), host. With an IPv4 address that is 23 bytes.
    """

    id: NodeId
    host: str
    port: int

    @property
    def address(self) -> str:
        """``host:port``, with brackets round an IPv6 host."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def __str__(self) -> str:
        return f"{short_id(self.id)}@{self.address}"

    def __repr__(self) -> str:
        return f"PeerRef({format_id(self.id)}, {self.address})"


def _pack_peer(peer: PeerRef) -> bytes:
    kind, host = _HOST_NAME, peer.host.encode()
    try:
        address = ipaddress.ip_address(peer.host)
    except ValueError:
        pass
    else:
        if str(_ADDRESSES[address.version](address.packed)) == peer.host:  # only if its bytes give the same text again
            kind, host = address.version, address.packed
    return b"%b%b%c%b" % (id_to_bytes(peer.id), peer.port.to_bytes(2, "big"), kind, host)


def _unpack_peer(data: bytes) -> PeerRef:
    node_id, port = data[:ID_BYTES], int.from_bytes(data[ID_BYTES : ID_BYTES + 2], "big")
    kind, rest = data[ID_BYTES + 2 : ID_BYTES + 3], data[ID_BYTES + 3 :]
    if not rest or not port:
        raise ValueError("a peer is an id, a port from 1 to 65535, a kind of host, and a host")
    if kind[0] == _HOST_NAME:
        host = rest.decode()
    elif kind[0] in _ADDRESSES:
        host = str(_ADDRESSES[kind[0]](rest))
    else:
        raise ValueError(f"a host of unknown kind {kind[0]}")
    if len(rest) > limits.HOST_LENGTH_MAX:
        raise ValueError(f"a host of more than {limits.HOST_LENGTH_MAX} bytes")
    return PeerRef(id_from_bytes(node_id), host, port)


travel_as_bytes(PeerRef, _pack_peer, _unpack_peer, PEERS_INTERNED_MAX)


def encode_body(value: Message) -> bytes:
    """The msgpack body of a message. Raises `Bug` when it exceeds its own cap."""
    body: bytes = _pack(encoders[value.__class__](value))
    if len(body) > value.BYTES_MAX:
        raise Bug(f"{type(value).__name__} encodes to {len(body)} bytes, over its cap of {value.BYTES_MAX}")
    return body


def decode_body(cls: type[M], body: bytes | memoryview) -> M:
    """Decode and validate one body. For bytes that are not a valid one it raises `ProtocolError`, and nothing else."""
    if len(body) > cls.BYTES_MAX:
        raise ProtocolError("oversize", f"{cls.__name__} of {len(body)} bytes, cap {cls.BYTES_MAX}")
    values = unpack(body)
    if type(values) is not tuple:
        raise ProtocolError("malformed", f"{cls.__name__} is not an array")
    try:
        decoded: M = decoders[cls](values)
        return decoded
    except (ValidationError, ValueError, RecursionError) as error:
        raise ProtocolError("invalid", f"{cls.__name__}: {_first_line(error)}") from None


def unpack(data: bytes | memoryview, *, array_max: int = limits.ARRAY_LENGTH_MAX) -> object:
    """Decode strict msgpack: no extension types, no duplicate keys, string keys only; arrays become tuples.

    Raises `ProtocolError`. One-shot on purpose: an ``Unpacker`` that raised must not be used again.
    """
    try:
        return msgpack.unpackb(
            data,
            raw=False,
            use_list=False,
            strict_map_key=True,
            max_array_len=array_max,
            max_map_len=limits.MAP_LENGTH_MAX,
            max_ext_len=0,
            object_pairs_hook=_unique_pairs,
        )
    except ProtocolError:
        raise
    # msgpack's errors have no common base: ValueError covers format, extra data, limits, UTF-8 and stack depth
    except (
        ValueError,
        TypeError,
        RecursionError,
        OverflowError,
        msgpack.exceptions.UnpackException,
    ) as error:
        raise ProtocolError("malformed", _first_line(error)) from None


def _unique_pairs(pairs: list[tuple[object, object]]) -> dict[object, object]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ProtocolError("malformed", "duplicate map key")
    return result


def _first_line(error: Exception) -> str:
    if isinstance(error, ValidationError):
        return f"field {first_reason(error, shows_value=False)}"[: limits.DETAIL_LENGTH_MAX]
    return f"{type(error).__name__}: {error}".splitlines()[0][: limits.DETAIL_LENGTH_MAX]


# Used in the loop's thread only, like everything that sends: one packer keeps its buffer from message to message.
_pack = msgpack.Packer(use_bin_type=True, autoreset=True).pack
