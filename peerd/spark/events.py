"""The table of the daemons' own events: what ``peerd events`` shows, in the columns of the job's table of events."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from peerd.client import Client
from peerd.front import RingFeed, RingTable
from peerd.models.routes import EVENTS as ROUTE
from peerd.plugins import find_events
from peerd.telemetry.schema import columns_of

_TYPES: Final = {bool: "boolean", int: "bigint", float: "double", str: "string"}


async def _columns(client: Client, options: Mapping[str, str]) -> str:
    return ", ".join(f"`{name}` {_TYPES[kind]}" for name, kind in columns_of(find_events()).items())


async def _feed(client: Client, options: Mapping[str, str]) -> RingFeed:
    kinds = [kind.strip() for kind in options.get("kinds", "").split(",") if kind.strip()]
    return RingFeed(ROUTE.at(), {"kind": kinds})


EVENTS: Final = RingTable(
    "events",
    _columns,
    options=("kinds",),
    feed=_feed,
    is_each_daemons=True,
    is_numbered=True,
    pushed={"event": "kinds"},
)
"""Options: ``kinds``, only these, such as ``overlay.*``, with commas. A daemon holds its last thousand."""
