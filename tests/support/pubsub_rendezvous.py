"""One node of the tree with requests that a test answers itself: for transcripts of what it is told, truly or not."""

from __future__ import annotations

from typing import Any

from peerd.api import RecordOutcome, RecordResult
from peerd.ids import format_id
from peerd.messages import Message
from peerd.testing.host import FakeHost, peer
from protocols.pubsub.config import PubSubConfig
from protocols.pubsub.messages import CellQuestion, Confirm, Established, InsertSub, ProbeSub, SubObject
from protocols.pubsub.tree.cells import SIDE, WHOLE, cell_at
from tests.support.pubsub_tree import SCHEMA, TREE, FakeSchema, FakeSchemas, TreePlugin

SUBSCRIBER, STRANGER = peer(7), peer(9)
MEMBER = format_id(SUBSCRIBER.id)[:8]
LOW = SIDE // 8
DEEP = cell_at(LOW, LOW + 10, 12)


def node(schemas: FakeSchemas | None = None, /, **settings: Any) -> tuple[FakeHost, TreePlugin]:
    """A node with the tree alone."""
    plugin = TreePlugin(PubSubConfig.model_validate(settings), schemas)
    return FakeHost(1, plugin), plugin


def sub(sid: int = 1, version: int = 1, low: int = LOW, text: str = "x") -> SubObject:
    """A piece of the subscriber."""
    return SubObject(SUBSCRIBER, sid, 0, version, TREE.attribute, low, low + 10, text)


def probe(piece: SubObject, cell: int = WHOLE, **how: bool) -> ProbeSub:
    """It looks for its leaf."""
    return ProbeSub(SCHEMA, piece, cell, 600, **how)


def refusals(host: FakeHost) -> dict[str, int]:
    """What was refused, counted by member, reason and proof."""
    name = "peerd_pubsub_subscriptions_refused_total"
    return {labels: count for (counted, labels), count in host.counted.items() if counted == name}


def matched(plugin: TreePlugin, cell: int = WHOLE) -> list[int]:
    """The subscriptions in a cell that an event in the middle of `sub` matches."""
    cells = [(TREE.attribute, cell)]
    return [each.sid for each in plugin.rendezvous.match(FakeSchema(SCHEMA), cells, {"x": LOW + 5})]


def confirm(host: FakeHost, is_wanted: bool = True) -> None:
    """The subscriber answers what it was asked last."""
    request = host.requests.pop()
    assert isinstance(request.message, Established) and request.peer == SUBSCRIBER
    asked = request.message
    request.on_reply(Confirm(asked.sid, asked.piece, asked.version, is_wanted, 600), SUBSCRIBER)


def write(host: FakeHost, outcome: RecordOutcome = RecordOutcome.STORED, what: str = "records.put") -> None:
    """Every write that has not ended yet ends so."""
    waiting = [asked for asked in host.asked if asked.what == what]
    host.asked = [asked for asked in host.asked if asked.what != what]
    copies = 3 if outcome is RecordOutcome.STORED else 0
    for asked in waiting:
        asked.arguments["on_result"](RecordResult(outcome, copies=copies, detail="key_items"))


def installed(**settings: Any) -> tuple[FakeHost, TreePlugin]:
    """A node with one piece in the whole cell."""
    host, plugin = node(**settings)
    host.deliver(InsertSub(SCHEMA, sub(), WHOLE, 600), SUBSCRIBER)
    write(host)
    host.take_sent()
    return host, plugin


def routed(host: FakeHost, kind: type[Message]) -> list[Message]:
    """What was routed, of one kind."""
    return [message for _, message in host.routed if isinstance(message, kind)]


def last_question(host: FakeHost) -> CellQuestion:
    """The question to a cell that was asked last."""
    message = routed(host, CellQuestion)[-1]
    assert isinstance(message, CellQuestion)
    return message
