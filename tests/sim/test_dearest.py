"""No valid message or HTTP request takes long unless it is known who pays for it: the tables of `tests.fuzz.dearest`.

Processor time of one thread is counted, in units of a fixed piece of work that is measured beside it, the least of
three times; and `MARGIN` times as much is let pass. So a busy machine does not fail the test. Nor does what other tests
have left behind: all is measured in children of a process of its own. In a child of one whose memory is large and
torn, each of the many small pieces that a document needs means a page to copy, which made it take three times as long.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import pytest

from peerd.lib.filter import FilterIndex
from peerd.messages import Message
from protocols.pubsub.delivering.messages import HoldEvents
from protocols.pubsub.matching.filter_work import price_s
from protocols.pubsub.messages import ExplainQuestion, InsertSub
from protocols.pubsub.schema.document import SchemaDocument
from protocols.pubsub.schema.event_schema import EventSchema
from tests.fuzz import dearest_routes
from tests.fuzz.dearest import CHEAP_MS, CROSSED_FILTER, DEAR_FILTER, PAYS, TRIES, dearest_of, kinds, milliseconds
from tests.support.amplification_pubsub import DOCUMENT

MARGIN = 4.0
QUICK_ROUTES = (
    "GET /v1/events",
    "POST /v1/aggregate",
    "POST /v1/pubsub/subscriptions",
    "POST /v1/streams/{stream}/subscriptions",
    "POST /v1/streams/{stream}/items",
)
QUICK: tuple[type[Message], ...] = (ExplainQuestion, HoldEvents, InsertSub)


@pytest.fixture(scope="module")
def fresh() -> Iterator[ProcessPoolExecutor]:
    """A process that has done nothing before."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
        yield process


def is_paid(kind: type[Message]) -> bool:
    found = dearest_of(kind)
    return kind.__name__ in PAYS or found.milliseconds <= MARGIN * CHEAP_MS


@pytest.mark.parametrize("kind", QUICK, ids=lambda kind: kind.__name__)
def test_it_is_known_who_pays_for_what_is_dear(kind: type[Message], fresh: ProcessPoolExecutor) -> None:
    assert fresh.submit(is_paid, kind).result()


@pytest.mark.long
def test_it_is_known_who_pays_for_all_messages_that_are_dear(fresh: ProcessPoolExecutor) -> None:
    found = zip(kinds(), fresh.map(is_paid, kinds()), strict=True)
    assert [kind.__name__ for kind, is_known in found if not is_known] == []


def test_all_who_pay_are_named_for_messages_that_there_are() -> None:
    assert set(PAYS) <= {kind.__name__ for kind in kinds()}


@pytest.mark.parametrize("filter", [DEAR_FILTER, CROSSED_FILTER, "a > 1"])
def test_the_price_of_a_filter_is_what_it_takes(filter: str) -> None:
    """To read and to index it, for the dearest filters that are known."""

    schema = EventSchema(SchemaDocument.model_validate(DOCUMENT))

    def read() -> None:
        index: FilterIndex[str] = FilterIndex(absent_matches=False)
        index.add(filter, schema.parse_filter(filter))
        index.settle()

    read()  # imports what it needs
    assert min(milliseconds(read) for _ in range(TRIES)) <= MARGIN * 1000.0 * price_s(filter)


# HTTP


def is_charged(route: str) -> bool:
    """Whether its dearest request is charged by what it takes; nobody is charged for one that takes little.

    The dearest of hundreds of requests is the one that a busy machine disturbed most, so what seems too dear is looked
    for again: what is so, is so each time.
    """
    for _ in range(TRIES):
        found = dearest_routes.dearest_request(route, beyond_charge=True)
        if found.milliseconds <= MARGIN * (CHEAP_MS + found.charged_ms):
            return True
    return False


@pytest.mark.parametrize("route", QUICK_ROUTES)
def test_a_dear_request_is_charged_before_it_is_served(route: str, fresh: ProcessPoolExecutor) -> None:
    assert fresh.submit(is_charged, route).result()


@pytest.mark.long
def test_every_dear_request_is_charged_before_it_is_served(fresh: ProcessPoolExecutor) -> None:
    found = zip(dearest_routes.routes(), fresh.map(is_charged, dearest_routes.routes()), strict=True)
    assert [route for route, is_known in found if not is_known] == []


def test_every_route_that_takes_something_has_a_dearest_request() -> None:
    known = set(dearest_routes.routes())
    assert dearest_routes.routes_that_take() <= known and set(dearest_routes.PAYS) <= known
