"""Why did an event arrive at a subscriber's node, or why not? Each node tells what it knows; `verdict` joins it.

The publisher's node knows which leaves the event has visited. A leaf knows which of the subscriber's pieces it holds,
what each of their conditions says about the event, and what became of the delivery. The subscriber's node knows what it
has taken, and where its pieces are kept. All of it is remembered for ``history_age`` at most.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from functools import partial
from typing import Any, Final

from pydantic import ValidationError

from peerd.api import Host, LookupResult, Part, handles
from peerd.errors import ProtocolError, Unavailable
from peerd.ids import NodeId, format_id, parse_id
from peerd.lib.admission import Admission
from peerd.lib.filter import FilterError, explain as explain_filter
from peerd.limits import NAME_LENGTH_MAX
from peerd.messages import Message, PeerRef
from protocols.pubsub.bodies import beginning
from protocols.pubsub.delivering.assembly import Delivering
from protocols.pubsub.explaining.reports import (
    TAKEN,
    UNSEEN,
    ArrivalVerdict,
    FilterCheck,
    LeafPlace,
    LeafReport,
    NameOf,
    NodeReport,
    PublisherReport,
    SubscriberReport,
    subscriber_without_filters,
    verdict,
    without_filters,
)
from protocols.pubsub.explaining.tree_walk import EVERY_NAME
from protocols.pubsub.matching.filter_work import WORK_BURST_S, WORK_PER_S, price_s
from protocols.pubsub.messages import REPORT_BYTES_MAX, EventBody, ExplainAnswer, ExplainQuestion, SubObject
from protocols.pubsub.names import EventId, node_meant
from protocols.pubsub.ports import SchemaView
from protocols.pubsub.publishing.publisher import Publishing
from protocols.pubsub.schema.book import SchemaBook
from protocols.pubsub.service import NotDone
from protocols.pubsub.subscribing.subscriptions import Subscriptions
from protocols.pubsub.tree import cells as space
from protocols.pubsub.tree.rendezvous import Rendezvous

ANSWER_TIMEOUT_S: Final = 5.0
UNDER_WAY_MAX: Final = 64
"""So many explanations may be under way at a time."""
LEAVES_ASKED_MAX: Final = 32
"""So many nodes are asked as roots of leaves."""
PIECES_TRIED_MAX: Final = 64
"""So many of a node's pieces are compared with the event."""
PIECES_TOLD_MAX: Final = 8
"""So many of these are told of, those that match first."""
REASONS_TOLD_MAX: Final = 12
TEXT_TOLD_MAX: Final = 200
"""Bytes of a filter or a reason; JSON writes some of them as six."""
OUTCOMES_TOLD_MAX: Final = 16

OnVerdict = Callable[[ArrivalVerdict], None]


class _Round(IntEnum):
    """Who is asked together. Each round knows what the one before has found."""

    ORIGIN = 0
    """The publisher's node, which also knows the schema."""
    SUBSCRIBER = 1
    LEAVES = 2
    OVER = 3


@dataclass(slots=True)
class _Explanation:
    event: EventId
    subscriber: NodeId
    on_done: OnVerdict
    shows_filters: bool
    schema: str = ""
    answers: dict[NodeId, NodeReport | None] = field(default_factory=dict)
    open: int = 0
    round: _Round = _Round.ORIGIN

    def question(self) -> ExplainQuestion:
        """What nodes are asked now."""
        return ExplainQuestion(self.schema, *self.event, self.subscriber)

    def learn_schema(self) -> None:
        """Take the schema's name from whoever knows the event."""
        for report in self.answers.values():
            for part in (report.publisher, report.leaf) if report is not None else ():
                if part is not None and not self.schema and len(part.schema_name) <= NAME_LENGTH_MAX:
                    self.schema = part.schema_name


