"""The messages that travel on a bulk stream after its handshake. They have type ids 0x0040 to 0x004F.

Raw chunks have type id `CHUNK_TYPE_ID` and no message class: their body is the payload itself.
"""

from __future__ import annotations

import re
from typing import Annotated, Final

from msgspec import Meta

from peerd.limits import SWAP_TAG_BYTES_MAX
from peerd.messages import U64, Message, Name, message

CHUNK_TYPE_ID: Final = 0x0048
DIGEST_BYTES: Final = 16
CONTROL_BYTES_MAX: Final = 512
"""Cap of every control frame on a bulk stream; each message has its own, lower one."""

Tag = Annotated[bytes, Meta(max_length=SWAP_TAG_BYTES_MAX)]
Digest = Annotated[bytes, Meta(min_length=DIGEST_BYTES, max_length=DIGEST_BYTES)]
Reason = Annotated[str, Meta(pattern=r"\A[a-z0-9_]{1,48}\Z")]
"""A stable label. It appears in logs and metrics, so a peer may not send any text that it likes."""


@message(0x0040, bytes_max=256)
class SwapOffer(Message):
    """The initiator's first frame: for whom, about what, and how much it will send. `SwapAnswer` answers."""

    plugin: Name
    tag: Tag
    payload_bytes: U64
    padding_bytes: U64
    is_fetch: bool
    keeps: bool = False
    """Whether the connection stays for another offer, if both sides are done."""


@message(0x0041, bytes_max=128)
class SwapAnswer(Message):
    """The acceptor's first frame: how much it will send, or why it declines (then it closes)."""

    is_accepted: bool
    reason: Reason
    payload_bytes: U64
    padding_bytes: U64


@message(0x0042, bytes_max=64)
class SwapDigest(Message):
    """Either side, after its last chunk: XXH3 of all it sent. `SwapVerified` or `SwapCancelled` answers."""

    digest: Digest


@message(0x0043, bytes_max=16)
class SwapVerified(Message):
    """Either side: the value that you sent has the announced length and digest."""


@message(0x0044, bytes_max=64)
class SwapCancelled(Message):
    """Either side gives up and closes; ``reason`` says why."""

    reason: Reason


@message(0x0045, bytes_max=16)
class SwapPadding(Message):
    """Simulator only: so many bytes of padding follow. A daemon treats it as a protocol error."""

    size_bytes: U64


def reason_label(text: str) -> str:
    """``text`` as a `Reason`: lower case, other characters replaced by underscores, at most 48 long."""
    return re.sub(r"[^a-z0-9_]", "_", text.lower())[:48] or "unknown"
