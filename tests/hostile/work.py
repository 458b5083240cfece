"""What honest users do all the time while a member attacks, and whether what they are told is right.

Each node has one record in a file, whose number is a power of two of its own: the digits of a sum name the nodes whose
data is in it. Keys of records and lookups are such that an honest node is the root, also without the attacker.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence, Set
from contextlib import aclosing, asynccontextmanager
from statistics import median
from typing import Final, TypeVar

from peerd.client import Client
from peerd.errors import PeerdError, Unavailable
from peerd.ids import NodeId, closest, format_id, is_closer, parse_id
from peerd.models.routes import HttpRoute
from protocols.aggregation.answer import Answer
from protocols.aggregation.front.client import AggregationClient
from tests.hostile.bystander import Heard, KeyBody, NumberBody, Outcome

QUERY: Final = "sum(bytes)"
DEADLINE_S: Final = 5.0
PAUSE_S: Final = 0.05
PATIENCE_S: Final = 150.0
ENOUGH: Final = {"lookup": 20, "answer": 2, "record": 6, "word": 6}
"""So many of each are judged in a phase at least."""
LOOKUPS_TIMES: Final = 2.0
"""Lookups may take so many times as long under attack as in the same run before it."""
LOOKUP_NOISE_S: Final = 0.3
"""On a machine that several suites share, the median of a handful of lookups differs by so much of itself."""


Asked = TypeVar("Asked", Outcome, Heard)


class Work:
    """The users of honest nodes. ``wrong`` has a sentence for each thing that nobody may be told."""

    def __init__(
        self, clients: Sequence[Client], ids: Sequence[NodeId], guests: Set[NodeId], words: Iterator[int]
    ) -> None:
        self._clients = clients
        self._ids = ids
        self._guests = guests
        self._rng = random.Random(1)
        self._over = asyncio.Event()
        self._moved = asyncio.Event()
        self.done: Counter[str] = Counter()
        self.outcomes: Counter[str] = Counter()
        self.lookup_s: list[float] = []
        self.calm_lookup_s = 0.0
        self.phases = 0
        """How often there was `enough`; the first time without an attack."""
        self.wrong: list[str] = []
        self.rejected: set[NodeId] = set()
        """Whose results requesters have rejected, by the word of the answers."""
        self.written: dict[str, str] = {}
        """Value of each record that is known to be written."""
        self._words = words
        self._said = 0
        """The last word; no two of a ring are the same."""

    # Running

    @asynccontextmanager
    async def going_on(self) -> AsyncIterator[Work]:
        """Inside, everything is done again and again; at first without an attack, to have something to compare."""
        async with asyncio.TaskGroup() as tasks:
            for step in (self._lookup, self._aggregate, self._record, self._word):
                tasks.create_task(self._repeat(step))
            try:
                await self.enough()
                self.calm_lookup_s = median(self.lookup_s)
                self.lookup_s.clear()
                yield self
            finally:
                self._over.set()

    async def enough(self) -> None:
        """Wait until enough of each kind has been done since now to judge."""
        wanted = {what: self.done[what] + number for what, number in ENOUGH.items()}
        async with asyncio.timeout(PATIENCE_S):
            while any(self.done[what] < number for what, number in wanted.items()):
                self._moved.clear()
                await self._moved.wait()
        self.phases += 1

    async def _repeat(self, step: Callable[[int], Awaitable[str]]) -> None:
        number = 0
        while not self._over.is_set():
            number += 1
            try:
                self.done[await step(number % len(self._clients))] += 1
            except PeerdError as error:  # a daemon that says that it cannot is judged by its readiness at the end
                self.outcomes[f"error {type(error).__name__}"] += 1
            self._moved.set()
            await asyncio.sleep(PAUSE_S)

    # What is done

    def key(self) -> NodeId:
        """A key that belongs to an honest node whether the attacker is there or not, and far from it."""
        while True:
            key = NodeId(self._rng.getrandbits(128))
            if closest(key, (*self._ids, *self._guests)) in self._ids:
                return key

    async def _lookup(self, index: int) -> str:
        key = self.key()
        found = await self._clients[index].route(format_id(key))
        right = closest(key, self._ids)
        roots = [right, *(guest for guest in self._guests if is_closer(key, guest, right))]
        if found.root is None:
            self.outcomes["lookup unanswered"] += 1
        elif parse_id(found.root.id) not in roots:
            self.wrong.append(f"node {index} takes {found.root.id} for the root of {key:032x}, which is {right:032x}")
        self.lookup_s.append(found.duration_s)
        return "lookup"

    async def _aggregate(self, index: int) -> str:
        answer = await self.aggregate(index)
        self.judge_answer(answer)
        return "answer"

    async def aggregate(self, index: int) -> Answer:
        """The answer to the one query that is asked all the time."""
        async with aclosing(AggregationClient(self._clients[index]).aggregate(QUERY, deadline=DEADLINE_S)) as lines:
            async for line in lines:
                if isinstance(line, Answer):
                    return line
        raise Unavailable("no answer")

    def judge_answer(self, answer: Answer) -> None:
        """All honest data is in it, or it says that it is partial; and it names nobody who is not there."""
        self.outcomes[f"answer {answer.outcome}"] += 1
        self.rejected.update(NodeId(each.node) for each in answer.rejected)
        holds = int(answer.value) if isinstance(answer.value, int | float) else 0
        missing = [index for index in range(len(self._ids)) if not holds >> index & 1]
        if answer.outcome == "complete" and missing:
            self.wrong.append(f"a complete answer of {holds:#x} lacks the data of nodes {missing}")
        strangers = {*answer.contributor_ids} - {*self._ids, *self._guests}
        if strangers:
            self.wrong.append(f"an answer names {len(strangers)} contributors that do not exist")
        listed = [index for index, node_id in enumerate(self._ids) if node_id in answer.contributor_ids]
        if set(listed) & set(missing):
            self.wrong.append(f"an answer of {holds:#x} names contributors {listed} whose data it lacks")

    def has_all(self, answer: Answer) -> bool:
        """Whether the data of all honest nodes is in it."""
        return set(self._ids) <= set(answer.contributor_ids)

    async def _record(self, index: int) -> str:
        key = format_id(self.key())
        value = f"{key} by {index}"
        put = await self.ask(index, "put", Outcome, KeyBody(key=key, value=value))
        self.outcomes[f"put {put.outcome}"] += 1
        if put.outcome == "stored":
            self.written[key] = value
        await self._read(self._rng.randrange(len(self._clients)), self._rng.choice(sorted(self.written) or [key]))
        return "record"

    async def _read(self, index: int, key: str) -> Outcome:
        got = await self.ask(index, "get", Outcome, KeyBody(key=key))
        self.outcomes[f"get {got.outcome}"] += 1
        value = self.written.get(key)
        if value is not None and (got.outcome == "absent" or (got.outcome == "found" and got.value != value)):
            self.wrong.append(f"record {key} is {got.value!r} ({got.outcome}) for node {index}, and {value!r} was put")
        return got

    async def _word(self, index: int) -> str:
        self._said = next(self._words)
        outcome = await self.ask(index, "say", Outcome, NumberBody(number=self._said))
        self.outcomes[f"word {outcome.outcome}"] += 1
        return "word"

    async def ask(self, index: int, what: str, model: type[Asked], body: KeyBody | NumberBody) -> Asked:
        """Call a route of the plugin `tests.hostile.bystander`."""
        return await self._clients[index].call(HttpRoute("POST", f"/bystander/{what}", model), body=body)

    # Afterwards

    async def read_all(self) -> list[str]:
        """Read every record that is known to be written; those that are not found, and why."""
        unread = []
        for number, key in enumerate(sorted(self.written)):
            got = await self._read(number % len(self._clients), key)
            if got.outcome != "found":
                unread.append(f"{key}: {got.outcome}")
        return unread

    async def hears_everybody(self) -> bool:
        """Whether a word that a node says now reaches all nodes; asked again, another one says another word."""
        number = self._said = next(self._words)
        await self.ask(number % len(self._clients), "say", Outcome, NumberBody(number=number))
        heard = [await self.heard(index) for index in range(len(self._clients))]
        return all(any(number in words for words in each.words.values()) for each in heard)

    async def heard(self, index: int) -> Heard:
        """The words that a node has heard."""
        return await self.ask(index, "heard", Heard, NumberBody(number=0))

    async def judge_words(self) -> None:
        """No word was heard twice, and none that nobody said."""
        for index in range(len(self._clients)):
            for origin, words in (await self.heard(index)).words.items():
                if len(set(words)) != len(words):
                    self.wrong.append(f"node {index} heard words of {origin} twice")
                honest = origin in map(format_id, self._ids)
                if honest and max(words) > self._said:
                    self.wrong.append(f"node {index} heard what {origin} never said")

    @property
    def is_slow(self) -> str:
        """Why lookups under attack count as slow; empty when they do not."""
        under_attack_s = median(self.lookup_s)
        limit_s = max(LOOKUPS_TIMES * self.calm_lookup_s, LOOKUP_NOISE_S)
        if under_attack_s <= limit_s:
            return ""
        return f"lookups take {under_attack_s:.3f} s under attack, {self.calm_lookup_s:.3f} s without"
