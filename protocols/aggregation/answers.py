"""Answers for other nodes than the one that asked: a round with ``to`` ends with its answer, told to the whole ring.

Those whose tags match the filter keep it, the newest `KEPT_MAX` of all rounds, for whoever reads them there.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final

from pydantic import TypeAdapter, ValidationError

from peerd.api import HistorySize, Host
from peerd.errors import ProtocolError
from peerd.ids import format_id
from peerd.lib.feed import Feed
from peerd.lib.filter.errors import FilterError
from peerd.lib.filter.evaluate import matcher
from peerd.lib.filter.grammar import Dialect
from peerd.lib.filter.parse import parse
from peerd.lib.filter.tree import Node
from peerd.lib.filter.write import write
from protocols.aggregation.answer import LINE, Answer
from protocols.aggregation.collector import HexId
from protocols.aggregation.messages import GIVEN_BYTES_MAX, RECIPIENTS_BYTES_MAX, GiveAnswer
from protocols.aggregation.participating import CLOCKS_APART_S
from protocols.aggregation.patterns import QueryError
from protocols.aggregation.statements import answer_statement

KEPT_MAX: Final = 64
SEEN_MAX: Final = 1024
"""Rounds whose answer is not taken a second time, should somebody show it again."""
FILTERS_REMEMBERED: Final = 16
WORDS: Final = {"requester": "", "all": "TRUE"}
"""What people say in the place of a filter: nobody else, and everybody."""


@dataclass(frozen=True, slots=True)
class GivenAnswer:
    """An answer that this node was given. ``at``: seconds since 1970, by the requester's clock."""

    at: float
    requester: HexId
    address: str
    answer: Answer


GIVEN: Final = TypeAdapter(GivenAnswer)


def recipients(text: str) -> str:
    """The filter on tags that "requester", "all" or a filter such as ``role = web`` stands for; empty: nobody.

    Raises `QueryError`.
    """
    if text in WORDS:
        return WORDS[text]
    try:
        written = write(parse(text, dialect=Dialect.WORDS))
    except FilterError as error:
        raise QueryError(f"requester, all, or a filter on the tags of nodes such as role = web: {error}") from error
    if len(written.encode()) > RECIPIENTS_BYTES_MAX:
        raise QueryError(f"the filter says in more than {RECIPIENTS_BYTES_MAX} bytes who is given the answer")
    return written


def give(host: Host, round_id: bytes, answer: Answer, to: str) -> tuple[Answer, GiveAnswer | None]:
    """The answer, which says whether others are given it, and what tells it to them."""
    told = replace(answer, given_to=to)
    text = LINE.dump_json(told.without_lists())
    if len(text) > GIVEN_BYTES_MAX:
        return replace(answer, not_given=f"it takes {len(text):,} bytes, and {GIVEN_BYTES_MAX:,} may be given"), None
    said = round_id, host.peer, round(host.wall_time() * 1000), to, text
    return told, GiveAnswer(*said, host.sign(answer_statement(*said)))


class GivenAnswers:
    """The answers that this node was given, the newest ones. ``feed`` has each as JSON, a `GivenAnswer`."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self.feed: Feed[bytes] = Feed(host.new_epoch(), items_max=KEPT_MAX, bytes_max=KEPT_MAX * GIVEN_BYTES_MAX)
        host.when_over(self.feed.end)
        self._seen: OrderedDict[bytes, None] = OrderedDict()

    def take(self, given: GiveAnswer) -> None:
        """Keep an answer that its requester has signed, if it is for this node. Raises `ProtocolError`."""
        at = given.answered_at_ms / 1000
        if abs(self._host.wall_time() - at) > CLOCKS_APART_S:
            raise ProtocolError("old_answer", "an answer of another time")
        if self.feed.ended is not None or given.round_id in self._seen or not self._is_for_us(given.to):
            return
        try:
            answer = LINE.validate_json(given.answer)
        except ValidationError as error:
            raise ProtocolError("bad_answer", f"{error.error_count()} errors in an answer") from error
        if not isinstance(answer, Answer) or answer.round != given.round_id.hex():
            raise ProtocolError("bad_answer", "what is given is not the round's answer")
        self._seen[given.round_id] = None
        if len(self._seen) > SEEN_MAX:
            self._seen.popitem(last=False)
        kept = GIVEN.dump_json(GivenAnswer(at, given.requester.id, given.requester.address, answer))
        self.feed.push(kept, len(kept))

    def size(self) -> HistorySize:
        """What they take."""
        return HistorySize("answers that were given", len(self.feed), self.feed.held_bytes, self.feed.bytes_max)

    def _is_for_us(self, to: str) -> bool:
        try:
            is_meant = matcher(_parsed(to))
        except FilterError as error:
            raise ProtocolError("bad_answer", f"who is given the answer: {error}") from error
        own = {"node": format_id(self._host.id), "address": self._host.peer.address}
        return is_meant({**self._host.tags(), **own})


@lru_cache(FILTERS_REMEMBERED)
def _parsed(text: str) -> Node:
    return parse(text)
