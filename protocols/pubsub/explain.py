"""Why did an event arrive at a subscriber's node, or why not? Each node tells what it knows; `verdict` joins it.

The publisher's node knows which leaves the event has visited. A leaf knows which of the subscriber's pieces it holds,
what each of their conditions says about the event, and what became of the delivery. The subscriber's node knows what it
has taken, and where its pieces are kept. All of it is remembered for ``history_age`` at most.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from functools import partial
from typing import Final, Generic, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from peerd.api import Host, LookupResult, Part, handles
from peerd.errors import ProtocolError, Unavailable
from peerd.ids import NodeId, format_id, parse_id
from peerd.lib.admission import Admission
from peerd.lib.filter import FilterError, explain as explain_filter
from peerd.limits import NAME_LENGTH_MAX
from peerd.messages import Message, PeerRef
from protocols.pubsub import cells as space
from protocols.pubsub.bodies import beginning
from protocols.pubsub.delivering.deliverer import Deliverer
from protocols.pubsub.delivering.history import EventHistory
from protocols.pubsub.filter_work import WORK_BURST_S, WORK_PER_S, price_s
from protocols.pubsub.ledger import LedgerBook
from protocols.pubsub.messages import REPORT_BYTES_MAX, EventBody, ExplainAnswer, ExplainQuestion, SubObject
from protocols.pubsub.names import EventId
from protocols.pubsub.ports import Schemas, SchemaView

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
FILTER_HIDDEN: Final = "a filter, which operators see"
TEXT_TOLD_MAX: Final = 200
"""Bytes of a filter or a reason; JSON writes some of them as six."""
OUTCOMES_TOLD_MAX: Final = 16


REMEMBERED_MAX: Final = 8192
"""Of so many events each side remembers a report."""

R = TypeVar("R", bound=BaseModel)


class _Told(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", defer_build=True)


class LeafPlace(_Told):
    """A leaf: attribute's number, halvings as zeros and ones, and the id of the node that is its root."""

    attribute: int
    cell: str
    owner: str = ""


class PublisherReport(_Told):
    """What the publisher's node knows. ``missing``: cells of which no leaf has acknowledged the event."""

    schema_name: str
    outcome: str
    visited: tuple[LeafPlace, ...] = ()
    missing: tuple[LeafPlace, ...] = ()


class FilterCheck(_Told):
    """One condition, and what it says about the event; ``matches`` is ``None`` where the event is not known there."""

    sid: int
    filter: str
    group: str = ""
    matches: bool | None = None
    reasons: tuple[str, ...] = ()
    place: LeafPlace | None = None


class LeafReport(_Told):
    """What a node knows as the root of leaves. ``outcomes``: what became of the delivery to the subscriber's node."""

    schema_name: str
    has_event: bool
    checks: tuple[FilterCheck, ...] = ()
    outcomes: tuple[str, ...] = ()
    is_pending: bool = False
    others: int = 0
    """To so many other nodes it delivered the event, or tried to."""


class SubscriberReport(_Told):
    """What the subscriber's node knows. ``fate``: taken, unseen, filtered, or why it was dropped there."""

    fate: str
    subscriptions: tuple[FilterCheck, ...] = ()
    places: tuple[LeafPlace, ...] = ()


class NodeReport(_Told):
    """All that one node knows, by what it is in this."""

    publisher: PublisherReport | None = None
    leaf: LeafReport | None = None
    subscriber: SubscriberReport | None = None


class ArrivalVerdict(_Told):
    """The answer: whether it arrived (``unknown`` where who would know does not answer), and why, line by line.

    The first line is the summary.
    """

    verdict: Literal["arrived", "did not arrive", "unknown"]
    summary: str
    lines: tuple[str, ...]


# Joining

NameOf = Callable[[int], str]
"""The name of an attribute by its number."""


def _plain_name(number: int) -> str:
    return f"attribute {number}" if number else "every event"


_Word = Literal["arrived", "did not arrive", "unknown"]
_ARRIVED: Final[_Word] = "arrived"
_ABSENT: Final[_Word] = "did not arrive"
_UNKNOWN: Final[_Word] = "unknown"
TAKEN: Final = "taken"
"""Of a subscriber's report: the event was given to a subscription."""
UNSEEN: Final = "unseen"
"""Of a subscriber's report: it knows of no such event."""
NO_SUCH_EVENT: Final = "the publisher's node knows of no such event: it was never published, or too long ago"


