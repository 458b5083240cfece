"""Decoders of the aggregation protocol: partials, queries in both forms, and the answers that clients read."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import reduce
from itertools import accumulate, pairwise
from random import Random
from typing import Any, Final

from pydantic import ValidationError

from peerd.errors import ProtocolError
from peerd.ids import NodeId
from protocols.aggregation.answer import LINE
from protocols.aggregation.exchange import decode_value
from protocols.aggregation.front.http import AggregateBody
from protocols.aggregation.groups import GROUPS_HARD_MAX, Grouped
from protocols.aggregation.partial import ExtractionReport, Partial, merge
from protocols.aggregation.patterns import QueryError
from protocols.aggregation.query import Query, parse_query
from protocols.aggregation.slices import SIZES
from tests.fuzz import mutate
from tests.fuzz.target import Target, reported
from tests.support.aggregation_calls import CALLS, record

MOVED: Final = bytes(8)
HEAD_LENGTH_BYTES: Final = 4
QUERIES: Final = (
    'count by status where method = GET and size > 10 or not path like "/api/%"',
    "sum(bytes) by user",
    "mean(latency_ms) where latency_ms < 60000 and user in (a, b, c)",
    'max("a b") where x is null and y between 3 and 5 or z matches "^a+$"',
    'count, p99(ms), quantile(ms, 0.25), histogram(ms, 1, 1.5) by host, "a b" where a = 1',
    "min(request.status) by host where (a = 1 and (b <> 2 or c = 'x'))",
)
WORDS: Final = (
    *(
        "count",
        "sum",
        "min",
        "max",
        "p99",
        "quantile",
        "histogram",
        "values",
        "mean",
        "by",
        "where",
        "and",
        "or",
        "not",
        "in",
        "like",
        "matches",
        "between",
        "is",
    ),
    *("null", "(", ")", ",", "=", "<>", "<=", "true", "escape", "exists", "cidr", "ip", "timestamp"),
    *("1e999", "-0", "0x10", "'", '"', "%", "_", "\\", "99999999999999999999999"),
)


def aggregation_targets() -> Iterator[Target]:
    """Every target of this module."""
    for calls in (*CALLS, "count, p99(x), distinct(t), values(t)"):
        for by in ("", " by k"):
            query = parse_query(f"{calls}{by}", groups_max=100)
            name = f"partial {calls}{' by' if by else ''}"
            yield Target(name, _partial_of(query), _reads(query), (ProtocolError,), weight=4)
    for calls in ("count", "mean(x), distinct(t)"):
        query = parse_query(f"{calls} by k", groups_max=GROUPS_HARD_MAX + 1)
        yield Target(f"slices {calls}", _sliced_of(query), _reads(query), (ProtocolError,), weight=2)
    yield Target("query wire", _query_body, _read_query, (ProtocolError,), weight=2)
    yield Target("query text", lambda rng: mutate.text(rng, rng.choice(QUERIES), WORDS), _parse, (QueryError,), 2)
    yield Target("answer line", _answer_line, reported(LINE.validate_json), (ValidationError,), weight=2)
    yield Target("aggregate body", _body, reported(_read_body), (ValidationError,), weight=2)


def own(rng: Random, query: Query, contributor: int) -> Partial:
    """What one node contributes, of a few random records."""
    function: Any = query.function
    numbers = [record(query, _number(rng)) for _ in range(rng.randrange(4))]
    value: Any
    if not query.by:
        value = reduce(function.merge, map(function.lift, numbers), function.zero)
    else:
        grouped: Grouped[Any] = Grouped(function, query.groups_max)
        value = reduce(grouped.merge, (grouped.lift(rng.choice("abcä"), each) for each in numbers), grouped.zero)
    report = ExtractionReport(files_read=1, records=len(numbers) + 1, records_selected=len(numbers), notes=("a: b",))
    return Partial.of(query, NodeId(contributor), value, report)


def _number(rng: Random) -> int | float:
    whole = rng.choice((rng.getrandbits(70) - 2**69, rng.randrange(10), 0))
    return rng.choice((whole, rng.uniform(-1e300, 1e300), 0.5))


def _partial_of(query: Query) -> Callable[[Random], bytes]:
    def make(rng: Random) -> bytes:
        ids = sorted(rng.sample(range(1, 1 << 20), rng.randrange(1, 4)))
        return MOVED + mutate.stream(rng, reduce(merge, (own(rng, query, each) for each in ids)).encode())

    return make


def _sliced_of(query: Query) -> Callable[[Random], bytes]:
    """Damaged anywhere, or in one slice, whose size is right then."""

    def make(rng: Random) -> bytes:
        data = own(rng, query, rng.randrange(1, 1 << 20)).encode()
        if rng.random() < 0.5:
            return MOVED + mutate.damaged(rng, data)
        start = HEAD_LENGTH_BYTES + int.from_bytes(data[:HEAD_LENGTH_BYTES], "big")
        ends = list(accumulate(SIZES.unpack_from(data, start), initial=start + SIZES.size))
        slices = [data[begin:end] for begin, end in pairwise(ends)]
        full = [number for number, each in enumerate(slices) if len(each) > min(map(len, slices))]
        chosen = rng.choice(full or range(len(slices)))
        slices[chosen] = mutate.stream(rng, slices[chosen])
        return MOVED + data[:start] + SIZES.pack(*map(len, slices)) + b"".join(slices)

    return make


def _reads(query: Query) -> Callable[[bytes], None]:
    """What is accepted can be finished, merged with what a node has itself, written and read again."""

    def run(data: bytes) -> None:
        partial, _ = decode_value(query, data)
        partial.finish(3)
        merged = merge(partial, _EMPTY[query]) if _EMPTY[query].contributors[0] not in partial.contributors else partial
        again = Partial.decode(merged.encode(), query)
        assert (again.finish(), again.report, again.shares) == (merged.finish(), merged.report, merged.shares)
        assert query.is_sliced or again == merged

    _EMPTY[query] = own(Random(0), query, 1 << 100)
    return run


_EMPTY: Final[dict[Query, Partial]] = {}


def _query_body(rng: Random) -> bytes:
    wire = parse_query(rng.choice(QUERIES), files=rng.choice(("**/*", "a/*.csv", "x"))).to_wire()
    return mutate.packed(rng, wire)


def _read_query(data: bytes) -> None:
    query = Query.from_wire(data)
    try:
        again = query.to_wire()
    except QueryError:  # longer in the one canonical way than it came; its receiver never sends it on like that
        return
    assert Query.from_wire(again) == query


def _parse(text: str) -> None:
    query = parse_query(text)
    assert parse_query(str(query), files=query.files, format=query.format, groups_max=query.groups_max) == query


def _answer_line(rng: Random) -> bytes:
    line = {"type": "progress", "round_id": "ab" * 16, "elapsed_s": 1.5, "contributors": 3, "expected": 4}
    return mutate.json_text(rng, json.dumps(line)).encode("utf-8", "surrogatepass")


def _read_body(content: bytes) -> None:
    """As FastAPI reads it: what is no JSON, or nested too deeply for Python's reader, comes no further."""
    try:
        document = json.loads(content)
    except (ValueError, RecursionError):
        return
    AggregateBody.model_validate(document)


def _body(rng: Random) -> bytes:
    where = [{"field": "a", "operator": "=", "value": 1}]
    body = {
        "query": rng.choice((QUERIES[0], {"function": "sum", "field": "x", "by": "k", "where": where})),
        "files": "**/*",
        "format": "ndjson",
        "groups_max": 10,
        "deadline_s": "30s",
    }
    return mutate.json_text(rng, json.dumps(body)).encode("utf-8", "surrogatepass")
