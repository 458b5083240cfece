"""A WebSocket that follows a feed."""

from __future__ import annotations

import json
from typing import Any

from websockets.asyncio.client import ClientConnection


async def next_entry(socket: ClientConnection) -> dict[str, Any]:
    """The next line that is no heartbeat: one comes after each silence, and a busy machine is silent at any time."""
    while True:
        entry: dict[str, Any] = json.loads(await socket.recv())
        if entry["type"] != "heartbeat":
            return entry