def verdict(
    publisher: NodeReport | None,
    subscriber: NodeReport | None,
    leaves: dict[str, LeafReport | None],
    name: NameOf = _plain_name,
) -> ArrivalVerdict:
    """Join what the nodes know. ``leaves``: by the id of their root; ``None`` where it did not answer."""
    at_publisher = publisher.publisher if publisher else None
    at_subscriber = subscriber.subscriber if subscriber else None
    word: _Word
    lines = _publisher_lines(publisher, at_publisher, name)
    for owner, report in sorted(leaves.items()):
        lines += _leaf_lines(owner, report)
    lines += _subscriber_lines(subscriber, at_subscriber)
    known = [report for report in leaves.values() if report is not None]
    if at_subscriber is not None and at_subscriber.fate == TAKEN:
        word, why = _ARRIVED, "the subscriber's node has taken the event"
    elif at_subscriber is None and any("delivered" in report.outcomes for report in known):
        word, why = _ARRIVED, "the subscriber's node confirmed the event"
    elif publisher is not None and at_publisher is None and not any(report.has_event for report in known):
        word, why = _UNKNOWN, NO_SUCH_EVENT
    else:
        why = _why_not(at_publisher, at_subscriber, known)
        word = _ABSENT if at_subscriber is not None and why else _UNKNOWN
    why = why or "nobody who answered knows"
    return ArrivalVerdict(verdict=word, summary=why, lines=(why, *lines))


def _why_not(
    at_publisher: PublisherReport | None, at_subscriber: SubscriberReport | None, leaves: Sequence[LeafReport]
) -> str:
    """The first reason along the way from the publisher to the subscriber's readers; empty where none is known."""
    checks = [check for report in leaves for check in report.checks]
    dropped = [outcome for report in leaves for outcome in report.outcomes if outcome != "delivered"]
    if at_subscriber is not None and at_subscriber.fate not in (UNSEEN, TAKEN):
        return f"it came to the subscriber's node and was dropped there: {at_subscriber.fate}"
    if at_subscriber is not None and not at_subscriber.subscriptions:
        return "the node has no subscription of this schema"
    if dropped:
        return f"a leaf has dropped it: {dropped[0]}"
    if any(report.is_pending for report in leaves):
        return "a leaf is still trying to deliver it"
    if any(check.matches for check in checks):
        grouped = all(check.group for check in checks if check.matches)
        return "another member of the group has got it" if grouped else "a leaf matched it and did not deliver it"
    if any(check.matches is False for check in checks):
        first = next(check for check in checks if check.matches is False)
        return "it does not match: " + ("; ".join(first.reasons) or first.filter)
    if at_publisher is not None and at_publisher.missing:
        return f"{len(at_publisher.missing)} cells of the tree have not acknowledged it"
    if leaves and not checks:
        return "no leaf that was asked keeps a subscription of this node"
    if checks:
        return "the leaf that keeps the subscription has not seen the event: it was installed later, or the leaf moved"
    return ""


def _publisher_lines(node: NodeReport | None, report: PublisherReport | None, name: NameOf) -> list[str]:
    if report is None:
        return ["publisher: " + ("its node did not answer" if node is None else "knows nothing of the event")]
    lines = [f"publisher: {report.outcome}; it visited {_leaves(len(report.visited))}"]
    by_owner: dict[str, list[str]] = {}
    for place in report.visited:
        by_owner.setdefault(place.owner, []).append(_shown(place, name))
    lines += [f"  at {owner}: {', '.join(places)}" for owner, places in by_owner.items()]
    return lines + [f"  no leaf acknowledged {_shown(place, name)}" for place in report.missing]


def _leaf_lines(owner: str, report: LeafReport | None) -> list[str]:
    if report is None:
        return [f"leaf at {owner}: did not answer"]
    seen = "has seen the event" if report.has_event else "does not remember the event"
    lines = [f"leaf at {owner}: {seen}"]
    pieces = Counter((check.filter, _reasons(check)) for check in report.checks)  # those of one filter say the same
    for (filter, reasons), count in pieces.items():
        lines.append(f"  {filter}{f' ({count} pieces)' if count > 1 else ''}: {reasons}")
    lines += [f"  to the subscriber's node: {outcome}" for outcome in report.outcomes]
    if report.is_pending:
        lines.append("  to the subscriber's node: still under way")
    return lines


def _subscriber_lines(node: NodeReport | None, report: SubscriberReport | None) -> list[str]:
    if report is None:
        return ["subscriber: " + ("its node did not answer" if node is None else "knows nothing of the schema")]
    count = len(report.subscriptions)
    lines = [f"subscriber: {report.fate}; it has {count} {'subscription' if count == 1 else 'subscriptions'}"]
    return lines + [f"  {check.sid:016x}: {check.filter}" for check in report.subscriptions]


