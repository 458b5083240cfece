"""Converts messages to frames and back, with request/reply correlation."""

from __future__ import annotations

from typing import Final, TypeAlias

from peerd.errors import ProtocolError
from peerd.messages import Message, decode_body, encode_body, message_type
from peerd.wire.frames import CORRELATION, CORRELATION_BYTES, FLAG_REPLY, FLAG_REQUEST, Frame

Decoded: TypeAlias = tuple[Message, int | None, bool]
"""A validated message, the correlation number of a request or a reply, and whether it is a reply."""

_pack: Final = CORRELATION.pack
_unpack: Final = CORRELATION.unpack_from


def encode(message: Message) -> Frame:
    """Encode a one-way message."""
    return message.TYPE_ID, 0, encode_body(message)


def encode_request(message: Message, correlation: int) -> Frame:
    """Encode a request: its reply will carry the same correlation number."""
    return message.TYPE_ID, FLAG_REQUEST, _pack(correlation) + encode_body(message)


def encode_reply(message: Message, correlation: int) -> Frame:
    """Encode the reply to the request with that correlation number."""
    return message.TYPE_ID, FLAG_REPLY, _pack(correlation) + encode_body(message)


def decode(frame: Frame) -> Decoded | None:
    """Decode a frame; ``None`` for a type id that this node does not know (the caller counts and drops it).

    Raises `ProtocolError` for anything malformed.
    """
    type_id, flags, body = frame
    cls = message_type(type_id)
    if cls is None:
        return None
    if not flags:
        return decode_body(cls, body), None, False
    if len(body) < CORRELATION_BYTES:
        raise ProtocolError("malformed", "no room for the correlation number")
    return decode_body(cls, body[CORRELATION_BYTES:]), _unpack(body)[0], flags == FLAG_REPLY
