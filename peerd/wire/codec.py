"""Converts messages to frames and back, with request/reply correlation."""

from __future__ import annotations

from typing import NamedTuple

from peerd.errors import ProtocolError
from peerd.messages import Message, decode_body, encode_body, message_type
from peerd.wire.frames import CORRELATION, FLAG_REPLY, FLAG_REQUEST, Frame


class Decoded(NamedTuple):
    """A validated message; ``correlation`` is set on requests and replies."""

    message: Message
    correlation: int | None
    is_reply: bool


def encode(message: Message) -> Frame:
    """Encode a one-way message."""
    return Frame(message.TYPE_ID, 0, encode_body(message))


def encode_request(message: Message, correlation: int) -> Frame:
    """Encode a request: its reply will carry the same correlation number."""
    return Frame(message.TYPE_ID, FLAG_REQUEST, CORRELATION.pack(correlation) + encode_body(message))


def encode_reply(message: Message, correlation: int) -> Frame:
    """Encode the reply to the request with that correlation number."""
    return Frame(message.TYPE_ID, FLAG_REPLY, CORRELATION.pack(correlation) + encode_body(message))


def decode(frame: Frame) -> Decoded | None:
    """Decode a frame; ``None`` for a type id that this node does not know (the caller counts and drops it).

    Raises `ProtocolError` for anything malformed.
    """
    cls = message_type(frame.type_id)
    if cls is None:
        return None
    _, flags, body = frame
    if not flags:
        return Decoded(decode_body(cls, body), None, False)
    if len(body) < CORRELATION.size:
        raise ProtocolError("malformed", "no room for the correlation number")
    (correlation,) = CORRELATION.unpack_from(body)
    return Decoded(decode_body(cls, body[CORRELATION.size :]), correlation, flags == FLAG_REPLY)