def _leaves(count: int) -> str:
    return f"{count} {'leaf' if count == 1 else 'leaves'}"


def _reasons(check: FilterCheck) -> str:
    word = {True: "matches", False: "does not match", None: "the event is not known there"}[check.matches]
    return f"{word} ({'; '.join(check.reasons)})" if check.reasons else word


def _shown(place: LeafPlace, name: NameOf) -> str:
    return f"{name(place.attribute)} {place.cell or 'whole'}"


def _without_filters(report: LeafReport) -> LeafReport:
    """The same for somebody who may not see what others have subscribed to: reasons quote filters and values."""
    return report.model_copy(update={"checks": tuple(map(_hidden, report.checks))})


def _subscriber_without_filters(report: NodeReport) -> NodeReport:
    if (told := report.subscriber) is None:
        return report
    hidden = told.model_copy(update={"subscriptions": tuple(map(_hidden, told.subscriptions))})
    return report.model_copy(update={"subscriber": hidden})


def _hidden(check: FilterCheck) -> FilterCheck:
    return check.model_copy(update={"filter": FILTER_HIDDEN, "reasons": ()})


# Remembering


class Remembered(Generic[R]):
    """Reports about events, for a time: what the publisher's and the subscriber's side answer from."""

    def __init__(self, age_s: float) -> None:
        self._age_s = age_s
        self._reports: OrderedDict[EventId, tuple[float, R]] = OrderedDict()

    def note(self, event: EventId, report: R, now: float) -> None:
        """Remember a report, in place of an earlier one of the same event."""
        self._reports.pop(event, None)
        self._reports[event] = now, report
        while len(self._reports) > REMEMBERED_MAX or next(iter(self._reports.values()))[0] < now - self._age_s:
            self._reports.popitem(last=False)

    def find(self, event: EventId) -> R | None:
        """What is remembered of an event."""
        found = self._reports.get(event)
        return None if found is None else found[1]


# Asking

PublisherView = Callable[[str, EventId], PublisherReport | None]
SubscriberView = Callable[[str, EventId], SubscriberReport | None]
PiecesOf = Callable[[str, NodeId], Sequence[tuple[int, SubObject]]]
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
    schema: str
    event: EventId
    subscriber: NodeId
    on_done: OnVerdict
    shows_filters: bool
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
    """Answers what others ask, and asks for this node's clients.

    The plugin sets ``publisher_view``, ``subscriber_view`` and ``pieces_of`` (cell and piece of each that this node's
    leaves hold for a subscriber).
    """

    def __init__(
        self, host: Host, schemas: Schemas, ledger: LedgerBook, history: EventHistory, deliverer: Deliverer
    ) -> None:
        self._host = host
        self._schemas = schemas
        self._ledger = ledger
        self._history = history
        self._deliverer = deliverer
        self.publisher_view: PublisherView = lambda schema, event: None
        self.subscriber_view: SubscriberView = lambda schema, event: None
        self.pieces_of: PiecesOf = lambda schema, subscriber: ()
        self.names_of: Callable[[str], NameOf] = lambda schema: _plain_name
        self._under_way = 0
        self._work: Admission[NodeId] = Admission(WORK_PER_S, WORK_BURST_S)

    def explain(
        self, schema: str, event: EventId, subscriber: NodeId, on_done: OnVerdict, *, shows_filters: bool = True
    ) -> None:
        """Find out; ``on_done`` is called once. ``schema`` may be empty. Raises `Unavailable` above a limit."""
        if self._under_way >= UNDER_WAY_MAX:
            raise Unavailable("too many explanations are under way: try again in some seconds")
        self._under_way += 1
        explanation = _Explanation(schema, event, subscriber, on_done, shows_filters)
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
            leaves = {owner: None if report is None else _without_filters(report) for owner, report in leaves.items()}
            subscriber = subscriber and _subscriber_without_filters(subscriber)
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

    def _leaf_report(self, schema_name: str, event: EventId, subscriber: NodeId, asker: NodeId) -> LeafReport | None:
        past = self._history.find(event)
        name = past.schema if past is not None else schema_name
        schema = self._schemas.get(name)
        pieces = list(self.pieces_of(name, subscriber))[:PIECES_TRIED_MAX]
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
            place=LeafPlace(attribute=piece.attribute, cell=space.text(cell), owner=format_id(self._host.id)),
        )


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
