"""Message declaration, and the registry of type ids.

A message is a frozen `msgspec` struct with a fixed integer type id and an encoded-size cap::

    @message(0x0101, bytes_max=256)
    class Greeting(Message):
        "Says hello."

        text: Text

On the wire it is a msgpack array of its fields, in declaration order. **Only append**: type ids and field positions
are part of the protocol. A new field goes last and has a default; a decoder ignores trailing fields that it does not
know and fills missing ones from their defaults, so N and N-1 always understand each other.

Field types: ``int`` (or `U8`, `U16`, `U32`, `U64`), `Finite`, ``bool``, `Text`, ``str``, ``bytes``, `NodeId` (16
bytes), `PeerRef`, a `Struct`, ``tuple[X, ...]``, ``X | None``, and ``Annotated`` forms of these with a `msgspec.Meta`
or with `BytesMax`. A ``float`` has a limit on both sides, which refuses NaN and infinities as well. Decoded values are
validated strictly before any handler sees them.
"""

from __future__ import annotations

import ipaddress
import sys
import types
from collections.abc import Callable, Mapping
from functools import lru_cache
from operator import attrgetter
from typing import Annotated, Any, ClassVar, Final, TypeVar, dataclass_transform

import msgpack
import msgspec
from msgspec import Meta

from peerd import limits
from peerd.errors import Bug, ProtocolError
from peerd.ids import ID_BYTES, NodeId, format_id, id_from_bytes, id_to_bytes, short_id
from peerd.messages.fields import BytesMax as BytesMax, check_fields, check_of_texts

FLOAT_MAX: Final = sys.float_info.max
Finite = Annotated[float, Meta(ge=-FLOAT_MAX, le=FLOAT_MAX)]
"""Any number but NaN and the infinities."""
U8 = Annotated[int, Meta(ge=0, lt=1 << 8)]
U16 = Annotated[int, Meta(ge=0, lt=1 << 16)]
U32 = Annotated[int, Meta(ge=0, lt=1 << 32)]
U64 = Annotated[int, Meta(ge=0)]
"""Msgpack has no larger integers."""
Name = Annotated[str, BytesMax(limits.NAME_LENGTH_MAX)]
Text = Annotated[str, Meta(max_length=limits.DETAIL_LENGTH_MAX)]
INTERNED_MAX: Final = 1 << 14
"""How many references and ids that were decoded lately are kept, some 350 bytes each: messages name the same few peers
all the time."""
_ADDRESSES: Final[Mapping[int, type[ipaddress.IPv4Address | ipaddress.IPv6Address]]] = {
    4: ipaddress.IPv4Address,
    6: ipaddress.IPv6Address,
}
_HOST_NAME: Final = 0