class Explainer(Part):
    """Answers what others ask, and asks for this node's clients."""

    def __init__(
        self,
        host: Host,
        schemas: SchemaBook,
        rendezvous: Rendezvous,
        delivering: Delivering,
        publishing: Publishing,
        subscriptions: Subscriptions,
    ) -> None:
        self._host, self._schemas, self._rendezvous = host, schemas, rendezvous
        self._publishing, self._subscriptions = publishing, subscriptions
        self._ledger, self._history, self._deliverer = delivering.ledger, delivering.history, delivering.deliverer
        self._under_way = 0
        self._work: Admission[NodeId] = Admission(WORK_PER_S, WORK_BURST_S)

    def explain(
        self,
        event: str,
        subscriber: str,
        on_done: Callable[[dict[str, Any] | Exception], None],
        *,
        shows_filters: bool = True,
    ) -> None:
        """Why an event did or did not arrive at a node; ``subscriber``: its id, or empty for this node.

        ``shows_filters``: with the filters of whoever subscribed, and what they say about the event's values.
        """
        try:
            asked = EventId.parse(event)
            known = {self._host.id, asked.publisher, *(each.id for each in self._host.leaf_set().members())}
            whose = node_meant(subscriber, known) if subscriber else self._host.id
        except ValueError as error:
            raise NotDone("invalid", str(error)) from error
        self.find_out(asked, whose, lambda found: on_done(found.model_dump(mode="json")), shows_filters=shows_filters)

    def find_out(self, event: EventId, subscriber: NodeId, on_done: OnVerdict, *, shows_filters: bool = True) -> None:
        """Ask who may know; ``on_done`` is called once. Raises `Unavailable` above a limit."""
        if self._under_way >= UNDER_WAY_MAX:
            raise Unavailable("too many explanations are under way: try again in some seconds")
        self._under_way += 1
        explanation = _Explanation(event, subscriber, on_done, shows_filters)
        self._ask_all(explanation, {event.publisher: None, self._host.id: None})

    def _ask_all(self, explanation: _Explanation, nodes: dict[NodeId, None]) -> None:
        explanation.open += 1  # until all are asked
        for node in nodes:
            explanation.open += 1
            self._ask(explanation, node)
        self._close(explanation)

    def _ask(self, explanation: _Explanation, node: NodeId) -> None:
        answered = partial(self._answered, explanation, node)
        if node == self._host.id:
            answered(self.report(explanation.question(), node))
            return

        def on_reply(reply: Message, source: PeerRef) -> None:
            try:
                answered(_read(reply))
            except ProtocolError as error:
                self._host.misbehaved(source, error)
                answered(None)

        def on_found(result: LookupResult) -> None:
            if result.root is None or result.root.id != node:
                answered(None)
            else:
                ask = explanation.question()
                self._host.request(result.root, ask, ANSWER_TIMEOUT_S, on_reply, partial(answered, None))

        try:
            self._host.lookup(node, on_found)
        except Unavailable:
            answered(None)

    def _answered(self, explanation: _Explanation, node: NodeId, report: NodeReport | None) -> None:
        explanation.answers[node] = report
        self._close(explanation)

    def _close(self, explanation: _Explanation) -> None:
        explanation.open -= 1
        if explanation.open:
            return
        explanation.round = _Round(explanation.round + 1)
        if explanation.round is _Round.SUBSCRIBER:
            explanation.learn_schema()
            self._ask_all(explanation, {explanation.subscriber: None})
        elif explanation.round is _Round.LEAVES:
            self._ask_all(explanation, self._roots(explanation))
        else:
            self._under_way -= 1
            explanation.on_done(self._joined(explanation))

    def _joined(self, explanation: _Explanation) -> ArrivalVerdict:
        ends = (explanation.event.publisher, explanation.subscriber)
        leaves = {
            format_id(node): None if report is None else report.leaf
            for node, report in explanation.answers.items()
            if (report is None and node not in ends) or (report is not None and report.leaf is not None)
        }
        answers = explanation.answers
        publisher, subscriber = answers.get(explanation.event.publisher), answers.get(explanation.subscriber)
        if not explanation.shows_filters:
            leaves = {owner: None if report is None else without_filters(report) for owner, report in leaves.items()}
            subscriber = subscriber and subscriber_without_filters(subscriber)
        return verdict(publisher, subscriber, leaves, self.names_of(explanation.schema))

    @staticmethod
    def _roots(explanation: _Explanation) -> dict[NodeId, None]:
        """The leaves' roots that publisher and subscriber name: first those that keep the subscriptions."""
        found: dict[NodeId, None] = {}
        subscriber = explanation.answers.get(explanation.subscriber)
        publisher = explanation.answers.get(explanation.event.publisher)
        places = [*(subscriber.subscriber.places if subscriber and subscriber.subscriber else ())]
        places += publisher.publisher.visited if publisher and publisher.publisher else ()
        for place in places:
            try:
                node = parse_id(place.owner)
            except ValueError:
                continue
            if node not in explanation.answers and len(found) < LEAVES_ASKED_MAX:
                found[node] = None
        return found

    # Answering

    @handles(ExplainQuestion)
    def _on_question(self, message: ExplainQuestion, source: PeerRef) -> ExplainAnswer:
        return ExplainAnswer(_encoded(self.report(message, source.id)))

    def report(self, question: ExplainQuestion, asker: NodeId) -> NodeReport:
        """What this node knows. The filters that it reads again for that are charged to who asks."""
        event = EventId(question.publisher, question.epoch, question.sequence)
        is_publisher = question.publisher == self._host.id
        at_publisher = self.publisher_view(question.schema, event) if is_publisher else None
        is_subscriber = question.subscriber == self._host.id
        at_subscriber = self.subscriber_view(question.schema, event) if is_subscriber else None
        return NodeReport(
            publisher=at_publisher and at_publisher.model_copy(update=_shortened(at_publisher)),
            leaf=self._leaf_report(question.schema, event, question.subscriber, asker),
            subscriber=at_subscriber and at_subscriber.model_copy(update=_shortened(at_subscriber)),
        )

    # What this node knows

    def publisher_view(self, schema: str, event: EventId) -> PublisherReport | None:
        """What it knows as the event's publisher."""
        done = self._publishing.outcomes.get(event)
        if done is None:
            waiting = self._publishing.pending(event)
            return None if waiting is None else PublisherReport(schema_name=waiting.schema.name, outcome="pending")
        missing = tuple(LeafPlace(attribute=attribute, cell=space.text(cell)) for attribute, cell in done.missing)
        visited = tuple(_place(each.attribute, each.cell, each.owner) for each in done.answers)
        return PublisherReport(schema_name=done.schema, outcome=done.status.value, visited=visited, missing=missing)

    def subscriber_view(self, schema: str, event: EventId) -> SubscriberReport | None:
        """What it knows as the subscriber's node."""
        given = self._subscriptions.local.window.given(event)
        if given is None and not schema:  # nobody who was asked knows the event, so which subscriptions are meant?
            return None
        own = self._subscriptions.of_schema(schema)
        checks = (FilterCheck(sid=each.number, filter=each.view(0).filter, group=each.group) for each in own)
        places = (
            _place(piece.sub.attribute, piece.place.cell, piece.place.owner)
            for each in own
            for piece in self._subscriptions.pieces(each)
            if piece.place is not None
        )
        fate = TAKEN if given else UNSEEN if given is None else "filtered"
        return SubscriberReport(fate=fate, subscriptions=tuple(checks), places=tuple(places))

    def pieces_of(self, schema: str, subscriber: NodeId) -> list[tuple[int, SubObject]]:
        """Cell and piece of each that this node's leaves hold for a subscriber."""
        return [
            (node.place.cell, piece.sub)
            for node in self._rendezvous.forest.nodes()
            if node.place.tree.schema == schema
            for key, piece in node.pieces.items()
            if key.subscriber == subscriber
        ]

    def names_of(self, schema: str) -> NameOf:
        """How people name the attributes of a schema."""
        known = self._schemas.get(schema)
        named = {} if known is None else {number: each.name for number, each in known.by_number.items()}
        return lambda number: named.get(number, EVERY_NAME)

    def _leaf_report(self, schema_name: str, event: EventId, subscriber: NodeId, asker: NodeId) -> LeafReport | None:
        past = self._history.find(event)
        name = past.schema if past is not None else schema_name
        schema = self._schemas.get(name)
        pieces = self.pieces_of(name, subscriber)[:PIECES_TRIED_MAX]
        known = self._ledger.outcomes(event)
        if schema is None or (past is None and not pieces and known is None):
            return None
        found = known.outcomes if known is not None else []
        outcomes = [each.what for each in found if each.subscriber == subscriber]
        body = None if past is None else past.event
        checks = [self._check(schema, cell, piece, body, asker) for cell, piece in pieces]
        return LeafReport(
            schema_name=name,
            has_event=past is not None,
            checks=tuple(sorted(checks, key=lambda check: check.matches is not True)[:PIECES_TOLD_MAX]),
            outcomes=tuple(outcomes[:OUTCOMES_TOLD_MAX]),
            is_pending=self._deliverer.is_pending(event, subscriber),
            others=len(found) - len(outcomes),
        )

    def _check(
        self, schema: SchemaView, cell: int, piece: SubObject, event: EventBody | None, asker: NodeId
    ) -> FilterCheck:
        matches: bool | None = None
        reasons: Sequence[str] = ()
        if event is not None and not self._work.take(asker, self._host.now(), price_s(piece.filter)):
            reasons = ["not tried: too many filters were tried for this node; ask again in some seconds"]
        elif event is not None:
            try:
                explained = explain_filter(schema.parse_filter(piece.filter), schema.decode_values(event.values))
                matches, reasons = explained.matches, [str(reason) for reason in explained.reasons]
            except FilterError as error:
                reasons = [f"the filter cannot be read: {error}"]
        return FilterCheck(
            sid=piece.sid,
            filter=_cut(piece.filter),
            group=piece.group,
            matches=matches,
            reasons=tuple(_cut(reason) for reason in reasons[:REASONS_TOLD_MAX]),
            place=_place(piece.attribute, cell, self._host.peer),
        )


