"""Work for clients is paid for before it is done: charged, in seconds of processor, to the token, user or address.

Who asks for more than its share waits, and TCP holds it back; nobody else does. Charged are large bodies, by what is in
them, and what a route knows to be dear, such as a query that has to be compiled. `python -m tests.fuzz.dearest` prints
what the dearest requests take.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final

from starlette.requests import HTTPConnection

from peerd.daemon.http.access_book import AccessToken
from peerd.daemon.http.caller import host_name
from peerd.daemon.http.gate import TOKEN_KEY
from peerd.lib.admission import Admission
from peerd.limits import KIB

WORK: Final = "peerd.work"
"""Key of the ASGI scope: the listener's `Admission`, which `RequestGuard` keeps."""
WORK_PER_S: Final = 0.5
WORK_BURST_S: Final = 4.0
"""For one client: half a processor in the long run, and so many seconds of it at once."""
FREE_BYTES: Final = 4 * KIB
"""A body or line that is no longer is not charged: it takes little more than the request itself."""
BYTE_S: Final = 10e-9
MARK_S: Final = 0.4e-6
"""Seconds for each byte of JSON or XML, and for each character that separates or opens something: what the dearest
bodies take. With several times as much, who publishes documents of some KiB quickly would be held back."""
NAME_MARK_S: Final = 3e-6
"""The same for a body that a model is made of: each name that the model does not have is an error of its own."""
MARKS: Final = (b",", b":", b"[", b"{", b"<")
TURN_S: Final = 0.005
"""So long is worked on one request before other work of the event loop gets its turn."""


def new_work() -> Admission[str]:
    """The work of all clients of one listener."""
    return Admission(WORK_PER_S, WORK_BURST_S)


def price_of_text(text: bytes, mark_s: float = MARK_S) -> float:
    """Seconds of processor to read a text, at most. ``mark_s``: for each mark; `NAME_MARK_S` where a model is made."""
    return BYTE_S * len(text) + mark_s * sum(map(text.count, MARKS))


async def pay(connection: HTTPConnection, price_s: float) -> None:
    """Wait until whoever asks may have so much done."""
    await pay_for(connection.scope, price_s)


async def pay_for(scope: Mapping[str, Any], price_s: float) -> None:
    """The same, for a request's ASGI scope; outside a listener nobody pays."""
    work, price_s = scope.get(WORK), min(price_s, WORK_BURST_S)
    if not isinstance(work, Admission) or not price_s:
        return
    payer, loop = _payer(scope), asyncio.get_running_loop()
    while not work.take(payer, loop.time(), price_s):  # noqa: ASYNC110  # time alone makes it affordable
        await asyncio.sleep(price_s / WORK_PER_S)


def _payer(scope: Mapping[str, Any]) -> str:
    token = scope.get("state", {}).get(TOKEN_KEY)
    return f"token {token.name}" if isinstance(token, AccessToken) else host_name(scope)


class Turns:
    """For a request of many pieces of work: between them others have their turn, `TURN_S` after they last had it."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._begun_at = self._loop.time()

    async def next(self) -> None:
        """To be awaited before each piece."""
        if self._loop.time() - self._begun_at >= TURN_S:
            await asyncio.sleep(0)
            self._begun_at = self._loop.time()