@dataclass_transform(frozen_default=True, field_specifiers=(msgspec.field,))
class Struct(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Base of records that messages nest. They have no type id of their own."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if check := check_of_texts(cls):
            type.__setattr__(cls, "__post_init__", check)  # msgspec looks for it after this


class Message(Struct):
    """Base of every message; `message` fills in the class attributes."""

    TYPE_ID: ClassVar[int]
    BYTES_MAX: ClassVar[int]


M = TypeVar("M", bound=Message)
S = TypeVar("S", bound=Struct)

_registry: dict[int, type[Message]] = {}


def registered() -> Mapping[int, type[Message]]:
    """All known messages by type id, in id order."""
    return types.MappingProxyType(dict(sorted(_registry.items())))


def message_type(type_id: int) -> type[Message] | None:
    """The class of a type id; ``None`` for an id that this node does not know."""
    return _registry.get(type_id)


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
        check_fields(cls, _PACKED)
        cls.TYPE_ID = type_id
        cls.BYTES_MAX = bytes_max
        _registry[type_id] = cls
        return cls

    return declare


class PeerRef:
    """A node and where it listens. Two references to one node at two addresses differ: compare ids.

    Leaf sets are lists of them, so they are short on the wire, one byte string: id, port (2 bytes, big endian), how the
    host follows (4: IPv4, 6: IPv6, 0: UTF-8), host. With an IPv4 address that is 23 bytes. It is no dataclass, because
    msgspec has a form of its own for these.
    """

    __match_args__ = ("id", "host", "port")
    __slots__ = ("host", "id", "packed", "port")
    packed: bytes
    """Those bytes. They are made when somebody first asks for them, and kept."""

    def __init__(self, id: NodeId, host: str, port: int) -> None:
        self.id: Final = id
        self.host: Final = host
        self.port: Final = port

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if type(other) is not PeerRef:
            return NotImplemented
        return self.id == other.id and self.port == other.port and self.host == other.host

    def __hash__(self) -> int:
        return hash((self.id, self.host, self.port))

    def __getattr__(self, name: str) -> bytes:
        if name != "packed":
            raise AttributeError(name)
        self.packed = packed = _pack_peer(self)
        return packed

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


_PACKED: Final = frozenset((NodeId, PeerRef))
"""What travels as a byte string. Both directions run for every one of them, so each is a call of compiled code."""


def _unpack(kind: type, value: object) -> NodeId | PeerRef:
    if type(value) is not bytes:
        raise ValueError(f"{kind.__name__} is not a byte string")
    return id_from_bytes(value) if kind is NodeId else _unpack_peer(value)


class _Decoders(dict[type[Struct], Callable[[bytes | memoryview], Any]]):
    """Decoders by class, made when they are first asked for: a daemon knows many more messages than it gets."""

    def __missing__(self, cls: type[Struct]) -> Callable[[bytes | memoryview], Any]:
        self[cls] = decoder = msgspec.msgpack.Decoder(cls, dec_hook=_unpack_kept).decode
        return decoder


_decoders: Final = _Decoders()
_unpack_kept: Final[Callable[[type, Any], Any]] = lru_cache(INTERNED_MAX)(_unpack)
_encode: Final = msgspec.msgpack.Encoder(enc_hook=attrgetter("packed")).encode


def encode_struct(value: Struct) -> bytes:
    """The msgpack array of a record."""
    return _encode(value)


def decode_struct(cls: type[S], data: bytes | memoryview) -> S:
    """Decode and validate a record. For bytes that are not a valid one it raises `ProtocolError`, and nothing else."""
    try:
        decoded: S = _decoders[cls](data)
        return decoded
    except msgspec.ValidationError as error:
        raise ProtocolError("invalid", f"{cls.__name__}: {error}"[: limits.DETAIL_LENGTH_MAX]) from None
    # Besides its own errors: those of a text that is no UTF-8, and of arrays in arrays in arrays
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError("malformed", f"{cls.__name__}: {_first_line(error)}") from None


def encode_body(value: Message) -> bytes:
    """The msgpack body of a message. Raises `Bug` when it exceeds its own cap."""
    body = _encode(value)
    if len(body) > value.BYTES_MAX:
        raise Bug(f"{type(value).__name__} encodes to {len(body)} bytes, over its cap of {value.BYTES_MAX}")
    return body


def decode_body(cls: type[M], body: bytes | memoryview) -> M:
    """Decode and validate one body. For bytes that are not a valid one it raises `ProtocolError`, and nothing else."""
    if len(body) > cls.BYTES_MAX:
        raise ProtocolError("oversize", f"{cls.__name__} of {len(body)} bytes, cap {cls.BYTES_MAX}")
    return decode_struct(cls, body)


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
    except (ValueError, TypeError, RecursionError, OverflowError, msgpack.exceptions.UnpackException) as error:
        raise ProtocolError("malformed", _first_line(error)) from None


def _unique_pairs(pairs: list[tuple[object, object]]) -> dict[object, object]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ProtocolError("malformed", "duplicate map key")
    return result


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0][: limits.DETAIL_LENGTH_MAX]
