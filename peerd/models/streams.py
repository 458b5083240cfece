"""The lines of a stream that can be resumed, as they are sent to clients; docs/http-api.md describes them.

Every line has an ``id``, the position of a client that has read up to this line. It is opaque; a client that reconnects
sends it.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

STREAM_ID_LENGTH_MAX: Final = 128
StreamId = Annotated[str, Field(max_length=STREAM_ID_LENGTH_MAX)]


class StreamModel(BaseModel):
    """Base: frozen, and a newer daemon may add fields."""

    model_config = ConfigDict(frozen=True, extra="ignore", defer_build=True)


class Item(StreamModel):
    """One item; ``data`` is what the stream is about."""

    type: Literal["item"] = "item"
    id: StreamId
    data: Any


class Gap(StreamModel):
    """The place to resume from is not held any more; the stream goes on after the gap.

    ``reason`` is ``expired`` (the items ``first`` to ``last``, ``count`` of them, were let go meanwhile) or
    ``restarted`` (the stream began anew; nobody knows how many items are missing, so the numbers are null).
    """

    type: Literal["gap"] = "gap"
    id: StreamId
    reason: Literal["expired", "restarted"]
    first: int | None
    last: int | None
    count: int | None


class Dropped(StreamModel):
    """``count`` items are missing here. ``reason`` is ``slow`` where the client read too slowly: ``first`` to ``last``
    were let go before they could be sent. With any other they were lost before they came to this daemon; ``by`` says
    which node has told so."""

    type: Literal["dropped"] = "dropped"
    id: StreamId
    first: int
    last: int
    count: int
    reason: str = "slow"
    by: str = ""


class StreamHeartbeat(StreamModel):
    """The stream is alive and nothing was pushed for a while."""

    type: Literal["heartbeat"] = "heartbeat"
    id: StreamId


class End(StreamModel):
    """Nothing follows. ``is_final``: coming back is of no use; otherwise the client may resume from ``id``."""

    type: Literal["end"] = "end"
    id: StreamId
    reason: str
    is_final: bool


StreamLine = Item | Gap | Dropped | StreamHeartbeat | End
stream_lines: Final[TypeAdapter[StreamLine]] = TypeAdapter(
    Annotated[StreamLine, Field(discriminator="type")], config=ConfigDict(defer_build=True)
)
"""Validates one line."""


class IngestError(StreamModel):
    """A line of a request body, the first of which has the number 1, that was not taken or not surely.

    ``outcome``: what is ``refused`` would be refused again. What has ``failed`` has had no effect, and may be sent
    again. ``unknown``: it may have had its effect; who sends it again may have it twice.
    """

    line: int
    detail: str
    outcome: Literal["refused", "failed", "unknown"] = "refused"
    last: int | None = None
    """The last line of several in a row to which the same happened."""
    is_rest: bool = False
    """It is so with all lines from here on: they were not taken, or not even read."""


class IngestAnswer(StreamModel):
    """What became of a request body of JSON lines: of each line that `errors` does not name, that it was accepted."""

    accepted: int
    refused: int
    errors: list[IngestError]
    """All refusals and failures, in the order of their lines. Never empty where not everything was accepted."""
    is_complete: bool
    """Whether the body was read to its end."""
    detail: str = ""
    """Why the rest was not read, or what has failed, if there is something."""
    failed: int = 0
    """Lines that were read, and have no effect or an unknown one."""
