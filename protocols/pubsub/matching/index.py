"""Which pieces of subscriptions an event matches, among all that this node keeps of one schema. Pure.

Each distinct filter is in a `FilterIndex` once, whichever leaves have pieces with it, so matching costs a small part of
trying them all, and precision is exact. Then the event's own coordinates decide among the pieces of one subscription:
where it has been cut, only the piece whose range holds the event answers, so that one leaf delivers it and not several.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TypeAlias

from peerd.lib.apart import match_apart
from peerd.lib.filter import FilterIndex
from protocols.pubsub.messages import SubObject
from protocols.pubsub.names import EVERY, SubscriptionKey
from protocols.pubsub.ports import SchemaView, Values
from protocols.pubsub.schema.book import SchemaBook
from protocols.pubsub.schema.event_schema import EventSchema
from protocols.pubsub.tree.cells import Target

Leaf: TypeAlias = tuple[int, int]
"""An attribute's number and a cell of its tree."""


class LeafIndex:
    """The pieces in this node's leaves of one schema, by leaf.

    ``schema`` may be replaced by a later version of it at any time.
    """

    def __init__(self, schema: EventSchema) -> None:
        self.schema = schema
        self._filters: FilterIndex[str] = FilterIndex(absent_matches=schema.absent_matches)
        self._uses: dict[str, int] = {}
        """How many pieces have each filter."""
        self.failed: dict[str, str] = {}
        """Filters that cannot be tried, and why not. They count as met: the subscriber's own node tries and says so."""
        self._subs: dict[tuple[Leaf, SubscriptionKey], SubObject] = {}
        self._places: dict[tuple[Leaf, str], SubObject | dict[SubscriptionKey, SubObject]] = {}
        """By leaf and filter: the only piece, which is the most common case, or all of them."""

    def __len__(self) -> int:
        return len(self._subs)

    def has_filter(self, text: str) -> bool:
        """Whether some piece has this filter, so that another one with it costs next to nothing."""
        return text in self._uses

    def add(self, key: SubscriptionKey, cell: Leaf, sub: SubObject) -> None:
        """Put a piece into a leaf, in the place of what has the key there.

        Raises `FilterError`, having changed nothing, for a filter that the schema does not allow.
        """
        text = sub.filter
        if text not in self._uses:
            self._filters.add(text, self.schema.parse_filter(text))
            self._uses[text] = 0
        self._uses[text] += 1  # before the old piece goes, so that a filter that stays is not built in anew
        self.remove(key, cell)
        self._subs[cell, key] = sub
        place = (cell, text)
        present = self._places.get(place)
        if present is None:
            self._places[place] = sub
        elif isinstance(present, dict):
            present[key] = sub
        else:
            self._places[place] = {present.key: present, key: sub}

    def remove(self, key: SubscriptionKey, cell: Leaf) -> None:
        """Take a piece out of a leaf; harmless where it is not."""
        sub = self._subs.pop((cell, key), None)
        if sub is None:
            return
        place = (cell, sub.filter)
        present = self._places[place]
        if isinstance(present, dict):
            del present[key]
            if len(present) == 1:
                [self._places[place]] = present.values()
        else:
            del self._places[place]
        self._uses[sub.filter] -= 1
        if not self._uses[sub.filter]:
            del self._uses[sub.filter]
            if self.failed.pop(sub.filter, None) is None:
                self._filters.remove(sub.filter)

    def settle(self) -> None:
        """Build all new filters in now: worth it after many changes, before many events."""
        self._filters.settle()

    def match(self, values: Values, cells: Sequence[Leaf]) -> list[SubObject]:
        """The pieces in these leaves that an event matches, each once. ``values``: as the schema has decoded them."""
        texts = self._met(values)
        if not texts:
            return []
        targets = None
        found: dict[SubscriptionKey, SubObject] = {}
        for text in texts:
            for cell in cells:
                present, attribute = self._places.get((cell, text)), cell[0]
                if present is None:
                    continue
                target = None
                if attribute != EVERY:
                    targets = self.schema.targets(values) if targets is None else targets
                    if attribute not in targets:  # the event does not visit a tree without a target
                        continue
                    target = targets[attribute]
                for sub in present.values() if isinstance(present, dict) else (present,):
                    if target is None or _is_met(sub, target):
                        found[sub.key] = sub
        return list(found.values())

    def _met(self, values: Values) -> Collection[str]:
        """The filters that an event matches, or that have failed."""
        keys = (text for text in self._uses if text not in self.failed)
        found = match_apart(self._filters.match, keys, self._is_met, values)
        if found.fault:
            for text, why in found.failed:
                self.failed[text] = why
                self._filters.remove(text)
        return [*found.met, *self.failed] if self.failed else found.met

    def _is_met(self, text: str, values: Values) -> bool:
        return self.schema.matcher(self.schema.parse_filter(text))(values)


def index_of(schema: SchemaView) -> LeafIndex:
    """An index for the filters of this node's own clients."""
    assert isinstance(schema, EventSchema)
    return LeafIndex(schema)


class LeafIndexes:
    """The filters in this node's leaves, by schema. They are read by the version that is known now."""

    def __init__(self, schemas: SchemaBook) -> None:
        self._schemas = schemas
        self._indexes: dict[str, LeafIndex] = {}

    def of(self, name: str) -> LeafIndex | None:
        """The index of one schema; ``None`` while the schema is not known here, and there are no filters of it."""
        schema, found = self._schemas.get(name), self._indexes.get(name)
        if schema is None:
            return found or None
        if found is None:
            self._indexes = {name: index for name, index in self._indexes.items() if index}
            found = self._indexes[name] = LeafIndex(schema)
        found.schema = schema
        return found


def _is_met(sub: SubObject, target: Target) -> bool:
    """Whether an event that matches the filter belongs to this piece of it."""
    if target.value is None:  # any piece will do, but of a group, whose pieces are all in one tree, the first
        return not sub.group or sub.piece == 0
    return sub.low <= target.value <= sub.high
