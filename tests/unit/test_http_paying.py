"""Work for clients is charged before it is done: who asks for too much waits, and nobody else does."""

from __future__ import annotations

import asyncio
from collections.abc import MutableMapping
from typing import Any

import pytest

from peerd.daemon.http.caller import STATE_KEY, Caller
from peerd.daemon.http.guard import REQUEST_BODY_BYTES_MAX, ROUTE_BODY_BYTES_MAX, RequestGuard
from peerd.daemon.http.paying import (
    FREE_BYTES,
    MARK_S,
    NAME_MARK_S,
    WORK,
    WORK_BURST_S,
    WORK_PER_S,
    new_work,
    pay_for,
    price_of_text,
)


def scope_of(user: int, work: object) -> dict[str, Any]:
    return {"type": "http", "state": {STATE_KEY: Caller("data_socket", user_id=user)}, WORK: work}


def waits(monkeypatch: pytest.MonkeyPatch, work: Any, payer: str) -> list[float]:
    """The pauses that are made from now on; each of them earns the payer what it is for."""
    paused: list[float] = []

    async def pause(duration_s: float) -> None:
        paused.append(duration_s)
        work.give_back(payer, asyncio.get_running_loop().time(), duration_s * WORK_PER_S)

    monkeypatch.setattr(asyncio, "sleep", pause)
    return paused


def test_who_has_used_up_its_share_waits_and_nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    work = new_work()
    paused = waits(monkeypatch, work, "user 1")

    async def ask() -> None:
        await pay_for(scope_of(1, work), WORK_BURST_S)
        assert not paused
        await pay_for(scope_of(2, work), 0.5)
        assert not paused, "another one's share was used"
        await pay_for(scope_of(1, work), 0.5)

    asyncio.run(ask())
    assert paused == [0.5 / WORK_PER_S]


def test_what_is_dearer_than_a_whole_share_is_done_all_the_same() -> None:
    asyncio.run(pay_for(scope_of(1, new_work()), 10 * WORK_BURST_S))


@pytest.mark.parametrize(
    ("bytes_max", "mark_s"), [(REQUEST_BODY_BYTES_MAX, NAME_MARK_S), (ROUTE_BODY_BYTES_MAX, MARK_S)]
)
@pytest.mark.parametrize("piece_bytes", [1024, 64 * 1024])
def test_a_body_is_charged_whatever_the_pieces_in_which_it_comes(
    piece_bytes: int, bytes_max: int, mark_s: float
) -> None:
    """And an item, which is no model, by what an item takes: its publisher is not to be held back."""
    body = b'{"a":[' + b"[0]," * 15_000 + b"[0]]}"
    charged: list[float] = []

    async def take(scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        work, take = scope[WORK], scope[WORK].take

        def noted(key: str, now: float, price_s: float) -> bool:
            charged.append(price_s)
            return bool(take(key, now, price_s))

        work.take = noted
        while (await receive()).get("more_body"):
            pass

    async def send(message: Any) -> None:
        raise AssertionError("it was refused")

    async def ask() -> None:
        pieces = [body[begin : begin + piece_bytes] for begin in range(0, len(body), piece_bytes)]

        async def receive() -> MutableMapping[str, Any]:
            piece = pieces.pop(0)
            return {"type": "http.request", "body": piece, "more_body": bool(pieces)}

        scope = {**scope_of(1, None), "method": "POST", "headers": [(b"content-length", str(len(body)).encode())]}
        await RequestGuard(take, bytes_max)(scope, receive, send)

    asyncio.run(ask())
    whole = price_of_text(body, mark_s)
    assert 0.9 * whole - price_of_text(body[: 2 * FREE_BYTES], mark_s) < sum(charged) <= 1.01 * whole
