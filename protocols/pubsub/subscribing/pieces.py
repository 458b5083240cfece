"""Where a subscription is kept: from its filter to points of the square (Li 2008, sections 3.2, 3.3 and 3.5). Pure.

Each alternative of the filter's normal form gets a base attribute, one that it ranges over. Its ranges are widened a
little (the corner points of section 3.3), and those that are longer than the cut-off allows are cut (section 3.5). What
comes out are ranges of coordinates that hold every event which matches, and some that do not: the leaf asks the whole
filter, and so does the subscriber.

All members of a group with the same filter get the same points, so that they are in the same leaf, which chooses among
them; and at most one of these points holds an event, so that only one leaf does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from hashlib import sha256
from typing import Final, TypeAlias

from peerd.lib.filter import Conjunct, Node, write
from peerd.lib.filter.values import View
from protocols.pubsub.config import PubSubConfig
from protocols.pubsub.names import EVERY
from protocols.pubsub.ports import PiecePoint
from protocols.pubsub.schema.event_schema import EventSchema
from protocols.pubsub.tree.cells import SIDE

SPANS_MAX: Final = 16
"""Most separate ranges of one attribute; of more, those that are nearest to each other are joined."""
PIECES_MAX: Final = 128
"""A subscription that would need more pieces is kept as one in the tree `EVERY`."""
GROUP_WIDEN: Final = 0.001
"""Ranges of groups are widened by the same share everywhere, whatever the configuration says."""

Draw: TypeAlias = Callable[[int], int]
"""Returns a random number from 0 up to, not including, its argument, such as ``host.rng.randrange``."""
Span: TypeAlias = tuple[int, int]
"""The first and the last coordinate of a range."""
Share: TypeAlias = Callable[[int, Sequence[Span]], float]
_Routes: TypeAlias = dict[int, list[Span]]
"""By attribute's number, the ranges of one alternative: sorted, and apart from each other."""


def pieces_of(
    schema: EventSchema, node: Node, config: PubSubConfig, draw: Draw, group: str = "", share: Share | None = None
) -> list[PiecePoint]:
    """Return the points of a subscription, whose order numbers its pieces; none if it can never match.

    ``share``: how large a share of the events concerns ranges of an attribute, if that is known; groups do not ask.
    """
    conjuncts = schema.form(node).conjuncts
    if not conjuncts:
        return []
    if group:
        draw, widen = _repeatable(group, write(node)), GROUP_WIDEN
    else:
        widen = config.widen
    routes = [_routes(schema, conjunct) for conjunct in conjuncts]
    by_attribute = _common(routes) if group else _by_alternative(routes, config, draw, share)
    points = [
        PiecePoint(number, *span)
        for number in sorted(by_attribute)
        for wide in joined(_widened(span, widen, draw) for span in by_attribute[number])
        for span in _cut(wide, schema.by_number[number].length_max, draw)
    ]
    return points if 0 < len(points) <= PIECES_MAX else [_anywhere(draw)]


def joined(spans: Iterable[Span]) -> list[Span]:
    """Return the union: sorted ranges that do not touch, at most `SPANS_MAX`."""
    found: list[Span] = []
    for low, high in sorted(spans):
        if found and low <= found[-1][1] + 1:
            found[-1] = (found[-1][0], max(found[-1][1], high))
        else:
            found.append((low, high))
    if len(found) <= SPANS_MAX:
        return found
    widest = sorted(range(1, len(found)), key=lambda index: found[index - 1][1] - found[index][0])[: SPANS_MAX - 1]
    starts = [0, *sorted(widest)]
    return [(found[start][0], found[end - 1][1]) for start, end in zip(starts, [*starts[1:], len(found)], strict=True)]


def _routes(schema: EventSchema, conjunct: Conjunct) -> _Routes:
    """The routed attributes that an alternative ranges over, with its ranges."""
    found: _Routes = {}
    for (name, view), ranges in conjunct.ranges().items():
        # An ending is a beginning of the reversed text, which another attribute may hold.
        attribute = schema.shadow_of(name) if view is View.ENDING else schema.attributes[name]
        if attribute is None or not attribute.is_routed:
            continue
        # Without any range no value matches, but an absent one may: then the piece can be anywhere.
        spans = joined(attribute.axis.span(low, high) for low, high in ranges.intervals()) or [(0, 0)]
        if attribute.number not in found or _length(spans) < _length(found[attribute.number]):
            found[attribute.number] = spans
    return found


def _by_alternative(routes: list[_Routes], config: PubSubConfig, draw: Draw, share: Share | None) -> _Routes:
    """Choose a base attribute for each alternative. Nothing, if one of them ranges over none."""
    found: _Routes = {}
    for own in routes:
        if not own:
            return {}
        if config.base_attribute == "random":
            base = sorted(own)[draw(len(own))]
        else:
            base = _narrowest(own, share, config.widen)
        found[base] = joined([*found.get(base, ()), *own[base]])
    return found


def _common(routes: list[_Routes]) -> _Routes:
    """Choose one base attribute for all alternatives, so that an event is in one tree's leaf only."""
    shared = [number for number in routes[0] if all(number in own for own in routes)]
    unions = {number: joined(span for own in routes for span in own[number]) for number in shared}
    if not unions:
        return {}
    base = _narrowest(unions)
    return {base: unions[base]}


def _narrowest(routes: _Routes, share: Share | None = None, widen: float = 0.0) -> int:
    """The attribute with the fewest events, as far as that is known; else the one with the shortest ranges.

    The events are those of the widened ranges: texts that begin alike lie so near to each other that one range holds
    them all.
    """

    def rank(number: int) -> tuple[float, int, int]:
        spans = routes[number]
        return 0.0 if share is None else share(number, _widest(spans, widen)), _length(spans), number

    return min(routes, key=rank)


def _length(spans: list[Span]) -> int:
    return sum(high - low + 1 for low, high in spans)


def _widest(spans: list[Span], share: float) -> list[Span]:
    most = int(share * SIDE)
    return joined((max(0, low - most), min(SIDE - 1, high + most)) for low, high in spans)


def _widened(span: Span, share: float, draw: Draw) -> Span:
    most = int(share * SIDE) + 1
    return max(0, span[0] - draw(most)), min(SIDE - 1, span[1] + draw(most))


def _cut(span: Span, length_max: int, draw: Draw) -> list[Span]:
    """Cut a range that lies above the cut-off line y = x + c into several of length h, c/2 <= h <= c, chosen here."""
    low, high = span
    if high - low <= length_max:
        return [span]
    length = length_max - draw(length_max // 2 + 1)
    return [(start, min(start + length, high)) for start in range(low, high + 1, length + 1)]


def _anywhere(draw: Draw) -> PiecePoint:
    """Return a point of the tree that every event visits."""
    one, other = draw(SIDE), draw(SIDE)
    return PiecePoint(EVERY, min(one, other), max(one, other))


def _repeatable(group: str, text: str) -> Draw:
    """Numbers that all members of a group with the same filter draw alike."""
    seed = sha256(b"peerd-pubsub-group\0%d\0%b%b" % (len(group), group.encode(), text.encode())).digest()
    drawn = 0

    def draw(below: int) -> int:
        nonlocal drawn
        drawn += 1
        return int.from_bytes(sha256(seed + drawn.to_bytes(8, "big")).digest()[:16], "big") % below

    return draw
