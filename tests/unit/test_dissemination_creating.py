"""A stream that is removed while the ring has not confirmed yet that it was created."""

from __future__ import annotations

from peerd.api import RecordOutcome, RecordResult
from peerd.testing.host import FakeHost
from protocols.dissemination.models import StreamSpec
from protocols.dissemination.names import stream_key
from protocols.dissemination.plugin import Dissemination
from protocols.dissemination.registry import EndedEarly
from protocols.dissemination.service import StreamRefused

SPEC = StreamSpec(name="news", kind="classes", policy="first_fit")
KEY = stream_key("news")
STORED, UNKNOWN = RecordResult(RecordOutcome.STORED), RecordResult(RecordOutcome.UNKNOWN)


class Producer:
    """A node, and a ring that answers when the test says so."""

    def __init__(self) -> None:
        self.plugin = Dissemination()
        self.host = FakeHost(1, self.plugin)
        self.told: list[object] = []

    def create(self, spec: StreamSpec = SPEC) -> None:
        self.plugin.changes.create(spec, self.told.append)

    def remove(self) -> None:
        self.plugin.changes.remove("news", lambda answer: None)

    def asked(self, what: str) -> int:
        """How often the ring was asked for this."""
        return len([each for each in self.host.asked if each.what == what])

    def answer(self, what: str, number: int, result: RecordResult) -> None:
        [each for each in self.host.asked if each.what == what][number].arguments["on_result"](result)
        self.host.run_later()
        if ("stream_answers", None) in self.host.timers:
            self.host.fire("stream_answers")


def assert_nothing_is_left(producer: Producer) -> None:
    assert producer.plugin.questions.streams() == [] and producer.host.store.keys() == []
    assert not [name for name, _ in producer.host.timers if name == "stream_renewal"]


def test_what_was_removed_is_not_renewed_when_the_ring_confirms_it_late() -> None:
    producer = Producer()
    producer.create()
    producer.remove()
    producer.answer("records.put", 0, STORED)
    assert producer.asked("records.delete") == 2, "it may have been written after it was deleted"
    for number in range(2):
        producer.answer("records.delete", number, STORED)
    assert [type(each) for each in producer.told] == [EndedEarly]
    assert_nothing_is_left(producer)


def test_what_was_removed_is_deleted_also_where_nobody_says_whether_it_was_written() -> None:
    producer = Producer()
    producer.create()
    producer.remove()
    producer.answer("records.put", 0, UNKNOWN)
    assert producer.asked("records.delete") == 2
    assert_nothing_is_left(producer)


def test_a_late_answer_does_nothing_to_the_next_stream_of_the_name() -> None:
    for result in (STORED, UNKNOWN, RecordResult(RecordOutcome.OWNED)):
        producer = Producer()
        durable = SPEC.model_copy(update={"durable": True})
        producer.create(durable)
        producer.remove()
        producer.create(durable)
        producer.host.run_later()
        producer.answer("records.put", 0, result)
        node = producer.plugin.nodes.get(KEY)
        assert node is not None and node.keeping is not None and node.keeping.is_kept
        assert producer.asked("records.delete") == 1 and producer.plugin.produced.logs.keys() == {"news"}
        producer.answer("records.put", 1, STORED)
        assert [isinstance(each, StreamRefused) for each in producer.told] == [True, False]
        assert sorted(producer.host.store.keys()) == ["owner.news", "past.news", "stream.news"]
        assert ("stream_renewal", KEY) in producer.host.timers