def _place(attribute: int, cell: int, owner: PeerRef) -> LeafPlace:
    return LeafPlace(attribute=attribute, cell=space.text(cell), owner=format_id(owner.id))


def _cut(text: str) -> str:
    return text if len(text.encode()) <= TEXT_TOLD_MAX else beginning(text, TEXT_TOLD_MAX - 3) + "..."


def _encoded(report: NodeReport) -> bytes:
    """As JSON, with so few conditions that it fits into its message: the first ones say most."""
    data, count = report.model_dump_json(exclude_defaults=True).encode(), LEAVES_ASKED_MAX
    while len(data) > REPORT_BYTES_MAX and count:
        count //= 2
        leaf, end = report.leaf, report.subscriber
        leaf = leaf and leaf.model_copy(update={"checks": leaf.checks[:count]})
        end = end and end.model_copy(update={"subscriptions": end.subscriptions[:count]})
        fewer = report.model_copy(update={"leaf": leaf, "subscriber": end})
        data = fewer.model_dump_json(exclude_defaults=True).encode()
    return data


def _shortened(report: PublisherReport | SubscriberReport) -> dict[str, object]:
    """The parts of a report that may be too long for a message, cut."""
    if isinstance(report, PublisherReport):
        return {"visited": report.visited[:LEAVES_ASKED_MAX], "missing": report.missing[:LEAVES_ASKED_MAX]}
    told = (
        check.model_copy(update={"filter": _cut(check.filter)}) for check in report.subscriptions[:LEAVES_ASKED_MAX]
    )
    return {"subscriptions": tuple(told), "places": report.places[:LEAVES_ASKED_MAX]}


def _read(reply: Message) -> NodeReport:
    if not isinstance(reply, ExplainAnswer):
        raise ProtocolError("explain_answer", "another message than an ExplainAnswer")
    try:
        return NodeReport.model_validate_json(reply.report)
    except ValidationError as error:
        raise ProtocolError("explain_answer", f"{error.error_count()} fields are not valid") from error
