"""The comparison of streams with brokers: its documents are the same for all, and each is wanted by some."""

from __future__ import annotations

import json
import statistics
import sys

import pytest

from bench.streams.documents import BYTES, CLASSES, DocumentWork, draw, sent_ns, work_of
from protocols.dissemination.interests.xpath.kind import XPathKind
from protocols.dissemination.messages import StreamItem

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the benchmark reads /proc")


@pytest.fixture(scope="module")
def work() -> DocumentWork:
    return draw(80)


def test_brokers_clients_and_peerd_want_the_same_documents(work: DocumentWork) -> None:
    kind = XPathKind()
    interests = [kind.parse(query) for query in work.queries]
    wants = [work.wants(subscriber) for subscriber in range(CLASSES)]
    for number, classes in enumerate(work.wanted):
        payload = work.payload(number)
        content = kind.content(StreamItem.of(1, number + 1, 0, payload))
        assert [at for at, interest in enumerate(interests) if kind.matches(interest, content)] == classes
        assert [at for at, want in enumerate(wants) if want(payload) is not None] == classes


def test_a_document_says_when_it_was_published_and_has_the_size_that_was_asked_for(work: DocumentWork) -> None:
    number = next(number for number, classes in enumerate(work.wanted) if classes)
    payload, later = work.payload(number), work.payload(number)
    assert 0 < sent_ns(payload) <= sent_ns(later)
    assert work.wants(work.wanted[number][0])(payload) == sent_ns(payload)
    assert all(BYTES[0] <= len(work.payload(number)) <= BYTES[1] for number in range(80))


def test_about_a_fifth_of_the_documents_is_wanted_and_counted_in_bytes(work: DocumentWork) -> None:
    due = work.due(CLASSES, 0, 80)
    assert 0.15 < statistics.mean(due) / 80 < 0.25
    assert work.due(2 * CLASSES, 0, 80) == due + due
    assert [each.bit_count() for each in work.wanted_bits(CLASSES + 3)] == [0, *due, *due[:3]]
    one = sum(len(work.payload(number)) for number, classes in enumerate(work.wanted) if 0 in classes)
    assert work.due_bytes(1, 0, 80) == one
    assert work.published_bytes(0, 80) == sum(len(work.payload(number)) for number in range(80))


def test_work_is_the_same_in_every_run_and_after_a_way_through_json(work: DocumentWork) -> None:
    assert draw(80) == work
    assert work_of(json.loads(json.dumps(work.to_json()))) == work
