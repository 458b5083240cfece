"""What nodes tell about an event that arrived or did not, and how `verdict` joins it. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict

from peerd.words import counted

FILTER_HIDDEN: Final = "a filter, which operators see"


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
    name: NameOf,
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
    lines = [f"publisher: {report.outcome}; it visited {counted(len(report.visited), 'leaf', 'leaves')}"]
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
    lines = [f"subscriber: {report.fate}; it has {counted(len(report.subscriptions), 'subscription')}"]
    return lines + [f"  {check.sid:016x}: {check.filter}" for check in report.subscriptions]


def _reasons(check: FilterCheck) -> str:
    word = {True: "matches", False: "does not match", None: "the event is not known there"}[check.matches]
    return f"{word} ({'; '.join(check.reasons)})" if check.reasons else word


def _shown(place: LeafPlace, name: NameOf) -> str:
    return f"{name(place.attribute)} {place.cell or 'whole'}"


def without_filters(report: LeafReport) -> LeafReport:
    """The same for somebody who may not see what others have subscribed to: reasons quote filters and values."""
    return report.model_copy(update={"checks": tuple(map(_hidden, report.checks))})


def subscriber_without_filters(report: NodeReport) -> NodeReport:
    if (told := report.subscriber) is None:
        return report
    hidden = told.model_copy(update={"subscriptions": tuple(map(_hidden, told.subscriptions))})
    return report.model_copy(update={"subscriber": hidden})


def _hidden(check: FilterCheck) -> FilterCheck:
    return check.model_copy(update={"filter": FILTER_HIDDEN, "reasons": ()})
