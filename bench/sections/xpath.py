"""Many XPath queries on one document, beside lxml evaluating compiled queries one by one."""

from __future__ import annotations

import gc
import statistics
import time
import tracemalloc
from random import Random
from typing import Any, Final

from lxml import etree

from bench.measure import Bench, BenchFailure, at_most, ratios
from protocols.dissemination.front.lab.dtd import BUILT_IN, DocumentType, document_type, document_types
from protocols.dissemination.front.lab.generators import random_document, random_query
from protocols.dissemination.interests.xpath.document import parse
from protocols.dissemination.interests.xpath.kind import XPathKind
from protocols.dissemination.ports import Interest, InterestSet

ONE_QUERY_MAX: Final = 50.0
"""The aim: so many times one query, for all queries together; one that lxml evaluates, or one in a set of its own."""
SETS_OF_ONE: Final = 50
"""So many of the queries are also asked each in a set of its own, as by a node with one interest."""
KIND: Final = XPathKind()
SEED: Final = 1


def run(bench: Bench) -> None:
    """Lots of queries, for the built-in document type, and for the one that is nearest to NITF where it is at hand."""
    counts = bench.scale.of((10, 100, 1000), (100, 1000), (10,))
    kinds = [BUILT_IN, *(name for name in document_types() if name == "sdocbook-1.0")]
    if len(kinds) == 1:
        bench.skip("documents of sdocbook-1.0", "PEERD_DATA names no folder with xml/dtd/sdocbook-1.0.dtd")
    for name in kinds:
        for count in counts:
            bench.progress(f"{count:,} queries, documents of {name}")
            _measure(bench, f"{name}, {count:,}", document_type(name), count)


def _measure(bench: Bench, name: str, kind: DocumentType, count: int) -> None:
    random = Random(SEED)
    interests = _interests(kind, random, count)
    together, bytes_each = _built(interests)
    singles = [_set_of(each) for each in interests[:SETS_OF_ONE]]
    warm, fresh = bench.scale.of((300, 100), (100, 50), (5, 5))
    evaluations = [etree.XPath(each.text, regexp=False, smart_strings=False) for each in interests]
    times: dict[str, list[float]] = {"all": [], "one": [], "single": [], "again": [], "parse": []}
    for _ in range(bench.runs):
        for _ in range(warm):
            together.match(parse(random_document(kind, random)))
        took: dict[str, list[float]] = {key: [] for key in times}
        for _ in range(fresh):
            _one_document(together, interests, evaluations, singles, random_document(kind, random), took)
        for key, values in took.items():
            times[key].append(statistics.median(values) * 1e6)
    note = "median over documents that have not been seen before"
    bench.row(f"{name}: all queries together", "us/document", times["all"], note=note)
    bench.row(f"{name}: the same document again", "us/document", times["again"], note="every state is known")
    bench.row(f"{name}: one query, lxml", "us/document", times["one"], note="compiled; mean over the queries")
    bench.row(f"{name}: one query, in a set of its own", "us/document", times["single"], note="as a node asks one")
    aim = at_most(ONE_QUERY_MAX) if count == 1000 else None
    bench.row(f"{name}: all / one query", "x", ratios(times["all"], times["one"]), aim, f"{count:,} queries")
    bench.row(f"{name}: all / one in a set of its own", "x", ratios(times["all"], times["single"]), aim)
    parsing = statistics.median(times["parse"])
    whole = [(parsing + each) / (parsing + one) for each, one in zip(times["all"], times["one"], strict=True)]
    bench.row(f"{name}: with parsing, all / one query", "x", whole, note="what a document costs a daemon")
    bench.row(f"{name}: parsing", "us/document", times["parse"], note="lxml and the limits")
    seconds = [(match + parsing) / 1e6 for match, parsing in zip(times["all"], times["parse"], strict=True)]
    bench.row(f"{name}: documents", "1/s", [1 / each for each in seconds], note="parsed and matched")
    bench.row(f"{name}: memory a query", "bytes", [bytes_each], note="in the set, without its text and lxml's form")


def _interests(kind: DocumentType, random: Random, count: int) -> list[Interest]:
    """So many queries that differ in what they mean."""
    found: dict[bytes, Interest] = {}
    for _ in range(50 * count):
        interest = KIND.parse(random_query(kind, random))
        found[interest.id] = interest
        if len(found) == count:
            return list(found.values())
    raise BenchFailure(f"the generator has fewer than {count} different queries")


def _set_of(interest: Interest) -> InterestSet:
    single = KIND.make_set()
    single.add(interest)
    return single


def _built(interests: list[Interest]) -> tuple[Any, float]:
    gc.collect()
    tracemalloc.start()
    together = KIND.make_set()
    for each in interests:
        together.add(each)
    gc.collect()
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return together, held / len(interests)


def _one_document(
    together: Any,
    interests: list[Interest],
    evaluations: list[Any],
    singles: list[InterestSet],
    data: bytes,
    took: dict[str, list[float]],
) -> None:
    clock = time.thread_time  # others on the machine would lengthen the thousand single evaluations most
    began = clock()
    root = parse(data)
    parsed = clock()
    found = together.match(root)
    matched = clock()
    again = together.match(root)
    repeated = clock()
    tree = root.getroottree()
    alone = {each.id for each, evaluate in zip(interests, evaluations, strict=True) if evaluate(tree)}
    ended = clock()
    for single in singles:
        single.match(root)
    asked = clock()
    if found != alone or again != alone:
        raise BenchFailure("the queries together do not give the answers that they give one by one")
    took["parse"].append(parsed - began)
    took["all"].append(matched - parsed)
    took["again"].append(repeated - matched)
    took["one"].append((ended - repeated) / len(interests))
    took["single"].append((asked - ended) / len(singles))
