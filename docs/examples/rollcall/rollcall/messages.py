"""What nodes say to each other. ONLY APPEND: type ids and field positions are for ever."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from peerd.messages import U32, Finite, Message, message
from rollcall.config import LABEL_LENGTH_MAX


@message(0x7F41, bytes_max=64)
class Call(Message):
    """To every node: who is there?"""

    number: U32


@message(0x7F42, bytes_max=512)
class Present(Message):
    """To the caller: I am, since ``uptime_s`` seconds, and this is what my operator calls me."""

    number: U32
    uptime_s: Finite
    label: Annotated[str, Meta(max_length=LABEL_LENGTH_MAX)] = ""
