"""Many items that a command sends: no faster than is wanted, and a terminal shows how many have gone."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    from peerd.cli.terminal import Terminal

T = TypeVar("T")
SHOW_EVERY_S: Final = 0.2


async def paced(
    items: AsyncGenerator[T, None], rate: float, what: str, terminal: Terminal | None
) -> AsyncGenerator[T, None]:
    """The items, at most ``rate`` a second (0: as they come). A terminal shows from time to time how many have gone."""
    begun = shown = time.monotonic()
    count = 0
    async with aclosing(items):
        async for item in items:
            if rate and (wait_s := begun + count / rate - time.monotonic()) > 0:
                await asyncio.sleep(wait_s)
            yield item
            count, now = count + 1, time.monotonic()
            if terminal is not None and terminal.is_terminal and now - shown >= SHOW_EVERY_S:
                shown = now
                terminal.overwrite(f"{count:,} {what}, {count / (now - begun):,.0f} a second")
