"""What the lab publishes, and who wants it: CoDD's abstract data (section 5.1), and documents with queries (5.4).

Members are numbered from 1; the producer is 0. Items are known by the set of members that want them: matching each item
once for all nodes gives what every node would find by itself, and is what makes runs of thousands of items short.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, Final, TypeAlias

from protocols.dissemination.front.lab.dtd import BUILT_IN, document_type
from protocols.dissemination.front.lab.generators import DocumentShape, QueryShape, random_document, random_query
from protocols.dissemination.interests.xpath.kind import XPathKind
from protocols.dissemination.interests.xpath.writing import EVERYTHING
from protocols.dissemination.messages import StreamItem
from protocols.dissemination.names import interest_id
from protocols.dissemination.ports import Interest, InterestKind

DOCUMENTS_MAX: Final = 3000
"""Different documents of a run; longer runs draw from these again."""
SELECTIVITY: Final = (0.02, 0.6)
"""Queries that fewer or more of the documents meet are drawn anew: the paper's means are 0.15 to 0.31."""
TRIED_ON: Final = 200
DRAWN_MAX: Final = 200
"""Queries that are drawn for a member, until one is neither too narrow nor too wide."""


Wanted = Sequence[frozenset[int]]
"""For each item the members that want it."""


class MembersKind:
    """A kind of interest whose items say which interests they meet. ``texts``: the kind that compares the texts.

    An item's payload is its number. Without ``texts`` an interest is the name of a member, and no two have anything
    in common but what they were seen to want.
    """

    name = "members"

    def __init__(self, texts: InterestKind | None = None) -> None:
        self.met: dict[bytes, frozenset[bytes]] = {}
        """By payload: the ids of the interests that an item meets."""
        self._texts = texts
        self.everything = self.parse("*" if texts is None else EVERYTHING)
        """What a node asks for that would have to ask for too much; every item meets it."""

    def parse(self, text: str) -> Interest:
        if self._texts is not None:
            return self._texts.parse(text)
        return Interest(interest_id(self.name, text), text, text)

    def content(self, item: StreamItem) -> Any:
        return self.met[item.payload]

    def make_set(self) -> MembersSet:
        return MembersSet()

    def matches(self, interest: Interest, content: Any) -> bool:
        return interest.id in content

    def covers(self, wide: Interest, narrow: Interest) -> bool:
        return wide.id == narrow.id if self._texts is None else self._texts.covers(wide, narrow)

    def overlap(self, one: Interest, other: Interest) -> float:
        return float(one.id == other.id) if self._texts is None else self._texts.overlap(one, other)


class MembersSet:
    """Implements `protocols.dissemination.ports.InterestSet`."""

    def __init__(self) -> None:
        self._known: set[bytes] = set()

    def add(self, interest: Interest) -> None:
        self._known.add(interest.id)

    def remove(self, id: bytes) -> None:
        self._known.discard(id)

    def match(self, content: frozenset[bytes]) -> set[bytes]:
        return self._known & content

    def __len__(self) -> int:
        return len(self._known)


class ClassWorkload:
    """CoDD's abstract data: an item is wanted by all members of some classes, which are split and merged at times."""

    def __init__(
        self,
        members: int,
        rng: random.Random,
        classes: int = 20,
        selectivity: float = 0.2,
        change_every: int = 200,
        most_classes: int = 1,
    ) -> None:
        self.kind = MembersKind()
        self._rng = rng
        self._each = max(1, round(selectivity * classes))
        self._change_every = change_every
        self._drawn = 0
        self.classes: list[list[int]] = [[] for _ in range(classes)]
        for member in range(1, members + 1):
            some = rng.randint(1, most_classes) if most_classes > 1 else 1
            for each in rng.sample(self.classes, some) if some > 1 else [rng.choice(self.classes)]:
                each.append(member)

    def interest(self, member: int) -> Interest:
        """What a member subscribes to: its name."""
        return self.kind.parse(f"m{member}")

    def draw(self) -> frozenset[int]:
        """The members that want the next item."""
        if self._drawn and self._change_every and self._drawn % self._change_every == 0:
            self._change()
        self._drawn += 1
        return frozenset(member for each in self._rng.sample(self.classes, self._each) for member in each)

    def _change(self) -> None:
        """Split a fifth of the classes in two, and merge the halves in random pairs."""
        rng = self._rng
        rng.shuffle(self.classes)
        count = len(self.classes) // 5
        halves: list[list[int]] = []
        for members in self.classes[:count]:
            rng.shuffle(members)
            halves += [members[: len(members) // 2], members[len(members) // 2 :]]
        rng.shuffle(halves)
        self.classes[:count] = [list(dict.fromkeys(halves[at] + halves[at + 1])) for at in range(0, len(halves), 2)]


class XmlWorkload:
    """Random documents of a document type, and a random query for each member. ``items``: how many will be drawn."""

    def __init__(self, members: int, rng: random.Random, items: int, dtd: str = BUILT_IN) -> None:
        texts = XPathKind()
        self.kind = MembersKind(texts)
        self._rng = rng
        type_ = document_type(dtd)
        queries, documents = QueryShape(), DocumentShape()
        self._documents = [
            texts.content(StreamItem.of(1, at + 1, 0, random_document(type_, rng, documents)))
            for at in range(min(items, DOCUMENTS_MAX))
        ]
        trial = self._documents[:TRIED_ON]
        self._interests: list[Interest] = []
        self._wanting: dict[bytes, list[int]] = {}
        for member in range(1, members + 1):
            for _ in range(DRAWN_MAX):
                interest = texts.parse(random_query(type_, rng, queries))
                met = sum(texts.matches(interest, document) for document in trial) / len(trial)
                if SELECTIVITY[0] <= met <= SELECTIVITY[1]:
                    break
            self._interests.append(interest)
            self._wanting.setdefault(interest.id, []).append(member)
        found = texts.make_set()
        for interest in self._interests:
            found.add(interest)
        self._wanted = [
            frozenset(member for id in found.match(document) for member in self._wanting[id])
            for document in self._documents
        ]
        self._documents.clear()
        self._drawn = 0

    def interest(self, member: int) -> Interest:
        """What a member subscribes to: its query."""
        return self._interests[member - 1]

    def draw(self) -> frozenset[int]:
        """The members that want the next document: each document once, then some of them again."""
        self._drawn += 1
        if self._drawn <= len(self._wanted):
            return self._wanted[self._drawn - 1]
        return self._rng.choice(self._wanted)


LabStream: TypeAlias = ClassWorkload | XmlWorkload
"""A stream, and what its members want of it."""
