"""A plugin for honest daemons whose records and broadcasts tests ask for over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, ClassVar, Final

from fastapi import APIRouter

from peerd.api import Plugin, RecordResult, handles
from peerd.front import Front
from peerd.ids import format_id, parse_id
from peerd.messages import U64, Message, PeerRef, message
from peerd.models.admin import AdminModel

RECORD_LIFE_S: Final = 600.0
HEARD_MAX: Final = 10_000
ANSWER_S: Final = 20.0
"""An operation that has not ended by then never does: its outcome is "silent"."""


@message(0x7F90, bytes_max=64)
class Word(Message):
    """What nodes tell everybody."""

    number: U64


class KeyBody(AdminModel):
    """Which record, and its value where one is written."""

    key: str
    value: str = ""


class NumberBody(AdminModel):
    """Which word to say."""

    number: int


class Outcome(AdminModel):
    """How an operation ended."""

    outcome: str
    value: str | None = None
    detail: str = ""


class Heard(AdminModel):
    """The words that a node has heard, in their order, by the id of who said them."""

    words: dict[str, list[int]]


class Bystander(Plugin):
    """Notes the words that it hears."""

    name: ClassVar[str] = "bystander"
    messages = (Word,)

    def __init__(self, config: Any = None) -> None:
        super().__init__(config)
        self.heard: list[tuple[str, int]] = []

    @handles(Word)
    def on_word(self, word: Word, source: PeerRef) -> None:
        """Note it, and who said it."""
        if len(self.heard) < HEARD_MAX:
            self.heard.append((format_id(source.id), word.number))


async def ended(begin: Callable[[Callable[[Outcome], None]], None]) -> Outcome:
    """Wait for the end of an operation that tells it to a callback."""
    future: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()

    def done(outcome: Outcome) -> None:
        if not future.done():
            future.set_result(outcome)

    begin(done)
    try:
        return await asyncio.wait_for(future, ANSWER_S)
    except TimeoutError:
        return Outcome(outcome="silent")


def of_record(result: RecordResult) -> Outcome:
    """The result of an operation on a record, for HTTP."""
    value = None if result.value is None else result.value.decode("latin-1")
    return Outcome(outcome=result.outcome.value, value=value, detail=result.detail)


class BystanderFront(Front):
    """The routes that tests call."""

    name: ClassVar[str] = "bystander"

    def router(self, service: Bystander) -> APIRouter:
        """Put and get a record; say a word to all nodes; tell what was heard."""
        routes, host = APIRouter(), service.host

        @routes.post("/bystander/put")
        async def put(body: KeyBody) -> Outcome:
            key, value = parse_id(body.key), body.value.encode("latin-1")
            return await ended(
                lambda done: host.records.put(
                    key, value, RECORD_LIFE_S, lambda result: done(of_record(result)), ack="replicated"
                )
            )

        @routes.post("/bystander/get")
        async def get(body: KeyBody) -> Outcome:
            key = parse_id(body.key)
            return await ended(lambda done: host.records.get(key, lambda result: done(of_record(result))))

        @routes.post("/bystander/say")
        async def say(body: NumberBody) -> Outcome:
            host.broadcast(Word(body.number))
            return Outcome(outcome="said")

        @routes.post("/bystander/heard")
        async def heard() -> Heard:
            words: dict[str, list[int]] = {}
            for origin, number in service.heard:
                words.setdefault(origin, []).append(number)
            return Heard(words=words)

        return routes
