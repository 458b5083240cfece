"""XML documents of a stream, and what subscribers want of them: the same for every system, and in every run.

Documents are random ones of the built-in document type (news items), of 1 to 4 KB. As in section 5.1 of the CoDD paper
there are 20 classes of subscribers; all of a class have the same query, which some 20 % of the documents meet.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Final

from lxml import etree

from bench.measure import BenchFailure
from bench.rivals.work import Wants
from protocols.dissemination.front.lab.dtd import document_type
from protocols.dissemination.front.lab.generators import random_document, random_query
from protocols.dissemination.front.lab.rivals import bits

STREAM: Final = "news"
CLASSES: Final = 20
SELECTIVITY: Final = (0.17, 0.23)
BYTES: Final = (1024, 4096)
SAMPLE: Final = 400
"""Documents from which the queries' selectivity is told."""
QUERIES_MAX: Final = 100_000
SENT: Final = b" sent='"
"""The first attribute of a document: when it was published, monotonic nanoseconds of the machine in 20 digits."""
SENT_DIGITS: Final = 20


def sent_ns(document: bytes) -> int:
    """When a document was published."""
    begin = document.index(SENT) + len(SENT)
    return int(document[begin : begin + SENT_DIGITS])


@dataclass(frozen=True, slots=True)
class DocumentWork:
    """Documents without the time of publication, and the queries of all classes; subscribers take turns with these."""

    documents: Sequence[str]
    queries: Sequence[str]
    wanted: Sequence[Sequence[int]]
    """For each document the classes that want it, as lxml finds them."""

    def query(self, subscriber: int) -> str:
        """What a subscriber wants."""
        return self.queries[subscriber % len(self.queries)]

    def due(self, subscribers: int, first: int, count: int) -> list[int]:
        """See `bench.rivals.work.Work.due`."""
        classes = [0] * len(self.queries)
        for number in range(first, first + count):
            for each in self.wanted[number % len(self.wanted)]:
                classes[each] += 1
        return [classes[subscriber % len(classes)] for subscriber in range(subscribers)]

    def due_bytes(self, subscribers: int, first: int, count: int) -> int:
        """What all of them have to get, in bytes of documents."""
        members = [len(range(each, subscribers, len(self.queries))) for each in range(len(self.queries))]
        return sum(
            len(self.payload(number)) * sum(members[each] for each in self.wanted[number % len(self.wanted)])
            for number in range(first, first + count)
        )

    def wanted_bits(self, subscribers: int) -> list[int]:
        """Which documents each of them wants, as the lab writes it: subscriber n is member n + 1."""
        classes = len(self.queries)
        members = [frozenset(range(each + 1, subscribers + 1, classes)) for each in range(classes)]
        return bits([frozenset().union(*(members[each] for each in some)) for some in self.wanted], subscribers)

    def published_bytes(self, first: int, count: int) -> int:
        """Of these documents."""
        return sum(len(self.payload(number)) for number in range(first, first + count))

    def payload(self, number: int) -> bytes:
        """See `bench.rivals.work.Work.payload`; what peerd's publisher publishes, too."""
        document = self.documents[number % len(self.documents)].encode()
        name_end = min(at for sign in b" >" if (at := document.find(sign)) > 0)
        return b"%b%b%020d'%b" % (document[:name_end], SENT, time.monotonic_ns(), document[name_end:])

    def wants(self, subscriber: int) -> Wants:
        """See `bench.rivals.work.Work.wants`: the document is parsed, and lxml evaluates the compiled query."""
        query = etree.XPath(self.query(subscriber), smart_strings=False)
        parser = etree.XMLParser(resolve_entities=False, no_network=True)

        def compare(payload: bytes) -> int | None:
            return sent_ns(payload) if query(etree.fromstring(payload, parser)) else None

        return compare

    def to_json(self) -> dict[str, Any]:
        """For `work_of`."""
        return {
            "documents": list(self.documents),
            "queries": list(self.queries),
            "wanted": list(map(list, self.wanted)),
        }


def work_of(fields: dict[str, Any]) -> DocumentWork:
    """What `DocumentWork.to_json` made, also after a way through JSON."""
    return DocumentWork(fields["documents"], fields["queries"], fields["wanted"])


def draw(documents: int) -> DocumentWork:
    """So many documents, and a query for each class. Raises `BenchFailure` where too few queries are selective."""
    rng, kind = Random(12), document_type()
    texts: list[str] = []
    while len(texts) < documents:
        text = random_document(kind, rng)
        if BYTES[0] <= len(text) + len(SENT) + SENT_DIGITS + 1 <= BYTES[1]:
            texts.append(text.decode())
    trees = [etree.fromstring(text) for text in texts]
    sample = trees[:SAMPLE]
    queries: dict[frozenset[int], str] = {}
    for _ in range(QUERIES_MAX):
        query = random_query(kind, rng)
        compiled = etree.XPath(query, smart_strings=False)
        met = frozenset(number for number, tree in enumerate(sample) if compiled(tree))
        if SELECTIVITY[0] <= len(met) / len(sample) <= SELECTIVITY[1]:
            queries.setdefault(met, query)  # two queries that mean the same are no two classes
        if len(queries) == CLASSES:
            chosen = list(queries.values())
            meets = [etree.XPath(each, smart_strings=False) for each in chosen]
            wanted = [[number for number, is_met in enumerate(meets) if is_met(tree)] for tree in trees]
            return DocumentWork(texts, chosen, wanted)
    raise BenchFailure(f"of {QUERIES_MAX:,} random queries only {len(queries)} are met by some 20 % of the documents")
